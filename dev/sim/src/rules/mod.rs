// SPDX-License-Identifier: Apache-2.0
//! The rules of a fleet (`causeway_core::fleet`) in every order of events: two or three balancers
//! with disk and data plane, a store, agents, and every connection that there can be. What runs is
//! the product's code; what is modelled is all around it.
//!
//! Checked in each state: no balancer in service drops a packet of an open connection or sends it
//! to another server, no two reals have one id, and, when everything is well again, all that was
//! wanted comes to be.
//!
//! Left out: what clocks show. That a time is over is an event, and the assumption is its guard: a
//! balancer is known to be gone only where it is out of service, and what has rested has no
//! connections from before. `LeaseTerms` turns times into these events, and has tests of its own.

mod connections;
mod heal;
mod joins;
#[cfg(test)]
mod tests;
mod world;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use causeway_core::fleet::{
    Absence, CIDS_OF_FILES, CidForm, FleetBook, FleetChange, FleetEvent, IdPhase, KeyNumber,
    MayRemove, MemberPhase, Stored,
};

use crate::races::Race;
use joins::{TOKEN, token};
use world::{NEW_REAL, OLD_REAL, READS, VIP, vip};
pub use world::{RulesStep, RulesWorld};

/// How often each trouble may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Daemons that crash; their data planes go on.
    pub crashes: u8,
    /// Machines that lose power.
    pub reboots: u8,
    /// Starts without the file of the last good book.
    pub files: u8,
    /// Books that cannot be written to the disk.
    pub unwritten: u8,
    /// Cuts between a balancer and the store.
    pub cuts: u8,
    /// Losses of the store.
    pub outages: u8,
    /// Losses of all that is in the store.
    pub wipes: u8,
    /// Stores that are set back to how they were at the beginning.
    pub rewinds: u8,
    /// Leases that end, where that means something.
    pub lapses: u8,
    /// Words of an operator that a balancer is gone.
    pub words: u8,
    /// Starts in the other version.
    pub versions: u8,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.crashes, "crash"),
            (self.files, "file lost"),
            (self.unwritten, "disk full"),
            (self.reboots, "power lost"),
            (self.words, "word of an operator"),
            (self.cuts, "cut"),
            (self.outages, "outage of the store"),
            (self.wipes, "wipe"),
            (self.rewinds, "store set back"),
            (self.lapses, "lease over"),
            (self.versions, "other version"),
        ];
        let parts = parts.into_iter().filter(|(times, _)| *times > 0);
        let parts: Vec<String> = parts
            .map(|(times, what)| match times {
                1 => what.to_owned(),
                _ => format!("{times} x {what}"),
            })
            .collect();
        f.write_str(&parts.join(", "))
    }
}

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// A real more.
    Grow,
    /// Another real in the place of the first.
    Replace,
    /// The next key.
    Rotate,
    /// The key after that.
    RotateTwice,
    /// A configuration of connection ids, as the book counts them.
    Configure(KeyNumber),
    /// A token by which an agent joins, which two agents show.
    Token,
    /// One of two reals less: half of them, which needs no confirmation.
    Drop(IpAddr),
}

/// Where configurations of connection ids are at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuicBegins {
    /// Nowhere: connections have cookies.
    Never,
    /// The first is in the book.
    InTheBook,
    /// It is in files alone.
    InFiles,
}

