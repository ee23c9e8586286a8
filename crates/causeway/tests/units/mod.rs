// SPDX-License-Identifier: Apache-2.0
//! systemd's units of packaging/systemd/, and how they start the binary, without systemd.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The values of a key of a unit, in their order.
#[allow(dead_code, reason = "not every test that uses this module asks for it")]
pub(crate) fn values(unit: &str, key: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../packaging/systemd/{unit}.service"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

/// A command that ends in `binary`, with no other capabilities than the unit's.
#[allow(dead_code, reason = "as above")]
pub(crate) fn confined(unit: &str, binary: &str) -> Command {
    let sets = values(unit, "CapabilityBoundingSet");
    let [set] = &sets[..] else {
        panic!("{unit} has {} bounding sets", sets.len());
    };
    let kept = set
        .split_whitespace()
        .map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = kept.map(|name| format!(",+{name}")).collect();
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--bounding-set=-all{kept}"))
        .args(["--inh-caps=-all", "--no-new-privs", "--"])
        .arg(binary);
    command
}
