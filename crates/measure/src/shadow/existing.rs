// SPDX-License-Identifier: Apache-2.0
//! The existing balancer, as the mapping of connections to servers shows it: where its
//! servers are, whose addresses they see, and how it picks them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use causeway_core::flow::Cidr;
use serde::Serialize;

use super::recording::{Connection, Recording};

/// Where clients connect to has this part of the servers' connections, at least.
const FRONT: f64 = 0.8;
/// A forwarder passes on this part of the connections that its clients' addresses have at the servers, at
/// least: the others are checks of a host that is also a client.
const PASSED_ON: f64 = 0.2;
/// A connection that is passed on reaches its server in this time. Later, another one may have its
/// client's port.
const PASSED_ON_NS: u64 = 1_000_000_000;
/// Connections from which a way to pick can be recognised.
const MAPPED: usize = 50;
/// Part of the picks that follow a rule before it counts as the rule.
const RULE: f64 = 0.95;
/// Part of them that would by chance, at most.
const BY_CHANCE: f64 = 0.7;

/// Whose connections reach the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// The balancer's own: it ends the clients' connections itself.
    Proxy,
    /// The clients' own: it passes packets on.
    Forwarder,
    /// Only one side was seen.
    Unknown,
}

/// By what new connections get their servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    /// One server after another.
    Turns,
    /// Those of one client address have one server.
    ClientAddress,
    /// Neither: by a hash of ports, by load, or by chance.
    Connection,
    /// Too few connections to say, or one server.
    Unknown,
}

/// What stands before the servers now.
#[derive(Debug)]
pub(super) struct ExistingBalancer {
    pub kind: Kind,
    pub method: Method,
    /// Where clients connect to.
    pub fronts: Vec<SocketAddr>,
    pub servers: Vec<SocketAddr>,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proxy => "a proxy (servers see its addresses)",
            Self::Forwarder => "a forwarder (servers see the clients' addresses)",
            Self::Unknown => "unknown: only one side of it was seen",
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Turns => "by turns",
            Self::ClientAddress => "by the client's address",
            Self::Connection => "connection by connection, not by turns",
            Self::Unknown => "unknown",
        })
    }
}

impl ExistingBalancer {
    /// Looks for servers in the networks of `wanted`; without those, for the endpoints that
    /// share what one other endpoint has.
    pub(super) fn find(recording: &Recording, wanted: &[Cidr]) -> Self {
        let mut endpoints: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
        for connection in recording.connections.iter().filter(|of| of.asked) {
            let of = endpoints.entry(connection.server).or_default();
            of.connections += 1;
            of.clients.insert(connection.client.ip());
        }
        let is_server = |address: &SocketAddr| match wanted {
            [] => true,
            wanted => wanted.iter().any(|net| net.contains(address.ip())),
        };
        let mut servers: Vec<SocketAddr> = endpoints.keys().copied().filter(is_server).collect();
        let mut fronts: Vec<SocketAddr> = Vec::new();
        match wanted {
            [] => fronts.extend(front(&endpoints)),
            _ => fronts.extend(endpoints.keys().filter(|at| !is_server(at))),
        }
        servers.retain(|server| !fronts.contains(server));
        let kind = kind(recording, &fronts, &servers);
        if kind == Kind::Proxy {
            // It connects to other addresses than its servers, too; its clients connect to the front alone.
            let of_servers = servers.iter().filter_map(|server| endpoints.get(server));
            let own: BTreeSet<&IpAddr> = of_servers.flat_map(|of| &of.clients).collect();
            let is_own = |at: &SocketAddr| {
                let clients = endpoints.get(at).map(|of| &of.clients);
                clients.is_some_and(|clients| clients.iter().all(|client| own.contains(client)))
            };
            let others: Vec<SocketAddr> = fronts.iter().copied().filter(|at| !is_own(at)).collect();
            // All are where it shows its servers the clients' addresses.
            if !others.is_empty() {
                fronts = others;
            }
        }
        Self {
            kind,
            method: method(recording, &servers, kind),
            fronts,
            servers,
        }
    }

    /// The connections of a server.
    pub(super) fn connections<'a>(
        &self,
        recording: &'a Recording,
        server: SocketAddr,
    ) -> impl Iterator<Item = &'a Connection> {
        let connections = recording.connections.iter();
        connections.filter(move |of| of.asked && of.server == server)
    }
}

#[derive(Debug, Default)]
struct Endpoint {
    connections: usize,
    clients: BTreeSet<IpAddr>,
}

