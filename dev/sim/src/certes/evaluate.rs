// SPDX-License-Identifier: Apache-2.0
//! Every method on the counters of one run, against client latency.

use causeway_core::certes::{
    CertesError, DropOdds, Estimate, FastModel, FloodDetector, Mix, ModelFit, NetworkLoss,
    PatienceLearner, Slot, StallShares,
};

use super::comparators::{queueing_mean_s, sliding_window_mean_s};
use super::reference::ReferenceModel;
use super::workload::Workload;
use super::world::{CertesOutcome, Second};

/// A way to estimate the mean client response time at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertesMethod {
    /// The tracker of first SYNs.
    Exact,
    /// The fast model, with drop odds and network loss as measured.
    Model,
    /// The fast model under the paper's hypothesis: drops do not depend on the retry,
    /// and no network loss.
    PaperModel,
    /// As `Model`, with the clients' patience learned from a first pass over the
    /// whole run's counters.
    Learned,
    /// The full model of section 3.1 under the same hypothesis.
    Reference,
    /// The server's own view: SYN-to-END.
    SynToEnd,
    /// The application's view: from accept to close.
    Application,
    /// M/M/1 (eq. 32).
    Queueing,
    /// Drop rates of earlier slots (eq. 33).
    SlidingWindow,
}

impl CertesMethod {
    pub const ALL: [Self; 9] = [
        Self::Exact,
        Self::Model,
        Self::PaperModel,
        Self::Learned,
        Self::Reference,
        Self::SynToEnd,
        Self::Application,
        Self::Queueing,
        Self::SlidingWindow,
    ];

    /// What tables and files call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Model => "model",
            Self::PaperModel => "paper_model",
            Self::Learned => "learned",
            Self::Reference => "reference",
            Self::SynToEnd => "syn_to_end",
            Self::Application => "application",
            Self::Queueing => "mm1",
            Self::SlidingWindow => "sliding_window",
        }
    }
}

/// How far a method was off, in percent of the true mean after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimateErrors {
    /// Of the mean over all transactions, signed.
    pub mean_pct: f64,
    /// Of the seconds' means, absolute, each weighed by its transactions.
    pub per_second_pct: f64,
}

/// A method's transactions by second.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodSeries {
    /// Whose they are.
    pub method: CertesMethod,
    /// By second from the start.
    pub seconds: Vec<Second>,
    /// Against the truth.
    pub errors: EstimateErrors,
}

/// Response times in bins: shares of all transactions after the warm-up, those who
/// gave up included (figure 17).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Width of a bin, seconds.
    pub bin_s: f64,
    /// Client latencies.
    pub truth: Vec<f64>,
    /// SYN-to-END and round trip as measured, lost time as the model has it.
    pub model: Vec<f64>,
    /// SYN-to-END alone.
    pub syn_to_end: Vec<f64>,
}

/// What came of a workload.
#[derive(Clone, Debug)]
pub struct Evaluation {
    pub name: String,
    /// The true mean after the warm-up, seconds; clients that gave up count with
    /// what they had waited (eq. 4).
    pub truth_mean_s: f64,
    /// Completed connections per second.
    pub rate: f64,
    /// SYNs that were dropped, in percent of those that came.
    pub syn_drop_pct: f64,
    /// Clients that gave up, in percent of transactions.
    pub gave_up_pct: f64,
    /// Drop rates by retry, in percent, where enough SYNs came.
    pub drop_pct_by_retry: Vec<f64>,
    /// Odds of a retry's drop over those of a first SYN's, at the end; the model's
    /// hypothesis is 1.
    pub odds_ratio: Option<f64>,
    /// What that says of the model.
    pub confidence: ModelFit,
    /// Network loss as inferred from handshakes.
    pub loss: f64,
    /// Share of first SYNs that was taken for a flood, at the end.
    pub flood_share: f64,
    /// Client latency, by second.
    pub truth: Vec<Second>,
    /// Every method.
    pub series: Vec<MethodSeries>,
    /// How response times are distributed.
    pub distribution: Distribution,
    /// Retries that came in each second, and that the model had expected a second before
    /// (Certes, section 6).
    pub retries: Vec<Forecast>,
    /// How far it was off, in percent of all retries after the warm-up.
    pub forecast_error_pct: f64,
}

