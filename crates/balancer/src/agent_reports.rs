// SPDX-License-Identifier: Apache-2.0
//! Where agents report (`[agent_reports]`), and what is known by them: the load of
//! servers, the latency of their clients, and connections that open and close.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_core::agent_report::{
    AgentFollows, DATAGRAM_MAX, JoinDesk, ReceivedReport, Reception, ReportKeys, ReportReceiver,
    ServerLoad, ServiceLatency,
};
use causeway_core::cookie::CookieKey;
use causeway_core::fleet::{JoinKey, JoinToken, TokenId};
use causeway_service::config::KeysFile;
use tracing::warn;

use super::fleet::{Telling, ToldAgents};
use super::joins::Joins;
use super::slots::ConnectionSlots;

/// Pause after an error, so that a lasting one does not keep a core busy.
const PAUSE: Duration = Duration::from_millis(100);

/// How long after the last question an agent reports connections that open, with a margin.
const OPENED_LATE: Duration = Duration::from_secs(3);

/// What agents have reported; clones share it.
#[derive(Debug, Clone)]
pub struct AgentReports(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    keys: Option<ReportKeys>,
    receiver: ReportReceiver,
    told: Option<ToldAgents>,
    joins: Joins,
}

impl Default for AgentReports {
    /// Nothing is known, and challenges are made of a secret that is this value's alone.
    fn default() -> Self {
        let random = RandomState::new(); // the system's random numbers, by a SipHash
        let secret =
            |of: u64| CookieKey::from_words([of, of + 1].map(|word| random.hash_one(word)));
        Self(Arc::new(Mutex::new(Inner {
            keys: None,
            receiver: ReportReceiver::new(secret(0)),
            told: None,
            joins: Joins::new(secret(2)),
        })))
    }
}

impl AgentReports {
    /// Believes reports that are signed with these keys from now on; none without.
    pub fn set_keys(&self, keys: Option<ReportKeys>) {
        let mut inner = self.inner();
        inner.keys = keys;
        inner.told.iter_mut().for_each(ToldAgents::forget_digests);
    }

    /// Takes a datagram in that came at `now_ns`; what it says of connections.
    ///
    /// # Errors
    /// Where it does not count, and where its agent is first to show that it is alive, by
    /// an answer to this datagram.
    pub fn receive(&self, datagram: &[u8], now_ns: u64) -> Result<ReceivedReport, Option<Vec<u8>>> {
        let Inner { keys, receiver, .. } = &mut *self.inner();
        let received = receiver.receive(datagram, keys.as_ref(), now_ns);
        received.map_err(|refused| match refused {
            Reception::Unproven => receiver.challenge(datagram, keys.as_ref()?, now_ns),
            _ => None,
        })
    }

    /// The answer to a datagram by which its agent is asked for all open connections,
    /// unless it was asked just now.
    pub fn ask(&self, received: &ReceivedReport, now_ns: u64) -> Option<Vec<u8>> {
        let Inner { keys, receiver, .. } = &mut *self.inner();
        receiver.ask(received, keys.as_ref()?, now_ns)
    }

    /// Sends agents this book from now on.
    pub(crate) fn set_telling(&self, telling: Telling) {
        let mut inner = self.inner();
        if !inner.told.as_ref().is_some_and(|told| told.is_of(&telling)) {
            inner.told = Some(ToldAgents::new(telling));
        }
    }

    /// What agents go by of the fleet's book.
    pub(crate) fn follows(&self) -> Vec<(IpAddr, AgentFollows)> {
        let inner = self.inner();
        let follows = inner.receiver.follows();
        follows.map(|(server, of)| (server, of.clone())).collect()
    }

    /// The answers to an agent that is not where the book is here.
    pub(crate) fn tell(&self, received: &ReceivedReport) -> Vec<Vec<u8>> {
        let Inner { keys, told, .. } = &mut *self.inner();
        let (Some(keys), Some(told), Some(follows)) = (keys, told, &received.follows) else {
            return Vec::new();
        };
        let lacks = told.lacks(received.server(), follows.as_ref(), keys);
        lacks.map_or_else(Vec::new, |orders| received.tell(&orders, keys))
    }

    /// Goes by these tokens of the fleet's book, by which agents of new servers join, and gives
    /// them their part of this keys file.
    pub(crate) fn set_tokens(
        &self,
        tokens: &BTreeMap<TokenId, JoinToken>,
        file: Option<&KeysFile>,
    ) {
        self.inner().joins.set(tokens, file);
    }

