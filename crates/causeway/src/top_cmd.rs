// SPDX-License-Identifier: Apache-2.0
//! `causeway top`: a running balancer in the terminal, second by second.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use causeway_api::balancer::{History, Moves, RealView, Stats, VipView};
use causeway_report::table::{course, ms, weight};
use causeway_service::config::units;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use crate::client::Target;
use crate::stats_cmd::{address, quality};

/// Points of a course: one a refresh.
const POINTS: usize = 40;
/// Moves of weight at the foot.
const MOVES: usize = 5;
const SPACING: u16 = 2;

/// Arguments of `causeway top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Time between two updates
    #[arg(short, long, default_value = "1s", value_parser = units::duration)]
    interval: Duration,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !std::io::stdout().is_terminal() {
            bail!(
                "top needs a terminal; causeway stats prints the same once, for programs with -o json"
            );
        }
        let mut view = View::default();
        // What is wrong with the daemon is said before the terminal is taken over.
        view.look(&self.target)?;
        let mut screen = Screen(ratatui::try_init()?);
        let mut next = Instant::now() + self.interval;
        loop {
            screen.0.draw(|frame| view.draw(frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && view.key(key.code, key.modifiers.contains(KeyModifiers::CONTROL))
                {
                    return Ok(ExitCode::SUCCESS);
                }
                continue;
            }
            next = Instant::now() + self.interval;
            // A daemon that restarts is no reason to end: the data plane goes on, too.
            view.fault = view
                .look(&self.target)
                .err()
                .map(|error| format!("{error:#}"));
        }
    }
}

/// The terminal, restored when this is dropped.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What happened to a real over the last looks.
#[derive(Debug, Default)]
struct Course {
    latency_us: Vec<Option<f64>>,
    weights: Vec<Option<f64>>,
    opened: u64,
    opened_before: u64,
}

#[derive(Default)]
struct View {
    stats: Option<Stats>,
    before: Option<Stats>,
    moves: Vec<String>,
    courses: HashMap<(String, String), Course>,
    since_ns: u64,
    selected: TableState,
    /// Why what is shown is what was before, if the last look has failed.
    fault: Option<String>,
}

impl View {
    fn look(&mut self, target: &Target) -> Result<()> {
        let stats: Stats = target.get("/v1/stats")?;
        let history: History =
            target.get(&format!("/v1/history?since_monotonic_ns={}", self.since_ns))?;
        let moves: Moves = target.get("/v1/moves")?;
        self.take(stats, &history, moves);
        Ok(())
    }

    fn take(&mut self, stats: Stats, history: &History, moves: Moves) {
        let first = self.stats.is_none();
        // The host has started anew, and its clock with it.
        if stats.at.monotonic_ns < self.since_ns {
            self.since_ns = 0;
        }
        for series in &history.series {
            let course = self
                .courses
                .entry((series.vip.clone(), series.real.clone()))
                .or_default();
            let samples: f64 = series.epochs.iter().map(|epoch| epoch.samples).sum();
            let sum = series.epochs.iter();
            let sum: f64 = sum.filter_map(|e| Some(e.estimate_us? * e.samples)).sum();
            let mean = (samples > 0.0).then(|| sum / samples);
            // What was before the first look is one point, not a course.
            push(&mut course.latency_us, mean);
            push(&mut course.weights, series.epochs.last().map(|e| e.weight));
        }
        let last = history
            .series
            .iter()
            .filter_map(|series| series.epochs.last());
        if let Some(last) = last.map(|epoch| epoch.start_monotonic_ns).max() {
            self.since_ns = last + 1;
        }
        for vip in &stats.vips {
            for real in &vip.reals {
                let key = (vip.name.clone(), real.address.clone());
                let course = self.courses.entry(key).or_default();
                course.opened_before = if first {
                    real.connections_opened
                } else {
                    course.opened
                };
                course.opened = real.connections_opened;
            }
        }
        // Reals that are gone leave nothing behind.
        self.courses.retain(|(vip, real), _| {
            stats
                .vips
                .iter()
                .any(|of| of.name == *vip && of.reals.iter().any(|known| known.address == *real))
        });
        let recent = moves.moves.iter().rev().take(MOVES);
        self.moves = recent
            .map(|one| {
                let ago = stats.at.monotonic_ns.saturating_sub(one.at.monotonic_ns);
                format!(
                    "{:6.1} s ago  {} {}  {} -> {}  {}{}",
                    ago as f64 / 1e9,
                    one.vip,
                    one.real,
                    weight(one.before),
                    weight(one.after),
                    one.reason_text,
                    if one.observed { " (observed)" } else { "" }
                )
            })
            .collect();
        self.before = self.stats.replace(stats);
    }

