// SPDX-License-Identifier: Apache-2.0

//! Sealing: AES-256-GCM (RFC 5116) by keys that HKDF-SHA256 (RFC 5869) derives from the
//! shared secret and the instances of both ends. A session has its own key in each
//! direction, so its packet numbers may begin where every session's do, and what
//! was recorded of an earlier one opens nothing. The nonce is epoch, path and packet
//! number; acknowledgements and probes number themselves, marked by the top bit.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use crate::config::{TunnelKey, TunnelKeys};
use crate::drop_reason::DropReason;
use crate::wire::{COMMON_HEADER_LEN, CommonHeader, DATA_HEADER_LEN, PROBE_CLEAR_LEN, TAG_LEN};

const SALT: &[u8] = b"causeway bifrost 1";

/// Set in the number of each datagram that is not data.
const CONTROL: u64 = 1 << 55;

/// What keys of a shared secret are derived of.
fn extract(key: &TunnelKey) -> Prk {
    Salt::new(HKDF_SHA256, SALT).extract(&key.secret)
}

fn derive(secret: &Prk, label: &[u8], from: u64, to: u64) -> LessSafeKey {
    let (from, to) = (from.to_le_bytes(), to.to_le_bytes());
    let info = [label, &from, &to];
    let output = secret
        .expand(&info, &AES_256_GCM)
        .expect("HKDF gives 32 bytes whatever it is asked for");
    LessSafeKey::new(UnboundKey::from(output))
}

fn nonce(epoch: u32, path: u8, number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..4].copy_from_slice(&epoch.to_be_bytes());
    nonce[4..].copy_from_slice(&(number & ((1 << 56) - 1)).to_be_bytes());
    nonce[4] = path;
    Nonce::assume_unique_for_key(nonce)
}

/// Encrypts `datagram[clear..]`, whose last [`TAG_LEN`] bytes become the tag.
fn seal(key: &LessSafeKey, nonce: Nonce, clear: usize, datagram: &mut [u8]) {
    let body_end = datagram.len() - TAG_LEN;
    let (head, rest) = datagram.split_at_mut(clear);
    let (body, place) = rest.split_at_mut(body_end - clear);
    let tag = key
        .seal_in_place_separate_tag(nonce, Aad::from(&*head), body)
        .expect("a datagram is shorter than what AES-GCM can seal");
    place.copy_from_slice(tag.as_ref());
}

/// Decrypts `datagram[clear..]`; the last [`TAG_LEN`] bytes are then meaningless.
fn open(key: &LessSafeKey, nonce: Nonce, clear: usize, datagram: &mut [u8]) -> bool {
    if datagram.len() < clear + TAG_LEN {
        return false;
    }
    let (head, body) = datagram.split_at_mut(clear);
    key.open_in_place(nonce, Aad::from(&*head), body).is_ok()
}

struct KeyPair {
    id: u8,
    send: LessSafeKey,
    receive: LessSafeKey,
}

/// The live keys of a session; the first one seals.
pub(crate) struct SessionKeys {
    pairs: Vec<KeyPair>,
}

/// What makes the nonce and the authenticated bytes of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct AeadInput {
    epoch: u32,
    path: u8,
    /// 55 bits, or with [`CONTROL`].
    number: u64,
    /// Bytes in front that stay readable.
    clear: usize,
}

impl AeadInput {
    /// Data; `number` is the packet number in full.
    pub(crate) fn data(header: &CommonHeader, number: u64) -> AeadInput {
        AeadInput {
            epoch: header.epoch,
            path: header.path,
            number,
            clear: DATA_HEADER_LEN,
        }
    }

    /// An acknowledgement; `number` is its own, in full.
    pub(crate) fn ack(header: &CommonHeader, number: u64) -> AeadInput {
        AeadInput {
            epoch: header.epoch,
            path: header.path,
            number: number | CONTROL,
            clear: COMMON_HEADER_LEN,
        }
    }

    /// A probe or reply. These number themselves in 64 bits, in the fields of epoch and
    /// number.
    pub(crate) fn probe(header: &CommonHeader) -> AeadInput {
        AeadInput {
            epoch: header.epoch,
            path: header.path,
            number: u64::from(header.number) | CONTROL,
            clear: PROBE_CLEAR_LEN,
        }
    }

    fn nonce(self) -> Nonce {
        nonce(self.epoch, self.path, self.number)
    }
}

impl SessionKeys {
    pub(crate) fn new(keys: &TunnelKeys, own: u64, peer: u64) -> SessionKeys {
        let pair = |key: &TunnelKey| {
            let secret = extract(key);
            KeyPair {
                id: key.id,
                send: derive(&secret, b"talk", own, peer),
                receive: derive(&secret, b"talk", peer, own),
            }
        };
        let keys = keys.send.iter().chain(&keys.also);
        SessionKeys {
            pairs: keys.map(pair).collect(),
        }
    }

    pub(crate) fn seal(&self, at: AeadInput, datagram: &mut [u8]) {
        if let Some(pair) = self.pairs.first() {
            seal(&pair.send, at.nonce(), at.clear, datagram);
        }
    }

    /// `None`: no such key.
    pub(crate) fn open(&self, id: u8, at: AeadInput, datagram: &mut [u8]) -> Option<bool> {
        let pair = self.pairs.iter().find(|pair| pair.id == id)?;
        Some(open(&pair.receive, at.nonce(), at.clear, datagram))
    }
}

