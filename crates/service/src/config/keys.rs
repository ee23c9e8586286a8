// SPDX-License-Identifier: Apache-2.0
//! The keys file: keys of cookies, which balancers and servers share, and what keys of
//! reports follow from. Balancers hold the secret of all servers' reports, and each server
//! its own part.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use causeway_core::agent_report::{EpochSecrets, ReportKeys, ReportSecrets};
use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use serde::Deserialize;

use super::error::Faults;
use super::spanned::Spanned;
use super::values::text;
use crate::files::{FileRights, replace_beside};

const SERVERS_OWN: &str = "it is a server's own part; take the balancers' file";

/// What a keys file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct KeysFile {
    pub cookies: Keys,
    /// Of reports; a balancers' file of before they had keys of their own has none.
    pub reports: Option<ReportKeys>,
    /// Whether the key that is not current is to become so; else it is the former one.
    pub is_prepared: bool,
    /// Which key of all that there have been is current: a switch adds one.
    pub number: u64,
}

/// The number of a first key, and of the current one of a file that has none: so that a former
/// one has a number, too.
const FIRST_NUMBER: u64 = 2;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeysFile {
    current: u8,
    number: Option<u64>,
    #[serde(default)]
    prepared: bool,
    key0: Option<String>,
    key1: Option<String>,
    reports0: Option<String>,
    reports1: Option<String>,
    #[serde(default)]
    server: BTreeMap<IpAddr, RawServerSecrets>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServerSecrets {
    reports0: Option<String>,
    reports1: Option<String>,
}

impl KeysFile {
    /// A balancers' file of one epoch.
    pub fn new(key: CookieKey, reports: CookieKey) -> Self {
        let current = KeyEpoch::Zero;
        Self {
            cookies: Keys::new(current, key, None),
            reports: Some(ReportKeys {
                current,
                secrets: ReportSecrets::Root([Some(reports), None]),
            }),
            is_prepared: false,
            number: FIRST_NUMBER,
        }
    }

    /// Its keys of cookies with their numbers, by which a fleet names them.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, CookieKey)> {
        let current = self.cookies.current();
        let other = match self.is_prepared {
            true => self.number + 1,
            false => self.number.saturating_sub(1),
        };
        let keys = [(self.number, current), (other, current.other())];
        let cookies = self.cookies;
        let key = move |(number, epoch)| Some((number, *cookies.get(epoch)?));
        keys.into_iter().filter_map(key)
    }

    /// Reads a file. The error is one sentence without the file's name.
    pub fn read(path: &Path) -> Result<Self, String> {
        super::read_secrets(path)?.parse()
    }

    /// Writes a file for its owner alone, in one step.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        replace_beside(path, self.to_text().as_bytes(), FileRights::PRIVATE)
    }

    /// The file's text: all its secrets.
    pub fn to_text(&self) -> String {
        let line = |name: &str, epoch: usize, key: Option<&CookieKey>| {
            let key = key.map(|key| format!("{name}{epoch} = \"{}\"\n", key.to_hex()));
            key.unwrap_or_default()
        };
        let reports = |secrets: &EpochSecrets| {
            let each = secrets.iter().enumerate();
            each.map(|(epoch, key)| line("reports", epoch, key.as_ref()))
                .collect::<String>()
        };
        let mut text = "# Keys of Causeway's cookies, the same on all balancers and servers, and of reports.\n\
             # Secret. docs/how-to/keep-connections.md tells how they get where and are replaced.\n"
            .to_owned();
        text += &format!("current = {}\n", self.cookies.current().index());
        text += &format!("number = {}\n", self.number);
        if self.is_prepared {
            text += "prepared = true\n";
        }
        for epoch in KeyEpoch::ALL {
            text += &line("key", epoch.index() as usize, self.cookies.get(epoch));
        }
        match self.reports.as_ref().map(|reports| &reports.secrets) {
            None => {}
            Some(ReportSecrets::Root(root)) => text += &reports(root),
            Some(ReportSecrets::Own(own)) => {
                for (address, secrets) in own {
                    text += &format!("\n[server.\"{address}\"]\n{}", reports(secrets));
                }
            }
        }
        text
    }

    /// What a server that balancers know by these addresses is to have of a balancers' file.
    ///
    /// # Errors
    /// Why there is none, as a sentence without the file's name.
    pub fn for_server(&self, addresses: &[IpAddr]) -> Result<Self, String> {
        let reports = balancers_own(self)?;
        Ok(Self {
            reports: Some(reports.for_server(addresses)),
            ..self.clone()
        })
    }

    /// The first step of a rotation: the epoch that is not current gets the first two of
    /// `new` for cookies and reports. Balancers and servers must have them before the next.
    /// The third is for reports of the current epoch, should it have none.
    ///
    /// # Errors
    /// If it is not that step's turn.
    pub fn prepare(&self, new: [CookieKey; 3]) -> Result<Self, String> {
        let (current, other) = (self.cookies.current(), self.cookies.current().other());
        let number = other.index();
        if self.is_prepared {
            return Err(format!(
                "epoch {number} has a new key already, which other machines may know; `--switch` is the next step"
            ));
        }
        if self.cookies.get(other).is_some() {
            return Err(format!(
                "epoch {number} holds the key of connections from before the last switch, which would break; when `causeway cookie show` counts no more packets of epoch{number}, take it away by `--retire`"
            ));
        }
        let former = self.root()?;
        let mut root = former.map(|secret| Some(secret.unwrap_or(new[2])));
        root[number as usize] = Some(new[1]);
        Ok(self.with(current, Some(new[0]), root, true))
    }

    /// The second step: new connections and reports get the other epoch.
    ///
    /// # Errors
    /// If it is not that step's turn.
    pub fn switch(&self) -> Result<Self, String> {
        let current = self.cookies.current();
        let Some(key) = self
            .cookies
            .get(current.other())
            .filter(|_| self.is_prepared)
        else {
            return Err("there is no new key to switch to; begin with `--prepare`".to_owned());
        };
        self.root()?;
        let former = self.cookies.get(current).copied();
        let reports = self.reports.clone().map(|reports| ReportKeys {
            current: current.other(),
            ..reports
        });
        Ok(Self {
            cookies: Keys::new(current.other(), *key, former),
            reports,
            is_prepared: false,
            number: self.number + 1,
        })
    }

    /// The third step: the former key goes, and with it connections that still have it.
    ///
    /// # Errors
    /// If it is not that step's turn.
    pub fn retire(&self) -> Result<Self, String> {
        let current = self.cookies.current();
        if self.is_prepared {
            return Err(
                "the key that is not current is the new one; `--switch` is the next step"
                    .to_owned(),
            );
        }
        if self.cookies.get(current.other()).is_none() {
            return Err("there is no former key; begin with `--prepare`".to_owned());
        }
        let mut root = self.root()?;
        root[current.other().index() as usize] = None;
        Ok(self.with(current, None, root, false))
    }

    fn with(
        &self,
        current: KeyEpoch,
        other: Option<CookieKey>,
        root: EpochSecrets,
        is_prepared: bool,
    ) -> Self {
        let mut cookies = self.cookies;
        if let Some(key) = self.cookies.get(current) {
            cookies = Keys::new(current, *key, other);
        }
        let has_some = root != EpochSecrets::default();
        let secrets = ReportSecrets::Root(root);
        Self {
            cookies,
            reports: has_some.then_some(ReportKeys { current, secrets }),
            is_prepared,
            number: self.number,
        }
    }

    /// What the reports of all servers follow from: of a balancers' file, the only one that
    /// is rotated.
    fn root(&self) -> Result<EpochSecrets, String> {
        match self.reports.as_ref().map(|reports| &reports.secrets) {
            None => Ok(EpochSecrets::default()),
            Some(ReportSecrets::Root(root)) => Ok(*root),
            Some(ReportSecrets::Own(_)) => Err(SERVERS_OWN.to_owned()),
        }
    }
}

