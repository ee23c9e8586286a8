// SPDX-License-Identifier: Apache-2.0
//! The client latency of a server, SYN drops included: reads what the kernel counts, slot
//! by slot, and runs both estimators for every category (docs/explanation/syn-loss.md).

mod category;
mod events;
mod gave_up;
pub mod history;
mod latency_slot;
mod learn;
mod notify;
mod queues;
mod recent_times;
mod recorder;
mod threshold;
pub mod view;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use causeway_api::Moment;
use causeway_api::agent::{ClientTotals, ClientsView, NewThreshold, ThresholdView};
use causeway_core::certes::{
    CategoryObserver, Estimate, Judge, Mix, MixLearner, Origin, PatienceLearner,
};
use causeway_dataplane::abi::{FlowKey6, SynResponses, SynSlot};
use causeway_dataplane::{Detached, SynMeter, SynMeterOptions};
use causeway_netio::{boot_id, monotonic_ns};
use tracing::{info, warn};

use crate::config::{ClientsConfig, WINDOW_MAX};
use category::Category;
pub(crate) use events::{EventLog, LISTENERS_MAX};
use gave_up::{AnsweredRetries, GaveUp};
use history::Record;
pub use latency_slot::LatencySlot;
use queues::Queues;
use recent_times::RecentTimes;
use recorder::{Done, EndedRecorders, Recorder};
pub(crate) use threshold::ThresholdRefused;
use threshold::Thresholds;

/// What live means are over.
const WINDOW_S: f64 = 10.0;
/// Slots that the kernel keeps for each category.
const RING: u32 = 512;
/// Of those the ones that are surely not overwritten while they are read: ends count up
/// to half a second ahead, which is 25 slots of the shortest.
const SURE: u64 = RING as u64 - 40;
/// How long a slot is left alone after its end: answers to its last SYNs count in it.
const GRACE: Duration = Duration::from_millis(50);
/// Between two looks at whether the programs still hang on their interfaces.
const HOOKS_EVERY_S: u64 = 5;
/// Between two looks at what clients are like.
const LEARN_EVERY_S: u64 = 30;
/// How long ago what clients were like counts for a third of what they are like now.
const LEARN_MEMORY_S: f64 = 3600.0;

/// Reads, estimates, remembers and reports.
pub struct Clients {
    meter: SynMeter,
    config: ClientsConfig,
    slot_s: f64,
    categories: Vec<Category>,
    mix: Mix,
    judge: Judge,
    learner: MixLearner,
    patience: PatienceLearner,
    origins: HashMap<(u32, u64), Vec<Origin>>,
    gave_up: GaveUp,
    /// The first slot that is read: all of the ring where counting went on, else the
    /// one in which it began.
    begin: u64,
    /// The last slot that was settled before the agent began: up to there its predecessor's
    /// totals go, and it may have shown them already.
    totals_after: u64,
    /// The last second that was worked on, on the monotonic clock.
    second: u64,
    /// When clients were last looked at, on the same clock.
    learned: u64,
    recorder: Option<Recorder>,
    ended: EndedRecorders,
    /// The last second that is in the history, or lost to it.
    recorded: u64,
    /// Seconds that were forgotten before they could be written.
    history_lost_s: u64,
    boot: u64,
    hooks_missing: u64,
    hooks_lost: u64,
    thresholds: Thresholds,
    queues: Queues,
    /// Where balancers' reports are made from; `None`: nothing is reported.
    reported: Option<LatencySlot>,
}

