// SPDX-License-Identifier: Apache-2.0
//! `causeway token`: makes a token for the API, which other hosts show.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_service::tokens::{NewToken, Role};

use crate::words_arg::value_of;

/// Arguments of `causeway token`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its owner: a person or a program
    name: String,
    /// What it may do: viewer reads, operator also drains and weighs, admin does all
    #[arg(long, value_parser = value_of::<Role>(), default_value = "viewer")]
    role: Role,
    /// Add the line to this file, `api.tokens` of the daemon, and print the token alone
    #[arg(long, value_name = "FILE")]
    add: Option<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let made = NewToken::make(&self.name, self.role)?;
        match self.add {
            Some(file) => {
                made.add_to(&file)?;
                println!("{}", made.token);
                eprintln!(
                    "added {} to {}; daemons accept it after their next reload; the token is printed only now",
                    self.name,
                    file.display()
                );
            }
            None => println!("token: {}\nline:  {}", made.token, made.line),
        }
        Ok(ExitCode::SUCCESS)
    }
}
