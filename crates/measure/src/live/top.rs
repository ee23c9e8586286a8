// SPDX-License-Identifier: Apache-2.0
//! The terminal view: groups with their latest means as sparklines, and the
//! distribution of the selected one.

use std::time::{Duration, Instant};

use causeway_core::flow::FlowKey;
use causeway_core::hist::Latencies;
use causeway_report::table::course;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style as Look, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Bar, BarChart, BarGroup, Block, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::super::rows::Style;
use super::super::table::latency;
use super::super::totals::{Total, Totals};
use super::Counters;
use super::recent::{Recent, TICKS};

/// Bars of the distribution.
const BAR_WIDTH: u16 = 3;

/// Blanks between two columns of the table.
const SPACING: u16 = 2;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Redraw,
    Quit,
}

/// What the groups are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Samples,
    Mean,
    Name,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Samples => Self::Mean,
            Self::Mean => Self::Name,
            Self::Name => Self::Samples,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Mean => "mean",
            Self::Name => "name",
        }
    }
}

/// The terminal, restored when this is dropped.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    view: View,
}

/// What is shown of all there is.
struct View {
    interface: String,
    order: Order,
    selected: TableState,
    started: Instant,
    /// Packets at the last drawing, for the rate.
    before: (Instant, u64),
    rate: f64,
}

impl Screen {
    /// Takes the terminal over.
    pub(super) fn open(interface: &str) -> std::io::Result<Self> {
        Ok(Self {
            terminal: ratatui::try_init()?,
            view: View::new(interface),
        })
    }

    /// The keys pressed since the last call.
    pub(super) fn asked(&mut self) -> std::io::Result<Asked> {
        let mut asked = Asked::Nothing;
        while event::poll(Duration::ZERO)? {
            asked = match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    self.view.key(key.code, control)
                }
                Event::Resize(..) => Asked::Redraw,
                _ => continue,
            };
            if asked == Asked::Quit {
                break;
            }
        }
        Ok(asked)
    }

    /// Draws everything again.
    pub(super) fn draw(
        &mut self,
        totals: &Totals,
        recent: &Recent,
        style: &Style,
        counters: &Counters,
    ) -> std::io::Result<()> {
        self.view.measure_rate(counters.total());
        let view = &mut self.view;
        self.terminal
            .draw(|frame| view.draw(frame, totals, recent, style, counters))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

type Group<'a> = (FlowKey, u8, &'a Total);

