// SPDX-License-Identifier: Apache-2.0
//! Thresholds with hysteresis: when a response time is too long, and when no more. Those of the
//! file, and those that programs set while the agent runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use causeway_api::Moment;
use causeway_api::agent::{ClientEvent, NewThreshold, ThresholdView, WatchedCategory};

use super::category::Category;
use super::events::EventLog;
use super::notify::{Notifier, Recipients};
use crate::config::{ClientsConfig, Statistic, Threshold};

/// Thresholds beside those of the file.
const ADDED_MAX: usize = 64;

/// A change of a threshold's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The statistic has been above for as long as was asked.
    Exceeded,
    /// It has been below for as long again.
    Recovered,
    /// The threshold is no more.
    Removed,
}

/// One threshold on one category.
#[derive(Debug, Clone, Default)]
struct Watch {
    exceeded: bool,
    /// Since when the value has been on the other side, seconds of the caller's clock.
    since_s: Option<f64>,
    value_s: Option<f64>,
    mean_s: Option<f64>,
}

impl Watch {
    /// Takes in a value, `None` if no client came: that neither begins nor ends anything.
    /// `now_s` must not go back.
    fn step(&mut self, of: &Threshold, now_s: f64, value_s: Option<f64>) -> Option<Change> {
        let value_s = value_s?;
        self.value_s = Some(value_s);
        let other_side = match self.exceeded {
            false => value_s > of.above.as_secs_f64(),
            true => value_s < of.below.as_secs_f64(),
        };
        if !other_side {
            self.since_s = None;
            return None;
        }
        let since_s = *self.since_s.get_or_insert(now_s);
        if Duration::from_secs_f64((now_s - since_s).max(0.0)) < of.lasting {
            return None;
        }
        self.since_s = None;
        self.exceeded = !self.exceeded;
        Some(match self.exceeded {
            true => Change::Exceeded,
            false => Change::Recovered,
        })
    }
}

/// A threshold in force, with what it watches by the category's number.
#[derive(Debug)]
struct InForce {
    id: u64,
    from_file: bool,
    threshold: Threshold,
    watches: BTreeMap<usize, Watch>,
}

impl InForce {
    fn view(&self, categories: &[Category]) -> ThresholdView {
        let of = &self.threshold;
        let watched = self.watches.iter().filter_map(|(number, watch)| {
            let category = categories.get(*number).filter(|of| of.is_known())?;
            Some(WatchedCategory {
                service: category.service.clone(),
                clients: category.clients.clone(),
                device: category.device.clone(),
                exceeded: watch.exceeded,
                value_s: watch.value_s,
            })
        });
        ThresholdView {
            id: self.id,
            name: of.name.clone(),
            from_file: self.from_file,
            service: of.service.clone(),
            clients: of.clients.clone(),
            statistic: of.statistic.to_string(),
            above_s: of.above.as_secs_f64(),
            below_s: of.below.as_secs_f64(),
            for_s: of.lasting.as_secs_f64(),
            window_s: of.window.as_secs_f64(),
            categories: watched.collect(),
        }
    }

    fn event(&self, change: Change, category: &Category, watch: &Watch) -> ClientEvent {
        let of = &self.threshold;
        let (state, limit) = match change {
            Change::Exceeded => ("exceeded", of.above),
            Change::Recovered => ("recovered", of.below),
            Change::Removed => ("removed", of.below),
        };
        ClientEvent {
            id: 0,
            threshold: of.name.clone(),
            threshold_id: self.id,
            state: state.to_owned(),
            service: category.service.clone(),
            clients: category.clients.clone(),
            device: category.device.clone(),
            statistic: of.statistic.to_string(),
            value_s: watch.value_s.unwrap_or_default(),
            limit_s: limit.as_secs_f64(),
            window_s: of.window.as_secs_f64(),
            mean_s: watch.mean_s.unwrap_or_default(),
            unix_ms: Moment::now().realtime_ns / 1_000_000,
        }
    }
}

/// Why a threshold is neither set nor removed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ThresholdRefused {
    /// There is no such thing as it names, or it cannot begin and end.
    #[error("{0}")]
    Invalid(String),
    /// There are as many as may be.
    #[error(
        "there are {} thresholds that were set at run time, as many as may be: remove one",
        ADDED_MAX
    )]
    Full,
    /// It is the file's.
    #[error("threshold {0} is of the agent's file: remove it there, then `causeway agent reload`")]
    OfFile(u64),
    /// It is unknown.
    #[error(
        "there is no threshold {0}; `causeway agent threshold list` shows those that there are"
    )]
    Unknown(u64),
}