/// Retries in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// As the model expected.
    pub expected: f64,
    /// As they came.
    pub came: f64,
}

impl Evaluation {
    /// One method's figures.
    pub fn of(&self, method: CertesMethod) -> Option<&MethodSeries> {
        self.series.iter().find(|series| series.method == method)
    }
}

/// Runs every method over a run's counters. The models begin at `from_s`; the figures
/// are of what comes after the warm-up or after that, whichever is later.
pub fn evaluate(
    of: &Workload,
    run: &CertesOutcome,
    from_s: f64,
) -> Result<Evaluation, CertesError> {
    evaluate_by(&CertesMethod::ALL, of, run, from_s)
}

/// The same for some methods: the full model is by far the slowest, above all with
/// short slots, and runs only where it is among them.
pub fn evaluate_by(
    methods: &[CertesMethod],
    of: &Workload,
    run: &CertesOutcome,
    from_s: f64,
) -> Result<Evaluation, CertesError> {
    let begin = of.warm_up_s.max(from_s) as usize;
    let seconds = begin..of.duration_s as usize;
    let truth = total(&run.truth[seconds.clone()]);
    let truth_mean_s = truth.sum_s / truth.count.max(1.0);
    let models = Models::new(methods, of, run)?.run(run, (from_s / of.slot_s) as usize)?;
    let errors = |estimate: &[Second]| errors(&run.truth, estimate, seconds.clone(), truth_mean_s);
    let series = methods
        .iter()
        .map(|&method| {
            let seconds = models.seconds(method, of, run);
            MethodSeries {
                method,
                errors: errors(&seconds),
                seconds,
            }
        })
        .collect();
    let after = &run.slots[(begin as f64 / of.slot_s) as usize..];
    let retries = models.retries(of, run);
    let sum = |count: fn(&Slot) -> u64| after.iter().map(count).sum::<u64>() as f64;
    let (completed, gave_up) = (run.completions.len() as f64, run.gave_up_s.len() as f64);
    Ok(Evaluation {
        name: of.name.clone(),
        truth_mean_s,
        rate: sum(|slot| slot.completed) / (of.duration_s - begin as f64),
        syn_drop_pct: 100.0 * sum(Slot::dropped) / sum(|slot| slot.offered).max(1.0),
        gave_up_pct: 100.0 * gave_up / (gave_up + completed).max(1.0),
        drop_pct_by_retry: drop_pct_by_retry(run),
        odds_ratio: models.odds.ratio(),
        confidence: models.odds.confidence(),
        loss: models.loss.share(),
        flood_share: models.flood.share(),
        truth: run.truth.clone(),
        series,
        distribution: models.distribution(of, run, begin),
        forecast_error_pct: forecast_error_pct(&retries[seconds]),
        retries,
    })
}

fn forecast_error_pct(retries: &[Forecast]) -> f64 {
    let came: f64 = retries.iter().map(|of| of.came).sum();
    let off = retries.iter().map(|of| (of.expected - of.came).abs());
    100.0 * off.sum::<f64>() / came.max(1.0)
}

fn drop_pct_by_retry(run: &CertesOutcome) -> Vec<f64> {
    let known = run.by_retry.iter().take_while(|of| of.offered >= 30);
    known
        .map(|of| 100.0 * (of.offered - of.accepted) as f64 / of.offered as f64)
        .collect()
}

/// The models and what they gave, by slot.
struct Models {
    model: FastModel,
    paper: FastModel,
    reference: Option<ReferenceModel>,
    odds: DropOdds,
    loss: NetworkLoss,
    stalls: StallShares,
    flood: FloodDetector,
    learned: FastModel,
    model_s: Vec<Estimate>,
    /// Retries that were expected in each slot, a second before it.
    expected: Vec<f64>,
    /// Lost times of the SYNs accepted in each slot, and their shares.
    lost: Vec<Vec<(f64, f64)>>,
    learned_s: Vec<Estimate>,
    paper_s: Vec<Estimate>,
    reference_s: Vec<Estimate>,
}

