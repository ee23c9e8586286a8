// SPDX-License-Identifier: Apache-2.0
//! The balancers of a fleet, and the order in which a change reaches them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_api::fleet::{Agreement, FleetView};
use causeway_dataplane::Protocol;

use super::bgp::Bird;
use super::etcd::Etcd;
use super::routes;
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::clock::until;
use crate::scenario::bench::{PORT, QUIC_PORT};
use crate::scenario::connections::SharedKeys;
use crate::topology::{self, Node};

/// TCP and QUIC, IPv4 and IPv6.
const VIPS: usize = 4;

/// How long the others may take to see that a balancer has left.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Until packets that were on their way to a balancer have come.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// What a balancer's configuration says of what changes in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pool {
    /// Servers in its file: from here ...
    pub drained: usize,
    /// ... to here.
    pub known: usize,
    /// Configurations of connection ids.
    pub quic_configs: u8,
}

/// One balancer and its router daemon.
pub(super) struct Member {
    node: Node,
    /// The router's port to it.
    port: String,
    bird: Bird,
    balancer: Option<Balancer>,
    /// What its file says.
    has: Option<Pool>,
    /// Nothing new reaches it.
    pub late: bool,
}

/// All of them.
pub(super) struct Fleet<'a> {
    binary: &'a Path,
    router: &'a Node,
    servers: &'a [Node],
    keys: &'a SharedKeys,
    /// Where they share a book.
    pub store: Etcd,
    pub members: Vec<Member>,
}

impl<'a> Fleet<'a> {
    /// Starts a balancer on each node.
    pub(super) fn start(
        binary: &'a Path,
        topology: &'a topology::Topology,
        nodes: &[Node],
        keys: &'a SharedKeys,
        store: Etcd,
        pool: Pool,
    ) -> Result<Self> {
        let mut fleet = Self {
            binary,
            router: &topology.router,
            servers: &topology.servers,
            keys,
            store,
            members: Vec::new(),
        };
        for (index, node) in nodes.iter().enumerate() {
            fleet.members.push(Member {
                node: node.clone(),
                port: match index {
                    0 => "lb".to_owned(),
                    _ => format!("lb{index}"),
                },
                bird: Bird::on_balancer(node, fleet.router)?,
                balancer: None,
                has: None,
                late: false,
            });
            fleet.join(index, pool)?;
            if index == 0 {
                fleet.balancer(0)?.cli(&["fleet", "found"])?;
            }
        }
        Ok(fleet)
    }

    /// A balancer that knows nothing comes into service.
    pub(super) fn join(&mut self, index: usize, pool: Pool) -> Result<()> {
        let settings = self.settings(index, pool)?;
        let router = self.router.netns.clone();
        let member = &mut self.members[index];
        router.ip(&format!("link set {} up", member.port))?;
        if member.balancer.is_none() {
            member.balancer = Some(Balancer::start(self.binary, &member.node, &settings)?);
            member.has = Some(pool);
        }
        Ok(())
    }

    /// Its machine is cut off, and everything on it dies.
    pub(super) fn crash(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        self.router
            .netns
            .ip(&format!("link set {} down", member.port))?;
        member.bird.kill();
        let mut balancer = member.balancer.take().context("it is away already")?;
        balancer.kill()?;
        balancer.detach()?;
        member.has = None;
        // It will come back with nothing to say until its balancer has.
        member.bird.restart()?;
        // Its operator knows that it gets no packets; the others cannot.
        let name = name(index);
        let other = self.members.iter().filter(|other| !other.late);
        let other = other.filter_map(|other| other.balancer.as_ref()).next();
        let other = other.context("no balancer is left")?;
        other.cli(&["fleet", "pass-by", &name, "--yes"])?;
        Ok(())
    }

    /// Withdrawn first, it forwards until nothing comes any more.
    pub(super) fn leave(&mut self, index: usize) -> Result<()> {
        self.balancer(index)?.cli(&["fleet", "leave"])?;
        let deadline = Instant::now() + TIMEOUT;
        // Its own last book has it still.
        let name = name(index);
        let knows = |view: &FleetView| {
            view.member != name && view.members.iter().any(|own| own.name == name)
        };
        while self.views()?.iter().any(knows) {
            ensure!(
                Instant::now() < deadline,
                "balancer {index} is not passed by"
            );
            sleep(Duration::from_millis(50));
        }
        self.end(index)
    }

