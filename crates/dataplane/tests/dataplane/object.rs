// SPDX-License-Identifier: Apache-2.0
//! What the compiler made of orders in memory that x86 keeps by itself and arm64 does not.

const LB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lb.bpf.o"));

/// Of BPF's instructions (Documentation/bpf/standardization/instruction-set.rst): an atomic one, of
/// 32 and of 64 bits, and the bit in its immediate that has it give what was there before. Without
/// that bit it is no barrier.
const ATOMIC: [u8; 2] = [0xc3, 0xdb];
const FETCH: i32 = 1;

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    let field = bytes[at..at + len].iter().rev();
    field.fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The instructions of a function, out of an ELF file of 64 bits, least significant byte first.
fn instructions<'a>(elf: &'a [u8], function: &str) -> Vec<&'a [u8]> {
    const SYMBOLS: usize = 2;
    let (table, entry, count) = (number(elf, 40, 8), number(elf, 58, 2), number(elf, 60, 2));
    let header = |section: usize| &elf[table + section * entry..][..entry];
    let content = |section: usize| {
        let header = header(section);
        &elf[number(header, 24, 8)..][..number(header, 32, 8)]
    };
    let symbols = (0..count).find(|of| number(header(*of), 4, 4) == SYMBOLS);
    let symbols = symbols.expect("a table of symbols");
    let names = content(number(header(symbols), 40, 4));
    let is_meant = |symbol: &&[u8]| {
        let name = &names[number(symbol, 0, 4)..];
        name.starts_with(function.as_bytes()) && name[function.len()] == 0
    };
    let mut all = content(symbols).chunks(24);
    let symbol = all.find(is_meant).expect("the function");
    let code = content(number(symbol, 6, 2));
    code[number(symbol, 8, 8)..][..number(symbol, 16, 8)]
        .chunks(8)
        .collect()
}

#[test]
fn the_version_is_read_before_the_vip() {
    for function in ["learn_vip4", "learn_vip6"] {
        let code = instructions(LB, function);
        let atomics: Vec<i32> = code
            .iter()
            .filter(|of| ATOMIC.contains(&of[0]))
            .map(|of| number(of, 4, 4) as i32)
            .collect();
        assert_eq!(atomics.len(), 1, "{function}");
        assert!(atomics[0] & FETCH != 0, "{function}: {atomics:?}");
    }
}
