// SPDX-License-Identifier: Apache-2.0

//! The machine: an accumulator A, an index X, scratch memory, the packet.

use super::MEMORY_WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Word,
    Half,
    Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alu {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Set,
}

/// An instruction, decoded. Jump targets are indices, all later than their own;
/// memory slots exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Load(u32),
    LoadLen,
    LoadMemory(u8),
    LoadAt(Width, u32),
    LoadAtX(Width, u32),
    LoadX(u32),
    LoadLenX,
    LoadMemoryX(u8),
    /// X = 4 * (low nibble of the byte at k): the length of an IPv4 header.
    LoadHeaderLenX(u32),
    Store(u8),
    StoreX(u8),
    CopyAToX,
    CopyXToA,
    Negate,
    Arithmetic(Alu, Operand),
    Jump(u16),
    Branch(Compare, Operand, u16, u16),
    Return(u32),
    ReturnA,
}

#[inline]
pub(super) fn run(ops: &[Op], data: &[u8], wire_len: u32) -> u32 {
    let (mut a, mut x) = (0u32, 0u32);
    let mut memory = [0u32; MEMORY_WORDS];
    let mut next = 0;
    // The check made sure that every path meets a return before the end.
    while let Some(&op) = ops.get(next) {
        next += 1;
        match op {
            Op::LoadAt(width, at) => match load(data, width, at) {
                Some(value) => a = value,
                None => return 0,
            },
            Op::LoadAtX(width, at) => {
                match at.checked_add(x).and_then(|at| load(data, width, at)) {
                    Some(value) => a = value,
                    None => return 0,
                }
            }
            Op::LoadHeaderLenX(at) => match load(data, Width::Byte, at) {
                Some(value) => x = (value & 0x0f) << 2,
                None => return 0,
            },
            Op::Branch(compare, operand, yes, no) => {
                let holds = holds(compare, a, value(operand, x));
                next = usize::from(if holds { yes } else { no });
            }
            Op::Jump(target) => next = target.into(),
            Op::Return(keep) => return keep,
            Op::ReturnA => return a,
            Op::Load(k) => a = k,
            Op::LoadLen => a = wire_len,
            Op::LoadMemory(slot) => a = memory[slot as usize % MEMORY_WORDS],
            Op::LoadX(k) => x = k,
            Op::LoadLenX => x = wire_len,
            Op::LoadMemoryX(slot) => x = memory[slot as usize % MEMORY_WORDS],
            Op::Store(slot) => memory[slot as usize % MEMORY_WORDS] = a,
            Op::StoreX(slot) => memory[slot as usize % MEMORY_WORDS] = x,
            Op::CopyAToX => x = a,
            Op::CopyXToA => a = x,
            Op::Negate => a = a.wrapping_neg(),
            Op::Arithmetic(alu, operand) => match compute(alu, a, value(operand, x)) {
                Some(result) => a = result,
                None => return 0,
            },
        }
    }
    0
}

#[inline]
fn value(operand: Operand, x: u32) -> u32 {
    match operand {
        Operand::K(k) => k,
        Operand::X => x,
    }
}

#[inline]
fn load(data: &[u8], width: Width, at: u32) -> Option<u32> {
    let rest = data.get(at as usize..)?;
    Some(match width {
        Width::Word => u32::from_be_bytes(*rest.first_chunk()?),
        Width::Half => u16::from_be_bytes(*rest.first_chunk()?).into(),
        Width::Byte => (*rest.first()?).into(),
    })
}

#[inline]
fn holds(compare: Compare, a: u32, b: u32) -> bool {
    match compare {
        Compare::Equal => a == b,
        Compare::Greater => a > b,
        Compare::GreaterOrEqual => a >= b,
        Compare::Set => a & b != 0,
    }
}

/// `None` for a division by zero.
#[inline]
fn compute(alu: Alu, a: u32, b: u32) -> Option<u32> {
    Some(match alu {
        Alu::Add => a.wrapping_add(b),
        Alu::Subtract => a.wrapping_sub(b),
        Alu::Multiply => a.wrapping_mul(b),
        Alu::Divide => a.checked_div(b)?,
        Alu::Modulo => a.checked_rem(b)?,
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Xor => a ^ b,
        // As libpcap: everything is shifted out.
        Alu::ShiftLeft => a.checked_shl(b).unwrap_or(0),
        Alu::ShiftRight => a.checked_shr(b).unwrap_or(0),
    })
}
