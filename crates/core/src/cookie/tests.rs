// SPDX-License-Identifier: Apache-2.0
//! The C against an obvious version in Rust, vectors that must never change
//! (cookies in flight would break), and the clock against a log of all it sent.

use std::hash::Hasher as _;

use proptest::prelude::*;

use super::clock::{
    causeway_cookie_clock_is_behind, causeway_cookie_clock_size, causeway_cookie_clock_start_unsure,
};
use super::*;

fn key(first: u8) -> CookieKey {
    let mut bytes = [0; 16];
    for (byte, value) in bytes.iter_mut().zip(first..) {
        *byte = value;
    }
    CookieKey::from_bytes(bytes)
}

fn tuple(client: &str, vip: &str) -> Tuple {
    Tuple::tcp(client.parse().unwrap(), vip.parse().unwrap())
}

/// SipHash-2-4 by the standard library, over the tuple's bytes.
fn oracle_hash(client: SocketAddr, vip: SocketAddr, key: &CookieKey) -> u64 {
    #[allow(deprecated, reason = "the newer hashers leave the algorithm open")]
    let mut hasher = std::hash::SipHasher::new_with_keys(key.words()[0], key.words()[1]);
    for address in [client.ip(), vip.ip()] {
        match address {
            IpAddr::V4(v4) => hasher.write(&v4.octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
    }
    hasher.write(&client.port().to_be_bytes());
    hasher.write(&vip.port().to_be_bytes());
    hasher.write(&[6, 0, 0, 0]);
    hasher.finish()
}

/// The cookie as a string of bits: epoch, then id and check under the hash's low bits.
fn oracle_encode(hash: u64, epoch: KeyEpoch, id: u16, format: &CookieLayout) -> u32 {
    let (high, low) = (hash >> 32, hash & 0xffff_ffff);
    let slice = (high * (2 * u64::from(id) + 1)) % (1 << 32);
    let check: String = format!("{slice:032b}")[..format.check_bits().into()].to_owned();
    let id = format!("{id:0width$b}", width = usize::from(format.id_bits()));
    let low = format!("{low:032b}");
    let mask = &low[32 - id.len() - check.len()..];
    let hidden = (id + &check)
        .chars()
        .zip(mask.chars())
        .map(|(a, b)| if a == b { '0' } else { '1' })
        .collect::<String>();
    u32::from_str_radix(&format!("{}{hidden}", epoch.index()), 2).unwrap()
}

fn any_format() -> impl Strategy<Value = CookieLayout> {
    let modes = prop_oneof![Just(CookieMode::Timestamp), Just(CookieMode::Light)];
    (modes, 4_u8..=20, 1_u8..=10).prop_filter_map("fits", |(mode, bits, id)| {
        CookieLayout::new(mode, bits, id).ok()
    })
}

fn any_pair() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (a.into(), b.into()));
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(a, b)| (a.into(), b.into()));
    let addresses = prop_oneof![v4, v6];
    (addresses, any::<u16>(), any::<u16>()).prop_map(|((client, vip), from, to)| {
        (SocketAddr::new(client, from), SocketAddr::new(vip, to))
    })
}

proptest! {
    #[test]
    fn the_codec_agrees_with_the_obvious_one(
        (client, vip) in any_pair(),
        format in any_format(),
        id in any::<u16>(),
        bytes in any::<[u8; 16]>(),
        one in any::<bool>(),
    ) {
        let (id, epoch) = (id % format.ids(), KeyEpoch::from_bit(one.into()));
        let key = CookieKey::from_bytes(bytes);
        let tuple = Tuple::tcp(client, vip);
        let hash = oracle_hash(client, vip, &key);
        prop_assert_eq!(tuple.hash(&key), hash);
        let cookie = encode(&tuple, &key, epoch, id, &format);
        prop_assert_eq!(cookie, oracle_encode(hash, epoch, id, &format));
        prop_assert!(cookie < 1 << format.bits());
        let keys = Keys::new(epoch, key, None);
        prop_assert_eq!(decode(&tuple, &keys, cookie, &format), Some((epoch, id)));
        // The other epoch has no key.
        let foreign = cookie ^ 1 << (format.bits() - 1);
        prop_assert_eq!(decode(&tuple, &keys, foreign, &format), None);
    }
}

