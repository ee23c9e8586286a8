// SPDX-License-Identifier: Apache-2.0
//! What `ip` cannot do for us: device flags by ioctl, offloads, and an XDP
//! program that passes everything.
//!
//! All functions work in the network namespace of the calling thread.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, mem};

use libbpf_sys as bpf;

/// `ETHTOOL_STXCSUM`, linux/ethtool.h: transmit checksum offload on or off.
const ETHTOOL_STXCSUM: u32 = 0x17;
/// `ETHTOOL_STSO`, linux/ethtool.h: TCP segmentation offload on or off.
const ETHTOOL_STSO: u32 = 0x1f;
/// `ETHTOOL_SGSO`, linux/ethtool.h.
const ETHTOOL_SGSO: u32 = 0x24;
/// `ETHTOOL_SGRO`, linux/ethtool.h.
const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// `XDP_FLAGS_DRV_MODE`, linux/if_link.h.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// How many programs hang by links on what leaves an interface; none on kernels before 6.6.
pub(crate) fn linked_egress(interface: &str) -> io::Result<usize> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    let mut query = bpf::bpf_prog_query_opts {
        sz: size_of::<bpf::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `query` is of the size that it says and points to nothing.
    let ret = unsafe { bpf::bpf_prog_query_opts(index as i32, bpf::BPF_TCX_EGRESS, &mut query) };
    match ret {
        // SAFETY: the union's members are the same number.
        0 => Ok(unsafe { query.__bindgen_anon_1.count } as usize),
        _ if ret == -libc::EINVAL => Ok(0),
        _ => Err(io::Error::from_raw_os_error(-ret)),
    }
}

fn request(interface: &str) -> io::Result<(OwnedFd, libc::ifreq)> {
    // SAFETY: socket(2) with constants.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ifreq is plain data; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok((socket, request))
}

fn ioctl(socket: &OwnedFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `request` is a live ifreq, which every code used here expects.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), code, request as *mut libc::ifreq) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Brings an interface up.
pub fn up(interface: &str) -> io::Result<()> {
    let (socket, mut request) = request(interface)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled the flags member of the union.
    unsafe { request.ifr_ifru.ifru_flags |= (libc::IFF_UP | libc::IFF_RUNNING) as i16 };
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)
}

fn ethtool(interface: &str, command: u32, value: u32) -> io::Result<()> {
    let (socket, mut request) = request(interface)?;
    // struct ethtool_value { __u32 cmd; __u32 data; }
    let mut argument = [command, value];
    request.ifr_ifru.ifru_data = argument.as_mut_ptr().cast();
    ioctl(&socket, SIOCETHTOOL, &mut request)
}

/// Turns transmit checksum offload on or off. Off means that the sender
/// through this interface writes complete checksums, as on a real wire: an XDP
/// program behind a veth sees them, and they survive `XDP_TX`.
pub fn set_tx_checksum(interface: &str, on: bool) -> io::Result<()> {
    ethtool(interface, ETHTOOL_STXCSUM, u32::from(on))
}

/// Turns generic receive offload on or off.
pub fn set_gro(interface: &str, on: bool) -> io::Result<()> {
    ethtool(interface, ETHTOOL_SGRO, u32::from(on))
}

/// Lets the device cut large buffers, or has the kernel cut them before: then every
/// packet goes over a veth by itself.
pub fn set_segmentation(interface: &str, on: bool) -> io::Result<()> {
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO] {
        ethtool(interface, command, u32::from(on))?;
    }
    Ok(())
}

/// Turns everything on or off that lets one buffer stand for several packets: TSO
/// and GSO when sending, GRO when receiving. On means that an observer sees
/// packets of up to 64 KiB that no wire carries.
pub fn set_offloads(interface: &str, on: bool) -> io::Result<()> {
    set_tx_checksum(interface, on)?;
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO] {
        ethtool(interface, command, u32::from(on))?;
    }
    Ok(())
}

/// An XDP program on an interface; dropped, it is detached.
#[derive(Debug)]
pub struct XdpPass {
    link: OwnedFd,
}

