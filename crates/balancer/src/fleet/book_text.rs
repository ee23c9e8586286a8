// SPDX-License-Identifier: Apache-2.0
//! The book and what members say of themselves, as texts for stores and files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use causeway_core::fleet::{
    Absence, CidForm, CidPhases, FleetBook, FleetVip, FleetVipReal, Generation, HandState, IdPhase,
    IdRecord, JoinKey, JoinToken, KeyNumber, KeyPhases, MemberPhase, MemberRecord, PastChange,
    PastVip, Position, TokenId,
};
use serde::{Deserialize, Serialize};

use super::AgentPaths;
use super::reading::MemberNames;

/// The newest format of the book that this build reads, and writes.
pub(super) const READS: u16 = 3;

/// Why a text is not taken for a book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoBook {
    /// It is of a later format.
    Format(u16),
    /// It is damaged.
    Damaged(String),
}

/// A book as a store has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredBook {
    /// The store that it was written into: one set back to a copy is another.
    pub cluster: String,
    pub book: Arc<FleetBook>,
    pub names: MemberNames,
}

/// What a member writes of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AckText {
    /// The store that it was written into.
    pub cluster: String,
    /// Which of the balancers that may have this name has written it. Builds before have none.
    #[serde(default)]
    pub balancer: String,
    /// Which others have spoken by this name since that one began.
    #[serde(default)]
    pub heard: BTreeSet<String>,
    /// The book that its data plane follows.
    pub position: Option<PositionText>,
    /// Digests of the keys that it has, which reveal nothing of them.
    #[serde(default)]
    pub keys: BTreeMap<KeyNumber, String>,
    /// It gets no packets since it left, if it had come into service there.
    #[serde(default)]
    pub left: Option<PositionText>,
    /// Where it listens for agents, and the sources of its tunnels.
    #[serde(default)]
    pub paths: AgentPaths,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PositionText {
    generation: u32,
    by: u64,
    revision: u64,
}

impl From<Position> for PositionText {
    fn from(position: Position) -> Self {
        Self {
            generation: position.generation.count,
            by: position.generation.by,
            revision: position.revision,
        }
    }
}

impl From<PositionText> for Position {
    fn from(text: PositionText) -> Self {
        Self {
            generation: Generation {
                count: text.generation,
                by: text.by,
            },
            revision: text.revision,
        }
    }
}

impl From<KeyPhases> for KeysText {
    fn from(keys: KeyPhases) -> Self {
        Self {
            issued: keys.issued,
            other: keys.other,
            since: keys.since.into(),
        }
    }
}

impl From<KeysText> for KeyPhases {
    fn from(text: KeysText) -> Self {
        Self {
            issued: text.issued,
            other: text.other,
            since: text.since.into(),
        }
    }
}

impl From<CidForm> for CidText {
    fn from(form: CidForm) -> Self {
        let CidForm { number, mark } = form;
        Self { number, mark }
    }
}

impl From<CidText> for CidForm {
    fn from(text: CidText) -> Self {
        let CidText { number, mark } = text;
        Self { number, mark }
    }
}

