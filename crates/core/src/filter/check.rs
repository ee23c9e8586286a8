// SPDX-License-Identifier: Apache-2.0

//! From instructions to operations that need no further checks.

use super::run::{Alu, Compare, Op, Operand, Width};
use super::{Instruction, MAX_INSTRUCTIONS, MEMORY_WORDS, ProgramError};

// The parts of an operation code (linux/bpf_common.h).
const CLASS: u16 = 0x07;
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;

const SOURCE_X: u16 = 0x08;
const WORD_ABS: u16 = 0x20;
const HALF_ABS: u16 = 0x28;
const BYTE_ABS: u16 = 0x30;
const WORD_IND: u16 = 0x40;
const HALF_IND: u16 = 0x48;
const BYTE_IND: u16 = 0x50;
const IMM: u16 = 0x00;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const BYTE_MSH: u16 = 0xb0;

pub(super) fn decode(instructions: &[Instruction]) -> Result<Vec<Op>, ProgramError> {
    if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
        return Err(ProgramError::Length(instructions.len()));
    }
    let ops: Vec<Op> = instructions
        .iter()
        .enumerate()
        .map(|(at, one)| decode_one(at, one, instructions.len()))
        .collect::<Result<_, _>>()?;
    match ops.last() {
        Some(Op::Return(_) | Op::ReturnA) => Ok(ops),
        _ => Err(ProgramError::NoReturn),
    }
}

fn decode_one(at: usize, one: &Instruction, len: usize) -> Result<Op, ProgramError> {
    let k = one.k;
    let unknown = ProgramError::Code { at, code: one.code };
    let memory = || match k as usize {
        slot if slot < MEMORY_WORDS => Ok(slot as u8),
        _ => Err(ProgramError::Operand {
            at,
            what: "names scratch memory that does not exist",
        }),
    };
    let rest = one.code & !CLASS;
    Ok(match (one.code & CLASS, rest) {
        (LD, IMM) => Op::Load(k),
        (LD, LEN) => Op::LoadLen,
        (LD, MEM) => Op::LoadMemory(memory()?),
        (LD, WORD_ABS) => Op::LoadAt(Width::Word, k),
        (LD, HALF_ABS) => Op::LoadAt(Width::Half, k),
        (LD, BYTE_ABS) => Op::LoadAt(Width::Byte, k),
        (LD, WORD_IND) => Op::LoadAtX(Width::Word, k),
        (LD, HALF_IND) => Op::LoadAtX(Width::Half, k),
        (LD, BYTE_IND) => Op::LoadAtX(Width::Byte, k),
        (LDX, IMM) => Op::LoadX(k),
        (LDX, LEN) => Op::LoadLenX,
        (LDX, MEM) => Op::LoadMemoryX(memory()?),
        (LDX, BYTE_MSH) => Op::LoadHeaderLenX(k),
        (ST, 0) => Op::Store(memory()?),
        (STX, 0) => Op::StoreX(memory()?),
        (RET, 0x00) => Op::Return(k),
        (RET, 0x10) => Op::ReturnA,
        (MISC, 0x00) => Op::CopyAToX,
        (MISC, 0x80) => Op::CopyXToA,
        (ALU, 0x80) => Op::Negate,
        (ALU, _) => arithmetic(at, rest, k)?.ok_or(unknown)?,
        (JMP, 0x00) => Op::Jump(target(at, k as usize, len)?),
        (JMP, _) => {
            let compare = comparison(rest & !SOURCE_X).ok_or(unknown)?;
            let yes = target(at, one.jt.into(), len)?;
            let no = target(at, one.jf.into(), len)?;
            Op::Branch(compare, operand(rest, k), yes, no)
        }
        _ => return Err(unknown),
    })
}

fn operand(rest: u16, k: u32) -> Operand {
    if rest & SOURCE_X == 0 {
        Operand::K(k)
    } else {
        Operand::X
    }
}

/// `None`: no such operation.
fn arithmetic(at: usize, rest: u16, k: u32) -> Result<Option<Op>, ProgramError> {
    let alu = match rest & !SOURCE_X {
        0x00 => Alu::Add,
        0x10 => Alu::Subtract,
        0x20 => Alu::Multiply,
        0x30 => Alu::Divide,
        0x40 => Alu::Or,
        0x50 => Alu::And,
        0x60 => Alu::ShiftLeft,
        0x70 => Alu::ShiftRight,
        0x90 => Alu::Modulo,
        0xa0 => Alu::Xor,
        _ => return Ok(None),
    };
    let operand = operand(rest, k);
    match (alu, operand) {
        (Alu::Divide | Alu::Modulo, Operand::K(0)) => Err(ProgramError::Operand {
            at,
            what: "divides by zero",
        }),
        (Alu::ShiftLeft | Alu::ShiftRight, Operand::K(32..)) => Err(ProgramError::Operand {
            at,
            what: "shifts by 32 bits or more",
        }),
        _ => Ok(Some(Op::Arithmetic(alu, operand))),
    }
}

fn comparison(operation: u16) -> Option<Compare> {
    Some(match operation {
        0x10 => Compare::Equal,
        0x20 => Compare::Greater,
        0x30 => Compare::GreaterOrEqual,
        0x40 => Compare::Set,
        _ => return None,
    })
}

/// The index that a jump over `skip` instructions leads to.
fn target(at: usize, skip: usize, len: usize) -> Result<u16, ProgramError> {
    // len is at most MAX_INSTRUCTIONS, so that what passes fits 16 bits.
    match at.checked_add(1).and_then(|next| next.checked_add(skip)) {
        Some(target) if target < len => Ok(target as u16),
        _ => Err(ProgramError::Operand {
            at,
            what: "jumps beyond its end",
        }),
    }
}
