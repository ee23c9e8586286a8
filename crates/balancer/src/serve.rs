// SPDX-License-Identifier: Apache-2.0
//! The process around the engine: the control loop and what runs beside it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use causeway_api::Moment;
use causeway_service::http::reading_only;
use causeway_service::process::{Listeners, Process, Routers, Work, serve_routers};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::announce::Announcements;
use super::api;
use super::discovery;
use super::fleet::{Fleet, FleetInbox, FleetRunner};
use super::next_hop::{LOOK_EVERY, NextHopWatch};
use super::probe;
use super::shared::Shared;

/// How long what changes by itself may be unsaved.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a stop waits for what is being done: long enough for a gateway's answer and a slow
/// disk, far below the 90 s after which systemd kills.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT; SIGHUP reloads. The data plane is left as it is.
pub(crate) fn serve(
    process: Process,
    shared: Arc<Shared>,
    listeners: Listeners,
    fleet: Option<(Fleet, FleetInbox)>,
) -> anyhow::Result<()> {
    let fleet = fleet
        .map(|(fleet, inbox)| FleetRunner::start(fleet, inbox, Arc::clone(&shared)))
        .transpose()?;
    let (control, failed) = ControlLoop::start(Arc::clone(&shared))?;
    let announcements = Announcements::start(Arc::clone(&shared))?;
    let kept = Arc::clone(&shared);
    let keeper = Repeated::start("state", KEEP_EVERY, move || kept.keep())?;
    let looking = Arc::clone(&shared);
    let mut hops = NextHopWatch::default();
    let watch = Repeated::start("next-hop", LOOK_EVERY, move || {
        looking.engine().mend();
        // What the kernel does not say is as it was at the last look.
        if let Ok(own) = causeway_netio::own_addresses() {
            looking.engine().take_own_addresses(&own);
        }
        hops.look(&looking);
    })?;
    let probes_run = probe::run(Arc::clone(&shared));
    let discovery = discovery::run(Arc::clone(&shared));
    let failed = async {
        // On the runtime's own threads.
        let mut probes = JoinSet::new();
        probes.spawn(probes_run);
        probes.spawn(discovery);
        tokio::select! {
            error = failed => error,
            _ = probes.join_next() => anyhow!("the health probes or the discovery of reals have ended"),
        }
    };
    let routers = Routers {
        unix: api::socket_router(Arc::clone(&shared)),
        tcp: reading_only(api::router(Arc::clone(&shared)), listeners.socket()),
        rules: api::RULES,
    };
    let mut seen = None;
    let rounds = Arc::clone(&control.rounds);
    let reloaded = Arc::clone(&shared);
    let work = Work {
        reload: move || reloaded.reload(),
        works: || {
            let now = Some(rounds.load(Ordering::Relaxed));
            std::mem::replace(&mut seen, now) != now
        },
        failed,
    };
    let result = serve_routers(process, routers, &listeners, work);
    if let Some(fleet) = fleet {
        fleet.stop();
    }
    announcements.stop();
    control.stop();
    keeper.stop(STOP_TIMEOUT);
    watch.stop(STOP_TIMEOUT);
    result
}

/// Calls the engine once per interval, on a thread of its own: its work blocks
/// and must not wait for the API's.
struct ControlLoop {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Intervals that have been worked through.
    rounds: Arc<AtomicU64>,
}

impl ControlLoop {
    /// Also gives a future that resolves if the loop ends without being asked to.
    fn start(shared: Arc<Shared>) -> anyhow::Result<(Self, impl Future<Output = anyhow::Error>)> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let rounds = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&rounds);
        let (alive, ended) = oneshot::channel::<Infallible>();
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                let _alive = alive;
                run(&shared, &stopped, &counted);
            })?;
        let failed = async {
            let _ = ended.await;
            anyhow!(
                "the control loop has failed, see above; the data plane forwards on with the weights it has: start the daemon again"
            )
        };
        Ok((
            Self {
                thread,
                stop,
                rounds,
            },
            failed,
        ))
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // A panic in it is what ended the daemon, and was reported.
        let _ = self.thread.join();
    }
}

/// Something that is done again and again, on a thread of its own: a disk or a router may be
/// slow.
struct Repeated {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Repeated {
    fn start(
        name: &str,
        every: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Once more behind the stop: what is kept is to be as it was left.
                loop {
                    let is_last = stopped.load(Ordering::Relaxed);
                    work();
                    if is_last {
                        return;
                    }
                    thread::park_timeout(every);
                }
            })?;
        Ok(Self { thread, stop })
    }

    /// Waits for what it is doing, but not for a disk that has stopped answering.
    fn stop(self, timeout: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let until = Instant::now() + timeout;
        while !self.thread.is_finished() {
            if Instant::now() >= until {
                let name = self.thread.thread().name().unwrap_or_default();
                warn!("the work of the thread `{name}` is given up: it does not end");
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // A panic in it was reported; the daemon did without it.
        let _ = self.thread.join();
    }
}

fn run(shared: &Shared, stopped: &AtomicBool, rounds: &AtomicU64) {
    let mut next = Instant::now();
    let mut took = Duration::ZERO;
    let mut last_error = None;
    loop {
        let interval = Duration::from_nanos(shared.engine().config().control.interval_ns);
        next += interval;
        // After a stall: skip what was missed. With so many reals that a round takes longer than
        // an interval, the API gets the engine for as long as the rounds have it.
        if next < Instant::now() {
            next = Instant::now() + interval.max(took);
        }
        while !stopped.load(Ordering::Relaxed) && Instant::now() < next {
            thread::park_timeout(next - Instant::now());
        }
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut engine = shared.engine();
        let begun = Instant::now();
        let error = engine.tick(Moment::now()).err();
        took = begun.elapsed();
        engine.bound_turns(took);
        drop(engine);
        rounds.fetch_add(1, Ordering::Relaxed);
        let error = error.map(|error| format!("{error:#}"));
        if error != last_error {
            match &error {
                Some(error) => warn!("control interval failed, weights are held: {error}"),
                None => info!("control works again"),
            }
            last_error = error;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_stop_does_not_wait_for_what_hangs() {
        let (begun, begins) = mpsc::channel();
        let (_hangs, hung) = mpsc::channel::<()>();
        let work = move || {
            begun.send(()).unwrap();
            let _ = hung.recv();
        };
        let repeated = Repeated::start("state", Duration::ZERO, work).unwrap();
        begins.recv().unwrap();
        repeated.stop(Duration::from_millis(10));
        assert!(begins.try_recv().is_err(), "it hangs still");
    }

    /// What changed since the last time would not be kept.
    #[test]
    fn a_stop_has_the_work_done_once_more() {
        let (begun, begins) = mpsc::channel();
        let work = move || begun.send(()).unwrap();
        let repeated = Repeated::start("state", Duration::from_secs(3600), work).unwrap();
        begins.recv().unwrap();
        repeated.stop(Duration::from_secs(60));
        assert!(begins.try_recv().is_ok());
    }
}
