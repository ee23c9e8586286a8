// SPDX-License-Identifier: Apache-2.0
//! Line charts as inline SVG.
//!
//! A chart knows nothing of what it draws: series of points, axes with units,
//! an optional instant to mark. Gaps in the data (NaN) are gaps in the line,
//! never bridged.

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// How the vertical axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Powers of ten; values of zero and below are gaps.
    Log,
    /// The same for milliseconds, labelled as times: 10 us, 1 ms, 1 s.
    LogTime,
}

/// What the numbers along the horizontal axis mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// A plain number, such as seconds.
    Number,
    /// Nines of a quantile: 1 is 90 %, 2 is 99 %. One label a nine.
    Nines,
}

impl Along {
    fn label(self, value: f64) -> String {
        match self {
            Self::Number => short(value),
            Self::Nines if value.fract() == 0.0 => {
                // Two digits, then one more for each further nine.
                let digits = (value - 2.0).max(0.0);
                let percent = 100.0 * (1.0 - 10f64.powf(-value));
                format!("{percent:.*} %", digits as usize)
            }
            Self::Nines => String::new(),
        }
    }
}

/// One line: its name in the legend and its points, in the axes' units.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Drawn lighter: what the reader compares with, not what he looks for.
    pub faint: bool,
    /// Index of the colour; series that belong together share one.
    pub colour: usize,
}

/// A chart with time or another number along the horizontal axis.
#[derive(Clone, Debug)]
pub struct Chart {
    pub x_label: String,
    pub x: Along,
    pub y_label: String,
    pub y_scale: Scale,
    /// An instant to mark, with its label.
    pub marker: Option<(f64, String)>,
    pub series: Vec<Series>,
    pub width: u32,
    pub height: u32,
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Plot<'a, 'b, Y> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

impl Chart {
    /// The chart as one `<svg>` element, or a sentence where nothing can be drawn.
    pub fn svg(&self) -> String {
        self.render(None)
    }

    /// The same with a heading in the picture, for one that travels without its page.
    pub fn svg_titled(&self, title: &str) -> String {
        self.render(Some(title))
    }

    fn render(&self, title: Option<&str>) -> String {
        let mut out = String::new();
        let drawn = {
            let size = (self.width, self.height);
            let root = SVGBackend::with_string(&mut out, size).into_drawing_area();
            self.draw(&root, title)
        };
        match drawn {
            Ok(()) => responsive(&out, self.width, self.height),
            Err(why) => format!("<p class=\"note\">This chart could not be drawn: {why}</p>"),
        }
    }

    fn draw(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        title: Option<&str>,
    ) -> Drawn {
        root.fill(&WHITE)?;
        let below = match title {
            Some(title) => root.titled(title, ("sans-serif", 18).into_font().color(&INK))?,
            None => root.clone(),
        };
        let (x, y) = self.extent();
        let mut builder = ChartBuilder::on(&below);
        builder
            .margin(8)
            .margin_right(18)
            .x_label_area_size(38)
            .y_label_area_size(56);
        match self.y_scale {
            Scale::Linear => {
                let plot = builder.build_cartesian_2d(x.0..x.1, y.0..y.1)?;
                self.fill_plot(plot, y)
            }
            Scale::Log | Scale::LogTime => {
                let plot = builder.build_cartesian_2d(x.0..x.1, (y.0..y.1).log_scale())?;
                self.fill_plot(plot, y)
            }
        }
    }

