// SPDX-License-Identifier: Apache-2.0
//! `[agent.quic]`: where QUIC programs of the server read what to issue connection ids by.

use std::path::{Path, PathBuf};

use causeway_service::config::{Faults, Spanned, directory, text};
use nix::unistd::User;

use super::raw::RawAgentQuic;

/// Where QUIC programs read what to issue connection ids by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicIdsConfig {
    /// The file, which the agent writes.
    pub file: PathBuf,
    /// User and group that may read it; `None`: the agent's own.
    pub owner: Option<(u32, u32)>,
}

pub(super) fn quic_ids(
    raw: Option<&Spanned<RawAgentQuic>>,
    socket: &Path,
    follows_book: bool,
    faults: &mut Faults<'_>,
) -> QuicIdsConfig {
    if let Some(raw) = raw.filter(|_| !follows_book) {
        faults.at(
            raw.span(),
            "[agent.quic]: configurations of connection ids come with the fleet's book; set [agent.report] book = true",
        );
    }
    let raw = raw.map(Spanned::as_ref);
    let default = socket.with_file_name("quic-ids.json").display().to_string();
    QuicIdsConfig {
        file: directory(raw.and_then(|raw| raw.file.as_ref()), &default, faults),
        owner: text(raw.and_then(|raw| raw.owner.as_ref()), faults, owner),
    }
}

fn owner(name: &str) -> Result<(u32, u32), String> {
    let user = User::from_name(name).map_err(|error| format!("user `{name}`: {error}"))?;
    let user = user.ok_or_else(|| {
        format!("there is no user `{name}` here; name the one that the QUIC program runs as")
    })?;
    Ok((user.uid.as_raw(), user.gid.as_raw()))
}
