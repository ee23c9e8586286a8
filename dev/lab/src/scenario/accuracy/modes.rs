// SPDX-License-Identifier: Apache-2.0
//! PIRATE's Algorithm 2 over its parameters, on recordings of the accuracy matrix.
//!
//! The paper names no epsilon, has ten modes prove enough and leaves the epoch to the operator.
//! Each setting is judged as the matrix judges, by epochs of its own length; an epoch with
//! responses and without an estimate counts as 100 % off, or what is silent would be best.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use causeway_core::estimate::{Method, ModesConfig, ModesIbg};
use causeway_core::flow::Headers;
use causeway_report::chart::{Chart, Scale, Series};
use serde::Serialize;
use serde_json::Value;

use super::super::{Context, Scenario, param};
use super::judge;
use crate::load::log::Log;

/// Microseconds.
const ABSOLUTE_US: [u32; 13] = [
    5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000,
];
/// Thousandths of a mode's edge.
const RELATIVE: [u32; 5] = [50, 100, 250, 500, 1000];
/// Of settings that are equally good the first is the best one: ten are the paper's.
const MODES: [u32; 4] = [10, 5, 3, 2];
const EPOCHS_MS: [u64; 6] = [50, 100, 200, 500, 1000, 2000];
/// Of an epoch. Window-chain runs beside them, in front.
const SETTINGS: usize = (ABSOLUTE_US.len() + RELATIVE.len()) * MODES.len() * 2;
/// Errors count as this in means: how far beyond an estimate is does not matter.
const USELESS_PCT: f64 = 100.0;
/// Workloads that plots show, one for each kind.
const SHOWN: [&str; 6] = [
    "w1",
    "w4_par",
    "w4_batch",
    "w4_wan20",
    "memcached_w1",
    "h3_w4",
];

pub(in super::super) const MODES_SWEEP: Scenario = Scenario {
    name: "modes",
    about: "PIRATE's Algorithm 2 over epsilon, N and epoch, on recordings that `accuracy` kept",
    params: &[
        param(
            "recordings",
            "",
            "directory that `run accuracy --param keep=` has filled",
        ),
        param("workloads", "", "names, comma-separated; empty: all"),
        param("out", "", "directory for the plots (SVG); empty: none"),
    ],
    run,
    table,
};

/// One way to run the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct ModesSetting {
    /// None where epsilon is a share of the mode's edge.
    epsilon_us: Option<u32>,
    epsilon_pct: Option<f64>,
    modes: u32,
    epoch_ms: u64,
    /// Which mode is the gap between batches: that with the largest gaps, as published, or that
    /// with the most time.
    ibg: &'static str,
}

impl ModesSetting {
    /// Fixed epsilon and the largest mode.
    fn is_published(&self) -> bool {
        self.epsilon_us.is_some() && self.ibg == ibg_word(ModesIbg::Largest)
    }

    fn of(config: &ModesConfig, epoch_ms: u64) -> Self {
        let relative = config.epsilon_permille > 0;
        Self {
            epsilon_us: (!relative).then_some((config.epsilon_ns / 1000) as u32),
            epsilon_pct: relative.then_some(f64::from(config.epsilon_permille) / 10.0),
            modes: config.modes,
            epoch_ms,
            ibg: ibg_word(config.ibg),
        }
    }

    /// For tables and titles.
    fn text(&self) -> String {
        let epsilon = match (self.epsilon_us, self.epsilon_pct) {
            (Some(us), _) => format!("{us} us"),
            (None, share) => format!("{} %", share.unwrap_or(0.0)),
        };
        let Self {
            modes,
            epoch_ms,
            ibg,
            ..
        } = self;
        format!("{epsilon}, N {modes}, {epoch_ms} ms, {ibg}")
    }
}

fn ibg_word(ibg: ModesIbg) -> &'static str {
    match ibg {
        ModesIbg::Largest => "largest",
        ModesIbg::MostTime => "most time",
    }
}