impl View {
    fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            order: Order::Samples,
            selected: TableState::default().with_selected(0),
            started: Instant::now(),
            before: (Instant::now(), 0),
            rate: 0.0,
        }
    }

    fn key(&mut self, key: KeyCode, control: bool) -> Asked {
        match key {
            KeyCode::Char('c' | 'd') if control => return Asked::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Asked::Quit,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Home => self.selected.select_first(),
            KeyCode::PageDown => self.selected.scroll_down_by(10),
            KeyCode::PageUp => self.selected.scroll_up_by(10),
            _ => return Asked::Nothing,
        }
        Asked::Redraw
    }

    fn measure_rate(&mut self, packets: u64) {
        let (then, before) = self.before;
        let seconds = then.elapsed().as_secs_f64();
        if seconds > 0.5 {
            self.rate = packets.saturating_sub(before) as f64 / seconds;
            self.before = (Instant::now(), packets);
        }
    }

    fn draw(
        &mut self,
        frame: &mut Frame<'_>,
        totals: &Totals,
        recent: &Recent,
        style: &Style,
        counters: &Counters,
    ) {
        let mut groups = totals.groups();
        self.sort(&mut groups, recent);
        let last = groups.len().saturating_sub(1);
        let at = self.selected.selected().unwrap_or(0).min(last);
        self.selected.select(Some(at));
        let low = frame.area().height < 20;
        let bars = if low { 0 } else { 11 };
        let [head, table, chart, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(3),
            Constraint::Length(bars),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(counters), head);
        self.table(frame, table, &groups, recent, style);
        if let (false, Some((key, method, total))) = (low, groups.get(at)) {
            let name = style.grouping.cells(key).join("  ");
            let title = format!(" {name}  {}, since the start ", style.label(*method).name);
            frame.render_widget(distribution(&total.latencies, title, chart), chart);
        }
        let help = format!(
            "q quit   arrows select   s order ({})   MEAN and COURSE: the last 10 and {TICKS} s; percentiles: since the start",
            self.order.word()
        );
        frame.render_widget(Paragraph::new(help).dim(), foot);
    }

    fn head(&self, counters: &Counters) -> Paragraph<'static> {
        let seconds = self.started.elapsed().as_secs();
        let mut first = vec![
            Span::from(format!("{}  ", self.interface)).bold(),
            Span::from(format!(
                "{:02}:{:02}:{:02}   {} packets   {:.0}/s",
                seconds / 3600,
                seconds / 60 % 60,
                seconds % 60,
                counters.total(),
                self.rate
            )),
        ];
        if let Some((lost, why)) = counters.lost.filter(|(lost, _)| *lost > 0) {
            first.push(Span::from(format!("   {lost} {why}")).red());
        }
        let seen = counters.packets.iter().filter(|(_, count)| *count > 0);
        let words: Vec<_> = seen
            .map(|(word, count)| format!("{word} {count}"))
            .collect();
        Paragraph::new(vec![Line::from(first), Line::from(words.join(", ")).dim()])
    }

    fn sort(&self, groups: &mut [Group<'_>], recent: &Recent) {
        // Ties, and the order by name, are as the totals have them.
        match self.order {
            Order::Name => {}
            Order::Samples => groups.sort_by_key(|(key, method, total)| {
                let now = recent.now(key, *method).samples();
                std::cmp::Reverse((now, total.tally.samples()))
            }),
            Order::Mean => groups.sort_by(|a, b| {
                let mean = |group: &Group<'_>| recent.now(&group.0, group.1).mean_ns();
                let (a, b) = (mean(a).unwrap_or(0.0), mean(b).unwrap_or(0.0));
                b.total_cmp(&a)
            }),
        }
    }

    fn table(
        &mut self,
        frame: &mut Frame<'_>,
        area: Rect,
        groups: &[Group<'_>],
        recent: &Recent,
        style: &Style,
    ) {
        if groups.is_empty() {
            let waiting = "waiting for estimates: requests of clients must cross this interface";
            frame.render_widget(Paragraph::new(waiting).dim(), area);
            return;
        }
        let mut head: Vec<String> = style
            .grouping
            .head()
            .iter()
            .map(|w| (*w).to_owned())
            .collect();
        let columns = head.len();
        if style.several() {
            head.push("ESTIMATOR".to_owned());
        }
        let numbers = ["MEAN", "/S", "P50", "P99", "W"];
        head.extend(numbers.map(|word| format!("{word:>10}")));
        head.extend(["QUALITY".to_owned(), "COURSE".to_owned()]);
        let mut widths: Vec<u16> = head.iter().map(|word| word.len() as u16).collect();
        for (key, _, _) in groups {
            for (width, cell) in widths.iter_mut().zip(style.grouping.cells(key)) {
                *width = (*width).max(cell.len() as u16);
            }
        }
        if style.several() {
            let names = style.estimators.iter().map(|label| label.name.len() as u16);
            widths[columns] = names.max().unwrap_or(0);
        }
        // The course takes what the other columns leave: they hold what must be read.
        let others: u16 = widths
            .iter()
            .rev()
            .skip(1)
            .map(|width| width + SPACING)
            .sum();
        let room = area.width.saturating_sub(others).min(TICKS as u16);
        if let Some(course) = widths.last_mut() {
            *course = room;
        }
        let widths = widths.into_iter().map(Constraint::Length);
        let rows = groups
            .iter()
            .map(|group| Row::new(cells(group, recent, style, room.into())));
        let table = Table::new(rows, widths)
            .header(Row::new(head).style(Look::new().add_modifier(Modifier::BOLD)))
            .column_spacing(SPACING)
            .row_highlight_style(Look::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.selected);
    }
}

/// The columns of a row; of its course the `room` latest means.
fn cells(group: &Group<'_>, recent: &Recent, style: &Style, room: usize) -> Vec<String> {
    let (key, method, total) = group;
    let now = recent.now(key, *method);
    let confidence = now.confidence();
    let mut cells = style.grouping.cells(key);
    if style.several() {
        cells.push(style.label(*method).name.to_owned());
    }
    let quantile = |share| latency(total.quantile(share).map(|ns| ns as f64));
    let window = confidence.window.map_or("-".to_owned(), |w| w.to_string());
    let rate = format!("{:.1}", now.samples() as f64 / 10.0);
    let numbers = [
        latency(now.mean_ns()),
        rate,
        quantile(0.5),
        quantile(0.99),
        window,
    ];
    cells.extend(numbers.map(|number| format!("{number:>10}")));
    cells.push(confidence.quality.to_string());
    let means = recent.means(key, *method);
    cells.push(course(&means[means.len().saturating_sub(room)..]));
    cells
}

/// How many samples fall where, on a logarithmic axis from the first to the last.
fn distribution<'a>(latencies: &Latencies, title: String, area: Rect) -> BarChart<'a> {
    let block = Block::bordered().title(title);
    let empty = BarChart::default().block(block.clone());
    let (Some(first), Some(last)) = (latencies.buckets().next(), latencies.buckets().last()) else {
        return empty;
    };
    let count = usize::from((area.width.saturating_sub(2) / (BAR_WIDTH + 1)).max(1));
    let from = first.middle_ns().max(1) as f64;
    let span = (last.middle_ns().max(1) as f64 / from).ln().max(1e-9);
    let mut heights = vec![0u64; count];
    for bucket in latencies.buckets() {
        let along = (bucket.middle_ns().max(1) as f64 / from).ln() / span;
        let at = (along * count as f64) as usize;
        heights[at.min(count - 1)] += bucket.count;
    }
    let bars = heights.into_iter().enumerate().map(|(n, height)| {
        // A label takes the room of several bars: every fourth has one.
        let label = match n % 4 {
            0 => short(from * (span * n as f64 / count as f64).exp()),
            _ => String::new(),
        };
        let bar = Bar::default().value(height).text_value(String::new());
        bar.label(Line::from(label))
    });
    BarChart::default()
        .block(block)
        .bar_width(BAR_WIDTH)
        .bar_gap(1)
        .data(BarGroup::default().bars(&bars.collect::<Vec<_>>()))
}

/// A latency in at most three characters and its unit's first.
fn short(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.0}u", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0}m", ns / 1e6),
        ns => format!("{:.0}s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use causeway_core::estimate::Tally;
    use causeway_core::flow::FlowEstimate as Estimate;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::group::Grouping;
    use crate::rows::Label;
    use crate::totals::Wanted;
    use crate::words::{Format, Per};

    fn style() -> Style {
        Style {
            format: Format::Table,
            grouping: Grouping {
                per: Per::Server,
                prefix: Default::default(),
            },
            estimators: vec![Label {
                name: "window-chain",
                needs: "",
                measures: "",
                protocol: "",
            }],
            percentiles: false,
            compare: false,
            epoch_ns: 200_000_000,
            endless: true,
        }
    }

    /// What the screen shows of two servers, of which one is slow.
    fn screen(width: u16, height: u16, view: &mut View) -> String {
        let style = style();
        let mut totals = Totals::new(Wanted {
            grouping: style.grouping,
            latencies: true,
            series: false,
            max_groups: 10,
            seed: 0,
        });
        let mut recent = Recent::new(style.grouping);
        for (host, mean_ns, samples) in [(2, 4_000_000u64, 50), (3, 90_000_000, 20)] {
            let row = Estimate {
                flow: FlowKey::new(6, [10, 0, 0, 1].into(), 5, [10, 0, 0, host].into(), 80),
                method: 0,
                epoch_ns: 0,
                tally: Tally {
                    sum_halves_ns: mean_ns * 2 * samples,
                    weight_halves: 2 * samples,
                    ..Tally::default()
                },
            };
            totals.row(&row);
            recent.add(&row);
            let mut latencies = Latencies::default();
            latencies.record_n(mean_ns, 2 * samples);
            totals.latencies(&row.flow, 0, &latencies);
        }
        let counters = Counters {
            packets: vec![("measured".to_owned(), 1234)],
            lost: Some((7, "records were lost")),
            evicted: None,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| view.draw(frame, &totals, &recent, &style, &counters))
            .unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn servers_stand_with_their_latencies() {
        let mut view = View::new("eth0");
        let text = screen(130, 30, &mut view);
        for word in [
            "eth0",
            "1234 packets",
            "7 records were lost",
            "10.0.0.2:80",
            "4.000 ms",
            "high",
        ] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        let place = |word: &str| {
            text.find(word)
                .unwrap_or_else(|| panic!("{word} in\n{text}"))
        };
        assert!(
            place("10.0.0.2:80") < place("10.0.0.3:80"),
            "more samples first\n{text}"
        );
        assert_eq!(view.key(KeyCode::Char('s'), false), Asked::Redraw);
        let text = screen(130, 30, &mut view);
        let place = |word: &str| text.find(word).unwrap();
        assert!(
            place("10.0.0.3:80") < place("10.0.0.2:80"),
            "slower first\n{text}"
        );
    }

    #[test]
    fn every_size_of_terminal_is_drawn() {
        let mut view = View::new("eth0");
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(width, height, &mut view);
        }
    }

    #[test]
    fn keys_end_it_and_move_about() {
        let mut view = View::new("eth0");
        assert_eq!(view.key(KeyCode::Char('q'), false), Asked::Quit);
        assert_eq!(view.key(KeyCode::Char('c'), true), Asked::Quit);
        assert_eq!(view.key(KeyCode::Char('c'), false), Asked::Nothing);
        assert_eq!(view.key(KeyCode::Down, false), Asked::Redraw);
        assert_eq!(view.selected.selected(), Some(1));
        // There is no more than what is there.
        (0..9).for_each(|_| _ = view.key(KeyCode::Down, false));
        screen(80, 24, &mut view);
        assert_eq!(view.selected.selected(), Some(1));
    }

    #[test]
    fn a_course_is_as_high_as_its_means() {
        assert_eq!(course(&[Some(1.0), None, Some(4.0), Some(8.0)]), "▁ ▄█");
        assert_eq!(course(&[]), "");
    }
}
