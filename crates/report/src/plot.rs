// SPDX-License-Identifier: Apache-2.0
//! Line plots as inline SVG that take their colours from the page, light or dark.
//!
//! Colours are CSS variables (`--ink`, `--line`, `--c0` to `--c5`), so that the
//! same drawing suits both. A seventh line has the first colour again, dashed.

use std::fmt::Write as _;

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 42.0;
/// Points of a line; more cannot be told apart.
const MAX_POINTS: usize = 600;

/// Colours for the variables, in light and in dark: Okabe and Ito's, which stay
/// apart for colour-blind readers, the dark ones lightened where they must.
pub const COLOURS: &str = "\
:root{--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0568f;--c4:#b57f00;--c5:#3b93c4}\
@media(prefers-color-scheme:dark){:root{--c0:#5aa9e6;--c1:#ff8a3d;--c2:#38c79a;--c3:#e08cc0;--c4:#f0c040;--c5:#8fd0f5}}";

/// How an axis is divided, and what its numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Plain numbers, equal steps.
    Linear,
    /// Latencies in nanoseconds, powers of ten.
    Latency,
    /// 0 to 1 as percent.
    Share,
}

/// A line: its name and its points.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// Which colour it has; lines of several plots that belong together share one.
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
}

/// A plot of some lines.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows, for those who cannot see it.
    pub title: String,
    pub x: (Scale, String),
    pub y: (Scale, String),
    pub lines: Vec<Line>,
}

/// One axis: values to positions.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let usable = values.filter(|v| v.is_finite() && (scale != Scale::Latency || *v > 0.0));
        let (low, high) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        let (low, high) = if low <= high {
            (low, high)
        } else {
            (1.0, 10.0)
        };
        let (from, to) = match scale {
            Scale::Share => (0.0, 1.0),
            Scale::Latency => (low / 1.1, (high * 1.1).max(low * 1.5)),
            Scale::Linear => (low, if high > low { high } else { low + 1.0 }),
        };
        Self {
            scale,
            from,
            to,
            start,
            end,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let along = match self.scale {
            Scale::Latency => (value / self.from).ln() / (self.to / self.from).ln(),
            _ => (value - self.from) / (self.to - self.from),
        };
        self.start + along.clamp(0.0, 1.0) * (self.end - self.start)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Share => [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
                .map(|v| (v, format!("{:.0} %", v * 100.0)))
                .to_vec(),
            Scale::Linear => {
                let step = nice_step((self.to - self.from) / 8.0);
                let first = (self.from / step).ceil() as i64;
                (first..)
                    .map(|n| n as f64 * step)
                    .take_while(|v| *v <= self.to)
                    .map(|v| (v, plain(v)))
                    .collect()
            }
            Scale::Latency => {
                // 1, 2 and 5 of each power of ten, fewer where there are many.
                let decades = (self.to / self.from).log10();
                let mantissas: &[f64] = match decades {
                    d if d < 2.5 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let range = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
                range
                    .flat_map(|exponent| mantissas.iter().map(move |m| m * 10f64.powi(exponent)))
                    .filter(|v| (self.from..=self.to).contains(v))
                    .map(|v| (v, unit(v)))
                    .collect()
            }
        }
    }
}

fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.abs().max(1e-9).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
    step.into_iter()
        .find(|s| *s >= rough)
        .unwrap_or(power * 10.0)
}

fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Nanoseconds as a round number.
fn unit(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{} ns", plain(ns)),
        ns if ns < 1e6 => format!("{} us", plain(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", plain(ns / 1e6)),
        ns => format!("{} s", plain(ns / 1e9)),
    }
}

impl Plot {
    /// The plot as one `<svg>` element.
    pub fn svg(&self) -> String {
        let values = |axis: fn(&(f64, f64)) -> f64| {
            self.lines
                .iter()
                .flat_map(move |line| line.points.iter().map(axis))
        };
        let x = Axis::new(self.x.0, values(|p| p.0), LEFT, WIDTH - RIGHT);
        let y = Axis::new(self.y.0, values(|p| p.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        );
        self.grid(&x, &y, &mut svg);
        // The first line matters most and lies on top.
        for line in self.lines.iter().rev() {
            draw(line, &x, &y, &mut svg);
        }
        svg + "</svg>"
    }

    fn grid(&self, x: &Axis, y: &Axis, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        svg.push_str("<g class=\"grid\">");
        for (value, label) in x.ticks() {
            let at = x.at(value);
            put(svg, format_args!("<path d=\"M{at:.1} {TOP}V{bottom}\"/>"));
            let under = bottom + 17.0;
            put(
                svg,
                format_args!(
                    "<text x=\"{at:.1}\" y=\"{under}\" text-anchor=\"middle\">{label}</text>"
                ),
            );
        }
        for (value, label) in y.ticks() {
            let at = y.at(value);
            put(svg, format_args!("<path d=\"M{LEFT} {at:.1}H{right}\"/>"));
            let (beside, level) = (LEFT - 7.0, at + 4.0);
            put(
                svg,
                format_args!(
                    "<text x=\"{beside}\" y=\"{level:.1}\" text-anchor=\"end\">{label}</text>"
                ),
            );
        }
        let (middle, under) = ((LEFT + right) / 2.0, HEIGHT - 5.0);
        put(
            svg,
            format_args!(
                "<text x=\"{middle}\" y=\"{under}\" text-anchor=\"middle\">{}</text>",
                escape(&self.x.1)
            ),
        );
        put(
            svg,
            format_args!(
                "<text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text></g>",
                (TOP + bottom) / 2.0,
                escape(&self.y.1)
            ),
        );
    }
}

fn draw(line: &Line, x: &Axis, y: &Axis, svg: &mut String) {
    let step = line.points.len().div_ceil(MAX_POINTS).max(1);
    let last = line.points.len().saturating_sub(1);
    let shown = (0..line.points.len()).filter(|n| n % step == 0 || *n == last);
    let mut path = String::new();
    for n in shown {
        let (px, py) = (x.at(line.points[n].0), y.at(line.points[n].1));
        let command = if path.is_empty() { 'M' } else { 'L' };
        put(&mut path, format_args!("{command}{px:.1} {py:.1}"));
    }
    if line.points.len() == 1 {
        // A line of one point shows as a dot.
        path.push_str("h0.01");
    }
    put(
        svg,
        format_args!(
            "<path class=\"line {}\" d=\"{path}\"><title>{}</title></path>",
            class(line.colour),
            escape(&line.name)
        ),
    );
}

/// CSS classes of a colour, for lines and for keys beside their names.
pub fn class(colour: usize) -> String {
    let dashed = if colour / 6 % 2 == 1 { " dashed" } else { "" };
    format!("c{}{dashed}", colour % 6)
}

/// The style of plots; a page includes it once.
pub fn style() -> String {
    let mut css = String::from(COLOURS);
    css.push_str(
        "svg{display:block;width:100%;height:auto}\
         .grid path{stroke:var(--line);stroke-width:1;fill:none}\
         .grid text{fill:var(--dim);font:11.5px system-ui,sans-serif}\
         .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\
         .dashed{stroke-dasharray:6 4}\
         .key{display:inline-block;width:1.6em;border-top:3px solid;vertical-align:middle;margin-right:.45em}\
         .key.dashed{border-top-style:dashed}",
    );
    for colour in 0..6 {
        put(
            &mut css,
            format_args!(
                ".line.c{colour}{{stroke:var(--c{colour})}}.key.c{colour}{{border-color:var(--c{colour})}}"
            ),
        );
    }
    css
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = out.write_fmt(text);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        Plot {
            title: "a < b".into(),
            x: (Scale::Latency, "latency".into()),
            y: (Scale::Share, "share".into()),
            lines: vec![Line {
                name: "one".into(),
                colour: 7,
                points,
            }],
        }
    }

    #[test]
    fn axes_have_round_labels_and_lines_stay_inside() {
        let svg = plot(vec![(1.3e6, 0.0), (4e6, 0.5), (4.4e7, 1.0)]).svg();
        for label in ["2 ms", "10 ms", "50 %", "a &lt; b", "c1 dashed"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        let path = svg.split("class=\"line c1 dashed\" d=\"M").nth(1).unwrap();
        let numbers = path.split('"').next().unwrap().split(['L', ' ']);
        assert!(
            numbers
                .map(|n| n.parse::<f64>().unwrap())
                .all(|n| (0.0..=WIDTH).contains(&n))
        );
    }

    #[test]
    fn odd_data_still_gives_a_plot() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(f64::NAN, 0.5), (0.0, 0.1)]] {
            assert!(plot(points).svg().ends_with("</svg>"));
        }
        let many = plot((1..10_000).map(|n| (n as f64, n as f64 / 1e4)).collect()).svg();
        assert!(many.len() < 20_000, "{}", many.len());
    }
}
