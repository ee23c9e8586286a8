// SPDX-License-Identifier: Apache-2.0
//! The keys file of a tunnel, the same at both ends.

use std::collections::BTreeMap;
use std::path::Path;

use causeway_bifrost::{TunnelKey, TunnelKeys};
use causeway_service::config::{octets, read_secrets};
use serde::Deserialize;

const MAKE: &str = "make one with `openssl rand -hex 32`";
/// What to do if there is no file.
pub(super) const MAKES_FILE: &str = "write `send = 1`, `[keys]` and `1 = \"KEY\"` into it, a line each, with KEY from `openssl rand -hex 32`, and copy it to the other end";

/// The file as it is written: `send = 1`, and below `[keys]` secrets by their id.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    send: u8,
    keys: BTreeMap<String, String>,
}

/// Reads a keys file. The error is one sentence without the file's name.
pub(super) fn read(path: &Path) -> Result<TunnelKeys, String> {
    parse(&read_secrets(path)?)
}

fn parse(text: &str) -> Result<TunnelKeys, String> {
    let raw: RawKeys = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let mut keys = Vec::new();
    for (id, secret) in &raw.keys {
        let id = id.parse().ok().filter(|id| *id > 0);
        let id: u8 = id.ok_or("ids of keys are 1 to 255")?;
        keys.push(TunnelKey {
            id,
            secret: secret_of(secret).map_err(|error| format!("key {id}: {error}"))?,
        });
    }
    if keys.len() > 2 {
        return Err("there are more than two keys; remove those that no end sends with".to_owned());
    }
    let (mut send, mut also): (Vec<TunnelKey>, Vec<TunnelKey>) =
        keys.into_iter().partition(|key| key.id == raw.send);
    match send.pop() {
        Some(key) => Ok(TunnelKeys {
            send: Some(key),
            also: also.pop(),
        }),
        None => Err(format!(
            "key {0} is missing, which send = {0} names",
            raw.send
        )),
    }
}

fn secret_of(text: &str) -> Result<[u8; 32], String> {
    let secret = octets(text);
    let secret = secret.ok_or_else(|| format!("a key is 64 hexadecimal digits; {MAKE}"))?;
    match secret == [0; 32] {
        true => Err(format!("a key of zeros is not secret; {MAKE}")),
        false => Ok(secret),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_good_file_gives_its_keys() {
        let (old, new) = ("01".repeat(32), "fe".repeat(32));
        let text = format!("send = 2\n[keys]\n1 = \"{old}\"\n2 = \"{new}\"\n");
        let keys = parse(&text).unwrap();
        assert_eq!(keys.send.unwrap().secret, [0xfe; 32]);
        assert_eq!(keys.also.unwrap().id, 1);
    }

    #[test]
    fn a_file_that_every_user_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let text = format!("send = 1\n[keys]\n1 = \"{}\"\n", "ab".repeat(32));
        fs::write(&file, text).unwrap();
        for (mode, good) in [(0o600, true), (0o640, true), (0o644, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&file).is_ok(), good, "{mode:o}");
        }
    }

    #[test]
    fn a_bad_file_says_why() {
        let good = "ab".repeat(32);
        for (text, expected) in [
            (
                format!("send = 1\n[keys]\n2 = \"{good}\""),
                "key 1 is missing, which send = 1 names",
            ),
            (
                format!("send = 1\n[keys]\n0 = \"{good}\""),
                "ids of keys are 1 to 255",
            ),
            (
                "send = 1\n[keys]\n1 = \"ab\"".to_owned(),
                "key 1: a key is 64 hexadecimal digits; make one with `openssl rand -hex 32`",
            ),
            (
                format!("send = 1\n[keys]\n1 = \"{}\"", "+f".repeat(32)),
                "key 1: a key is 64 hexadecimal digits; make one with `openssl rand -hex 32`",
            ),
            (
                format!("send = 1\n[keys]\n1 = \"{}\"", "00".repeat(32)),
                "key 1: a key of zeros is not secret; make one with `openssl rand -hex 32`",
            ),
            (
                format!("send = 1\n[keys]\n1 = \"{good}\"\n2 = \"{good}\"\n3 = \"{good}\""),
                "there are more than two keys; remove those that no end sends with",
            ),
        ] {
            assert_eq!(parse(&text).unwrap_err(), expected);
        }
        assert!(parse("").is_err());
    }
}
