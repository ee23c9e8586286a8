// SPDX-License-Identifier: Apache-2.0
//! Files with QUIC connection ids.

use std::io::Write as _;
use std::path::Path;

use causeway_quic_lb::Algorithm;
use tempfile::NamedTempFile;

use super::*;

const KEY: &str = "8f95f09245765f80256934e50c66207f";

fn key_file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{text}").unwrap();
    file
}

/// A file with these keys of the VIP and these of its real; KEYFILE is a good key's.
fn parse(vip: &str, real: &str) -> Result<BalancerConfig, String> {
    let key = key_file(KEY);
    let vip = vip.replace("KEYFILE", &key.path().display().to_string());
    let text = format!(
        "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 443\n{vip}\n\
         [[vip.real]]\naddress = \"10.0.0.1\"\n{real}\n"
    );
    BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|errors| errors.to_string())
}

#[test]
fn configurations_have_defaults() {
    let two = "protocol = \"udp\"\nquic_cid = [{ key = \"KEYFILE\" }, { config = 6, \
               algorithm = \"plain\", server_id_length = 1, nonce_length = 4 }]";
    let config = parse(two, "id = 255").unwrap();
    let [first, second] = &config.vips[0].quic[..] else {
        panic!("two configurations")
    };
    let at = "protocol = \"udp\"\nquic_cid = [{ key = { file = \"KEYFILE\" } }]";
    assert_eq!(
        parse(at, "").unwrap().vips[0].quic[..],
        config.vips[0].quic[..1]
    );
    let key = KEY.parse().unwrap();
    let default = causeway_quic_lb::CidConfig::new(0, 2, 8, Algorithm::SipHash(key));
    assert_eq!(*first.config(), default.unwrap());
    assert_eq!((second.config().number(), second.config().id_len()), (6, 6));
    assert_eq!(quic::ids(&config.vips[0].quic), 256);
    assert_eq!(config.vips[0].reals[0].id, Some(255));
    // A change by request does not name them, and takes nothing away.
    let change = serde_json::json!({ "scheduler": "hash" });
    let changed = changed_vip(&config.vips[0], &change).unwrap();
    assert_eq!(changed.scheduler, Scheduler::Hash);
    assert_eq!(changed.quic, config.vips[0].quic);
    assert_eq!(changed.reals, config.vips[0].reals);
}

#[test]
fn faults_are_sentences() {
    let udp = |table: &str| format!("protocol = \"udp\"\nquic_cid = [{table}]");
    let short = key_file("8f95");
    let of_file = |file: &NamedTempFile| format!("{{ key = \"{}\" }}", file.path().display());
    for (vip, real, wanted) in [
        (
            "quic_cid = [{ algorithm = \"plain\" }]".to_owned(),
            "",
            "quic_cid needs protocol = \"udp\"",
        ),
        (udp("{}"), "", "\"siphash\" needs a key"),
        (
            udp("{ algorithm = \"plain\", key = \"KEYFILE\" }"),
            "",
            "takes no key",
        ),
        (udp("{ key = \"quic.key\" }"), "", "not an absolute path"),
        (udp("{ key = \"/nowhere/k\" }"), "", "cannot be read"),
        (udp(&of_file(&short)), "", "a key is 32 hexadecimal digits"),
        (
            udp("{ key = { env = \"CAUSEWAY_TEST_UNSET\" } }"),
            "",
            "environment variable CAUSEWAY_TEST_UNSET: is not set",
        ),
        (
            udp("{ key = \"KEYFILE\", config = 7 }"),
            "",
            "numbered from 0 to 6",
        ),
        (
            udp("{ key = \"KEYFILE\", nonce_length = 9 }"),
            "",
            "even number of octets",
        ),
        (
            udp("{ algorithm = \"plain\", server_id_length = 5 }"),
            "",
            "at most 4 octets",
        ),
        (
            udp("{ key = \"KEYFILE\" }, { key = \"KEYFILE\" }"),
            "",
            "two quic_cid with config = 0",
        ),
        (
            udp("{ algorithm = \"plain\", server_id_length = 1 }"),
            "id = 256",
            "use 0 to 255",
        ),
        (
            udp("{ algorithm = \"rot13\" }"),
            "",
            "unknown algorithm of connection ids",
        ),
    ] {
        let message = parse(&vip, real).expect_err(&vip);
        assert!(message.contains(wanted), "{vip}: {message}");
    }
}
