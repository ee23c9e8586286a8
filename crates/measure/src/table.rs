// SPDX-License-Identifier: Apache-2.0
//! The closing table: one line for each group and estimator, over the whole input;
//! with several estimators also what each of them means.

use std::io::{self, Write};

use causeway_core::flow::FlowKey;
use causeway_core::hist::Latencies;
use causeway_core::wire::proto;
use causeway_report::table::TextTable;

use super::rows::{PERCENTILES, Style};
use super::totals::{Total, Totals};
use super::words::Per;

/// Columns of a distribution drawn with characters.
const STRIP: usize = 24;

/// Writes the table, ordered by its first columns.
pub(crate) fn write(totals: &Totals, style: &Style, out: &mut impl Write) -> io::Result<()> {
    let groups = totals.groups();
    let rest: Vec<(u8, &Total)> = totals.rest().collect();
    let all = groups.iter().map(|group| group.2);
    let layout = Layout {
        style,
        window: all.clone().any(|total| total.tally.window > 0),
        axis: style.compare.then(|| Axis::of(all)).flatten(),
    };
    let text = style.grouping.head().len();
    let numbers = text..text + layout.numbers();
    let titles = layout.head().into_iter().enumerate();
    let titles = titles.map(|(column, title)| match numbers.contains(&column) {
        true => format!(">{title}").into(),
        false => title.into(),
    });
    let mut table = TextTable::with_header(titles.collect());
    let mut before = None;
    for (key, lines) in by_group(&groups) {
        for method in 0..style.estimators.len() as u8 {
            let total = lines
                .iter()
                .find(|line| line.1 == method)
                .map(|line| line.2);
            if total.is_none() && !(style.compare && applies(style, method, &key)) {
                continue;
            }
            let repeated = before.replace(key) == Some(key) && style.compare;
            table.push(layout.line(Some((&key, repeated)), method, total));
        }
    }
    for (method, total) in rest {
        table.push(layout.line(None, method, Some(total)));
    }
    out.write_all(table.to_text().as_bytes())?;
    if style.several() {
        legend(style, out)?;
    }
    Ok(())
}

type Group<'a> = (FlowKey, u8, &'a Total);

/// Splits what is ordered by group into the groups.
pub(crate) fn by_group<'a, 'b>(
    groups: &'b [Group<'a>],
) -> impl Iterator<Item = (FlowKey, &'b [Group<'a>])> {
    let same = |a: &Group, b: &Group| a.0 == b.0;
    groups.chunk_by(same).map(|chunk| (chunk[0].0, chunk))
}

/// Whether an estimator could say anything of a group, by its protocol.
pub(crate) fn applies(style: &Style, method: u8, key: &FlowKey) -> bool {
    let needs = style.label(method).protocol;
    match key.proto() {
        proto::TCP => !needs.starts_with("QUIC"),
        proto::UDP => !needs.starts_with("TCP ") && needs != "TCP",
        _ => false,
    }
}

struct Layout<'a> {
    style: &'a Style,
    window: bool,
    axis: Option<Axis>,
}

impl Layout<'_> {
    fn percentiles(&self) -> bool {
        self.style.total_latencies() || self.style.grouping.per != Per::Flow
    }

    fn head(&self) -> Vec<String> {
        let mut head: Vec<&str> = self.style.grouping.head().to_vec();
        head.extend(["SAMPLES", "MEAN"]);
        match self.percentiles() {
            true => head.extend(PERCENTILES.map(|(_, name, _)| name)),
            false => head.extend(["FASTEST", "SLOWEST"]),
        }
        if self.window {
            head.push("W");
        }
        head.push("QUALITY");
        if self.style.several() {
            head.push("ESTIMATOR");
        }
        let mut head: Vec<String> = head.into_iter().map(str::to_owned).collect();
        if let Some(axis) = &self.axis {
            let (from, to) = axis.ends();
            let width = STRIP.saturating_sub(from.len()).max(1);
            head.push(format!("{from}{to:>width$}"));
        }
        head
    }

    /// Columns of numbers, which follow the group's.
    fn numbers(&self) -> usize {
        let latencies = if self.percentiles() {
            PERCENTILES.len()
        } else {
            2
        };
        2 + latencies + usize::from(self.window)
    }

    /// One line; without a key that of the groups beyond the bound, without a total
    /// that of an estimator which has nothing to say.
    fn line(
        &self,
        key: Option<(&FlowKey, bool)>,
        method: u8,
        total: Option<&Total>,
    ) -> Vec<String> {
        let nothing = Total::default();
        let total = total.unwrap_or(&nothing);
        let confidence = total.tally.confidence();
        let columns = self.style.grouping.head().len();
        let mut cells = match key {
            Some((key, false)) => self.style.grouping.cells(key),
            Some((_, true)) => vec![String::new(); columns],
            None => {
                let mut cells = vec![String::new(); columns];
                cells[columns - 1] = "(others)".to_owned();
                cells
            }
        };
        cells.push(confidence.samples.to_string());
        cells.push(latency(total.tally.mean_ns()));
        match self.percentiles() {
            true => cells.extend(
                PERCENTILES.map(|(share, ..)| latency(total.quantile(share).map(|ns| ns as f64))),
            ),
            // Those of one epoch are its mean again.
            false => {
                let ends = [total.fastest_ns, total.slowest_ns];
                cells.extend(ends.map(|ns| latency((ends[0] < ends[1]).then_some(ns))));
            }
        }
        if self.window {
            cells.push(confidence.window.map_or("-".to_owned(), |w| w.to_string()));
        }
        cells.push(confidence.quality.to_string());
        if self.style.several() {
            cells.push(self.style.label(method).name.to_owned());
        }
        if let Some(axis) = &self.axis {
            cells.push(axis.strip(&total.latencies));
        }
        cells
    }
}

