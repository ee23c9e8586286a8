// SPDX-License-Identifier: Apache-2.0

//! Classic BPF programs: what tcpdump's filter language compiles to.
//!
//! libpcap's compiler makes the program (`causeway-netio` calls it); this runs it, so
//! that no byte of a capture is interpreted outside safe code. [`Program::new`]
//! checks a program once, by the rules of the kernel's `bpf_check_classic`:
//! every jump goes forward and stays inside, every path ends in a return. So
//! [`Program::run`] ends after at most as many steps as there are instructions.
//! The machine is that of McCanne and Jacobson, "The BSD Packet Filter" (USENIX
//! 1993), section 3; where it leaves a choice, this does as libpcap's `bpf_filter`.

mod check;
mod run;

use run::Op;

/// Most instructions of a program: Linux's `BPF_MAXINSNS`.
pub const MAX_INSTRUCTIONS: usize = 4096;

/// Words of scratch memory: `BPF_MEMWORDS`.
const MEMORY_WORDS: usize = 16;

/// One instruction, as the kernel and libpcap lay it out (`struct sock_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Operation code.
    pub code: u16,
    /// Instructions to pass over when a comparison holds.
    pub jt: u8,
    /// Instructions to pass over when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// None or too many instructions.
    #[error("a filter program of {0} instructions; 1 to {MAX_INSTRUCTIONS} are allowed")]
    Length(usize),
    /// An operation that does not exist.
    #[error("instruction {at} of the filter program has the unknown code {code:#06x}")]
    Code {
        /// Index of the instruction.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// An operand that the operation does not allow.
    #[error("instruction {at} of the filter program {what}")]
    Operand {
        /// Index of the instruction.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The end can be reached without a verdict.
    #[error("the filter program does not end with a return")]
    NoReturn,
}

/// A checked program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
    ops: Vec<Op>,
}

impl Program {
    /// Checks a program and makes it ready to run.
    ///
    /// # Errors
    /// When the kernel would refuse it too.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, ProgramError> {
        let ops = check::decode(&instructions)?;
        Ok(Self { instructions, ops })
    }

    /// The instructions, for `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Runs the program on a captured frame of `data`, which had `wire_len`
    /// bytes on the wire. The answer is how many bytes of it to keep; 0: none,
    /// the packet does not match. A load beyond the captured bytes, and a
    /// division by zero, end with 0.
    #[inline]
    pub fn run(&self, data: &[u8], wire_len: u32) -> u32 {
        run::run(&self.ops, data, wire_len)
    }

    /// Whether the frame matches.
    #[inline]
    pub fn matches(&self, data: &[u8], wire_len: u32) -> bool {
        self.run(data, wire_len) != 0
    }
}

#[cfg(test)]
mod tests;
