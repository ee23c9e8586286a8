// SPDX-License-Identifier: Apache-2.0
//! `find_flow()` and `remember()` of bpf/lb/flow_table.h, on one slot of the table: CPUs look
//! flows up, and open their own anew, while others claim the slot for theirs.
//!
//! Left out: the choice among a bucket's ways. `evicts_live` says whether this way may be the
//! cheapest although it is live, as in a bucket that is full of live flows.

use super::Race;

/// Which flows meet at a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowTableRace {
    /// Whether the bucket is so full that live entries go.
    pub evicts_live: bool,
    /// Whether the flows have one fingerprint, and so take each other's slot.
    pub same_fingerprint: bool,
    /// Whether the reader's packet is a RST, which has the entry go first from now on.
    pub resets: bool,
    /// Whether the reader's packet is a SYN that opens its flow anew, on another real.
    pub reopens: bool,
    /// Planted: a flow that is opened anew is written without a claim.
    pub reopens_in_place: bool,
    /// Planted: a reader goes by a tag that is not its flow's.
    pub takes_any_tag: bool,
    /// Planted: a reader does not look at the tag again.
    pub trusts_the_key: bool,
    /// Planted: a writer publishes the tag before it writes.
    pub publishes_early: bool,
}

const AGE: u8 = 3;
const GONE: u8 = 0;
const NEW: u8 = 1;
const OLD: u8 = 2;
const LIVE: u8 = 3;
/// As in bpf: no flow's fingerprint.
const CLAIMED: u8 = LIVE;
const MIXED: &str = "an entry is one flow's by its key and another's by its real";
/// Flows and their reals have the same numbers.
const WRITERS: [u8; 2] = [2, 3];
const READS: u8 = 1;
/// The real of the reader's flow once it is opened anew.
const ANEW: u8 = 4;

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FlowSlotState {
    tag: u8,
    key: u8,
    real: u8,
    writers: [Writer; WRITERS.len()],
    reader: Reader,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Look,
    Claim(u8),
    Clear,
    Key,
    Real,
    Publish,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    Search,
    Compare,
    Tag,
    Age(u8),
    Again(u8),
    Real,
    Claim(u8),
    Clear(u8),
    Write(u8),
    Publish(u8),
    Sent(u8),
    NotFound,
}

fn is_of(real: u8, key: u8) -> bool {
    real == key || key == READS && real == ANEW
}

impl FlowTableRace {
    fn fingerprint(&self, flow: u8) -> u8 {
        (if self.same_fingerprint { 1 } else { flow }) << 2
    }

    fn write(&self, slot: &FlowSlotState, at: usize) -> Option<(&'static str, FlowSlotState)> {
        let (mut next, flow) = (slot.clone(), WRITERS[at]);
        let publish = self.fingerprint(flow) | NEW;
        let (step, then) = match slot.writers[at] {
            Writer::Look => {
                let (mut seen, same) = (slot.tag, slot.tag & !AGE == self.fingerprint(flow));
                let free = slot.tag == 0 || same && slot.tag != CLAIMED;
                if !free && slot.tag & AGE == LIVE && slot.tag != CLAIMED {
                    if !self.evicts_live {
                        return None;
                    }
                    // age_bucket(): from now on it must be seen again.
                    next.tag = slot.tag & !AGE | OLD;
                    seen = next.tag;
                }
                match seen {
                    CLAIMED => ("writer gives up", Writer::End),
                    seen => ("writer looks at the tag", Writer::Claim(seen)),
                }
            }
            Writer::Claim(seen) if slot.tag != seen => ("writer is late", Writer::End),
            Writer::Claim(_) if self.publishes_early => {
                next.tag = publish;
                ("writer publishes", Writer::Clear)
            }
            Writer::Claim(_) => {
                next.tag = CLAIMED;
                ("writer claims", Writer::Clear)
            }
            Writer::Clear => {
                (next.key, next.real) = (0, 0);
                ("writer clears", Writer::Key)
            }
            Writer::Key => {
                next.key = flow;
                ("writer writes the key", Writer::Real)
            }
            Writer::Real => {
                next.real = flow;
                ("writer writes the real", Writer::Publish)
            }
            Writer::Publish => {
                next.tag = publish;
                ("writer publishes", Writer::End)
            }
            Writer::End => return None,
        };
        next.writers[at] = then;
        Some((step, next))
    }