impl Models {
    fn new(
        methods: &[CertesMethod],
        of: &Workload,
        run: &CertesOutcome,
    ) -> Result<Self, CertesError> {
        let mut patience = PatienceLearner::default();
        patience.add(run.by_retry.iter().map(|of| (of.offered, of.accepted)));
        let mut loss = NetworkLoss::new(of.slot_s);
        run.slots.iter().for_each(|slot| loss.add(slot));
        let known_s: Vec<f64> = of.clients_are.iter().map(|class| class.fto_s).collect();
        let class = &of.model_takes[0];
        let learned = patience.split(class, &known_s, loss.share())?;
        let mix = Mix::new(of.model_takes.clone())?;
        Ok(Self {
            model: FastModel::new(of.slot_s, mix.clone(), 0.0)?,
            paper: FastModel::new(of.slot_s, mix.clone(), 0.0)?,
            reference: match methods.contains(&CertesMethod::Reference) {
                true => Some(ReferenceModel::new(of.slot_s, mix.clone(), 0.0, &[])?),
                false => None,
            },
            odds: DropOdds::new(of.slot_s),
            loss: NetworkLoss::new(of.slot_s),
            stalls: StallShares::new(of.slot_s),
            flood: FloodDetector::new(of.slot_s, &mix),
            learned: FastModel::new(of.slot_s, learned, 0.0)?,
            model_s: Vec::new(),
            expected: vec![0.0; slots_per_second(of)],
            lost: Vec::new(),
            learned_s: Vec::new(),
            paper_s: Vec::new(),
            reference_s: Vec::new(),
        })
    }

    fn run(mut self, run: &CertesOutcome, from: usize) -> Result<Self, CertesError> {
        let nothing = Slot::default();
        for (index, slot) in run.slots.iter().enumerate() {
            let slot = if index < from { &nothing } else { slot };
            // Silent SYNs are known a first retry gap later; that is when an agent
            // steps its model while a flood lasts.
            self.flood.judge(slot);
            let real = self.flood.without_flood(slot);
            self.odds.add(&real);
            self.loss.add(&real);
            self.stalls.add(&real);
            self.model.set_odds(Some(&self.odds));
            self.model.set_loss(self.loss.share())?;
            self.model.set_stalls(&self.stalls);
            self.learned.set_odds(Some(&self.odds));
            self.learned.set_loss(self.loss.share())?;
            self.learned.set_stalls(&self.stalls);
            self.learned_s.push(self.learned.step(&real));
            self.model_s.push(self.model.step(&real));
            let ahead = self.expected.len() - self.model_s.len();
            self.expected.push(self.model.forecast(ahead));
            self.lost.push(self.model.lost_time_shares());
            self.paper_s.push(self.paper.step(slot));
            if let Some(reference) = &mut self.reference {
                self.reference_s.push(reference.step(slot));
            }
        }
        Ok(self)
    }

    fn distribution(&self, of: &Workload, run: &CertesOutcome, begin: usize) -> Distribution {
        const BIN_S: f64 = 0.25;
        let longest = of
            .clients_are
            .iter()
            .map(|class| class.fto_s)
            .fold(0.0, f64::max);
        let bins = ((longest + 60.0) / BIN_S) as usize;
        let mut all = [vec![0.0; bins], vec![0.0; bins], vec![0.0; bins]];
        let mut add = |which: usize, s: f64, share: f64| {
            all[which][((s / BIN_S) as usize).min(bins - 1)] += share;
        };
        for done in &run.completions {
            let (served_s, rtt_s) = (f64::from(done.served_s), f64::from(done.rtt_s));
            add(0, f64::from(done.took_s), 1.0);
            add(2, served_s, 1.0);
            for (lost_s, share) in &self.lost[done.accepted_slot as usize] {
                add(1, lost_s + served_s + rtt_s, *share);
            }
        }
        for second in &run.gave_up_s {
            add(0, *second, 1.0);
        }
        let after = &self.model_s[(begin as f64 / of.slot_s) as usize..];
        for slot in after.iter().filter(|slot| slot.gave_up > 0.0) {
            add(1, slot.give_up_s / slot.gave_up, slot.gave_up);
        }
        let [truth, model, syn_to_end] = all.map(|bins| {
            let total: f64 = bins.iter().sum();
            bins.into_iter().map(|n| n / total.max(1.0)).collect()
        });
        Distribution {
            bin_s: BIN_S,
            truth,
            model,
            syn_to_end,
        }
    }