#[test]
fn vectors_stay() {
    let keys = Keys::new(KeyEpoch::Zero, key(0), Some(key(0x10)));
    let v4 = tuple("198.51.100.7:40000", "192.0.2.1:443");
    let v6 = tuple("[2001:db8::7]:40000", "[2001:db8:1::1]:443");
    let sixteen = CookieLayout::default_of(CookieMode::Timestamp);
    let fourteen = CookieLayout::new(CookieMode::Timestamp, 14, 10).unwrap();
    let light = CookieLayout::default_of(CookieMode::Light);
    let cookie = |tuple, epoch, id, format| {
        let cookie = encode(tuple, keys.get(epoch).unwrap(), epoch, id, format);
        assert_eq!(decode(tuple, &keys, cookie, format), Some((epoch, id)));
        cookie
    };
    let cookies = [
        cookie(&v4, KeyEpoch::Zero, 3, &sixteen),
        cookie(&v4, KeyEpoch::One, 3, &sixteen),
        cookie(&v4, KeyEpoch::Zero, 1023, &fourteen),
        cookie(&v6, KeyEpoch::Zero, 3, &sixteen),
        cookie(&v6, KeyEpoch::One, 40, &light),
    ];
    assert_eq!(cookies, [32497, 55333, 362, 10372, 872]);
}

#[test]
fn a_guess_passes_as_often_as_the_check_has_values() {
    let keys = Keys::new(KeyEpoch::Zero, key(0), Some(key(0x10)));
    let format = CookieLayout::default_of(CookieMode::Timestamp);
    let v4 = tuple("198.51.100.7:40000", "192.0.2.1:443");
    let passed = (0..1 << 16).filter(|c| decode(&v4, &keys, *c, &format).is_some());
    // One cookie for each id and epoch, of 2^16.
    assert_eq!(passed.count(), 2 * 1024);
    // Another connection's cookie is worth no more than a guess.
    let strangers = (1_u16..1025).filter(|port| {
        let other = tuple(&format!("198.51.100.7:{port}"), "192.0.2.1:443");
        let stolen = encode(&v4, &key(0), KeyEpoch::Zero, 5, &format);
        decode(&other, &keys, stolen, &format).is_some()
    });
    let strangers = strangers.count();
    assert!(
        (8..80).contains(&strangers),
        "{strangers} of 1024, 32 expected"
    );
}

#[test]
fn formats_that_cannot_be_are_refused() {
    for (mode, bits, id_bits) in [
        (CookieMode::Timestamp, 7, 3),
        (CookieMode::Timestamp, 21, 10),
        (CookieMode::Timestamp, 16, 0),
        (CookieMode::Timestamp, 16, 11),
        (CookieMode::Light, 11, 8),
        (CookieMode::Light, 10, 10),
    ] {
        assert!(
            CookieLayout::new(mode, bits, id_bits).is_err(),
            "{mode:?} {bits} {id_bits}"
        );
    }
    for mode in [CookieMode::Timestamp, CookieMode::Light] {
        let format = CookieLayout::default_of(mode);
        let again = CookieLayout::new(mode, format.bits(), format.id_bits());
        assert_eq!(again, Ok(format));
    }
}

#[test]
fn keys_are_read_and_never_printed() {
    let text = "000102030405060708090a0b0c0d0e0f";
    assert_eq!(text.parse::<CookieKey>(), Ok(key(0)));
    assert_eq!(key(0).to_hex(), text);
    assert_eq!(format!("{:?}", key(0)), "Key(..)");
    assert_eq!(
        "00".repeat(16).parse::<CookieKey>(),
        Err(CookieKeyError::Zero)
    );
    assert_eq!(
        "+0".repeat(16).parse::<CookieKey>(),
        Err(CookieKeyError::Digits)
    );
    assert_eq!("12".parse::<CookieKey>(), Err(CookieKeyError::Digits));
}

#[test]
fn a_flow_has_the_size_of_the_c_struct() {
    assert_eq!(
        size_of::<EchoFlow>(),
        super::echo::causeway_flow_size() as usize
    );
}

#[test]
fn the_clock_has_the_size_of_the_c_struct() {
    assert_eq!(size_of::<Clock>(), causeway_cookie_clock_size() as usize);
}

/// A server that logs what it sends, and a client that echoes what it has seen.
struct Model {
    clock: Clock,
    unit: u32,
    bits: u32,
    o: u32,
    /// T and O of every segment sent, and the pause that it came after.
    sent: Vec<(u32, u32, usize)>,
    pauses: usize,
}

