// SPDX-License-Identifier: Apache-2.0
//! A bad line, for the lab; see `bpf/loss.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
pub use causeway_dataplane::TcDirection;
use causeway_dataplane::TcLink;
use causeway_netio::Interface;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::skel::loss::{LossSkel, LossSkelBuilder};

/// What a line does to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossRule {
    /// Share of packets that are lost, each by itself.
    pub share: f64,
    /// The line is down for `down_ns` at the beginning of each period; 0: never.
    pub period_ns: u64,
    /// See `period_ns`.
    pub down_ns: u64,
    /// When the first period begins, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Which packets are lost follows from it and their number.
    pub seed: u64,
    /// Packets that are lost once, one behind another.
    pub run: LostRun,
}

/// Packets that are lost one behind another. None by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostRun {
    /// Bytes of the first, with its Ethernet header.
    pub first_len: u64,
    /// How many of that length pass before.
    pub after: u64,
    /// How many are lost.
    pub packets: u64,
}

/// What has passed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// IP packets that came.
    pub packets: u64,
    /// Lost by chance, or in a run.
    pub lost: u64,
    /// Lost because the line was down.
    pub lost_down: u64,
}

/// The program on one hook; dropped, it is taken off.
pub struct LossInjector {
    link: Option<TcLink>,
    skel: LossSkel<'static>,
}

// SAFETY: libbpf's objects may be used by any thread, by one at a time; the strings that
// a `TcHook` points to are constants.
unsafe impl Send for LossInjector {}

impl LossInjector {
    /// Attaches to an interface of the calling thread's network namespace.
    pub fn attach(interface: &str, direction: TcDirection, rule: LossRule) -> Result<Self> {
        const WHAT: &str = "cannot load the packet dropper";
        let interface = Interface::find(interface)?;
        // The object borrows it for as long as the process lives: a few in a run.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let open = LossSkelBuilder::default().open(storage).context(WHAT)?;
        let skel = open.load().context(WHAT)?;
        let mut injector = Self { link: None, skel };
        injector.set(rule);
        let program = injector.skel.progs.causeway_loss.as_fd();
        injector.link = Some(TcLink::attach(program, &interface, direction)?);
        Ok(injector)
    }

    /// Changes what the line does, at once.
    pub fn set(&mut self, rule: LossRule) {
        let Some(line) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        line.seed = rule.seed;
        line.down_start_ns = rule.start_ns;
        line.down_ns = rule.down_ns;
        line.down_period_ns = rule.period_ns;
        line.run_left = rule.run.packets;
        line.run_after = rule.run.after;
        line.run_len = rule.run.first_len;
        line.loss_threshold = (rule.share.clamp(0.0, 1.0) * 2_f64.powi(32)) as u64;
    }

    /// What has passed so far.
    pub fn counts(&self) -> LossCounts {
        let Some(line) = self.skel.maps.bss_data.as_deref() else {
            return LossCounts::default();
        };
        LossCounts {
            packets: line.packets,
            lost: line.lost,
            lost_down: line.lost_down,
        }
    }
}
