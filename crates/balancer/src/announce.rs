// SPDX-License-Identifier: Apache-2.0
//! Tells BIRD which VIPs to announce: writes its include file and has it read again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_api::Moment;
use causeway_core::announce::{Announcer, Readiness, bird, offered_in};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tracing::{info, warn};

use super::engine::Engine;
use super::fleet::Service;
use super::pool::Pool;
use super::shared::Shared;
use super::worker::Worker;
use crate::config::{Announce, OnStop};

/// Time from a change to BIRD's hearing of it.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// If BIRD did not take a change, it gets it again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A command that takes longer is ended.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What of its output is read.
const SAID_MAX: u64 = 1 << 16;

/// Announces until it is stopped, if the configuration says so, on a thread of its own: BIRD may be
/// slow. The end withdraws everything if the configuration wants that at a stop; behind a panic, what
/// BIRD announces is as it was.
pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Worker> {
    Worker::start("announce", move |stopped| {
        Herald::default().run(&shared, stopped);
    })
}

/// What BIRD got last.
#[derive(Default)]
struct Herald {
    /// `None` until there is a file to begin with.
    announcer: Option<Announcer>,
    told: Option<(Announce, BTreeSet<IpAddr>, bool)>,
    /// By which configurations it may have got routes, one for each file.
    by: Vec<Announce>,
    /// A command that failed may have done its work: what BIRD has is unknown until one succeeds.
    failed: Option<Instant>,
}