impl Model {
    fn new(o: u32, t: u32, unit: u32, bits: u32) -> Self {
        Self {
            clock: Clock::start(o, t, unit as u16, bits as u8),
            unit,
            bits,
            o,
            sent: Vec::new(),
            pauses: 0,
        }
    }

    fn mask(&self) -> u32 {
        u32::MAX >> self.bits
    }

    fn period(&self) -> u32 {
        4096.min((self.mask() + 1) / 16)
    }

    fn ahead(&self, t: u32, of: u32) -> i32 {
        ((t.wrapping_sub(of) << self.bits) as i32) >> self.bits
    }

    fn send(&mut self, pause: u32) -> u32 {
        self.o = self.o.wrapping_add(pause);
        let before = self.sent.last().map(|sent| sent.0);
        let t = self.clock.stamp(self.o);
        if pause / self.unit + 1 >= self.period() {
            self.pauses += 1;
        }
        if let Some(before) = before {
            let step = self.ahead(t, before);
            assert!(
                (0..self.period() as i32).contains(&step),
                "T moved by {step}"
            );
        }
        self.sent.push((t, self.o, self.pauses));
        t
    }

    /// The client echoes what was sent `back` segments ago, `rtt` later.
    fn echo(&mut self, back: usize, rtt: u32) {
        let Some(index) = self.sent.len().checked_sub(1 + back) else {
            return;
        };
        let (t, _, pauses) = self.sent[index];
        let now_o = self.o.wrapping_add(rtt);
        let o = self.clock.echo(t, now_o);
        assert!(now_o.wrapping_sub(o) as i32 >= 0, "an echo from the future");
        if self.pauses - pauses > 1 {
            return; // older than both segments: only a bound
        }
        // All segments that carried this T are candidates for the truth.
        let same = self.sent.iter().rev().filter(|sent| sent.0 == t);
        let truths: Vec<u32> = same
            .map(|sent| now_o.wrapping_sub(sent.1))
            .take(64)
            .collect();
        let age = now_o.wrapping_sub(o);
        let (newest, oldest) = (truths[0], truths[truths.len() - 1]);
        assert!(
            age + self.unit > newest && age < oldest + self.unit,
            "age {age}, truth {newest} to {oldest}, back {back}"
        );
    }
}

proptest! {
    #[test]
    fn echoes_are_inverted(
        start in any::<u32>(),
        t in any::<u32>(),
        micros in any::<bool>(),
        bits in prop_oneof![Just(14_u32), Just(16), Just(20)],
        steps in prop::collection::vec(
            (prop_oneof![0_u32..20, 0_u32..64, 65_u32..200_000], 0_usize..3, 0_u32..100), 1..400),
    ) {
        let unit = if micros { 1000 } else { 1 };
        let mut model = Model::new(start, t, unit, bits);
        for (pause, back, rtt) in steps {
            // Within the microsecond clock's signed range.
            let pause = if micros { pause % 60_000 * unit + rtt } else { pause };
            model.send(pause);
            model.echo(back, rtt);
        }
    }
}

proptest! {
    /// Whichever of the two the client has taken, it takes what follows, however often that is
    /// retransmitted.
    #[test]
    fn a_clock_of_an_opening_that_nobody_saw_is_ahead_of_both_it_may_have_had(
        opening_o in any::<u32>(),
        since_ms in prop_oneof![0_u32..5, 0_u32..200_000],
        micros in any::<bool>(),
        bits in prop_oneof![Just(14_u32), Just(16), Just(20)],
        waits_ms in prop::collection::vec(1_u32..30_000, 1..20),
    ) {
        let unit = if micros { 1000 } else { 1 };
        let mut o = opening_o.wrapping_add(since_ms * unit);
        let mut clock = Clock::default();
        causeway_cookie_clock_start_unsure(&mut clock, o, opening_o, unit, bits);
        let with = (opening_o / unit) << bits;
        // At half a ring nobody can tell which is later.
        prop_assume!(with.wrapping_sub((opening_o >> bits) << bits).wrapping_add(1 << 31) >> bits > 2);
        for wait_ms in waits_ms {
            let sent = clock.stamp(o) << bits;
            prop_assert!(sent.wrapping_sub(with) as i32 >= 0, "{sent:x} behind {with:x}");
            prop_assert!(sent.wrapping_sub(opening_o) as i32 > 0, "{sent:x} behind {opening_o:x}");
            o = o.wrapping_add(wait_ms * unit);
        }
    }

    /// Of segments that went out as they were the client sends echoes for a round trip. The first
    /// has its clock begin anew; the next must not take it back.
    #[test]
    fn a_clock_that_begins_behind_an_echo_is_ahead_of_the_next(
        start in any::<u32>(),
        pauses in prop::collection::vec(0_u32..50, 1..500),
    ) {
        let mut o = start;
        let mut clock = Clock::start(o, (o >> 16) + 1, 1, 16);
        for pause in pauses {
            let sent = clock.stamp(o);
            clock.echo(sent, o);
            prop_assert_eq!(causeway_cookie_clock_is_behind(&clock, o), 0);
            o = o.wrapping_add(pause);
        }
        let early = Clock::start(o, (o >> 16).wrapping_sub(1 << 13), 1, 16);
        prop_assert_eq!(causeway_cookie_clock_is_behind(&early, o), 1);
    }
}

