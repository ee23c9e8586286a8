// SPDX-License-Identifier: Apache-2.0
//! Small line plots as SVG files.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];
const SIZE: (u32, u32) = (740, 340);
/// Of which the legend has so much, to the right: inside it would hide lines.
const LEGEND: u32 = 180;
const GRID: RGBColor = RGBColor(225, 225, 225);

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Points in the axes' units.
    pub points: Vec<(f64, f64)>,
}

/// A plot with a linear or logarithmic horizontal axis.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Over the plot.
    pub title: String,
    /// Under the horizontal axis, with its unit.
    pub x_label: String,
    /// Whether the horizontal axis shows powers of ten.
    pub x_log: bool,
    /// Beside the vertical axis, with its unit.
    pub y_label: String,
    /// At most six.
    pub lines: Vec<Line>,
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Context<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>;

impl Plot {
    /// The plot as an SVG document.
    ///
    /// # Errors
    /// When there is nothing to draw.
    pub fn svg(&self) -> Result<String> {
        let mut out = String::new();
        self.draw(&mut out)
            .map_err(|e| anyhow!("{}: {e}", self.title))?;
        Ok(out)
    }

    /// Least and largest of a coordinate, a little wider.
    fn extent(&self, of: impl Fn(&(f64, f64)) -> f64) -> Result<(f64, f64)> {
        let values = || self.lines.iter().flat_map(|l| &l.points).map(&of);
        let (low, high) = values().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        anyhow::ensure!(low <= high, "there is nothing to draw");
        let room = ((high - low) * 0.03).max(1e-9);
        Ok((low - room, high + room))
    }

    fn draw(&self, out: &mut String) -> Result<()> {
        let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
        let fault = |e: &dyn std::fmt::Display| anyhow!("{e}");
        root.fill(&WHITE).map_err(|e| fault(&e))?;
        let (x, y) = (self.extent(|p| p.0)?, self.extent(|p| p.1)?);
        let (left, right) = root.split_horizontally(SIZE.0 - LEGEND);
        self.legend(&right).map_err(|e| fault(&e))?;
        let mut builder = ChartBuilder::on(&left);
        builder
            .caption(&self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(50);
        let drawn = if self.x_log {
            let least = self.least_positive();
            let chart = builder.build_cartesian_2d((least..x.1).log_scale(), y.0..y.1);
            chart.and_then(|c| self.fill(c))
        } else {
            let chart = builder.build_cartesian_2d(x.0..x.1, y.0..y.1);
            chart.and_then(|c| self.fill(c))
        };
        drawn.map_err(|e| fault(&e))?;
        root.present().map_err(|e| fault(&e))
    }

    fn least_positive(&self) -> f64 {
        let values = self.lines.iter().flat_map(|l| &l.points).map(|p| p.0);
        values.filter(|v| *v > 0.0).fold(f64::MAX, f64::min)
    }

    fn fill<'a, 'b: 'a, X>(&self, mut chart: Context<'a, 'b, X>) -> Drawn
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64> + 'a,
    {
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .draw()?;
        for (line, colour) in self.lines.iter().zip(PALETTE) {
            let positive = |p: &&(f64, f64)| !self.x_log || p.0 > 0.0;
            let points = line.points.iter().filter(positive).copied();
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        }
        Ok(())
    }

    fn legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        for (row, (line, colour)) in (0..).zip(self.lines.iter().zip(PALETTE)) {
            let middle = 40 + 18 * row;
            let dash = [(0, middle), (18, middle)];
            area.draw(&PathElement::new(dash, colour.stroke_width(2)))?;
            let at = (24, middle - 6);
            area.draw(&Text::new(line.name.as_str(), at, ("sans-serif", 12)))?;
        }
        Ok(())
    }
}

/// Points of the cumulative distribution of weighted values: value, share.
pub fn cdf(values: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sorted.iter().map(|v| v.1).sum();
    let mut points = Vec::new();
    let (mut below, mut next) = (0.0, 0.0);
    for (value, weight) in sorted {
        below += weight;
        // A point for each half percent keeps the file small.
        if below >= next * total {
            points.push((value, below / total));
            next = below / total + 0.005;
        }
    }
    points
}

/// The value below which a share of a distribution from [`cdf`] lies.
pub fn quantile(cdf: &[(f64, f64)], share: f64) -> Option<f64> {
    let at = cdf.partition_point(|p| p.1 < share);
    cdf.get(at).or(cdf.last()).map(|p| p.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_count_in_a_distribution() {
        let cdf = cdf(&[(3.0, 1.0), (1.0, 2.0), (2.0, 1.0)]);
        assert_eq!(cdf, [(1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
        assert_eq!(quantile(&cdf, 0.5), Some(1.0));
        assert_eq!(quantile(&cdf, 0.9), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_plot_names_its_lines_and_an_empty_one_is_refused() {
        let mut plot = Plot {
            title: "title".into(),
            x_label: "us".into(),
            x_log: true,
            y_label: "share".into(),
            lines: vec![Line {
                name: "truth".into(),
                points: vec![(0.0, 0.0), (10.0, 0.5), (1000.0, 1.0)],
            }],
        };
        let svg = plot.svg().expect("drawn");
        assert!(svg.contains("<svg") && svg.contains("truth"));
        plot.lines.clear();
        assert!(plot.svg().is_err());
    }
}