/// A fault that must be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Planted {
    /// None.
    #[default]
    Nothing,
    /// Balancers are taken to have acknowledged everything.
    DoesNotWaitForBalancers,
    /// The same, where a real waits to be picked.
    PicksAtOnce,
    /// Agents are taken to have acknowledged everything.
    DoesNotWaitForAgents,
    /// A balancer that joins is in service before all others know it.
    JoinsAtOnce,
    /// What rests is forgotten at once.
    DoesNotRest,
    /// What rests does so until cookies end, and not for connections without.
    RestsForCookiesAlone,
    /// Two clocks drift by more than is assumed: a lease is over for others before it is for its
    /// holder.
    LeaseEndsEarly,
    /// A balancer that starts is in service by its file, whatever has happened since.
    ServesFromItsFile,
    /// The store takes a book without comparing.
    WritesWithoutComparing,
    /// A balancer acknowledges what its data plane does not have yet.
    AcknowledgesBeforeItApplies,
    /// A balancer puts its book back although it was out of service.
    PutsBackWhatIsStale,
    /// A balancer that was out of service goes on with a book that is older than its own.
    TakesWhatIsOlder,
    /// A balancer applies a book that it could not write to its disk.
    DoesNotKeepAgain,
    /// An acknowledgement that the store has lost is not repeated.
    DoesNotRepeatItself,
    /// The format rises before all read it.
    RaisesTheFormatEarly,
    /// What servers issue connection ids by from files is refused once the book has a
    /// configuration.
    ForgetsFiles,
    /// A configuration may have the number of the one in use.
    NumberInUse,
    /// An agent that shows a token is answered before the store has taken its claim.
    AnswersBeforeTheStore,
    /// A book that is put back has its tokens.
    PutsBackTokens,
    /// What a change takes away is weighed against the reals that its file had.
    WeighsByItsFile,
    /// A balancer in service goes on with the book of a fleet that was founded anew.
    TakesAnotherFounders,
}

impl Planted {
    /// In words; empty for none.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::DoesNotWaitForBalancers => "does not wait for balancers",
            Self::PicksAtOnce => "picks at once",
            Self::DoesNotWaitForAgents => "does not wait for agents",
            Self::JoinsAtOnce => "joins at once",
            Self::DoesNotRest => "does not rest",
            Self::RestsForCookiesAlone => "rests for cookies alone",
            Self::LeaseEndsEarly => "a lease ends early for others",
            Self::ServesFromItsFile => "serves from its file after a loss of power",
            Self::WritesWithoutComparing => "writes without comparing",
            Self::AcknowledgesBeforeItApplies => "acknowledges before it applies",
            Self::PutsBackWhatIsStale => "puts back what is stale",
            Self::TakesWhatIsOlder => "takes what is older",
            Self::DoesNotKeepAgain => "does not keep again",
            Self::DoesNotRepeatItself => "does not repeat itself",
            Self::RaisesTheFormatEarly => "raises the format early",
            Self::ForgetsFiles => "forgets what is in files",
            Self::NumberInUse => "takes a number that is in use",
            Self::AnswersBeforeTheStore => "answers before the store",
            Self::PutsBackTokens => "puts back tokens",
            Self::WeighsByItsFile => "weighs removals by its file",
            Self::TakesAnotherFounders => "takes another founder's book",
        }
    }
}

/// A fleet, what is wanted of it, and what befalls it.
#[derive(Debug)]
pub struct FleetRules {
    /// What the model is called.
    pub name: &'static str,
    /// Balancers.
    pub members: usize,
    /// Whether the last of them joins.
    pub joins: bool,
    /// Whether the store is empty at first, and a balancer without a book founds the fleet anew.
    pub founds: bool,
    /// Ids of the VIP.
    pub ids: u16,
    /// Whether connections have ids of QUIC in the place of cookies.
    pub quic: QuicBegins,
    /// What is wanted.
    pub wishes: &'static [Wish],
    /// What a lapsed lease means.
    pub absence: Absence,
    /// Whether a proposal takes time to the store.
    pub delays: bool,
    /// Whether there are connections without cookies.
    pub plain: bool,
    /// Whether the first balancer is of the version before.
    pub old_version: bool,
    /// What befalls it.
    pub budget: Budget,
    /// The fault.
    pub planted: Planted,
    healed: RefCell<HashSet<u64>>,
}

impl FleetRules {
    fn new(name: &'static str, members: usize, wishes: &'static [Wish], budget: Budget) -> Self {
        Self {
            name,
            members,
            joins: false,
            founds: false,
            ids: 2,
            quic: QuicBegins::Never,
            wishes,
            absence: Absence::Waits,
            delays: false,
            plain: false,
            old_version: false,
            budget,
            planted: Planted::Nothing,
            healed: RefCell::default(),
        }
    }