/// All thresholds, and how it is told what becomes of them.
pub(super) struct Thresholds {
    in_force: Vec<InForce>,
    last_id: u64,
    notifier: Notifier,
    events: Arc<EventLog>,
}

impl Thresholds {
    /// None yet; `events` remembers what is told.
    pub(super) fn new(events: Arc<EventLog>) -> Result<Self> {
        Ok(Self {
            in_force: Vec::new(),
            last_id: 0,
            notifier: Notifier::start()?,
            events,
        })
    }

    /// Takes the file's in the place of those that it had; one that is the same goes on.
    pub(super) fn set_file(&mut self, wanted: &[Threshold], categories: &[Category]) {
        let all = std::mem::take(&mut self.in_force).into_iter();
        let (mut former, added): (Vec<_>, Vec<_>) = all.partition(|of| of.from_file);
        for threshold in wanted {
            let same = former.iter().position(|of| of.threshold == *threshold);
            match same {
                Some(at) => self.in_force.push(former.remove(at)),
                None => self.push(true, threshold.clone(), categories),
            }
        }
        self.in_force.extend(added);
        for of in &former {
            self.tell_removed(of, categories);
        }
    }

    /// Sets one until it is removed or the agent ends.
    pub(super) fn add(
        &mut self,
        wanted: &NewThreshold,
        config: &ClientsConfig,
        categories: &[Category],
    ) -> Result<ThresholdView, ThresholdRefused> {
        let added = self.in_force.iter().filter(|of| !of.from_file);
        if added.count() >= ADDED_MAX {
            return Err(ThresholdRefused::Full);
        }
        let threshold = Threshold::asked(wanted, config).map_err(ThresholdRefused::Invalid)?;
        self.push(false, threshold, categories);
        let id = self.last_id;
        let added = self.in_force.iter().find(|of| of.id == id);
        Ok(added.map(|of| of.view(categories)).unwrap_or_default())
    }

    /// Removes one that was added, and says what it was.
    pub(super) fn remove(
        &mut self,
        id: u64,
        categories: &[Category],
    ) -> Result<ThresholdView, ThresholdRefused> {
        let at = self.in_force.iter().position(|of| of.id == id);
        let at = at.ok_or(ThresholdRefused::Unknown(id))?;
        if self.in_force[at].from_file {
            return Err(ThresholdRefused::OfFile(id));
        }
        let removed = self.in_force.remove(at);
        self.tell_removed(&removed, categories);
        Ok(removed.view(categories))
    }

    fn push(&mut self, from_file: bool, threshold: Threshold, categories: &[Category]) {
        self.last_id += 1;
        let numbered = categories.iter().enumerate();
        let watched = numbered.filter(|(_, of)| threshold.is_about(&of.service, &of.clients));
        let watches = watched.map(|(number, _)| (number, Watch::default()));
        self.in_force.push(InForce {
            id: self.last_id,
            from_file,
            watches: watches.collect(),
            threshold,
        });
    }

    /// A program that was told that it is exceeded would wait for its end for ever.
    fn tell_removed(&self, of: &InForce, categories: &[Category]) {
        for (number, watch) in of.watches.iter().filter(|(_, watch)| watch.exceeded) {
            if let Some(category) = categories.get(*number) {
                self.tell(of, of.event(Change::Removed, category, watch));
            }
        }
    }

    fn tell(&self, of: &InForce, mut event: ClientEvent) {
        self.events.tell(&mut event);
        let recipients = Recipients {
            webhook: of.threshold.webhook.clone(),
            exec: of.threshold.exec.clone(),
        };
        self.notifier.tell(event, recipients);
    }

