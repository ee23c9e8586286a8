// SPDX-License-Identifier: Apache-2.0
//! From options to a loaded program.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use causeway_core::estimate::Method;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapType, OpenObject};

use super::failed;
use super::options::MeterOptions;
use crate::abi::{self, c};
use crate::error::{DataPlaneError, Result};
use crate::map::errno;
use crate::skel::meter::{MeterSkel, MeterSkelBuilder, OpenMeterSkel, types};

fn number(method: &Method) -> u32 {
    match method {
        Method::WindowChain => c::METER_WINDOW_CHAIN,
        Method::FixedGap(_) => c::METER_FIXED_GAP,
        Method::Modes(_) => c::METER_MODES,
    }
}

/// Sets which estimator the program runs, and with what parameters.
pub fn set_method(rodata: &mut types::rodata, method: &Method) {
    rodata.cfg_method = number(method);
    set_parameters(rodata, method);
}

fn set_parameters(rodata: &mut types::rodata, method: &Method) {
    match method {
        Method::WindowChain => {}
        Method::FixedGap(config) => {
            rodata.cfg_fixed_gap = types::fixed_gap_config {
                delta_ns: config.delta_ns,
                idle_ns: config.idle_ns,
            };
        }
        Method::Modes(config) => {
            rodata.cfg_modes = types::modes_config {
                epsilon_ns: config.epsilon_ns,
                epsilon_permille: config.epsilon_permille,
                modes: config.modes,
                tcp_timeout_ns: config.tcp_timeout_ns,
                other_timeout_ns: config.other_timeout_ns,
                ibg: config.ibg as u32,
                mtu: config.mtu,
            };
        }
    }
}

/// The estimators with the slot of each, the kernel's order: the first one shares
/// its entry with the flow, the others have maps of their own.
pub(super) fn in_order(options: &MeterOptions) -> Vec<(u8, &Method)> {
    let mut methods: Vec<_> = (0..).zip(options.methods()).collect();
    methods.sort_by_key(|(_, method)| number(method));
    methods
}

/// Loads the XDP program, or that for TC.
pub(super) fn load(options: &MeterOptions, tc: bool) -> Result<MeterSkel<'static>> {
    // The skeleton borrows the object. It is given up, with the program and its
    // maps, until the process ends; a process starts one meter, or a few.
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = MeterSkelBuilder::default()
        .open(storage)
        .map_err(|e| failed("open the meter's object", &e))?;
    open.progs.causeway_meter.set_autoload(!tc);
    open.progs.causeway_meter_tc.set_autoload(tc);
    configure(&mut open, options);
    set_sizes(&mut open, options).map_err(|e| failed("set the sizes of the meter's maps", &e))?;
    let next = options.next.as_deref().map(Next::open).transpose()?;
    if let Some(Next::Array(array)) = &next {
        let reused = open.maps.next.reuse_fd(array.as_fd());
        reused.map_err(|e| failed("use the pinned program array", &e))?;
    }
    let skel = open.load().map_err(|e| failed("load the meter", &e))?;
    if let Some(Next::Program(program)) = &next {
        let fd = program.as_raw_fd().to_ne_bytes();
        let put = skel
            .maps
            .next
            .update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY);
        put.map_err(|e| failed("hand packets on to the pinned program, which must be an XDP program without fragments", &e))?;
    }
    for (address, len) in &options.client_nets {
        // An IPv4 network lies in the mapped part of IPv6.
        let bits = u32::from(*len) + if address.is_ipv4() { 96 } else { 0 };
        let key = [&bits.to_ne_bytes()[..], &abi::addr_bytes(*address)].concat();
        let put = skel.maps.client_nets.update(&key, &[1], MapFlags::ANY);
        put.map_err(|e| failed("store a network of clients", &e))?;
    }
    Ok(skel)
}