#[test]
fn a_client_that_echoes_nothing_is_never_outrun() {
    // Keepalive probes do not renew TS.Recent: ten thousand of them must not carry
    // T to where PAWS takes the next segment for an old one.
    let mut model = Model::new(7, 0, 1, 16);
    let first = model.send(1);
    model.echo(0, 1);
    for _ in 0..10_000 {
        let t = model.send(25_000);
        assert!(model.ahead(t, first) <= 1 << 14);
    }
    // When the client is back, so is the clock.
    let last = model.sent.len() - 1;
    let (t, _, _) = model.sent[last];
    model.echo(0, 3);
    assert!(model.ahead(model.clock.clone().stamp(model.o + 10), t) > 0);
}

#[test]
fn streaming_goes_through_the_wrap() {
    // Three rings of a segment every 7 ms, with a round trip of 50 ms.
    let mut model = Model::new(u32::MAX - 1000, 65_000, 1, 16);
    for _ in 0..3 * 65_536 / 7 {
        model.send(7);
        model.echo(7, 1);
    }
}

#[test]
fn late_stamps_go_back_on_the_same_segment() {
    let mut clock = Clock::start(1000, 5, 1, 16);
    let t = clock.stamp(1010);
    assert_eq!(clock.stamp(1007), t - 3);
    assert_eq!(clock.stamp(1010), t);
    // Not behind the segment's beginning.
    let after_pause = clock.stamp(9000);
    assert_eq!(clock.stamp(8000), after_pause);
}

#[test]
fn a_clock_of_microseconds_that_has_gone_round_is_not_late() {
    let mut clock = Clock::start(1_000_000, 5, 1000, 16);
    let t = clock.stamp(1_500_000);
    clock.echo(t, 1_500_100);
    // After 71.6 minutes less half a second: the client would take an older T for a segment of
    // long ago (PAWS).
    assert_eq!(clock.stamp(1_000_000), t);
}

#[test]
fn bare_acknowledgements_move_the_clock_seldom() {
    use Kind::{Ack, Data, Moves};
    let mut clock = Clock::start(1000, 5, 1, 16);
    let data = clock.stamp_kind(1010, Data);
    assert_eq!(clock.stamp_kind(1011, Ack), data);
    assert_eq!(clock.stamp_kind(1041, Ack), data);
    // After an eighth of a gap one moves it, by all that has passed; data do at once.
    assert_eq!(clock.stamp_kind(1042, Ack), data + 32);
    assert_eq!(clock.stamp_kind(1043, Data), data + 33);
    assert_eq!(clock.stamp_kind(1060, Ack), data + 33);
    assert_eq!(clock.stamp_kind(1061, Moves), data + 51);
    // What is echoed is the time of the one that moved it.
    assert_eq!(clock.echo(data + 33, 1070), 1043);
    // After a pause as well, but for whole periods.
    assert_eq!(clock.stamp_kind(4000, Ack), data + 2990);
    assert_eq!(clock.stamp_kind(4000 + 3 * 4096, Ack), data + 2990);
    assert_eq!(clock.stamp_kind(4001 + 6 * 4096, Ack), data + 2991);
    // In microseconds and on a short ring the same.
    let mut clock = Clock::start(1_000_000, 5, 1000, 20);
    let data = clock.stamp_kind(1_000_000, Moves);
    assert_eq!(clock.stamp_kind(1_007_999, Ack), data);
    assert_eq!(clock.stamp_kind(1_008_000, Ack), data + 8);
}

