// SPDX-License-Identifier: Apache-2.0
#![no_main]

#[path = "../entry.rs"]
#[allow(dead_code, reason = "each target runs one of the entries")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    trust_length(data.get(6..).unwrap_or_default());
    entry::frame(data);
});

/// The planted fault: it takes an Ethernet frame's IPv4 header to be as long as it says.
/// `--features planted` has it, and `scripts/fuzz planted` must find it.
fn trust_length(frame: &[u8]) {
    if cfg!(feature = "planted")
        && frame.get(12..14) == Some(&[8, 0])
        && let Some(first) = frame.get(14)
    {
        let behind = 14 + 4 * usize::from(first & 15);
        std::hint::black_box(frame[behind]);
    }
}