    /// Whether the user wants to leave.
    fn key(&mut self, key: KeyCode, control: bool) -> bool {
        match key {
            KeyCode::Char('c' | 'd') if control => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Home => self.selected.select_first(),
            KeyCode::PageDown => self.selected.scroll_down_by(10),
            KeyCode::PageUp => self.selected.scroll_up_by(10),
            _ => {}
        }
        false
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let Some(stats) = self.stats.take() else {
            return;
        };
        let vips = stats.vips.len().min(6) as u16;
        let [head, reals, foot, help] = Layout::vertical([
            Constraint::Length(1 + vips),
            Constraint::Min(4),
            Constraint::Length(2 + self.moves.len() as u16),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(&stats), head);
        let selected = self.reals(frame, reals, &stats);
        let mut lines = vec![Line::from(selected), Line::from("")];
        lines.extend(self.moves.iter().map(|line| Line::from(line.clone()).dim()));
        frame.render_widget(Paragraph::new(lines), foot);
        let keys =
            "q quit   arrows select a real: below, why it has its weight, and the last moves";
        let below = match &self.fault {
            Some(fault) => Paragraph::new(format!("stale: {fault}")).red().bold(),
            None => Paragraph::new(keys).dim(),
        };
        frame.render_widget(below, help);
        self.stats = Some(stats);
    }

    fn head(&self, stats: &Stats) -> Paragraph<'static> {
        let before = self.before.as_ref();
        let seconds = before.map_or(0.0, |before| {
            stats.at.monotonic_ns.saturating_sub(before.at.monotonic_ns) as f64 / 1e9
        });
        let rate = |now: u64, then: u64| match seconds > 0.0 {
            true => format!("{:.0}/s", now.saturating_sub(then) as f64 / seconds),
            false => "-".to_owned(),
        };
        let total = |stats: &Stats, drops: bool| -> u64 {
            let verdicts = stats.verdicts.iter();
            let counted = verdicts.filter(|verdict| (verdict.action == "drop") == drops);
            counted.map(|verdict| verdict.packets).sum()
        };
        let then = |drops| before.map_or(0, |before| total(before, drops));
        let mut lines = vec![
            Line::from(format!(
                "causeway   packets {}   drops {} ({} in all)",
                rate(total(stats, false), then(false)),
                rate(total(stats, true), then(true)),
                total(stats, true)
            ))
            .bold(),
        ];
        for vip in stats.vips.iter().take(6) {
            let then = before.and_then(|before| before.vips.iter().find(|of| of.name == vip.name));
            lines.push(Line::from(format!(
                "{}  {}  {}  control {}  {} of {} up  {}",
                vip.name,
                address(vip),
                vip.scheduler,
                vip.control,
                vip.reals_up,
                vip.reals.len(),
                rate(vip.packets, then.map_or(0, |then| then.packets)),
            )));
        }
        Paragraph::new(lines)
    }

    /// Draws the table of reals; returns why the selected one has its weight.
    fn reals(&mut self, frame: &mut Frame<'_>, area: Rect, stats: &Stats) -> String {
        let all: Vec<(&VipView, &RealView)> = stats
            .vips
            .iter()
            .flat_map(|vip| vip.reals.iter().map(move |real| (vip, real)))
            .collect();
        let last = all.len().saturating_sub(1);
        let at = self.selected.selected().unwrap_or(0).min(last);
        self.selected.select(Some(at));
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|(vip, real)| {
                let key = (vip.name.clone(), real.address.clone());
                cells(vip, real, self.courses.get(&key))
            })
            .collect();
        let columns = columns(area.width, &rows);
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        let head = Row::new(columns.iter().map(|(at, _)| COLUMNS[*at].0));
        let rows = rows.iter().map(|cells| {
            Row::new(columns.iter().map(|&(at, width)| {
                let cell = &cells[at];
                match COURSES.contains(&at) {
                    // The last points.
                    true => {
                        let skipped = cell.chars().count().saturating_sub(width.into());
                        cell.chars().skip(skipped).collect()
                    }
                    false => cell.clone(),
                }
            }))
        });
        let table = Table::new(rows.collect::<Vec<_>>(), widths)
            .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
            .column_spacing(SPACING)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.selected);
        all.get(at).map_or(String::new(), |(vip, real)| {
            format!("{} {}: {}", vip.name, real.address, real.reason_text)
        })
    }
}

