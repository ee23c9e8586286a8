// SPDX-License-Identifier: Apache-2.0
//! What each way to pick a real costs: a SYN of a new tuple each time, to a VIP that
//! remembers nothing, so that the insertion of a flow does not drown the difference.

use std::mem::MaybeUninit;

use causeway_dataplane::abi::{
    PICK_HASH, PICK_TURN, PICK_TWO, VIP_COUNT_LOAD, VIP_FORGET, Verdict,
};
use libbpf_rs::OpenObject;

use super::fixture::Balancer;
use super::instrument::{Instrument, shuffled};
use super::{BenchError, BenchPlan, Case, Row, Shot, measure};

/// The cases, at one number of clients.
pub(super) fn run(plan: &BenchPlan, flows: u32) -> Result<Vec<Row>, BenchError> {
    let mut storage: [MaybeUninit<OpenObject>; 4] = [const { MaybeUninit::uninit() }; 4];
    let [instrument, hash, turn, two] = &mut storage;
    let mut instrument = Instrument::load(instrument)?;
    let hash = Balancer::load(hash)?;
    let turn = Balancer::load(turn)?;
    let two = Balancer::load(two)?;
    hash.set_vips(PICK_HASH, VIP_FORGET)?;
    turn.set_vips(PICK_TURN, VIP_FORGET)?;
    two.set_vips(PICK_TWO, VIP_FORGET | VIP_COUNT_LOAD)?;
    instrument.set_clients(&shuffled(flows, 0x5eed), &[])?;
    let syn = |name, balancer| Case::of(name, Shot::Syn, balancer, Verdict::Opened);
    let mut cases = [
        Case::empty(Shot::Syn, &instrument),
        syn("pick_hash", &hash),
        syn("pick_turn", &turn),
        syn("pick_two", &two),
    ];
    let rows = measure(&mut cases, &mut instrument, plan, flows)?;
    Ok(rows.into_iter().skip(1).collect())
}
