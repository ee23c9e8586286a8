// SPDX-License-Identifier: Apache-2.0
//! The vectors of draft-ietf-quic-load-balancers-21, appendix B, and the example of
//! section 5.4.2.4; all encode the length.
//!
//! Two vectors of the appendix are misprinted: the second unencrypted one has a nonce
//! and an id of an odd number of digits, and is left out; the last encrypted one has
//! the first octet of configuration 0 for configuration 3, and is compared without it.

use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec};

fn octets(hex: &str) -> Vec<u8> {
    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn check(number: u8, algorithm: Algorithm, server_id: &str, nonce: &str, id: &str, from: usize) {
    let (server_id, nonce, id) = (octets(server_id), octets(nonce), octets(id));
    let config = CidConfig::new(number, server_id.len() as u8, nonce.len() as u8, algorithm)
        .expect("valid")
        .with_encoded_length();
    let codec = Codec::new(&config);
    let encoded = codec.encode(&server_id, &nonce, 0xff).expect("lengths fit");
    assert_eq!(encoded[from..], id[from..]);
    let decoded = codec.decode(&encoded).expect("routable");
    assert_eq!(
        (decoded.server_id(), decoded.nonce()),
        (&server_id[..], &nonce[..])
    );
}

#[test]
fn unencrypted() {
    check(
        0,
        Algorithm::Plain,
        "c4605e",
        "4504cc4f",
        "07c4605e4504cc4f",
        0,
    );
}

#[test]
fn encrypted() {
    let key: CidKey = "8f95f09245765f80256934e50c66207f".parse().expect("a key");
    let aes = Algorithm::Aes128(key);
    check(0, aes, "ed793a", "ee080dbf", "0720b1d07b359d3c", 0);
    let id = "2fcc381bc74cb4fbad2823a3d1f8fed2";
    check(1, aes, "ed793a51d49b8f5fab65", "ee080dbf48", id, 0);
    let id = "504dd2d05a7b0de9b2b9907afb5ecf8cc3";
    check(2, aes, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", id, 0);
    let id = "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc";
    check(3, aes, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", id, 1);
}

#[test]
fn example_of_the_text() {
    let key: CidKey = "fdf726a9893ec05c0632d3956680baf0".parse().expect("a key");
    check(
        0,
        Algorithm::Aes128(key),
        "31441a",
        "9c69c275",
        "0767947d29be054a",
        0,
    );
}
