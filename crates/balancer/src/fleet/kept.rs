// SPDX-License-Identifier: Apache-2.0
//! What a member keeps on disk for its next start: the last good book, above all.

use std::borrow::Cow;

use causeway_service::parse_version;
use serde::{Deserialize, Serialize};

use super::book_text::{READS, StoredBook};
use super::following::Vips;
use crate::config::FleetConfig;
use crate::state_dir::StateDir;

const FILE: &str = "fleet.json";
const VERSION: u32 = 2;

/// What one daemon leaves the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The last good book.
    pub book: Option<StoredBook>,
    /// Whether routers may send to the data plane.
    pub in_service: bool,
    /// Whether it has never been in service of the fleet.
    pub is_new: bool,
    /// Whether an operator has had it leave.
    pub left: bool,
    /// What of the file's VIPs was written to the book.
    pub file: Option<Vips>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile<'a> {
    version: u32,
    fleet: String,
    member: String,
    /// Of the machine, which may have lost its power since.
    boot: String,
    kept: Cow<'a, Kept>,
}

impl Kept {
    /// What a balancer has kept that has never been a member.
    pub(super) fn nothing() -> Self {
        Self {
            book: None,
            in_service: false,
            is_new: true,
            left: false,
            file: None,
        }
    }

    /// What was kept; nothing if there is none of this member in this fleet. After another start
    /// of the machine it is in service no more, whatever it was.
    pub(super) fn load(dir: &StateDir, config: &FleetConfig, boot: &str) -> Result<Self, String> {
        let Some(text) = dir.read_file(FILE)? else {
            return Ok(Self::nothing());
        };
        let file = parse_version::<KeptFile>(&text, VERSION);
        let file = file.map_err(|fault| format!("{FILE} {fault}"))?;
        if (&file.fleet, &file.member) != (&config.name, &config.member) {
            return Ok(Self::nothing());
        }
        let kept = file.kept.into_owned();
        let format = kept.book.as_ref().map(|stored| stored.book.format);
        if let Some(format) = format.filter(|format| *format > READS) {
            return Err(format!(
                "{FILE} has a book of format {format}, and this build reads {READS}"
            ));
        }
        Ok(Self {
            in_service: kept.in_service && file.boot == boot,
            ..kept
        })
    }

    pub(super) fn save(
        &self,
        dir: &StateDir,
        config: &FleetConfig,
        boot: &str,
    ) -> Result<(), String> {
        let file = KeptFile {
            version: VERSION,
            fleet: config.name.clone(),
            member: config.member.clone(),
            boot: boot.to_owned(),
            kept: Cow::Borrowed(self),
        };
        let text = serde_json::to_vec(&file).map_err(|error| error.to_string())?;
        dir.keep_file(FILE, &text)
    }
}
