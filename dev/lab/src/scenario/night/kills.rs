// SPDX-License-Identifier: Apache-2.0
//! `kill -9` in front of system calls of a balancer: of its start, of a reload, of a drain, of
//! its stop, of its removal, and of a step of a rotation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::seq::SliceRandom as _;
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::strace::{Call, KillPoint, Strace};
use super::world::{DRAINED, World};
use crate::api;
use crate::background::KilledOnDrop;
use crate::clock::until;

const TIMEOUT: Duration = Duration::from_secs(60);
/// What other threads still do when a daemon answers for the first time.
const SETTLED: Duration = Duration::from_millis(500);

/// What is done when the kill comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// The first start: nothing is pinned.
    FirstStart,
    /// `causeway lb unload`.
    Unload,
    /// A start that takes the running data plane over.
    Takeover,
    /// Of a file with another VIP and other weights.
    ReloadWithMore,
    /// Of the file without them.
    ReloadWithLess,
    /// `causeway real drain`, and back.
    Drain,
    /// Each step of `causeway cookie rotate`.
    Rotate,
    /// SIGTERM.
    Stop,
}

impl Deed {
    /// Those that need a machine without connections, then those that connections live through.
    pub(super) const ALL: [(&str, Self); 8] = [
        ("first start", Self::FirstStart),
        ("unload", Self::Unload),
        ("takeover", Self::Takeover),
        ("reload with more", Self::ReloadWithMore),
        ("reload with less", Self::ReloadWithLess),
        ("drain", Self::Drain),
        ("rotate", Self::Rotate),
        ("stop", Self::Stop),
    ];

    fn is_without_connections(self) -> bool {
        matches!(self, Self::FirstStart | Self::Unload)
    }

    fn changes_maps(self) -> bool {
        let at_start = matches!(self, Self::FirstStart | Self::Takeover);
        at_start || matches!(self, Self::ReloadWithMore | Self::ReloadWithLess)
    }
}

/// What a kill left.
struct Outcome {
    killed: bool,
    faults: Vec<String>,
}

/// The deeds of these names.
pub(super) fn choose_deeds(names: &str) -> Result<Vec<(&'static str, Deed)>> {
    let of = |name: &str| {
        let found = Deed::ALL.into_iter().find(|(known, _)| *known == name);
        let known = || Deed::ALL.map(|(known, _)| known).join(", ");
        found.with_context(|| format!("no deed is called {name:?}; there are {}", known()))
    };
    match names {
        "all" => Ok(Deed::ALL.to_vec()),
        "none" => Ok(Vec::new()),
        _ => names.split('+').map(of).collect(),
    }
}

/// Kills at `many` points of each deed of this kind, or at all of them if that is 0.
pub(super) fn run(
    world: &mut World<'_>,
    deeds: &[(&str, Deed)],
    without_connections: bool,
    many: usize,
) -> Result<Vec<Value>> {
    let deeds = deeds.iter().copied();
    let deeds = deeds.filter(|(_, deed)| deed.is_without_connections() == without_connections);
    deeds
        .map(|(name, deed)| {
            let row =
                deed_row(world, name, deed, many).with_context(|| format!("kills of {name}"))?;
            world.context.say(format!(
                "{name}: {} of {} calls killed, {}",
                row["killed"], row["calls"], row["faults"]
            ));
            Ok(row)
        })
        .collect()
}

fn deed_row(world: &mut World<'_>, name: &str, deed: Deed, many: usize) -> Result<Value> {
    let calls = {
        let strace = strace(world, deed, None)?;
        perform(world, deed, &strace)?;
        let calls = strace.calls()?;
        let changes = |call: &Call| call.leaves && call.point.name == "bpf";
        ensure!(
            !deed.changes_maps() || calls.iter().any(changes),
            "strace has not seen what changes the data plane"
        );
        let faults = recover(world, deed)?;
        ensure!(faults.is_empty(), "without a kill: {faults:?}");
        calls
    };
    let points = choose(&calls, many, world.context.seed);
    let (mut killed, mut faults) = (0, Vec::new());
    let mut by_call: BTreeMap<&str, usize> = BTreeMap::new();
    let mut tried = 0;
    for point in &points {
        if many > 0 && killed == many {
            break;
        }
        tried += 1;
        let outcome = kill_at(world, deed, point).with_context(|| format!("kill at {point:?}"))?;
        killed += usize::from(outcome.killed);
        *by_call.entry(&point.name).or_default() += usize::from(outcome.killed);
        let at = format!("in front of {} number {}", point.name, point.nth);
        faults.extend(outcome.faults.iter().map(|fault| format!("{at}: {fault}")));
        // One fault may go on for ever; what follows it says nothing.
        if !faults.is_empty() {
            break;
        }
    }
    let leaving = calls.iter().filter(|call| call.leaves).count();
    Ok(json!({
        "deed": name, "calls": calls.len(), "leaving": leaving, "points": tried,
        "killed": killed, "by_call": by_call, "faults": faults,
    }))
}