#[derive(Deserialize)]
struct Head {
    format: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BookText {
    format: u16,
    cluster: String,
    position: PositionText,
    steps_aside: bool,
    wanted_key: KeyNumber,
    keys: KeysText,
    members: Vec<MemberText>,
    vips: FleetVips,
    ids: Vec<IdText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cids: Vec<CidsText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tokens: Vec<TokenText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    history: Vec<PastText>,
    by_hand: Vec<HandText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysText {
    issued: KeyNumber,
    other: Option<KeyNumber>,
    since: PositionText,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberText {
    id: u64,
    name: String,
    serves: bool,
    since: PositionText,
    reads: u16,
}

/// VIPs by address, port and protocol, as texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct FleetVips(BTreeMap<String, VipText>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VipText {
    ids: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cid: Option<CidText>,
    reals: BTreeMap<IpAddr, RealText>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RealText {
    id: Option<u16>,
    agent: bool,
}

impl From<FleetVipReal> for RealText {
    fn from(real: FleetVipReal) -> Self {
        let FleetVipReal { id, agent } = real;
        Self { id, agent }
    }
}

impl From<RealText> for FleetVipReal {
    fn from(text: RealText) -> Self {
        let RealText { id, agent } = text;
        Self { id, agent }
    }
}

impl From<&PastChange> for PastText {
    fn from(past: &PastChange) -> Self {
        let vip = |past: &PastVip| PastVipText {
            was: past.was.map(|(ids, cid)| WasText {
                ids,
                cid: cid.map(Into::into),
            }),
            reals: past
                .reals
                .iter()
                .map(|(of, own)| (*of, own.map(Into::into)))
                .collect(),
        };
        let before = past.before.iter();
        Self {
            revision: past.revision,
            by: past.by,
            at_s: past.at_s,
            back_to: past.back_to,
            before: before.map(|(of, own)| (of.to_string(), vip(own))).collect(),
        }
    }
}

impl From<PastText> for PastChange {
    fn from(text: PastText) -> Self {
        let vip = |text: PastVipText| PastVip {
            was: text.was.map(|was| (was.ids, was.cid.map(Into::into))),
            reals: text
                .reals
                .into_iter()
                .map(|(of, own)| (of, own.map(Into::into)))
                .collect(),
        };
        let before = text.before.into_iter();
        Self {
            revision: text.revision,
            by: text.by,
            at_s: text.at_s,
            back_to: text.back_to,
            before: before
                .map(|(of, own)| (of.as_str().into(), vip(own)))
                .collect(),
        }
    }
}

/// A past change of VIPs.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastText {
    revision: u64,
    by: u64,
    at_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    back_to: Option<u64>,
    before: BTreeMap<String, PastVipText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastVipText {
    was: Option<WasText>,
    reals: BTreeMap<IpAddr, Option<RealText>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WasText {
    ids: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cid: Option<CidText>,
}

/// A configuration of connection ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CidText {
    number: u8,
    mark: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CidsText {
    vip: String,
    phases: KeysText,
    forms: BTreeMap<KeyNumber, CidText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenText {
    id: TokenId,
    servers: BTreeSet<IpAddr>,
    epoch: u8,
    until_s: u64,
    used_by: Option<JoinKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdText {
    vip: String,
    id: u16,
    real: IpAddr,
    phase: PhaseText,
    since: PositionText,
    agent: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PhaseText {
    Known,
    Live,
    Leaving,
    Resting,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandText {
    vip: String,
    real: IpAddr,
    drain: Option<bool>,
    maintenance: Option<bool>,
    weight: Option<u32>,
}

impl From<&BTreeMap<Arc<str>, FleetVip>> for FleetVips {
    fn from(vips: &BTreeMap<Arc<str>, FleetVip>) -> Self {
        let vip = |vip: &FleetVip| VipText {
            ids: vip.ids,
            cid: vip.cid.map(Into::into),
            reals: vip
                .reals
                .iter()
                .map(|(of, own)| (*of, (*own).into()))
                .collect(),
        };
        Self(
            vips.iter()
                .map(|(of, own)| (of.to_string(), vip(own)))
                .collect(),
        )
    }
}

impl FleetVips {
    pub(super) fn vips(&self) -> BTreeMap<Arc<str>, FleetVip> {
        let vip = |vip: &VipText| FleetVip {
            ids: vip.ids,
            cid: vip.cid.map(Into::into),
            reals: vip
                .reals
                .iter()
                .map(|(of, own)| (*of, (*own).into()))
                .collect(),
        };
        let vips = self.0.iter();
        vips.map(|(of, own)| (of.as_str().into(), vip(own)))
            .collect()
    }
}

impl StoredBook {
    pub(super) fn to_text(&self) -> Result<String, String> {
        let book = &*self.book;
        let name = |id: &u64| self.names.get(id).cloned();
        let text = BookText {
            format: book.format,
            cluster: self.cluster.clone(),
            position: book.position.into(),
            steps_aside: book.absence == Absence::StepsAside,
            wanted_key: book.wanted_key,
            keys: book.keys.into(),
            cids: book
                .cids
                .iter()
                .map(|(vip, own)| CidsText {
                    vip: vip.to_string(),
                    phases: own.phases.into(),
                    forms: own
                        .forms
                        .iter()
                        .map(|(of, form)| (*of, (*form).into()))
                        .collect(),
                })
                .collect(),
            members: book
                .members
                .iter()
                .map(|(id, record)| MemberText {
                    id: *id,
                    name: name(id).unwrap_or_else(|| format!("{id:016x}")),
                    serves: record.phase == MemberPhase::Serving,
                    since: record.since.into(),
                    reads: record.reads,
                })
                .collect(),
            vips: (&book.vips).into(),
            ids: book
                .ids
                .iter()
                .map(|((vip, id), record)| IdText {
                    vip: vip.to_string(),
                    id: *id,
                    real: record.real,
                    phase: match record.phase {
                        IdPhase::Known => PhaseText::Known,
                        IdPhase::Live => PhaseText::Live,
                        IdPhase::Leaving => PhaseText::Leaving,
                        IdPhase::Resting => PhaseText::Resting,
                    },
                    since: record.since.into(),
                    agent: record.agent,
                })
                .collect(),
            tokens: book
                .tokens
                .iter()
                .map(|(id, token)| TokenText {
                    id: *id,
                    servers: token.servers.clone(),
                    epoch: token.epoch,
                    until_s: token.until_s,
                    used_by: token.used_by,
                })
                .collect(),
            history: book.history.iter().map(Into::into).collect(),
            by_hand: book
                .by_hand
                .iter()
                .map(|((vip, real), set)| HandText {
                    vip: vip.to_string(),
                    real: *real,
                    drain: set.drain,
                    maintenance: set.maintenance,
                    weight: set.weight,
                })
                .collect(),
        };
        serde_json::to_string(&text).map_err(|error| error.to_string())
    }

    /// The book that a text holds.
    pub(super) fn of_text(text: &str) -> Result<Self, NoBook> {
        let damaged = |error: serde_json::Error| NoBook::Damaged(error.to_string());
        let head: Head = serde_json::from_str(text).map_err(damaged)?;
        if head.format > READS {
            return Err(NoBook::Format(head.format));
        }
        let text: BookText = serde_json::from_str(text).map_err(damaged)?;
        let names = text.members.iter();
        let names = names
            .map(|member| (member.id, member.name.clone()))
            .collect();
        let members = text.members.iter().map(|member| {
            let record = MemberRecord {
                phase: match member.serves {
                    true => MemberPhase::Serving,
                    false => MemberPhase::Joining,
                },
                since: member.since.into(),
                reads: member.reads,
            };
            (member.id, record)
        });
        let ids = text.ids.iter().map(|own| {
            let record = IdRecord {
                real: own.real,
                phase: match own.phase {
                    PhaseText::Known => IdPhase::Known,
                    PhaseText::Live => IdPhase::Live,
                    PhaseText::Leaving => IdPhase::Leaving,
                    PhaseText::Resting => IdPhase::Resting,
                },
                since: own.since.into(),
                agent: own.agent,
            };
            ((own.vip.as_str().into(), own.id), record)
        });
        let cids = text.cids.into_iter().map(|own| {
            let forms = own.forms.into_iter();
            let cids = CidPhases {
                phases: own.phases.into(),
                forms: forms.map(|(of, form)| (of, form.into())).collect(),
            };
            (own.vip.as_str().into(), cids)
        });
        let by_hand = text.by_hand.iter().map(|own| {
            let set = HandState {
                drain: own.drain,
                maintenance: own.maintenance,
                weight: own.weight,
            };
            ((own.vip.as_str().into(), own.real), set)
        });
        let tokens = text.tokens.into_iter().map(|own| {
            let token = JoinToken {
                servers: own.servers,
                epoch: own.epoch,
                until_s: own.until_s,
                used_by: own.used_by,
            };
            (own.id, token)
        });
        let book = FleetBook {
            position: text.position.into(),
            format: text.format,
            absence: match text.steps_aside {
                true => Absence::StepsAside,
                false => Absence::Waits,
            },
            vips: text.vips.vips(),
            wanted_key: text.wanted_key,
            members: members.collect(),
            ids: ids.collect(),
            keys: text.keys.into(),
            cids: cids.collect(),
            by_hand: by_hand.collect(),
            tokens: tokens.collect(),
            history: text.history.into_iter().map(Into::into).collect(),
        };
        Ok(Self {
            cluster: text.cluster,
            book: Arc::new(book),
            names,
        })
    }
}

#[cfg(test)]
mod tests {
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
        let later = text.replace("\"format\":3", "\"format\":4,\"more\":0");
        assert_eq!(StoredBook::of_text(&later), Err(NoBook::Format(4)));
        let more = text.replace("\"format\":3", "\"format\":3,\"more\":0");
        assert!(matches!(
            StoredBook::of_text(&more),
            Err(NoBook::Damaged(_))
        ));
    }
}
