// SPDX-License-Identifier: Apache-2.0
//! Tables for people, CSV and JSON for programs.

use std::borrow::Cow;
use std::fmt::Write as _;

/// How a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns.
    #[default]
    Table,
    /// The daemon's answer as it is.
    Json,
    /// Comma separated, with a header.
    Csv,
}

/// Rows under a header. Columns whose header begins with `>` are aligned right.
#[derive(Debug, Clone)]
pub struct TextTable {
    header: Vec<Cow<'static, str>>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// An empty table.
    pub fn new(header: &[&'static str]) -> Self {
        Self::with_header(header.iter().map(|title| (*title).into()).collect())
    }

    /// The same of titles that are made as it runs.
    pub fn with_header(header: Vec<Cow<'static, str>>) -> Self {
        Self {
            header,
            rows: Vec::new(),
        }
    }

    /// Adds a row: as many cells as the header has.
    pub fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.header.len());
        self.rows.push(row);
    }

    /// Columns aligned with blanks.
    pub fn to_text(&self) -> String {
        let titles: Vec<&str> = self.titles().collect();
        let widths: Vec<usize> = (0..titles.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells
                    .chain([titles[column].chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = self.line(&titles, &widths);
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            text.push_str(&self.line(&cells, &widths));
        }
        text
    }

    fn line(&self, cells: &[&str], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, width), header) in cells.iter().zip(widths).zip(&self.header) {
            // Writing to a String does not fail.
            let _ = match header.starts_with('>') {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        format!("{}\n", line.trim_end())
    }

    /// RFC 4180, with the header in lower case and `_` for blanks.
    pub fn to_csv(&self) -> String {
        let names: Vec<String> = self
            .titles()
            .map(|title| title.to_lowercase().replace(' ', "_"))
            .collect();
        let mut text = names.join(",") + "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| quote(cell)).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    fn titles(&self) -> impl Iterator<Item = &str> {
        self.header
            .iter()
            .map(|title| title.strip_prefix('>').unwrap_or(title))
    }
}

fn quote(cell: &str) -> String {
    match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// Microseconds as milliseconds with two decimals; `-` for none.
pub fn ms(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{:.2}", us / 1e3))
}

/// A weight: whole ones without decimals.
pub fn weight(weight: f64) -> String {
    match (weight - weight.round()).abs() < 0.0005 {
        true => format!("{weight:.0}"),
        false => format!("{weight:.3}"),
    }
}

/// Means as blocks, from 0 to the highest.
pub fn course(means: &[Option<f64>]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = means.iter().flatten().copied().fold(0.0, f64::max);
    let block = |mean: &Option<f64>| match mean {
        Some(mean) if most > 0.0 => HEIGHTS[((mean / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        _ => ' ',
    };
    means.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&["NAME", ">PACKETS", "WHY"]);
        table.push(vec!["web".into(), "12345678".into(), "a, \"b\"".into()]);
        table.push(vec!["a longer one".into(), "1".into(), String::new()]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "\
NAME           PACKETS  WHY
web           12345678  a, \"b\"
a longer one         1
";
        assert_eq!(table().to_text(), expected);
    }

    #[test]
    fn csv_is_quoted_where_it_must() {
        let expected = "name,packets,why\nweb,12345678,\"a, \"\"b\"\"\"\na longer one,1,\n";
        assert_eq!(table().to_csv(), expected);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(ms(Some(5123.0)), "5.12");
        assert_eq!(ms(None), "-");
        assert_eq!(weight(3.0), "3");
        assert_eq!(weight(0.02), "0.020");
    }
}