/// How many points are tried for each kill: other threads may make fewer calls the next time.
const TRIES: usize = 4;

/// Points for so many kills, by chance: of the first ones, three quarters in front of what can leave
/// something behind.
fn choose(calls: &[Call], many: usize, seed: u64) -> Vec<KillPoint> {
    let of = |leaves: bool| {
        let calls = calls.iter();
        let calls = calls.filter(|call| call.leaves == leaves && (leaves || call.of_main));
        let points: BTreeSet<&KillPoint> = calls.map(|call| &call.point).collect();
        points.into_iter().cloned().collect::<Vec<_>>()
    };
    let (mut leaving, mut others) = (of(true), of(false));
    if many == 0 {
        return [leaving, others].concat();
    }
    let mut rng = StdRng::seed_from_u64(seed);
    leaving.shuffle(&mut rng);
    others.shuffle(&mut rng);
    let first = many / 4;
    let spare = leaving.split_off(leaving.len().min(many - first));
    let spare_others = others.split_off(others.len().min(first));
    let mut points = [leaving, others, spare, spare_others].concat();
    points.truncate(TRIES * many);
    points
}

fn kill_at(world: &mut World<'_>, deed: Deed, point: &KillPoint) -> Result<Outcome> {
    let strace = strace(world, deed, Some(point))?;
    let killed = perform(world, deed, &strace)?;
    world.plant()?;
    // No daemon runs.
    let forwarding = world.wait_for_answers();
    let mut faults = recover(world, deed)?;
    faults.extend(forwarding.err().map(|error| error.to_string()));
    Ok(Outcome { killed, faults })
}

fn strace(world: &World<'_>, deed: Deed, point: Option<&KillPoint>) -> Result<Strace> {
    let strace = Strace::new(world.scratch.path(), point)?;
    let state = world.balancer.state_dir();
    Ok(match deed {
        Deed::Drain => strace.touching(vec![
            state.join("state.json"),
            state.join("state.json.new"),
            state,
        ]),
        _ => strace,
    })
}

/// Does it and kills the daemon, at the point or behind it; whether it was there.
fn perform(world: &mut World<'_>, deed: Deed, strace: &Strace) -> Result<bool> {
    match deed {
        Deed::FirstStart => {
            world.balancer.terminate()?;
            world.balancer.detach()?;
            start(world, strace)
        }
        Deed::Takeover => {
            world.balancer.kill()?;
            start(world, strace)
        }
        Deed::Unload => {
            world.balancer.terminate()?;
            let node = &world.bench.topology.balancer;
            let file = world.balancer.config_file();
            let file = file.display().to_string();
            let mut command = node.netns.command("strace");
            command
                .args(&strace.before()[1..])
                .arg(&world.context.binary)
                .args(["lb", "unload", "--yes", "-c", &file]);
            watched(command, strace)
        }
        Deed::ReloadWithMore | Deed::ReloadWithLess => {
            let more = deed == Deed::ReloadWithMore;
            if world.has_guest == more {
                world.write_config(!more)?;
                world.balancer.reload_now()?;
            }
            world.write_config(more)?;
            let attached = strace.attach(pid(world)?)?;
            let reloads =
                |world: &World<'_>| world.balancer.messages().matches("reloaded: ").count();
            let before = reloads(world);
            world.balancer.reload()?;
            wait(|| Ok(reloads(world) > before || !is_alive(world)))?;
            attached.let_go(is_alive(world))?;
            end(world, strace)
        }
        Deed::Drain => {
            let attached = strace.attach(pid(world)?)?;
            let real = world.real(DRAINED);
            let undo = world.drained.then_some("--undo");
            let words = ["real", "drain", "table", &real, "--yes"];
            let words: Vec<&str> = words.into_iter().chain(undo).collect();
            let done = world.balancer.cli(&words);
            let told = done.is_ok();
            wait(|| Ok(told || !is_alive(world)))?;
            attached.let_go(is_alive(world))?;
            let killed = end(world, strace)?;
            // A command that reported success may be relied on; after any other the state must be
            // checked.
            match told {
                true => world.drained = !world.drained,
                false => world.may_be_drained = true,
            }
            Ok(killed)
        }
        Deed::Rotate => rotate(world, strace),
        Deed::Stop => {
            let attached = strace.attach(pid(world)?)?;
            kill(Pid::from_raw(pid(world)? as i32), Signal::SIGTERM)?;
            wait(|| Ok(!is_alive(world)))?;
            attached.let_go(is_alive(world))?;
            end(world, strace)
        }
    }
}

