// SPDX-License-Identifier: Apache-2.0
//! What a balancer stands on fails and comes back: the disk, the BPF file system, the interface,
//! and the place that it has to itself. Connections that are open live through each.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use super::world::{DRAINED, World};
use crate::api;
use crate::topology::{BACK_MTU, DEVICE};

const TIMEOUT: Duration = Duration::from_secs(60);
/// What the daemon's memory may grow by: its history fills in ten minutes.
const RSS_GROWTH_KIB: u64 = 24 * 1024;
const BPFFS: &str = "/sys/fs/bpf";

/// A trouble and its end.
#[derive(Clone, Copy)]
struct Trouble {
    name: &'static str,
    /// Lives through it; gives what was said of it.
    run: fn(&mut World<'_>) -> Result<String>,
    /// Whether only a successor shows that it is over.
    needs_successor: bool,
}

const fn trouble(name: &'static str, run: fn(&mut World<'_>) -> Result<String>) -> Trouble {
    Trouble {
        name,
        run,
        needs_successor: false,
    }
}

const fn heritable(name: &'static str, run: fn(&mut World<'_>) -> Result<String>) -> Trouble {
    Trouble {
        needs_successor: true,
        ..trouble(name, run)
    }
}

const TROUBLES: [Trouble; 14] = [
    heritable("disk full", disk_full),
    heritable("state read-only", state_read_only),
    heritable("pins deleted", pins_deleted),
    heritable("bpffs unmounted", bpffs_unmounted),
    trouble("interface down and up", down_and_up),
    trouble("interface renamed", renamed),
    heritable("interface made anew", made_anew),
    trouble("interface in another namespace and back", moved_away),
    trouble("IPv4 address changed", |world| {
        address_changed(world, "10.20.0.2/24", "10.20.0.7/24")
    }),
    trouble("IPv6 address changed", |world| {
        address_changed(world, "fd20::2/64", "fd20::7/64")
    }),
    trouble("MTU changed", mtu_changed),
    trouble("two daemons, one socket", |world| {
        second(world, Second::Socket)
    }),
    trouble("two daemons, one pin_dir", |world| {
        second(world, Second::Pins)
    }),
    trouble("two daemons, one interface", |world| {
        second(world, Second::Interface)
    }),
];

/// Those whose names are chosen.
fn choose(chosen: &str) -> Result<Vec<Trouble>> {
    let of = |name: &str| {
        let found = TROUBLES.into_iter().find(|known| known.name == name);
        let known = || TROUBLES.map(|known| known.name).join(", ");
        found.with_context(|| format!("no trouble is called {name:?}; there are {}", known()))
    };
    match chosen {
        "all" => Ok(TROUBLES.to_vec()),
        "none" => Ok(Vec::new()),
        _ => chosen.split('+').map(of).collect(),
    }
}

/// Lives through those whose names are chosen, each once.
pub(super) fn run(world: &mut World<'_>, chosen: &str) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for trouble in choose(chosen)? {
        let name = trouble.name;
        let began = Instant::now();
        let said = (trouble.run)(world).with_context(|| format!("trouble {name}"))?;
        let paused = world.wait_for_answers()?;
        if trouble.needs_successor {
            succeed(world)?;
        }
        let faults = world.faults()?;
        world.context.say(format!("{name}: {said} {faults:?}"));
        rows.push(json!({
            "trouble": name, "said": said, "faults": faults,
            "lasted_s": began.elapsed().as_secs_f64(), "answered_after_s": paused.as_secs_f64(),
        }));
    }
    Ok(rows)
}

