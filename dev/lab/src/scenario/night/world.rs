// SPDX-License-Identifier: Apache-2.0
//! A balancer at work: connections that are open through the whole night, new ones all the
//! while, things set by hand, and what must be true after every trouble.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_api::balancer::{Override, Status};
use serde_json::Value;

use super::super::bench::{Bench, PORT};
use super::super::connections::{SharedKeys, with_ids};
use super::super::daemon_process::DaemonProcess;
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::clock::until;
use crate::load::{LoadConfig, RunningLoad};
use crate::scenario::Context;
use crate::topology::{DEVICE, vip4};
use crate::{api, link};

pub(super) const SERVERS: usize = 3;
/// VIPs by what remembers their connections, and one that comes and goes.
const COOKIES: usize = 0;
pub(super) const TABLE: usize = 1;
const GUEST: usize = 2;
/// The server whose weight is set by hand, and the one that is drained.
const WEIGHED: usize = 1;
pub(super) const DRAINED: usize = 2;
const WEIGHT: u32 = 77;
/// How long loads last at most: they are given up with the world.
const ALL_NIGHT_MS: u64 = 24 * 3600 * 1000;
/// What clients wait for before a connection counts as broken: an interface may be away for
/// seconds, and TCP then waits as long again.
const CLIENT_TIMEOUT_MS: u64 = 30_000;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct World<'a> {
    pub context: &'a Context,
    pub bench: Bench,
    pub keys: SharedKeys,
    pub balancer: Balancer,
    /// What strace writes, and what is tried out.
    pub scratch: tempfile::TempDir,
    _agents: Vec<AgentProcess>,
    live: Option<Vec<(&'static str, RunningLoad)>>,
    /// All pins there are while the balancer runs.
    pins: BTreeSet<String>,
    /// The last order given by `real drain`.
    pub drained: bool,
    /// Whether it was asked for what it has not confirmed: either will do.
    pub may_be_drained: bool,
    /// Whether the file has the VIP that comes and goes.
    pub has_guest: bool,
    /// Whether state is torn at each kill, as a file that is not replaced in one step would be.
    tears_state: bool,
}

impl<'a> World<'a> {
    /// Starts the balancer and sets a weight by hand.
    pub(super) fn build(context: &'a Context, planted: &str) -> Result<Self> {
        let bench = Bench::build(context.sandbox, 2, SERVERS)?;
        // What the balancer itself sends meets an XDP program at the far end of a veth,
        // which loses checksums that are left to the device.
        let netns = &bench.topology.balancer.netns;
        netns.run(|| Ok(link::set_tx_checksum(DEVICE, false)?))?;
        let keys = SharedKeys::with_cookies(&context.binary)?;
        let agents = (0..SERVERS)
            .map(|index| bench.agent(&context.binary, index, &keys.cookies_of_agent(index)))
            .collect::<Result<_>>()?;
        let balancer = bench.balancer(&context.binary, &settings(&bench, &keys, false))?;
        let mut world = Self {
            context,
            bench,
            keys,
            balancer,
            scratch: tempfile::tempdir()?,
            _agents: agents,
            live: None,
            pins: BTreeSet::new(),
            drained: false,
            may_be_drained: false,
            has_guest: false,
            tears_state: planted == "torn-state",
        };
        world.pins = pins(Path::new("/sys/fs/bpf"))?;
        world.set_by_hand()?;
        Ok(world)
    }

    /// The weight that every successor must know.
    pub(super) fn set_by_hand(&self) -> Result<()> {
        let real = self.real(WEIGHED);
        let weight = WEIGHT.to_string();
        self.balancer
            .cli(&["real", "weight", "table", &real, &weight])
            .map(drop)
    }

    pub(super) fn real(&self, server: usize) -> String {
        self.bench.topology.servers[server].ipv4.to_string()
    }