    fn with(self, planted: Planted) -> Self {
        Self { planted, ..self }
    }

    fn reads_at_first(&self, at: usize) -> u16 {
        match self.old_version && at == 0 {
            true => READS - 1,
            false => READS,
        }
    }

    fn has_new_real(&self) -> bool {
        let brings = |wish: &Wish| matches!(wish, Wish::Grow | Wish::Replace);
        self.wishes.iter().any(brings) || self.drops()
    }

    /// Whether both reals are there from the beginning, and go.
    fn drops(&self) -> bool {
        let drops = |wish: &Wish| matches!(wish, Wish::Drop(_));
        self.wishes.iter().any(drops)
    }

    /// The reals, the key and the configuration of connection ids to come to.
    fn wanted(&self) -> (Vec<IpAddr>, KeyNumber, Option<KeyNumber>) {
        let mut reals = vec![OLD_REAL];
        let mut key = 1;
        let mut cid = (self.quic == QuicBegins::InTheBook).then_some(1);
        for wish in self.wishes {
            match wish {
                Wish::Grow => reals = vec![OLD_REAL, NEW_REAL],
                Wish::Replace => reals = vec![NEW_REAL],
                Wish::Rotate => key = key.max(2),
                Wish::RotateTwice => key = 3,
                Wish::Configure(number) => cid = cid.max(Some(*number)),
                Wish::Token => {}
                Wish::Drop(real) => reals.retain(|of| of != real),
            }
        }
        (reals, key, cid)
    }

    /// A configuration of connection ids, as the book counts them. The third has the number of the
    /// first.
    fn cid(&self, of: KeyNumber) -> CidForm {
        CidForm {
            number: (of % 2) as u8,
            mark: of,
        }
    }

    /// Whether a wish is not in a book.
    fn lacks(&self, wish: Wish, book: &FleetBook) -> bool {
        let vip = book.vips.get(VIP);
        let has = |real: &IpAddr| vip.is_some_and(|vip| vip.reals.contains_key(real));
        match wish {
            Wish::Grow => !has(&NEW_REAL),
            Wish::Replace => !has(&NEW_REAL) || has(&OLD_REAL),
            Wish::Drop(real) => has(&real),
            Wish::Rotate | Wish::RotateTwice => book.wanted_key < self.wanted().1,
            // It may be lost, and another is made then.
            Wish::Token => false,
            Wish::Configure(of) => vip.and_then(|vip| vip.cid).is_none_or(|own| own.mark < of),
        }
    }

    /// What an operator changes in a book for a wish; `None`: it is too early.
    fn push(&self, wish: Wish, book: &FleetBook, may_remove: MayRemove) -> Option<FleetEvent> {
        let cid = book.vips.get(VIP).and_then(|vip| vip.cid);
        let change = |reals: &[IpAddr], cid, may_remove| {
            let vip = Some(vip(self.ids, reals, cid));
            FleetEvent::Change(FleetChange {
                vips: [(Arc::from(VIP), vip)].into(),
                may_remove,
                at_s: 0,
                back_to: None,
            })
        };
        let pool = |reals: &[IpAddr], cid| change(reals, cid, MayRemove::Confirmed);
        let reals: Vec<IpAddr> = book.vips.get(VIP)?.reals.keys().copied().collect();
        Some(match wish {
            Wish::Grow => pool(&[OLD_REAL, NEW_REAL], cid),
            Wish::Replace => pool(&[NEW_REAL], cid),
            Wish::Rotate => FleetEvent::Key(2),
            Wish::RotateTwice => FleetEvent::Key(3),
            Wish::Token => FleetEvent::Token(TOKEN, token()),
            Wish::Drop(real) => {
                let reals: Vec<_> = reals.into_iter().filter(|of| *of != real).collect();
                change(&reals, cid, may_remove)
            }
            Wish::Configure(of) => {
                // A number is given again once the next has been taken, or later.
                let own = book.cids.get(VIP);
                let follows = of < 3 || own.is_some_and(|own| own.forms.contains_key(&(of - 1)));
                if !follows {
                    return None;
                }
                pool(&reals, Some(self.cid(of)))
            }
        })
    }