impl Clients {
    /// Starts to count, or goes on where another agent left off. The maps are pinned
    /// beside those of `pin_dir`; `events` remembers what thresholds tell.
    pub(crate) fn start(
        config: &ClientsConfig,
        pin_dir: &Path,
        reported: Option<LatencySlot>,
        events: Arc<EventLog>,
    ) -> Result<Self> {
        let meter = SynMeter::start(&options(config, pin_dir))?;
        let slot_s = config.slot.as_secs_f64();
        let mix = config.mix()?;
        let judge = learn::judge(&mix, &config.classes);
        let second = monotonic_ns() / 1_000_000_000;
        let mut ended = EndedRecorders::default();
        let recorder = recorder(config, second, &mut ended)?;
        let now = meter.current_slot();
        let begin = match meter.took_over() {
            true => now.saturating_sub(SURE),
            false => now.saturating_sub(1),
        };
        let mut clients = Self {
            slot_s,
            categories: Vec::new(),
            judge,
            learner: MixLearner::new(config.classes.clone())?,
            patience: PatienceLearner::default(),
            origins: HashMap::new(),
            gave_up: GaveUp::new(config.slot.as_nanos() as u64, monotonic_ns()),
            begin,
            totals_after: now.saturating_sub(settle_slots(slot_s, &mix)),
            second,
            learned: second,
            // The second of the first slot is recorded as far as it is known.
            recorded: (begin * meter.options().slot_ns / 1_000_000_000).saturating_sub(1),
            history_lost_s: 0,
            boot: boot_id(),
            recorder,
            ended,
            hooks_missing: meter.missing_hooks() as u64,
            hooks_lost: 0,
            thresholds: Thresholds::new(events)?,
            queues: Queues::new(config),
            reported,
            config: config.clone(),
            mix,
            meter,
        };
        for number in 0..clients.meter.options().categories() {
            let category = clients.category(number)?;
            clients.categories.push(category);
        }
        clients
            .thresholds
            .set_file(&config.thresholds, &clients.categories);
        if clients.hooks_missing > 0 {
            warn!(
                "an interface of [agent.clients] is not here; its clients are counted once it is there"
            );
        }
        if clients.meter.took_over() {
            info!("the accounting of SYNs went on while no agent ran");
        }
        Ok(clients)
    }

    /// Goes by another configuration as far as the kernel has no part in it
    /// ([`needs_restart`](crate::AgentConfig::needs_restart)). Counts, histories and states of
    /// thresholds stay, and what was learned of clients unless they are described in another way.
    pub fn reload(&mut self, config: &ClientsConfig) -> Result<()> {
        let others = config.classes != self.config.classes;
        let (mix, learner) = (config.mix()?, MixLearner::new(config.classes.clone())?);
        if config.history != self.config.history {
            let former = self.recorder.take();
            former.into_iter().for_each(|former| self.ended.add(former));
            self.recorder = recorder(config, self.second, &mut self.ended)?;
        }
        let unlearned = self.config.learn && !config.learn;
        self.config = config.clone();
        if others {
            (self.learner, self.patience) = (learner, PatienceLearner::default());
        }
        if others || unlearned {
            self.take_mix(mix)?;
        } else {
            self.set_keep();
        }
        self.queues.set(config);
        self.thresholds
            .set_file(&config.thresholds, &self.categories);
        Ok(())
    }

    /// Sets a threshold beside those of the file.
    pub(crate) fn add_threshold(
        &mut self,
        wanted: &NewThreshold,
    ) -> Result<ThresholdView, ThresholdRefused> {
        self.thresholds.add(wanted, &self.config, &self.categories)
    }

    /// Removes one that was set so.
    pub(crate) fn remove_threshold(&mut self, id: u64) -> Result<ThresholdView, ThresholdRefused> {
        self.thresholds.remove(id, &self.categories)
    }

    /// All of them.
    pub(crate) fn thresholds(&self) -> Vec<ThresholdView> {
        self.thresholds.view(&self.categories)
    }

    /// Takes the accounting down.
    pub fn detach(pin_dir: &Path) -> Result<Detached> {
        Ok(SynMeter::detach(&pins(pin_dir))?)
    }

    fn category(&self, number: u32) -> Result<Category> {
        let options = self.meter.options();
        let prefix = (number % options.prefixes()) as usize;
        let service = (number / options.prefixes() % options.services()) as usize;
        let device = (number / options.prefixes() / options.services()) as usize;
        let service = match self.config.services.get(service) {
            Some((name, _, _)) => name.clone(),
            None => "others".to_owned(),
        };
        let clients = match self.config.prefixes.get(prefix) {
            Some((address, length)) => format!("{address}/{length}"),
            None if self.config.prefixes.is_empty() => "all".to_owned(),
            None => "others".to_owned(),
        };
        Ok(Category {
            observer: CategoryObserver::new(self.slot_s, &self.mix, self.keep_slots())?,
            totals: ClientTotals::default(),
            gave_up: SynResponses::default(),
            responses: SynResponses::default(),
            recent_times: RecentTimes::default(),
            device: self.config.interfaces[device].clone(),
            service,
            clients,
        })
    }

