// SPDX-License-Identifier: Apache-2.0
//! What one configuration changes in another.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a reload of a file would do; answer of `POST /v1/diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Against what is in force, what was set by hand included.
    pub changes: Vec<Change>,
    /// Why the file would be refused, a sentence each; empty: it would be taken.
    pub refused: Vec<String>,
}

/// One thing that becomes another: a key, or a VIP or a real as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// What becomes of it.
    pub change: ChangeKind,
    /// Name of the VIP; `null`: of no VIP.
    pub vip: Option<String>,
    /// Address of the VIP's real.
    pub real: Option<String>,
    /// The key, with its tables in front; `null`: the VIP or real as a whole.
    pub key: Option<String>,
    /// What was; `null` also where it is a secret.
    pub from: Option<String>,
    /// What will be.
    pub to: Option<String>,
    /// Whether the daemon must be restarted for it.
    pub needs_restart: bool,
    /// Whether the data plane must be taken down for it, as a restart alone is refused, too.
    #[serde(default)]
    pub needs_unload: bool,
}

/// A line of a log.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = [&self.vip, &self.real, &self.key];
        let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
        write!(f, "{}", place.join(" "))?;
        match (self.change, &self.from, &self.to) {
            (ChangeKind::Added, _, what) => write!(f, " added{}", behind(what)),
            (ChangeKind::Removed, what, _) => write!(f, " removed{}", behind(what)),
            (ChangeKind::Changed, None, None) => write!(f, " changed"),
            (ChangeKind::Changed, from, to) => {
                let shown =
                    |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
                write!(f, ": {} -> {}", shown(from), shown(to))
            }
        }
    }
}

fn behind(what: &Option<String>) -> String {
    what.as_ref()
        .map_or_else(String::new, |what| format!(": {what}"))
}

/// What becomes of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It is added.
    Added,
    /// It is removed.
    Removed,
    /// It gets another value.
    Changed,
}