    /// What a balancer with the planted fault makes of the store.
    fn distort(&self, reads: u16, stored: &mut Stored) {
        let Some(book) = &mut stored.book else { return };
        let here = book.position;
        let mut members = book.members.values();
        let joins = members.any(|member| member.phase == MemberPhase::Joining);
        let mut records = book.ids.values();
        let comes = records.any(|record| record.phase == IdPhase::Known);
        let all = book.members.keys().map(|name| (*name, here));
        match self.planted {
            Planted::DoesNotWaitForBalancers => stored.acks.members = all.collect(),
            Planted::JoinsAtOnce if joins => stored.acks.members = all.collect(),
            Planted::PicksAtOnce if comes => stored.acks.members = all.collect(),
            Planted::DoesNotWaitForAgents => {
                stored.acks.agents = [(OLD_REAL, here), (NEW_REAL, here)].into();
            }
            Planted::ForgetsFiles => {
                let mut early = (**book).clone();
                for own in early.cids.values_mut().filter(|own| own.accepts_files()) {
                    own.phases.issued = CIDS_OF_FILES + 1;
                    own.phases.other = None;
                }
                *book = Arc::new(early);
            }
            Planted::RaisesTheFormatEarly if reads == READS => {
                let mut early = (**book).clone();
                early
                    .members
                    .values_mut()
                    .for_each(|member| member.reads = READS);
                *book = Arc::new(early);
            }
            _ => {}
        }
    }
}

impl Race for FleetRules {
    type State = RulesWorld;
    type Step = RulesStep;

    fn name(&self) -> &'static str {
        self.name
    }

    fn begin(&self) -> RulesWorld {
        RulesWorld::begin(self)
    }

    fn moves(&self, world: &RulesWorld) -> Vec<(RulesStep, RulesWorld)> {
        world.moves(self)
    }

    fn wrong(&self, world: &RulesWorld) -> Option<&'static str> {
        let wrong = world.wrong(self);
        // What breaks connections at once is found where it does so.
        match self.planted {
            Planted::DoesNotRest
            | Planted::RestsForCookiesAlone
            | Planted::LeaseEndsEarly
            | Planted::ServesFromItsFile => wrong,
            _ => wrong.or_else(|| self.does_not_heal(world)),
        }
    }
}

const NO_TROUBLE: Budget = Budget {
    crashes: 0,
    reboots: 0,
    files: 0,
    unwritten: 0,
    cuts: 0,
    outages: 0,
    wipes: 0,
    rewinds: 0,
    lapses: 0,
    words: 0,
    versions: 0,
};

/// A balancer loses power, and an operator may say so.
const POWER: Budget = Budget {
    reboots: 1,
    words: 1,
    ..NO_TROUBLE
};

const CRASH: Budget = Budget {
    crashes: 1,
    ..NO_TROUBLE
};

const CUT: Budget = Budget {
    cuts: 1,
    ..NO_TROUBLE
};

/// All balancers of two lose power, and the store comes back from a backup.
const SET_BACK: Budget = Budget {
    reboots: 2,
    rewinds: 1,
    ..NO_TROUBLE
};

const DISK_FULL: Budget = Budget {
    unwritten: 1,
    ..CRASH
};

const FIRST_CID: &[Wish] = &[Wish::Configure(1)];
const NEXT_CID: &[Wish] = &[Wish::Configure(2)];
const NUMBER_AGAIN: &[Wish] = &[Wish::Configure(2), Wish::Configure(3)];

const DROPS: &[Wish] = &[Wish::Drop(OLD_REAL), Wish::Drop(NEW_REAL)];

const WIPE: Budget = Budget {
    wipes: 1,
    ..NO_TROUBLE
};