/// The endpoint that has about as many connections as all others, of which there are two or
/// more.
fn front(endpoints: &BTreeMap<SocketAddr, Endpoint>) -> Option<SocketAddr> {
    let (address, most) = endpoints.iter().max_by_key(|(_, of)| of.connections)?;
    let all: usize = endpoints.values().map(|of| of.connections).sum();
    let others = (all - most.connections) as f64;
    (endpoints.len() > 2 && most.connections as f64 >= FRONT * others).then_some(*address)
}

/// Told by connections that are seen twice, from one client's address and port at a time: to where
/// clients connect to, and to a server.
fn kind(recording: &Recording, fronts: &[SocketAddr], servers: &[SocketAddr]) -> Kind {
    if fronts.is_empty() {
        return Kind::Unknown;
    }
    let mut begun: HashMap<SocketAddr, Vec<u64>> = HashMap::new();
    for of in connections_to(recording, fronts) {
        begun.entry(of.client).or_default().push(of.first_ns);
    }
    let (mut passed_on, mut all) = (0_usize, 0_usize);
    let clients: BTreeSet<IpAddr> = begun.keys().map(SocketAddr::ip).collect();
    // Others are a balancer's own, as its checks.
    let of_clients = |of: &&Connection| clients.contains(&of.client.ip());
    for of in connections_to(recording, servers).filter(of_clients) {
        let mut begun = begun.get(&of.client).into_iter().flatten();
        let is_near = |begun_ns: &u64| begun_ns.abs_diff(of.first_ns) <= PASSED_ON_NS;
        passed_on += usize::from(begun.any(is_near));
        all += 1;
    }
    match passed_on as f64 > PASSED_ON * all as f64 {
        true => Kind::Forwarder,
        false => Kind::Proxy,
    }
}

/// Those to endpoints that are sorted.
fn connections_to<'a>(
    recording: &'a Recording,
    endpoints: &'a [SocketAddr],
) -> impl Iterator<Item = &'a Connection> {
    let connections = recording.connections.iter().filter(|of| of.asked);
    connections.filter(|of| endpoints.binary_search(&of.server).is_ok())
}

fn method(recording: &Recording, servers: &[SocketAddr], kind: Kind) -> Method {
    let mut opened: Vec<(u64, IpAddr, usize)> = recording
        .connections
        .iter()
        .filter(|of| of.opened && of.asked)
        .filter_map(|of| {
            let server = servers.iter().position(|server| *server == of.server)?;
            Some((of.first_ns, of.client.ip(), server))
        })
        .collect();
    if opened.len() < MAPPED || servers.len() < 2 {
        return Method::Unknown;
    }
    opened.sort_unstable();
    if kind == Kind::Forwarder && by_address(&opened, servers.len()) {
        return Method::ClientAddress;
    }
    match by_turns(&opened, servers.len()) {
        true => Method::Turns,
        false => Method::Connection,
    }
}

/// Whether the pick behind that of each server is mostly one and the same.
fn by_turns(opened: &[(u64, IpAddr, usize)], servers: usize) -> bool {
    let mut follows = vec![vec![0_usize; servers]; servers];
    for pair in opened.windows(2) {
        follows[pair[0].2][pair[1].2] += 1;
    }
    let usual: usize = follows.iter().filter_map(|of| of.iter().max()).sum();
    // SYNs that come in one moment may be passed on in another order.
    usual as f64 >= 0.8 * (opened.len() - 1) as f64
}