/// What each estimator sees and measures.
fn legend(style: &Style, out: &mut impl Write) -> io::Result<()> {
    let mut table = TextTable::new(&["ESTIMATOR", "SEES", "OF", "MEASURES"]);
    for label in &style.estimators {
        let cells = [label.name, label.needs, label.protocol, label.measures];
        table.push(cells.map(str::to_owned).to_vec());
    }
    writeln!(out)?;
    out.write_all(table.to_text().as_bytes())
}

/// A logarithmic axis that holds all distributions.
struct Axis {
    from_ns: f64,
    to_ns: f64,
}

impl Axis {
    fn of<'a>(totals: impl Iterator<Item = &'a Total> + Clone) -> Option<Self> {
        let ends = |total: &Total| {
            let first = total.latencies.buckets().next()?;
            let last = total.latencies.buckets().last()?;
            Some((first.middle_ns(), last.middle_ns()))
        };
        let ends: Vec<_> = totals.filter_map(ends).collect();
        let from_ns = ends.iter().map(|end| end.0).min()?.max(1) as f64;
        let to_ns = ends.iter().map(|end| end.1).max()? as f64;
        Some(Self {
            from_ns,
            to_ns: to_ns.max(from_ns * 1.01),
        })
    }

    fn ends(&self) -> (String, String) {
        (latency(Some(self.from_ns)), latency(Some(self.to_ns)))
    }

    /// How many samples fall where, as heights of blocks.
    fn strip(&self, latencies: &Latencies) -> String {
        const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let mut counts = [0.0; STRIP];
        let span = (self.to_ns / self.from_ns).ln();
        for bucket in latencies.buckets() {
            let along = (bucket.middle_ns().max(1) as f64 / self.from_ns).ln() / span;
            let at = (along * STRIP as f64) as usize;
            counts[at.min(STRIP - 1)] += bucket.count as f64;
        }
        let most = counts.iter().copied().fold(0.0, f64::max);
        let height = |count: f64| match most > 0.0 && count > 0.0 {
            // What is there shows, however little it is.
            true => HEIGHTS[((count / most * 8.0).ceil() as usize).clamp(1, 8)],
            false => HEIGHTS[0],
        };
        counts.into_iter().map(height).collect()
    }
}

/// A latency with the unit that suits it.
pub(crate) fn latency(ns: Option<f64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        Some(ns) if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        Some(ns) => format!("{:.3} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_shows_where_its_samples_are() {
        let mut latencies = Latencies::default();
        latencies.record_n(1_000_000, 80);
        latencies.record_n(99_000_000, 1);
        let axis = Axis {
            from_ns: 1e6,
            to_ns: 1e8,
        };
        let strip: Vec<char> = axis.strip(&latencies).chars().collect();
        assert_eq!((strip.len(), strip[0], strip[STRIP - 1]), (STRIP, '█', '▁'));
        assert!(strip[1..STRIP - 1].iter().all(|&c| c == ' '));
        assert_eq!(
            axis.ends(),
            ("1.000 ms".to_owned(), "100.000 ms".to_owned())
        );
    }
}