    fn retries(&self, of: &Workload, run: &CertesOutcome) -> Vec<Forecast> {
        let came = run
            .slots
            .iter()
            .map(|slot| slot.offered - slot.first_offered);
        let slots: Vec<(u64, &f64)> = came.zip(&self.expected).collect();
        let second = |slots: &[(u64, &f64)]| Forecast {
            expected: slots.iter().map(|(_, expected)| **expected).sum(),
            came: slots.iter().map(|(came, _)| *came as f64).sum(),
        };
        slots.chunks(slots_per_second(of)).map(second).collect()
    }

    fn seconds(&self, method: CertesMethod, of: &Workload, run: &CertesOutcome) -> Vec<Second> {
        match method {
            CertesMethod::Exact => run.exact.clone(),
            CertesMethod::Model => by_second(&self.model_s, of),
            CertesMethod::Learned => by_second(&self.learned_s, of),
            CertesMethod::PaperModel => by_second(&self.paper_s, of),
            CertesMethod::Reference => by_second(&self.reference_s, of),
            CertesMethod::SynToEnd => run.syn_to_end.clone(),
            CertesMethod::Application => run.application.clone(),
            CertesMethod::Queueing => comparator(of, run, |served_s, rate_at| {
                queueing_mean_s(served_s, rate_at(0.0))
            }),
            CertesMethod::SlidingWindow => comparator(of, run, |served_s, rate_at| {
                sliding_window_mean_s(served_s, rate_at)
            }),
        }
    }
}

fn slots_per_second(of: &Workload) -> usize {
    (1.0 / of.slot_s).round().max(1.0) as usize
}

fn by_second(estimates: &[Estimate], of: &Workload) -> Vec<Second> {
    estimates
        .chunks(slots_per_second(of))
        .map(|slots| {
            let mut sum = Estimate::default();
            slots.iter().for_each(|slot| sum += *slot);
            Second {
                count: sum.transactions(),
                sum_s: sum.mean_s().unwrap_or(0.0) * sum.transactions(),
            }
        })
        .collect()
}

/// A formula over SYN-to-END and the drop rates of seconds.
fn comparator(
    of: &Workload,
    run: &CertesOutcome,
    mean_s: impl Fn(f64, &dyn Fn(f64) -> f64) -> f64,
) -> Vec<Second> {
    let rates: Vec<f64> = run
        .slots
        .chunks(slots_per_second(of))
        .map(|slots| {
            let offered: u64 = slots.iter().map(|slot| slot.offered).sum();
            let dropped: u64 = slots.iter().map(Slot::dropped).sum();
            dropped as f64 / offered.max(1) as f64
        })
        .collect();
    let served = run.syn_to_end.iter().enumerate();
    served
        .map(|(now, second)| {
            let rate_at = |back_s: f64| {
                let at = now as f64 - back_s.round();
                if at >= 0.0 { rates[at as usize] } else { 0.0 }
            };
            if second.count == 0.0 {
                return Second::default();
            }
            let mean = mean_s(second.sum_s / second.count, &rate_at);
            Second {
                count: second.count,
                sum_s: mean * second.count,
            }
        })
        .collect()
}

fn total(seconds: &[Second]) -> Second {
    seconds
        .iter()
        .fold(Second::default(), |sum, second| Second {
            count: sum.count + second.count,
            sum_s: sum.sum_s + second.sum_s,
        })
}

fn errors(
    truth: &[Second],
    estimate: &[Second],
    range: std::ops::Range<usize>,
    truth_mean_s: f64,
) -> EstimateErrors {
    let mean = |second: &Second| {
        if second.count > 0.0 {
            second.sum_s / second.count
        } else {
            0.0
        }
    };
    let of = total(&estimate[range.clone()]);
    let count = total(&truth[range.clone()]).count.max(1.0);
    let off: f64 = range
        .map(|at| truth[at].count * (mean(&truth[at]) - mean(&estimate[at])).abs())
        .sum();
    EstimateErrors {
        mean_pct: 100.0 * (mean(&of) / truth_mean_s - 1.0),
        per_second_pct: 100.0 * off / count / truth_mean_s,
    }
}
