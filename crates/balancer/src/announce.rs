// SPDX-License-Identifier: Apache-2.0
//! Tells BIRD which VIPs to announce: writes its include file and has it read again.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_api::Moment;
use causeway_core::announce::{Announcer, Readiness, bird, offered_in};
use tracing::{info, warn};

use super::engine::Engine;
use super::fleet::Service;
use super::pool::Pool;
use super::shared::Shared;
use crate::config::{Announce, OnStop};

/// Time from a change to BIRD's hearing of it.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// If BIRD did not take a change, it gets it again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A command that takes longer is ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Announces for as long as it lives, if the configuration says so.
pub(crate) struct Announcements {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Announcements {
    /// Begins, on a thread of its own: BIRD may be slow.
    pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("announce".to_owned())
            .spawn(move || Herald::default().run(&shared, &stopped))?;
        Ok(Self { thread, stop })
    }

    /// Ends; withdraws everything if the configuration wants that at a stop.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // A panic in it was reported; what BIRD announces is as it was.
        let _ = self.thread.join();
    }
}

/// What BIRD got last.
#[derive(Default)]
struct Herald {
    /// `None` until there is a file to begin with.
    announcer: Option<Announcer>,
    told: Option<(Announce, BTreeSet<IpAddr>, bool)>,
    failed: Option<Instant>,
}

impl Herald {
    fn run(mut self, shared: &Shared, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            self.look(shared);
            thread::park_timeout(LOOK_EVERY);
        }
        if let Some((announce, offered, _)) = &self.told
            && announce.on_stop == OnStop::Withdraw
            && !offered.is_empty()
        {
            match withdraw(announce) {
                Ok(()) => info!("BIRD announces no VIP of ours any more"),
                Err(error) => warn!("BIRD may still announce the VIPs: {error:#}"),
            }
        }
    }

    fn look(&mut self, shared: &Shared) {
        let (announce, services, leaves) = {
            let engine = shared.engine();
            let leaves = engine.service() == Service::Leaving;
            let announce = engine.config().announce.clone();
            let services = announce.as_ref().map(|_| services(&engine));
            (announce, services.unwrap_or_default(), leaves)
        };
        let Some(announce) = announce else {
            // Started again later, it begins from nothing: services are not watched until then.
            self.announcer = None;
            if let Some((announce, ..)) = self.told.take() {
                // The key is gone from the file: no announcements are wanted any more.
                if let Err(error) = withdraw(&announce) {
                    warn!("BIRD may still announce the VIPs: {error:#}");
                }
                let mut engine = shared.engine();
                engine.set_announced(BTreeSet::new());
                engine.set_announce_up(None);
            }
            return;
        };
        let now_ns = Moment::now().monotonic_ns;
        let delay_ns = announce.delay.as_nanos() as u64;
        let announcer = self.announcer.get_or_insert_with(|| {
            let text = fs::read_to_string(&announce.bird).unwrap_or_default();
            Announcer::succeeding(offered_in(&text))
        });
        let offered = announcer.handle_services(now_ns, delay_ns, &services);
        let known = self.told.as_ref();
        if known
            .is_some_and(|(how, what, was)| *how == announce && what == offered && *was == leaves)
        {
            return;
        }
        if self.failed.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return;
        }
        match tell(&announce, offered, leaves) {
            Ok(()) => {
                // Once the log has it, the API has it, too.
                let mut engine = shared.engine();
                engine.set_announced(offered.clone());
                engine.set_announce_up(Some(true));
                drop(engine);
                let list: Vec<String> = offered.iter().map(IpAddr::to_string).collect();
                match list.is_empty() {
                    true => info!("BIRD announces no VIP of ours"),
                    false if leaves => {
                        info!("BIRD has routers prefer others for {}", list.join(", "))
                    }
                    false => info!("BIRD announces {}", list.join(", ")),
                }
                self.told = Some((announce, offered.clone(), leaves));
                self.failed = None;
            }
            Err(error) => {
                if self.failed.is_none() {
                    warn!(
                        "cannot give BIRD the VIPs that are ready, and will try again: {error:#}"
                    );
                }
                shared.engine().set_announce_up(Some(false));
                self.failed = Some(Instant::now());
            }
        }
    }
}

/// Each VIP's address, and whether it is ready.
fn services(engine: &Engine) -> Vec<(IpAddr, Readiness)> {
    let service = engine.service();
    let standing = |pool: &Pool| {
        if service == Service::Out {
            return Readiness::Unready;
        }
        let (up, need) = (engine.reals_up(pool), pool.vip().min_healthy);
        match up + engine.reals_unknown(pool) {
            // The fleet decides whether it may be announced; until then it is as it was.
            _ if up >= need && service == Service::AsBefore => Readiness::Unknown,
            _ if up >= need => Readiness::Ready,
            at_best if at_best >= need => Readiness::Unknown,
            _ => Readiness::Unready,
        }
    };
    let pools = engine.pools().iter();
    pools
        .map(|pool| (pool.vip().address, standing(pool)))
        .collect()
}

/// Has BIRD announce none of our VIPs any more.
pub(crate) fn withdraw(announce: &Announce) -> Result<()> {
    tell(announce, &BTreeSet::new(), false)
}

fn tell(announce: &Announce, addresses: &BTreeSet<IpAddr>, leaves: bool) -> Result<()> {
    write(&announce.bird, &bird(addresses, leaves))?;
    run(&announce.configure)
}

/// Replaces the file in one step: BIRD must not read half of it.
fn write(file: &Path, text: &str) -> Result<()> {
    let wrong = || format!("cannot write {}", file.display());
    let directory = file.parent().unwrap_or(Path::new("/"));
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    fs::create_dir_all(directory).with_context(wrong)?;
    let mut out = fs::File::create(&new).with_context(wrong)?;
    out.write_all(text.as_bytes()).with_context(wrong)?;
    fs::rename(&new, file).with_context(wrong)
}

fn run(command: &[String]) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let Some(status) = wait(&mut child)? else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("{program} did not end within {} s", PATIENCE.as_secs());
    };
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
    ensure!(status.success(), "{program} failed ({status}): {said}");
    Ok(())
}

/// `None` if it takes too long. What it says fits into a pipe.
fn wait(child: &mut Child) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_and_the_command_is_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let announce = |command: &str| Announce {
            bird: dir.path().join("run/bird.conf"),
            configure: ["sh", "-c", command].map(str::to_owned).to_vec(),
            delay: Duration::ZERO,
            on_stop: OnStop::Withdraw,
        };
        let addresses = BTreeSet::from(["192.0.2.1".parse().expect("an address")]);
        tell(&announce("true"), &addresses, false).expect("told");
        let text = fs::read_to_string(dir.path().join("run/bird.conf")).expect("the file");
        assert!(text.contains("route 192.0.2.1/32 blackhole;"));
        let failed = tell(&announce("echo syntax error; exit 3"), &addresses, false).unwrap_err();
        assert_eq!(
            failed.to_string(),
            "sh failed (exit status: 3): syntax error"
        );
        let nothing = run(&["/nowhere/birdc".to_owned()]).unwrap_err();
        assert!(nothing.to_string().starts_with("cannot run /nowhere/birdc"));
    }
}
