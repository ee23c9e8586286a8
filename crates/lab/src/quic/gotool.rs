// SPDX-License-Identifier: Apache-2.0
//! Builds the lab's Go program (`crates/lab/go/quic`) when a scenario wants it.
//!
//! The sources are inside this executable. A sandbox has no way to the network, so
//! the modules that they need must be there already: `scripts/setup` fetches them,
//! pinned by `go.sum`. Go keeps what it has compiled; a second build takes a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../go/quic/", $name)))
    };
}

const SOURCES: &[(&str, &str)] = &[
    source!("go.mod"),
    source!("go.sum"),
    source!("main.go"),
    source!("serve.go"),
    source!("load.go"),
    source!("user.go"),
    source!("quiclb/quiclb.go"),
    source!("quiclb/generator.go"),
];
/// Where Debian's package has it; a newer Go may come first on the PATH.
const CANDIDATES: [&str; 2] = ["/usr/bin/go", "go"];

/// The program's path; built by the first call.
///
/// # Errors
/// One sentence about what is missing.
pub fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| build().map_err(|e| format!("{e:#}")));
    match built {
        Ok(path) => Ok(path),
        Err(e) => bail!("{e}"),
    }
}

fn build() -> Result<PathBuf> {
    let go = find_go()?;
    let directory = tempfile::Builder::new()
        .prefix("quic-go-")
        .tempdir()?
        .keep();
    fs::create_dir(directory.join("quiclb"))?;
    for (name, text) in SOURCES {
        fs::write(directory.join(name), text)?;
    }
    let output = run(&go, &["build", "-o", "quic", "."], Some(&directory))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !messages.contains("module lookup disabled"),
        "the modules of the lab's quic-go program are not on this machine: run scripts/setup"
    );
    ensure!(
        output.status.success(),
        "cannot build the lab's quic-go program: {messages}"
    );
    Ok(directory.join("quic"))
}

/// quic-go builds only with the releases of Go that it knows.
fn find_go() -> Result<String> {
    let mut seen = Vec::new();
    for go in CANDIDATES {
        let Ok(output) = run(go, &["env", "GOVERSION"], None) else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if is_known(&version) {
            return Ok(go.to_owned());
        }
        seen.push(version);
    }
    match seen.last() {
        Some(version) => bail!(
            "the lab's quic-go program needs Go 1.19 or 1.20 (Debian package golang-go), not {version}"
        ),
        None => bail!("the lab's quic-go program needs Go: install the Debian package golang-go"),
    }
}

fn is_known(version: &str) -> bool {
    ["go1.19", "go1.20"].iter().any(|known| {
        let rest = version.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn run(go: &str, arguments: &[&str], directory: Option<&Path>) -> Result<Output> {
    let mut command = Command::new(go);
    command
        .args(arguments)
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=readonly")
        .env("CGO_ENABLED", "0");
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.output().with_context(|| format!("cannot run {go}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_that_quic_go_knows() {
        assert!(super::is_known("go1.19.8") && super::is_known("go1.20"));
        assert!(
            !super::is_known("go1.2")
                && !super::is_known("go1.200")
                && !super::is_known("go1.26.8")
        );
    }
}
