// SPDX-License-Identifier: Apache-2.0
//! Who may use an API from other hosts: tokens, their roles, and how often one may be tried.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::http::Method;
use ring::digest::{SHA256, digest};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::config::{Words as _, octets, or_made_by};
use crate::random;
use crate::words;

words! {
    /// What a token's owner may do; each may what the former may.
    #[derive(PartialOrd, Ord)]
    Role, "role", {
        /// Read.
        Viewer = "viewer",
        /// Drains, maintenance, weights, and moving a connection.
        Operator = "operator",
        /// VIPs, reals and the configuration.
        Admin = "admin",
    }
}

/// The role that an API's routes need.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Needs the role of an operator; else a read needs a viewer's, and any other an admin's.
    pub operators: fn(&Method, &str) -> bool,
    /// Files that hold no data, and are served without a token.
    pub open: &'static [&'static str],
}

impl Rules {
    /// Reads need a viewer's role, all else an admin's.
    pub const PLAIN: Self = Self {
        operators: |_, _| false,
        open: &[],
    };

    /// The role that a request needs.
    pub fn role(&self, method: &Method, path: &str) -> Role {
        match *method {
            Method::GET | Method::HEAD => Role::Viewer,
            _ if (self.operators)(method, path) => Role::Operator,
            _ => Role::Admin,
        }
    }

    pub(crate) fn is_open(&self, method: &Method, path: &str) -> bool {
        matches!(*method, Method::GET | Method::HEAD) && self.open.contains(&path)
    }
}

/// Bytes of a SHA-256.
const DIGEST: usize = 32;
/// Bytes of chance in a token that is made here.
const TOKEN: usize = 32;
/// Longest name.
const NAME_MAX: usize = 64;

/// A digest of any bytes.
pub(crate) type Digest = [u8; DIGEST];

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    let mut out = [0; DIGEST];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// Whose token it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// The tokens of a file: digests alone.
#[derive(Default)]
pub(crate) struct Tokens(Vec<(Digest, Identity)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(_, of)| of))
            .finish()
    }
}

impl Tokens {
    /// Reads lines of name, role and SHA-256. The error is one sentence without the file's name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<(Digest, Identity)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |message: String| format!("line {}: {message}", index + 1);
            let (digest, identity) = entry(line).map_err(wrong)?;
            if let Some((_, other)) = tokens
                .iter()
                .find(|(known, of)| *known == digest || of.name == identity.name)
            {
                return Err(wrong(format!(
                    "{} is there already; each name and each token stands once",
                    other.name
                )));
            }
            tokens.push((digest, identity));
        }
        match tokens.is_empty() {
            true => Err(
                "it holds no token; `causeway token NAME --role viewer --add FILE` makes one"
                    .to_owned(),
            ),
            false => Ok(Self(tokens)),
        }
    }

    /// Whose token it is. Takes as long for every answer.
    pub(crate) fn find(&self, token: &[u8]) -> Option<&Identity> {
        let presented = sha256(token);
        let mut found = u32::MAX;
        for (index, (digest, _)) in (0u32..).zip(&self.0) {
            let same: Choice = digest.ct_eq(&presented);
            found.conditional_assign(&index, same);
        }
        self.0.get(found as usize).map(|(_, identity)| identity)
    }
}

fn entry(line: &str) -> Result<(Digest, Identity), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, role, digest] = words.as_slice() else {
        return Err(
            "write a name, a role and the SHA-256 of the token, as `causeway token` does"
                .to_owned(),
        );
    };
    check_name(name)?;
    let identity = Identity {
        name: (*name).to_owned(),
        role: Role::from_word(role)?,
    };
    let digest = octets(digest);
    let digest =
        digest.ok_or_else(|| format!("a SHA-256 has {} hexadecimal digits", 2 * DIGEST))?;
    Ok((digest, identity))
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "`{}` is not a valid name; use up to {NAME_MAX} of letters, digits and ._-@",
            name.escape_default()
        )),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file of tokens, which is its owner's alone.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| {
        let makes = format!("`causeway token NAME --add {}` makes one", path.display());
        or_made_by(path, format!("cannot be read: {error}"), &makes)
    };
    let about = fs::metadata(path).map_err(unreadable)?;
    if about.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "others than its owner can open it; `chmod 600 {}`",
            path.display()
        ));
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// A new token, and its line of the file.
pub struct NewToken {
    /// What its owner presents.
    pub token: String,
    /// What the file holds of it.
    pub line: String,
}

impl NewToken {
    /// Makes one of 256 bits of chance.
    pub fn make(name: &str, role: Role) -> anyhow::Result<Self> {
        check_name(name).map_err(anyhow::Error::msg)?;
        let bytes: [u8; TOKEN] = random()?;
        let token = format!("cw_{}", to_hex(&bytes));
        let line = format!("{name} {role} {}", to_hex(&sha256(token.as_bytes())));
        Ok(Self { token, line })
    }

    /// Adds its line to a file, which is made if it is not there.
    pub fn add_to(&self, path: &Path) -> anyhow::Result<()> {
        let named = || format!("tokens file {}", path.display());
        let former = match path.exists() {
            true => read(path).map_err(anyhow::Error::msg).with_context(named)?,
            false => String::new(),
        };
        let mut text = former.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text += &self.line;
        text.push('\n');
        Tokens::parse(&text)
            .map_err(anyhow::Error::msg)
            .with_context(named)?;
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .with_context(named)?;
        let length = file.metadata().with_context(named)?.len();
        let added = file.write_all(&text.as_bytes()[former.len()..]);
        let added = added.and_then(|()| file.sync_all());
        if added.is_err() {
            // With half a line the file would be refused, and all tokens with it.
            file.set_len(length).with_context(named)?;
        }
        added.with_context(named)
    }
}

