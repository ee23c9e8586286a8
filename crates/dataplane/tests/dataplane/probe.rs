// SPDX-License-Identifier: Apache-2.0
//! Health probes in GUE: in the outer header that clients' packets have, its checksum included.

use std::net::IpAddr;

use causeway_dataplane::abi::{GUE_CHECKSUM_4, GUE_CHECKSUM_6, REAL_GUE, RealValue};
use causeway_dataplane::probe::mark;
use libbpf_rs::ProgramInput;

use crate::frame::{Ip, OWN, ROUTER, Tuple, ethernet, icmp};
use crate::lb_gue::{REAL4, REAL6, VIP4, VIP6, outer, summed};
use crate::rig::{Rig, UDP, tunnel_real};

const REAL: u32 = 1;
/// The default, at both ends of a probe's tunnel.
const GUE_PORT: u16 = 6080;
/// The word of struct __sk_buff that is the mark.
const MARK: usize = 2;

/// What becomes of a socket's packet to the real.
fn sent(rig: &Rig, packet: &[u8]) -> Vec<u8> {
    let probes = rig.probes();
    let mut words = [0; MARK + 1];
    words[MARK] = mark(REAL);
    let mut context: Vec<u8> = words
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect();
    let frame = ethernet([9; 6], OWN, &[], packet);
    let mut output = vec![0; frame.len() + 256];
    let run = probes
        .progs
        .causeway_probe
        .test_run(ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&frame),
            data_out: Some(&mut output),
            ..Default::default()
        })
        .expect("BPF_PROG_TEST_RUN; it needs root");
    assert_eq!(run.return_value, 0, "TC_ACT_OK");
    run.data.expect("data_out").to_vec()
}

fn serve(rig: &mut Rig, real: &str, gue_checksum: u8) {
    let plain = tunnel_real(real);
    let flags = plain.flags | REAL_GUE;
    rig.real(REAL, RealValue { flags, ..plain });
    rig.set_ctl(|ctl| ctl.gue_checksum = gue_checksum);
}

/// An echo request of this host.
fn ping(vip: &str) -> Vec<u8> {
    let (own, kind, proto) = match vip {
        VIP4 => ("10.9.0.1", 8, 1),
        _ => ("fd00:9::1", 128, 58),
    };
    let (own, vip): (IpAddr, IpAddr) = (own.parse().unwrap(), vip.parse().unwrap());
    let message = icmp(own, vip, kind, 0, [0, 7, 0, 1], b"are you there");
    Ip::CLIENT.packet(own, vip, proto, &message)
}

fn expect(rig: &Rig, real: &str, sum: bool, packet: &[u8]) {
    let wrapped = outer(real, GUE_PORT, 0, (GUE_PORT, 0), sum, packet);
    let wanted = ethernet(ROUTER, OWN, &[], &wrapped);
    assert_eq!(sent(rig, packet), wanted, "{real} {sum}");
}

#[test]
fn a_probe_has_the_checksum_that_packets_of_clients_have() {
    let mut rig = Rig::new();
    for (real, own, other) in [
        (REAL4, GUE_CHECKSUM_4, GUE_CHECKSUM_6),
        (REAL6, GUE_CHECKSUM_6, GUE_CHECKSUM_4),
    ] {
        for (checksum, sum) in [(own, true), (own | other, true), (other, false), (0, false)] {
            serve(&mut rig, real, checksum);
            for vip in [VIP4, VIP6] {
                for packet in summed(vip).into_iter().chain([ping(vip)]) {
                    expect(&rig, real, sum, &packet);
                }
            }
        }
    }
}

#[test]
fn what_its_headers_do_not_tell_goes_without_a_checksum() {
    let mut rig = Rig::new();
    serve(&mut rig, REAL6, GUE_CHECKSUM_6);
    let tuple = Tuple::new("10.9.0.1", 4000, VIP4, 443);
    let mut unsummed = tuple.udp(b"probe");
    unsummed[26..28].fill(0);
    assert_eq!(unsummed[9], UDP);
    expect(&rig, REAL6, false, &unsummed);
}