/// Lives through all of them again and again with one process, between reloads, drains and
/// readers, and looks what that process holds.
pub(super) fn endure(world: &mut World<'_>, lasts: Duration) -> Result<Value> {
    let began = Instant::now();
    let (mut rounds, mut looks, mut faults) = (0_u64, Vec::new(), Vec::new());
    while began.elapsed() < lasts && faults.is_empty() {
        for trouble in TROUBLES {
            world.write_config(!world.has_guest)?;
            world.balancer.reload_now()?;
            world.toggle_drain()?;
            api::history(&world.balancer.socket())?;
            (trouble.run)(world).with_context(|| format!("trouble {}", trouble.name))?;
            world.wait_for_answers()?;
            faults.extend(world.faults()?);
        }
        rounds += 1;
        // The VIPs of every look are the same.
        world.write_config(false)?;
        world.balancer.reload_now()?;
        let held = world.process()?;
        looks.push((began.elapsed().as_secs(), held));
        world
            .context
            .say(format!("round {rounds}: {held:?} {faults:?}"));
    }
    if let [(_, first), .., (_, last)] = looks[..] {
        let grown = last.rss_kib.saturating_sub(first.rss_kib);
        faults.extend((grown > RSS_GROWTH_KIB).then(|| format!("the daemon grew by {grown} KiB")));
        for (what, first, last) in [
            (
                "descriptors",
                first.descriptors as u64,
                last.descriptors as u64,
            ),
            ("maps", first.maps as u64, last.maps as u64),
            ("bytes of maps", first.maps_bytes, last.maps_bytes),
            ("entries of maps", first.entries as u64, last.entries as u64),
        ] {
            faults.extend((last > first).then(|| format!("{what} grew from {first} to {last}")));
        }
    }
    Ok(json!({
        "rounds": rounds, "lasted_s": began.elapsed().as_secs(), "answers": world.answers(),
        "process": looks, "faults": faults,
    }))
}

impl World<'_> {
    /// Sets the drain, or takes it back.
    fn toggle_drain(&mut self) -> Result<()> {
        let real = self.real(DRAINED);
        let undo = self.drained.then_some("--undo");
        let words = ["real", "drain", "table", &real, "--yes"];
        let words: Vec<&str> = words.into_iter().chain(undo).collect();
        self.balancer.cli(&words)?;
        self.drained = !self.drained;
        Ok(())
    }

    fn ip(&self, script: &str) -> Result<()> {
        self.bench.topology.balancer.netns.ip(script)
    }

    /// What the log has said since then that holds this word.
    fn said_since(&self, before: usize, word: &str) -> Result<String> {
        let mut found = None;
        self.until(&format!("a line with {word:?}"), || {
            let log = self.balancer.messages();
            let mut lines = log[before..].lines();
            found = lines.find(|line| line.contains(word)).map(str::to_owned);
            Ok(found.is_some())
        })?;
        let line = found.unwrap_or_default();
        // Behind the time and the level.
        let said = line.split_whitespace().skip(2).collect::<Vec<_>>();
        Ok(said.join(" "))
    }

    fn logged(&self) -> usize {
        self.balancer.messages().len()
    }

    fn until_attached(&self, attached: bool) -> Result<()> {
        let wanted = f64::from(u8::from(attached));
        self.until("causeway_data_plane_up", || {
            Ok(self.metric("causeway_data_plane_up")? == wanted)
        })
    }
}

/// A drain that is set while the state cannot be written: the daemon says so and goes on; once
/// there is room, the drain is there for the next.
fn while_nothing_can_be_written(
    world: &mut World<'_>,
    hinder: &dyn Fn(&Path) -> Result<()>,
    relent: &dyn Fn(&Path) -> Result<()>,
) -> Result<String> {
    let state = world.balancer.state_dir();
    let before = world.logged();
    hinder(&state)?;
    world.toggle_drain()?;
    world.write_config(!world.has_guest)?;
    world.balancer.reload_now()?;
    let said = world.said_since(before, "would not outlive the daemon")?;
    ensure!(
        world.metric("causeway_state_kept")? == 0.0,
        "the metric says nothing"
    );
    ensure!(
        world.status()?.state_error.is_some(),
        "the status says nothing"
    );
    relent(&state)?;
    world.until("the state is kept", || {
        Ok(world.metric("causeway_state_kept")? == 1.0)
    })?;
    world.balancer.kill()?;
    world.balancer.restart()?;
    Ok(said)
}

