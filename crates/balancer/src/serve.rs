// SPDX-License-Identifier: Apache-2.0
//! The process around the engine: the control loop and what runs beside it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use causeway_api::Moment;
use causeway_service::http::reading_only;
use causeway_service::log_fault;
use causeway_service::process::{Listeners, Process, Routers, Work, serve_routers};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::announce;
use super::api;
use super::discovery;
use super::fleet::{self, Fleet, FleetInbox};
use super::probe;
use super::shared::Shared;
use super::worker::Worker;
use crate::config::{SharedVip, encapsulated_reals};

/// How long what changes by itself may be unsaved.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a stop waits for what is being done: long enough for a gateway's answer and a slow
/// disk, far below the 90 s after which systemd kills.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// From one look at the next hops to the next: a router that has another MAC address is followed
/// within three of them and the kernel's own probes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a look waits for a gateway to answer with its MAC address.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT; SIGHUP reloads. The data plane is left as it is.
pub(crate) fn serve(
    process: Process,
    shared: Arc<Shared>,
    listeners: Listeners,
    fleet: Option<(Fleet, FleetInbox)>,
) -> anyhow::Result<()> {
    let fleet = fleet
        .map(|(fleet, inbox)| fleet::start(fleet, inbox, Arc::clone(&shared)))
        .transpose()?;
    let rounds = Arc::new(AtomicU64::new(0));
    let (control, failed) = control(Arc::clone(&shared), Arc::clone(&rounds))?;
    let announcements = announce::start(Arc::clone(&shared))?;
    let kept = Arc::clone(&shared);
    let keeper = Worker::repeat("state", KEEP_EVERY, move || kept.keep())?;
    let looking = Arc::clone(&shared);
    let mut hops = NextHopWatch::default();
    let watch = Worker::repeat("next-hop", LOOK_EVERY, move || {
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
    keeper.stop_within(STOP_TIMEOUT);
    watch.stop_within(STOP_TIMEOUT);
    result
}

/// Looks at the next hops again and again.
#[derive(Default)]
struct NextHopWatch {
    /// The VIPs at the last look, and what was gathered of them.
    vips: Vec<SharedVip>,
    reals: Vec<IpAddr>,
}

impl NextHopWatch {
    /// Looks once, without holding the engine meanwhile.
    fn look(&mut self, shared: &Shared) {
        let (route, vips, resolver) = {
            let engine = shared.engine();
            let Some(way) = engine.next_hops().way() else {
                return;
            };
            let vips = engine.config().vips.clone();
            (way.route.clone(), vips, engine.plane().resolver())
        };
        if vips != self.vips {
            self.reals = encapsulated_reals(&vips);
            self.vips = vips;
        }
        let found = resolver.look(&route, &self.reals, LOOK_TIMEOUT);
        shared
            .engine()
            .take_look(&route, &self.reals, found, Moment::now());
    }
}

/// Calls the engine once per interval, on a thread of its own: its work blocks and must not wait for
/// the API's. Counts intervals that have been worked through; also gives a future that resolves if
/// the loop ends without being asked to.
fn control(
    shared: Arc<Shared>,
    rounds: Arc<AtomicU64>,
) -> anyhow::Result<(Worker, impl Future<Output = anyhow::Error>)> {
    let (alive, ended) = oneshot::channel::<Infallible>();
    let worker = Worker::start("control", move |stopped| {
        let _alive = alive;
        run(&shared, stopped, &rounds);
    })?;
    let failed = async {
        let _ = ended.await;
        anyhow!(
            "the control loop has failed, see above; the data plane forwards on with the weights it has: start the daemon again"
        )
    };
    Ok((worker, failed))
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
        log_fault!(
            last_error,
            error,
            "control interval failed, weights are held: {}",
            "control works again"
        );
    }
}