/// All settings of an epoch, in the order of the sweep.
fn configs() -> Vec<ModesConfig> {
    let absolute = ABSOLUTE_US.map(|us| (u64::from(us) * 1000, 0));
    let relative = RELATIVE.map(|permille| (0, permille));
    let epsilons = absolute.into_iter().chain(relative);
    let with = |(epsilon_ns, epsilon_permille)| {
        let each = |modes| [(modes, ModesIbg::Largest), (modes, ModesIbg::MostTime)];
        let others = MODES.into_iter().flat_map(each);
        others.map(move |(modes, ibg)| ModesConfig {
            epsilon_ns,
            epsilon_permille,
            modes,
            ibg,
            ..ModesConfig::default()
        })
    };
    epsilons.flat_map(with).collect()
}

fn settings() -> Vec<ModesSetting> {
    let of = |epoch_ms| {
        let configs = configs().into_iter();
        configs.map(move |config| ModesSetting::of(&config, epoch_ms))
    };
    EPOCHS_MS.into_iter().flat_map(of).collect()
}

/// A setting with its error.
#[derive(Clone, Debug, Serialize)]
struct Scored {
    setting: ModesSetting,
    /// It in words.
    text: String,
    median_pct: f64,
}

/// One recording.
#[derive(Debug, Serialize)]
struct SweptWorkload {
    name: String,
    /// Window-chain's error by epochs of 200 ms.
    window_chain_pct: f64,
    /// The matrix's `modes_as_published` and `modes`.
    as_published: Scored,
    as_shipped: Scored,
    /// The best of all settings with a fixed epsilon and the largest mode, and of all.
    best_published: Scored,
    best: Scored,
    /// The error of the one setting that is best over all workloads, of either kind.
    one_published_pct: f64,
    one_pct: f64,
    /// By setting.
    #[serde(skip)]
    errors: Vec<f64>,
}

/// One setting over all workloads.
#[derive(Debug, Serialize)]
struct OverAll {
    setting: ModesSetting,
    /// It in words.
    text: String,
    /// Mean of the workloads' errors, each of 100 % at most: what `best` means.
    mean_pct: f64,
    median_pct: f64,
    worst_pct: f64,
    /// Workloads with an error of 10 % at most.
    within10: usize,
}

#[derive(Debug, Serialize)]
struct ModesSweep {
    workloads: Vec<SweptWorkload>,
    as_published: OverAll,
    as_shipped: OverAll,
    best_published: OverAll,
    best: OverAll,
    /// How many workloads are within 10 % if each has its own best setting.
    within10_each_published: usize,
    within10_each: usize,
    /// What plots show: the one setting that is best, with one parameter changed.
    sensitivity: Vec<Sensitivity>,
}

#[derive(Debug, Serialize)]
struct Sensitivity {
    name: String,
    /// Parameter, and the mean over all workloads.
    means: Vec<(f64, f64)>,
    #[serde(skip)]
    chart: Chart,
}

fn run(context: &Context) -> Result<Value> {
    let directory: String = context.param("recordings")?;
    ensure!(
        !directory.is_empty(),
        "recordings: name the directory that `run accuracy --param keep=` has filled"
    );
    let directory = PathBuf::from(directory);
    let asked: String = context.param("workloads")?;
    let mut found = Vec::new();
    for name in names(&directory, &asked)? {
        context.say(&name);
        let failed = || format!("recording {name}");
        found.push(sweep(&directory, &name).with_context(failed)?);
    }
    ensure!(
        !found.is_empty(),
        "no recordings in {}",
        directory.display()
    );
    let swept = summarized(found);
    let out: String = context.param("out")?;
    if !out.is_empty() {
        let out = PathBuf::from(out);
        let failed = || format!("cannot write plots to {}", out.display());
        fs::create_dir_all(&out).with_context(failed)?;
        for of in &swept.sensitivity {
            let file = format!("{}.svg", of.name);
            fs::write(out.join(file), of.chart.file()).with_context(failed)?;
        }
    }
    Ok(serde_json::to_value(swept)?)
}