/// Wrong tokens that a client may present in [`WINDOW`]. After that none of it is looked at.
const TRIES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Clients that are remembered.
const CLIENTS_MAX: usize = 1024;

/// Addresses that sent wrong tokens recently.
#[derive(Default)]
pub(crate) struct Failures(HashMap<IpAddr, (u32, Instant)>);

impl Failures {
    /// How long a client has to wait before its token is looked at; `None`: not at all.
    pub(crate) fn wait(&self, client: IpAddr, now: Instant) -> Option<Duration> {
        let (count, since) = self.0.get(&key(client))?;
        let left = (*since + WINDOW).checked_duration_since(now)?;
        (*count >= TRIES).then_some(left)
    }

    /// Notes a wrong token; whether it is to be logged: the first of a window, and the last that
    /// is looked at.
    pub(crate) fn note(&mut self, client: IpAddr, now: Instant) -> bool {
        let client = key(client);
        if !self.0.contains_key(&client) && self.0.len() >= CLIENTS_MAX {
            self.0.retain(|_, (_, since)| *since + WINDOW > now);
            let oldest = self.0.iter().min_by_key(|(_, (_, since))| *since);
            let oldest = oldest.map(|(client, _)| *client);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= CLIENTS_MAX) {
                self.0.remove(&oldest);
            }
        }
        let (count, since) = self.0.entry(client).or_insert((0, now));
        if *since + WINDOW <= now {
            (*count, *since) = (0, now);
        }
        *count += 1;
        *count == 1 || *count == TRIES
    }
}

/// One client: an address, or the network that a host of IPv6 chooses its addresses from.
pub(crate) fn key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: &[&str]) -> Result<Tokens, String> {
        Tokens::parse(&lines.join("\n"))
    }

    #[test]
    fn a_token_is_found_by_its_digest() {
        let made = NewToken::make("alice", Role::Operator).unwrap();
        let other = NewToken::make("prometheus", Role::Viewer).unwrap();
        assert_ne!(made.token, other.token);
        let tokens = file(&["# who may what", &other.line, "", &made.line]).unwrap();
        let found = tokens.find(made.token.as_bytes()).unwrap();
        assert_eq!((found.name.as_str(), found.role), ("alice", Role::Operator));
        assert_eq!(
            tokens.find(other.token.as_bytes()).unwrap().name,
            "prometheus"
        );
        for wrong in ["", "cw_", &made.line, &made.token.to_uppercase()] {
            assert_eq!(tokens.find(wrong.as_bytes()), None, "{wrong}");
        }
        // As sha256sum(1) has it.
        let known = "ab viewer ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(file(&[known]).unwrap().find(b"abc").unwrap().name, "ab");
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
    }

    #[test]
    fn each_fault_of_a_file_is_one_sentence() {
        let digest = "a5".repeat(32);
        let line = |start: &str| format!("{start} {digest}");
        for (lines, expected) in [
            (vec![String::new()], "it holds no token"),
            (
                vec!["alice admin".to_owned()],
                "line 1: write a name, a role",
            ),
            (vec![line("alice root")], "line 1: "),
            (
                vec![line("al/ice admin")],
                "line 1: `al/ice` is not a valid name",
            ),
            (vec!["alice admin a5".to_owned()], "64 hexadecimal digits"),
            (
                vec![format!("alice admin {}", "xy".repeat(32))],
                "64 hexadecimal digits",
            ),
            (
                vec![format!("alice admin {}", "+f".repeat(32))],
                "64 hexadecimal digits",
            ),
            (
                vec![line("alice admin"), line("bob viewer")],
                "line 2: alice is there already",
            ),
        ] {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let error = file(&lines).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_file_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        for (name, role) in [("alice", Role::Admin), ("bob", Role::Viewer)] {
            NewToken::make(name, role).unwrap().add_to(&path).unwrap();
        }
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let text = read(&path).unwrap();
        assert_eq!(Tokens::parse(&text).unwrap().0.len(), 2, "{text}");
        let twice = NewToken::make("bob", Role::Admin).unwrap().add_to(&path);
        assert!(format!("{:#}", twice.unwrap_err()).contains("bob is there already"));
        assert_eq!(read(&path).unwrap(), text);
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(read(&path).unwrap_err().contains("chmod 600"), "{mode:o}");
        }
    }

    #[test]
    fn a_client_that_guesses_waits() {
        let start = Instant::now();
        let mut failures = Failures::default();
        let client: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let other: IpAddr = "192.0.2.1".parse().unwrap();
        let logged = (0..20).filter(|_| failures.note(client, start)).count();
        assert_eq!(logged, 2);
        assert_eq!(failures.wait(neighbour, start), Some(WINDOW));
        assert_eq!(failures.wait(other, start), None);
        let later = start + WINDOW + Duration::from_millis(1);
        assert_eq!(failures.wait(client, later), None);
        assert!(failures.note(client, later));
        assert_eq!(failures.wait(client, later), None);
    }

    #[test]
    fn as_many_clients_are_remembered_as_there_is_room_for() {
        let start = Instant::now();
        let mut failures = Failures::default();
        for number in 0..2 * CLIENTS_MAX as u32 {
            let client = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            failures.note(client, start + Duration::from_micros(number.into()));
        }
        assert_eq!(failures.0.len(), CLIENTS_MAX);
    }
}
