// SPDX-License-Identifier: Apache-2.0
//! How the agent of a new server gets that server's secrets from a balancer, by a token that is
//! good once.
//!
//! ```text
//!  agent                                       balancer
//!    token, public key                ───────►   (nothing is kept yet)
//!    ◄───────  challenge
//!    token, public key, response      ───────►   claims the token in the fleet's book
//!    ...                                         the store has taken that
//!    token, public key, response      ───────►
//!    ◄───────  public key, the server's keys file, sealed
//! ```
//!
//! Each datagram is in the [`envelope`](crate::envelope), signed with a key that follows from the
//! token's secret. That secret follows from balancers' secret of reports, the token's number, its
//! servers and its end, so every balancer knows it and none keeps it. What seals the file follows
//! from both public keys (X25519) and the token's secret: who records the exchange and gets the
//! token later cannot read it. This module has all but X25519 and the seal.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::keys::ReportKeys;
use crate::cookie::{CookieKey, KeyEpoch};
use crate::envelope::{
    self, BODY_HEAD, Boot, Boots, Form, HEAD, Head, Reception, number, octets, push_body,
};
use crate::fleet::{JoinKey, JoinToken, TokenId};

const FORM: Form = Form {
    magic: *b"CWAJ",
    version: 1,
};

const KIND_ASK: u8 = 1;
const KIND_CHALLENGE: u8 = 2;
const KIND_RESPONSE: u8 = 3;
const KIND_GIVEN: u8 = 4;
const KIND_REFUSED: u8 = 5;
/// Token and public key.
const ASK: usize = 40;
/// What a token's text begins with.
const PREFIX: &str = "cwj1-";

/// The secret of a token: 256 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinSecret([CookieKey; 2]);

/// A token as operators carry it to a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinTicket {
    token: TokenId,
    epoch: KeyEpoch,
    secret: JoinSecret,
}

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a join token; `causeway fleet token ADDRESS` on a balancer makes one")]
pub struct NoTicket;

impl JoinSecret {
    /// Whoever may change the book cannot make a token longer, or another server's: all of it is
    /// in the secret.
    fn of(keys: &ReportKeys, id: TokenId, token: &JoinToken) -> Option<(Self, KeyEpoch)> {
        let mut epochs = KeyEpoch::ALL.into_iter();
        let epoch = epochs.find(|epoch| epoch.index() == u32::from(token.epoch))?;
        let root = keys.root(epoch)?;
        let words = [id.to_be_bytes(), token.until_s.to_be_bytes()].concat();
        let words = <[u8; 16]>::try_from(words).ok()?;
        let servers = token.servers.iter();
        let secret = servers.fold(root.derive(*b"join tok", words), |secret, server| {
            secret.derive(*b"join srv", octets(*server))
        });
        let halves = [*b"secret 1", *b"secret 2"].map(|label| secret.derive(label, [0; 16]));
        Some((Self(halves), epoch))
    }

    fn key(&self, speaker: [u8; 8]) -> CookieKey {
        self.0[0].derive(speaker, [0; 16])
    }

    /// What goes, beside both public keys, into the key of the seal.
    pub fn salt(&self) -> [u8; 32] {
        let mut salt = [0; 32];
        let words = self.0.iter().flat_map(CookieKey::words);
        for (eight, word) in salt.chunks_mut(8).zip(words) {
            eight.copy_from_slice(&word.to_be_bytes());
        }
        salt
    }
}

const AGENT: [u8; 8] = *b"join ask";
const BALANCER: [u8; 8] = *b"join giv";

impl JoinTicket {
    /// The token of a balancer that knows the secrets of all servers' reports.
    pub fn new(keys: &ReportKeys, token: TokenId, of: &JoinToken) -> Option<Self> {
        let (secret, epoch) = JoinSecret::of(keys, token, of)?;
        Some(Self {
            token,
            epoch,
            secret,
        })
    }

    /// Its secret.
    pub fn secret(&self) -> &JoinSecret {
        &self.secret
    }
}

/// The secret itself, for the operator.
impl fmt::Display for JoinTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}{:x}", self.token, self.epoch.index())?;
        let words = self.secret.0.iter().flat_map(CookieKey::words);
        words
            .into_iter()
            .try_for_each(|word| write!(f, "{word:016x}"))
    }
}