impl XdpPass {
    /// Puts another program in the place of this one, for as long.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let (link, program) = (self.link.as_raw_fd(), program.as_raw_fd());
        // SAFETY: valid descriptors; no options.
        match unsafe { bpf::bpf_link_update(link, program, std::ptr::null()) } {
            0 => Ok(()),
            ret => Err(io::Error::from_raw_os_error(-ret)),
        }
    }
}

/// Attaches a program that passes every packet, in native mode. The peer of a
/// veth needs one: without it, what an XDP program at the other end sends by
/// `XDP_TX` or redirect is lost silently.
pub fn attach_xdp_pass(interface: &str) -> io::Result<XdpPass> {
    attach_xdp(interface, &XDP_PASS_CODE)
}

/// Attaches a program that sends every frame back as it came, in native mode.
pub fn attach_xdp_back(interface: &str) -> io::Result<XdpPass> {
    attach_xdp(interface, &XDP_BACK_CODE)
}

/// Puts a program on an interface that drops the SYN-ACKs of IPv4 (without IP options)
/// that arrive there, as long as what is returned lives.
pub fn attach_syn_ack_drop(interface: &str) -> io::Result<XdpPass> {
    attach_xdp(interface, &SYN_ACK_DROP_CODE)
}

fn attach_xdp(interface: &str, code: &[u64]) -> io::Result<XdpPass> {
    let program = load_xdp(code)?;
    let name = CString::new(interface)?;
    // SAFETY: a valid C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain data; libbpf reads `sz` bytes and takes zero as "not set".
    let mut options: bpf::bpf_link_create_opts = unsafe { mem::zeroed() };
    options.sz = mem::size_of::<bpf::bpf_link_create_opts>() as _;
    options.flags = XDP_FLAGS_DRV_MODE;
    // SAFETY: valid descriptor, index and options.
    let fd =
        unsafe { bpf::bpf_link_create(program.as_raw_fd(), index as i32, bpf::BPF_XDP, &options) };
    Ok(XdpPass { link: own(fd)? })
}

/// Programs small enough to be written down as bytecode: `struct bpf_insn` as words.
/// This one: `r0 = XDP_PASS; exit`.
const XDP_PASS_CODE: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// `r0 = XDP_TX; exit`.
const XDP_BACK_CODE: [u64; 2] = [0x0000_0003_0000_00b7, 0x95];

/// `if (data + 54 <= data_end && data[47] == (SYN | ACK)) return XDP_DROP; return XDP_PASS;`
const SYN_ACK_DROP_CODE: [u64; 10] = [
    0x0000_0000_0000_1261, // r2 = *(u32 *)(r1 + 0), data
    0x0000_0000_0004_1361, // r3 = *(u32 *)(r1 + 4), data_end
    0x0000_0000_0000_24bf, // r4 = r2
    0x0000_0036_0000_0407, // r4 += 54
    0x0000_0002_0000_00b7, // r0 = XDP_PASS
    0x0000_0000_0003_342d, // if r4 > r3 goto exit
    0x0000_0000_002f_2571, // r5 = *(u8 *)(r2 + 47), the TCP flags
    0x0000_0012_0001_0555, // if r5 != SYN | ACK goto exit
    0x0000_0001_0000_00b7, // r0 = XDP_DROP
    0x95,
];

fn load_xdp(code: &[u64]) -> io::Result<OwnedFd> {
    // As libbpf loads one: each can be replaced by the other.
    let mut options = bpf::bpf_prog_load_opts {
        sz: mem::size_of::<bpf::bpf_prog_load_opts>() as _,
        expected_attach_type: bpf::BPF_XDP,
        ..Default::default()
    };
    // SAFETY: the arrays, strings and options outlive the call. An instruction is
    // eight bytes, of which the words above have every one.
    let fd = unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_XDP,
            c"lab_xdp".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            &mut options,
        )
    };
    own(fd)
}

