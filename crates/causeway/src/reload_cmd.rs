// SPDX-License-Identifier: Apache-2.0
//! `causeway reload`: has a running daemon read its file again, and says what came of it.

use std::process::ExitCode;

use crate::client::Target;

/// Arguments of `causeway reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Runs the command; a file that is refused gives exit code 1.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let summary: String = self.target.post("/v1/reload", "")?;
        println!("reloaded: {summary}");
        Ok(ExitCode::SUCCESS)
    }
}