/// Keys of probes and replies, which begin a session and so cannot use its keys: theirs
/// come from the secret and the instance of their sender.
pub(crate) struct HandshakeKeys {
    own: Option<LessSafeKey>,
    /// By the keys' ids.
    secrets: Vec<(u8, Prk)>,
    /// Of the peer's instances, the newest last.
    known: Vec<(u8, u64, LessSafeKey)>,
    /// When the next key is due to be derived.
    due_ns: u64,
}

/// Instances whose handshake keys are kept.
const KNOWN: usize = 4;
/// Deriving a key and trying it costs microseconds, and whoever sends under the peer's address can ask
/// for it with an instance made up. So there is one for each of these times, which bounds what a flood
/// takes of a CPU and leaves a peer that begins anew a place in it,
const DERIVE_NS: u64 = 50_000;
/// and this many at once.
const DERIVE_BURST: u64 = 64;

impl HandshakeKeys {
    pub(crate) fn new(keys: &TunnelKeys, instance: u64) -> HandshakeKeys {
        let all = keys.send.iter().chain(&keys.also);
        let secrets: Vec<(u8, Prk)> = all.map(|key| (key.id, extract(key))).collect();
        let own = keys.send.as_ref().and(secrets.first());
        HandshakeKeys {
            own: own.map(|(_, secret)| derive(secret, b"greet", instance, 0)),
            secrets,
            known: Vec::new(),
            due_ns: 0,
        }
    }

    pub(crate) fn seal(&self, at: AeadInput, datagram: &mut [u8]) {
        if let Some(key) = &self.own {
            seal(key, at.nonce(), at.clear, datagram);
        }
    }

    /// # Errors
    /// There is no such key, too many keys have been derived lately, or the tag does not fit.
    pub(crate) fn open(
        &mut self,
        now_ns: u64,
        (id, instance): (u8, u64),
        at: AeadInput,
        datagram: &mut [u8],
    ) -> Result<(), DropReason> {
        let try_key = |key: &LessSafeKey, datagram: &mut [u8]| {
            let authentic = open(key, at.nonce(), at.clear, datagram);
            authentic.then_some(()).ok_or(DropReason::Forged)
        };
        let known = |known: &(u8, u64, LessSafeKey)| known.0 == id && known.1 == instance;
        if let Some((_, _, key)) = self.known.iter().find(|entry| known(entry)) {
            return try_key(key, datagram);
        }
        let (_, secret) = self
            .secrets
            .iter()
            .find(|(of, _)| *of == id)
            .ok_or(DropReason::Key)?;
        let due_ns = self.due_ns.max(now_ns);
        if due_ns - now_ns >= DERIVE_BURST * DERIVE_NS {
            return Err(DropReason::Flood);
        }
        self.due_ns = due_ns + DERIVE_NS;
        let key = derive(secret, b"greet", instance, 0);
        try_key(&key, datagram)?;
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        self.known.push((id, instance, key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(send: u8, also: Option<u8>) -> TunnelKeys {
        let key = |id| TunnelKey {
            id,
            secret: [id; 32],
        };
        TunnelKeys {
            send: Some(key(send)),
            also: also.map(key),
        }
    }

    const AT: AeadInput = AeadInput {
        epoch: 5,
        path: 1,
        number: 77,
        clear: 4,
    };

    fn sealed(by: &SessionKeys) -> Vec<u8> {
        let mut datagram = b"headpayload".to_vec();
        datagram.resize(11 + TAG_LEN, 0);
        by.seal(AT, &mut datagram);
        assert_eq!(datagram[..4], *b"head");
        assert_ne!(datagram[4..11], *b"payload");
        datagram
    }

    #[test]
    fn what_one_end_seals_only_the_other_opens() {
        let (one, two) = (
            SessionKeys::new(&keys(1, None), 10, 20),
            SessionKeys::new(&keys(1, None), 20, 10),
        );
        let datagram = sealed(&one);
        let mut opened = datagram.clone();
        assert_eq!(two.open(1, AT, &mut opened), Some(true));
        assert_eq!(opened[..11], *b"headpayload");
        let refused = |by: &SessionKeys, at: AeadInput, change: usize| {
            let mut datagram = datagram.clone();
            datagram[change] ^= u8::from(change > 0);
            by.open(1, at, &mut datagram) == Some(false)
        };
        assert!(refused(&one, AT, 0), "sent back");
        assert!((1..27).all(|byte| refused(&two, AT, byte)), "changed");
        assert!(
            refused(&two, AeadInput { number: 78, ..AT }, 0),
            "another number"
        );
        assert!(
            refused(
                &two,
                AeadInput {
                    number: 77 | CONTROL,
                    ..AT
                },
                0
            ),
            "another kind"
        );
        assert!(
            refused(&two, AeadInput { path: 2, ..AT }, 0),
            "another path"
        );
        let restarted = SessionKeys::new(&keys(1, None), 20, 11);
        assert!(refused(&restarted, AT, 0), "another session");
        assert_eq!(two.open(2, AT, &mut datagram.clone()), None, "unknown key");
    }

    #[test]
    fn two_keys_live_during_rotation() {
        let old = SessionKeys::new(&keys(1, Some(2)), 10, 20);
        let new = SessionKeys::new(&keys(2, Some(1)), 20, 10);
        assert_eq!(new.open(1, AT, &mut sealed(&old)), Some(true));
        assert_eq!(old.open(2, AT, &mut sealed(&new)), Some(true));
        let last = SessionKeys::new(&keys(2, None), 10, 20);
        assert_eq!(
            last.open(1, AT, &mut sealed(&old)),
            None,
            "the old key is gone"
        );
    }
}
