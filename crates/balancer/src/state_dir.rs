// SPDX-License-Identifier: Apache-2.0
//! What outlives the process beside the pinned maps and the last good file: what operators set by
//! hand, and which reals were down.
//!
//! A file is replaced in one step and is on the disk before a call returns. One that is
//! damaged costs what it held and one sentence, never the start.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use causeway_api::balancer::RealChange;
use causeway_service::{keep_file, parse_version};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Of the format of `state.json`.
const VERSION: u32 = 1;
const STATE: &str = "state.json";

/// What one daemon leaves the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptState {
    /// What operators have set by hand.
    pub by_hand: Vec<SetByHand>,
    /// Reals whose probes had failed.
    pub down: Vec<Down>,
    /// Reals that stood in no file.
    pub found: Vec<KeptReal>,
}

/// A real that was discovered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptReal {
    /// As in [`SetByHand`].
    pub vip: String,
    /// Its keys.
    pub real: serde_json::Value,
    /// When it was no longer in the answers, nanoseconds since 1970.
    pub gone_ns: Option<u64>,
}

/// Settings of a real that hold in the place of the file's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetByHand {
    /// Address, port and protocol of its VIP: names are the file's to change.
    pub vip: String,
    /// Address of the server.
    pub real: IpAddr,
    pub set: RealChange,
    /// When, nanoseconds since 1970.
    pub since_ns: u64,
}

/// A real that was down.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// As in [`SetByHand`].
    pub vip: String,
    /// Address of the server.
    pub real: IpAddr,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFile {
    version: u32,
    /// Whose state it is: several balancers may run on a machine.
    pin_dir: PathBuf,
    by_hand: Vec<SetByHand>,
    down: Vec<Down>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    found: Vec<KeptReal>,
}

/// The directory `state_dir`.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    pin_dir: PathBuf,
}

impl StateDir {
    /// The directory of the balancer whose data plane is pinned in `pin_dir`.
    pub fn new(dir: &Path, pin_dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            pin_dir: pin_dir.to_owned(),
        }
    }

    /// What a former daemon kept; nothing if there is none, or none that can be read.
    pub fn load(&self) -> KeptState {
        self.read().unwrap_or_else(|fault| {
            warn!(
                "{}: {fault}; starting without the drains, weights and states of health that it held",
                self.dir.join(STATE).display()
            );
            KeptState::default()
        })
    }

    fn read(&self) -> Result<KeptState, String> {
        let text = match fs::read_to_string(self.dir.join(STATE)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(KeptState::default()),
            Err(error) => return Err(format!("cannot be read ({error})")),
        };
        let file: StateFile = parse_version(&text, VERSION)?;
        self.is_ours(&file.pin_dir)?;
        Ok(KeptState {
            by_hand: file.by_hand,
            down: file.down,
            found: file.found,
        })
    }

    fn is_ours(&self, pin_dir: &Path) -> Result<(), String> {
        match pin_dir == self.pin_dir {
            true => Ok(()),
            false => Err(format!(
                "is that of the balancer pinned in {}: give each a `state_dir` of its own",
                pin_dir.display()
            )),
        }
    }

    /// Keeps this for the next daemon.
    pub fn save(&self, kept: &KeptState) -> Result<(), String> {
        // Another balancer's stays, whatever this one has lost by that.
        let theirs = fs::read_to_string(self.dir.join(STATE)).ok();
        let theirs = theirs.and_then(|text| serde_json::from_str::<StateFile>(&text).ok());
        if let Some(theirs) = theirs {
            let wrong = |error: String| format!("{}: {error}", self.dir.join(STATE).display());
            self.is_ours(&theirs.pin_dir).map_err(wrong)?;
        }
        let file = StateFile {
            version: VERSION,
            pin_dir: self.pin_dir.clone(),
            by_hand: kept.by_hand.clone(),
            down: kept.down.clone(),
            found: kept.found.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&file).map_err(|error| error.to_string())?;
        text.push(b'\n');
        self.keep_file(STATE, &text)
    }

    /// The text of a file of the directory; `None` if there is none.
    pub(crate) fn read_file(&self, name: &str) -> Result<Option<String>, String> {
        match fs::read_to_string(self.dir.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!(
                "{}: cannot be read ({error})",
                self.dir.join(name).display()
            )),
        }
    }

    /// Keeps a file in the directory: it is on the disk then.
    pub(crate) fn keep_file(&self, name: &str, content: &[u8]) -> Result<(), String> {
        let path = self.dir.join(name);
        keep_file(&path, content)
            .map_err(|error| format!("{}: cannot be written ({error})", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> KeptState {
        let real: IpAddr = "10.0.0.2".parse().unwrap();
        let vip = "192.0.2.1:80/tcp".to_owned();
        let set = RealChange {
            drain: Some(true),
            ..RealChange::default()
        };
        KeptState {
            by_hand: vec![SetByHand {
                vip: vip.clone(),
                real,
                set,
                since_ns: 7,
            }],
            found: vec![KeptReal {
                vip: vip.clone(),
                real: serde_json::json!({ "address": "10.0.0.3" }),
                gone_ns: Some(9),
            }],
            down: vec![Down { vip, real }],
        }
    }

    #[test]
    fn what_is_kept_is_read_again_and_a_damaged_file_is_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("of/its/own");
        let state = StateDir::new(&path, Path::new("/pins"));
        assert_eq!(state.read(), Ok(KeptState::default()));
        state.save(&kept()).unwrap();
        assert_eq!(state.read(), Ok(kept()));
        let file = path.join(STATE);
        let whole = fs::read_to_string(&file).unwrap();
        for end in 0..whole.trim_end().len() {
            fs::write(&file, &whole[..end]).unwrap();
            let fault = state.read().unwrap_err();
            assert!(fault.starts_with("is damaged"), "{fault}");
        }
        assert_eq!(state.load(), KeptState::default());
        state.save(&kept()).unwrap();
        assert_eq!(state.read(), Ok(kept()), "a damaged file is replaced");
        let newer = whole.replace("\"version\": 1", "\"version\": 2, \"more\": 3");
        fs::write(&file, newer).unwrap();
        let fault = state.read().unwrap_err();
        assert_eq!(fault, "has version 2, this build reads 1");
    }

    #[test]
    fn two_balancers_do_not_take_each_other_s_state() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::new(dir.path(), Path::new("/pins"));
        first.save(&kept()).unwrap();
        let second = StateDir::new(dir.path(), Path::new("/other"));
        assert_eq!(second.load(), KeptState::default());
        let refused = second.save(&KeptState::default()).unwrap_err();
        assert!(refused.contains("`state_dir` of its own"), "{refused}");
        assert_eq!(first.load(), kept());
    }
}
