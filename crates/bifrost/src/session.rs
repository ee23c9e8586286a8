// SPDX-License-Identifier: Apache-2.0

//! Sessions: who the peer is, what names and seals the datagrams of both, and what it takes
//! to begin one.

use std::collections::VecDeque;

use crate::config::TunnelKeys;
use crate::drop_reason::DropReason;
use crate::flow_hash::mix;
use crate::seal::{AeadInput, HandshakeKeys, SessionKeys};
use crate::wire::{CommonHeader, Credit, ProbeHeader, TAG_LEN};

/// Former instances of the peer that are remembered.
const FORMER: usize = 1024;

/// See the module.
pub(crate) struct Session {
    instance: u64,
    peer: Option<u64>,
    former: VecDeque<u64>,
    /// When the session began.
    begun_ns: u64,
    /// What the peer can hold.
    pub credit: Credit,
    /// Whether its device takes merged UDP, if it has said so.
    pub peer_merges_udp: Option<bool>,
    /// The other version of the wire format that has come.
    other_version: Option<u8>,
    send_epoch: u32,
    receive_epoch: u32,
    keys: TunnelKeys,
    session_keys: Option<SessionKeys>,
    handshake_keys: HandshakeKeys,
}

impl Session {
    pub(crate) fn new(instance: u64, keys: &TunnelKeys) -> Session {
        let instance = instance.max(1);
        Session {
            instance,
            peer: None,
            former: VecDeque::new(),
            begun_ns: 0,
            credit: Credit::UNLIMITED,
            peer_merges_udp: None,
            other_version: None,
            send_epoch: 0,
            receive_epoch: 0,
            keys: keys.clone(),
            session_keys: None,
            handshake_keys: HandshakeKeys::new(keys, instance),
        }
    }

    /// Other keys from now on; the session stays.
    pub(crate) fn set_keys(&mut self, keys: &TunnelKeys) {
        if *keys != self.keys {
            self.keys = keys.clone();
            self.handshake_keys = HandshakeKeys::new(keys, self.instance);
            let derive = |peer| SessionKeys::new(keys, self.instance, peer);
            self.session_keys = self.peer.map(derive);
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.keys.sealed()
    }

    /// Bytes of the tag that ends each datagram.
    pub(crate) fn tag_len(&self) -> usize {
        if self.is_sealed() { TAG_LEN } else { 0 }
    }

    /// The id of the key that seals, 0 for none.
    pub(crate) fn key_id(&self) -> u8 {
        self.keys.send.as_ref().map_or(0, |key| key.id)
    }

    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// The peer's instance, 0 before it is known.
    pub(crate) fn peer(&self) -> u64 {
        self.peer.unwrap_or(0)
    }

    pub(crate) fn is_established(&self) -> bool {
        self.peer.is_some()
    }

    pub(crate) fn is_with(&self, instance: u64) -> bool {
        self.peer == Some(instance)
    }

    /// The epoch of datagrams that are sent.
    pub(crate) fn send_epoch(&self) -> u32 {
        self.send_epoch
    }

    /// Whether an instance that answers a probe of `probe_ns` follows the peer's present
    /// one. That one lived when the session began, and instances of an endpoint
    /// follow one another: one that answers what was sent since then is later. An answer to
    /// an earlier probe may come from either; it may have been overtaken on another path.
    pub(crate) fn is_later(&self, probe_ns: u64) -> bool {
        self.peer.is_none() || probe_ns / 1000 >= self.begun_ns / 1000
    }

    /// The peer has proved to be `instance`, which it was not until now. Whether there was
    /// a session before.
    pub(crate) fn begin(&mut self, now_ns: u64, instance: u64) -> bool {
        self.begun_ns = now_ns;
        self.credit = Credit::UNLIMITED;
        self.peer_merges_udp = None;
        self.other_version = None;
        let before = self.peer.replace(instance);
        if self.former.contains(&instance) {
            // Two hosts share an address by turns. The one that is back still has the state of
            // its session with us, and each pair of instances has keys of its own, for one
            // session: packet numbers begin again.
            self.instance = mix(self.instance, instance).max(1);
            self.handshake_keys = HandshakeKeys::new(&self.keys, self.instance);
        }
        if let Some(old) = before {
            self.former.truncate(FORMER - 1);
            self.former.push_front(old);
        }
        self.send_epoch = epoch(self.instance, instance);
        self.receive_epoch = epoch(instance, self.instance);
        self.session_keys = Some(SessionKeys::new(&self.keys, self.instance, instance));
        before.is_some()
    }

    /// This end is an earlier state of itself: it takes another instance, as its numbers, and
    /// with them nonces, were used since then. `number`, which the peer knows of, tells this
    /// time from others that it is set back to the same state.
    pub(crate) fn become_another(&mut self, number: u64) {
        self.instance = mix(self.instance, number).max(1);
        self.handshake_keys = HandshakeKeys::new(&self.keys, self.instance);
    }

    /// A datagram of another version has come. Whether it is the first of this session.
    pub(crate) fn note_version(&mut self, version: u8) -> bool {
        self.other_version.replace(version).is_none()
    }

    /// # Errors
    /// A datagram of another session.
    pub(crate) fn check_epoch(&self, header: &CommonHeader) -> Result<(), DropReason> {
        if self.peer.is_none() || header.epoch != self.receive_epoch {
            return Err(DropReason::Epoch);
        }
        Ok(())
    }

    /// Encrypts a datagram of the session, which ends with room for the tag.
    pub(crate) fn seal(&self, input: AeadInput, datagram: &mut [u8]) {
        if let Some(keys) = &self.session_keys {
            keys.seal(input, datagram);
        }
    }

    /// Opens a datagram of the session; gives its bytes without the tag.
    pub(crate) fn open<'a>(
        &self,
        header: &CommonHeader,
        input: AeadInput,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        if header.key == 0 {
            return Ok(datagram);
        }
        let keys = self.session_keys.as_ref();
        match keys.and_then(|keys| keys.open(header.key, input, datagram)) {
            None => Err(DropReason::Key),
            Some(false) => Err(DropReason::Forged),
            Some(true) => Ok(&datagram[..datagram.len() - TAG_LEN]),
        }
    }

    /// Encrypts a probe or a reply, which ends with room for the tag.
    pub(crate) fn seal_probe(&self, header: &CommonHeader, datagram: &mut [u8]) {
        self.handshake_keys.seal(AeadInput::probe(header), datagram);
    }

    /// Opens a probe or a reply.
    ///
    /// # Errors
    /// It is not of an instance that may be the peer's.
    pub(crate) fn open_probe(
        &mut self,
        now_ns: u64,
        header: &CommonHeader,
        datagram: &mut [u8],
    ) -> Result<ProbeHeader, DropReason> {
        if header.key != 0 {
            let instance = ProbeHeader::instance_of(datagram)?;
            let input = AeadInput::probe(header);
            let from = (header.key, instance);
            let keys = &mut self.handshake_keys;
            keys.open(now_ns, from, input, datagram)?;
        }
        let probe = ProbeHeader::parse(*header, datagram)?;
        // One's own, sent back.
        if probe.instance == self.instance {
            return Err(DropReason::Epoch);
        }
        Ok(probe)
    }
}

/// Names a session in one direction.
fn epoch(from: u64, to: u64) -> u32 {
    (mix(from, to.rotate_left(17)) >> 32) as u32
}