    /// Once a second: `mean_of` gives the mean of so many last seconds of a category.
    pub(super) fn step(
        &mut self,
        now_s: f64,
        categories: &[Category],
        mean_of: impl Fn(&Category, Duration) -> Option<f64>,
    ) {
        let mut told = Vec::new();
        for (number, category) in categories.iter().enumerate() {
            let mut means: Vec<(Duration, Option<f64>)> = Vec::new();
            for (at, of) in self.in_force.iter_mut().enumerate() {
                let (threshold, window) = (&of.threshold, of.threshold.window);
                let Some(watch) = of.watches.get_mut(&number) else {
                    continue;
                };
                let known = means.iter().find(|(of, _)| *of == window);
                let mean_s = known.map_or_else(|| mean_of(category, window), |(_, mean_s)| *mean_s);
                if known.is_none() {
                    means.push((window, mean_s));
                }
                watch.mean_s = mean_s;
                let value_s = match threshold.statistic {
                    Statistic::Mean => mean_s,
                    Statistic::Percentile(percent) => {
                        let window_s = window.as_secs_f64().ceil() as u64;
                        category.recent_times.percentile_s(percent, window_s)
                    }
                };
                if let Some(change) = watch.step(threshold, now_s, value_s) {
                    told.push((at, number, change));
                }
            }
        }
        for (at, number, change) in told {
            let of = &self.in_force[at];
            let event = of.event(change, &categories[number], &of.watches[&number]);
            self.tell(of, event);
        }
    }

