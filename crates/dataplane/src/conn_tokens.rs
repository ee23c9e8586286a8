// SPDX-License-Identifier: Apache-2.0
//! The connections of a server whose balancer keeps them in slots: which are open,
//! and which have opened or ended (`bpf/server/conn_token.h`).

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::abi::{self, Plain as _};
use crate::error::{DataPlaneError, Result};
use crate::map::Table;

/// A connection that has a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOf {
    /// The client.
    pub client: SocketAddr,
    /// The VIP.
    pub vip: SocketAddr,
    /// What its timestamps end in.
    pub token: u16,
}

/// Reads both; to be sent to the thread that will.
#[derive(Debug)]
pub struct ConnTokens {
    held: Table<abi::FlowKey6, u32>,
    events: MapHandle,
}

/// Connections as they open and end. It stays on its thread.
pub struct TokenEvents {
    ring: RingBuffer<'static>,
    found: Rc<RefCell<Changes>>,
}

/// What has changed since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Connections that opened; some may have ended since.
    pub opened: Vec<TokenOf>,
    /// Those that ended.
    pub ended: Vec<TokenOf>,
}

impl ConnTokens {
    pub(crate) fn new(held: MapHandle, events: MapHandle) -> Result<Self> {
        Ok(Self {
            held: Table::new(held)?,
            events,
        })
    }

    /// The same maps, for another thread.
    pub(crate) fn another(&self) -> Result<Self> {
        let another = |map: &MapHandle| {
            MapHandle::try_from(map)
                .map_err(|e| DataPlaneError::bpf("take a map once more", std::io::Error::other(e)))
        };
        Self::new(another(self.held.map())?, another(&self.events)?)
    }

    /// All that are open.
    pub fn open(&self) -> Result<Vec<TokenOf>> {
        let entries = self.held.entries()?.into_iter();
        Ok(entries
            .map(|(key, token)| TokenOf::new(&key, token))
            .collect())
    }

    /// Begins to listen for changes. One reader at a time.
    pub fn events(&self) -> Result<TokenEvents> {
        let failed = |e: libbpf_rs::Error| {
            DataPlaneError::bpf(
                "read the ring buffer of connections",
                std::io::Error::other(e),
            )
        };
        let found = Rc::new(RefCell::new(Changes::default()));
        let sink = Rc::clone(&found);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&self.events, move |bytes| {
                if let Some(event) = abi::TokenEvent::from_bytes(bytes) {
                    sink.borrow_mut().push(&event);
                }
                0
            })
            .map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        Ok(TokenEvents { ring, found })
    }
}

impl Changes {
    fn push(&mut self, event: &abi::TokenEvent) {
        let of = TokenOf::new(&event.key, event.token);
        match event.opened {
            0 => self.ended.push(of),
            _ => self.opened.push(of),
        }
    }
}

impl TokenEvents {
    /// What has changed since the last call; waits at most `timeout` for something.
    pub fn wait(&self, timeout: Duration) -> Changes {
        // A signal may end the wait early; what has come is taken all the same.
        let _ = self.ring.poll(timeout);
        self.found.take()
    }
}

impl TokenOf {
    fn new(key: &abi::FlowKey6, token: u32) -> Self {
        let end = |address: [u8; 16], port: [u8; 2]| {
            let address = IpAddr::from(address).to_canonical();
            (address, u16::from_be_bytes(port)).into()
        };
        Self {
            client: end(key.saddr_be, key.sport_be),
            vip: end(key.daddr_be, key.dport_be),
            token: token as u16,
        }
    }
}
