// SPDX-License-Identifier: Apache-2.0
//! Compiles the laboratory's own BPF programs.

use std::env;
use std::path::{Path, PathBuf};

use causeway_bpf_build::skeletons;

const OBJECTS: &[&str] = &[
    "reference",
    "baselines",
    "daisy_chain",
    "flood",
    "floors",
    "loss",
    "segments",
    "ticks",
];

fn main() {
    // The headers of the data plane, which these programs share.
    println!("cargo::rerun-if-changed=../../bpf");
    let built = env::var("OUT_DIR")
        .map_err(|e| e.to_string())
        .and_then(|out| skeletons(Path::new("bpf"), OBJECTS, &PathBuf::from(out)));
    if let Err(error) = built {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}