fn configure(open: &mut OpenMeterSkel<'static>, options: &MeterOptions) {
    let Some(rodata) = open.maps.rodata_data.as_deref_mut() else {
        return;
    };
    rodata.cfg_epoch_ns = options.epoch.as_nanos() as u64;
    rodata.cfg_opaque = options.opaque;
    rodata.cfg_clock_offset_ns = clock_offset_ns();
    rodata.cfg_histograms = options.max_servers > 0;
    rodata.cfg_client_nets = !options.client_nets.is_empty();
    for (place, (slot, method)) in in_order(options).into_iter().enumerate() {
        set_parameters(rodata, method);
        match (place, method) {
            (0, _) => (rodata.cfg_method, rodata.cfg_slot) = (number(method), slot),
            (_, Method::FixedGap(_)) => {
                (rodata.cfg_also_gap, rodata.cfg_gap_slot) = (true, slot);
            }
            (_, Method::Modes(_)) => {
                (rodata.cfg_also_modes, rodata.cfg_modes_slot) = (true, slot);
            }
            // It sorts first.
            (_, Method::WindowChain) => {}
        }
    }
}

fn set_sizes(
    open: &mut OpenMeterSkel<'static>,
    options: &MeterOptions,
) -> Result<(), libbpf_rs::Error> {
    open.maps.flows.set_max_entries(options.max_flows)?;
    let beside = |wanted: fn(&Method) -> bool| {
        let mut others = in_order(options).into_iter().skip(1);
        match others.any(|(_, method)| wanted(method)) {
            true => options.max_flows,
            false => 1,
        }
    };
    let gap = beside(|method| matches!(method, Method::FixedGap(_)));
    let modes = beside(|method| matches!(method, Method::Modes(_)));
    open.maps.gap_flows.set_max_entries(gap)?;
    open.maps.modes_flows.set_max_entries(modes)?;
    let servers = options
        .max_servers
        .saturating_mul(options.methods().count() as u32);
    open.maps.servers.set_max_entries(servers.max(1))
}

/// What gets the packets after the meter.
enum Next {
    /// A program array; the process that pinned it keeps it filled.
    Array(OwnedFd),
    /// One program.
    Program(OwnedFd),
}

impl Next {
    fn open(path: &Path) -> Result<Self> {
        let wrong = |why: String| DataPlaneError::Next {
            path: path.to_owned(),
            why,
        };
        use std::os::unix::ffi::OsStrExt as _;
        let name = std::ffi::CString::new(path.as_os_str().as_bytes())
            .map_err(|e| wrong(e.to_string()))?;
        // SAFETY: `name` is a C string for the time of the call.
        let fd = unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) };
        if fd < 0 {
            return Err(wrong(errno(fd).to_string()));
        }
        // SAFETY: a new descriptor that no other code owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The kernel describes either kind in the same way; the link says which.
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let kind = kind.map_err(|e| wrong(e.to_string()))?;
        match kind.to_string_lossy().as_ref() {
            "anon_inode:bpf-map" if map_type(&fd) == Some(MapType::ProgArray) => {
                Ok(Self::Array(fd))
            }
            "anon_inode:bpf-map" => Err(wrong("it is a map, but no program array".to_owned())),
            "anon_inode:bpf-prog" if is_xdp(&fd) => Ok(Self::Program(fd)),
            "anon_inode:bpf-prog" => Err(wrong("it is not an XDP program".to_owned())),
            _ => Err(wrong("it is neither program nor map".to_owned())),
        }
    }
}

fn map_type(map: &OwnedFd) -> Option<MapType> {
    let mut info = libbpf_sys::bpf_map_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is `len` bytes long and any bytes are a value of it.
    let ret = unsafe { libbpf_sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &mut info, &mut len) };
    (ret == 0).then(|| MapType::from(info.type_))
}

fn is_xdp(program: &OwnedFd) -> bool {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: as above.
    let ret =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len) };
    ret == 0 && info.type_ == libbpf_sys::BPF_PROG_TYPE_XDP
}

/// From the kernel's monotonic clock to Unix time, as it is now.
pub(super) fn clock_offset_ns() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    match (unix, monotonic.map(Duration::from)) {
        (Ok(unix), Ok(monotonic)) => unix.saturating_sub(monotonic).as_nanos() as u64,
        _ => 0,
    }
}
