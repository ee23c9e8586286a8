// SPDX-License-Identifier: Apache-2.0
//! `causeway version`: which build this is, and which running data planes it can take over.

use std::process::ExitCode;

use causeway_report::table::OutputFormat;
use serde::Serialize;

/// Arguments of `causeway version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// What it was built from, if the build knew.
    build: Option<&'static str>,
    /// From a data plane of another layout a start copies what it needs.
    layout: u32,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let ours = Version::ours();
        let (version, layout) = (ours.version, ours.layout);
        let build = ours.build.unwrap_or("unknown");
        match self.output {
            OutputFormat::Table => {
                println!("causeway {version}, build {build}, data plane layout {layout}");
            }
            OutputFormat::Csv => println!("version,build,layout\n{version},{build},{layout}"),
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&ours)?),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Version {
    fn ours() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: option_env!("CAUSEWAY_BUILD").filter(|build| !build.is_empty()),
            layout: causeway_dataplane::LAYOUT,
        }
    }
}