/// A client that checks as RFC 7323 says (section 5.3), and the server that it talks to.
/// The server learns late what the client echoes, and only from what the client sends.
struct Peers {
    clock: Clock,
    unit: u64,
    bits: u32,
    now_ms: u64,
    period: u32,
    /// T less the time where it moves, modulo the period: as in the SYN-ACK.
    phase: u32,
    sent: Option<u32>,
    recent: u32,
    recent_ms: u64,
    unmoved: u32,
}

impl Peers {
    fn new(now_ms: u64, unit: u64, bits: u32) -> Self {
        let o = (now_ms * unit) as u32;
        let synack = (o / unit as u32) & (u32::MAX >> bits);
        let period = (u32::MAX >> bits >> 4).min(4095) + 1;
        Self {
            clock: Clock::start(
                o.wrapping_add(7 * unit as u32),
                synack,
                unit as u16,
                bits as u8,
            ),
            unit,
            bits,
            now_ms: now_ms + 7,
            period,
            phase: synack.wrapping_sub(now_ms as u32) % period,
            sent: None,
            recent: synack << bits | 1,
            recent_ms: now_ms + 7,
            unmoved: 0,
        }
    }

    /// A segment of the server; `arrives` at the client, or is lost.
    fn send(&mut self, kind: Kind, arrives: bool) {
        let t = self
            .clock
            .stamp_kind((self.now_ms * self.unit) as u32, kind);
        if self.sent.replace(t) == Some(t) {
            self.unmoved += 1; // T must not, or whole periods have passed
        } else {
            let phase = t.wrapping_sub(self.now_ms as u32) % self.period;
            assert_eq!(phase, self.phase, "T does not say when it moved");
        }
        if !arrives {
            return;
        }
        let wire = t << self.bits | 1;
        let age = self.recent.wrapping_sub(wire) as i32;
        let forgotten = self.now_ms - self.recent_ms > 24 * 86_400_000;
        assert!(age <= 0 || forgotten, "PAWS: {age} behind the last");
        (self.recent, self.recent_ms) = (wire, self.now_ms);
    }

    /// A segment of the client; its echo reaches the server.
    fn echo(&mut self) {
        let now_o = (self.now_ms * self.unit) as u32;
        let o = self.clock.echo(self.recent >> self.bits, now_o);
        assert!(now_o.wrapping_sub(o) as i32 >= 0, "an echo from the future");
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// Nothing comes through; the server retransmits, twice as late each time.
    fn outage(&mut self, lasts_ms: u64) {
        let (mut rto, end) = (200, self.now_ms + lasts_ms);
        while self.now_ms + rto < end {
            self.pass(rto);
            self.send(Kind::Moves, false);
            rto = (2 * rto).min(120_000);
        }
        self.pass(rto);
        self.send(Kind::Moves, true);
    }
}

#[test]
fn an_outage_longer_than_the_ring_of_microseconds_leaves_the_clock_right() {
    for unit in [1, 1000] {
        let mut peers = Peers::new(5_000_000, unit, 16);
        for _ in 0..300 {
            peers.pass(60_000);
            peers.send(Kind::Moves, false);
        }
        peers.send(Kind::Moves, true);
        peers.echo();
        peers.pass(50);
        peers.send(Kind::Data, true);
        peers.echo();
    }
}

#[test]
fn thirty_days_of_requests_pauses_and_outages_pass_paws_and_are_dated() {
    // The client's clock ticks every 1, 4 and 10 ms: it pauses and acknowledges by that.
    for (seed, tick) in [(1, 1), (2, 4), (3, 10)] {
        for (unit, bits) in [(1, 16), (1, 20), (1, 9), (1000, 16)] {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
            let mut below = |limit: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % limit
            };
            let start = u64::from(u32::MAX) - 600_000;
            let mut peers = Peers::new(start, unit, bits);
            let (mut exchanges, mut moved) = (0, 0);
            while peers.now_ms < start + 30 * 86_400_000 {
                // From 1 ms to nine hours; a clock of microseconds goes round in 71 minutes.
                let longest = if unit == 1 { 26 } else { 21 };
                let pause = (1_u64 << below(longest)) + below(7);
                peers.pass(pause.next_multiple_of(tick));
                peers.echo();
                if below(3) == 0 {
                    peers.send([Kind::Ack, Kind::ReceivingAck][below(2) as usize], true);
                }
                peers.pass(1 + below(60));
                let before = peers.unmoved;
                match below(40) {
                    0 => peers.outage(1 << below(22)),
                    _ => peers.send(Kind::Data, true),
                }
                moved += u32::from(peers.unmoved == before);
                peers.pass(40_u64.next_multiple_of(tick));
                peers.echo();
                exchanges += 1;
            }
            assert!(exchanges > 400, "{exchanges}");
            assert!(
                moved * 10 > exchanges * 8,
                "{moved} of {exchanges} answers move T"
            );
        }
    }
}