/// It is not printed by accident.
impl fmt::Debug for JoinTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinTicket({:016x}, ..)", self.token)
    }
}

impl FromStr for JoinTicket {
    type Err = NoTicket;

    fn from_str(text: &str) -> Result<Self, NoTicket> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(NoTicket)?;
        let is_whole = digits.len() == 81 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let word = |at: usize, len: usize| {
            let digits = digits.get(at..at + len).filter(|_| is_whole);
            let digits = digits.ok_or(NoTicket)?;
            u64::from_str_radix(digits, 16).map_err(|_| NoTicket)
        };
        let epoch = word(16, 1)?;
        let mut epochs = KeyEpoch::ALL.into_iter();
        let epoch = epochs.find(|of| u64::from(of.index()) == epoch);
        let half = |at| Ok(CookieKey::from_words([word(at, 16)?, word(at + 16, 16)?]));
        Ok(Self {
            token: word(0, 16)?,
            epoch: epoch.ok_or(NoTicket)?,
            secret: JoinSecret([half(17)?, half(49)?]),
        })
    }
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// Another agent has used it, or another attempt of this one.
    Used,
    /// Its time is over.
    Expired,
    /// It is for a server with other addresses.
    WrongAddress,
}

impl JoinRefusal {
    const ALL: [Self; 3] = [Self::Used, Self::Expired, Self::WrongAddress];
}

/// What became of a datagram of an agent that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// It was answered by the server's secrets.
    Given,
    /// The token is being claimed in the fleet's book.
    Claimed,
    /// It was refused.
    Refused(JoinRefusal),
    /// The book has no such token: it never had, or the token has been over for a while.
    Unknown,
    /// It does not count, for a reason that all datagrams have.
    Dropped(Reception),
}

impl JoinOutcome {
    /// The counter's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Claimed => "claimed",
            Self::Refused(JoinRefusal::Used) => "used",
            Self::Refused(JoinRefusal::Expired) => "expired",
            Self::Refused(JoinRefusal::WrongAddress) => "wrong_address",
            Self::Unknown => "unknown",
            Self::Dropped(reception) => reception.as_str(),
        }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [Self::Given, Self::Claimed, Self::Unknown];
        let refused = JoinRefusal::ALL.map(Self::Refused);
        let dropped = [
            Reception::Unproven,
            Reception::Replayed,
            Reception::Forged,
            Reception::NoKey,
            Reception::Version,
            Reception::Truncated,
            Reception::Malformed,
        ];
        let dropped = dropped.map(Self::Dropped);
        own.into_iter().chain(refused).chain(dropped)
    }
}

/// A balancer's side.
#[derive(Debug)]
pub struct JoinDesk {
    boots: Boots,
    counts: BTreeMap<&'static str, u64>,
    claims: BTreeMap<TokenId, JoinKey>,
}

/// What a balancer does with a datagram.
#[derive(Debug, PartialEq)]
pub enum JoinStep {
    /// Nothing.
    Nothing,
    /// This goes back.
    Answer(Vec<u8>),
    /// The server's secrets go back: [`JoinGiven::answer`].
    Give(JoinGiven),
}

/// An agent that the book has given a token to.
#[derive(Debug, PartialEq)]
pub struct JoinGiven {
    /// The server, by all its addresses.
    pub servers: Vec<IpAddr>,
    /// The agent's public key.
    pub key: JoinKey,
    head: Head,
    ticket: JoinTicket,
}

impl JoinGiven {
    /// What goes, beside both public keys, into the key of the seal.
    pub fn salt(&self) -> [u8; 32] {
        self.ticket.secret.salt()
    }

    /// The answer with a balancer's public key, and what is sealed.
    pub fn answer(&self, key: &JoinKey, sealed: &[u8]) -> Vec<u8> {
        let mut bytes = key.to_vec();
        bytes.extend((sealed.len() as u64).to_be_bytes());
        bytes.extend(sealed);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        answer(&self.head, &self.ticket, KIND_GIVEN, &bytes)
    }
}