    /// Slots to remember: the window, thresholds' longest one, and what `exact` is not done with;
    /// for a history as many as the kernel has, so that it is whole behind an agent that was not
    /// there.
    fn keep_slots(&self) -> usize {
        let needed_s = WINDOW_S + 2.0 * self.judge.longest_s() + 5.0;
        let needed = needed_s.max(WINDOW_MAX.as_secs_f64()) / self.slot_s;
        match self.config.history {
            Some(_) => needed.max(SURE as f64) as usize,
            None => needed as usize,
        }
    }

    fn slot_ns(&self) -> u64 {
        self.meter.options().slot_ns
    }

    /// How long until the next slot can be read.
    pub fn next_tick(&self) -> Duration {
        let now_ns = monotonic_ns();
        let next_ns = (now_ns / self.slot_ns() + 1) * self.slot_ns();
        Duration::from_nanos(next_ns - now_ns) + GRACE
    }

    /// Works off what is new: once per slot; after a pause, all slots that were missed.
    pub fn tick(&mut self) -> Result<()> {
        let now = self.meter.current_slot();
        for (origin, completed) in self.meter.take_origins()? {
            let of = self
                .origins
                .entry((origin.category, origin.number))
                .or_default();
            of.push(Origin {
                slots_ago: origin.slots_ago,
                completed,
            });
        }
        let settled_until = now.saturating_sub(settle_slots(self.slot_s, &self.mix));
        for number in 0..self.categories.len() {
            self.feed(number, settled_until, now)?;
        }
        self.origins.retain(|(_, slot), _| *slot > settled_until);
        self.report();
        let second = monotonic_ns() / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.each_second(second)?;
        }
        Ok(())
    }

    fn feed(&mut self, number: usize, settled_until: u64, now: u64) -> Result<()> {
        let next = self.categories[number].observer.next();
        // What is older than the ring is lost; the model takes it for a quiet time.
        let from = next.unwrap_or(self.begin).max(now.saturating_sub(SURE));
        let mut settled = Vec::new();
        let mut fresh = Vec::new();
        let mut tries = Vec::new();
        for slot in from..now {
            let counted = self.meter.slot(number as u32, slot)?;
            let origins = self.origins.get(&(number as u32, slot)).cloned();
            if slot <= settled_until {
                if slot > self.totals_after {
                    self.total(number, &counted);
                }
                tries.push((counted.offered, counted.accepted));
                settled.push((slot, category::to_slot(&counted, origins)));
            } else {
                fresh.push((slot, category::to_slot(&counted, origins)));
            }
        }
        let observer = &mut self.categories[number].observer;
        observer.feed(&settled, &fresh)?;
        // Sources of a flood do not retry, and would look like clients that give up at once.
        if observer.standing().flood == 0.0 {
            for (offered, accepted) in tries {
                let by_retry = offered.into_iter().zip(accepted);
                self.patience
                    .add(by_retry.map(|(n, of)| (n.into(), of.into())));
            }
        }
        Ok(())
    }

    /// Each slot once, when it is settled.
    fn total(&mut self, number: usize, slot: &SynSlot) {
        let sum = |counts: &[u32]| counts.iter().map(|&n| u64::from(n)).sum::<u64>();
        let s = |ns: u64| ns as f64 / 1e9;
        let totals = &mut self.categories[number].totals;
        totals.offered += sum(&slot.offered);
        totals.accepted += sum(&slot.accepted);
        totals.refused += u64::from(slot.refused);
        totals.completed += u64::from(slot.completed) + u64::from(slot.later);
        totals.later += u64::from(slot.later);
        totals.unused += u64::from(slot.unused);
        totals.stalled += u64::from(slot.stalled);
        totals.duplicates += u64::from(slot.duplicates);
        totals.established += u64::from(slot.established);
        totals.abandoned += u64::from(slot.abandoned);
        totals.lost_s += s(slot.conn_fail_ns) + s(slot.stalled_ns);
        totals.server_s += s(slot.syn_to_end_ns) + s(slot.later_ns);
        totals.network_s += s(slot.rtt_ns);
        totals.timed += u64::from(slot.timed);
        totals.timed_s += s(slot.server_ns);
        totals.overlapping += u64::from(slot.overlapping);
    }

    /// Lost hooks are put back whatever else fails; one that cannot be fails nothing else.
    fn each_second(&mut self, second: u64) -> Result<()> {
        let mended = match second.is_multiple_of(HOOKS_EVERY_S) {
            true => self.mend_hooks(),
            false => Ok(()),
        };
        self.work_off(second)?;
        mended
    }

    fn work_off(&mut self, second: u64) -> Result<()> {
        self.meter.end_silent()?;
        for (category, of) in self.categories.iter_mut().zip(self.meter.responses()?) {
            category.responses = of;
        }
        self.judge_waiting()?;
        for (retry, at_s) in self.gave_up.take_retries() {
            if retry > 0 {
                self.learner.observe(retry.into(), at_s);
            }
        }
        if self.config.learn && second >= self.learned + LEARN_EVERY_S {
            self.learned = second;
            self.learn()?;
        }
        for category in &mut self.categories {
            category.remember_times(second);
        }
        self.watch();
        self.manage_queues();
        self.record(second);
        Ok(())
    }

    /// Counting stops without a word where its hook is gone.
    fn mend_hooks(&mut self) -> Result<()> {
        let changes = self.meter.mend_hooks()?;
        self.hooks_lost += changes.lost.len() as u64;
        if !changes.lost.is_empty() {
            let lost = changes.lost.join(", ");
            match changes.missing {
                0 => warn!(
                    "{lost}: the program was gone and is back; what passed meanwhile is not counted"
                ),
                _ => warn!(
                    "{lost}: gone with the interface; clients are counted again when it is back"
                ),
            }
        }
        self.hooks_missing = changes.missing as u64;
        Ok(())
    }

    /// Finds out who gave up.
    fn judge_waiting(&mut self) -> Result<()> {
        let now_ns = monotonic_ns();
        let waiting = self.meter.waiting()?;
        let mut answered = AnsweredRetries {
            retries: Vec::new(),
            until_ns: monotonic_ns(),
        };
        // Behind the attempts: of those that were answered and are gone by now it has the retries.
        for (time, count) in self.meter.take_retry_times()? {
            let at_s = f64::from(time.at_cs) / 100.0;
            self.learner.observe_many(time.retry as usize, at_s, count);
            answered.retries.push((time.retry, at_s));
        }
        self.gave_up.take_up(answered);
        let keep_after = self.recorder.as_ref().map(|_| self.recorded);
        // Of what cannot be read nothing is taken back.
        let answered = |key: &FlowKey6, first_syn_ns| {
            let found = self.meter.is_answered(key, first_syn_ns);
            found.unwrap_or(false)
        };
        let gone = self.gave_up.review(
            waiting,
            now_ns,
            &self.judge,
            keep_after,
            answered,
            &mut self.categories,
        );
        self.meter.forget(&gone)?;
        Ok(())
    }

    fn watch(&mut self) {
        let slot_s = self.slot_s;
        let mean_s = |category: &Category, window: Duration| {
            let slots = (window.as_secs_f64() / slot_s).round().max(1.0) as usize;
            category.window(slots).1.mean_s()
        };
        self.thresholds
            .step(self.second as f64, &self.categories, mean_s);
    }

    /// Gives the listeners' queues the client latency over all devices and prefixes.
    fn manage_queues(&mut self) {
        let slots = second_slots(self.slot_s);
        let mut by_service: HashMap<&str, queues::Second> = HashMap::new();
        for category in &self.categories {
            let of = by_service.entry(&category.service).or_default();
            let (_, model, offered, accepted) = category.window(slots);
            of.estimate += model;
            of.offered += offered;
            of.accepted += accepted;
        }
        self.queues.step(self.second, &by_service);
    }

    /// Leaves for balancers what clients of each service waited for in the last second.
    fn report(&self) {
        let Some(reported) = &self.reported else {
            return;
        };
        let slots = second_slots(self.slot_s);
        let services = self.config.services.iter().map(|(name, address, port)| {
            let mut sum = Estimate::default();
            for category in self.categories.iter().filter(|of| of.service == *name) {
                sum += category.window(slots).1;
            }
            latency_slot::service(*address, *port, &sum)
        });
        reported.set(services.collect());
    }

    fn window_slots(&self) -> usize {
        (WINDOW_S / self.slot_s).round() as usize
    }

    /// Has the seconds written that `exact` is done with. While the disk is full or does not
    /// answer they wait in the models; what these forget is lost.
    fn record(&mut self, second: u64) {
        let slot_ns = self.slot_ns();
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        let remembered = self.categories.iter();
        let remembered = remembered.filter_map(|of| of.observer.recent().next());
        let oldest = remembered.map(|of| of.number * slot_ns / 1_000_000_000);
        let lost = oldest.min().unwrap_or(0).saturating_sub(self.recorded + 1);
        self.recorded += lost;
        // Before, an agent of this boot may have written them.
        if recorder.is_open() {
            self.history_lost_s += lost;
        }
        match recorder.look(second) {
            // What was recorded by an agent of this boot is not recorded again.
            Some(Done::Opened(Some((boot, last)))) if boot == self.boot => {
                self.recorded = self.recorded.max(last);
            }
            Some(Done::Written(until)) => self.recorded = self.recorded.max(until),
            Some(Done::Opened(_)) | None => {}
        }
        if !recorder.is_free() {
            return;
        }
        let settles = self.judge.longest_s()
            + 2.0
            + CategoryObserver::settle_slots(self.slot_s, &self.mix) as f64 * self.slot_s;
        let until = second.saturating_sub(settles.ceil() as u64);
        let moment = Moment::now();
        let mut records = Vec::new();
        for at in self.recorded + 1..=until {
            let ago_ns = moment.monotonic_ns.saturating_sub(at * 1_000_000_000);
            let unix_ms = moment.before(ago_ns).realtime_ns / 1_000_000;
            for category in &self.categories {
                let record = category.second(at, slot_ns);
                if record.offered > 0
                    || record.exact.transactions() + record.model.transactions() > 0.0
                {
                    records.push(Record {
                        boot: self.boot,
                        unix_ms,
                        ..record
                    });
                }
            }
        }
        recorder.write(second, until, records);
    }

    /// Client latency now.
    pub fn view(&self) -> ClientsView {
        let slots = self.window_slots();
        ClientsView {
            at: Moment::now(),
            slot_s: self.slot_s,
            window_s: WINDOW_S,
            exact_settles_s: self.judge.longest_s() + 1.0,
            recorded_s: self.recorder.as_ref().map(|_| self.recorded),
            history_error: self
                .recorder
                .as_ref()
                .and_then(|recorder| recorder.fault().map(str::to_owned)),
            history_lost_s: self.history_lost_s,
            memory_bytes: self.meter.options().memory_bytes(),
            mix: self
                .mix
                .classes()
                .iter()
                .map(category::class_view)
                .collect(),
            unknown_retries: self.learner.unknown_share(),
            categories: self
                .categories
                .iter()
                .filter(|category| category.is_known())
                .map(|category| category.view(slots, self.slot_s))
                .collect(),
            accept_queues: self.queues.view(),
            hooks_missing: self.hooks_missing,
            hooks_lost: self.hooks_lost,
            thresholds: self.thresholds(),
        }
    }
}