fn balancers_own(file: &KeysFile) -> Result<ReportKeys, String> {
    match &file.reports {
        None => Err(
            "it has no keys of reports; `causeway cookie rotate --prepare` on it adds them"
                .to_owned(),
        ),
        Some(reports) if !reports.are_the_balancers() => Err(SERVERS_OWN.to_owned()),
        Some(reports) => Ok(reports.clone()),
    }
}

/// The keys of reports of a file, for a balancer.
///
/// # Errors
/// Why there are none, as a sentence with the file's name.
pub fn report_keys_of_balancer(path: &Path, file: &KeysFile) -> Result<ReportKeys, String> {
    let named = |error| format!("keys file {}: {error}", path.display());
    balancers_own(file).map_err(named)
}

/// The keys of reports of a file, for a server that balancers know by these addresses.
///
/// # Errors
/// Why there are none, as a sentence with the file's name.
pub fn report_keys_of_server<'a>(
    path: &Path,
    file: &KeysFile,
    addresses: impl IntoIterator<Item = &'a IpAddr>,
) -> Result<ReportKeys, String> {
    let make = |addresses: &str| {
        format!(
            "keys file {}: it has no key for this server's reports; make its file on a balancer by `causeway cookie server-keys {addresses}`",
            path.display()
        )
    };
    let addresses: Vec<IpAddr> = addresses.into_iter().copied().collect();
    let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let reports = file.reports.clone().ok_or_else(|| make(&words.join(" ")))?;
    let knows = |address: &IpAddr| reports.of_server(*address, reports.current).is_some();
    match addresses.iter().all(knows) {
        true => Ok(reports),
        false => Err(make(&words.join(" "))),
    }
}

