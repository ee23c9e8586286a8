// SPDX-License-Identifier: Apache-2.0
//! `causeway fleet`: whether balancers of the same VIPs have alike what they must.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use causeway_api::balancer::Agreement;
use causeway_report::table::{OutputFormat, TextTable};
use clap::Subcommand;
use serde_json::json;

use crate::client::Target;
use crate::vip_cmd::print;

/// Arguments of `causeway fleet`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what this balancer must have in common with the others
    Show {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Compare balancers; the exit code is 1 where they differ
    ///
    /// Each is a file that `causeway fleet show -o json` wrote on a balancer, or a balancer's
    /// Unix socket.
    Diff {
        /// What to compare
        #[arg(required = true, num_args = 2.., value_name = "FILE|SOCKET")]
        of: Vec<PathBuf>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Show { output } => {
                let agreement: Agreement = self.target.get("/v1/agreement")?;
                print(output, &json!(agreement), &items(&agreement))?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Diff { of, output } => {
                let read = |path: PathBuf| Ok((path.display().to_string(), of_balancer(&path)?));
                let of = of.into_iter().map(read);
                let of = of.collect::<anyhow::Result<Vec<(String, Agreement)>>>()?;
                let differ = differences(&of);
                match (differ.is_empty(), output) {
                    (true, OutputFormat::Table) => {
                        println!("{} balancers agree", of.len());
                    }
                    _ => print(output, &json!(differ), &table(&of, &differ))?,
                }
                Ok(match differ.is_empty() {
                    true => ExitCode::SUCCESS,
                    false => ExitCode::FAILURE,
                })
            }
        }
    }
}

/// What a balancer says, or has said.
fn of_balancer(path: &Path) -> anyhow::Result<Agreement> {
    let kind = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if kind.file_type().is_socket() {
        return Target::balancer(path.to_owned()).get("/v1/agreement");
    }
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| {
        format!(
            "{} is not what `causeway fleet show -o json` writes",
            path.display()
        )
    })
}

/// A thing and the VIP it is of, and what each balancer has of it.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Disagreement {
    what: String,
    vip: Option<String>,
    /// By balancer; those that have none are left out.
    digests: BTreeMap<String, String>,
}

/// What is not the same on all of them.
fn differences(of: &[(String, Agreement)]) -> Vec<Disagreement> {
    let named =
        |item: &causeway_api::balancer::AgreementItem| (item.what.clone(), item.vip.clone());
    let all: BTreeSet<_> = of
        .iter()
        .flat_map(|(_, agreement)| agreement.items.iter().map(named))
        .collect();
    all.into_iter()
        .map(|(what, vip)| {
            let digests = of.iter().filter_map(|(name, agreement)| {
                let mut items = agreement.items.iter();
                let item = items.find(|item| item.what == what && item.vip == vip)?;
                Some((name.clone(), item.digest.clone()))
            });
            let digests = digests.collect();
            Disagreement { what, vip, digests }
        })
        .filter(|one| {
            let kinds: BTreeSet<_> = one.digests.values().collect();
            kinds.len() > 1 || one.digests.len() < of.len()
        })
        .collect()
}

fn items(agreement: &Agreement) -> TextTable {
    let mut table = TextTable::new(&["what", "vip", "digest"]);
    for item in &agreement.items {
        table.push(vec![
            item.what.clone(),
            item.vip.clone().unwrap_or_else(|| "-".to_owned()),
            item.digest.clone(),
        ]);
    }
    table
}

fn table(of: &[(String, Agreement)], differ: &[Disagreement]) -> TextTable {
    let mut table = TextTable::new(&["what", "vip", "balancer", "digest"]);
    for one in differ {
        for (name, _) in of {
            let digest = one.digests.get(name);
            table.push(vec![
                one.what.clone(),
                one.vip.clone().unwrap_or_else(|| "-".to_owned()),
                name.clone(),
                digest.cloned().unwrap_or_else(|| "none".to_owned()),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::AgreementItem;

    use super::*;

    fn balancer(name: &str, items: &[(&str, Option<&str>, &str)]) -> (String, Agreement) {
        let items = items.iter().map(|(what, vip, digest)| AgreementItem {
            what: (*what).to_owned(),
            vip: vip.map(str::to_owned),
            digest: (*digest).to_owned(),
        });
        let items = items.collect();
        (name.to_owned(), Agreement { items })
    }

    #[test]
    fn what_differs_or_is_missing_is_named() {
        let web = Some("192.0.2.1:80/tcp");
        let one = balancer("one", &[("hash-key", None, "a"), ("server-ids", web, "b")]);
        let same = balancer("same", &[("hash-key", None, "a"), ("server-ids", web, "b")]);
        let other = balancer(
            "other",
            &[("hash-key", None, "x"), ("server-ids", web, "b")],
        );
        let fewer = balancer("fewer", &[("hash-key", None, "a")]);
        assert_eq!(differences(&[one.clone(), same]), []);
        let found = differences(&[one.clone(), other]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].what.as_str(), found[0].digests.len()),
            ("hash-key", 2)
        );
        let found = differences(&[one, fewer]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].vip.as_deref(), web);
        assert_eq!(found[0].digests.len(), 1);
    }
}