/// Columns with their least widths.
const COLUMNS: [(&str, u16); 12] = [
    ("VIP", 3),
    ("REAL", 4),
    ("STATE", 6),
    ("WEIGHT", 6),
    ("EFFECTIVE", 9),
    ("OPEN", 5),
    ("NEW", 5),
    ("MEAN MS", 7),
    ("P99 MS", 7),
    ("QUALITY", 7),
    ("LATENCY", 8),
    ("WEIGHT", 8),
];
/// Of them those that show the last looks.
const COURSES: [usize; 2] = [10, 11];
/// Columns that narrow terminals do without, in the order in which they go; VIP and REAL stay.
const NARROW: [usize; 10] = [9, 6, 11, 3, 8, 10, 5, 4, 2, 7];

/// The columns that there is room for, and their widths: names and addresses are never cut.
fn columns(room: u16, rows: &[Vec<String>]) -> Vec<(usize, u16)> {
    let width = |at: usize| {
        let cells = rows.iter().map(|cells| cells[at].chars().count() as u16);
        match COURSES.contains(&at) {
            true => COLUMNS[at].1,
            false => cells.max().unwrap_or(0).max(COLUMNS[at].1),
        }
    };
    let mut columns: Vec<(usize, u16)> = (0..COLUMNS.len()).map(|at| (at, width(at))).collect();
    let taken = |columns: &[(usize, u16)]| {
        let widths = columns.iter().map(|(_, width)| width + SPACING);
        widths.sum::<u16>().saturating_sub(SPACING)
    };
    let mut dropped = NARROW.into_iter();
    while taken(&columns) > room
        && let Some(next) = dropped.next()
    {
        columns.retain(|(at, _)| *at != next);
    }
    let courses = COURSES
        .iter()
        .filter(|at| columns.iter().any(|of| of.0 == **at));
    let spare = room.saturating_sub(taken(&columns)) / courses.count().max(1) as u16;
    for (_, width) in columns.iter_mut().filter(|(at, _)| COURSES.contains(at)) {
        *width = (*width + spare).min(POINTS as u16);
    }
    columns
}

fn cells(vip: &VipView, real: &RealView, of: Option<&Course>) -> Vec<String> {
    let opened = of.map_or(0, |of| of.opened.saturating_sub(of.opened_before));
    vec![
        vip.name.clone(),
        real.address.clone(),
        real.state.clone(),
        real.weight.to_string(),
        weight(real.effective_weight),
        real.connections_active.to_string(),
        opened.to_string(),
        ms(real.latency.last_us),
        ms(real.latency.p99_us),
        quality(&real.latency),
        of.map_or(String::new(), |of| course(&of.latency_us)),
        of.map_or(String::new(), |of| course(&of.weights)),
    ]
}

