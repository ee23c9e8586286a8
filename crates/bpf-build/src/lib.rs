// SPDX-License-Identifier: Apache-2.0
//! Compiles BPF programs for build scripts: one place for the compiler, its flags and the
//! skeletons, so that what the product and its laboratory load is compiled alike.
//!
//! [`skeletons`] writes into the caller's `OUT_DIR` what it then includes. It needs clang, which it
//! looks for; it has errors of one line, for build scripts to print. Nothing of it is in a program
//! that ships, and it loads none.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// Compiles `DIR/NAME.bpf.c` for each name and writes `NAME.skel.rs` to `out`. The error is
/// one line.
pub fn skeletons(dir: &Path, names: &[&str], out: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", dir.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    skeletons_of_made(dir, names, out)
}

/// The same of sources that the build script itself has made: they are newer than its start, and
/// to watch them would be to build everything twice.
pub fn skeletons_of_made(dir: &Path, names: &[&str], out: &Path) -> Result<(), String> {
    let clang = find_clang()?;
    let flags = flags()?;
    for name in names {
        let source = dir.join(format!("{name}.bpf.c"));
        let (object, skeleton) = (format!("{name}.bpf.o"), out.join(format!("{name}.skel.rs")));
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(&object))
            .clang(&clang)
            .clang_args(&flags)
            // A literal of each byte takes the compiler as long as all code beside it.
            .reference_obj(true)
            .build_and_generate(&skeleton)
            .map_err(|e| format!("{}: {e:#}", source.display()).replace('\n', " | "))?;
        name_beside(&skeleton, &object).map_err(|e| format!("{}: {e}", skeleton.display()))?;
    }
    Ok(())
}

/// Has a skeleton take the object beside it: of a target directory that is moved, not that of the
/// former place.
fn name_beside(skeleton: &Path, object: &str) -> Result<(), String> {
    let text = fs::read_to_string(skeleton).map_err(|e| e.to_string())?;
    let (before, rest) = text
        .split_once("include_bytes!(")
        .ok_or("it includes no object")?;
    let (_, after) = rest.split_once(')').ok_or("a macro without an end")?;
    let text = format!("{before}include_bytes!(\"{object}\"){after}");
    fs::write(skeleton, text).map_err(|e| e.to_string())
}

/// `$CLANG`, or the first of a few names that runs; BPF needs a recent one.
pub fn find_clang() -> Result<String, String> {
    let candidates = match env::var("CLANG") {
        Ok(clang) => vec![clang],
        Err(_) => ["clang-19", "clang-20", "clang-21", "clang"]
            .map(String::from)
            .to_vec(),
    };
    let runs = |clang: &String| {
        Command::new(clang)
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
    };
    candidates.into_iter().find(runs).ok_or_else(|| {
        "no clang for the BPF programs: install clang-19 (`make setup` does) or set CLANG to one.".to_owned()
    })
}

/// Compiler flags. UAPI headers include `asm/types.h`, which Debian keeps in the
/// multiarch folder that clang does not search for the BPF target.
pub fn flags() -> Result<Vec<String>, String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| e.to_string())?;
    // Keys are hashed as words and headers written as words, as the kernel does it.
    let mut flags: Vec<String> = [
        "-mcpu=v3",
        "-fno-strict-aliasing",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wcast-qual",
    ]
    .map(String::from)
    .to_vec();
    flags.push(format!("-I/usr/include/{arch}-linux-gnu"));
    Ok(flags)
}