/// The recordings to read, sorted.
fn names(directory: &Path, asked: &str) -> Result<Vec<String>> {
    if !asked.is_empty() {
        return Ok(asked.split(',').map(str::to_owned).collect());
    }
    let failed = || format!("cannot read {}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).with_context(failed)? {
        let file = entry.with_context(failed)?.file_name();
        let name = file.to_string_lossy();
        names.extend(name.strip_suffix(".pcap").map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// What one recording gives: the errors of all settings, and window-chain's.
struct Errors {
    name: String,
    by_setting: Vec<f64>,
    window_chain_pct: f64,
}

fn sweep(directory: &Path, name: &str) -> Result<Errors> {
    let read = |suffix: &str| {
        let path = directory.join(format!("{name}{suffix}"));
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let pcap = read(".pcap")?;
    let log = Log::read_csv(&String::from_utf8(read(".gt.csv")?)?)?;
    let truth = judge::truth(&log);
    let configs = configs();
    let mut errors = Errors {
        name: name.to_owned(),
        by_setting: Vec::new(),
        window_chain_pct: f64::NAN,
    };
    for epoch_ms in EPOCHS_MS {
        let epoch_ns = epoch_ms * 1_000_000;
        let methods: [Method; SETTINGS + 1] = std::array::from_fn(|n| match n.checked_sub(1) {
            None => Method::WindowChain,
            Some(n) => Method::Modes(configs[n]),
        });
        let found = judge::estimate(&pcap, epoch_ns, Headers::Clear, methods, |_| ())?;
        let medians = judge::medians(&truth, &found, epoch_ns).context("no responses")?;
        if epoch_ms == 200 {
            errors.window_chain_pct = medians[0];
        }
        errors.by_setting.extend(&medians[1..]);
    }
    Ok(errors)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), of| (sum + of, count + 1));
    sum / f64::from(count.max(1))
}

/// The index of the least value among those of `settings` that are asked for.
fn least(
    settings: &[ModesSetting],
    values: impl Fn(usize) -> f64,
    wanted: impl Fn(&ModesSetting) -> bool,
) -> usize {
    let all = (0..settings.len()).filter(|&n| wanted(&settings[n]));
    all.min_by(|&a, &b| values(a).total_cmp(&values(b)))
        .unwrap_or(0)
}

fn summarized(found: Vec<Errors>) -> ModesSweep {
    let settings = settings();
    let find = |config: &ModesConfig| {
        let wanted = ModesSetting::of(config, 200);
        settings.iter().position(|of| *of == wanted).unwrap_or(0)
    };
    let as_published = find(&ModesConfig::paper(judge::PAPER_EPSILON_NS));
    let as_shipped = find(&ModesConfig::default());
    let all = |n: usize| mean(found.iter().map(|of| of.by_setting[n].min(USELESS_PCT)));
    let published = ModesSetting::is_published;
    let one_published = least(&settings, all, published);
    let one = least(&settings, all, |_| true);

    let workload = |of: &Errors| {
        let scored = |n: usize| Scored {
            setting: settings[n],
            text: settings[n].text(),
            median_pct: of.by_setting[n],
        };
        let own = |n: usize| of.by_setting[n];
        SweptWorkload {
            name: of.name.clone(),
            window_chain_pct: of.window_chain_pct,
            as_published: scored(as_published),
            as_shipped: scored(as_shipped),
            best_published: scored(least(&settings, own, published)),
            best: scored(least(&settings, own, |_| true)),
            one_published_pct: own(one_published),
            one_pct: own(one),
            errors: of.by_setting.clone(),
        }
    };
    let workloads: Vec<_> = found.iter().map(workload).collect();
    let over_all = |n: usize| {
        let mut errors: Vec<f64> = found.iter().map(|of| of.by_setting[n]).collect();
        errors.sort_unstable_by(f64::total_cmp);
        OverAll {
            setting: settings[n],
            text: settings[n].text(),
            mean_pct: all(n),
            median_pct: errors[errors.len() / 2],
            worst_pct: errors[errors.len() - 1],
            within10: errors.partition_point(|of| *of <= 10.0),
        }
    };
    let within10 = |of: fn(&SweptWorkload) -> f64| {
        let errors = workloads.iter().map(of);
        errors.filter(|error| *error <= 10.0).count()
    };
    let kinds = [("published", one_published), ("changed", one)];
    let sensitivity = kinds.into_iter().flat_map(|(kind, base)| {
        let of = |parameter| sensitivity(&workloads, &settings, (kind, base), parameter);
        [Parameter::Epsilon, Parameter::Modes, Parameter::Epoch].map(of)
    });
    ModesSweep {
        as_published: over_all(as_published),
        as_shipped: over_all(as_shipped),
        best_published: over_all(one_published),
        best: over_all(one),
        within10_each_published: within10(|of| of.best_published.median_pct),
        within10_each: within10(|of| of.best.median_pct),
        sensitivity: sensitivity.collect(),
        workloads,
    }
}

/// What a plot changes.
#[derive(Clone, Copy, Debug)]
enum Parameter {
    Epsilon,
    Modes,
    Epoch,
}

impl Parameter {
    /// Its value, and the rest of the setting.
    fn of(self, setting: &ModesSetting) -> (f64, ModesSetting) {
        let mut rest = *setting;
        let value = match self {
            Self::Epsilon => {
                let us = rest
                    .epsilon_us
                    .as_mut()
                    .map(|us| f64::from(std::mem::take(us)));
                let share = rest.epsilon_pct.as_mut().map(std::mem::take);
                us.or(share).unwrap_or(0.0)
            }
            Self::Modes => f64::from(std::mem::take(&mut rest.modes)),
            Self::Epoch => std::mem::take(&mut rest.epoch_ms) as f64,
        };
        (value, rest)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Epsilon => "epsilon",
            Self::Modes => "n",
            Self::Epoch => "epoch",
        }
    }
}

fn sensitivity(
    workloads: &[SweptWorkload],
    settings: &[ModesSetting],
    (kind, base): (&str, usize),
    parameter: Parameter,
) -> Sensitivity {
    let base = settings[base];
    let (_, rest) = parameter.of(&base);
    let points = (0..settings.len()).filter_map(|n| {
        let (value, others) = parameter.of(&settings[n]);
        (others == rest).then_some((value, n))
    });
    let mut points: Vec<(f64, usize)> = points.collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all = |n: usize| mean(workloads.iter().map(|of| of.errors[n].min(USELESS_PCT)));
    let means: Vec<_> = points.iter().map(|&(value, n)| (value, all(n))).collect();
    let shown = SHOWN.iter().filter_map(|name| {
        let of = workloads.iter().find(|of| of.name == *name)?;
        let errors = points.iter().map(|&(value, n)| (value, of.errors[n]));
        Some(Series::new(*name, errors))
    });
    let name = "mean of all, 100 % at most";
    let series = shown.chain([Series::new(name, means.clone()).faint()]);
    let unit = match parameter {
        Parameter::Epsilon if base.epsilon_us.is_some() => "epsilon (us)",
        Parameter::Epsilon => "epsilon (% of the mode's edge)",
        Parameter::Modes => "N (modes kept)",
        Parameter::Epoch => "epoch (ms)",
    };
    let title = format!("Algorithm 2 as {kind}, around {}", base.text());
    Sensitivity {
        name: format!("modes-{kind}-{}", parameter.word()),
        means,
        chart: Chart::new(
            title,
            (Scale::Log, unit),
            (Scale::Log, "median error (%)"),
            series.collect(),
        ),
    }
}

fn table(result: &Value) -> Option<String> {
    let mut text = format!(
        "{:<21} {:>7} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8}  {}\n",
        "workload",
        "chain",
        "published",
        "shipped",
        "best p.",
        "best",
        "one p.",
        "one",
        "best published setting"
    );
    let error = |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_f64);
    for row in result.get("workloads")?.as_array()? {
        writeln!(
            text,
            "{:<21} {:>7.2} {:>9.2} {:>8.2} {:>9.2} {:>8.2} {:>8.2} {:>8.2}  {}",
            row.get("name")?.as_str()?,
            error(row, "/window_chain_pct")?,
            error(row, "/as_published/median_pct")?,
            error(row, "/as_shipped/median_pct")?,
            error(row, "/best_published/median_pct")?,
            error(row, "/best/median_pct")?,
            error(row, "/one_published_pct")?,
            error(row, "/one_pct")?,
            row.pointer("/best_published/text")?.as_str()?,
        )
        .ok()?;
    }
    for key in ["as_published", "as_shipped", "best_published", "best"] {
        let of = result.get(key)?;
        writeln!(
            text,
            "{key}: {}: mean {:.1}, median {:.1}, worst {:.1}, within 10 %: {}",
            of.get("text")?.as_str()?,
            error(of, "/mean_pct")?,
            error(of, "/median_pct")?,
            error(of, "/worst_pct")?,
            of.get("within10")?,
        )
        .ok()?;
    }
    writeln!(
        text,
        "within 10 % if each workload has its own best setting: {} as published, {} of all",
        result.get("within10_each_published")?,
        result.get("within10_each")?
    )
    .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_each_epoch_and_hold_the_matrixs_own() {
        assert_eq!(configs().len(), SETTINGS);
        let all = settings();
        assert_eq!(all.len(), SETTINGS * EPOCHS_MS.len());
        for config in [
            ModesConfig::paper(judge::PAPER_EPSILON_NS),
            ModesConfig::default(),
        ] {
            let own = ModesSetting::of(&config, 200);
            assert_eq!(all.iter().filter(|of| **of == own).count(), 1, "{own:?}");
        }
    }

    #[test]
    fn one_setting_for_all_is_the_best_on_the_mean_and_each_has_its_own() {
        let settings = settings();
        let count = settings.len();
        let published: Vec<_> = (0..count).filter(|&n| settings[n].is_published()).collect();
        let [a, b, c] = [published[0], published[1], published[2]];
        let of = |name: &str, good: &[(usize, f64)]| {
            let mut by_setting = vec![1000.0; count];
            good.iter().for_each(|&(n, error)| by_setting[n] = error);
            Errors {
                name: name.to_owned(),
                by_setting,
                window_chain_pct: 1.0,
            }
        };
        // Each is good for one; `c` is bearable for both.
        let swept = summarized(vec![
            of("w1", &[(a, 2.0), (c, 20.0)]),
            of("w4_par", &[(b, 3.0), (c, 30.0)]),
        ]);
        assert_eq!(swept.best_published.setting, settings[c]);
        assert_eq!(swept.best_published.mean_pct, 25.0);
        assert_eq!((swept.best_published.within10, swept.within10_each), (0, 2));
        let [w1, w4] = &swept.workloads[..] else {
            panic!("two workloads")
        };
        assert_eq!(w1.best_published.setting, settings[a]);
        assert_eq!(w4.best_published.setting, settings[b]);
        assert_eq!((w1.one_published_pct, w4.one_pct), (20.0, 30.0));
        assert_eq!(swept.sensitivity.len(), 6);
        let value = serde_json::to_value(&swept).expect("JSON");
        let text = table(&value).expect("a table");
        assert!(
            text.contains("within 10 % if each workload has its own best setting: 2"),
            "{text}"
        );
    }
}
