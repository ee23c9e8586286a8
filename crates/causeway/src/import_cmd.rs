// SPDX-License-Identifier: Apache-2.0
//! `causeway import`: another load balancer's configuration, written as Causeway's.

use std::io::{Read, stdin};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use causeway_balancer::BalancerConfig;
use causeway_import::{ImportContext, SourceFormat, import, neighbours};
use causeway_service::config::utf8;

/// Write another load balancer's configuration as Causeway's, to standard output
///
/// What has no equal is named on standard error and in the file, with its line and what to do
/// instead. Ends with 0 where everything was carried over, with 1 where something was not, and
/// with 2 where the file cannot be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The program whose configuration it is
    origin: Whose,
    /// The file; - for standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Where clients' packets arrive
    #[arg(long, value_name = "IF", default_value = "eth0")]
    interface: String,
    /// The VIP for wildcard addresses, as in `bind *:80`
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Output of `ip neighbour show`: servers by direct routing become `l2`, with MAC addresses
    #[arg(long, value_name = "FILE")]
    neighbours: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Whose {
    /// What `ipvsadm-save -n` or `ipvsadm -Ln` prints
    Ipvsadm,
    /// keepalived.conf
    Keepalived,
    /// Command lines of Katran's client, or what it lists
    Katran,
    /// haproxy.cfg: proxies in mode tcp
    HaproxyTcp,
}

impl Whose {
    fn origin(self) -> SourceFormat {
        match self {
            Self::Ipvsadm => SourceFormat::Ipvsadm,
            Self::Keepalived => SourceFormat::Keepalived,
            Self::Katran => SourceFormat::Katran,
            Self::HaproxyTcp => SourceFormat::HaproxyTcp,
        }
    }
}

/// Exit code where there is nothing to write.
const UNREADABLE: u8 = 2;

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let name = match self.file.to_str() {
            Some("-") => "standard input".to_owned(),
            _ => self.file.display().to_string(),
        };
        let unreadable = |error: String| {
            eprintln!("causeway: {name}: {error}");
            Ok(ExitCode::from(UNREADABLE))
        };
        let text = match text(&self.file) {
            Ok(text) => text,
            Err(error) => return unreadable(error),
        };
        let macs = self.neighbours.map(|file| {
            let known = std::fs::read_to_string(&file);
            known.with_context(|| format!("cannot read {}", file.display()))
        });
        let beside = ImportContext {
            any_address: self.address,
            macs: macs
                .transpose()?
                .as_deref()
                .map(neighbours)
                .unwrap_or_default(),
            ..ImportContext::interface(&self.interface)
        };
        let imported = match import(self.origin.origin(), &text, &beside) {
            Ok(imported) => imported,
            Err(error) => return unreadable(error.to_string()),
        };
        print!("{}", imported.toml);
        for remark in &imported.remarks {
            eprintln!("{name}: {remark}");
        }
        let checked = BalancerConfig::parse(Path::new("what was written"), &imported.toml);
        if let Err(errors) = &checked {
            eprintln!("{errors}");
        }
        match imported.remarks.is_empty() && checked.is_ok() {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        }
    }
}

fn text(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => stdin().read_to_end(&mut bytes).map(|_| bytes),
        false => std::fs::read(file),
    };
    let bytes = read.map_err(|error| error.to_string())?;
    utf8(file, bytes).map_err(|(line, message)| format!("line {line}: {message}"))
}
