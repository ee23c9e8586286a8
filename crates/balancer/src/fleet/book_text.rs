// SPDX-License-Identifier: Apache-2.0
//! The book and what members say of themselves, as texts for stores and files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use causeway_core::fleet::{FleetBook, KeyNumber, Position};
use serde::{Deserialize, Serialize};

use super::AgentPaths;
use super::reading::MemberNames;

/// The newest format of the book that this build reads, and writes.
pub(super) const READS: u16 = 1;

/// Why a text is not taken for a book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoBook {
    /// It has the form of builds before the formats were counted anew.
    Former,
    /// It is of a later format.
    Format(u16),
    /// It is damaged.
    Damaged(String),
}

/// A book as a store has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredBook {
    /// The store that it was written into: one set back to a copy is another.
    pub cluster: String,
    pub names: MemberNames,
    pub book: Arc<FleetBook>,
}

/// What a book of any format has, and one of former builds.
#[derive(Deserialize)]
struct AnyBook {
    format: Option<u16>,
    book: Option<AnyFormat>,
}

#[derive(Deserialize)]
struct AnyFormat {
    format: u16,
}

/// What a member writes of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AckText {
    /// The store that it was written into.
    pub cluster: String,
    /// Which of the balancers that may have this name has written it.
    pub balancer: String,
    /// Which others have spoken by this name since that one began.
    pub heard: BTreeSet<String>,
    /// The book that its data plane follows.
    pub position: Option<Position>,
    /// Digests of the keys that it has, which reveal nothing of them.
    pub keys: BTreeMap<KeyNumber, String>,
    /// It gets no packets since it left, if it had come into service there.
    pub left: Option<Position>,
    /// Where it listens for agents, and the sources of its tunnels.
    pub paths: AgentPaths,
}

impl StoredBook {
    pub(super) fn to_text(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|error| error.to_string())
    }

    /// The book that a text holds.
    pub(super) fn of_text(text: &str) -> Result<Self, NoBook> {
        let damaged = |error: serde_json::Error| NoBook::Damaged(error.to_string());
        let any: AnyBook = serde_json::from_str(text).map_err(damaged)?;
        match (any.format, any.book) {
            (Some(_), _) => Err(NoBook::Former),
            (_, Some(AnyFormat { format })) if format > READS => Err(NoBook::Format(format)),
            _ => serde_json::from_str(text).map_err(damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use causeway_core::fleet::{
        Absence, CidForm, CidPhases, FleetVip, FleetVipReal, HandState, IdPhase, IdRecord,
        JoinToken, KeyPhases, MemberPhase, MemberRecord, PastChange, PastVip,
    };

    use super::*;

    /// docs/how-to/several-balancers.md has the number: etcd takes requests of 1.5 MiB.
    #[test]
    fn a_book_of_6_000_reals_fits_a_request_of_etcd() {
        let mut book = FleetBook::new(Absence::Waits, 2, u64::MAX);
        book.position.generation.by = u64::MAX;
        book.position.revision = 1_000_000;
        for at in 0..60 {
            let vip: Arc<str> = format!("[2001:db8:100:200::{at:x}]:443/tcp").into();
            let mut wanted = FleetVip::default();
            for id in 0..100 {
                let real = format!("2001:db8:300:400::1:{id:x}").parse().unwrap();
                let agent = true;
                wanted.reals.insert(real, FleetVipReal { id: None, agent });
                let record = IdRecord {
                    real,
                    phase: IdPhase::Live,
                    since: book.position,
                    agent,
                };
                book.ids.insert((vip.clone(), 10_000 + id), record);
            }
            book.vips.insert(vip, wanted);
        }
        let stored = StoredBook {
            cluster: u64::MAX.to_string(),
            book: Arc::new(book),
            names: MemberNames::new(),
        };
        let bytes = stored.to_text().unwrap().len();
        let each = bytes / 6_000;
        assert!((200..250).contains(&each), "{each}");
        assert!(bytes < 1_572_864, "{bytes}");
    }

    #[test]
    fn a_book_is_read_as_it_was_written_and_no_later_format_is() {
        let mut book = FleetBook::new(Absence::StepsAside, 4, 7);
        let vip: Arc<str> = "192.0.2.1:80/tcp".into();
        let real: IpAddr = "10.0.0.1".parse().unwrap();
        let since = book.position.next();
        let wanted = FleetVip {
            ids: 64,
            cid: Some(CidForm { number: 6, mark: 9 }),
            reals: [(
                real,
                FleetVipReal {
                    id: Some(5),
                    agent: true,
                },
            )]
            .into(),
        };
        book.vips.insert(vip.clone(), wanted);
        let phases = [
            IdPhase::Known,
            IdPhase::Live,
            IdPhase::Leaving,
            IdPhase::Resting,
        ];
        for (id, phase) in (0..).zip(phases) {
            let record = IdRecord {
                real,
                phase,
                since,
                agent: id == 1,
            };
            book.ids.insert((vip.clone(), id), record);
        }
        for (id, phase) in [(7, MemberPhase::Serving), (u64::MAX, MemberPhase::Joining)] {
            book.members.insert(
                id,
                MemberRecord {
                    phase,
                    since,
                    reads: 3,
                },
            );
        }
        book.format = READS;
        book.keys.other = Some(5);
        let cids = CidPhases {
            phases: KeyPhases {
                issued: 1,
                other: Some(2),
                since,
            },
            forms: [
                (
                    1,
                    CidForm {
                        number: 0,
                        mark: u64::MAX,
                    },
                ),
                (2, CidForm { number: 6, mark: 9 }),
            ]
            .into(),
        };
        book.cids.insert(vip.clone(), cids);
        let token = JoinToken {
            servers: [real].into(),
            epoch: 1,
            until_s: u64::MAX,
            used_by: Some([7; 32]),
        };
        book.tokens.insert(3, token);
        let set = HandState {
            drain: Some(false),
            maintenance: None,
            weight: Some(0),
        };
        let past = PastVip {
            was: Some((64, Some(CidForm { number: 6, mark: 9 }))),
            reals: [
                (
                    real,
                    Some(FleetVipReal {
                        id: Some(5),
                        agent: true,
                    }),
                ),
                ("10.0.0.2".parse().unwrap(), None),
            ]
            .into(),
        };
        let none = PastVip {
            was: None,
            reals: BTreeMap::new(),
        };
        book.history.push(PastChange {
            revision: 7,
            by: u64::MAX,
            at_s: 8,
            back_to: Some(5),
            before: [(vip.clone(), past), ("192.0.2.2:80/tcp".into(), none)].into(),
        });
        book.by_hand.insert((vip, real), set);
        let stored = StoredBook {
            cluster: "c".to_owned(),
            book: Arc::new(book),
            names: [(7, "lb1".to_owned()), (u64::MAX, "lb2".to_owned())].into(),
        };
        let text = stored.to_text().unwrap();
        assert_eq!(StoredBook::of_text(&text), Ok(stored));
        let later = text.replace("\"format\":1", "\"format\":2,\"more\":0");
        assert_eq!(StoredBook::of_text(&later), Err(NoBook::Format(2)));
        let former =
            r#"{"format":3,"cluster":"f","position":{"generation":0,"by":1,"revision":7}}"#;
        assert_eq!(StoredBook::of_text(former), Err(NoBook::Former));
        let more = text.replace("\"format\":1", "\"format\":1,\"more\":0");
        assert!(matches!(
            StoredBook::of_text(&more),
            Err(NoBook::Damaged(_))
        ));
    }
}
