// SPDX-License-Identifier: Apache-2.0
//! The agent's word to stateful balancers: which connections have ended, and, to those
//! that ask, which are open and which have opened since.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use causeway_core::cookie::Keys;
use causeway_core::cookie::notice::{DATAGRAM_MAX, Message, NOTICES_MAX, Notice};
use causeway_io::{WordEvents, WordOf, Words};
use tracing::warn;

use crate::agent::Agent;

/// Time between two signs of life.
const HERE_EVERY: Duration = Duration::from_secs(1);
/// Longest time from a connection's end to its notice, and from a question to its answer.
const TICK: Duration = Duration::from_millis(50);
/// How long after its question a balancer is told of connections that open. It asks
/// every second for as long as it wants to know.
const CURIOUS: Duration = Duration::from_millis(2_500);
/// Datagrams of an answer in one go, then a pause: a receiver's buffer holds more.
const BURST: usize = 8;
const PAUSE: Duration = Duration::from_millis(1);
/// Datagrams read from a socket at one look; the rest waits for the next.
const LOOKS_MAX: usize = 1024;

/// Tells balancers of connections from now on, on a thread that ends with the process.
/// Without cookies there is nothing to tell.
pub fn start(agent: Arc<Agent>) -> anyhow::Result<()> {
    if agent.balancers().is_none() {
        return Ok(());
    }
    let words = agent.words()?;
    thread::Builder::new()
        .name("notices".to_owned())
        .spawn(move || match words.events() {
            Ok(events) => Teller::new(&agent, &words).run(&events),
            Err(error) => warn!("balancers will not hear of connections' ends: {error}"),
        })?;
    Ok(())
}

struct Teller<'a> {
    agent: &'a Agent,
    words: &'a Words,
    /// By whether it is for IPv6.
    sockets: BTreeMap<bool, UdpSocket>,
    last_here: Option<Instant>,
    /// Who has asked, and when last.
    asked: BTreeMap<SocketAddr, Instant>,
}

impl<'a> Teller<'a> {
    fn new(agent: &'a Agent, words: &'a Words) -> Self {
        Self {
            agent,
            words,
            sockets: BTreeMap::new(),
            last_here: None,
            asked: BTreeMap::new(),
        }
    }

    fn run(mut self, events: &WordEvents) {
        loop {
            let told = self.agent.balancers().filter(|(all, _)| !all.is_empty());
            let Some((balancers, keys)) = told else {
                // A reload may name some. What happens until then is nobody's.
                drop(events.wait(HERE_EVERY));
                continue;
            };
            let changes = events.wait(TICK);
            self.asked.retain(|_, at| at.elapsed() < CURIOUS);
            let curious: Vec<SocketAddr> = self.asked.keys().copied().collect();
            let opened = self.notices(&changes.opened);
            self.tell(&curious, &keys, &opened, Message::Open);
            let ended = self.notices(&changes.ended);
            self.tell(&balancers, &keys, &ended, Message::Ended);
            if self.last_here.is_none_or(|at| at.elapsed() >= HERE_EVERY) {
                self.last_here = Some(Instant::now());
                self.send(&balancers, &Message::Here.encode(&keys));
            }
            for asker in self.questions(&balancers, &keys) {
                self.answer(asker, &keys);
            }
        }
    }

    /// Connections as notices; those of VIPs that this agent no longer serves are
    /// nobody's.
    fn notices(&self, words: &[WordOf]) -> Vec<Notice> {
        let notice = |of: &WordOf| {
            Some(Notice {
                client: of.client,
                vip: of.vip,
                word: of.word,
                id: self.agent.id_in(of.vip)?,
            })
        };
        words.iter().filter_map(notice).collect()
    }

    fn answer(&mut self, asker: SocketAddr, keys: &Keys) {
        self.asked.insert(asker, Instant::now());
        match self.words.open() {
            Ok(open) => {
                let open = self.notices(&open);
                self.tell(&[asker], keys, &open, Message::Open);
            }
            Err(error) => warn!("cannot tell {asker} which connections are open: {error}"),
        }
    }

