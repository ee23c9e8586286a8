// SPDX-License-Identifier: Apache-2.0
//! `stamp_by_cache()`, `clock_tsval()`, `take_clock_back()` and `lend_clock()` of bpf/server: two
//! CPUs send segments of one connection, whose clock is lent to a line or about to be, while a third
//! lends another connection's clock to the same line.
//!
//! Each segment moves T by one, and a lease goes as far as two. Left out: the way in, which moves no T;
//! another connection's segments; that `clock_tsval()` and `lent_t()` look so often and no oftener, where
//! another CPU writes the line each time.

use super::Race;

/// How the CPUs go about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LentClock {
    /// Planted: that the line could not be claimed and has another name is taken for an eviction, as
    /// it once was.
    pub evicted_unclaimed: bool,
    /// Planted: who evicts overwrites the clock before the name, as it once did.
    pub clock_first: bool,
    /// Planted: whether the storage has the clock is not asked again as it is used, as once.
    pub stamps_unasked: bool,
}

const SENDERS: usize = 2;
const SEGMENTS: u8 = 2;
const LEASE: u8 = 2;
/// Another connection's T.
const FOREIGN: u8 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Where {
    Here,
    Leaving,
    Lent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Free,
    Own,
    Other,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LentClockState {
    clock: Where,
    stored_t: u8,
    lease: u8,
    name: Name,
    change: u8,
    line_t: u8,
    line_lease: u8,
    is_claimed: bool,
    /// The newest T that has left.
    sent: u8,
    cpus: [Cpu; SENDERS],
    other: Evicts,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Cpu {
    at: At,
    left: u8,
    /// The newest T that had left when its segment came.
    before: u8,
    t: u8,
    change: u8,
}

/// What it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Claims,
    StampsLine,
    ReleasesToStorage,
    ReleasesAndSends,
    LooksAtStorage,
    ClaimsBack,
    TakesBack,
    Unnames,
    ReleasesTaken,
    /// With the storage locked: no CPU takes the clock back between the two looks.
    LooksForEviction,
    Stamps,
    ReadsChange,
    ReadsName,
    ReadsT,
    ReadsAgain,
    Sends,
    SendsAndLends,
    ClaimsToLend,
    Lends,
    TakesName,
    BeginsChange,
    WritesClock,
    WritesName,
    EndsChange,
    SaysLent,
    ReleasesLent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Evicts {
    Claims,
    TakesName,
    BeginsChange,
    WritesClock,
    WritesName,
    EndsChange,
    Releases,
    Done,
}

impl LentClock {
    fn sends(line: &mut LentClockState, cpu: usize) {
        let t = line.cpus[cpu].t;
        if t >= FOREIGN {
            line.wrong = Some("a segment leaves with another connection's T");
        } else if t < line.cpus[cpu].before {
            line.wrong = Some("T goes back");
        }
        line.sent = line.sent.max(t);
    }

    fn step(&self, line: &mut LentClockState, cpu: usize) -> Option<At> {
        let own = line.cpus[cpu];
        Some(match own.at {
            At::Idle if own.left == 0 => return None,
            At::Idle => {
                line.cpus[cpu].left -= 1;
                line.cpus[cpu].before = line.sent;
                match line.name {
                    Name::Own => At::Claims,
                    _ => At::LooksAtStorage,
                }
            }
            At::Claims if line.is_claimed => At::LooksAtStorage,
            At::Claims => {
                line.is_claimed = true;
                At::StampsLine
            }
            At::StampsLine if line.name != Name::Own || line.line_t >= line.line_lease => {
                At::ReleasesToStorage
            }
            At::StampsLine => {
                line.line_t += 1;
                line.cpus[cpu].t = line.line_t;
                At::ReleasesAndSends
            }
            At::ReleasesToStorage => {
                line.is_claimed = false;
                At::LooksAtStorage
            }
            At::ReleasesAndSends => {
                line.is_claimed = false;
                At::Sends
            }
            At::LooksAtStorage => match line.clock {
                Where::Here => At::Stamps,
                _ => At::ClaimsBack,
            },
            At::ClaimsBack if line.is_claimed => At::LooksForEviction,
            At::ClaimsBack => {
                line.is_claimed = true;
                At::TakesBack
            }
            At::TakesBack if line.name != Name::Own => {
                line.is_claimed = false;
                At::LooksForEviction
            }
            At::TakesBack => {
                (line.stored_t, line.clock) = (line.line_t, Where::Here);
                At::Unnames
            }
            At::Unnames => {
                line.name = Name::Free;
                At::ReleasesTaken
            }
            At::ReleasesTaken => {
                line.is_claimed = false;
                At::Stamps
            }
            At::LooksForEviction => {
                let is_lent = match self.evicted_unclaimed {
                    true => line.clock != Where::Here,
                    false => line.clock == Where::Lent,
                };
                if is_lent && line.name != Name::Own {
                    (line.stored_t, line.clock) = (line.lease, Where::Here);
                }
                At::Stamps
            }
            At::Stamps if line.clock != Where::Here && !self.stamps_unasked => At::ReadsChange,
            At::Stamps => {
                line.stored_t += 1;
                line.cpus[cpu].t = line.stored_t;
                At::SendsAndLends
            }
            At::ReadsChange => {
                line.cpus[cpu].change = line.change;
                At::ReadsName
            }
            At::ReadsName if line.name != Name::Own => self.without_line(line, cpu),
            At::ReadsName => At::ReadsT,
            At::ReadsT => {
                line.cpus[cpu].t = line.line_t;
                At::ReadsAgain
            }
            At::ReadsAgain if line.name == Name::Own && line.change == own.change => At::Sends,
            At::ReadsAgain => self.without_line(line, cpu),
            At::Sends => {
                Self::sends(line, cpu);
                At::Idle
            }
            At::SendsAndLends => {
                Self::sends(line, cpu);
                At::ClaimsToLend
            }
            At::ClaimsToLend if line.is_claimed => At::Idle,
            At::ClaimsToLend => {
                line.is_claimed = true;
                At::Lends
            }
            At::Lends if line.clock != Where::Here => At::ReleasesLent,
            At::Lends => {
                line.cpus[cpu].t = line.stored_t;
                (line.lease, line.clock) = (line.stored_t + LEASE, Where::Leaving);
                match self.clock_first {
                    true => At::WritesClock,
                    false => At::TakesName,
                }
            }
            At::TakesName => {
                line.name = Name::Free;
                At::BeginsChange
            }
            At::BeginsChange => {
                line.change += 1;
                match self.clock_first {
                    true => At::WritesName,
                    false => At::WritesClock,
                }
            }
            At::WritesClock => {
                line.line_t = own.t;
                line.line_lease = own.t + LEASE;
                match self.clock_first {
                    true => At::BeginsChange,
                    false => At::WritesName,
                }
            }
            At::WritesName => {
                line.name = Name::Own;
                At::EndsChange
            }
            At::EndsChange => {
                line.change += 1;
                At::SaysLent
            }
            At::SaysLent => {
                if line.clock == Where::Leaving {
                    line.clock = Where::Lent;
                }
                At::ReleasesLent
            }
            At::ReleasesLent => {
                line.is_claimed = false;
                At::Idle
            }
        })
    }

    /// The storage's T, which is as new while the clock is on its way, or another look.
    fn without_line(&self, line: &mut LentClockState, cpu: usize) -> At {
        match line.clock {
            Where::Leaving => {
                line.cpus[cpu].t = line.stored_t;
                At::Sends
            }
            _ => At::LooksAtStorage,
        }
    }

    fn evict(&self, line: &mut LentClockState) -> Option<Evicts> {
        Some(match line.other {
            Evicts::Claims if line.is_claimed => return None,
            Evicts::Claims => {
                line.is_claimed = true;
                match self.clock_first {
                    true => Evicts::WritesClock,
                    false => Evicts::TakesName,
                }
            }
            Evicts::TakesName => {
                line.name = Name::Free;
                Evicts::BeginsChange
            }
            Evicts::BeginsChange => {
                line.change += 1;
                match self.clock_first {
                    true => Evicts::WritesName,
                    false => Evicts::WritesClock,
                }
            }
            Evicts::WritesClock => {
                line.line_t = FOREIGN;
                line.line_lease = FOREIGN + LEASE;
                match self.clock_first {
                    true => Evicts::BeginsChange,
                    false => Evicts::WritesName,
                }
            }
            Evicts::WritesName => {
                line.name = Name::Other;
                Evicts::EndsChange
            }
            Evicts::EndsChange => {
                line.change += 1;
                Evicts::Releases
            }
            Evicts::Releases => {
                line.is_claimed = false;
                Evicts::Done
            }
            Evicts::Done => return None,
        })
    }
}

impl Race for LentClock {
    type State = LentClockState;
    type Step = String;

    fn name(&self) -> &'static str {
        "lent-clock"
    }

    fn begin(&self) -> LentClockState {
        let cpu = Cpu {
            at: At::Idle,
            left: SEGMENTS,
            before: 0,
            t: 0,
            change: 0,
        };
        LentClockState {
            clock: Where::Lent,
            stored_t: 0,
            lease: LEASE,
            name: Name::Own,
            change: 0,
            line_t: 0,
            line_lease: LEASE,
            is_claimed: false,
            sent: 0,
            cpus: [cpu; SENDERS],
            other: Evicts::Claims,
            wrong: None,
        }
    }

    fn moves(&self, state: &LentClockState) -> Vec<(String, LentClockState)> {
        let mut moves = Vec::new();
        for cpu in 0..SENDERS {
            let mut next = state.clone();
            if let Some(at) = self.step(&mut next, cpu) {
                next.cpus[cpu].at = at;
                moves.push((format!("CPU {cpu}: {:?}", state.cpus[cpu].at), next));
            }
        }
        let mut next = state.clone();
        if let Some(other) = self.evict(&mut next) {
            next.other = other;
            moves.push((format!("another connection: {:?}", state.other), next));
        }
        moves
    }

    fn wrong(&self, state: &LentClockState) -> Option<&'static str> {
        state.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::explore;

    #[test]
    fn t_never_goes_back_and_is_the_connections_own() {
        let explored = explore(&LentClock::default());
        assert_eq!(explored.fault, None);
        assert!(
            explored.states > 10_000 && explored.ends > 0,
            "{explored:?}"
        );
    }

    #[test]
    fn planted_faults_are_found() {
        let all = LentClock::default();
        for (race, expected) in [
            (
                LentClock {
                    evicted_unclaimed: true,
                    ..all
                },
                "T goes back",
            ),
            (
                LentClock {
                    clock_first: true,
                    ..all
                },
                "a segment leaves with another connection's T",
            ),
            (
                LentClock {
                    stamps_unasked: true,
                    ..all
                },
                "T goes back",
            ),
        ] {
            let (way, wrong) = explore(&race).fault.expect("a way");
            assert_eq!(wrong, expected, "{race:?}: {way:?}");
        }
    }
}
