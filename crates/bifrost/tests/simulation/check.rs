// SPDX-License-Identifier: Apache-2.0

//! What must hold at the end of a run.

use std::fmt;

use causeway_bifrost::{DropReason, PathMetrics, TunnelMetrics};

use super::host::Host;
use super::plan::{Case, Plan};
use super::world::World;

/// What did not hold.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Plays it again.
    pub seed: u64,
    /// The plan's case.
    pub case: Case,
    /// What did not hold.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, case, what) = (self.seed, self.case.name(), &self.what);
        write!(
            f,
            "{case}: {what}; again: SEEDS={seed} cargo test -p causeway-bifrost --test simulation"
        )
    }
}

/// What a run was like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// The plan's case.
    pub case: Case,
    /// Frames that the engines took.
    pub accepted: u64,
    /// Frames that were delivered.
    pub delivered: u64,
    /// Chunks sent for the first time.
    pub sent: u64,
    /// Chunks retransmitted.
    pub resent: u64,
    /// Of these, those that had arrived.
    pub again: u64,
    /// Frames that were skipped or abandoned.
    pub lost: u64,
    /// The slowest frame.
    pub slowest_ns: u64,
    /// Events of the simulation.
    pub steps: u64,
}

type Lives = Vec<(TunnelMetrics, Vec<PathMetrics>)>;

fn sum(lives: &Lives, value: impl Fn(&TunnelMetrics) -> u64) -> u64 {
    lives.iter().map(|(tunnel, _)| value(tunnel)).sum()
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

pub(super) fn check(plan: &Plan, world: &World) -> Result<Summary, String> {
    let lives = [
        world.hosts[0].lives(world.paths),
        world.hosts[1].lives(world.paths),
    ];
    let mut summary = Summary {
        case: plan.case,
        accepted: 0,
        delivered: 0,
        sent: 0,
        resent: 0,
        again: 0,
        lost: 0,
        slowest_ns: 0,
        steps: world.steps,
    };
    for from in 0..2 {
        let to = 1 - from;
        let (sender, receiver) = (&world.hosts[from], &world.hosts[to]);
        nothing_is_left(sender).map_err(|what| format!("host {from}: {what}"))?;
        drops_are_counted(sender, &lives[from])?;
        caps_hold(plan, &lives[from])?;
        acknowledged_have_come(&lives[from], &lives[to])?;
        let accepted = sender.record.accepted;
        let delivered = receiver.record.delivered;
        let lost = may_be_lost(&lives[from], &lives[to]);
        require(
            delivered <= accepted && accepted - delivered <= lost,
            || {
                format!(
                    "host {from}: {accepted} frames, {delivered} delivered, {lost} accounted for"
                )
            },
        )?;
        if plan.expected.lossless {
            require(delivered == accepted && sender.record.refused == 0, || {
                format!("host {from}: only {delivered} of {accepted} frames were delivered")
            })?;
        }
        for ((host, flow), number) in &world.closing {
            let newest = receiver.record.newest_of(*flow);
            require(*host != from || newest == Some(*number), || {
                format!(
                    "host {from}: flow {flow} does not go on after the faults: frame {number} \
                     is missing, {newest:?} was the last"
                )
            })?;
        }
        let slowest_ns = receiver.record.slowest_ns;
        require(slowest_ns <= plan.expected.slowest_ns, || {
            format!("host {from}: a frame took {slowest_ns} ns")
        })?;
        summary.accepted += accepted;
        summary.delivered += delivered;
        summary.lost += accepted - delivered;
        summary.sent += sum(&lives[from], |tunnel| tunnel.chunks_sent);
        summary.resent += sum(&lives[from], |tunnel| tunnel.chunks_retransmitted);
        summary.again += sum(&lives[from], |tunnel| tunnel.drops(DropReason::Redundant));
        summary.slowest_ns = summary.slowest_ns.max(slowest_ns);
    }
    let (permille, more) = plan.expected.resent;
    let most = summary.sent * permille / 1000 + more;
    require(summary.resent <= most, || {
        let (sent, resent) = (summary.sent, summary.resent);
        format!("{resent} of {sent} chunks were retransmitted, {most} would do")
    })?;
    Ok(summary)
}

/// Frames that are not delivered must have been abandoned, skipped, or been with an
/// endpoint that was restarted.
fn may_be_lost(sender: &Lives, receiver: &Lives) -> u64 {
    let dropped = |tunnel: &TunnelMetrics| {
        [
            DropReason::Abandoned,
            DropReason::PeerRestart,
            DropReason::FrameLong,
        ]
        .map(|reason| tunnel.drops(reason))
        .iter()
        .sum::<u64>()
    };
    let ended = |lives: &Lives| lives[..lives.len() - 1].to_vec();
    sum(sender, dropped)
        + sum(receiver, |tunnel| tunnel.frames_skipped)
        + sum(&ended(sender), |tunnel| tunnel.frames_held.into())
        + sum(&ended(receiver), |tunnel| tunnel.chunks_held.into())
}

/// What is acknowledged came and was kept, or is of no use to the receiver. A chunk that
/// found no room is not.
fn acknowledged_have_come(sender: &Lives, receiver: &Lives) -> Result<(), String> {
    let paths = sender.iter().flat_map(|(_, paths)| paths);
    let acknowledged: u64 = paths.map(|path| path.acked_chunks).sum();
    let came = sum(receiver, |tunnel| {
        let useless = [
            DropReason::Redundant,
            DropReason::Late,
            DropReason::Resegmented,
            DropReason::Virtio,
        ];
        tunnel.chunks_received
            + useless
                .map(|reason| tunnel.drops(reason))
                .iter()
                .sum::<u64>()
    });
    require(acknowledged <= came, || {
        format!("{acknowledged} chunks were acknowledged, {came} had come")
    })
}

fn nothing_is_left(host: &Host) -> Result<(), String> {
    let now = host.engine.metrics();
    require(now.frames_held == 0 && now.frame_bytes_held == 0, || {
        format!("{} frames are still under way", now.frames_held)
    })?;
    require(now.chunks_held == 0 && now.chunk_bytes_held == 0, || {
        format!("{} chunks are still held", now.chunks_held)
    })?;
    require(host.slab.used == 0, || {
        format!("{} slots never came back", host.slab.used)
    })
}

fn drops_are_counted(host: &Host, lives: &Lives) -> Result<(), String> {
    for (reason, count) in &host.record.datagrams_refused {
        let counted = sum(lives, |tunnel| tunnel.drops(*reason));
        // Chunks that were held and then dropped are counted besides.
        require(counted >= *count, || {
            format!("{count} datagrams were refused as {reason}, {counted} are counted")
        })?;
    }
    Ok(())
}

fn caps_hold(plan: &Plan, lives: &Lives) -> Result<(), String> {
    let most = plan.config.limits.chunks;
    for (tunnel, paths) in lives {
        let peak = tunnel.chunks_held_peak;
        require(peak <= most, || {
            format!("{peak} chunks were held, {most} may be")
        })?;
        for path in paths {
            let peak = path.inflight_peak_permille;
            require(peak <= 1000, || {
                format!("{peak} thousandths of a window were in flight")
            })?;
        }
    }
    Ok(())
}