/// What a balancer knows when a datagram comes.
#[derive(Clone, Copy, Debug)]
pub struct JoinContext<'a> {
    /// The tokens of the book that it has in its data plane.
    pub tokens: &'a BTreeMap<TokenId, JoinToken>,
    /// The secret of all servers' reports.
    pub keys: &'a ReportKeys,
    /// Its clock, seconds since 1970.
    pub now_s: u64,
    /// Its clock that is never set.
    pub now_ns: u64,
}

impl JoinDesk {
    /// One that knows nothing. The secret is random, as a
    /// [`ReportReceiver`](super::ReportReceiver)'s.
    pub fn new(secret: CookieKey) -> Self {
        Self {
            boots: Boots::new(secret),
            counts: BTreeMap::new(),
            claims: BTreeMap::new(),
        }
    }

    /// Whether a datagram is one of these.
    pub fn is_asked(datagram: &[u8]) -> bool {
        datagram.starts_with(&FORM.magic)
    }

    /// Takes a datagram that came from this address.
    pub fn handle(&mut self, datagram: &[u8], from: IpAddr, of: JoinContext<'_>) -> JoinStep {
        let (outcome, step) = match self.take(datagram, from, of) {
            Ok((outcome, step)) => (outcome, step),
            Err(outcome) => (outcome, JoinStep::Nothing),
        };
        *self.counts.entry(outcome.as_str()).or_default() += 1;
        step
    }

    fn take(
        &mut self,
        datagram: &[u8],
        from: IpAddr,
        of: JoinContext<'_>,
    ) -> Result<(JoinOutcome, JoinStep), JoinOutcome> {
        let dropped = JoinOutcome::Dropped;
        // It says which key it is signed with.
        let id = number(datagram, HEAD + BODY_HEAD).map_err(dropped)?;
        let id = u64::from_be_bytes(id);
        let token = of.tokens.get(&id).ok_or(JoinOutcome::Unknown)?;
        let ticket = JoinTicket::new(of.keys, id, token);
        let ticket = ticket.ok_or(dropped(Reception::NoKey))?;
        let key = |_, epoch| (epoch == ticket.epoch).then(|| ticket.secret.key(AGENT));
        let (head, bodies) = envelope::open(datagram, FORM, key).map_err(dropped)?;
        let (key, response) = asked(bodies).map_err(dropped)?;
        let refuse = |refusal: JoinRefusal| {
            let said = [refusal as u64].map(u64::to_be_bytes).concat();
            let refused = answer(&head, &ticket, KIND_REFUSED, &said);
            (JoinOutcome::Refused(refusal), JoinStep::Answer(refused))
        };
        // Else who has a token could have any number of senders kept.
        if !token.servers.contains(&from) || head.sender != from {
            return Ok(refuse(JoinRefusal::WrongAddress));
        }
        match self
            .boots
            .admit(&head, of.now_ns, |number| response == Some(number))
        {
            Ok(_) => {}
            // Nothing is counted as a use, or kept, before the agent has shown that it is there.
            Err(Reception::Unproven) => {
                let number = self.boots.challenge(&head, of.now_ns).to_be_bytes();
                let challenge = answer(&head, &ticket, KIND_CHALLENGE, &number);
                return Ok((dropped(Reception::Unproven), JoinStep::Answer(challenge)));
            }
            Err(reception) => return Err(dropped(reception)),
        }
        let is_used = token.used_by.is_some_and(|by| by != key);
        if of.now_s >= token.until_s {
            return Ok(refuse(JoinRefusal::Expired));
        }
        if is_used {
            return Ok(refuse(JoinRefusal::Used));
        }
        if token.used_by.is_none() {
            self.claims.entry(id).or_insert(key);
            return Ok((JoinOutcome::Claimed, JoinStep::Nothing));
        }
        let given = JoinGiven {
            servers: token.servers.iter().copied().collect(),
            key,
            head,
            ticket,
        };
        Ok((JoinOutcome::Given, JoinStep::Give(given)))
    }

    /// The tokens that agents have shown, to be claimed in the book.
    pub fn claims(&mut self) -> BTreeMap<TokenId, JoinKey> {
        std::mem::take(&mut self.claims)
    }