/// A filter that drops SYNs by chance; it goes with its interface.
#[derive(Debug)]
pub struct SynPolice {
    _program: OwnedFd,
}

/// Drops this share of the SYNs that come in at `interface`, as a server's policing
/// does: behind the programs of `causeway agent`.
pub fn attach_syn_police(interface: &str, share: f64) -> io::Result<SynPolice> {
    const BEHIND_THE_AGENTS: u32 = 60;
    let program = load_syn_police((share * f64::from(u32::MAX)) as u32)?;
    let name = CString::new(interface)?;
    // SAFETY: a valid C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut hook = bpf::bpf_tc_hook {
        sz: mem::size_of::<bpf::bpf_tc_hook>() as _,
        ifindex: index as i32,
        attach_point: bpf::BPF_TC_INGRESS,
        ..Default::default()
    };
    let mut options = bpf::bpf_tc_opts {
        sz: mem::size_of::<bpf::bpf_tc_opts>() as _,
        prog_fd: program.as_raw_fd(),
        handle: 1,
        priority: BEHIND_THE_AGENTS,
        // One that was attached before stays until it is replaced.
        flags: bpf::BPF_TC_F_REPLACE,
        ..Default::default()
    };
    let checked = |ret: i32, fine: i32| match ret {
        0 => Ok(()),
        ret if -ret == fine => Ok(()),
        ret => Err(io::Error::from_raw_os_error(-ret)),
    };
    // SAFETY: structs of the sizes that they say.
    checked(unsafe { bpf::bpf_tc_hook_create(&mut hook) }, libc::EEXIST)?;
    // SAFETY: as above; the program lives through the call.
    checked(unsafe { bpf::bpf_tc_attach(&hook, &mut options) }, 0)?;
    Ok(SynPolice { _program: program })
}

/// Flags of a TCP header without IP options: SYN alone, by chance: TC_ACT_SHOT; else
/// TC_ACT_UNSPEC.
fn load_syn_police(threshold: u32) -> io::Result<OwnedFd> {
    const FLAGS_OFFSET: i32 = 14 + 20 + 13;
    const SYN: i32 = 2;
    const SHOT: i32 = 2;
    const UNSPEC: i32 = -1;
    let set = bpf::BPF_ALU64 | bpf::BPF_MOV;
    let call = bpf::BPF_JMP | bpf::BPF_CALL;
    let jump = |what| bpf::BPF_JMP32 | what | bpf::BPF_K;
    let exit = instruction(bpf::BPF_JMP | bpf::BPF_EXIT, (0, 0), 0, 0);
    let program = [
        // Loads relative to the packet take the buffer from r6.
        instruction(set | bpf::BPF_X, (6, 1), 0, 0),
        instruction(
            bpf::BPF_LD | bpf::BPF_ABS | bpf::BPF_B,
            (0, 0),
            0,
            FLAGS_OFFSET,
        ),
        instruction(jump(bpf::BPF_JNE), (0, 0), 4, SYN),
        instruction(call, (0, 0), 0, bpf::BPF_FUNC_get_prandom_u32 as i32),
        instruction(jump(bpf::BPF_JGE), (0, 0), 2, threshold as i32),
        instruction(set | bpf::BPF_K, (0, 0), 0, SHOT),
        exit,
        instruction(set | bpf::BPF_K, (0, 0), 0, UNSPEC),
        exit,
    ];
    // SAFETY: the array and strings outlive the call; no options.
    let fd = unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_SCHED_CLS,
            c"lab_police".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            std::ptr::null_mut(),
        )
    };
    own(fd)
}

fn instruction(code: u32, registers: (u8, u8), off: i16, imm: i32) -> bpf::bpf_insn {
    // SAFETY: plain data.
    let mut one: bpf::bpf_insn = unsafe { mem::zeroed() };
    one.code = code as u8;
    one.set_dst_reg(registers.0);
    one.set_src_reg(registers.1);
    one.off = off;
    one.imm = imm;
    one
}

/// libbpf returns a descriptor or a negative errno.
pub(crate) fn own(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