    /// The answer to an agent that joins.
    pub(crate) fn answer_join(
        &self,
        datagram: &[u8],
        from: IpAddr,
        now: Moment,
    ) -> Option<Vec<u8>> {
        let Inner { keys, joins, .. } = &mut *self.inner();
        joins.answer(datagram, from, keys.as_ref()?, now)
    }

    /// The tokens that agents have shown, to be claimed in the book.
    pub(crate) fn claims(&self) -> BTreeMap<TokenId, JoinKey> {
        self.inner().joins.claims()
    }

    /// What became of datagrams of agents that join, by name.
    pub(crate) fn join_counts(&self) -> BTreeMap<String, u64> {
        self.inner().joins.counts()
    }

    /// A server's load, as long as what its agent said of it holds.
    pub fn load(&self, server: IpAddr, now_ns: u64) -> Option<ServerLoad> {
        self.inner().receiver.load(server, now_ns)
    }

    /// What clients of a service at this server waited for in the last second, if that
    /// is known.
    pub fn latency(
        &self,
        server: IpAddr,
        service: (IpAddr, u16),
        now_ns: u64,
    ) -> Option<ServiceLatency> {
        self.inner().receiver.latency(server, service, now_ns)
    }

    /// How long ago a server's agent last reported the latency of its clients.
    pub fn latency_age_ns(&self, server: IpAddr, now_ns: u64) -> Option<u64> {
        self.inner().receiver.latency_age_ns(server, now_ns)
    }

    /// What became of datagrams since the start, by its name.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let inner = self.inner();
        let counts = inner.receiver.counts();
        counts
            .map(|(outcome, count)| (outcome.as_str().to_owned(), count))
            .collect()
    }

    /// Whole after every statement.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket where reports arrive.
pub(crate) struct ReportListener {
    socket: UdpSocket,
}

impl ReportListener {
    /// Takes the address.
    ///
    /// # Errors
    /// If it is not this machine's, or taken.
    pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(address).with_context(|| {
            format!("cannot listen for agents on {address} (agent_reports.listen)")
        })?;
        Ok(Self { socket })
    }

    /// Listens from now on, on a thread that ends with the process. What is said of
    /// connections goes to `slots`; while they learn, agents are asked which are open.
    pub(crate) fn serve(
        self,
        reports: AgentReports,
        slots: Option<ConnectionSlots>,
    ) -> std::io::Result<()> {
        let learning = slots.as_ref().map(ConnectionSlots::learning);
        let until = Instant::now() + learning.unwrap_or_default();
        thread::Builder::new()
            .name("reports".to_owned())
            .spawn(move || self.run(&reports, slots.as_ref(), until))?;
        Ok(())
    }

    fn run(&self, reports: &AgentReports, slots: Option<&ConnectionSlots>, until: Instant) {
        // One byte more than the longest: a longer datagram is seen to be one.
        let mut buffer = [0; DATAGRAM_MAX + 1];
        loop {
            let (length, from) = match self.socket.recv_from(&mut buffer) {
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    // An agent that is gone answers with an ICMP error: no news.
                    if error.kind() != ErrorKind::ConnectionRefused {
                        warn!("cannot receive reports of agents: {error}");
                    }
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let now = Moment::now();
            let now_ns = now.monotonic_ns;
            if JoinDesk::is_asked(&buffer[..length]) {
                let server = from.ip().to_canonical();
                if let Some(answer) = reports.answer_join(&buffer[..length], server, now) {
                    // Lost, the agent asks again.
                    let _ = self.socket.send_to(&answer, from);
                }
                continue;
            }
            let answers = match reports.receive(&buffer[..length], now_ns) {
                Err(challenge) => challenge.into_iter().collect(),
                Ok(received) => {
                    let mut answers = reports.tell(&received);
                    if let Some(slots) = slots {
                        slots.end(received.server(), &received.closed);
                        let now = Instant::now();
                        if now < until + OPENED_LATE {
                            slots.learn(received.server(), &received.opened);
                        }
                        let asks = now < until;
                        answers.extend(asks.then(|| reports.ask(&received, now_ns)).flatten());
                    }
                    answers
                }
            };
            for answer in answers {
                // Lost, it is sent again at the agent's next report.
                let _ = self.socket.send_to(&answer, from);
            }
        }
    }
}
