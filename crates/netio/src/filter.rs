// SPDX-License-Identifier: Apache-2.0
//! tcpdump's filter language, by libpcap's own compiler.
//!
//! libpcap is looked for when the first expression comes, not when the program
//! starts or is built: a machine without it runs everything but expressions. Only
//! its compiler is called; the program runs in `causeway_core::filter`, or in the
//! kernel ([`attach`]).

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use causeway_core::filter::{Instruction, Program, ProgramError};
use causeway_core::wire::LinkType;
use libloading::Library;
use thiserror::Error;

/// What the library is called: first as Debian does, then as all others.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];

/// `PCAP_NETMASK_UNKNOWN`: `ip broadcast` is refused, for want of a netmask.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// Why an expression gives no program.
#[derive(Debug, Error)]
pub enum FilterError {
    /// The library is not there, or is not libpcap.
    #[error(
        "filter expressions need libpcap, which this machine does not have ({0}): install it (libpcap0.8 on Debian and Ubuntu, libpcap elsewhere), or use --port and --host"
    )]
    NoLibpcap(String),
    /// libpcap does not accept it.
    #[error(
        "the filter expression `{expression}` is refused: {message}; pcap-filter(7) describes the language"
    )]
    Refused {
        /// The expression.
        expression: String,
        /// libpcap's words.
        message: String,
    },
    /// libpcap compiled it to a program that is none.
    #[error("libpcap compiled `{expression}` to a bad program: {cause}")]
    Program {
        /// The expression.
        expression: String,
        /// What is wrong with the program.
        cause: ProgramError,
    },
}

/// `struct bpf_program`.
#[repr(C)]
struct BpfProgram {
    len: u32,
    instructions: *mut BpfInstruction,
}

/// `struct bpf_insn`, which is `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BpfInstruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `pcap_t`, of which only libpcap knows the fields.
enum Pcap {}

/// The five functions of libpcap that compile an expression.
struct Compiler {
    open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut Pcap,
    compile: unsafe extern "C" fn(*mut Pcap, *mut BpfProgram, *const c_char, c_int, u32) -> c_int,
    error: unsafe extern "C" fn(*mut Pcap) -> *mut c_char,
    free: unsafe extern "C" fn(*mut BpfProgram),
    close: unsafe extern "C" fn(*mut Pcap),
    /// Keeps the code in memory that the pointers lead to.
    _library: Library,
}

impl Compiler {
    /// The library, loaded once and for good.
    fn get() -> Result<&'static Compiler, FilterError> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        COMPILER
            .get_or_init(Self::load)
            .as_ref()
            .map_err(|why| FilterError::NoLibpcap(why.clone()))
    }

    fn load() -> Result<Compiler, String> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: loading runs the library's initialisers; libpcap's do nothing
            // that the rest of this program relies on.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::resolve(library).map_err(|error| error.to_string()),
                Err(error) if why.is_empty() => why = error.to_string(),
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn resolve(library: Library) -> Result<Compiler, libloading::Error> {
        // SAFETY: the types are those of pcap/pcap.h, unchanged since libpcap 1.0
        // (the netmask is a bpf_u_int32, the names are exported by all versions).
        unsafe {
            Ok(Compiler {
                open_dead: *library.get(b"pcap_open_dead\0")?,
                compile: *library.get(b"pcap_compile\0")?,
                error: *library.get(b"pcap_geterr\0")?,
                free: *library.get(b"pcap_freecode\0")?,
                close: *library.get(b"pcap_close\0")?,
                _library: library,
            })
        }
    }

    /// The program, or libpcap's complaint.
    fn instructions(
        &self,
        expression: &CStr,
        dlt: u32,
        snap_len: u32,
    ) -> Result<Vec<Instruction>, String> {
        // Before 1.8 the compiler kept its state in global variables.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let snap_len = snap_len.min(c_int::MAX as u32) as c_int;
        // SAFETY: open_dead takes any numbers.
        let handle = NonNull::new(unsafe { (self.open_dead)(dlt as c_int, snap_len) })
            .ok_or("out of memory")?;
        let mut program = BpfProgram {
            len: 0,
            instructions: std::ptr::null_mut(),
        };
        // SAFETY: the handle is open until close below, the expression ends in a
        // zero byte, and the program is freed once, after a success alone. geterr
        // gives a string inside the handle, copied before that is closed.
        unsafe {
            let failed = (self.compile)(
                handle.as_ptr(),
                &mut program,
                expression.as_ptr(),
                1,
                NETMASK_UNKNOWN,
            ) != 0;
            let result = if failed {
                let message = CStr::from_ptr((self.error)(handle.as_ptr()));
                Err(message.to_string_lossy().into_owned())
            } else {
                let instructions = copy(&program);
                (self.free)(&mut program);
                Ok(instructions)
            };
            (self.close)(handle.as_ptr());
            result
        }
    }
}

/// # Safety
/// `program` holds what `pcap_compile` put there.
unsafe fn copy(program: &BpfProgram) -> Vec<Instruction> {
    if program.instructions.is_null() {
        return Vec::new();
    }
    // SAFETY: libpcap allocated `len` instructions there.
    let raw = unsafe { std::slice::from_raw_parts(program.instructions, program.len as usize) };
    let one = |raw: &BpfInstruction| Instruction {
        code: raw.code,
        jt: raw.jt,
        jf: raw.jf,
        k: raw.k,
    };
    raw.iter().map(one).collect()
}

/// Compiles `expression` for frames of the link type, of which at most `snap_len`
/// bytes are captured. An empty expression matches everything. Names of hosts and
/// services in it are looked up, as tcpdump does.
///
/// # Errors
/// When libpcap is missing or refuses the expression.
pub fn compile(expression: &str, link: LinkType, snap_len: u32) -> Result<Program, FilterError> {
    let refused = |message: String| FilterError::Refused {
        expression: expression.to_owned(),
        message,
    };
    let text = CString::new(expression).map_err(|_| refused("it has a zero byte".to_owned()))?;
    let instructions = Compiler::get()?
        .instructions(&text, link.dlt(), snap_len)
        .map_err(refused)?;
    Program::new(instructions).map_err(|cause| FilterError::Program {
        expression: expression.to_owned(),
        cause,
    })
}

/// Whether an expression asks for VLAN tags, which are not in the packets of a live socket:
/// Linux takes them off before.
pub fn asks_for_vlan(expression: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    expression.split(|c| !is_name(c)).any(|word| word == "vlan")
}

/// Lets a socket receive only what the program matches (`SO_ATTACH_FILTER`).
/// On an AF_PACKET socket compile for the link type of its interface.
///
/// # Errors
/// When the kernel refuses.
pub fn attach(socket: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    let one = |instruction: &Instruction| libc::sock_filter {
        code: instruction.code,
        jt: instruction.jt,
        jf: instruction.jf,
        k: instruction.k,
    };
    let mut filter: Vec<_> = program.instructions().iter().map(one).collect();
    let program = libc::sock_fprog {
        // At most 4096, which Program checks.
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the instructions during the call only.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
