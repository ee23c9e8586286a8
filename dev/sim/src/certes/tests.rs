// SPDX-License-Identifier: Apache-2.0
//! The targets, on small worlds. Time is virtual: what holds here holds everywhere.

use causeway_core::certes::ModelFit;

use super::workload::{Backlog, SynSchedule, Workload, table_ii};
use super::{CertesMethod, Evaluation, evaluate, world};

/// A fifth of the clients and of the server, for three minutes.
fn small(of: Workload) -> Workload {
    let limit = match of.backlog {
        Backlog::Fixed(limit) => limit,
        Backlog::Cycle { .. } => unreachable!("table II has fixed limits"),
    };
    Workload {
        clients: of.clients / 5,
        workers: of.workers / 5,
        backlog: Backlog::Fixed(limit / 5),
        duration_s: 180.0,
        ..of
    }
}

fn named(name: &str, schedule: SynSchedule) -> Workload {
    let found = table_ii(schedule).into_iter().find(|of| of.name == name);
    small(found.expect("a row of table II"))
}

fn run(of: &Workload, seed: u64) -> Evaluation {
    evaluate(of, &world::run(of, seed), 0.0).expect("a valid workload")
}

fn off(of: &Evaluation, method: CertesMethod) -> f64 {
    of.of(method)
        .expect("every method runs")
        .errors
        .mean_pct
        .abs()
}

#[test]
fn every_workload_of_table_ii_is_within_its_target() {
    for schedule in SynSchedule::ALL {
        for of in table_ii(schedule).into_iter().map(small) {
            let found = run(&of, 11);
            let name = format!(
                "{} {}: {:?}",
                of.name,
                schedule.name(),
                found
                    .series
                    .iter()
                    .map(|s| (s.method.name(), s.errors.mean_pct))
                    .collect::<Vec<_>>()
            );
            let exact = if of.loss > 0.0 { 2.0 } else { 1.0 };
            assert!(off(&found, CertesMethod::Exact) <= exact, "{name}");
            assert!(off(&found, CertesMethod::Model) <= 7.5, "{name}");
            assert!(off(&found, CertesMethod::Learned) <= 7.5, "{name}");
            assert!(
                off(&found, CertesMethod::SynToEnd) >= 5.0,
                "it drops SYNs: {name}"
            );
            assert!(
                found.truth_mean_s > 0.5 && found.syn_drop_pct > 5.0,
                "{name}"
            );
        }
    }
}

#[test]
fn where_drops_do_not_depend_on_the_retry_the_paper_s_model_is_right() {
    for schedule in SynSchedule::ALL {
        // Clients that think: clients that just ended do not take the place they freed.
        let of = Workload {
            policed: 0.3,
            think_s: 5.0,
            backlog: Backlog::Fixed(4096),
            ..named("A", schedule)
        };
        let found = run(&of, 3);
        assert_eq!(found.confidence, ModelFit::Even, "{:?}", found.odds_ratio);
        for method in [
            CertesMethod::Model,
            CertesMethod::PaperModel,
            CertesMethod::Reference,
        ] {
            assert!(
                off(&found, method) <= 2.5,
                "{} {:?}",
                schedule.name(),
                found.of(method)
            );
        }
    }
}

#[test]
fn where_they_do_it_is_flagged_and_the_measured_odds_mend_it() {
    let found = run(&named("D", SynSchedule::Paper), 5);
    assert_eq!(found.confidence, ModelFit::Uneven);
    assert!(
        off(&found, CertesMethod::Model) < off(&found, CertesMethod::PaperModel),
        "{:?}",
        found.series
    );
}

#[test]
fn a_flood_does_not_move_the_real_clients_figure() {
    // Room in the queue, so that the flood's SYNs are answered, as SYN cookies do.
    let calm = Workload {
        policed: 0.2,
        think_s: 2.0,
        backlog: Backlog::Fixed(4096),
        ..named("A", SynSchedule::Linux)
    };
    let flooded = Workload {
        flood_pps: 300.0,
        ..calm.clone()
    };
    let found = run(&flooded, 9);
    for method in [CertesMethod::Exact, CertesMethod::Model] {
        assert!(
            off(&found, method) <= 2.0,
            "{:?}",
            found.of(method).map(|series| series.errors)
        );
    }
    assert!(found.flood_share > 0.3, "{}", found.flood_share);
    assert_eq!(run(&calm, 9).flood_share, 0.0);
}

/// Most retries can be forecast a second before they come.
#[test]
fn retries_are_forecast() {
    for schedule in SynSchedule::ALL {
        let found = run(&named("J", schedule), 7);
        let off_pct = found.forecast_error_pct;
        assert!(off_pct > 0.0 && off_pct < 15.0, "{off_pct}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let of = Workload {
        duration_s: 60.0,
        ..named("N", SynSchedule::Linux)
    };
    let once = world::run(&of, 1);
    assert_eq!(once.slots, world::run(&of, 1).slots);
    assert_ne!(once.slots, world::run(&of, 2).slots);
}

#[test]
fn lost_packets_are_inferred_from_handshakes() {
    let found = run(&named("N", SynSchedule::Linux), 4);
    assert!((found.loss - 0.03).abs() < 0.01, "{}", found.loss);
}
