// SPDX-License-Identifier: Apache-2.0
//! The HTTP/3 servers and clients without a balancer. Needs root.

use anyhow::{Result, ensure};
use causeway_lab::load::log::Log;
use causeway_lab::load::{LoadConfig, report};
use causeway_lab::quic::{self, Order, Server, ServerConfig, Stack, client};
use causeway_lab::sandbox::{self, Sandbox};
use causeway_lab::topology::{Shape, Topology};

const PORT: u16 = 443;

struct Bench {
    topology: Topology,
    server: Server,
    config: LoadConfig,
}

fn bench(sandbox: Sandbox, stack: Stack, order: Order) -> Result<Bench> {
    let topology = Topology::build(
        sandbox,
        Shape {
            clients: 1,
            servers: 1,
        },
    )?;
    let node = &topology.servers[0];
    let server = Server::start(
        &node.netns,
        stack,
        &ServerConfig {
            order,
            ..ServerConfig::new("server0", PORT)?
        },
    )?;
    let mut config = LoadConfig {
        duration_ms: 4_000,
        slots: 6,
        max_age_ms: 1_000,
        ..LoadConfig::new((node.ipv4, PORT).into(), 1)
    };
    config.page.service_median_us = 8_000.0;
    config.page.service_sigma = 0.0;
    Ok(Bench {
        topology,
        server,
        config,
    })
}

impl Bench {
    fn run(&self, options: &client::QuicClientOptions) -> Result<Log> {
        let clients = [self.topology.clients[0].netns.clone()];
        client::start(&clients, &self.config, options)?.finish()
    }
}

/// What was asked for comes, from both families' addresses, and no sooner than the
/// service takes; a slower server is felt.
#[test]
fn clients_log_the_truth_about_quinn() {
    sandbox::run_test("clients_log_the_truth_about_quinn", |sandbox| {
        let mut bench = bench(sandbox, Stack::Quinn, Order::Par)?;
        let normal = bench.run(&client::QuicClientOptions::default())?;
        let all = report::summary(&normal, 0, u64::MAX);
        println!("{}", serde_json::to_string_pretty(&all)?);
        ensure!(normal.faults().is_empty(), "{:?}", normal.faults());
        ensure!(normal.reals == ["server0"] && all.requests > 100);
        ensure!(normal.responses.iter().all(|r| r.latency_ns() >= 8_000_000));
        ensure!(normal.responses.iter().any(|r| r.parent.is_some()));
        ensure!(normal.connections.iter().all(|c| c.proto == 17));
        let port = |i: usize| normal.connections[i].local.port();
        ensure!(normal.connections.len() > 6 && port(0) != port(1));

        bench.server.set_factor(3.0)?;
        bench.config.target = (bench.topology.servers[0].ipv6, PORT).into();
        let slow = bench.run(&client::QuicClientOptions::default())?;
        ensure!(slow.faults().is_empty(), "{:?}", slow.faults());
        ensure!(slow.responses.iter().all(|r| r.latency_ns() >= 24_000_000));
        ensure!(bench.server.cpu_time().as_nanos() > 0);
        Ok(())
    });
}

/// With one request served at a time, four that wait together take four services.
#[test]
fn the_order_of_service_can_be_chosen() {
    sandbox::run_test("the_order_of_service_can_be_chosen", |sandbox| {
        let bench = bench(sandbox, Stack::Quinn, Order::Seq)?;
        let log = bench.run(&client::QuicClientOptions::default())?;
        ensure!(log.faults().is_empty(), "{:?}", log.faults());
        let most = log.responses.iter().map(|r| r.latency_ns()).max();
        ensure!(most.is_some_and(|ns| ns >= 31_000_000), "{most:?} ns");
        Ok(())
    });
}

/// Connections change their client's port on the way, again and again, and nothing is
/// lost. Servers need an id of the client's for every new path: a stack that does not
/// give back those of former paths follows its clients three times and no more.
#[test]
fn connections_migrate() {
    sandbox::run_test("connections_migrate", |sandbox| {
        moved(sandbox, Stack::Quinn, Some(120), None)
    });
}

/// The same with a server on quic-go.
#[test]
fn connections_migrate_on_quic_go() {
    sandbox::run_test("connections_migrate_on_quic_go", |sandbox| {
        moved(sandbox, Stack::QuicGo, Some(120), None)
    });
}

/// Runs six connections of quinn's on a server, whose clients move twenty times and more.
fn moved(
    sandbox: Sandbox,
    stack: Stack,
    migrate_ms: Option<u64>,
    nat_ms: Option<u64>,
) -> Result<()> {
    let mut bench = bench(sandbox, stack, Order::Par)?;
    // Several times as long as thirty moves take: a busy machine may stand still meanwhile.
    (bench.config.duration_ms, bench.config.max_age_ms) = (4_000, 30_000);
    let log = bench.run(&client::QuicClientOptions { migrate_ms, nat_ms })?;
    let name = stack.name();
    ensure!(log.faults().is_empty(), "{name}: {:?}", log.faults());
    ensure!(log.migrations >= 30, "{name}: {} moves", log.migrations);
    ensure!(log.connections.len() == 6);
    Ok(())
}

#[test]
fn a_server_that_is_not_there_is_a_fault() {
    sandbox::run_test("a_server_that_is_not_there_is_a_fault", |sandbox| {
        let mut bench = bench(sandbox, Stack::Quinn, Order::Par)?;
        bench.config.target.set_port(444);
        bench.config.timeout_ms = 300;
        let log = bench.run(&client::QuicClientOptions::default())?;
        ensure!(
            log.faults().keys().eq([&"connect_timeout"]),
            "{:?}",
            log.faults()
        );
        Ok(())
    });
}

/// The other stack, client and server, logs and serves the same.
#[test]
fn quic_go_speaks_with_itself_and_with_quinn() {
    sandbox::run_test("quic_go_speaks_with_itself_and_with_quinn", |sandbox| {
        let mut bench = bench(sandbox, Stack::QuicGo, Order::Par)?;
        let clients = [bench.topology.clients[0].netns.clone()];
        for (stack, factor) in [(Stack::QuicGo, 1.0), (Stack::Quinn, 2.0)] {
            bench.server.set_factor(factor)?;
            let log = quic::load(stack, &clients, &bench.config, &Default::default())?.finish()?;
            let all = report::summary(&log, 0, u64::MAX);
            println!("{} {}", stack.name(), serde_json::to_string(&all)?);
            ensure!(log.faults().is_empty(), "{:?}", log.faults());
            ensure!(log.reals == ["server0"] && all.requests > 100);
            let least = (8_000_000.0 * factor) as u64;
            ensure!(log.responses.iter().all(|r| r.latency_ns() >= least));
            ensure!(log.responses.iter().any(|r| r.parent.is_some()));
            ensure!(log.connections.len() > 6);
        }
        Ok(())
    });
}

/// A NAT gives connections other ports, and their clients do not know.
#[test]
fn connections_outlive_their_nat() {
    sandbox::run_test("connections_outlive_their_nat", |sandbox| {
        moved(sandbox, Stack::Quinn, None, Some(200))
    });
}

/// The same with a server on quic-go.
#[test]
fn connections_outlive_their_nat_on_quic_go() {
    sandbox::run_test("connections_outlive_their_nat_on_quic_go", |sandbox| {
        moved(sandbox, Stack::QuicGo, None, Some(200))
    });
}
