// SPDX-License-Identifier: Apache-2.0
//! Line charts as SVG, inside a page or as files of their own.
//!
//! A chart knows nothing of what it draws: series of points, two axes, an optional
//! instant to mark. Gaps in the data (NaN) are gaps in the line, never bridged.
//! Colours are classes of [`STYLE`], so that one drawing suits light and dark.

mod axis;

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use axis::Axis;
pub use axis::Scale;

// Units of the drawing. The margins have room for the large type of narrow figures.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = WIDTH - 30.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = HEIGHT - 50.0;
/// Points of a line; more cannot be seen apart.
const MAX_POINTS: usize = 600;
/// A series beyond these has the first colour again, dashed.
const COLOURS: usize = 6;

/// The style of charts; a page includes it once, a file has it inside. The colours of
/// series are Okabe and Ito's (2008), which stay apart for colour-blind readers: some
/// darkened for thin lines on white, all lightened for dark pages.
pub const STYLE: &str = "\
.chart{display:block;color:#5f666d}\
.chart text{fill:currentColor;font:13px system-ui,sans-serif}\
.chart .paper{fill:#fff}.file text{font-size:11px}.file .title{font-size:13px;font-weight:600}\
.axes path,.mark{fill:none;stroke:currentColor;stroke-opacity:.25}\
.mark{stroke-opacity:.8;stroke-dasharray:2 3}\
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\
.faint{opacity:.45}.dashed{stroke-dasharray:6 4}\
.c0{color:#0072b2}.c1{color:#d55e00}.c2{color:#009e73}.c3{color:#b0568f}.c4{color:#b57f00}.c5{color:#3b93c4}\
@media(prefers-color-scheme:dark){.chart{color:#a3a9af}.chart .paper{fill:#1c1f23}\
.c0{color:#5aa9e6}.c1{color:#ff8a3d}.c2{color:#38c79a}.c3{color:#e08cc0}.c4{color:#f0c040}.c5{color:#8fd0f5}}";

/// One line: its name in the legend and its points, in the axes' units.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Index of its colour: series that belong together share one. None: that of its
    /// place among the others.
    colour: Option<usize>,
    faint: bool,
}

/// A chart of some series. The first matters most and lies on top.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows: a figure's caption, and the text for screen readers.
    pub title: String,
    pub x: (Scale, String),
    pub y: (Scale, String),
    pub series: Vec<Series>,
    /// An instant to mark, with its label.
    pub marker: Option<(f64, String)>,
}

impl Series {
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().collect(),
            colour: None,
            faint: false,
        }
    }

    /// With the colour of this index.
    pub fn coloured(self, colour: usize) -> Self {
        Self {
            colour: Some(colour),
            ..self
        }
    }

    /// Drawn lighter: what the reader compares with, not what he looks for.
    pub fn faint(self) -> Self {
        Self {
            faint: true,
            ..self
        }
    }

    /// The classes of its line and of its key.
    fn class(&self, place: usize) -> String {
        let colour = self.colour.unwrap_or(place);
        let dashed = if colour / COLOURS % 2 == 1 {
            " dashed"
        } else {
            ""
        };
        let faint = if self.faint { " faint" } else { "" };
        format!("c{}{dashed}{faint}", colour % COLOURS)
    }
}

impl Chart {
    pub fn new(
        title: impl Into<String>,
        x: (Scale, &str),
        y: (Scale, &str),
        series: Vec<Series>,
    ) -> Self {
        Self {
            title: title.into(),
            x: (x.0, x.1.to_owned()),
            y: (y.0, y.1.to_owned()),
            series,
            marker: None,
        }
    }

    /// With a mark at an instant.
    pub fn marked(self, at: f64, label: &str) -> Self {
        Self {
            marker: Some((at, label.to_owned())),
            ..self
        }
    }

