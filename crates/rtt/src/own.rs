// SPDX-License-Identifier: Apache-2.0
//! Which of the connections that an interface sees are this run's.

use std::collections::{HashSet, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use causeway_core::rtt::Value;

use super::records::lock;

/// Values that wait for their connection to be known as this run's.
const EARLY: usize = 65_536;

/// The connections' own addresses. A stream that loses an answer adds another.
#[derive(Debug, Default)]
pub(crate) struct Own(Mutex<HashSet<SocketAddr>>);

impl Own {
    pub(crate) fn add(&self, stream: Option<&TcpStream>) {
        let address = stream.and_then(|s| s.local_addr().ok());
        lock(&self.0).extend(address);
    }
}

/// Values of an interface, of which those of [`Own`] connections count. A handshake is over
/// before its connection's address is known: what came before waits.
#[derive(Debug)]
pub(crate) struct OwnValues {
    own: Arc<Own>,
    known: usize,
    early: VecDeque<Value>,
}

impl OwnValues {
    pub(crate) fn new(own: Arc<Own>) -> Self {
        Self {
            own,
            known: 0,
            early: VecDeque::new(),
        }
    }

    /// Takes a value, and hands out those that count.
    pub(crate) fn tell(&mut self, value: Value, mut counts: impl FnMut(&Value)) {
        let own = lock(&self.own.0);
        if own.len() > self.known {
            self.known = own.len();
            self.early.retain(|value| {
                let its = own.contains(&value.flow.local);
                if its {
                    counts(value);
                }
                !its
            });
        }
        if own.contains(&value.flow.local) {
            counts(&value);
            return;
        }
        if self.early.len() == EARLY {
            self.early.pop_front();
        }
        self.early.push_back(value);
    }
}