    /// What became of datagrams since the start.
    pub fn counts(&self) -> impl Iterator<Item = (JoinOutcome, u64)> {
        let count = |outcome: JoinOutcome| {
            let count = self.counts.get(outcome.as_str());
            (outcome, count.copied().unwrap_or_default())
        };
        JoinOutcome::all().map(count)
    }
}

/// The public key and the response of an agent's datagram.
fn asked(bodies: &[u8]) -> Result<(JoinKey, Option<u64>), Reception> {
    let (mut key, mut response) = (None, None);
    for body in envelope::bodies(bodies)? {
        match body.kind {
            KIND_ASK => {
                let entry = body.entries().next().ok_or(Reception::Malformed)?;
                key = Some(number(entry, 8)?);
            }
            KIND_RESPONSE => response = Some(body.first_number()?),
            _ => {}
        }
    }
    Ok((key.ok_or(Reception::Malformed)?, response))
}

/// A balancer's datagram, in answer to one with this head.
fn answer(head: &Head, ticket: &JoinTicket, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut datagram = head.begin(FORM, ticket.epoch);
    let entries = bytes.chunks(8).map(<[u8]>::to_vec);
    push_body(&mut datagram, kind, 8, entries);
    envelope::seal(&mut datagram, Some(&ticket.secret.key(BALANCER)));
    datagram
}

/// An agent's side: one attempt.
#[derive(Debug)]
pub struct JoinAttempt {
    ticket: JoinTicket,
    key: JoinKey,
    head: Head,
    response: Option<u64>,
}

/// What a balancer says to an agent that joins.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinAnswer {
    /// Ask again, at once: it wants to see that this is no replay.
    Challenged,
    /// Its public key, and what is sealed.
    Given(JoinKey, Vec<u8>),
    /// No.
    Refused(JoinRefusal),
}

impl JoinAttempt {
    /// By a token and a public key of its own, from a server's address. The boot is random.
    pub fn new(ticket: JoinTicket, key: JoinKey, server: IpAddr, boot: Boot) -> Self {
        let head = Head {
            sender: server,
            boot,
            sequence: 0,
        };
        Self {
            ticket,
            key,
            head,
            response: None,
        }
    }

    /// The next datagram; the same is never sent again.
    pub fn ask(&mut self) -> Vec<u8> {
        self.head.sequence += 1;
        let mut datagram = self.head.begin(FORM, self.ticket.epoch);
        let asks = [&self.ticket.token.to_be_bytes()[..], &self.key].concat();
        push_body(&mut datagram, KIND_ASK, ASK, [asks].into_iter());
        if let Some(number) = self.response {
            let response = [number.to_be_bytes().to_vec()];
            push_body(&mut datagram, KIND_RESPONSE, 8, response.into_iter());
        }
        envelope::seal(&mut datagram, Some(&self.ticket.secret.key(AGENT)));
        datagram
    }