impl FromStr for KeysFile {
    /// A sentence without the file's name.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let raw: RawKeysFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let key = |name: &str, text: Option<String>| match text {
            None => Ok(None),
            Some(text) => CookieKey::from_str(&text)
                .map(Some)
                .map_err(|error| format!("{name}: {error}")),
        };
        let (zero, one) = (key("key0", raw.key0)?, key("key1", raw.key1)?);
        let (current, wanted, other) = match raw.current {
            0 => (KeyEpoch::Zero, zero, one),
            1 => (KeyEpoch::One, one, zero),
            n => return Err(format!("current = {n} is not a valid epoch; use 0 or 1")),
        };
        let number = raw.number.unwrap_or(FIRST_NUMBER + u64::from(raw.current));
        if number & 1 != u64::from(raw.current) || number == 0 || number >= 1 << 62 {
            return Err(format!(
                "number = {number} is not a valid number for a key of epoch {}; take the file of another balancer, or leave the line out on all",
                raw.current
            ));
        }
        let missing = format!("key{0} is missing, which current = {0} names", raw.current);
        let secrets = |zero, one| Ok::<_, String>([key("reports0", zero)?, key("reports1", one)?]);
        let root = secrets(raw.reports0, raw.reports1)?;
        let mut own = BTreeMap::new();
        for (address, of) in raw.server {
            own.insert(address, secrets(of.reports0, of.reports1)?);
        }
        let secrets = match (root == EpochSecrets::default(), own.is_empty()) {
            (true, true) => None,
            (false, true) => Some(ReportSecrets::Root(root)),
            (true, false) => Some(ReportSecrets::Own(own)),
            (false, false) => {
                return Err("it has the balancers' keys of reports and a server's; a server has none but its own".to_owned());
            }
        };
        Ok(Self {
            cookies: Keys::new(current, wanted.ok_or(missing)?, other),
            reports: secrets.map(|secrets| ReportKeys { current, secrets }),
            is_prepared: raw.prepared && other.is_some(),
            number,
        })
    }
}

/// What makes the balancers' keys file.
pub const BALANCERS_KEYS: &str = "`causeway cookie new-keys` makes one";
/// What makes a server's keys file.
pub const SERVERS_KEYS: &str =
    "`causeway cookie server-keys ADDRESS` on a balancer, or `causeway agent join`, makes it";