fn disk_full(world: &mut World<'_>) -> Result<String> {
    let filling = |state: &Path| state.join("filling");
    let state = world.balancer.state_dir();
    let held = || -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let names = ["state.json", "last-good.toml"].into_iter();
        let held = names.map(|name| Ok((state.join(name), fs::read(state.join(name))?)));
        held.collect()
    };
    let put = |files: Vec<(PathBuf, Vec<u8>)>| {
        let mut files = files.into_iter();
        files.try_for_each(|(path, content)| fs::write(path, content))
    };
    let before = held()?;
    let size = Some("size=64k");
    mount(Some("tmpfs"), &state, Some("tmpfs"), MsFlags::empty(), size)?;
    put(before)?;
    let fill = |state: &Path| {
        // What does not fit is not written.
        let _ = fs::write(filling(state), vec![0; 1 << 20]);
        Ok(())
    };
    let clear = |state: &Path| Ok(fs::remove_file(filling(state))?);
    let said = while_nothing_can_be_written(world, &fill, &clear);
    // What it holds goes to the disk.
    let after = held()?;
    umount2(&state, MntFlags::MNT_DETACH)?;
    put(after)?;
    said
}

fn state_read_only(world: &mut World<'_>) -> Result<String> {
    let none = None::<&str>;
    let remount = |state: &Path, flags| {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags;
        Ok(mount(none, state, none, flags, none)?)
    };
    let state = world.balancer.state_dir();
    mount(Some(&state), &state, none, MsFlags::MS_BIND, none)?;
    let said = while_nothing_can_be_written(
        world,
        &|state| remount(state, MsFlags::MS_RDONLY),
        &|state| remount(state, MsFlags::empty()),
    );
    umount2(&state, MntFlags::MNT_DETACH)?;
    said
}

/// All of them; then the daemon is killed: what it pinned again holds the data plane.
fn pins_deleted(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    // Again where the daemon put some back before all were gone.
    while let Err(error) = fs::remove_dir_all(world.balancer.pin_dir()) {
        if error.kind() != ErrorKind::DirectoryNotEmpty {
            return Err(error.into());
        }
    }
    world.said_since(before, "restored")
}

fn bpffs_unmounted(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    // What is pinned there is not to end before a new one is there.
    let others = Path::new("/run/others");
    fs::create_dir_all(others)?;
    let none = None::<&str>;
    mount(Some(BPFFS), others, none, MsFlags::MS_BIND, none)?;
    umount2(BPFFS, MntFlags::MNT_DETACH)?;
    world.until_attached(false)?;
    let said = world.said_since(before, "not pinned any more")?;
    world.wait_for_answers()?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)?;
    world.until_attached(true)?;
    world.said_since(before, "restored")?;
    world.wait_for_pins()?;
    umount2(others, MntFlags::MNT_DETACH)?;
    Ok(said)
}

/// The daemon is killed and another takes over.
fn succeed(world: &mut World<'_>) -> Result<()> {
    world.balancer.kill()?;
    world.wait_for_answers()?;
    let before = world.logged();
    world.balancer.restart()?;
    world
        .said_since(before, "took over the running data plane")
        .map(drop)
}

fn down_and_up(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    world.ip(&format!("link set {DEVICE} down\n"))?;
    let said = world.said_since(before, "next hop")?;
    ensure!(
        world.metric("causeway_next_hop_up")? == 0.0,
        "the metric says nothing"
    );
    world.ip(&format!("link set {DEVICE} up\n"))?;
    world.bench.topology.address_balancer()?;
    world.until("a next hop", || {
        Ok(world.metric("causeway_next_hop_up")? == 1.0)
    })?;
    Ok(said)
}

fn renamed(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    world.ip(&format!("link set {DEVICE} name wan0\n"))?;
    world.until_attached(false)?;
    let said = world.said_since(before, "is called wan0 now")?;
    world.wait_for_answers()?;
    world.ip(&format!("link set wan0 name {DEVICE}\n"))?;
    world.until_attached(true)?;
    Ok(said)
}