/// A start under strace, until it is killed or serves.
fn start(world: &World<'_>, strace: &Strace) -> Result<bool> {
    let mut child = KilledOnDrop(
        world
            .balancer
            .command(&strace.before())?
            .spawn()
            .context("cannot run strace (Debian package strace)")?,
    );
    let deadline = Instant::now() + TIMEOUT;
    let mut serves = None;
    loop {
        if child.try_wait()?.is_some() {
            let killed = strace.has_killed();
            ensure!(killed, "the start failed: {}", world.balancer.messages());
            return Ok(true);
        }
        if api::stats(&world.balancer.socket()).is_ok() {
            serves.get_or_insert_with(Instant::now);
        }
        if serves.is_some_and(|since| since.elapsed() > SETTLED) {
            let pid = strace.pid().context("no process was seen")?;
            // Its kill may have come just now, in a call that serving makes.
            let killed = match kill(pid, Signal::SIGKILL) {
                Err(Errno::ESRCH) => true,
                other => other.map(|()| false)?,
            };
            child.wait()?;
            return Ok(killed);
        }
        ensure!(
            Instant::now() < deadline,
            "it does not answer: {}",
            world.balancer.messages()
        );
        sleep(Duration::from_millis(5));
    }
}

/// A command under strace, to its end: whether that was the kill.
fn watched(mut command: Command, strace: &Strace) -> Result<bool> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.context("cannot run strace (Debian package strace)")?;
    let killed = strace.has_killed();
    ensure!(
        killed || output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(killed)
}

/// Three steps on a file of its own: each is done or not, never half.
fn rotate(world: &World<'_>, strace: &Strace) -> Result<bool> {
    let file = world.scratch.path().join("keys");
    let causeway = |arguments: &[&str]| {
        let mut command = Command::new(&world.context.binary);
        command.arg("cookie").args(arguments).arg(&file);
        command
    };
    if !file.exists() {
        ensure!(causeway(&["new-keys"]).status()?.success(), "no keys");
    }
    for step in ["--prepare", "--switch", "--retire"] {
        let before = fs::read(&file)?;
        let mut command = Command::new("strace");
        command
            .args(&strace.before()[1..])
            .arg(&world.context.binary)
            .args(["cookie", "rotate", step])
            .arg(&file);
        let killed = watched(command, strace)?;
        if fs::read(&file)? == before {
            let again = causeway(&["rotate", step]).output()?;
            let said = String::from_utf8_lossy(&again.stderr).into_owned();
            ensure!(
                again.status.success(),
                "the step cannot be done again: {said}"
            );
        }
        if step == "--retire" {
            return Ok(killed);
        }
    }
    bail!("there is no last step")
}

/// The next start, and what is wrong behind it.
fn recover(world: &mut World<'_>, deed: Deed) -> Result<Vec<String>> {
    if deed == Deed::Rotate {
        return world.faults();
    }
    if let Err(error) = world.balancer.restart() {
        return Ok(vec![format!("the next start failed: {error:#}")]);
    }
    if std::mem::take(&mut world.may_be_drained) {
        world.drained = world.is_drained()?;
    }
    let status = world.status()?;
    let stats = api::stats(&world.balancer.socket())?;
    if !status.took_over && api::verdict(&stats.verdicts, "opened") > 0 {
        return Ok(vec![
            "half of a data plane that was removed is in use".to_owned(),
        ]);
    }
    if deed.is_without_connections() {
        world.fetch()?;
    } else {
        world.wait_for_answers()?;
    }
    world.faults()
}

/// The daemon's end, by whichever signal.
fn end(world: &mut World<'_>, strace: &Strace) -> Result<bool> {
    let killed = strace.has_killed();
    world.balancer.kill()?;
    Ok(killed)
}

fn pid(world: &World<'_>) -> Result<u32> {
    world.balancer.pid().context("the balancer does not run")
}

/// Whether the daemon runs: one that has ended is a zombie until it is waited for.
fn is_alive(world: &World<'_>) -> bool {
    let stat = world.balancer.pid().map(|pid| format!("/proc/{pid}/stat"));
    let stat = stat.and_then(|path| fs::read_to_string(path).ok());
    stat.is_some_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

fn wait(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let done = until(TIMEOUT, || Ok(done()?.then_some(())))?;
    done.with_context(|| format!("not within {TIMEOUT:?}"))
}
