// SPDX-License-Identifier: Apache-2.0
//! How the cost of a packet grows with what a balancer has to know: flows, VIPs, reals.

use std::mem::MaybeUninit;

use causeway_dataplane::abi::Verdict;
use libbpf_rs::OpenObject;
use serde::Serialize;

use super::fixture::{Balancer, Size};
use super::instrument::{Instrument, shuffled};
use super::{BenchError, BenchPlan, Case, Row, Shot, alone, measure};

/// What grows, while the rest stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grows {
    /// Distinct flows that packets, and tables, are of.
    Flows,
    /// VIPs that they go to.
    Vips,
    /// Reals that they are sent to.
    Reals,
}

impl Grows {
    pub const ALL: [Self; 3] = [Self::Flows, Self::Vips, Self::Reals];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Vips => "vips",
            Self::Reals => "reals",
        }
    }
}

/// How far.
#[derive(Clone, Debug)]
pub struct GrowthPlan {
    /// Numbers of flows.
    pub flows: Vec<u32>,
    /// Numbers of VIPs, up to 65,536.
    pub vips: Vec<u32>,
    /// Numbers of reals.
    pub reals: Vec<u32>,
    /// Flows while VIPs or reals grow: so many that each is met.
    pub usual_flows: u32,
    /// Flows that tables are made for at least.
    pub table: u32,
    /// Rounds and batches; its flows are not used.
    pub measured: BenchPlan,
}

impl GrowthPlan {
    /// What is drawn: minutes.
    #[must_use]
    pub fn full() -> Self {
        Self {
            flows: vec![
                1, 100, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000,
                10_000_000,
            ],
            vips: vec![1, 10, 100, 256, 1000, 3000, 10_000],
            reals: vec![1, 10, 100, 1000, 4000, 16_000],
            usual_flows: 20_000,
            table: 1 << 20,
            measured: BenchPlan {
                rounds: 7,
                batches: 20,
                ..BenchPlan::full()
            },
        }
    }

    /// Enough to see that everything runs.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            flows: vec![1, 1000],
            vips: vec![1, 1030],
            reals: vec![1, 4100],
            usual_flows: 5000,
            table: 5000,
            measured: BenchPlan::tiny(),
        }
    }

    fn counts(&self, grows: Grows) -> &[u32] {
        match grows {
            Grows::Flows => &self.flows,
            Grows::Vips => &self.vips,
            Grows::Reals => &self.reals,
        }
    }

    /// Flows and size of one point.
    fn point(&self, grows: Grows, count: u32) -> (u32, Size) {
        let usual = self.usual_flows;
        let size = Size {
            flows: self.table,
            ..Size::default()
        };
        match grows {
            Grows::Flows => {
                let flows = count.max(size.flows);
                (count, Size { flows, ..size })
            }
            Grows::Vips => (
                usual,
                Size {
                    vips: count,
                    ..size
                },
            ),
            Grows::Reals => (
                usual,
                Size {
                    reals: count,
                    ..size
                },
            ),
        }
    }
}

/// One case at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthRow {
    pub grows: Grows,
    /// To how many.
    pub count: u32,
    /// The case, its flows and its cost.
    #[serde(flatten)]
    pub row: Row,
}

/// Runs the plan; `progress` is called with each point before it is measured.
///
/// # Errors
/// Without root and BPF, or if packets went another way than they should.
pub fn growth(
    plan: &GrowthPlan,
    mut progress: impl FnMut(Grows, u32) + Send,
) -> Result<Vec<GrowthRow>, BenchError> {
    alone(|| {
        let mut rows = Vec::new();
        for grows in Grows::ALL {
            for &count in plan.counts(grows) {
                progress(grows, count);
                let (flows, size) = plan.point(grows, count);
                let of = |row| GrowthRow { grows, count, row };
                rows.extend(point(&plan.measured, flows, size)?.into_iter().map(of));
            }
        }
        Ok(rows)
    })
}

fn point(plan: &BenchPlan, flows: u32, size: Size) -> Result<Vec<Row>, BenchError> {
    let mut storage: [MaybeUninit<OpenObject>; 4] = [const { MaybeUninit::uninit() }; 4];
    let [instrument, measured, plain, cookie] = &mut storage;
    let mut instrument = Instrument::with_capacity(instrument, flows)?;
    let measured = Balancer::sized(measured, size)?;
    let plain = Balancer::unmeasured(plain, &measured)?;
    let few = Size { flows: 1, ..size };
    let cookie = Balancer::with_cookies_sized(cookie, false, 0, few)?;
    let order: Vec<u32> = (0..flows).collect();
    instrument.set_clients_of(&order, &[], size)?;
    instrument.fill(instrument.min_fill(), Shot::Tcp, flows)?;
    instrument.fill(measured.program(), Shot::Tcp, flows)?;
    instrument.set_clients_of(&shuffled(flows, 0x5eed), &[], size)?;
    let established = Verdict::Established;
    let mut cases = vec![
        Case::empty(Shot::Tcp, &instrument),
        Case::empty(Shot::Cookie, &instrument),
        Case::new("min", Shot::Tcp, instrument.min()),
        Case::of("tcp_established", Shot::Tcp, &plain, established),
        Case::of(
            "tcp_established_measured",
            Shot::Tcp,
            &measured,
            established,
        )
        .measuring(1),
        Case::of("tcp_cookie", Shot::Cookie, &cookie, established),
    ];
    if size.reals < super::fixture::REALS {
        cases.pop(); // cookies name more reals than there are
    }
    let rows = measure(&mut cases, &mut instrument, plan, flows)?;
    Ok(rows.into_iter().skip(2).collect())
}
