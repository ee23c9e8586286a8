// SPDX-License-Identifier: Apache-2.0
//! The product on real traffic: each scenario of the lab, kept short. Needs
//! root, nginx and BPF; without them these tests fail.
//!
//! Not here: `accuracy` has a test of its own (`dev/lab/tests/accuracy.rs`); `page` needs a
//! browser (`scripts/page test`, which `make test` runs); and the shortest `shadow` takes more than a
//! minute, most of which it waits for clients to see that a change has broken their connection
//! (`make test-long`).

mod balancer;
mod clients;
mod commands;
mod connections;
mod cookies;
mod latency;
mod tunnel;

use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;

/// Of the scenarios, those that measure time run one by one: two cores are not much. Those that
/// count what breaks hold whatever runs beside them, and run with others of their kind.
static MACHINE: RwLock<()> = RwLock::new(());

/// No more of them than this side by side, however many cores there are: the kernel takes 64
/// programs of agents at its root control group.
const BESIDE: usize = 4;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// One of those that run beside others.
struct Beside {
    _machine: RwLockReadGuard<'static, ()>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Waits until no other scenario runs.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no scenario runs that measures time, and few others do.
fn beside_others() -> Beside {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let running = ENDED.wait_while(running, |running| *running >= BESIDE);
    *running.unwrap_or_else(PoisonError::into_inner) += 1;
    Beside {
        _machine: MACHINE.read().unwrap_or_else(PoisonError::into_inner),
    }
}

fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway-lab"));
    command.stdin(Stdio::null());
    command
}

/// Runs a scenario that measures time, and returns its whole report.
fn run(scenario: &str, params: &[&str]) -> Value {
    let _alone = alone();
    report(scenario, params)
}

/// The report of the first of three runs whose times hold: where the machine stood still they need
/// not. What is wrong is so in each.
fn run_until(scenario: &str, params: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let _alone = alone();
    let mut vain = Vec::new();
    for report in (0..3).map(|_| report(scenario, params)) {
        if holds(&report) {
            return report;
        }
        vain.push(report);
    }
    panic!("{scenario}: {vain:?}");
}

/// Runs a scenario that counts what breaks.
fn count(scenario: &str, params: &[&str]) -> Value {
    let _beside = beside_others();
    report(scenario, params)
}

fn report(scenario: &str, params: &[&str]) -> Value {
    let file = tempfile::NamedTempFile::new().expect("result file");
    let mut command = lab();
    command
        .args(["run", scenario, "--seed", "7", "--json"])
        .arg(file.path());
    for param in params {
        command.args(["--param", param]);
    }
    let output = command.output().expect("causeway-lab runs");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{scenario}: {}\n{messages}",
        output.status
    );
    println!("{messages}");
    let text = std::fs::read_to_string(file.path()).expect("result");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["scenario"], scenario);
    assert_eq!(report["seed"], 7);
    assert!(report["parameters"].is_object());
    report
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no number at {pointer}"))
}