/// What writes the history, if there is to be one.
fn recorder(
    config: &ClientsConfig,
    second: u64,
    ended: &mut EndedRecorders,
) -> Result<Option<Recorder>> {
    let history = config.history.as_ref();
    history
        .map(|(path, bound)| Recorder::start(path, *bound, second, ended))
        .transpose()
}

/// How many slots ago one was that is settled now.
fn settle_slots(slot_s: f64, mix: &Mix) -> u64 {
    1 + CategoryObserver::settle_slots(slot_s, mix)
}

/// Slots of a second, as far as they fit: one at least.
fn second_slots(slot_s: f64) -> usize {
    (1.0 / slot_s).round().max(1.0) as usize
}

/// The accounting's pins: beside the agent's own, which may be taken down alone.
fn pins(pin_dir: &Path) -> std::path::PathBuf {
    let mut name = pin_dir.as_os_str().to_owned();
    name.push("-clients");
    name.into()
}

fn options(config: &ClientsConfig, pin_dir: &Path) -> SynMeterOptions {
    SynMeterOptions {
        interfaces: config.interfaces.clone(),
        pin_dir: pins(pin_dir),
        slot_ns: config.slot.as_nanos() as u64,
        ring: RING,
        half_open: config.half_open,
        connections: config.connections,
        services: config
            .services
            .iter()
            .map(|(_, address, port)| (*address, *port))
            .collect(),
        others: config.others,
        prefixes: config.prefixes.clone(),
    }
}
