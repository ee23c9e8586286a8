// SPDX-License-Identifier: Apache-2.0
//! Prints testdata/vectors.csv: connection ids of every algorithm and length, for
//! other implementations to compare with. The numbers are arbitrary and fixed.

use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec};

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn main() {
    println!("config,algorithm,key,server_id,nonce,first_octet,id");
    let mut state = 1u64;
    let mut next = || {
        // Knuth's linear congruential generator; the high bits are good enough here.
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    for block in 5..=19 {
        for which in ["plain", "siphash", "aes"] {
            for server_len in [1, 2, 3, 4, block / 2, block - 4] {
                let octets: [u8; 16] = std::array::from_fn(|_| next());
                let key = CidKey::new(octets);
                let algorithm = match which {
                    "plain" => Algorithm::Plain,
                    "siphash" => Algorithm::SipHash(key),
                    _ => Algorithm::Aes128(key),
                };
                let nonce_len = block - server_len;
                let Ok(config) = CidConfig::new(next() % 7, server_len, nonce_len, algorithm)
                else {
                    continue;
                };
                let server: Vec<u8> = (0..server_len).map(|_| next()).collect();
                let nonce: Vec<u8> = (0..nonce_len).map(|_| next()).collect();
                let id = Codec::new(&config).encode(&server, &nonce, next());
                let Ok(id) = id else { continue };
                println!(
                    "{},{which},{},{},{},{:02x},{id}",
                    config.number(),
                    hex(&octets),
                    hex(&server),
                    hex(&nonce),
                    id[0],
                );
            }
        }
    }
}
