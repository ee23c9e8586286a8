// SPDX-License-Identifier: Apache-2.0
//! Runs of models as the product is, which must have no fault, and of models with a planted
//! one, which must be found: one way to report and to judge them.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use causeway_report::table::TextTable;
use serde::Serialize;

/// What a model came to.
pub(super) trait Row: Serialize {
    /// Columns of the table, with `>` before those of numbers.
    const HEADER: &'static [&'static str];

    fn cells(&self) -> Vec<String>;

    /// The planted fault; empty: as the product is.
    fn planted(&self) -> &str;

    fn has_fault(&self) -> bool;
}

/// Prints the rows, writes them as JSON if there is a file for it, and fails if a model has a
/// fault or a planted one was not found.
pub(super) fn tell<R: Row>(rows: &[R], json: Option<&Path>) -> Result<ExitCode> {
    let mut table = TextTable::new(R::HEADER);
    for row in rows {
        table.push(row.cells());
    }
    print!("{}", table.to_text());
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(rows)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let is_wrong = |row: &R| row.has_fault() == row.planted().is_empty();
    Ok(match rows.iter().any(is_wrong) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Found(&'static str, bool);

    impl Row for Found {
        const HEADER: &'static [&'static str] = &["planted"];

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned()]
        }

        fn planted(&self) -> &str {
            self.0
        }

        fn has_fault(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn a_fault_fails_unless_it_was_planted() {
        let told = |rows: &[Found]| tell(rows, None).expect("no file is written");
        assert_eq!(
            told(&[Found("", false), Found("late", true)]),
            ExitCode::SUCCESS
        );
        assert_eq!(told(&[Found("", true)]), ExitCode::FAILURE);
        assert_eq!(told(&[Found("late", false)]), ExitCode::FAILURE);
    }
}