fn push(values: &mut Vec<Option<f64>>, value: Option<f64>) {
    values.push(value);
    if values.len() > POINTS {
        values.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::{EpochView, Grade, RealHistory};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    const STATS: &str = r#"{
        "at": AT,
        "verdicts": [
            {"verdict": "forwarded", "action": "tx", "packets": PACKETS, "bytes": 1},
            {"verdict": "no_ring", "action": "drop", "packets": 7, "bytes": 1}
        ],
        "vips": [{
            "name": "web", "id": 0, "address": "192.0.2.1", "port": 80, "protocol": "tcp",
            "scheduler": "latency", "load": null, "forwarding": "ipip", "control": "equalise",
            "reals_up": 1, "min_healthy": 1, "ready": true, "packets": PACKETS, "bytes": 1,
            "cookie": {"mode": "none", "bits": 0, "id_bits": 0, "results": []},
            "reals": [{
                "id": 0, "address": "10.0.0.1", "mac": null, "cookie_ids": [], "role": "primary", "state": "active",
                "health": null, "weight": 100, "effective_weight": 41.5, "wanted_weight": 41.5,
                "reason": "above", "reason_text": "gave weight: 50.00 ms", "packets": 1, "bytes": 1,
                "connections_opened": OPENED, "connections_closed": 1, "connections_active": 12,
                "load": null, "requests": 9,
                "latency": {"last_us": 50000.0, "mean_us": 50000.0, "samples": 5, "p50_us": null,
                            "p90_us": null, "p99_us": 80000.0}
            }]
        }]
    }"#;
    const MOVES: &str = r#"{"moves": [{
        "at": AT, "vip": "web", "real": "10.0.0.1", "before": 50.0, "after": 41.5,
        "latency_us": 50000.0, "reason": "above", "reason_text": "gave weight: 50.00 ms",
        "observed": false
    }]}"#;

    fn answers(second: u64) -> (Stats, History, Moves) {
        let filled = |text: &str| {
            let at = format!(
                r#"{{"realtime_ns": {0}, "monotonic_ns": {0}}}"#,
                second * 1_000_000_000
            );
            let opened = (30 * second).to_string();
            text.replace("AT", &at)
                .replace("OPENED", &opened)
                .replace("PACKETS", &(1000 * second).to_string())
        };
        let epoch = EpochView {
            low: 0.0,
            quality: Grade::High,
            start_ns: 0,
            start_monotonic_ns: second * 1_000_000_000,
            estimate_us: Some(10_000.0 * second as f64),
            samples: 4.0,
            requests: 4,
            opened: 1,
            active: 12,
            configured: 100.0,
            weight: 100.0 - 10.0 * second as f64,
        };
        let series = RealHistory {
            vip: "web".into(),
            id: 0,
            real: "10.0.0.1".into(),
            epochs: vec![epoch],
        };
        let history = History {
            epoch_ns: 100_000_000,
            series: vec![series],
            next_since_monotonic_ns: None,
        };
        (
            serde_json::from_str(&filled(STATS)).expect("stats"),
            history,
            serde_json::from_str(&filled(MOVES)).expect("moves"),
        )
    }

    #[test]
    fn the_screen_holds_rates_courses_and_reasons() {
        let mut view = View::default();
        for second in 1..=8 {
            let (stats, history, moves) = answers(second);
            view.take(stats, &history, moves);
        }
        assert_eq!(view.since_ns, 8_000_000_001);
        let mut terminal = Terminal::new(TestBackend::new(150, 14)).expect("a backend");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let text = terminal.backend().to_string();
        for wanted in [
            "packets 1000/s   drops 0/s (7 in all)",
            "web  192.0.2.1:80  latency  control equalise  1 of 1 up  1000/s",
            "▁▂▃▄▅▆▇█",
            "web 10.0.0.1: gave weight: 50.00 ms",
            "0.0 s ago  web 10.0.0.1  50 -> 41.500",
            "41.500",
            "   30 ",
        ] {
            assert!(text.contains(wanted), "{wanted:?} in\n{text}");
        }
        // An old terminal's: servers are told apart.
        let mut small = Terminal::new(TestBackend::new(80, 24)).expect("a backend");
        small.draw(|frame| view.draw(frame)).expect("drawn");
        let text = small.backend().to_string();
        for wanted in [
            "VIP  REAL      STATE   WEIGHT  EFFECTIVE  OPEN   MEAN MS  P99 MS",
            "web  10.0.0.1  active  100     41.500     12     50.00    80.00",
            "▁▂▃▄▅▆▇█",
            "and the last moves",
        ] {
            assert!(text.contains(wanted), "{wanted:?} in\n{text}");
        }
        let long = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff";
        let mut row = vec![String::new(); COLUMNS.len()];
        (row[0], row[1]) = ("a-name-of-some-length".to_owned(), long.to_owned());
        let shown = columns(80, &[row]);
        assert_eq!(shown[..2], [(0, 21), (1, 38)]);
        view.fault = Some("no daemon runs at /run/x".to_owned());
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let text = terminal.backend().to_string();
        for wanted in ["stale: no daemon runs at /run/x", "packets 1000/s"] {
            assert!(text.contains(wanted), "{wanted:?} in\n{text}");
        }
        assert!(view.key(KeyCode::Char('q'), false));
        assert!(!view.key(KeyCode::Down, false));
    }

    #[test]
    fn a_host_that_starts_anew_has_its_history_from_the_beginning() {
        let mut view = View::default();
        let (stats, history, moves) = answers(8);
        view.take(stats, &history, moves);
        let (mut stats, mut history, moves) = answers(2);
        let vip = &mut stats.vips[0];
        (vip.address, vip.port) = ("2001:db8::1".to_owned(), 0);
        history.series.clear();
        view.take(stats, &history, moves);
        assert_eq!(view.since_ns, 0);
        let mut terminal = Terminal::new(TestBackend::new(150, 14)).expect("a backend");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let text = terminal.backend().to_string();
        assert!(text.contains("web  [2001:db8::1]:*  latency"), "{text}");
    }
}
