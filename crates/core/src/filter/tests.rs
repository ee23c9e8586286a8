// SPDX-License-Identifier: Apache-2.0

//! Programs by hand, and what must be refused. That compiled expressions match
//! what libpcap matches is tested where libpcap is (`causeway-netio`).

use proptest::prelude::*;

use super::*;

fn ins(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn run(program: &[Instruction], data: &[u8]) -> u32 {
    Program::new(program.to_vec())
        .expect("a good program")
        .run(data, 1000)
}

/// `ip and tcp dst port 443` on Ethernet, as tcpdump -d prints it.
fn https() -> Vec<Instruction> {
    vec![
        ins(0x28, 0, 0, 12),
        ins(0x15, 0, 8, 0x800),
        ins(0x30, 0, 0, 23),
        ins(0x15, 0, 6, 6),
        ins(0x28, 0, 0, 20),
        ins(0x45, 4, 0, 0x1fff),
        ins(0xb1, 0, 0, 14),
        ins(0x48, 0, 0, 16),
        ins(0x15, 0, 1, 443),
        ins(0x06, 0, 0, 262_144),
        ins(0x06, 0, 0, 0),
    ]
}

#[test]
fn a_compiled_expression_reads_the_packet() {
    let mut frame = [0; 60];
    frame[12] = 0x08;
    frame[14] = 0x46; // 24 bytes of IP header
    frame[23] = 6;
    frame[14 + 24 + 2..][..2].copy_from_slice(&443u16.to_be_bytes());
    assert_eq!(run(&https(), &frame), 262_144);
    for (at, byte) in [(12, 0x86), (14, 0x45), (20, 0x01), (23, 17), (41, 0)] {
        let mut other = frame;
        other[at] = byte;
        assert_eq!(run(&https(), &other), 0, "byte {at}");
    }
    // The port lies at 40 and 41: cut before its end, nothing matches.
    assert_eq!(run(&https(), &frame[..42]), 262_144);
    for len in 0..42 {
        assert_eq!(run(&https(), &frame[..len]), 0, "{len} bytes");
    }
}

#[test]
fn every_operation_computes() {
    // A = 7; X = 3; A <op> X; return A.
    let by_x = |operation: u16, a: u32, x: u32| {
        run(
            &[
                ins(0x00, 0, 0, a),
                ins(0x01, 0, 0, x),
                ins(operation | 0x0c, 0, 0, 0),
                ins(0x16, 0, 0, 0),
            ],
            &[],
        )
    };
    let cases = [
        (0x00, 7, u32::MAX, 6),
        (0x10, 7, 8, u32::MAX),
        (0x20, 0x8000_0001, 2, 2),
        (0x30, 7, 3, 2),
        (0x30, 7, 0, 0),
        (0x40, 0b1100, 0b1010, 0b1110),
        (0x50, 0b1100, 0b1010, 0b1000),
        (0x60, 1, 31, 1 << 31),
        (0x60, 1, 32, 0),
        (0x70, 1 << 31, 31, 1),
        (0x70, 1, 32, 0),
        (0x90, 7, 3, 1),
        (0x90, 7, 0, 0),
        (0xa0, 0b1100, 0b1010, 0b0110),
    ];
    for (operation, a, x, expected) in cases {
        assert_eq!(by_x(operation, a, x), expected, "{operation:#x} {a} {x}");
    }
    let negated = [ins(0x00, 0, 0, 1), ins(0x84, 0, 0, 0), ins(0x16, 0, 0, 0)];
    assert_eq!(run(&negated, &[]), u32::MAX);
    // M[15] = A; X = M[15]; A = X.
    let memory = [
        ins(0x00, 0, 0, 9),
        ins(0x02, 0, 0, 15),
        ins(0x61, 0, 0, 15),
        ins(0x87, 0, 0, 0),
        ins(0x16, 0, 0, 0),
    ];
    assert_eq!(run(&memory, &[]), 9);
    // The length is that on the wire.
    assert_eq!(run(&[ins(0x80, 0, 0, 0), ins(0x16, 0, 0, 0)], &[1]), 1000);
}

#[test]
fn comparisons_take_either_way() {
    for (operation, yes, no) in [
        (0x15, 5, 4),
        (0x25, 6, 5),
        (0x35, 5, 4),
        (0x45, 4, 2),
        (0x1d, 5, 6),
    ] {
        let verdict = |a| {
            run(
                &[
                    ins(0x00, 0, 0, a),
                    ins(0x01, 0, 0, 5),
                    ins(operation, 0, 1, 5),
                    ins(0x06, 0, 0, 1),
                    ins(0x06, 0, 0, 2),
                ],
                &[],
            )
        };
        assert_eq!((verdict(yes), verdict(no)), (1, 2), "{operation:#x}");
    }
}

#[test]
fn an_index_cannot_wrap_around() {
    // A = byte at X + 2 where X = 2^32 - 1.
    let program = [
        ins(0x01, 0, 0, u32::MAX),
        ins(0x50, 0, 0, 2),
        ins(0x16, 0, 0, 0),
    ];
    assert_eq!(run(&program, &[1, 2, 3]), 0);
}

#[test]
fn bad_programs_are_refused() {
    let ret = ins(0x06, 0, 0, 0);
    let error = |program: &[Instruction]| {
        let error = Program::new(program.to_vec()).expect_err("a bad program");
        error.to_string()
    };
    assert!(error(&[]).starts_with("a filter program of 0 instructions"));
    assert!(error(&vec![ret; 4097]).contains("4097"));
    assert!(Program::new(vec![ret; 4096]).is_ok());
    assert_eq!(
        error(&[ins(0xfff8, 0, 0, 0), ret]),
        "instruction 0 of the filter program has the unknown code 0xfff8"
    );
    for (bad, what) in [
        (ins(0x60, 0, 0, 16), "scratch memory"),
        (ins(0x02, 0, 0, 16), "scratch memory"),
        (ins(0x34, 0, 0, 0), "divides by zero"),
        (ins(0x94, 0, 0, 0), "divides by zero"),
        (ins(0x64, 0, 0, 32), "shifts"),
        (ins(0x05, 0, 0, 1), "jumps beyond"),
        (ins(0x05, 0, 0, u32::MAX), "jumps beyond"),
        (ins(0x15, 1, 0, 0), "jumps beyond"),
        (ins(0x15, 0, 1, 0), "jumps beyond"),
    ] {
        assert!(error(&[bad, ret]).contains(what), "{bad:?}");
    }
    assert_eq!(
        error(&[ret, ins(0x00, 0, 0, 0)]),
        "the filter program does not end with a return"
    );
}

proptest! {
    /// Whatever passes the check ends, and never reads outside of the packet.
    #[test]
    fn any_accepted_program_ends(
        code in proptest::collection::vec((0u16..0x100, any::<u8>(), any::<u8>(), any::<u32>()), 0..20),
        small: bool, data in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut program: Vec<_> = code
            .into_iter()
            .map(|(code, jt, jf, k)| if small { ins(code, jt % 4, jf % 4, k % 64) } else { ins(code, jt, jf, k) })
            .collect();
        program.push(ins(0x16, 0, 0, 0));
        if let Ok(program) = Program::new(program) {
            program.run(&data, data.len() as u32);
        }
    }
}