/// The models: `long` for all, otherwise those of seconds.
pub fn models(long: bool) -> Vec<FleetRules> {
    let ids = |troubles| FleetRules {
        ids: 1,
        plain: true,
        ..FleetRules::new("a real for another", 2, &[Wish::Replace], troubles)
    };
    let keys = |troubles| FleetRules::new("rotation", 2, &[Wish::Rotate], troubles);
    let lease = |wishes, troubles| FleetRules {
        ids: 1,
        absence: Absence::StepsAside,
        ..FleetRules::new("leases", 2, wishes, troubles)
    };
    let join = |troubles| FleetRules {
        joins: true,
        ..FleetRules::new("a balancer joins", 3, &[Wish::Grow], troubles)
    };
    let versions = |troubles| FleetRules {
        old_version: true,
        ..FleetRules::new("two versions", 2, &[Wish::Grow], troubles)
    };
    let operators = |members, troubles| FleetRules {
        delays: true,
        ..FleetRules::new(
            "two operators",
            members,
            &[Wish::Grow, Wish::Rotate],
            troubles,
        )
    };
    let upgrade = Budget {
        versions: 1,
        ..CRASH
    };
    let lapse = Budget { lapses: 1, ..CUT };
    let crash_and_wipe = Budget { wipes: 1, ..CRASH };
    let quic = |wishes, troubles| FleetRules {
        quic: QuicBegins::InTheBook,
        ..FleetRules::new("configurations of QUIC's ids", 2, wishes, troubles)
    };
    let from_files = |wishes, troubles| FleetRules {
        quic: QuicBegins::InFiles,
        ..FleetRules::new("QUIC's ids from files", 2, wishes, troubles)
    };
    let token = |troubles| FleetRules::new("a token", 2, &[Wish::Token], troubles);
    let drops = |troubles| FleetRules::new("two files drop a real each", 2, DROPS, troubles);
    let founds = |troubles| FleetRules {
        joins: true,
        founds: true,
        ..FleetRules::new("a second founder", 2, &[Wish::Grow], troubles)
    };
    let mut models = vec![
        ids(CRASH),
        ids(CUT),
        keys(crash_and_wipe),
        keys(Budget {
            reboots: 1,
            ..SET_BACK
        }),
        keys(DISK_FULL),
        lease(&[Wish::Rotate], lapse),
        join(NO_TROUBLE),
        founds(NO_TROUBLE),
        versions(CRASH),
        versions(upgrade),
        quic(NEXT_CID, crash_and_wipe),
        quic(NUMBER_AGAIN, NO_TROUBLE),
        from_files(FIRST_CID, CRASH),
        token(crash_and_wipe),
        drops(CRASH),
    ];
    if long {
        let files = Budget { files: 1, ..CRASH };
        let twice = Budget {
            crashes: 2,
            versions: 2,
            ..NO_TROUBLE
        };
        models.extend([
            ids(WIPE),
            ids(POWER),
            ids(files),
            keys(POWER),
            keys(SET_BACK),
            FleetRules {
                members: 3,
                ..keys(CRASH)
            },
            lease(&[Wish::Replace], lapse),
            join(CRASH),
            founds(CRASH),
            operators(2, NO_TROUBLE),
            versions(twice),
            quic(NEXT_CID, POWER),
            quic(NEXT_CID, CUT),
            quic(NUMBER_AGAIN, CRASH),
            quic(&[Wish::Grow, Wish::Configure(2)], NO_TROUBLE),
            from_files(FIRST_CID, crash_and_wipe),
            FleetRules {
                old_version: true,
                ..from_files(FIRST_CID, upgrade)
            },
            from_files(&[Wish::Grow, Wish::Configure(1)], NO_TROUBLE),
            token(POWER),
            FleetRules {
                delays: true,
                ..token(WIPE)
            },
            drops(WIPE),
            FleetRules {
                delays: true,
                ..drops(NO_TROUBLE)
            },
        ]);
    }
    models
}

