// SPDX-License-Identifier: Apache-2.0
//! What operators say to a member of a fleet: found it, leave, come back, pass another by.

use std::sync::Arc;

use causeway_core::fleet::{FleetAction, FleetBook, FleetEvent, FleetMember, Stored};

use super::book_text::READS;
use super::kept::Kept;
use super::reading::id_of;
use super::{Fleet, HasEngine, NO_KEY, view};
use crate::engine::EngineError;

impl Fleet {
    /// Puts the first book into the store, or the last good one back into a store that has lost it.
    pub(crate) fn found(&mut self, engines: &impl HasEngine) -> Result<String, EngineError> {
        let held = self
            .store
            .read()
            .map_err(|error| EngineError::Conflict(error.to_string()))?;
        self.read.take(&held, &self.config.member);
        let stored = Stored {
            book: self.read.book(&held).map_err(EngineError::Conflict)?,
            acks: self.read.acks.clone(),
        };
        if stored.book.is_some() && !self.member.has_lost(&stored) {
            return Err(EngineError::Conflict(format!(
                "fleet {} has a book; this balancer joins by itself",
                self.config.name
            )));
        }
        self.read.found = stored.book.as_ref().map(|book| book.position);
        let name = &self.config.name;
        let (said, actions) = match self.member.book() {
            Some(book) => (
                format!(
                    "book {} of fleet {name} is put back",
                    view::position(book.position)
                ),
                self.member.handle(FleetEvent::PutBack(stored)),
            ),
            None => {
                let engine = engines.engine();
                let cookies = engine.file.cookies.as_ref();
                let key = cookies.map_or(NO_KEY, |cookies| cookies.keys.number);
                let mut book = FleetBook::new(self.config.absence, key, self.id);
                book.format = READS;
                let book = engine.first_book(book)?;
                let said = format!(
                    "fleet {name} is founded with {} ids, as they run here",
                    book.ids.len()
                );
                (said, vec![FleetAction::Propose(None, Arc::new(book))])
            }
        };
        self.perform(engines, actions)
            .map_err(EngineError::Conflict)?;
        self.show(engines);
        Ok(said)
    }

    /// Withdraws, and has others go on without this balancer once routers have settled.
    pub(crate) fn leave(
        &mut self,
        engines: &impl HasEngine,
        now_ns: u64,
    ) -> Result<String, EngineError> {
        if self.kept.left {
            return Err(EngineError::Conflict(
                "this balancer has left; `causeway fleet join` brings it back".to_owned(),
            ));
        }
        let was_in_service = self.member.in_service();
        let kept = Kept {
            left: true,
            in_service: false,
            ..self.kept.clone()
        };
        self.keep_as(kept).map_err(EngineError::Conflict)?;
        self.member = FleetMember::start(self.id, READS, self.member.book().cloned(), false).0;
        self.tenure.leave(now_ns, was_in_service);
        self.show(engines);
        Ok(format!(
            "this balancer has routers prefer others, withdraws its routes in {:?}, and as long after that reports to fleet {} that it gets no packets; it forwards on",
            self.config.settle, self.config.name
        ))
    }

    /// Comes back after it left.
    pub(crate) fn join(&mut self, engines: &impl HasEngine) -> Result<String, EngineError> {
        if !self.kept.left {
            return Err(EngineError::Conflict(
                "this balancer has not left: it joins by itself".to_owned(),
            ));
        }
        let kept = Kept {
            left: false,
            ..self.kept.clone()
        };
        self.keep_as(kept).map_err(EngineError::Conflict)?;
        self.tenure.come_back();
        self.show(engines);
        Ok(format!("this balancer joins fleet {}", self.config.name))
    }

    /// Goes on without a member of which an operator says that it gets no packets.
    pub(crate) fn pass_by(&mut self, name: &str) -> Result<String, EngineError> {
        let member = id_of(name);
        let book = self.member.book();
        let record = book.and_then(|book| book.members.get(&member));
        let Some(record) = record.filter(|_| member != self.id) else {
            return Err(EngineError::NotFound(format!(
                "`{name}` is not another member of fleet {}; `causeway fleet status` names them",
                self.config.name
            )));
        };
        let since = record.since;
        self.member.handle(FleetEvent::Gone { member, since });
        Ok(format!(
            "fleet {} goes on without {name} once its store has this",
            self.config.name
        ))
    }

    /// Announces in the store that this balancer gets no packets, once that is so.
    pub(super) fn tell_left(&mut self, now_ns: u64) {
        if !self.kept.left || !self.tenure.is_gone_untold(now_ns) {
            return;
        }
        let book = self.member.book();
        let record = book.and_then(|book| book.members.get(&self.id));
        let since = record.map(|record| record.since);
        let position = self.read.acks.members.get(&self.id).copied();
        match self.acknowledge(position, since) {
            Ok(()) => self.tenure.is_told(),
            Err(fault) => self.faults.hold(Some(fault)),
        }
    }
}