    /// Opens the connections that are open from now on, and has new ones come.
    pub(super) fn begin_load(&mut self) -> Result<()> {
        let kinds = [
            ("cookies", COOKIES, u64::MAX),
            ("table", TABLE, u64::MAX),
            ("new with cookies", COOKIES, 400),
            ("new by the table", TABLE, 400),
        ];
        let start = |(name, vip, max_age_ms)| {
            let config = LoadConfig {
                duration_ms: ALL_NIGHT_MS,
                slots: 4,
                max_age_ms: std::cmp::min(max_age_ms, ALL_NIGHT_MS),
                timeout_ms: CLIENT_TIMEOUT_MS,
                ..LoadConfig::new((vip4(vip), PORT).into(), self.context.seed)
            };
            Ok((name, self.bench.load(&config)?))
        };
        self.live = Some(kinds.into_iter().map(start).collect::<Result<_>>()?);
        self.wait_for_answers().map(drop)
    }

    /// Answers that every load has had so far.
    pub(super) fn answers(&self) -> u64 {
        let loads = self.live.iter().flatten();
        loads.map(|(_, load)| load.progress().requests()).sum()
    }

    /// What broke, by load.
    pub(super) fn broken(&self) -> Vec<String> {
        let loads = self.live.iter().flatten();
        let broken = loads.map(|(name, load)| (name, load.progress().broken()));
        broken
            .filter(|(_, broken)| *broken > 0)
            .map(|(name, broken)| format!("{broken} connections broke: {name}"))
            .collect()
    }

    /// Waits until every load has been answered again: how long that took.
    pub(super) fn wait_for_answers(&self) -> Result<Duration> {
        let loads = || self.live.iter().flatten();
        let so_far = || loads().map(|(_, load)| load.progress().requests());
        let before: Vec<u64> = so_far().collect();
        let began = Instant::now();
        while !so_far().zip(&before).all(|(now, before)| now > *before) {
            ensure!(
                began.elapsed() < TIMEOUT,
                "no packet is forwarded for {TIMEOUT:?} {:?}",
                self.broken()
            );
            sleep(Duration::from_millis(5));
        }
        Ok(began.elapsed())
    }

    /// Writes the file with the VIP that comes and goes, or without.
    pub(super) fn write_config(&mut self, with_guest: bool) -> Result<()> {
        self.has_guest = with_guest;
        let settings = settings(&self.bench, &self.keys, with_guest);
        self.balancer.write_config(&settings)
    }

    pub(super) fn status(&self) -> Result<Status> {
        api::get(&self.balancer.socket(), "/v1/status")
    }

    pub(super) fn process(&self) -> Result<DaemonProcess> {
        DaemonProcess::of(self.balancer.pid().context("the balancer does not run")?)
    }

    /// What the metrics say under this name, of the first that begins so.
    pub(super) fn metric(&self, name: &str) -> Result<f64> {
        let page = api::get_text(&self.balancer.socket(), "/metrics")?;
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.with_context(|| format!("no metric {name}"))
    }

    /// The planted fault, if it is wanted: half of what was kept.
    pub(super) fn plant(&self) -> Result<()> {
        let state = self.balancer.state_dir().join("state.json");
        if self.tears_state && state.exists() {
            let whole = fs::read(&state)?;
            fs::write(&state, &whole[..whole.len() / 2])?;
        }
        Ok(())
    }

    /// Waits until balancer and agents have pinned again what was pinned.
    pub(super) fn wait_for_pins(&self) -> Result<()> {
        self.until("the pins that there were", || {
            Ok(pins(Path::new("/sys/fs/bpf"))? == self.pins)
        })
    }

    /// What is wrong while a balancer runs behind a trouble.
    pub(super) fn faults(&self) -> Result<Vec<String>> {
        let mut faults = self.broken();
        if self.set_by_hand_of(WEIGHED, "weight")? != Some(WEIGHT.into()) {
            faults.push("the weight set by hand is lost".to_owned());
        }
        if self.is_drained()? != self.drained {
            faults.push(format!("of the drain is said {}", !self.drained));
        }
        let found = pins(Path::new("/sys/fs/bpf"))?;
        if found != self.pins {
            let more: Vec<_> = found.difference(&self.pins).collect();
            let less: Vec<_> = self.pins.difference(&found).collect();
            faults.push(format!(
                "pins that are left over {more:?}, that are not there {less:?}"
            ));
        }
        let programs = self.attached()?;
        if programs != [1, 1] {
            faults.push(format!(
                "programs at XDP and behind the stack: {programs:?}"
            ));
        }
        let file = fs::read_to_string(self.balancer.config_file())?;
        let good = fs::read_to_string(self.balancer.state_dir().join("last-good.toml"))?;
        if good.split_once('\n').map(|(_, text)| text) != Some(&file) {
            faults.push("the last good copy is not the file".to_owned());
        }
        let error = self.status()?.state_error;
        faults.extend(error.map(|error| format!("the state is not kept: {error}")));
        Ok(faults)
    }

