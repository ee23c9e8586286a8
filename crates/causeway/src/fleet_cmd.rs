// SPDX-License-Identifier: Apache-2.0
//! `causeway fleet`: the state of a fleet, what its balancers exchange, and whether balancers of the
//! same VIPs agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::date_time;
use causeway_api::fleet::{
    Agreement, FleetAgentView, FleetCidView, FleetPosition, FleetPush, FleetPushed, FleetRevision,
    FleetRollback, FleetTokenOrder, FleetView, PassBy, PeersView,
};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::units;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Target;
use crate::config_cmd::changes_table;
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
    /// Show the members, the book that each has applied, and which changes wait for which member
    Status {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Found the fleet with this balancer's configuration, or put its book back into a store that has lost it
    Found,
    /// Come back into the fleet after `leave`
    Join,
    /// Take this balancer out of service: routers prefer others, then its routes are withdrawn
    ///
    /// It still forwards until it is unloaded.
    Leave,
    /// Make the fleet go on without a balancer that cannot be reached and gets no packets
    ///
    /// Only you can know that it gets none: its data plane forwards without its daemon.
    PassBy {
        /// Name of the member
        member: String,
        /// It gets no packets
        #[arg(long, required = true)]
        yes: bool,
    },
    /// Make a token by which the agent of a new server joins, once, with `causeway agent join`
    Token {
        /// Addresses of one server, as balancers know it
        #[arg(required = true)]
        server: Vec<IpAddr>,
        /// How long it lasts
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = units::duration)]
        lasts: Duration,
    },
    /// Have the fleet have the VIPs and reals of this balancer's file, and no others
    ///
    /// Reads the file again, as `reload` does, which passes on only what has changed in it. Shows
    /// first what changes. What takes away too much is held until you confirm it.
    Push {
        #[command(flatten)]
        how: How,
    },
    /// Show the last changes of the fleet's VIPs and reals: who made them, when, and what they were
    History {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Put VIPs and reals of a former revision back, as a new one
    ///
    /// Shows first what changes. What takes away too much is held until you confirm it. Files stay
    /// as they are, and so do weights, checks, keys and connection ids.
    Rollback {
        /// The revision to put back, one of `fleet history`; the one before the last change unless
        /// given
        revision: Option<u64>,
        #[command(flatten)]
        how: How,
    },
    /// Show what this balancer must have in common with the others
    Show {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show the balancers with which this one shares measurements and votes
    Peers {
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

/// How a change is made.
#[derive(Debug, clap::Args)]
struct How {
    /// Confirm what the change takes away
    #[arg(long)]
    yes: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Status { output } => {
                let fleet: FleetView = self.target.get("/v1/fleet")?;
                match output {
                    OutputFormat::Table => print!("{}", status(&fleet)),
                    _ => print(output, &json!(fleet), &members(&fleet))?,
                }
                Ok(ExitCode::SUCCESS)
            }
            Action::Found => self.order("found", ""),
            Action::Join => self.order("join", ""),
            Action::Leave => self.order("leave", ""),
            Action::PassBy { ref member, yes: _ } => {
                let body = json!(PassBy {
                    member: member.clone()
                });
                self.order("pass-by", &body.to_string())
            }
            Action::Token { ref server, lasts } => {
                let body = json!(FleetTokenOrder {
                    servers: server.clone(),
                    lifetime_s: lasts.as_secs(),
                });
                self.order("token", &body.to_string())
            }
            Action::Push { ref how } => self.change(how, "push", |dry_run| {
                json!(FleetPush {
                    confirmed: how.yes,
                    dry_run,
                })
            }),
            Action::Rollback { revision, ref how } => self.change(how, "rollback", |dry_run| {
                json!(FleetRollback {
                    revision,
                    confirmed: how.yes,
                    dry_run,
                })
            }),
            Action::History { output } => {
                let fleet: FleetView = self.target.get("/v1/fleet")?;
                print(output, &json!(fleet.history), &history(&fleet.history))?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Show { output } => {
                let agreement: Agreement = self.target.get("/v1/agreement")?;
                print(output, &json!(agreement), &items(&agreement))?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Peers { output } => {
                let peers: PeersView = self.target.get("/v1/peers")?;
                match (&peers.own, output) {
                    (None, OutputFormat::Table) => println!(
                        "this balancer steers alone; name the others under [peers] in its file"
                    ),
                    _ => print(output, &json!(peers), &peers_table(&peers))?,
                }
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

impl Args {
    fn order(&self, order: &str, body: &str) -> anyhow::Result<ExitCode> {
        let path = format!("/v1/fleet/{order}");
        println!("{}", self.target.post::<String>(&path, body)?);
        Ok(ExitCode::SUCCESS)
    }

    /// Shows what a change would be, and then makes it.
    fn change(
        &self,
        how: &How,
        order: &str,
        body: impl Fn(bool) -> Value,
    ) -> anyhow::Result<ExitCode> {
        let path = format!("/v1/fleet/{order}");
        let post = |dry_run: bool| {
            let body = body(dry_run).to_string();
            self.target.post_for_reload(&path, &body)
        };
        let mut pushed: FleetPushed = post(true)?;
        let shows = matches!(how.output, OutputFormat::Table);
        if shows {
            print!("{}", preview(&pushed));
        }
        let may = how.yes || pushed.held.is_empty();
        if may && !how.dry_run {
            pushed = post(false)?;
        }
        match (&pushed.done, shows) {
            (Some(done), true) => println!("{done}"),
            (None, true) => {}
            (_, false) => print(how.output, &json!(pushed), &pushed_table(&pushed))?,
        }
        if may {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("held: nothing is changed before --yes confirms what it takes away");
        Ok(ExitCode::FAILURE)
    }
}

/// What a change would be.
fn preview(pushed: &FleetPushed) -> String {
    let mut text = String::new();
    if !pushed.changes.is_empty() {
        text += "on this balancer:\n";
        text += &changes_table(&pushed.changes).to_text();
    }
    text += match pushed.fleet.is_empty() {
        true => "in the fleet: no VIP and no real changes\n",
        false => "in the fleet:\n",
    };
    for line in &pushed.fleet {
        text += &format!("  {line}\n");
    }
    for removal in &pushed.held {
        text += &format!("to be confirmed: {removal}\n");
    }
    text
}

fn pushed_table(pushed: &FleetPushed) -> TextTable {
    let mut table = TextTable::new(&["what", "told"]);
    let mut row = |what: &str, told: String| table.push(vec![what.to_owned(), told]);
    for line in &pushed.fleet {
        row("fleet", line.clone());
    }
    for removal in &pushed.held {
        row("held", removal.to_string());
    }
    if let Some(done) = &pushed.done {
        row("done", done.clone());
    }
    table
}

fn history(revisions: &[FleetRevision]) -> TextTable {
    let mut table = TextTable::new(&[">revision", "when", "by", "what"]);
    for revision in revisions {
        let what = match (revision.what.is_empty(), revision.back_to) {
            (true, _) => "the oldest that is kept".to_owned(),
            (false, None) => revision.what.join("; "),
            (false, Some(former)) => format!("back to {former}: {}", revision.what.join("; ")),
        };
        table.push(vec![
            revision.revision.to_string(),
            format!("{}Z", date_time(revision.at_s)),
            revision.by.clone(),
            what,
        ]);
    }
    table
}

/// The state of a balancer that has left its fleet.
const LEFT: &str = "left";

/// How a fleet stands: what is wrong first.
fn status(fleet: &FleetView) -> String {
    let position = |of: Option<FleetPosition>| of.map_or("none".to_owned(), |of| of.to_string());
    let follows = match fleet.state.as_str() {
        LEFT => "no longer followed".to_owned(),
        _ => format!("data plane at {}", position(fleet.applied)),
    };
    let mut text = format!(
        "fleet {}, store {}\nthis is {}: {}, {}; book {}, {follows}\n",
        fleet.fleet,
        fleet.store,
        fleet.member,
        fleet.state,
        match fleet.in_service {
            true => "in service",
            false => "not in service",
        },
        position(fleet.book),
    );
    for (what, why) in [("store", &fleet.store_error), ("holds", &fleet.hold)] {
        if let Some(why) = why {
            text += &format!("{what}: {why}\n");
        }
    }
    for removal in &fleet.held {
        text += &format!("held until `causeway fleet push --yes`: {removal}\n");
    }
    if fleet.store_error.is_some() {
        text += "below is what it knew last; it goes on by that\n";
    }
    if fleet.book.is_none() {
        return text;
    }
    let key = match fleet.key_other {
        Some(next) if next > fleet.key_issued => format!(", {next} is accepted, to be issued"),
        Some(former) => format!(", {former} is still accepted"),
        None => String::new(),
    };
    text += &format!(
        "keys: {} is issued{key}\n\n{}",
        fleet.key_issued,
        members(fleet).to_text()
    );
    let phases = ["live", "known", "leaving", "resting"].map(|phase| {
        let ids = fleet.ids.iter().filter(|id| id.phase == phase).count();
        format!("{ids} {phase}")
    });
    text += &format!("\nids: {}\n", phases.join(", "));
    for own in &fleet.quic_cids {
        text += &connection_ids(own);
    }
    let newest = |agent: &&FleetAgentView| agent.acknowledged == fleet.book;
    match fleet.agents.len() {
        0 => {}
        all => {
            let there = fleet.agents.iter().filter(newest).count();
            text += &format!("agents: {there} of {all} go by this book\n");
        }
    }
    let used = fleet.tokens.iter().filter(|token| token.is_used).count();
    match fleet.tokens.len() {
        0 => {}
        all => text += &format!("join tokens: {} open, {used} used\n", all - used),
    }
    for wait in &fleet.waiting {
        let agents = wait.agents.iter();
        let agents = agents.map(|server| format!("the agent of {server}"));
        let whom: Vec<_> = wait.members.iter().cloned().chain(agents).collect();
        text += &match whom.is_empty() {
            true => format!("in time: {}\n", wait.what),
            false => format!("waits for {}: {}\n", whom.join(", "), wait.what),
        };
    }
    text
}

/// What the connection ids of a VIP are of.
fn connection_ids(own: &FleetCidView) -> String {
    let issued = match own.issued {
        Some(number) => format!("configuration {number} is issued"),
        None => "servers issue by their files".to_owned(),
    };
    let other = match (own.other, own.by_files && own.issued.is_some()) {
        (Some(number), _) => format!(", {number} is accepted"),
        (None, true) => ", those in files alone are accepted".to_owned(),
        (None, false) => String::new(),
    };
    format!("connection ids of {}: {issued}{other}\n", own.vip)
}

fn members(fleet: &FleetView) -> TextTable {
    let mut table = TextTable::new(&["member", "phase", "lease", "acknowledged"]);
    for member in &fleet.members {
        // Who has left follows no book, and the last one that it had does not say so.
        let has_left = fleet.state == LEFT && member.name == fleet.member;
        let (phase, lease) = match (has_left, member.alive) {
            (true, _) => (LEFT, "given up"),
            (_, true) => (member.phase.as_str(), "lasts"),
            (_, false) => (member.phase.as_str(), "is over"),
        };
        let acknowledged = member
            .acknowledged
            .map_or("nothing".to_owned(), |at| at.to_string());
        table.push(vec![
            member.name.clone(),
            phase.to_owned(),
            lease.to_owned(),
            acknowledged,
        ]);
    }
    table
}

/// What a balancer says, or has said.
fn of_balancer(path: &Path) -> anyhow::Result<Agreement> {
    let kind = fs::metadata(path).map_err(|error| {
        anyhow::anyhow!(
            "cannot look at {}: {error}; name a file of `causeway fleet show -o json`, or a socket",
            path.display()
        )
    })?;
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
    let named = |item: &causeway_api::fleet::AgreementItem| (item.what.clone(), item.vip.clone());
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

fn peers_table(peers: &PeersView) -> TextTable {
    let mut table = TextTable::new(&[
        "member",
        "state",
        ">heard",
        ">sent",
        ">received",
        ">dropped",
        ">reals",
        ">weights apart",
        "of",
    ]);
    for member in &peers.members {
        let drops = member.dropped.iter();
        let drops: Vec<String> = drops
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let apart = member.weights_apart;
        table.push(vec![
            member.address.clone(),
            if member.live { "live" } else { "silent" }.to_owned(),
            member
                .heard_s
                .map_or_else(|| "never".to_owned(), |s| format!("{s:.1} s ago")),
            member.sent.to_string(),
            member.received.to_string(),
            match drops.is_empty() {
                true => "0".to_owned(),
                false => drops.join(", "),
            },
            member.reals.to_string(),
            apart.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0)),
            member
                .farthest_real
                .clone()
                .unwrap_or_else(|| "-".to_owned()),
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
    use causeway_api::balancer::{Change, ChangeKind};
    use causeway_api::fleet::{AgreementItem, FleetMemberView, FleetRemoval, FleetWait};

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

    fn removal(whole: bool, reals: u8, of: usize) -> FleetRemoval {
        FleetRemoval {
            vip: "192.0.2.1:80/tcp".to_owned(),
            whole,
            reals: (1..=reals).map(|last| format!("10.0.0.{last}")).collect(),
            of,
        }
    }

    #[test]
    fn what_changes_is_shown_with_what_has_to_be_confirmed() {
        let pushed = FleetPushed {
            changes: vec![Change {
                change: ChangeKind::Removed,
                vip: Some("web".to_owned()),
                real: None,
                key: None,
                from: Some("192.0.2.1:80/tcp with 5 reals".to_owned()),
                to: None,
                needs_restart: false,
                needs_unload: false,
            }],
            fleet: vec!["vip 192.0.2.1:80/tcp is removed, with 5 reals (10.0.0.1, ...)".to_owned()],
            held: vec![removal(true, 5, 5)],
            done: None,
        };
        assert_eq!(
            preview(&pushed),
            "on this balancer:\nchange  vip  real  key  from                           to  needs\n\
             -       web             192.0.2.1:80/tcp with 5 reals\n\
             in the fleet:\n  vip 192.0.2.1:80/tcp is removed, with 5 reals (10.0.0.1, ...)\n\
             to be confirmed: vip 192.0.2.1:80/tcp goes, with 5 reals (10.0.0.1, 10.0.0.2, 10.0.0.3, ...)\n"
        );
        assert_eq!(
            preview(&FleetPushed::default()),
            "in the fleet: no VIP and no real changes\n"
        );
    }

    #[test]
    fn history_says_who_when_and_what() {
        let revision = |revision, back_to, what: &[&str]| FleetRevision {
            revision,
            at_s: 1_709_210_096,
            by: "lb1".to_owned(),
            back_to,
            what: what.iter().map(|what| (*what).to_owned()).collect(),
        };
        let revisions = [
            revision(14, Some(3), &["vip a loses 1 real (10.0.0.2)"]),
            revision(9, None, &["vip a gets 1 real (10.0.0.2)", "vip b is added"]),
            revision(3, None, &[]),
        ];
        assert_eq!(
            history(&revisions).to_text(),
            "revision  when                  by   what\n      \
             14  2024-02-29T12:34:56Z  lb1  back to 3: vip a loses 1 real (10.0.0.2)\n       \
             9  2024-02-29T12:34:56Z  lb1  vip a gets 1 real (10.0.0.2); vip b is added\n       \
             3  2024-02-29T12:34:56Z  lb1  the oldest that is kept\n"
        );
    }

    #[test]
    fn who_is_waited_for_is_named() {
        let at = |revision| FleetPosition {
            generation: 0,
            revision,
        };
        let member = |name: &str, alive, revision| FleetMemberView {
            name: name.to_owned(),
            phase: "serving".to_owned(),
            alive,
            acknowledged: Some(at(revision)),
        };
        let fleet = FleetView {
            fleet: "edge".to_owned(),
            member: "lb1".to_owned(),
            store: "https://etcd1:2379".to_owned(),
            store_error: Some("etcd at https://etcd1:2379: no answer within 3 s".to_owned()),
            state: "serving".to_owned(),
            in_service: true,
            book: Some(at(9)),
            applied: Some(at(9)),
            key_issued: 2,
            key_other: Some(3),
            members: vec![member("lb1", true, 9), member("lb2", false, 7)],
            waiting: vec![FleetWait {
                what: "key 3 is issued".to_owned(),
                members: vec!["lb2".to_owned()],
                agents: vec!["10.0.0.7".to_owned()],
            }],
            quic_cids: vec![FleetCidView {
                vip: "192.0.2.1:443/udp".to_owned(),
                issued: Some(0),
                other: Some(1),
                by_files: false,
            }],
            agents: vec![FleetAgentView {
                server: "10.0.0.7".to_owned(),
                acknowledged: Some(at(8)),
            }],
            held: vec![removal(false, 3, 4)],
            ..FleetView::default()
        };
        assert_eq!(
            status(&fleet),
            "fleet edge, store https://etcd1:2379\n\
             this is lb1: serving, in service; book 0.9, data plane at 0.9\n\
             store: etcd at https://etcd1:2379: no answer within 3 s\n\
             held until `causeway fleet push --yes`: vip 192.0.2.1:80/tcp loses 3 reals (10.0.0.1, 10.0.0.2, 10.0.0.3) of 4\n\
             below is what it knew last; it goes on by that\n\
             keys: 2 is issued, 3 is accepted, to be issued\n\n\
             member  phase    lease    acknowledged\n\
             lb1     serving  lasts    0.9\n\
             lb2     serving  is over  0.7\n\n\
             ids: 0 live, 0 known, 0 leaving, 0 resting\n\
             connection ids of 192.0.2.1:443/udp: configuration 0 is issued, 1 is accepted\n\
             agents: 0 of 1 go by this book\n\
             waits for lb2, the agent of 10.0.0.7: key 3 is issued\n"
        );
        let left = FleetView {
            state: LEFT.to_owned(),
            in_service: false,
            applied: None,
            ..fleet
        };
        let told = status(&left);
        for line in [
            "this is lb1: left, not in service; book 0.9, no longer followed\n",
            "\nlb1     left     given up  0.9\n",
        ] {
            assert!(told.contains(line), "{told}");
        }
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
