// SPDX-License-Identifier: Apache-2.0
//! Builds the lab's Go program (`dev/lab/go/quic`) when a scenario wants it.
//!
//! The sources are inside this executable. A sandbox has no way to the network, so
//! the modules that they need must be there already: `scripts/setup` fetches them,
//! pinned by `go.sum`, and with them the Go toolchain that `go.mod` names where the
//! machine's own is older. Go keeps what it has compiled; a second build takes a second.

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
    source!("get.go"),
    source!("user.go"),
    source!("quiclb/quiclb.go"),
    source!("quiclb/generator.go"),
];
/// Where Go may be; what Debian 12 has is too old and only fetches the newer one.
const CANDIDATES: [&str; 3] = ["go", "/usr/local/go/bin/go", "/usr/bin/go"];
/// The oldest Go that builds it, as `go.mod` says: (major, minor).
const OLDEST: (u32, u32) = (1, 26);

/// The program's path; built by the first call.
///
/// # Errors
/// One sentence about what is missing.
pub(crate) fn program() -> Result<&'static Path> {
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

/// A Go that is new enough: one that is installed, or the one that setup has fetched.
fn find_go() -> Result<String> {
    let mut seen = Vec::new();
    for go in CANDIDATES {
        let Ok(output) = run(go, &["env", "GOVERSION", "GOMODCACHE", "GOARCH"], None) else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines();
        let mut line = || lines.next().unwrap_or_default().to_owned();
        let (version, cache, arch) = (line(), line(), line());
        if is_new_enough(&version) {
            return Ok(go.to_owned());
        }
        let fetched = toolchain(&cache, &arch);
        if fetched.is_file() {
            return Ok(fetched.display().to_string());
        }
        seen.push(version);
    }
    let (major, minor) = OLDEST;
    match seen.last() {
        Some(version) => bail!(
            "the lab's quic-go program needs Go {major}.{minor} or newer, not {version}: \
             scripts/setup fetches it"
        ),
        None => bail!("the lab's quic-go program needs Go: run scripts/setup"),
    }
}

/// Where Go's module cache has the toolchain that go.mod names.
fn toolchain(cache: &str, arch: &str) -> PathBuf {
    let named = SOURCES[0]
        .1
        .lines()
        .find_map(|l| l.strip_prefix("toolchain "));
    let named = named.unwrap_or_default();
    Path::new(cache).join(format!(
        "golang.org/toolchain@v0.0.1-{named}.linux-{arch}/bin/go"
    ))
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.strip_prefix("go").unwrap_or_default().split('.');
    let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
    match (number(), number()) {
        (Some(major), Some(minor)) => (major, minor) >= OLDEST,
        _ => false,
    }
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
    fn versions_that_can_build_quic_go() {
        for new in ["go1.26", "go1.26.8", "go1.100", "go2.0"] {
            assert!(super::is_new_enough(new), "{new}");
        }
        for old in ["go1.19.8", "go1.25.11", "go1.2", "1.30", "devel", ""] {
            assert!(!super::is_new_enough(old), "{old}");
        }
    }

    #[test]
    fn the_toolchain_is_the_one_of_the_module() {
        let path = super::toolchain("/cache", "arm64");
        let path = path.to_str().expect("ASCII");
        assert!(
            path.starts_with("/cache/golang.org/toolchain@v0.0.1-go1.")
                && path.ends_with(".linux-arm64/bin/go"),
            "{path}"
        );
    }
}