fn made_anew(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    world.ip(&format!("link del {DEVICE}\n"))?;
    world.until_attached(false)?;
    let said = world.said_since(before, "is gone")?;
    world.bench.topology.renew_balancer_link()?;
    world.until_attached(true)?;
    world.said_since(before, "is there again")?;
    Ok(said)
}

fn moved_away(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    let away = world.bench.topology.clients[1].netns.name().to_owned();
    // A name that the other place does not have.
    world.ip(&format!(
        "link set {DEVICE} name away0\nlink set away0 netns {away}\n"
    ))?;
    world.until_attached(false)?;
    let said = world.said_since(before, "is gone")?;
    let back = world.bench.topology.balancer.netns.name().to_owned();
    let other = &world.bench.topology.clients[1].netns;
    other.ip(&format!("link set away0 netns {back}\n"))?;
    world.ip(&format!(
        "link set away0 name {DEVICE}\nlink set {DEVICE} up\n"
    ))?;
    world.bench.topology.address_balancer()?;
    world.until_attached(true)?;
    Ok(said)
}

/// The outer source is configured; what the kernel has is of use to probes and neighbours.
fn address_changed(world: &mut World<'_>, from: &str, to: &str) -> Result<String> {
    let errors = |world: &World<'_>| {
        let log = world.balancer.messages();
        log.lines().filter(|line| line.contains("WARN")).count()
    };
    let before = errors(world);
    let change = |from, to| format!("addr del {from} dev {DEVICE}\naddr add {to} dev {DEVICE}\n");
    world.ip(&change(from, to))?;
    world.wait_for_answers()?;
    world.ip(&change(to, from))?;
    world.bench.topology.address_balancer()?;
    Ok(format!("{} warnings", errors(world) - before))
}

fn mtu_changed(world: &mut World<'_>) -> Result<String> {
    let before = world.logged();
    world.ip(&format!("link set {DEVICE} mtu 1400\n"))?;
    world.wait_for_answers()?;
    world.ip(&format!("link set {DEVICE} mtu {BACK_MTU}\n"))?;
    let log = world.balancer.messages();
    let said = log[before..].lines().find(|line| line.contains("MTU"));
    Ok(said
        .unwrap_or("nothing: encap.mtu is configured")
        .to_owned())
}

/// What another daemon has in common with the one that runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    Socket,
    Pins,
    Interface,
}

fn second(world: &mut World<'_>, same: Second) -> Result<String> {
    let at = world.scratch.path().join("second");
    fs::create_dir_all(&at)?;
    let mut text = fs::read_to_string(world.balancer.config_file())?;
    let mut other = |key: &str, value: String| {
        let lines = text
            .lines()
            .map(|line| match line.starts_with(&format!("{key} = ")) {
                true => format!("{key} = \"{value}\""),
                false => line.to_owned(),
            });
        text = lines.collect::<Vec<_>>().join("\n");
    };
    other("state_dir", at.join("state").display().to_string());
    if same != Second::Socket {
        other("socket", at.join("lb.sock").display().to_string());
    }
    if same != Second::Pins {
        other("pin_dir", format!("{BPFFS}/second"));
    }
    let file = at.join("lb.toml");
    fs::write(&file, format!("http = false\n{text}"))?;
    let mut command: Command = world
        .bench
        .topology
        .balancer
        .netns
        .command(&world.context.binary);
    let began = Instant::now();
    let output = command
        .args(["lb", "-c"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()?;
    ensure!(began.elapsed() < TIMEOUT, "it took {:?}", began.elapsed());
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(
        !output.status.success(),
        "the second daemon was not refused"
    );
    ensure!(said.lines().count() == 1, "more than a sentence: {said}");
    api::stats(&world.balancer.socket()).context("the first daemon")?;
    Ok(said)
}