    /// What a balancer says; `None`: it is not for this attempt.
    pub fn handle(&mut self, datagram: &[u8]) -> Option<JoinAnswer> {
        let key = |_, epoch| (epoch == self.ticket.epoch).then(|| self.ticket.secret.key(BALANCER));
        let (head, bodies) = envelope::open(datagram, FORM, key).ok()?;
        let is_own = (head.sender, head.boot) == (self.head.sender, self.head.boot)
            && head.sequence <= self.head.sequence;
        let bodies = envelope::bodies(bodies).ok().filter(|_| is_own)?;
        let body = bodies.into_iter().next()?;
        match body.kind {
            KIND_CHALLENGE => {
                self.response = Some(body.first_number().ok()?);
                Some(JoinAnswer::Challenged)
            }
            KIND_REFUSED => {
                let said = body.first_number().ok()?;
                let mut all = JoinRefusal::ALL.into_iter();
                let refusal = all.find(|refusal| *refusal as u64 == said)?;
                Some(JoinAnswer::Refused(refusal))
            }
            KIND_GIVEN => {
                let all: Vec<u8> = body.entries().flatten().copied().collect();
                let length = u64::from_be_bytes(number(&all, 32).ok()?);
                let sealed = all.get(40..)?.get(..usize::try_from(length).ok()?)?;
                Some(JoinAnswer::Given(number(&all, 0).ok()?, sealed.to_vec()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ReportSecrets;
    use super::*;

    const HOUR_S: u64 = 3600;

    fn server() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    fn keys(byte: u8) -> ReportKeys {
        ReportKeys {
            current: KeyEpoch::One,
            secrets: ReportSecrets::Root([None, Some(CookieKey::from_bytes([byte; 16]))]),
        }
    }

    fn token() -> JoinToken {
        JoinToken {
            servers: [server(), IpAddr::from([10, 0, 0, 2])].into(),
            epoch: 1,
            until_s: HOUR_S,
            used_by: None,
        }
    }

    /// A balancer with a book, and agents with public keys of one byte again and again.
    struct World {
        desk: JoinDesk,
        tokens: BTreeMap<TokenId, JoinToken>,
        keys: ReportKeys,
        now_s: u64,
    }

    impl World {
        fn new() -> Self {
            Self {
                desk: JoinDesk::new(CookieKey::from_bytes([1; 16])),
                tokens: [(7, token())].into(),
                keys: keys(9),
                now_s: 0,
            }
        }

        fn handle(&mut self, datagram: &[u8], from: IpAddr) -> JoinStep {
            let context = JoinContext {
                tokens: &self.tokens,
                keys: &self.keys,
                now_s: self.now_s,
                now_ns: 1 << 40,
            };
            self.desk.handle(datagram, from, context)
        }

        fn agent(&self, key: u8) -> JoinAttempt {
            let ticket = JoinTicket::new(&self.keys, 7, &token()).expect("a token");
            let boot = Boot {
                time_s: 1,
                id: key.into(),
            };
            JoinAttempt::new(ticket, [key; 32], server(), boot)
        }

        /// Asks as often as it is challenged.
        fn ask(&mut self, agent: &mut JoinAttempt) -> Option<JoinAnswer> {
            for _ in 0..3 {
                let answer = match self.handle(&agent.ask(), server()) {
                    JoinStep::Nothing => return None,
                    JoinStep::Answer(answer) => answer,
                    JoinStep::Give(given) => given.answer(&[42; 32], b"sealed by both keys"),
                };
                match agent.handle(&answer) {
                    Some(JoinAnswer::Challenged) => {}
                    answer => return answer,
                }
            }
            panic!("it is challenged for ever");
        }

        /// The store takes the first claim.
        fn claim(&mut self) {
            for (id, key) in self.desk.claims() {
                let token = self.tokens.get_mut(&id).expect("the token");
                token.used_by.get_or_insert(key);
            }
        }

        fn count(&self, outcome: JoinOutcome) -> u64 {
            let mut counts = self.desk.counts();
            counts.find(|(of, _)| *of == outcome).expect("a count").1
        }
    }

    #[test]
    fn one_agent_gets_a_token_and_may_ask_again_and_no_other_does() {
        let mut world = World::new();
        let (mut one, mut two) = (world.agent(1), world.agent(2));
        assert_eq!(world.ask(&mut one), None, "the store has yet to take it");
        assert_eq!(world.ask(&mut two), None);
        world.claim();
        let given = JoinAnswer::Given([42; 32], b"sealed by both keys".to_vec());
        assert_eq!(world.ask(&mut one), Some(given));
        // The answer is lost.
        assert!(matches!(world.ask(&mut one), Some(JoinAnswer::Given(..))));
        let used = JoinAnswer::Refused(JoinRefusal::Used);
        assert_eq!(world.ask(&mut two), Some(used));
        assert_eq!(world.count(JoinOutcome::Given), 2);
        assert_eq!(world.count(JoinOutcome::Refused(JoinRefusal::Used)), 1);
        assert_eq!(world.count(JoinOutcome::Claimed), 2);
    }

    #[test]
    fn a_token_is_for_one_server_and_for_a_time() {
        let mut world = World::new();
        let mut agent = world.agent(1);
        world.now_s = HOUR_S;
        let expired = JoinAnswer::Refused(JoinRefusal::Expired);
        assert_eq!(world.ask(&mut agent), Some(expired));
        world.now_s = HOUR_S - 1;
        let JoinStep::Answer(answer) = world.handle(&agent.ask(), IpAddr::from([10, 0, 0, 3]))
        else {
            panic!("it is answered");
        };
        let wrong = JoinAnswer::Refused(JoinRefusal::WrongAddress);
        assert_eq!(agent.handle(&answer), Some(wrong));
        let refused = JoinOutcome::Refused(JoinRefusal::WrongAddress);
        assert_eq!(world.count(refused), 1);
        assert!(world.desk.claims().is_empty());
    }

    /// Who has stolen a token answers challenges to an address of its own, in any name.
    #[test]
    fn a_token_has_no_more_senders_kept_than_it_has_servers() {
        let mut world = World::new();
        let thief = IpAddr::from([10, 9, 9, 9]);
        for last in 0..100 {
            for sender in [[10, 8, 0, last], [10, 0, 0, 1]] {
                let mut agent = world.agent(last);
                agent.head.sender = IpAddr::from(sender);
                for _ in 0..2 {
                    if let JoinStep::Answer(answer) = world.handle(&agent.ask(), thief) {
                        agent.handle(&answer);
                    }
                }
            }
        }
        assert_eq!(world.desk.boots.len(), 0);
        let mut agent = world.agent(1);
        assert_eq!(world.ask(&mut agent), None, "it is claimed");
        assert_eq!(world.desk.boots.len(), 1);
    }

    #[test]
    fn what_was_changed_recorded_or_made_up_counts_for_nothing() {
        let mut world = World::new();
        let mut agent = world.agent(1);
        world.ask(&mut agent);
        let recorded = agent.ask();
        let JoinStep::Nothing = world.handle(&recorded, server()) else {
            panic!("it is claimed");
        };
        world.handle(&recorded, server());
        assert_eq!(world.count(JoinOutcome::Dropped(Reception::Replayed)), 1);
        // By a balancer that has started since, or another one.
        world.desk = JoinDesk::new(CookieKey::from_bytes([2; 16]));
        world.handle(&recorded, server());
        assert_eq!(world.count(JoinOutcome::Dropped(Reception::Unproven)), 1);
        assert!(world.desk.claims().is_empty());
        let mut changed = agent.ask();
        changed[HEAD + BODY_HEAD + 9] ^= 1;
        world.handle(&changed, server());
        assert_eq!(world.count(JoinOutcome::Dropped(Reception::Forged)), 1);
        // The book may be changed by who has the store: the token is another one then.
        let mut longer = token();
        longer.until_s += 1;
        world.tokens.insert(7, longer);
        world.handle(&agent.ask(), server());
        assert_eq!(world.count(JoinOutcome::Dropped(Reception::Forged)), 2);
        world.tokens.clear();
        world.handle(&agent.ask(), server());
        assert_eq!(world.count(JoinOutcome::Unknown), 1);
        world.handle(b"CWAJ", server());
        assert_eq!(world.count(JoinOutcome::Dropped(Reception::Malformed)), 1);
    }

    #[test]
    fn tokens_are_read_as_they_are_printed_and_differ() {
        let ticket = |keys: u8, id, token: &JoinToken| {
            JoinTicket::new(&self::keys(keys), id, token).expect("a token")
        };
        let one = ticket(9, 7, &token());
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_eq!(format!("{one:?}"), "JoinTicket(0000000000000007, ..)");
        let mut other = token();
        other.servers.pop_last();
        let mut later = token();
        later.until_s += 1;
        let others = [
            ticket(8, 7, &token()),
            ticket(9, 8, &token()),
            ticket(9, 7, &other),
            ticket(9, 7, &later),
        ];
        for other in others {
            assert_ne!(other.secret().salt(), one.secret().salt());
        }
        let mut of_other_epoch = token();
        of_other_epoch.epoch = 0;
        assert!(JoinTicket::new(&keys(9), 7, &of_other_epoch).is_none());
        let text = one.to_string();
        for bad in [
            "",
            "cwj1-",
            &text[1..],
            &text[..85],
            &text.replace('7', "g"),
        ] {
            assert_eq!(bad.parse::<JoinTicket>(), Err(NoTicket), "{bad}");
        }
    }
}