    fn end(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        let mut balancer = member.balancer.take().context("it is away already")?;
        balancer.terminate()?;
        member.bird.withdraw()?;
        let through = format!("dev {} ", member.port);
        let is_withdrawn = || {
            let routes = routes(self.router)?;
            Ok((!routes.iter().any(|routes| routes.contains(&through))).then_some(()))
        };
        until(TIMEOUT, is_withdrawn)?.context("the router keeps its routes")?;
        sleep(UNDER_WAY);
        member.has = None;
        balancer.detach()
    }

    /// Its daemon is replaced by that of `binary`.
    pub(super) fn upgrade(&mut self, index: usize, binary: &Path) -> Result<()> {
        let balancer = self.balancer(index)?;
        balancer.terminate()?;
        balancer.restart_as(binary)
    }

    /// Its daemon is killed and started again.
    pub(super) fn kill(&mut self, index: usize) -> Result<()> {
        let balancer = self.balancer(index)?;
        balancer.kill()?;
        balancer.restart()
    }

    /// Every balancer that can be reached gets what has changed.
    pub(super) fn apply(&mut self, pool: Pool) -> Result<()> {
        for index in 0..self.members.len() {
            let member = &self.members[index];
            if member.late || member.balancer.is_none() || member.has == Some(pool) {
                continue;
            }
            let settings = self.settings(index, pool)?;
            // What of it is in force, and when, is the book's to say.
            let balancer = self.balancer(index)?;
            balancer.write_config(&settings)?;
            balancer.reload_now()?;
            self.members[index].has = Some(pool);
        }
        Ok(())
    }

    /// Every balancer that can be reached reads its file and its keys again.
    pub(super) fn reload(&mut self) -> Result<()> {
        let reached = self.members.iter().filter(|member| !member.late);
        let balancers = reached.filter_map(|member| member.balancer.as_ref());
        // One signal each: another would be handled when the files are later ones already.
        let before: Vec<_> = balancers
            .map(|balancer| (balancer, balancer.reloads()))
            .collect();
        before
            .iter()
            .try_for_each(|(balancer, _)| balancer.reload())?;
        before
            .into_iter()
            .try_for_each(|(balancer, before)| balancer.wait_for_reload(before))
    }

