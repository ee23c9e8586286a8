// SPDX-License-Identifier: Apache-2.0
//! Compiles the C of `bpf/shared` for user space, through one small file of `c/`
//! for each header that Rust calls.

/// Names in `c/`.
const SHIMS: &[&str] = &[
    "certes.c",
    "cookie.c",
    "estimate.c",
    "flow_spot.c",
    "hist.c",
    "limit.c",
    "quic_lb.c",
];

fn main() {
    println!("cargo::rerun-if-changed=../../bpf/shared");
    println!("cargo::rerun-if-changed=c");
    cc::Build::new()
        .files(SHIMS.iter().map(|name| format!("c/{name}")))
        .include("../../bpf/shared")
        .std("gnu11")
        // Estimators run per packet; unoptimised they would dominate debug tests.
        .opt_level(3)
        // Rust asks for them where it has debug information; here a register is dear.
        .force_frame_pointer(false)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .flag("-Wcast-qual")
        .compile("causeway_shared");
}