/// Whether each client's connections go to one server, though they would not by chance.
fn by_address(opened: &[(u64, IpAddr, usize)], servers: usize) -> bool {
    let mut last: BTreeMap<IpAddr, usize> = BTreeMap::new();
    let (mut same, mut again) = (0_usize, 0_usize);
    let mut shares = vec![0_usize; servers];
    for (_, client, server) in opened {
        shares[*server] += 1;
        if let Some(before) = last.insert(*client, *server) {
            again += 1;
            same += usize::from(before == *server);
        }
    }
    let all = opened.len() as f64;
    let chance: f64 = shares.iter().map(|&n| (n as f64 / all).powi(2)).sum();
    again >= MAPPED / 2 && same as f64 >= RULE * again as f64 && chance <= BY_CHANCE
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_core::estimate::Tally;

    fn at(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], port))
    }

    fn connection(client: SocketAddr, server: SocketAddr, at_ns: u64) -> Connection {
        Connection {
            client,
            server,
            first_ns: at_ns,
            last_ns: at_ns + 1,
            opened: true,
            timestamps: true,
            ended: true,
            reset: false,
            asked: true,
            requests: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// 90 connections to a front, each with one from `source` to the server of `pick`.
    fn recorded(source: impl Fn(u16) -> SocketAddr, pick: impl Fn(u16) -> u16) -> Recording {
        let both = |n: u16| {
            let server = at(10 + pick(n) as u8, 8080);
            let when_ns = 10 * u64::from(n);
            [
                connection(client(n), at(1, 80), when_ns),
                connection(source(n), server, when_ns + 1),
            ]
        };
        Recording {
            connections: (0..90).flat_map(both).collect(),
            ..Recording::default()
        }
    }

    fn client(n: u16) -> SocketAddr {
        at(200 + (n % 7) as u8, 30_000 + n)
    }

    #[test]
    fn a_proxy_is_known_by_its_own_addresses() {
        let proxy = |n| at(2, 40_000 + n);
        let pool = ExistingBalancer::find(&recorded(proxy, |n| n % 3), &[]);
        assert_eq!((pool.kind, pool.method), (Kind::Proxy, Method::Turns));
        assert_eq!(pool.fronts, [at(1, 80)]);
        assert_eq!(pool.servers, [at(10, 8080), at(11, 8080), at(12, 8080)]);
        let uneven = ExistingBalancer::find(&recorded(proxy, |n| n * n % 11 % 3), &[]);
        assert_eq!(uneven.method, Method::Connection);
    }

    #[test]
    fn a_forwarder_keeps_the_clients_addresses() {
        let pool = ExistingBalancer::find(&recorded(client, |n| n % 7 % 3), &[]);
        assert_eq!(
            (pool.kind, pool.method),
            (Kind::Forwarder, Method::ClientAddress)
        );
        let turns = ExistingBalancer::find(&recorded(client, |n| n % 3), &[]);
        assert_eq!((turns.kind, turns.method), (Kind::Forwarder, Method::Turns));
    }

    /// What a proxy's host has besides: its log goes to another host, and one whom it serves asks
    /// a server directly, as monitors do.
    #[test]
    fn a_proxy_stays_one_where_addresses_overlap() {
        let proxy = |n| at(2, 40_000 + n);
        let named = ["10.0.0.8/29".parse().unwrap()];
        let mut recording = recorded(proxy, |n| n % 3);
        recording
            .connections
            .push(connection(at(2, 50_000), at(99, 6514), 5));
        let pool = ExistingBalancer::find(&recording, &named);
        assert_eq!((pool.kind, pool.method), (Kind::Proxy, Method::Turns));
        assert_eq!(pool.fronts, [at(1, 80)]);
        recording
            .connections
            .push(connection(at(200, 50_000), at(10, 8080), 6));
        for wanted in [&named[..], &[]] {
            let pool = ExistingBalancer::find(&recording, wanted);
            assert_eq!((pool.kind, pool.method), (Kind::Proxy, Method::Turns));
            assert!(pool.fronts.contains(&at(1, 80)), "{:?}", pool.fronts);
        }
        // It has many connections to a server that is not named, from the same ports long before.
        let early = recording
            .connections
            .iter()
            .filter(|of| of.client.ip() == at(2, 0).ip());
        let early: Vec<Connection> = early
            .map(|of| connection(of.client, at(77, 8080), of.first_ns))
            .collect();
        for of in &mut recording.connections {
            of.first_ns += 60_000_000_000;
        }
        recording.connections.extend(early);
        assert_eq!(ExistingBalancer::find(&recording, &named).kind, Kind::Proxy);
    }

    #[test]
    fn a_forwarder_that_checks_its_servers_stays_one() {
        let mut recording = recorded(client, |n| n % 3);
        let checks = (0..1000).map(|n| connection(at(2, 1_000 + n), at(10, 8080), u64::from(n)));
        recording.connections.extend(checks);
        let named = ["10.0.0.8/29".parse().unwrap()];
        let pool = ExistingBalancer::find(&recording, &named);
        assert_eq!(
            (pool.kind, &pool.fronts[..]),
            (Kind::Forwarder, &[at(1, 80)][..])
        );
    }

    #[test]
    fn what_is_named_is_taken_and_one_side_alone_tells_no_kind() {
        let recording = recorded(|n| at(2, 40_000 + n), |n| n % 3);
        let named = ["10.0.0.10", "10.0.0.11"].map(|text| text.parse().unwrap());
        let pool = ExistingBalancer::find(&recording, &named);
        assert_eq!(pool.servers, [at(10, 8080), at(11, 8080)]);
        assert_eq!(pool.fronts, [at(1, 80)], "no client connects to the third");
        let behind = Recording {
            connections: recording
                .connections
                .into_iter()
                .filter(|of| of.server.port() == 8080)
                .collect(),
            ..Recording::default()
        };
        let pool = ExistingBalancer::find(&behind, &[]);
        assert_eq!((pool.kind, pool.servers.len()), (Kind::Unknown, 3));
        assert_eq!(
            ExistingBalancer::find(&Recording::default(), &[]).servers,
            []
        );
    }
}
