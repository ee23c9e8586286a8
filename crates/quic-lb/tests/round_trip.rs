// SPDX-License-Identifier: Apache-2.0
//! Every configuration takes out what it put in.

use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec, DecodeError};
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        number in 0u8..7,
        server_len in 1u8..16,
        nonce_len in 4u8..19,
        which in 0u8..3,
        key: [u8; 16],
        bytes: [u8; 19],
        random: u8,
        more in 0usize..4,
    ) {
        let algorithm = match which {
            0 => Algorithm::Plain,
            1 => Algorithm::SipHash(CidKey::new(key)),
            _ => Algorithm::Aes128(CidKey::new(key)),
        };
        let Ok(config) = CidConfig::new(number, server_len, nonce_len, algorithm) else {
            return Ok(());
        };
        let codec = Codec::new(&config);
        let (server, rest) = bytes.split_at(usize::from(server_len));
        let nonce = &rest[..usize::from(nonce_len)];
        let id = codec.encode(server, nonce, random).expect("lengths fit");
        prop_assert_eq!(id.len(), config.id_len());
        prop_assert_eq!(id[0], number << 5 | random & 0x1f);

        let mut longer = id.to_vec();
        longer.resize(id.len() + more, random);
        let decoded = codec.decode(&longer).expect("routable");
        prop_assert_eq!(decoded.server_id(), server);
        prop_assert_eq!(decoded.nonce(), nonce);

        let short = &id[..id.len() - 1];
        prop_assert_eq!(codec.decode(short), Err(DecodeError::TooShort(short.len())));
        longer[0] ^= 0x20;
        prop_assert_eq!(
            codec.decode(&longer),
            Err(DecodeError::OtherConfig(number ^ 1))
        );
    }
}
