// SPDX-License-Identifier: Apache-2.0
//! testdata/vectors.csv, which the Go implementation in dev/lab/go/quic/quiclb and
//! the data plane's decoder are held to as well. `cargo run --example vectors` prints it.

use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec};

fn octets(hex: &str) -> Vec<u8> {
    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digit).collect()
}

#[test]
fn vectors_hold() {
    let mut rows = 0;
    for row in include_str!("../testdata/vectors.csv").lines().skip(1) {
        let [number, algorithm, key, server, nonce, first, id] =
            row.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("not seven columns: {row}");
        };
        let key: CidKey = key.parse().expect("a key");
        let algorithm = match algorithm {
            "plain" => Algorithm::Plain,
            "siphash" => Algorithm::SipHash(key),
            "aes" => Algorithm::Aes128(key),
            other => panic!("{other}"),
        };
        let (server, nonce, id) = (octets(server), octets(nonce), octets(id));
        let number = number.parse().expect("a number");
        let config = CidConfig::new(number, server.len() as u8, nonce.len() as u8, algorithm);
        let codec = Codec::new(&config.expect("valid"));
        let random = octets(first)[0];
        let encoded = codec.encode(&server, &nonce, random).expect("lengths fit");
        assert_eq!(encoded.as_ref(), id, "{row}");
        let decoded = codec.decode(&id).expect("routable");
        assert_eq!(
            (decoded.server_id(), decoded.nonce()),
            (&server[..], &nonce[..])
        );
        rows += 1;
    }
    assert!(rows > 150, "only {rows} vectors");
}
