// SPDX-License-Identifier: Apache-2.0
//! Agents of new servers that join by a token of the fleet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use causeway_api::Moment;
use causeway_core::agent_report::{JoinContext, JoinDesk, JoinGiven, JoinStep, ReportKeys};
use causeway_core::cookie::CookieKey;
use causeway_core::fleet::{JoinKey, JoinToken, TokenId};
use causeway_service::config::KeysFile;
use causeway_service::seal::SealKeys;
use tracing::{info, warn};

/// What a balancer knows of tokens, and gives to those who show one.
#[derive(Debug)]
pub(crate) struct Joins {
    desk: JoinDesk,
    tokens: BTreeMap<TokenId, JoinToken>,
    file: Option<KeysFile>,
}

impl Joins {
    /// Nothing is known yet; challenges are made of this secret.
    pub(crate) fn new(secret: CookieKey) -> Self {
        Self {
            desk: JoinDesk::new(secret),
            tokens: BTreeMap::new(),
            file: None,
        }
    }

    /// Goes by these tokens of the fleet's book from now on, and this keys file.
    pub(crate) fn set(&mut self, tokens: &BTreeMap<TokenId, JoinToken>, file: Option<&KeysFile>) {
        self.tokens.clone_from(tokens);
        self.file = file.cloned();
    }

    /// The answer to a datagram that came from this address.
    pub(crate) fn answer(
        &mut self,
        datagram: &[u8],
        from: IpAddr,
        keys: &ReportKeys,
        now: Moment,
    ) -> Option<Vec<u8>> {
        let context = JoinContext {
            tokens: &self.tokens,
            keys,
            now_s: now.realtime_ns / 1_000_000_000,
            now_ns: now.monotonic_ns,
        };
        match self.desk.handle(datagram, from, context) {
            JoinStep::Nothing => None,
            JoinStep::Answer(answer) => Some(answer),
            JoinStep::Give(given) => self.give(&given, keys),
        }
    }

    fn give(&self, given: &JoinGiven, keys: &ReportKeys) -> Option<Vec<u8>> {
        let text = keys_text(self.file.as_ref()?, keys, &given.servers);
        let own = SealKeys::new();
        let public = own.as_ref().map(SealKeys::public);
        let sealed = own.and_then(|own| own.seal(given.key, given.salt(), &text));
        let Some((public, sealed)) = public.zip(sealed) else {
            warn!("an agent that joins gets no answer: the system gives no random numbers");
            return None;
        };
        info!(
            "the agent of {} has joined by its token",
            given
                .servers
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        );
        Some(given.answer(&public, &sealed))
    }

    /// The tokens that agents have shown, to be claimed in the book.
    pub(crate) fn claims(&mut self) -> BTreeMap<TokenId, JoinKey> {
        self.desk.claims()
    }

    /// What became of their datagrams since the start, by name.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.desk.counts();
        counts
            .map(|(outcome, count)| (outcome.as_str().to_owned(), count))
            .collect()
    }
}

/// A server's keys file: its own secrets of reports, and the keys of cookies.
pub(crate) fn keys_text(file: &KeysFile, keys: &ReportKeys, servers: &[IpAddr]) -> String {
    let file = KeysFile {
        reports: Some(keys.for_server(servers)),
        ..file.clone()
    };
    file.to_text()
}
