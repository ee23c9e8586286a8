// SPDX-License-Identifier: Apache-2.0
//! Weeks of virtual time for every state machine that has a time, an age or a counter that
//! wraps in it: through 30 days and past each of its wraps, with properties that hold at every
//! step. docs/design/wraps.md lists all that wraps.
//!
//! A machine is the product's own code. Around it stands what it talks to: a client that has
//! RFC 7323's rules, a log of the truth, a clock with enough bits. What is planted is a fault of
//! the kind that such code has, in the caller's place.

mod agent;
mod control;
mod cookies;
mod estimators;
mod tables;
mod tunnel;

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const SECOND: u64 = 1000 * MS;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// How a machine is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Virtual days. A machine that wraps once in a longer time begins so that the wrap lies in
    /// the middle of them.
    pub days: f64,
    /// Seed of all chance.
    pub seed: u64,
    /// Whether the machine's fault is planted.
    pub planted: bool,
}

/// What must never be.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokenProperty {
    /// When, in days since the beginning.
    pub day: f64,
    /// What.
    pub what: String,
}

/// What became of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lived {
    /// Steps, after each of which the properties held.
    pub steps: u64,
    /// Virtual days.
    pub days: f64,
    /// Wraps that were passed.
    pub wraps: u64,
    /// The first fault; the run ends with it.
    pub fault: Option<BrokenProperty>,
}

/// A state machine with time in it.
pub struct Machine {
    pub name: &'static str,
    /// What wraps or ages in it.
    pub wraps: &'static str,
    pub planted: &'static str,
    run: fn(&mut Life) -> Result<(), BrokenProperty>,
}

impl Machine {
    /// Lets it live.
    pub fn run(&self, plan: Plan) -> Lived {
        let mut life = Life::new(plan);
        let fault = (self.run)(&mut life).err();
        Lived {
            steps: life.steps,
            days: (life.now_ns - life.begin_ns) as f64 / DAY as f64,
            wraps: life.wraps,
            fault,
        }
    }
}

/// All of them.
pub const MACHINES: &[Machine] = &[
    cookies::CLOCK_MS,
    cookies::CLOCK_US,
    cookies::LEASE,
    cookies::ECHO,
    cookies::KEYS,
    cookies::QUIC_IDS,
    estimators::WINDOW_CHAIN,
    estimators::FIXED_GAP,
    tables::LIMIT,
    tables::FLOW_AGES,
    tables::SLOT_AGES,
    agent::SYN_TRACK,
    agent::SYN_SLOTS,
    agent::REPORTS,
    control::HEALTH,
    control::CONTROLLER,
    tunnel::TUNNEL,
];

/// A run's time, chance and counts.
struct Life {
    plan: Plan,
    rng: Pcg64Mcg,
    begin_ns: u64,
    now_ns: u64,
    end_ns: u64,
    steps: u64,
    wraps: u64,
}

impl Life {
    fn new(plan: Plan) -> Self {
        let mut life = Self {
            plan,
            rng: Pcg64Mcg::seed_from_u64(plan.seed),
            begin_ns: 0,
            now_ns: 0,
            end_ns: 0,
            steps: 0,
            wraps: 0,
        };
        life.begin(10 * SECOND);
        life
    }

    fn span_ns(&self) -> u64 {
        (self.plan.days * DAY as f64) as u64
    }

    fn begin(&mut self, at_ns: u64) {
        self.begin_ns = at_ns;
        self.now_ns = at_ns;
        self.end_ns = at_ns + self.span_ns();
    }

    /// Begins so that this instant is in the middle; at the clock's beginning if it is sooner.
    fn begin_around(&mut self, at_ns: u64) {
        self.begin(at_ns.saturating_sub(self.span_ns() / 2).max(10 * SECOND));
    }

    /// Time goes on; counts wraps of a clock that goes round each `round_ns`.
    fn wait(&mut self, ns: u64, round_ns: u64) {
        self.wraps += (self.now_ns + ns) / round_ns - self.now_ns / round_ns;
        self.now_ns += ns;
    }

    fn lasts(&self) -> bool {
        self.now_ns < self.end_ns
    }

    /// A step, after which this must hold.
    fn holds(
        &mut self,
        is_right: bool,
        what: impl FnOnce() -> String,
    ) -> Result<(), BrokenProperty> {
        self.steps += 1;
        match is_right {
            true => Ok(()),
            false => Err(BrokenProperty {
                day: (self.now_ns - self.begin_ns) as f64 / DAY as f64,
                what: what(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some hours around each machine's wrap; `make test-long` has 30 days. Those that take
    /// longer than others have less.
    fn plan(machine: &Machine, planted: bool) -> Plan {
        let hours = match machine.name {
            "controller" => 0.7,
            "tunnel" | "syn-slots" | "agent-reports" => 3.0,
            _ => 12.0,
        };
        Plan {
            days: hours / 24.0,
            seed: 1,
            planted,
        }
    }

    #[test]
    fn nothing_goes_wrong_around_any_wrap() {
        for machine in MACHINES {
            let plan = plan(machine, false);
            let lived = machine.run(plan);
            assert_eq!(lived.fault, None, "{}", machine.name);
            assert!(
                lived.steps > 0 && lived.days >= plan.days,
                "{}",
                machine.name
            );
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        for machine in MACHINES {
            let lived = machine.run(plan(machine, true));
            assert!(
                lived.fault.is_some(),
                "{}: {}",
                machine.name,
                machine.planted
            );
        }
    }
}