    /// One `<svg>` element for a page that has [`STYLE`], without title and legend.
    pub fn svg(&self) -> Markup {
        html! {
            svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.title) {
                (self.drawing())
            }
        }
    }

    /// The legend for a page: a key and a name for each series.
    pub fn keys(&self) -> Markup {
        html! {
            @for (place, series) in self.series.iter().enumerate() {
                span { span.key.(series.class(place)) {} (series.name) }
            }
        }
    }

    /// An SVG file: title, legend and style inside.
    pub fn file(&self) -> String {
        let title = wrapped(&self.title, 68);
        let columns = match self.series.iter().all(|s| s.name.chars().count() <= 28) {
            true => 2,
            false => 1,
        };
        let head = 10.0 + 20.0 * title.len() as f64;
        let rows = self.series.len().div_ceil(columns) as f64;
        let height = head + HEIGHT + 22.0 * rows + 8.0;
        html! {
            svg.chart.file xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) }
                width=(1.5 * WIDTH) height=(1.5 * height) role="img" aria-label=(self.title) {
                style { (PreEscaped(STYLE)) }
                rect.paper width="100%" height="100%" {}
                @for (row, line) in title.iter().enumerate() {
                    (text(WIDTH / 2.0, 22.0 + 20.0 * row as f64, "middle", "title", line))
                }
                g transform={ "translate(0 " (head) ")" } { (self.drawing()) }
                @for (place, series) in self.series.iter().enumerate() {
                    @let x = LEFT + (place % columns) as f64 * (WIDTH - LEFT) / 2.0;
                    @let y = head + HEIGHT + 22.0 * (place / columns) as f64 + 10.0;
                    path.line.(series.class(place)) d={ "M" (x) " " (y) "h20" } {}
                    (text(x + 28.0, y + 4.5, "start", "", &series.name))
                }
            }
        }
        .into_string()
    }

    fn drawing(&self) -> Markup {
        let along = || self.series.iter().flat_map(|series| &series.points);
        // A mark's label lies above the lines.
        let headroom = match &self.marker {
            Some((_, label)) if !label.is_empty() => 0.12,
            _ => 0.0,
        };
        let x = Axis::new(self.x.0, along().map(|p| p.0), (LEFT, RIGHT), 0.0);
        let y = Axis::new(self.y.0, along().map(|p| p.1), (BOTTOM, TOP), headroom);
        html! {
            g.axes {
                @for (at, label) in x.ticks() {
                    path d=(format!("M{at:.1} {TOP}V{BOTTOM}")) {}
                    (text(at, BOTTOM + 19.0, "middle", "", &label))
                }
                @for (at, label) in y.ticks() {
                    path d=(format!("M{LEFT} {at:.1}H{RIGHT}")) {}
                    (text(LEFT - 7.0, at + 4.5, "end", "", &label))
                }
            }
            (text(f64::midpoint(LEFT, RIGHT), HEIGHT - 7.0, "middle", "", &self.x.1))
            (text(6.0, TOP - 17.0, "start", "", &self.y.1))
            @if let Some((instant, label)) = &self.marker {
                @let at = x.at(*instant);
                // To its left where there is no room to its right.
                @let (beside, anchor) = match at > f64::midpoint(LEFT, RIGHT) {
                    true => (at - 5.0, "end"),
                    false => (at + 5.0, "start"),
                };
                path.mark d=(format!("M{at:.1} {TOP}V{BOTTOM}")) {}
                (text(beside, TOP + 14.0, anchor, "", label))
            }
            @for (place, series) in self.series.iter().enumerate().rev() {
                path.line.(series.class(place)) d=(path(&series.points, &x, &y)) {
                    title { (series.name) }
                }
            }
        }
    }
}

fn text(x: f64, y: f64, anchor: &str, class: &str, text: &str) -> Markup {
    html! {
        text class=[(!class.is_empty()).then_some(class)] x=(format!("{x:.1}")) y=(format!("{y:.1}"))
            text-anchor=(anchor) { (text) }
    }
}

