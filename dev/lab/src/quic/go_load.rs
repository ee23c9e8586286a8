// SPDX-License-Identifier: Apache-2.0
//! The load by clients on quic-go: a process in each client namespace. The pages
//! and ages are drawn here, from the same seed as for the other stack, and the
//! process sends its log when it is done.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{gotool, tls};
use crate::clock;
use crate::load::log::{self, ConnectionFault, Log};
use crate::load::page::{self, Object};
use crate::load::{self, LoadConfig, Progress, RunningLoad};
use crate::netns::Netns;
use crate::role::Player;

/// Random streams of a slot beside those of its pages.
const STREAM_PHASE: u64 = 1 << 41;
/// How often the load's end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the log may take after the last page.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const PROTO_UDP: u8 = 17;

#[derive(Serialize)]
struct Plan {
    target: SocketAddr,
    certificate: String,
    server_name: &'static str,
    outstanding: usize,
    timeout_ms: u64,
    start_ns: u64,
    end_ns: u64,
    interval_ns: u64,
    /// 0: clients stay where they are.
    migrate_ms: u64,
    users: Vec<UserPlan>,
}

#[derive(Serialize)]
struct UserPlan {
    slot: usize,
    phase_ns: u64,
    /// Lives of connections, used in turn.
    ages_ns: Vec<u64>,
    pages: Vec<Vec<ObjectPlan>>,
}

#[derive(Serialize)]
struct ObjectPlan {
    /// -1: the root.
    parent: i64,
    size: u32,
    service_us: u32,
}

#[derive(Deserialize)]
struct Answer {
    /// Go writes an empty list as null.
    connections: Option<Vec<Connection>>,
    responses: Option<Vec<Response>>,
    migrations: u64,
    cpu_ns: u64,
}

#[derive(Deserialize)]
struct Connection {
    slot: u32,
    local: SocketAddr,
    open_ns: u64,
    connected_ns: u64,
    close_ns: u64,
    fault: String,
    lost: u32,
}

#[derive(Deserialize)]
struct Response {
    connection: u32,
    page: u32,
    id: u32,
    parent: i64,
    intended_ns: u64,
    send_ns: u64,
    last_ns: u64,
    size: u32,
    real: String,
}

/// Starts the load, slots dealt out over `clients` in turn. Live counts stay at 0.
/// With `migrate_ms` each connection moves to another port of the client that often.
pub(super) fn start(
    clients: &[Netns],
    config: &LoadConfig,
    migrate_ms: Option<u64>,
) -> Result<RunningLoad> {
    let certificate = tls::identity()?.certificate.display().to_string();
    let program = gotool::program()?;
    let namespaces: Vec<Netns> = clients.to_vec();
    load::start_with(
        clients,
        config,
        move |config, slots, start_ns, progress: &Progress| {
            // Slots are dealt out in turn, so the first one names the namespace.
            let Some(&first) = slots.first() else {
                return Ok(Log::default());
            };
            let netns = namespaces
                .get(first)
                .context("more threads than namespaces")?;
            let plan = Plan {
                migrate_ms: migrate_ms.unwrap_or(0),
                ..plan(config, &certificate, slots, start_ns)
            };
            let mut command = netns.command(program);
            command.arg("load");
            let mut player =
                Player::start(command, "quic-go load", &serde_json::to_string(&plan)?)?;
            wait_for_end(config, start_ns, progress);
            if progress.is_stopped() {
                // One that has ended by itself has answered.
                let _ = player.tell("stop");
            }
            let answer = player.answer(Duration::from_millis(config.timeout_ms) + END_TIMEOUT)?;
            take(
                config.target,
                serde_json::from_str(&answer).context("log of quic-go")?,
            )
        },
    )
}

/// Until no page is to begin any more.
fn wait_for_end(config: &LoadConfig, start_ns: u64, progress: &Progress) {
    let end_ns = start_ns + config.duration_ms * 1_000_000;
    while !progress.is_stopped() && clock::monotonic_ns() < end_ns {
        sleep(LOOK_EVERY);
    }
}

fn plan(config: &LoadConfig, certificate: &str, slots: &[usize], start_ns: u64) -> Plan {
    let interval_ns = config.page_interval_ms.max(1) * 1_000_000;
    let pages = config.duration_ms / config.page_interval_ms.max(1) + 1;
    let user = |&slot: &usize| {
        let mut rng = page::rng(config.seed, slot, STREAM_PHASE);
        let max_age_ns = config.max_age_ms * 1_000_000;
        UserPlan {
            slot,
            phase_ns: rng.random_range(0..interval_ns),
            ages_ns: (0..64)
                .map(|_| rng.random_range(max_age_ns / 2..=max_age_ns))
                .collect(),
            pages: (0..pages)
                .map(|number| {
                    let objects = page::draw(&config.page, config.seed, slot, number as u32);
                    objects.iter().map(ObjectPlan::of).collect()
                })
                .collect(),
        }
    };
    Plan {
        target: config.target,
        certificate: certificate.to_owned(),
        server_name: tls::SERVER_NAME,
        outstanding: config.outstanding,
        timeout_ms: config.timeout_ms,
        start_ns,
        end_ns: start_ns + config.duration_ms * 1_000_000,
        interval_ns,
        migrate_ms: 0,
        users: slots.iter().map(user).collect(),
    }
}

impl ObjectPlan {
    fn of(object: &Object) -> Self {
        Self {
            parent: object.parent.map_or(-1, |p| p as i64),
            size: object.size,
            service_us: object.service_us,
        }
    }
}

fn take(remote: SocketAddr, answer: Answer) -> Result<Log> {
    let mut log = Log {
        wall_offset_ns: clock::wall_offset_ns(),
        ..Log::default()
    };
    log.cost.cpu_ns = answer.cpu_ns;
    log.migrations = answer.migrations;
    for c in answer.connections.unwrap_or_default() {
        log.connections.push(log::LoggedConnection {
            proto: PROTO_UDP,
            slot: c.slot,
            local: c.local,
            remote,
            open_ns: c.open_ns,
            connected_ns: c.connected_ns,
            close_ns: c.close_ns,
            real: None,
            fault: fault(&c.fault)?,
            lost: c.lost,
        });
    }
    for r in answer.responses.unwrap_or_default() {
        let real = log.real(&r.real);
        let connection = log
            .connections
            .get_mut(r.connection as usize)
            .context("a response without a connection")?;
        if *connection.real.get_or_insert(real) != real {
            connection.fault = Some(ConnectionFault::WrongReal);
        }
        log.responses.push(log::LoggedResponse {
            connection: r.connection,
            page: r.page,
            id: r.id,
            parent: u32::try_from(r.parent).ok(),
            intended_ns: r.intended_ns,
            send_ns: r.send_ns,
            last_ns: r.last_ns,
            size: r.size,
            real,
            srtt_us: 0,
        });
    }
    Ok(log)
}

/// The fault of a word; none of an empty one.
fn fault(word: &str) -> Result<Option<ConnectionFault>> {
    if word.is_empty() {
        return Ok(None);
    }
    let fault = serde_json::from_value(serde_json::Value::from(word));
    fault.map(Some).with_context(|| format!("fault {word:?}"))
}
