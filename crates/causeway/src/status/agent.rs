// SPDX-License-Identifier: Apache-2.0
//! How an agent is.

use causeway_api::agent::{AgentStats, AgentStatus};
use causeway_service::config::plural;
use serde_json::json;

use super::{Condition, Daemon, Trouble, mode, refused, seconds, told};
use crate::client::Target;

/// Asks an agent how it is.
pub(crate) fn ask(target: &Target) -> anyhow::Result<Condition> {
    let (status, stats) = (target.get("/v1/status")?, target.get("/v1/stats")?);
    Ok(condition(&status, &stats))
}

fn condition(status: &AgentStatus, stats: &AgentStats) -> Condition {
    let mut troubles: Vec<Trouble> = told("data_plane", &status.data_plane_error)
        .into_iter()
        .collect();
    troubles.extend(told("state_not_kept", &status.state_error));
    troubles.extend(refused(
        &status.config_file,
        status.last_good,
        &status.last_reload_error,
        "causeway agent reload",
    ));
    troubles.extend(told("quic_ids", &status.quic_ids_error));
    troubles.extend(told("book_unheard", &status.book_unheard));
    for vip in &status.vips_missing {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        troubles.push(Trouble::of_vip("vip_missing", &vip.to_string(), format!(
            "this server does not hold the VIP {vip}, so the kernel drops its packets: `ip addr add {vip}/{length} dev lo`"
        )));
    }
    let missing = stats.clients.as_ref().map_or(0, |c| c.hooks_missing);
    if missing > 0 {
        let text = format!(
            "{} of interfaces without a program: clients that pass there are not measured",
            plural(missing as usize, "hook")
        );
        troubles.push(Trouble::new("hooks_missing", text));
    }
    let clients = stats.clients.iter();
    troubles.extend(clients.filter_map(|of| told("history", &of.history_error)));
    let mut serves = Vec::new();
    if !stats.addresses.is_empty() {
        let addresses: Vec<String> = stats.addresses.iter().map(ToString::to_string).collect();
        serves.push(format!("tunnels end at {}", addresses.join(", ")));
    }
    if let Some(clients) = &stats.clients {
        serves.push(match clients.categories.len() {
            1 => "clients measured in 1 category".to_owned(),
            categories => format!("clients measured in {categories} categories"),
        });
    }
    for book in &stats.books {
        serves.push(format!(
            "{} follows the book, at {}",
            book.server, book.position
        ));
    }
    let books = stats
        .books
        .iter()
        .map(|book| json!({ "server": book.server, "position": book.position.to_string() }));
    Condition {
        daemon: Daemon {
            daemon: "agent",
            version: status.version.clone(),
            interface: status.interface.clone(),
            mode: mode(&status.mode),
            pid: status.pid,
            uptime_s: seconds(status.started, stats.at),
            config_file: status.config_file.clone(),
        },
        figures: json!({
            "addresses": stats.addresses,
            "client_categories": stats.clients.as_ref().map(|clients| clients.categories.len()),
            "books": books.collect::<Vec<_>>(),
        }),
        serves: match serves.is_empty() {
            true => "nothing to do".to_owned(),
            false => serves.join("; "),
        },
        troubles,
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::Moment;

    use super::*;

    #[test]
    fn an_agent_tells_what_it_does_and_what_is_wrong() {
        let status: AgentStatus = serde_json::from_value(json!({
            "version": "0.1.0", "interface": "eth0", "mode": "native", "took_over": false,
            "pid": 8, "started": Moment::default(), "config_file": "agent.toml",
            "last_reload_error": "agent.toml:2: y", "vips_missing": ["2001:db8::1"],
            "quic_ids_error": "cannot write ids",
        }))
        .unwrap();
        let stats: AgentStats = serde_json::from_value(json!({
            "at": { "monotonic_ns": 61_000_000_000u64, "realtime_ns": 0 },
            "addresses": ["10.0.0.1"], "verdicts": [], "cookies": [],
        }))
        .unwrap();
        assert_eq!(
            condition(&status, &stats).text(),
            "agent 0.1.0 on eth0 in native mode, pid 8, runs for 1 min 1 s with agent.toml\n\
             tunnels end at 10.0.0.1\n\
             trouble: the last reload was refused, and what was before holds: agent.toml:2: y\n\
             trouble: cannot write ids\n\
             trouble: this server does not hold the VIP 2001:db8::1, so the kernel drops its packets: `ip addr add 2001:db8::1/128 dev lo`\n"
        );
    }
}