/// Lines of at most this many characters, broken at blanks.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.to_owned();
        } else if lines[last].chars().count() + 1 + word.chars().count() <= width {
            lines[last] = format!("{} {word}", lines[last]);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The stretches between gaps, each with its peaks however many points it has.
fn path(points: &[(f64, f64)], x: &Axis, y: &Axis) -> String {
    let chunk = (2 * points.len()).div_ceil(MAX_POINTS).max(2);
    let mut path = String::new();
    for run in points.split(|p| !x.shows(p.0) || !y.shows(p.1)) {
        let mut command = 'M';
        for chunk in run.chunks(chunk) {
            let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
            let least = chunk.iter().min_by(by_value);
            let largest = chunk.iter().max_by(by_value);
            let mut ends: Vec<_> = least.into_iter().chain(largest).collect();
            ends.sort_by(|a, b| a.0.total_cmp(&b.0));
            ends.truncate(chunk.len());
            for point in ends {
                // Writing to a String does not fail.
                let _ = write!(path, "{command}{:.1} {:.1}", x.at(point.0), y.at(point.1));
                command = 'L';
            }
        }
        if run.len() == 1 {
            // A point between gaps shows as a dot.
            path.push_str("h0.01");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y: Scale, points: &[(f64, f64)]) -> Chart {
        let series = vec![Series::new("a < b", points.to_vec())];
        Chart::new("title", (Scale::Linear, "time (s)"), (y, "p99"), series)
    }

    fn svg(chart: &Chart) -> String {
        chart.svg().into_string()
    }

    /// What the first line's path consists of.
    fn drawn(svg: &str) -> &str {
        let path = svg.split("class=\"line").nth(1).expect("a line");
        path.split("d=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
    }

    #[test]
    fn a_gap_breaks_the_line_and_a_point_alone_is_a_dot() {
        let points = [(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0)];
        let svg = svg(&chart(Scale::FromZero, &points));
        assert_eq!(drawn(&svg).matches('M').count(), 2, "{svg}");
        assert!(drawn(&svg).ends_with("h0.01"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("aria-label=\"title\""));
    }

    #[test]
    fn a_logarithmic_axis_leaves_out_what_it_cannot_show() {
        let points = [(0.0, 0.0), (1.0, 1e3), (2.0, 1e5), (3.0, -1.0), (4.0, 1e4)];
        let log = svg(&chart(Scale::Log, &points));
        assert_eq!(drawn(&log).matches('M').count(), 2, "{log}");
        assert_eq!(drawn(&log).matches('L').count(), 1, "{log}");
        for label in [">1000<", ">5000<", ">100000<"] {
            assert!(log.contains(label), "{label}: {log}");
        }
    }

    #[test]
    fn many_points_keep_their_peaks_and_little_room() {
        let mut points: Vec<_> = (0..10_000).map(|n| (f64::from(n), 1.0)).collect();
        points[5_432].1 = 9.0;
        let svg = svg(&chart(Scale::Linear, &points));
        assert!(svg.len() < 20_000, "{}", svg.len());
        assert!(drawn(&svg).contains(&format!(" {TOP:.1}")), "{svg}");
    }

    #[test]
    fn odd_data_still_gives_a_chart_inside_its_box() {
        let odd: [&[(f64, f64)]; 4] = [
            &[],
            &[(1.0, 1.0)],
            &[(f64::NAN, 0.5), (0.0, f64::INFINITY)],
            &[(-3.0, -2.0), (7.0, 1e12)],
        ];
        for points in odd {
            for scale in [Scale::Linear, Scale::FromZero, Scale::Latency, Scale::Nines] {
                let svg = svg(&chart(scale, points));
                assert!(svg.contains("p99") && svg.ends_with("</svg>"), "{svg}");
                let numbers = drawn(&svg).replace("h0.01", "");
                for number in numbers.split(['M', 'L', ' ']).filter(|n| !n.is_empty()) {
                    let number: f64 = number.parse().expect("a number");
                    assert!((0.0..=WIDTH).contains(&number), "{svg}");
                }
            }
        }
    }

    #[test]
    fn a_mark_keeps_clear_of_the_edge_and_of_the_lines() {
        let points = [(0.0, 1.0), (10.0, 2.0)];
        for (at, anchor) in [(9.0, "end"), (4.0, "start")] {
            let svg = svg(&chart(Scale::Linear, &points).marked(at, "slow"));
            assert!(
                svg.contains(&format!("text-anchor=\"{anchor}\">slow<")),
                "{svg}"
            );
            assert!(!drawn(&svg).contains(&format!(" {TOP:.1}")), "{svg}");
        }
    }

    #[test]
    fn colours_go_by_place_unless_they_are_shared() {
        let series = (0..8).map(|n| Series::new(n.to_string(), []));
        let mut chart = chart(Scale::Linear, &[]);
        chart.series = series.collect();
        chart.series[1] = chart.series[1].clone().coloured(0).faint();
        let keys = chart.keys().into_string();
        for class in ["key c0\"", "key c0 faint\"", "key c5\"", "key c1 dashed\""] {
            assert!(keys.contains(class), "{class}: {keys}");
        }
    }

    #[test]
    fn a_file_has_its_title_its_legend_and_its_style() {
        let mut chart = chart(Scale::Latency, &[(0.0, 2e4), (1.0, 4e7)]);
        chart.title =
            "One path, one moment: what each method calls latency & when a client pauses".into();
        let file = chart.file();
        for text in [
            "xmlns=",
            ".c0{color",
            ">a &lt; b</text>",
            "latency &amp; when a client<",
        ] {
            assert!(file.contains(text), "{text}: {file}");
        }
        assert_eq!(file.matches("class=\"title\"").count(), 2);
        assert!(file.starts_with("<svg") && file.ends_with("</svg>"));
    }
}