impl Herald {
    fn run(mut self, shared: &Shared, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            self.look(shared);
            thread::park_timeout(LOOK_EVERY);
        }
        self.end(shared);
    }

    /// Withdraws everything at a stop, if the configuration wants that or is without announcements.
    fn end(mut self, shared: &Shared) {
        let announce = shared.engine().config().announce.clone();
        match &announce {
            Some(announce) if announce.on_stop == OnStop::Keep => return,
            // Its file may have routes of a former process.
            Some(announce) => note(&mut self.by, announce),
            None => {}
        }
        for announce in &self.by {
            match withdraw(announce) {
                Ok(()) => info!("BIRD announces no VIP of ours any more"),
                Err(error) => warn!("BIRD may still announce the VIPs: {error:#}"),
            }
        }
    }

    /// The key is gone from the file: no announcements are wanted any more.
    fn withdraw_all(&mut self, shared: &Shared) {
        if self.by.is_empty() || self.failed.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return;
        }
        let was_told = self.told.take().is_some();
        self.by.retain(|announce| {
            let result = withdraw(announce);
            if let Err(error) = &result
                && was_told
            {
                warn!("BIRD may still announce the VIPs, and will be told again: {error:#}");
            }
            result.is_err()
        });
        self.failed = (!self.by.is_empty()).then(Instant::now);
        let mut engine = shared.engine();
        engine.set_announced(BTreeSet::new());
        engine.set_announce_up(None);
    }

    fn look(&mut self, shared: &Shared) {
        let (announce, services, leaves) = {
            let engine = shared.engine();
            let leaves = engine.service_at(Moment::now().monotonic_ns) == Service::Leaving;
            let announce = engine.config().announce.clone();
            let services = announce.as_ref().map(|_| services(&engine));
            (announce, services.unwrap_or_default(), leaves)
        };
        let Some(announce) = announce else {
            // Started again later, it begins from nothing: services are not watched until then.
            self.announcer = None;
            self.withdraw_all(shared);
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
        let is_told = known
            .is_some_and(|(how, what, was)| *how == announce && what == offered && *was == leaves);
        match self.failed {
            None if is_told => return,
            Some(at) if at.elapsed() < AGAIN_AFTER => return,
            _ => {}
        }
        note(&mut self.by, &announce);
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
                // Former files go behind the one in force: clients are not to notice.
                let others = self.by.len() - 1;
                for former in self.by.drain(..others) {
                    if let Err(error) = withdraw(&former) {
                        let file = former.bird.display();
                        warn!("BIRD may still announce the VIPs by {file}: {error:#}");
                    }
                }
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

/// Notes that BIRD gets routes by `announce` from now on.
fn note(by: &mut Vec<Announce>, announce: &Announce) {
    by.retain(|former| former.bird != announce.bird);
    by.push(announce.clone());
}

/// Each VIP's address, and whether it is ready.
fn services(engine: &Engine) -> Vec<(IpAddr, Readiness)> {
    let service = engine.service_at(Moment::now().monotonic_ns);
    let standing = |pool: &Pool| {
        if service == Service::Out || engine.attachment().has_lost_program() {
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
        bail!("{program} did not end within {} s", TIMEOUT.as_secs());
    };
    let said = [said(child.stdout.take()), said(child.stderr.take())].concat();
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
    ensure!(status.success(), "{program} failed ({status}): {said}");
    Ok(())
}

/// What a command that has ended has said. What it has started may have the pipe still: nobody waits
/// for its end.
fn said(pipe: Option<impl Read + AsFd>) -> Vec<u8> {
    let mut said = Vec::new();
    if let Some(pipe) = pipe
        && fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
    {
        // An error is that there is no more.
        let _ = pipe.take(SAID_MAX).read_to_end(&mut said);
    }
    said
}

/// `None` if it takes too long. What it says fits into a pipe.
fn wait(child: &mut Child) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
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
    use crate::config::VipConfig;
    use crate::fake::FakePlane;
    use crate::serve_tests::shared;
    use crate::tests::{WEB, config};

    /// A balancer with a VIP that is ready. Its `birdc` does its work, and fails while there is
    /// a file `broken`.
    struct Stage {
        dir: tempfile::TempDir,
        plane: FakePlane,
        shared: Arc<Shared>,
        herald: Herald,
    }

    impl Stage {
        fn new(on_stop: &str) -> Self {
            let plane = FakePlane::default();
            let stage = Self {
                dir: tempfile::tempdir().unwrap(),
                shared: shared(&plane),
                plane,
                herald: Herald::default(),
            };
            stage.reload(&stage.announce("bird.conf", on_stop));
            stage
        }

        fn announce(&self, file: &str, on_stop: &str) -> String {
            let dir = self.dir.path().display();
            format!(
                "[announce]\nbird = \"{dir}/{file}\"\ndelay = \"0s\"\non_stop = \"{on_stop}\"\n\
                 configure = [\"sh\", \"-c\", \"test ! -e {dir}/broken\"]\n"
            )
        }

        fn reload(&self, announce: &str) {
            let config = config(&format!("{announce}{WEB}"));
            self.shared.engine().reload(config).unwrap();
        }

        fn set_ready(&self, ready: bool) {
            let mut engine = self.shared.engine();
            let drain = |vip: &mut VipConfig| {
                vip.reals.iter_mut().for_each(|real| real.drain = !ready);
                Ok(())
            };
            engine.change_vip("web", drain).unwrap();
        }

        fn set_broken(&self, broken: bool) {
            let file = self.dir.path().join("broken");
            match broken {
                true => fs::write(file, "").unwrap(),
                false => fs::remove_file(file).unwrap(),
            }
        }

        fn look(&mut self) {
            self.herald.look(&self.shared);
        }

        /// Looks when it is time to try again.
        fn look_later(&mut self) {
            self.herald.failed = Instant::now().checked_sub(AGAIN_AFTER);
            self.look();
        }

        /// Whether BIRD's file offers anything after a stop.
        fn stop(self) -> bool {
            self.herald.run(&self.shared, &AtomicBool::new(true));
            offers(self.dir.path(), "bird.conf")
        }

        fn offers(&self, file: &str) -> bool {
            offers(self.dir.path(), file)
        }

        fn announce_up(&self) -> Option<bool> {
            self.shared.engine().announce_up()
        }
    }

    fn offers(dir: &Path, file: &str) -> bool {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        !offered_in(&text).is_empty()
    }

    #[test]
    fn bird_is_told_again_though_what_it_had_is_wanted_again() {
        for ready in [true, false] {
            let mut stage = Stage::new("keep");
            stage.set_ready(ready);
            stage.look();
            assert_eq!(
                (stage.offers("bird.conf"), stage.announce_up()),
                (ready, Some(true))
            );
            stage.set_broken(true);
            stage.set_ready(!ready);
            stage.look();
            assert_eq!(
                (stage.offers("bird.conf"), stage.announce_up()),
                (!ready, Some(false))
            );
            stage.set_broken(false);
            stage.set_ready(ready);
            stage.look();
            assert_eq!(stage.announce_up(), Some(false), "it waits");
            stage.look_later();
            assert_eq!(
                (stage.offers("bird.conf"), stage.announce_up()),
                (ready, Some(true))
            );
            assert_eq!(stage.herald.failed, None);
        }
    }

    #[test]
    fn a_stop_withdraws_what_a_command_that_failed_may_have_announced() {
        for (on_stop, offered) in [("withdraw", false), ("keep", true)] {
            let mut stage = Stage::new(on_stop);
            stage.set_broken(true);
            stage.look();
            assert_eq!(stage.announce_up(), Some(false));
            assert!(stage.offers("bird.conf"));
            assert_eq!(stage.stop(), offered);
        }
    }

    #[test]
    fn files_that_are_not_in_force_any_more_are_emptied() {
        let mut stage = Stage::new("keep");
        stage.look();
        stage.reload(&stage.announce("other.conf", "keep"));
        stage.look();
        assert_eq!(
            ["bird.conf", "other.conf"].map(|file| stage.offers(file)),
            [false, true]
        );
        // The key is gone from the file.
        stage.set_broken(true);
        stage.reload("");
        stage.look();
        assert_eq!(
            (stage.offers("other.conf"), stage.announce_up()),
            (false, None)
        );
        assert!(stage.herald.failed.is_some());
        stage.set_broken(false);
        stage.look_later();
        assert_eq!(stage.herald.failed, None);
        assert!(stage.herald.by.is_empty());
    }

    #[test]
    fn a_vip_is_withdrawn_while_the_program_is_on_no_interface() {
        let mut stage = Stage::new("keep");
        let plane = stage.plane.clone();
        let mut looks = || {
            [(); 3].map(|()| {
                stage.shared.engine().mend();
                stage.look();
                let told = stage
                    .shared
                    .engine()
                    .attachment()
                    .error()
                    .map(str::to_owned);
                (stage.offers("bird.conf"), told)
            })
        };
        let told = |text: &str| Some(text.to_owned());
        // Without its pins it forwards on.
        plane.state().hold_fault = told("no pins");
        assert_eq!(looks(), [(); 3].map(|()| (true, told("no pins"))));
        plane.state().hold_fault = told("eth0 is gone");
        plane.state().is_lost = true;
        let withdrawn = told("eth0 is gone; no VIP is announced until the program is attached");
        assert_eq!(
            looks(),
            [
                (true, told("eth0 is gone")),
                (false, withdrawn.clone()),
                (false, withdrawn)
            ]
        );
        plane.state().hold_fault = None;
        plane.state().is_lost = false;
        assert_eq!(looks(), [(); 3].map(|()| (true, None::<String>)));
    }

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
        // What the command leaves behind has its output still.
        let pid = dir.path().join("pid");
        let leaves = format!("sleep 1000 & echo $! > {}; echo bad; exit 1", pid.display());
        let failed = tell(&announce(&leaves), &addresses, false).unwrap_err();
        let pid = fs::read_to_string(pid).expect("a number");
        let _ = Command::new("kill").arg(pid.trim()).status();
        assert_eq!(failed.to_string(), "sh failed (exit status: 1): bad");
        let nothing = run(&["/nowhere/birdc".to_owned()]).unwrap_err();
        assert!(nothing.to_string().starts_with("cannot run /nowhere/birdc"));
    }
}