    /// Whether the daemon knows of the drain.
    pub(super) fn is_drained(&self) -> Result<bool> {
        Ok(self.set_by_hand_of(DRAINED, "drain")?.is_some())
    }

    fn set_by_hand_of(&self, server: usize, key: &str) -> Result<Option<Value>> {
        let kept: Vec<Override> = api::get(&self.balancer.socket(), "/v1/overrides")?;
        let real = self.real(server);
        let mut kept = kept.into_iter();
        let found = kept.find(|row| row.vip == "table" && row.real == real && row.key == key);
        Ok(found.map(|row| row.value))
    }

    /// How many programs are on the interface: XDP, and those behind the stack, where probes are sent.
    fn attached(&self) -> Result<[usize; 2]> {
        let netns = &self.bench.topology.balancer.netns;
        let count = |mut command: Command, word: &str| {
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            anyhow::Ok(text.matches(word).count())
        };
        let mut link = netns.command("ip");
        link.args(["-d", "link", "show", DEVICE]);
        let mut filters = netns.command("tc");
        filters.args(["filter", "show", "dev", DEVICE, "egress"]);
        let linked = netns.run(|| Ok(link::linked_egress(DEVICE)?))?;
        let filters = count(filters, " handle ")?;
        Ok([count(link, "prog/xdp")?, linked + filters])
    }

    /// One answer through the VIP, by a connection of its own.
    pub(super) fn fetch(&self) -> Result<()> {
        let client = &self.bench.topology.clients[0].netns;
        let config = LoadConfig {
            duration_ms: 3_600_000,
            page_interval_ms: 20,
            slots: 2,
            ..LoadConfig::new((vip4(TABLE), PORT).into(), self.context.seed)
        };
        let mut load = crate::load::start(std::slice::from_ref(client), &config)?;
        let served = until(TIMEOUT, || {
            let progress = load.progress();
            Ok((progress.requests() + progress.broken() > 0).then_some(()))
        })?;
        load.stop();
        let log = load.finish()?;
        ensure!(served.is_some(), "no client was served within {TIMEOUT:?}");
        let answered = !log.responses.is_empty() && log.faults().is_empty();
        ensure!(answered, "a client was not served: {:?}", log.faults());
        Ok(())
    }

    /// Waits until `done`.
    pub(super) fn until(&self, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let done = until(TIMEOUT, || Ok(done()?.then_some(())))?;
        done.with_context(|| {
            let messages = self.balancer.messages();
            format!("not within {TIMEOUT:?}: {what}; {messages}")
        })
    }
}

fn settings(bench: &Bench, keys: &SharedKeys, with_guest: bool) -> BalancerSettings {
    let named = |vip, name: &str| {
        let mut vip: VipEntry = bench.vip4(vip, "maglev", ServerForwarding::Ipip);
        vip.keys.push(format!("name = \"{name}\""));
        vip
    };
    let mut table = named(TABLE, "table");
    table.keys.extend([
        "cookie = \"none\"".to_owned(),
        "health = { probe = \"tcp\", interval = \"500ms\", timeout = \"400ms\" }".to_owned(),
    ]);
    if with_guest {
        table.reals[0].weight = 200;
    }
    let guest = with_guest.then(|| named(GUEST, "guest"));
    let cookies = with_ids(named(COOKIES, "cookies"));
    BalancerSettings {
        head: vec![keys.balancer_lines()],
        vips: [cookies, table].into_iter().chain(guest).collect(),
        ..BalancerSettings::default()
    }
}

/// Everything below a directory, by path, but for what the kernel puts there.
fn pins(directory: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            found.extend(pins(&path)?);
        }
        if path.extension().is_none_or(|of| of != "debug") {
            found.insert(path.display().to_string());
        }
    }
    Ok(found)
}