    /// Whether all balancers in service have the same ids and keys.
    pub(super) fn agrees(&self) -> Result<bool> {
        let balancers = self
            .members
            .iter()
            .filter_map(|member| member.balancer.as_ref());
        let told = balancers
            .map(|balancer| {
                let mut told: Agreement = api::get(&balancer.socket(), "/v1/agreement")?;
                // Of plain clients alone, and none of them waits.
                told.items.retain(|item| item.what != "weights");
                Ok(told.items)
            })
            .collect::<Result<Vec<_>>>()?;
        ensure!(
            told.iter().all(|items| !items.is_empty()),
            "a balancer has nothing to agree on"
        );
        Ok(told.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// Nothing new reaches a balancer, not even from the store; or it does again.
    pub(super) fn lag(&mut self, index: usize, late: bool) -> Result<()> {
        let member = &mut self.members[index];
        member.late = late;
        Etcd::cut(&member.node, late)
    }

    /// How the fleet stands for each balancer.
    fn views(&self) -> Result<Vec<FleetView>> {
        let balancers = self.members.iter();
        let balancers = balancers.filter_map(|member| member.balancer.as_ref());
        balancers
            .map(|balancer| api::get(&balancer.socket(), "/v1/fleet"))
            .collect()
    }

    /// Whether all balancers are at the same book in service, with this key issued, these
    /// servers' ids live, and nothing that waits for one of them.
    pub(super) fn is_settled(&self, key: u64, pool: Pool) -> Result<bool> {
        let views = self.views()?;
        let wanted = pool.known - pool.drained;
        let cid = pool.quic_configs.checked_sub(1);
        let is_settled = |view: &FleetView| {
            let live = view.ids.iter().filter(|id| id.phase == "live").count();
            view.in_service
                && view.store_error.is_none()
                && view.hold.is_none()
                && view
                    .waiting
                    .iter()
                    .all(|wait| wait.members.is_empty() && wait.agents.is_empty())
                && view.key_issued == key
                && view.quic_cids.iter().all(|own| own.issued == cid)
                && view.applied == views[0].applied
                && live == wanted * VIPS
        };
        Ok(views.iter().all(is_settled))
    }

    /// Waits until the agents of all servers of the pool follow the book, as all balancers report.
    pub(super) fn wait_for_agents(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let follow = |view: &FleetView| {
            let mut agents = view.agents.iter();
            view.in_service
                && !view.agents.is_empty()
                && agents.all(|agent| agent.acknowledged == view.book)
        };
        loop {
            let views = self.views()?;
            if views.iter().all(follow) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "agents do not go by the book: {:?}",
                views.iter().map(|view| &view.agents).collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(50));
        }
    }

    /// What each balancer has done with packets since its program was loaded.
    pub(super) fn verdicts(&self) -> Result<Vec<(String, BTreeMap<String, u64>)>> {
        let members = self.members.iter().enumerate();
        let in_service =
            members.filter_map(|(index, member)| Some((index, member.balancer.as_ref()?)));
        in_service
            .map(|(index, balancer)| {
                let stats = api::stats(&balancer.socket())?;
                let verdicts = api::occurred(&stats.verdicts).into_iter();
                Ok((
                    name(index),
                    verdicts
                        .map(|(word, count)| (word.to_owned(), count))
                        .collect(),
                ))
            })
            .collect()
    }

    /// Ends everything, as operators do.
    pub(super) fn stop(mut self) -> Result<()> {
        (0..self.members.len()).try_for_each(|index| self.end(index))
    }

    fn balancer(&mut self, index: usize) -> Result<&mut Balancer> {
        let balancer = self.members[index].balancer.as_mut();
        balancer.with_context(|| format!("balancer {index} is away"))
    }

    fn settings(&self, index: usize, pool: Pool) -> Result<BalancerSettings> {
        let quic = (0..pool.quic_configs).map(|number| self.keys.quic_cid(number));
        let quic = quic.collect::<Result<Vec<_>>>()?.join(", ");
        let vip = |address: IpAddr, protocol| {
            let (port, key) = match protocol {
                Protocol::Tcp => (PORT, "cookie = \"timestamp\"".to_owned()),
                Protocol::Udp => (QUIC_PORT, format!("quic_cid = [{quic}]")),
            };
            VipEntry {
                address,
                port,
                protocol,
                scheduler: "round-robin".to_owned(),
                keys: vec![key],
                forwarding: ServerForwarding::Ipip,
                reals: self
                    .servers
                    .iter()
                    .take(pool.known)
                    .skip(pool.drained)
                    .map(|node| RealEntry::of(node, address))
                    .collect(),
            }
        };
        let vips = [topology::vip4(0).into(), topology::vip6(0).into()]
            .into_iter()
            .flat_map(|address| [vip(address, Protocol::Tcp), vip(address, Protocol::Udp)]);
        let hears = agents_address(&self.members[index].node);
        let head = vec![
            SharedKeys::hash_key_line(),
            self.members[index].bird.announce(),
            format!("[cookie]\nkeys = \"{}\"", self.keys.cookies().display()),
            format!("[agent_reports]\nlisten = \"{hears}\""),
            Etcd::fleet(&name(index)),
        ];
        Ok(BalancerSettings {
            vips: vips.collect(),
            head,
            ..BalancerSettings::default()
        })
    }
}

/// Where a balancer listens for agents.
pub(super) fn agents_address(node: &Node) -> SocketAddr {
    (node.ipv4, 9472).into()
}

/// What a balancer is called in its fleet.
fn name(index: usize) -> String {
    format!("lb{index}")
}