/// The keys that a file names; a fault at that place if they cannot be read, with `makes` if
/// there is no file.
pub fn keys_of(
    place: Option<&Spanned<String>>,
    makes: &str,
    faults: &mut Faults<'_>,
) -> Option<(PathBuf, KeysFile)> {
    text(place, faults, |path| {
        let path = super::absolute_path(path)?;
        let keys = KeysFile::read(&path).map_err(|error| {
            let error = super::or_made_by(&path, error, makes);
            format!("keys file {}: {error}", path.display())
        })?;
        Ok((path, keys))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f";

    const NEW: [char; 3] = ['3', '4', '5'];

    fn key(digit: char) -> CookieKey {
        digit.to_string().repeat(32).parse().expect("a key")
    }

    fn balancers() -> KeysFile {
        KeysFile::new(key('1'), key('2'))
    }

    #[test]
    fn a_file_is_written_for_its_owner_and_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys");
        let prepared = balancers().prepare(NEW.map(key)).expect("the first step");
        let servers: Vec<IpAddr> = ["10.0.0.1", "2001:db8::1"]
            .map(|of| of.parse().expect("an address"))
            .to_vec();
        let server = prepared.for_server(&servers).expect("a server's");
        for file in [
            balancers(),
            prepared.clone(),
            prepared.switch().expect("the second"),
            server,
        ] {
            file.write(&path).expect("written");
            assert_eq!(KeysFile::read(&path), Ok(file));
            let mode = fs::metadata(&path).expect("the file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 1);
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("permissions");
        let error = KeysFile::read(&path).expect_err("a file that every user can read");
        let mend = format!("`chmod o= {}`", path.display());
        assert!(error.contains(&mend), "{error}");
        let error = KeysFile::read(dir.path()).expect_err("a directory");
        assert_eq!(error, "is a directory; name a regular file");
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (text, expected) in [
            (
                "current = 0\n".to_owned(),
                "key0 is missing, which current = 0 names",
            ),
            (
                "current = 2\n".to_owned(),
                "current = 2 is not a valid epoch; use 0 or 1",
            ),
            (
                format!("current = 0\nnumber = 3\nkey0 = \"{KEY}\"\n"),
                "number = 3 is not a valid number for a key of epoch 0",
            ),
            (
                "current = 1\nkey1 = \"12\"\n".to_owned(),
                "key1: a key is 32 hexadecimal digits",
            ),
            (
                "current = 1\nkey2 = \"12\"\n".to_owned(),
                "unknown field `key2`",
            ),
            (
                format!(
                    "current = 0\nkey0 = \"{KEY}\"\nreports0 = \"{KEY}\"\n[server.\"10.0.0.1\"]\nreports0 = \"{KEY}\"\n"
                ),
                "a server has none but its own",
            ),
        ] {
            let error = text.parse::<KeysFile>().expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_rotation_goes_step_by_step_and_no_other_way() {
        let new = NEW.map(key);
        let refused = |outcome: Result<KeysFile, String>, expected: &str| {
            let error = outcome.expect_err(expected);
            assert!(error.contains(expected), "{error}");
        };
        let first = balancers();
        refused(first.switch(), "begin with `--prepare`");
        refused(first.retire(), "there is no former key");
        let prepared = first.prepare(new).expect("the first step");
        refused(prepared.prepare(new), "`--switch` is the next step");
        refused(prepared.retire(), "`--switch` is the next step");
        let old = [KeyEpoch::Zero, KeyEpoch::One].map(|epoch| prepared.cookies.get(epoch).copied());
        let switched = prepared.switch().expect("the second step");
        assert_eq!(switched.cookies.current(), KeyEpoch::One);
        // A key keeps its number: a fleet names it by that.
        let numbers = |file: &KeysFile| file.numbered().collect::<Vec<_>>();
        assert_eq!(numbers(&first), [(2, key('1'))]);
        assert_eq!(numbers(&prepared), [(2, key('1')), (3, key('3'))]);
        assert_eq!(numbers(&switched), [(3, key('3')), (2, key('1'))]);
        assert_eq!(
            switched.reports.as_ref().map(|of| of.current),
            Some(KeyEpoch::One)
        );
        assert_eq!(
            KeyEpoch::ALL.map(|epoch| switched.cookies.get(epoch).copied()),
            old
        );
        refused(switched.prepare(new), "take it away by `--retire`");
        refused(switched.switch(), "begin with `--prepare`");
        let retired = switched.retire().expect("the third step");
        assert_eq!(retired.cookies.get(KeyEpoch::Zero), None);
        assert_eq!(
            retired.cookies.get(KeyEpoch::One),
            switched.cookies.get(KeyEpoch::One)
        );
        assert!(retired.prepare(new).is_ok());
    }

    /// A file of cookies alone gets keys of reports by a rotation's first step.
    #[test]
    fn reports_get_keys_of_their_own() {
        let old: KeysFile = format!("current = 1\nkey1 = \"{KEY}\"\n")
            .parse()
            .expect("a file");
        let path = Path::new("/keys");
        let error = report_keys_of_balancer(path, &old).expect_err("no keys of reports");
        assert!(
            error.contains("keys file /keys: it has no keys of reports"),
            "{error}"
        );
        let prepared = old.prepare(NEW.map(key)).expect("the first step");
        let server: IpAddr = "10.0.0.1".parse().expect("an address");
        let known = report_keys_of_balancer(path, &prepared).expect("keys of reports");
        let theirs = prepared.for_server(&[server]).expect("a server's file");
        let own = report_keys_of_server(path, &theirs, &[server]).expect("its keys");
        for epoch in KeyEpoch::ALL {
            assert!(own.of_server(server, epoch).is_some());
            assert_eq!(own.of_server(server, epoch), known.of_server(server, epoch));
        }
        // It holds nothing of another server, and no balancer takes it for its own.
        let other: IpAddr = "10.0.0.2".parse().expect("an address");
        let error = report_keys_of_server(path, &theirs, &[other]).expect_err("another's");
        assert!(
            error.contains("`causeway cookie server-keys 10.0.0.2`"),
            "{error}"
        );
        assert!(report_keys_of_balancer(path, &theirs).is_err());
        assert!(theirs.for_server(&[other]).is_err());
    }
}