    /// Each datagram is signed once, for all that it goes to.
    fn tell(
        &mut self,
        to: &[SocketAddr],
        keys: &Keys,
        notices: &[Notice],
        message: impl Fn(Vec<Notice>) -> Message,
    ) {
        if to.is_empty() {
            return;
        }
        for (count, some) in notices.chunks(NOTICES_MAX).enumerate() {
            if count % BURST == BURST - 1 {
                thread::sleep(PAUSE);
            }
            self.send(to, &message(some.to_vec()).encode(keys));
        }
    }

    /// A balancer that is not there now will be told again, or frees places by ageing.
    fn send(&mut self, to: &[SocketAddr], datagram: &[u8]) {
        for balancer in to {
            if let Some(socket) = self.socket(balancer.is_ipv6()) {
                let _ = socket.send_to(datagram, balancer);
            }
        }
    }

    fn socket(&mut self, ipv6: bool) -> Option<&UdpSocket> {
        match self.sockets.entry(ipv6) {
            Entry::Occupied(held) => Some(held.into_mut()),
            Entry::Vacant(room) => open_socket(ipv6).ok().map(|socket| &*room.insert(socket)),
        }
    }

    /// Who has asked since the last look: balancers of the configuration alone.
    fn questions(&self, balancers: &[SocketAddr], keys: &Keys) -> Vec<SocketAddr> {
        let mut askers = Vec::new();
        for socket in self.sockets.values() {
            for from in questions_at(socket, balancers, keys) {
                if !askers.contains(&from) {
                    askers.push(from);
                }
            }
        }
        askers
    }
}

/// Questions that wait at a socket. A datagram costs a hash only if one of `balancers`
/// seems to have sent it, and a flood keeps the agent from nothing else.
fn questions_at(socket: &UdpSocket, balancers: &[SocketAddr], keys: &Keys) -> Vec<SocketAddr> {
    let mut askers = Vec::new();
    let mut buffer = [0; DATAGRAM_MAX];
    for _ in 0..LOOKS_MAX {
        // Nothing there, or the news that a balancer is not: neither is a question.
        let Ok((len, from)) = socket.recv_from(&mut buffer) else {
            break;
        };
        let may_ask = balancers.contains(&from) && !askers.contains(&from);
        if may_ask && Message::decode(&buffer[..len], keys) == Some(Message::Ask) {
            askers.push(from);
        }
    }
    askers
}

/// A socket that never waits.
pub fn open_socket(ipv6: bool) -> io::Result<UdpSocket> {
    let any: SocketAddr = match ipv6 {
        true => (Ipv6Addr::UNSPECIFIED, 0).into(),
        false => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use causeway_core::cookie::Epoch;

    use super::*;

    fn keys(digit: &str) -> Keys {
        let key = digit.repeat(32).parse().expect("a key");
        Keys::new(Epoch::Zero, key, None)
    }

    #[test]
    fn a_question_counts_once_and_from_a_balancer_alone() {
        let loopback = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let [ear, balancer, stranger] = [(); 3].map(|()| loopback());
        ear.set_nonblocking(true).expect("no waiting");
        let to = ear.local_addr().expect("its address");
        let address = balancer.local_addr().expect("its address");
        let say = |from: &UdpSocket, what: &[u8]| from.send_to(what, to).expect("send");
        let ask = Message::Ask.encode(&keys("7"));
        say(&balancer, &Message::Here.encode(&keys("7")));
        say(&balancer, &Message::Ask.encode(&keys("8")));
        say(&stranger, &ask);
        assert_eq!(questions_at(&ear, &[address], &keys("7")), []);
        say(&balancer, &ask);
        say(&balancer, &ask);
        assert_eq!(questions_at(&ear, &[address], &keys("7")), [address]);
        assert_eq!(questions_at(&ear, &[address], &keys("7")), []);
    }
}