    fn fill_plot<'a, 'b: 'a, Y>(&self, mut plot: Plot<'a, 'b, Y>, y: (f64, f64)) -> Drawn
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64> + 'a,
    {
        plot.configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .y_label_formatter(&|v| self.y_tick(*v, y))
            .x_label_formatter(&|v| self.x.label(*v))
            .draw()?;
        if let Some((at, label)) = &self.marker {
            let line = PathElement::new(vec![(*at, y.0), (*at, y.1)], INK.mix(0.6));
            plot.draw_series(std::iter::once(line))?;
            // To its left where there is no room to its right.
            let side = if self.marked_right() {
                HPos::Right
            } else {
                HPos::Left
            };
            let style = ("sans-serif", 13).into_font().color(&INK);
            let style = style.pos(Pos::new(side, VPos::Top));
            let text = Text::new(format!(" {label} "), (*at, y.1), style);
            plot.draw_series(std::iter::once(text))?;
        }
        for series in &self.series {
            self.draw_series(&mut plot, series)?;
        }
        plot.configure_series_labels()
            .position(if self.marked_right() {
                SeriesLabelPosition::UpperLeft
            } else {
                SeriesLabelPosition::UpperRight
            })
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 13).into_font().color(&INK))
            .draw()
    }

    fn draw_series<'a, 'b: 'a, Y>(&self, plot: &mut Plot<'a, 'b, Y>, series: &Series) -> Drawn
    where
        Y: Ranged<ValueType = f64> + 'a,
    {
        let colour = PALETTE[series.colour % PALETTE.len()];
        let style = colour.stroke_width(2);
        let mut name = Some(series.name.clone());
        for run in self.runs(&series.points) {
            let drawn = if series.faint {
                let faint = colour.mix(0.45).stroke_width(2);
                plot.draw_series(LineSeries::new(run, faint))?
            } else {
                plot.draw_series(LineSeries::new(run, style))?
            };
            // The legend names a line once, however many gaps it has.
            if let Some(name) = name.take() {
                let key = if series.faint {
                    colour.mix(0.45)
                } else {
                    colour.mix(1.0)
                };
                drawn.label(name).legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], key.stroke_width(2))
                });
            }
        }
        Ok(())
    }

    /// A logarithmic axis of more than a decade labels 1, 2 and 5 of each power of
    /// ten only.
    fn y_tick(&self, value: f64, (low, high): (f64, f64)) -> String {
        let mantissa = value / 10f64.powf(value.abs().log10().floor());
        let round = [1.0, 2.0, 5.0].iter().any(|m| (mantissa - m).abs() < 1e-6);
        if self.y_scale == Scale::LogTime {
            // One label a decade: there are four of them and more.
            let decade = value.log10();
            return match (decade - decade.round()).abs() < 1e-6 {
                true => time(value),
                false => String::new(),
            };
        }
        if self.y_scale == Scale::Linear || high < 10.0 * low || round {
            short(value)
        } else {
            String::new()
        }
    }

    /// Whether the mark stands in the right third, where the legend would be.
    fn marked_right(&self) -> bool {
        let ((x0, x1), _) = self.extent();
        let at = self.marker.as_ref().map_or(x0, |(at, _)| *at);
        at > x1 - (x1 - x0) / 3.0
    }

    /// The stretches between gaps.
    fn runs(&self, points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        points
            .split(|p| !self.drawable(p.1))
            .filter(|run| !run.is_empty())
            .map(<[_]>::to_vec)
            .collect()
    }

    fn drawable(&self, value: f64) -> bool {
        value.is_finite() && (self.y_scale == Scale::Linear || value > 0.0)
    }

    /// The smallest box around all points, with headroom; never empty.
    fn extent(&self) -> ((f64, f64), (f64, f64)) {
        let points = || self.series.iter().flat_map(|s| &s.points);
        let xs = points().map(|p| p.0).filter(|v| v.is_finite());
        let (x0, x1) = bounds(xs).unwrap_or((0.0, 1.0));
        let ys = points().map(|p| p.1).filter(|v| self.drawable(*v));
        let (y0, y1) = bounds(ys).unwrap_or((1.0, 10.0));
        let (low, high) = match self.y_scale {
            Scale::Linear => (0.0, y1 * 1.35),
            Scale::Log | Scale::LogTime => (y0 * 0.8, y1 * (y1 / y0).max(2.0).powf(0.4)),
        };
        (
            (x0, if x1 > x0 { x1 } else { x0 + 1.0 }),
            (low, if high > low { high } else { low + 1.0 }),
        )
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |so_far, v| match so_far {
        None => Some((v, v)),
        Some((low, high)) => Some((low.min(v), high.max(v))),
    })
}

