// SPDX-License-Identifier: Apache-2.0

//! A plan in the making: paths and settings first, what the guests send last.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::host::MIN_FRAME;
use super::super::link::LinkSettings;
use super::{Case, Expected, Fault, MS, Offer, Plan, US};
use causeway_bifrost::{Rto, Schedule, TransportConfig, TunnelKey};

/// A plan in the making.
pub(super) struct Draft {
    pub(super) rng: Pcg64Mcg,
    pub(super) plan: Plan,
    /// Guests' frames are spread over this time.
    pub(super) busy_ns: u64,
    pub(super) frames: u32,
    pub(super) flows: u32,
    pub(super) largest: u32,
    /// Of ten frames, those of 16 KB and more.
    pub(super) large: u32,
}

impl Draft {
    pub(super) fn new(seed: u64, case: Case) -> Draft {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut config = TransportConfig {
            flows: 256,
            schedule: match rng.random_range(0..8) {
                0 => Schedule::LowestRtt,
                1 => Schedule::Spray,
                _ => Schedule::Completion,
            },
            ..TransportConfig::default()
        };
        if rng.random_bool(0.15) {
            config.rto = Rto::Fixed(4 * MS);
        }
        if rng.random_bool(0.2) {
            config.keys.send = Some(key(1));
        }
        let rate = *[31_250_000, 125_000_000, 1_250_000_000]
            .choose(&mut rng)
            .unwrap_or(&125_000_000);
        let base_ns = rng.random_range(20 * US..400 * US);
        let count = rng.random_range(2..=4);
        let links = (0..count).map(|_| {
            let settings = LinkSettings {
                rate,
                delay_ns: base_ns + rng.random_range(0..100 * US),
                ..LinkSettings::default()
            };
            [settings; 2]
        });
        let links = links.collect();
        let plan = Plan {
            seed,
            case,
            config,
            start_ns: rng.random_range(1..1_000 * MS),
            links,
            offers: Vec::new(),
            faults: Vec::new(),
            vnic: None,
            quiet_ns: 0,
            end_ns: 0,
            expected: Expected {
                lossless: true,
                slowest_ns: 100 * MS,
                resent: (1, 5),
            },
        };
        Draft {
            busy_ns: rng.random_range(4 * MS..30 * MS),
            frames: rng.random_range(20..120),
            flows: rng.random_range(1..8),
            largest: 65_545,
            large: 1,
            rng,
            plan,
        }
    }

    pub(super) fn all_links(&mut self, change: impl Fn(&mut LinkSettings)) {
        self.plan.links.iter_mut().flatten().for_each(change);
    }

    /// Both links of a path change at a time.
    pub(super) fn change(&mut self, at_ns: u64, path: usize, change: impl Fn(&mut LinkSettings)) {
        for side in 0..2 {
            let mut settings = self.plan.links[path][side];
            change(&mut settings);
            self.plan
                .faults
                .push((at_ns, Fault::Link(path, side, settings)));
        }
    }

    pub(super) fn paths(&self) -> usize {
        self.plan.links.len()
    }

    /// A time while the guests send.
    pub(super) fn meanwhile(&mut self) -> u64 {
        self.rng.random_range(2 * MS..self.busy_ns)
    }

    pub(super) fn finish(mut self) -> Plan {
        for _ in 0..self.frames {
            let kind = self.rng.random_range(0..10);
            let others = 10 - self.large;
            let len = if kind >= others {
                self.rng.random_range(16_000..=65_545)
            } else if kind < others * 2 / 3 {
                self.rng.random_range(MIN_FRAME..1_500)
            } else {
                self.rng.random_range(1_500..16_000)
            };
            self.plan.offers.push(Offer {
                at_ns: self.rng.random_range(0..self.busy_ns),
                host: self.rng.random_range(0..2),
                flow: self.rng.random_range(0..self.flows),
                len: len.min(self.largest),
            });
        }
        self.plan.offers.sort_by_key(|offer| offer.at_ns);
        let plan = &mut self.plan;
        plan.faults.sort_by_key(|(at_ns, _)| *at_ns);
        let last_ns = plan.faults.last().map_or(0, |(at_ns, fault)| {
            at_ns
                + if let Fault::Stall(_, ns) = fault {
                    *ns
                } else {
                    0
                }
        });
        plan.quiet_ns = plan.quiet_ns.max(last_ns).max(self.busy_ns) + 250 * MS;
        for host in 0..2 {
            for flow in 0..self.flows.min(8) {
                plan.offers.push(Offer {
                    at_ns: plan.quiet_ns,
                    host,
                    flow,
                    len: 2_000,
                });
            }
        }
        plan.end_ns = plan.quiet_ns + 450 * MS;
        self.plan
    }
}

pub(super) fn key(id: u8) -> TunnelKey {
    TunnelKey {
        id,
        secret: [id; 32],
    }
}