#[test]
fn nothing_that_waits_on_the_receiving_cpu_is_overtaken() {
    use Kind::{Ack, Data, Moves, ReceivingAck};
    for unit in [1, 1000] {
        let start = u32::MAX - 500 * u32::from(unit); // through the wrap
        let at = |ms: u32| start.wrapping_add(ms * u32::from(unit));
        let mut clock = Clock::start(start, 5, unit, 16);
        let first = clock.stamp_kind(at(10), Data);
        // An upload: the receiving CPU acknowledges some, the application's the others.
        for ms in 11..265 {
            assert_eq!(clock.stamp_kind(at(ms), Ack), first);
            assert_eq!(clock.stamp_kind(at(ms), ReceivingAck), first);
            assert_eq!(clock.stamp_kind(at(ms), Data), first);
        }
        // Once in a gap it moves, behind the others of the same CPU.
        assert_eq!(clock.stamp_kind(at(266), Ack), first);
        let moved = clock.stamp_kind(at(266), ReceivingAck);
        assert_eq!(moved, first + 256);
        assert_eq!(clock.stamp_kind(at(266), Ack), moved);
        assert_eq!(clock.echo(moved, at(267)), at(266));
        // A retransmission has an echo of its own.
        let again = clock.stamp_kind(at(269), Moves);
        assert_eq!(again, moved + 3);
        assert_eq!(clock.echo(again, at(270)), at(269));
        // Some milliseconds after the last of the receiving CPU all may move it.
        assert_eq!(clock.stamp_kind(at(269), Data), again);
        assert_eq!(clock.stamp_kind(at(270), Data), again + 1);
        assert_eq!(clock.stamp_kind(at(302), Ack), again + 33);
    }
}

proptest! {
    /// A CPU runs a copy of the clock within its lease, and the copy is lost; the clock goes on.
    #[test]
    fn a_lost_copy_is_never_gone_back_on(
        bits in prop_oneof![Just(14_u32), Just(16), Just(20), Just(22)],
        before in prop::collection::vec((0_u32..5000, any::<bool>()), 0..200),
        lent in prop::collection::vec(0_u32..5000, 0..200),
        after in prop::collection::vec((0_u32..5000, any::<bool>()), 1..100),
    ) {
        let mut model = Model::new(77, 99, 1, bits);
        model.send(1);
        for (pause, echoes) in before {
            model.send(pause);
            if echoes {
                model.echo(0, 1);
            }
        }
        let lease = model.clock.lease();
        let quarter = 1_i32 << (30 - bits);
        let room = model.ahead(lease, model.clock.echoed_t());
        prop_assert!(room <= quarter, "the lease is {room} beyond the last echo");
        let mut copy = model.clock.clone();
        let (mut o, mut newest) = (model.o, model.sent.last().expect("one").0);
        for pause in lent {
            if model.ahead(lease, newest) < model.period() as i32 {
                break;
            }
            o += pause;
            newest = copy.stamp(o);
            prop_assert!(model.ahead(lease, newest) >= 0, "beyond the lease");
        }
        model.clock.resume(o, lease);
        model.o = o;
        // An echo of what the copy sent cannot be recognised, and is not.
        if newest != lease {
            prop_assert_eq!(model.clock.clone().echo(newest, o + 1), 0);
        }
        for (pause, echoes) in after {
            model.o += pause;
            let t = model.clock.stamp(model.o);
            let step = model.ahead(t, newest);
            prop_assert!((0..quarter).contains(&step), "T moved by {step}");
            newest = t;
            if echoes && step > 0 {
                let now = model.o + 3;
                let age = now.wrapping_sub(model.clock.echo(t, now));
                prop_assert!(age <= 3 + pause.max(1), "age {age}");
            }
        }
    }
}