    fn read(&self, slot: &FlowSlotState) -> Option<(&'static str, FlowSlotState)> {
        let mut next = slot.clone();
        let found = |yes, then| if yes { then } else { Reader::NotFound };
        let (step, then) = match slot.reader {
            Reader::Search => {
                let same = slot.tag & !AGE == self.fingerprint(READS) && slot.tag != CLAIMED;
                ("reader searches", found(same, Reader::Compare))
            }
            Reader::Compare => {
                let then = if self.trusts_the_key {
                    Reader::Real
                } else {
                    Reader::Tag
                };
                ("reader compares the key", found(slot.key == READS, then))
            }
            Reader::Tag => {
                let own = self.takes_any_tag || slot.tag & !AGE == self.fingerprint(READS);
                ("reader reads the tag", found(own, Reader::Age(slot.tag)))
            }
            Reader::Age(seen) => {
                if slot.tag == seen {
                    next.tag = seen & !AGE | if self.resets { GONE } else { LIVE };
                }
                ("reader sets the age", Reader::Again(seen))
            }
            Reader::Again(seen) => {
                let same = (slot.tag ^ seen) & !AGE == 0;
                let then = if self.reopens_in_place {
                    Reader::Clear(seen)
                } else if self.reopens {
                    Reader::Claim(slot.tag)
                } else {
                    Reader::Real
                };
                ("reader reads the tag again", found(same, then))
            }
            Reader::Claim(seen) => {
                if slot.tag == seen {
                    next.tag = CLAIMED;
                }
                (
                    "reader claims",
                    found(slot.tag == seen, Reader::Clear(seen)),
                )
            }
            Reader::Clear(seen) => {
                (next.key, next.real) = (0, 0);
                ("reader clears", Reader::Write(seen))
            }
            Reader::Write(seen) => {
                next.key = READS;
                ("reader writes the key", Reader::Publish(seen))
            }
            Reader::Publish(seen) => {
                next.real = ANEW;
                if !self.reopens_in_place {
                    next.tag = seen;
                }
                ("reader writes the real, and publishes", Reader::Sent(ANEW))
            }
            Reader::Real => ("reader takes the real", Reader::Sent(slot.real)),
            Reader::Sent(_) | Reader::NotFound => return None,
        };
        next.reader = then;
        Some((step, next))
    }
}

impl Race for FlowTableRace {
    type State = FlowSlotState;
    type Step = &'static str;

    fn name(&self) -> &'static str {
        "flow-table"
    }

    fn begin(&self) -> FlowSlotState {
        FlowSlotState {
            tag: self.fingerprint(READS) | NEW,
            key: READS,
            real: READS,
            writers: [Writer::Look; WRITERS.len()],
            reader: Reader::Search,
        }
    }

    fn moves(&self, slot: &FlowSlotState) -> Vec<(&'static str, FlowSlotState)> {
        let writes = (0..WRITERS.len()).filter_map(|at| self.write(slot, at));
        writes.chain(self.read(slot)).collect()
    }

    fn wrong(&self, slot: &FlowSlotState) -> Option<&'static str> {
        match slot.reader {
            // Where a RST goes does not matter once its entry may be taken.
            Reader::Sent(real) if !is_of(real, READS) && !self.resets => {
                Some("a packet goes to another flow's real")
            }
            _ if slot.tag & !AGE != 0 && slot.tag != CLAIMED && !is_of(slot.real, slot.key) => {
                let writes = |writer: &Writer| matches!(writer, Writer::Key | Writer::Real);
                let reopens = matches!(slot.reader, Reader::Write(_) | Reader::Publish(_));
                let quiet = !reopens && !slot.writers.iter().any(writes);
                quiet.then_some(MIXED)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::explore;

    #[test]
    fn no_packet_goes_astray_while_something_cheaper_than_a_live_flow_is_in_the_bucket() {
        for (resets, reopens) in [(false, false), (true, false), (false, true)] {
            let explored = explore(&FlowTableRace {
                resets,
                reopens,
                ..FlowTableRace::default()
            });
            assert_eq!(explored.fault, None, "{resets} {reopens}");
            assert!(explored.states > 100 && explored.ends > 1, "{explored:?}");
        }
    }

    /// Also where a flow that lives is evicted as it is opened anew: one of the two is
    /// forgotten, and neither has the other's real.
    #[test]
    fn a_flow_that_is_opened_anew_mixes_with_no_other() {
        let race = FlowTableRace {
            reopens: true,
            evicts_live: true,
            ..FlowTableRace::default()
        };
        assert_eq!(explore(&race).fault, None);
        let in_place = FlowTableRace {
            reopens_in_place: true,
            ..race
        };
        let (way, wrong) = explore(&in_place).fault.expect("a way");
        assert_eq!(wrong, MIXED, "{way:?}");
    }

    /// What is left open on purpose: it takes a CPU that evicts, clears and writes between two
    /// instructions of another.
    #[test]
    fn one_packet_may_go_astray_where_live_flows_or_twins_are_evicted() {
        for race in [
            FlowTableRace {
                evicts_live: true,
                ..FlowTableRace::default()
            },
            FlowTableRace {
                same_fingerprint: true,
                ..FlowTableRace::default()
            },
        ] {
            let (way, wrong) = explore(&race).fault.expect("a way");
            assert_eq!(wrong, "a packet goes to another flow's real");
            // The whole of an eviction lies within the look.
            assert!(way.iter().any(|step| step == "writer claims"), "{way:?}");
            assert_eq!(
                way.last().map(String::as_str),
                Some("reader takes the real")
            );
        }
    }

    /// As it once was: the age of a slot that is being written was set, and a second CPU wrote it,
    /// too.
    #[test]
    fn a_tag_that_is_not_the_flows_is_left_alone() {
        let race = FlowTableRace {
            resets: true,
            takes_any_tag: true,
            ..FlowTableRace::default()
        };
        let (way, wrong) = explore(&race).fault.expect("a way");
        assert_eq!(wrong, MIXED, "{way:?}");
    }

    #[test]
    fn planted_faults_are_found() {
        for race in [
            FlowTableRace {
                takes_any_tag: true,
                ..FlowTableRace::default()
            },
            FlowTableRace {
                trusts_the_key: true,
                ..FlowTableRace::default()
            },
            FlowTableRace {
                publishes_early: true,
                ..FlowTableRace::default()
            },
        ] {
            assert!(explore(&race).fault.is_some(), "{race:?}");
        }
    }
}