    /// All of them.
    pub(super) fn view(&self, categories: &[Category]) -> Vec<ThresholdView> {
        self.in_force.iter().map(|of| of.view(categories)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::category::tests::category;
    use super::*;
    use crate::config::AgentConfig;

    fn threshold(name: &str) -> Threshold {
        Threshold {
            name: name.to_owned(),
            service: None,
            clients: None,
            statistic: Statistic::Mean,
            above: Duration::from_secs(2),
            below: Duration::from_secs(1),
            lasting: Duration::from_secs(3),
            window: Duration::from_secs(10),
            webhook: None,
            exec: Vec::new(),
        }
    }

    fn changes(means: &[f64]) -> Vec<(usize, Change)> {
        let (mut watch, slow) = (Watch::default(), threshold("slow"));
        let steps = means.iter().enumerate();
        steps
            .filter_map(|(at, &mean)| Some((at, watch.step(&slow, at as f64, Some(mean))?)))
            .collect()
    }

    #[test]
    fn it_takes_as_long_as_asked_on_the_other_side_to_change() {
        use Change::*;
        assert_eq!(changes(&[0.5, 3.0, 3.0, 3.0, 3.0, 3.0]), [(4, Exceeded)]);
        assert_eq!(
            changes(&[3.0, 3.0, 3.0, 0.5, 3.0, 3.0, 3.0]),
            [],
            "interrupted"
        );
        let there_and_back = [3.0, 3.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 0.5];
        assert_eq!(changes(&there_and_back), [(3, Exceeded), (11, Recovered)]);
        let between = [3.0, 3.0, 3.0, 3.0, 1.5, 3.0, 1.5, 3.0, 1.5, 3.0, 1.5];
        assert_eq!(changes(&between), [(3, Exceeded)], "no chatter in between");
    }

    #[test]
    fn silence_changes_nothing() {
        let (mut watch, slow) = (Watch::default(), threshold("slow"));
        for at in 0..10 {
            let mean = (at % 2 == 0).then_some(3.0);
            let change = watch.step(&slow, f64::from(at), mean);
            assert_eq!(change.is_some(), at == 4, "{at}");
        }
    }

    struct Bench {
        thresholds: Thresholds,
        events: Arc<EventLog>,
        categories: Vec<Category>,
        now_s: f64,
    }

    impl Bench {
        /// Two services, of each two groups of clients.
        fn new() -> Self {
            let events = Arc::new(EventLog::new());
            let named = [
                ("*:80", "10.0.0.0/8"),
                ("*:80", "others"),
                ("*:443", "others"),
            ];
            Self {
                thresholds: Thresholds::new(Arc::clone(&events)).unwrap(),
                events,
                categories: named.map(|(of, from)| category(of, from)).into(),
                now_s: 0.0,
            }
        }

        /// What is told while the mean is this for so many seconds.
        fn told(&mut self, seconds: usize, mean_s: f64) -> Vec<(u64, String, String)> {
            let before = self.events.after(None).last;
            for _ in 0..seconds {
                self.now_s += 1.0;
                self.thresholds
                    .step(self.now_s, &self.categories, |_, _| Some(mean_s));
            }
            self.told_after(before)
        }

        fn told_after(&self, before: u64) -> Vec<(u64, String, String)> {
            let told = self.events.after(Some(before)).events.into_iter();
            told.map(|of| {
                (
                    of.threshold_id,
                    of.state,
                    format!("{} {}", of.service, of.clients),
                )
            })
            .collect()
        }

        fn set_file(&mut self, wanted: &[Threshold]) -> Vec<(u64, String, String)> {
            let before = self.events.after(None).last;
            self.thresholds.set_file(wanted, &self.categories);
            self.told_after(before)
        }
    }

    fn of(id: u64, state: &str, category: &str) -> (u64, String, String) {
        (id, state.to_owned(), category.to_owned())
    }

    #[test]
    fn a_file_that_is_read_again_leaves_what_is_the_same_in_it() {
        let mut bench = Bench::new();
        let one = Threshold {
            service: Some("*:443".to_owned()),
            ..threshold("one")
        };
        let two = Threshold {
            clients: Some("10.0.0.0/8".to_owned()),
            ..threshold("two")
        };
        assert_eq!(bench.set_file(&[one.clone(), two.clone()]), []);
        assert_eq!(
            bench.told(4, 3.0),
            [
                of(2, "exceeded", "*:80 10.0.0.0/8"),
                of(1, "exceeded", "*:443 others")
            ]
        );
        let lower = Threshold {
            above: Duration::from_millis(1500),
            ..two
        };
        assert_eq!(
            bench.set_file(&[lower, one]),
            [of(2, "removed", "*:80 10.0.0.0/8")]
        );
        assert_eq!(
            bench.told(4, 3.0),
            [of(3, "exceeded", "*:80 10.0.0.0/8")],
            "one is exceeded as before"
        );
        assert_eq!(bench.set_file(&[]).len(), 2);
        assert_eq!(bench.told(4, 0.1), []);
    }

    #[test]
    fn those_that_are_added_are_bounded_outlive_the_files_and_go_when_they_are_removed() {
        let mut bench = Bench::new();
        bench.set_file(&[threshold("file")]);
        let text = "[agent]\ninterface = \"eth0\"\n[agent.clients]\nservices = [\"*:80\", \"*:443\"]\n\
                    prefixes = [\"10.0.0.0/8\"]\n";
        let config = AgentConfig::parse(Path::new("agent.toml"), text).unwrap();
        let config = config.clients.unwrap();
        let wanted = NewThreshold {
            service: Some("*:80".to_owned()),
            clients: Some("others".to_owned()),
            above_s: 2.0,
            for_s: Some(0.0),
            ..NewThreshold::default()
        };
        let add = |bench: &mut Bench| {
            let categories = &bench.categories;
            bench.thresholds.add(&wanted, &config, categories)
        };
        let added = add(&mut bench).unwrap();
        assert_eq!((added.id, added.from_file), (2, false));
        assert_eq!((added.below_s, added.window_s), (1.6, 10.0));
        assert_eq!(bench.told(1, 3.0), [of(2, "exceeded", "*:80 others")]);
        bench.set_file(&[]);
        let seen = bench.events.after(None).last;
        let removed = bench.thresholds.remove(2, &bench.categories).unwrap();
        assert_eq!(removed.id, 2);
        assert_eq!(bench.told_after(seen), [of(2, "removed", "*:80 others")]);
        assert_eq!(
            bench.thresholds.remove(2, &bench.categories),
            Err(ThresholdRefused::Unknown(2))
        );
        bench.set_file(&[threshold("file")]);
        assert_eq!(
            bench.thresholds.remove(3, &bench.categories),
            Err(ThresholdRefused::OfFile(3))
        );
        for _ in 0..ADDED_MAX {
            add(&mut bench).unwrap();
        }
        assert_eq!(add(&mut bench), Err(ThresholdRefused::Full));
    }

    #[test]
    fn a_percentile_is_watched_where_the_mean_is_well() {
        let mut bench = Bench::new();
        bench.set_file(&[Threshold {
            statistic: Statistic::Percentile(99.0),
            window: Duration::from_secs(4),
            ..threshold("tail")
        }]);
        for second in 0..20 {
            // From the sixth second on one of fifty waits for 2.5 to 5 s.
            let category = &mut bench.categories[0];
            category.responses.count[7] += 49;
            category.responses.count[if second < 6 { 7 } else { 12 }] += 1;
            category.remember_times(second);
        }
        let told = bench.told(4, 0.1);
        assert_eq!(told, [of(1, "exceeded", "*:80 10.0.0.0/8")]);
        let event = bench.events.after(Some(0)).events.remove(0);
        assert_eq!((event.statistic.as_str(), event.mean_s), ("p99", 0.1));
        assert!((2.5..=5.0).contains(&event.value_s), "{event:?}");
    }
}
