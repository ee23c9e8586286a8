// SPDX-License-Identifier: Apache-2.0
//! A stateful balancer's ear: agents tell it which connections have ended, so that
//! their places are free at once, and a balancer that begins empty asks them which are
//! open, so that it can stand in for one that knew.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use causeway_core::cookie::notice::{DATAGRAM_MAX, Message};
use tracing::warn;

use super::places::Places;

/// Least time between two questions to an agent.
const ASK_EVERY: Duration = Duration::from_millis(900);
/// Agents that are remembered as asked: whoever plays an agent's word again could pretend
/// to be any number of them.
const ASKED_MAX: usize = 65_536;
/// Pause after an error, so that a lasting one does not keep a core busy.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket where notices arrive.
pub struct Notices {
    socket: UdpSocket,
}

impl Notices {
    /// Takes the address.
    ///
    /// # Errors
    /// If it is not this machine's, or taken.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(address)
            .with_context(|| format!("cannot listen for agents on {address} (stateful.listen)"))?;
        Ok(Self { socket })
    }

    /// Listens from now on, on a thread that ends with the process. For the first
    /// `adopting`, agents are asked for what is open.
    pub fn serve(self, places: Places, adopting: Duration) -> std::io::Result<()> {
        let until = Instant::now() + adopting;
        thread::Builder::new()
            .name("notices".to_owned())
            .spawn(move || self.run(&places, until))?;
        Ok(())
    }

    fn run(&self, places: &Places, until: Instant) {
        let mut buffer = [0; DATAGRAM_MAX];
        let mut asked: HashMap<SocketAddr, Instant> = HashMap::new();
        loop {
            let (len, from) = match self.socket.recv_from(&mut buffer) {
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    // An agent that is gone answers with an ICMP error: no news.
                    if error.kind() != ErrorKind::ConnectionRefused {
                        warn!("notices of agents: {error}");
                    }
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let keys = match places.keys() {
                Ok(Some(keys)) => keys,
                Ok(None) => continue,
                Err(error) => {
                    warn!("notices of agents: {error}");
                    continue;
                }
            };
            // What is not signed by a key of ours is nobody's.
            match Message::decode(&buffer[..len], &keys) {
                None | Some(Message::Ask) => {}
                Some(Message::Ended(notices)) => places.end(&notices),
                Some(Message::Open(notices)) => places.adopt(&notices),
                Some(Message::Here) => {
                    let now = Instant::now();
                    let lately = |at: &Instant| now.duration_since(*at) < ASK_EVERY;
                    if now < until && !asked.get(&from).is_some_and(lately) {
                        if asked.len() >= ASKED_MAX {
                            asked.retain(|_, at| lately(at));
                        }
                        if asked.len() >= ASKED_MAX {
                            continue;
                        }
                        asked.insert(from, now);
                        // Lost, it is asked again at the agent's next word.
                        let _ = self.socket.send_to(&Message::Ask.encode(&keys), from);
                    }
                }
            }
        }
    }
}