/// Each planted fault with a model that finds it.
pub fn planted() -> Vec<FleetRules> {
    let ids = |planted, troubles| FleetRules {
        ids: 1,
        ..FleetRules::new("a real for another", 2, &[Wish::Replace], troubles).with(planted)
    };
    let keys =
        |planted, troubles| FleetRules::new("rotation", 2, &[Wish::Rotate], troubles).with(planted);
    let quic = |planted, wishes, troubles| FleetRules {
        quic: QuicBegins::InTheBook,
        ..FleetRules::new("configurations of QUIC's ids", 2, wishes, troubles).with(planted)
    };
    let token =
        |planted, troubles| FleetRules::new("a token", 2, &[Wish::Token], troubles).with(planted);
    vec![
        ids(Planted::DoesNotWaitForBalancers, NO_TROUBLE),
        keys(Planted::DoesNotWaitForBalancers, NO_TROUBLE),
        ids(Planted::PicksAtOnce, NO_TROUBLE),
        ids(Planted::DoesNotWaitForAgents, NO_TROUBLE),
        keys(Planted::DoesNotWaitForAgents, NO_TROUBLE),
        ids(Planted::DoesNotRest, NO_TROUBLE),
        keys(Planted::DoesNotRest, NO_TROUBLE),
        FleetRules {
            absence: Absence::StepsAside,
            ..ids(Planted::LeaseEndsEarly, CUT)
        },
        ids(Planted::ServesFromItsFile, POWER),
        FleetRules {
            delays: true,
            wishes: &[Wish::Grow, Wish::Rotate],
            ids: 2,
            ..ids(Planted::WritesWithoutComparing, NO_TROUBLE)
        },
        FleetRules {
            delays: true,
            ..keys(Planted::AcknowledgesBeforeItApplies, NO_TROUBLE)
        },
        keys(Planted::PutsBackWhatIsStale, Budget { wipes: 1, ..POWER }),
        keys(Planted::TakesWhatIsOlder, SET_BACK),
        keys(Planted::DoesNotKeepAgain, DISK_FULL),
        FleetRules {
            joins: true,
            ..FleetRules::new("a balancer joins", 3, &[Wish::Grow], WIPE).with(Planted::JoinsAtOnce)
        },
        keys(Planted::DoesNotRepeatItself, NO_TROUBLE),
        ids(Planted::DoesNotRepeatItself, NO_TROUBLE),
        FleetRules {
            plain: true,
            ..ids(Planted::RestsForCookiesAlone, NO_TROUBLE)
        },
        FleetRules {
            delays: true,
            ..ids(Planted::AcknowledgesBeforeItApplies, NO_TROUBLE)
        },
        FleetRules {
            old_version: true,
            ..ids(Planted::RaisesTheFormatEarly, NO_TROUBLE)
        },
        quic(Planted::DoesNotWaitForBalancers, NEXT_CID, NO_TROUBLE),
        quic(Planted::DoesNotWaitForAgents, NEXT_CID, NO_TROUBLE),
        quic(Planted::DoesNotRest, NUMBER_AGAIN, NO_TROUBLE),
        quic(Planted::NumberInUse, NEXT_CID, NO_TROUBLE),
        quic(Planted::DoesNotRepeatItself, NEXT_CID, NO_TROUBLE),
        FleetRules {
            quic: QuicBegins::InFiles,
            ..quic(Planted::ForgetsFiles, FIRST_CID, NO_TROUBLE)
        },
        token(Planted::AnswersBeforeTheStore, NO_TROUBLE),
        token(Planted::PutsBackTokens, WIPE),
        FleetRules {
            delays: true,
            ..token(Planted::WritesWithoutComparing, NO_TROUBLE)
        },
        FleetRules::new("two files drop a real each", 2, DROPS, NO_TROUBLE)
            .with(Planted::WeighsByItsFile),
        FleetRules {
            joins: true,
            founds: true,
            ..FleetRules::new("a second founder", 2, &[Wish::Grow], NO_TROUBLE)
                .with(Planted::TakesAnotherFounders)
        },
    ]
}
