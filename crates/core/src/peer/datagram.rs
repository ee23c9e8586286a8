// SPDX-License-Identifier: Apache-2.0
//! The bodies: shares, and what proves that a member is alive.

use super::RealName;
use crate::control::merge::{GradedTotals, MeasuredTotals, Share};
use crate::envelope::{self, BODY_HEAD, Boot, DATAGRAM_MAX, Form, HEAD, Reception, number};

pub(super) const FORM: Form = Form {
    magic: *b"CWPR",
    version: 1,
};

const KIND_SHARES: u8 = 1;
const KIND_CHALLENGE: u8 = 2;
const KIND_RESPONSE: u8 = 3;

/// Bytes of the entries of this version.
const SHARE: usize = 104;
const CHALLENGE: usize = 24;
const RESPONSE: usize = 8;

/// Shares that a datagram holds beside a response.
pub(super) const SHARES_MAX: usize =
    (DATAGRAM_MAX - HEAD - (BODY_HEAD + RESPONSE) - BODY_HEAD) / SHARE;

/// The share has no weight.
const NO_WEIGHT: u32 = u32::MAX;

/// From a member that does not know whether this boot is alive: repeat the number. Boot and
/// sequence number are those of the datagram that it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Challenge {
    pub boot: Boot,
    pub sequence: u64,
    pub number: u64,
}

/// What a datagram says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Bodies {
    pub shares: Vec<(RealName, Share)>,
    pub challenge: Option<Challenge>,
    pub response: Option<u64>,
}

/// The body of as many shares as a datagram holds.
pub(super) fn shares(shares: &[(RealName, Share)]) -> Vec<u8> {
    let entries = shares.iter();
    let entries = entries.map(|(name, share)| encode_share(*name, share));
    let mut bytes = Vec::new();
    envelope::push_body(&mut bytes, KIND_SHARES, SHARE, entries);
    bytes
}

/// The body of a response to a challenge.
pub(super) fn response(number: u64) -> Vec<u8> {
    let entry = number.to_be_bytes().to_vec();
    let mut bytes = Vec::new();
    envelope::push_body(&mut bytes, KIND_RESPONSE, RESPONSE, std::iter::once(entry));
    bytes
}

impl Challenge {
    /// Its body.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(CHALLENGE);
        entry.extend(self.boot.time_s.to_be_bytes());
        entry.extend(self.boot.id.to_be_bytes());
        entry.extend(self.sequence.to_be_bytes());
        entry.extend(self.number.to_be_bytes());
        let mut bytes = Vec::new();
        envelope::push_body(
            &mut bytes,
            KIND_CHALLENGE,
            CHALLENGE,
            std::iter::once(entry),
        );
        bytes
    }
}

impl Bodies {
    /// Bodies of kinds that this version does not know are skipped.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Reception> {
        let mut all = Self::default();
        for body in envelope::bodies(bytes)? {
            match body.kind {
                KIND_SHARES => {
                    let shares = body.entries().map(decode_share);
                    all.shares.extend(shares.collect::<Result<Vec<_>, _>>()?);
                }
                KIND_CHALLENGE => {
                    let entry = body.entries().next().ok_or(Reception::Malformed)?;
                    all.challenge = Some(Challenge {
                        boot: Boot {
                            time_s: number(entry, 0).map(u32::from_be_bytes)?,
                            id: number(entry, 4).map(u32::from_be_bytes)?,
                        },
                        sequence: number(entry, 8).map(u64::from_be_bytes)?,
                        number: number(entry, 16).map(u64::from_be_bytes)?,
                    });
                }
                KIND_RESPONSE => all.response = Some(body.first_number()?),
                _ => {}
            }
        }
        Ok(all)
    }
}

fn encode_share(name: RealName, share: &Share) -> Vec<u8> {
    let of = &share.totals;
    let mut entry = Vec::with_capacity(SHARE);
    entry.extend(name.to_be_bytes());
    for graded in [&of.good, &of.low] {
        entry.extend(graded.sum_halves_ns.to_be_bytes());
        entry.extend(graded.server_sum_halves_ns.to_be_bytes());
        entry.extend(graded.path_sum_halves_ns.to_be_bytes());
        entry.extend(graded.weight_halves.to_be_bytes());
        entry.extend(graded.path_weight_halves.to_be_bytes());
    }
    for count in [of.bound_halves, of.requests, of.all_requests, share.active] {
        entry.extend(count.to_be_bytes());
    }
    entry.extend(share.weight_millionths.unwrap_or(NO_WEIGHT).to_be_bytes());
    let vote = share.vote.map_or(0, |up| if up { 1 } else { 2 });
    entry.extend([vote, 0, 0, 0]);
    for count in [of.late_halves, of.answers_acked] {
        entry.extend(count.to_be_bytes());
    }
    entry
}

fn decode_share(entry: &[u8]) -> Result<(RealName, Share), Reception> {
    let sum = |at| number(entry, at).map(u64::from_be_bytes);
    let count = |at| number(entry, at).map(u32::from_be_bytes);
    let graded = |at| {
        Ok(GradedTotals {
            sum_halves_ns: sum(at)?,
            server_sum_halves_ns: sum(at + 8)?,
            path_sum_halves_ns: sum(at + 16)?,
            weight_halves: count(at + 24)?,
            path_weight_halves: count(at + 28)?,
        })
    };
    let share = Share {
        totals: MeasuredTotals {
            good: graded(8)?,
            low: graded(40)?,
            bound_halves: count(72)?,
            requests: count(76)?,
            all_requests: count(80)?,
            // Entries of builds before these counts end here.
            late_halves: count(96).unwrap_or(0),
            answers_acked: count(100).unwrap_or(0),
        },
        active: count(84)?,
        weight_millionths: Some(count(88)?).filter(|of| *of != NO_WEIGHT),
        vote: match number(entry, 92)? {
            [1] => Some(true),
            [2] => Some(false),
            [_] => None,
        },
    };
    Ok((sum(0)?, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_they_were_written() {
        let graded = |n: u64| GradedTotals {
            sum_halves_ns: n << 40,
            server_sum_halves_ns: n + 1,
            path_sum_halves_ns: u64::MAX - n,
            weight_halves: u32::MAX - 7,
            path_weight_halves: n as u32,
        };
        let share = |n: u64| {
            let share = Share {
                totals: MeasuredTotals {
                    good: graded(n),
                    low: graded(n + 100),
                    bound_halves: 1,
                    requests: 2,
                    all_requests: u32::MAX,
                    late_halves: 3,
                    answers_acked: 4,
                },
                active: 77,
                weight_millionths: n.is_multiple_of(2).then_some(1_050_000),
                vote: [None, Some(true), Some(false)][n as usize % 3],
            };
            (n, share)
        };
        let bodies = Bodies {
            shares: (0..SHARES_MAX as u64).map(share).collect(),
            challenge: None,
            response: Some(9),
        };
        let bytes = [shares(&bodies.shares), response(9)].concat();
        let length = HEAD + bytes.len();
        assert!(length <= DATAGRAM_MAX && length.is_multiple_of(8));
        assert_eq!(Bodies::decode(&bytes).unwrap(), bodies);
        let challenge = Challenge {
            boot: Boot { time_s: 5, id: 6 },
            sequence: 7,
            number: 8,
        };
        let bodies = Bodies::decode(&challenge.encode()).unwrap();
        assert_eq!((bodies.challenge, bodies.response), (Some(challenge), None));
    }
}