/// A number as short as it can be read: 0.05, 2.5, 40, 1200.
fn short(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Milliseconds in the unit that makes them a small number.
fn time(ms: f64) -> String {
    match ms.abs() {
        v if v >= 999.0 => format!("{} s", short(ms / 1e3)),
        v if v >= 0.999 => format!("{} ms", short(ms)),
        _ => format!("{} us", short(ms * 1e3)),
    }
}

/// Lets the page scale the drawing: a view box instead of a fixed size.
fn responsive(svg: &str, width: u32, height: u32) -> String {
    let fixed = format!("width=\"{width}\" height=\"{height}\" viewBox");
    svg.replacen(&fixed, "style=\"width:100%;height:auto\" viewBox", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y_scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        Chart {
            x_label: "time (s)".into(),
            x: Along::Number,
            y_label: "p99 (ms)".into(),
            y_scale,
            marker: Some((2.0, "degraded".into())),
            series: vec![Series {
                name: "maglev".into(),
                points,
                faint: false,
                colour: 0,
            }],
            width: 600,
            height: 240,
        }
    }

    #[test]
    fn a_gap_breaks_the_line_and_the_legend_names_it_once() {
        let gapped = chart(
            Scale::Linear,
            vec![
                (0.0, 1.0),
                (1.0, 2.0),
                (2.0, f64::NAN),
                (3.0, 2.0),
                (4.0, 1.0),
            ],
        );
        let svg = gapped.svg();
        let lines = svg.matches("stroke=\"#0072B2\"").count();
        assert_eq!(lines, 3, "two stretches and one legend key: {svg}");
        assert_eq!(svg.matches("maglev").count(), 1);
        assert!(svg.contains("degraded") && svg.contains("style=\"width:100%"));
    }

    #[test]
    fn a_mark_at_the_right_keeps_clear_of_the_legend_and_of_the_edge() {
        let points = vec![(0.0, 1.0), (10.0, 2.0)];
        let at = |at: f64| Chart {
            marker: Some((at, "mark".into())),
            ..chart(Scale::Linear, points.clone())
        };
        assert!(at(9.0).marked_right() && !at(5.0).marked_right());
        let anchor = |svg: &str| {
            let text = svg
                .split("<text")
                .find(|t| t.contains("mark"))
                .map(str::to_owned);
            text.is_some_and(|t| t.contains("text-anchor=\"end\""))
        };
        assert!(anchor(&at(9.0).svg()) && !anchor(&at(5.0).svg()));
    }

    #[test]
    fn no_points_still_draws_axes() {
        for scale in [Scale::Linear, Scale::Log] {
            let svg = chart(scale, vec![]).svg();
            assert!(svg.contains("p99 (ms)"), "{svg}");
        }
    }

    #[test]
    fn a_log_axis_leaves_out_what_it_cannot_show() {
        let log = chart(Scale::Log, vec![(0.0, 0.0), (1.0, 10.0), (2.0, 1000.0)]);
        assert_eq!(
            log.runs(&log.series[0].points),
            vec![vec![(1.0, 10.0), (2.0, 1000.0)]]
        );
        let ((x0, x1), (y0, y1)) = log.extent();
        assert_eq!((x0, x1), (0.0, 2.0));
        assert!(y0 > 0.0 && y0 < 10.0 && y1 > 1000.0);
    }

    #[test]
    fn a_picture_alone_has_its_heading_and_times_have_units() {
        let points = vec![(0.0, 0.02), (1.0, 40.0)];
        let svg = chart(Scale::LogTime, points).svg_titled("All at once");
        for word in ["All at once", "100 us", "1 ms", "10 ms"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert_eq!(
            ["10 us", "1 ms", "1.5 ms", "10 s"].map(String::from),
            [0.01, 1.0, 1.5, 10_000.0].map(time)
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            ["0.05", "2.5", "40", "1200"].map(String::from),
            [0.05, 2.5, 40.0, 1200.0].map(short)
        );
    }
}
