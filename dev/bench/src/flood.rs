// SPDX-License-Identifier: Apache-2.0
//! Both ends of a flood, for the lab; see `bpf/flood.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::{io, mem};

use anyhow::{Context as _, Result, ensure};
use causeway_netio::Interface;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_sys as bpf;

use crate::skel::flood::{FloodSkel, FloodSkelBuilder};

/// Room for a frame; `FLOOD_FRAME_MAX`.
pub const FRAME_MAX: usize = 1514;
/// Frames of one run; `FLOOD_FRAMES`.
pub const FRAMES: usize = 256;
/// The hop limit of frames that end behind the balancer; `FLOOD_HOP_LIMIT`.
pub const HOP_LIMIT: u8 = 77;
/// Frames that the receiving end of a veth pair gets at once, of the 256 that it has room for.
const BATCH: u32 = 64;

const WHAT: &str = "cannot load a flood's programs";

/// The programs of `bpf/flood.bpf.c`.
pub struct FloodPrograms {
    skel: FloodSkel<'static>,
}

// SAFETY: libbpf's objects may be used by any thread, by one at a time.
unsafe impl Send for FloodPrograms {}

impl FloodPrograms {
    /// Loads them. What is sent goes out of an interface of the calling thread's network namespace.
    pub fn load(interface: &str) -> Result<Self> {
        let interface = Interface::find(interface)?;
        // The object borrows it for as long as the process lives: two for each flood.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let open = FloodSkelBuilder::default().open(storage).context(WHAT)?;
        let mut skel = open.load().context(WHAT)?;
        let shared = skel.maps.bss_data.as_deref_mut().context(WHAT)?;
        shared.interface = interface.index;
        Ok(Self { skel })
    }

    /// Puts the sending program on an interface where nothing comes, too. Else each run would
    /// write the kernel's list of XDP programs in use twice, and wait for a grace period of RCU.
    pub fn keep_at(&self, interface: &str) -> Result<()> {
        let interface = Interface::find(interface)?;
        let program = self.skel.progs.flood_begin.as_fd().as_raw_fd();
        // SAFETY: a valid descriptor; no options.
        let ret = unsafe {
            bpf::bpf_xdp_attach(
                interface.index as i32,
                program,
                bpf::XDP_FLAGS_SKB_MODE,
                std::ptr::null(),
            )
        };
        match ret {
            0 => Ok(()),
            ret => Err(io::Error::from_raw_os_error(-ret)).context(WHAT),
        }
    }

    /// Makes this many frames: `make` writes one into the buffer and returns its length.
    pub fn fill(
        &mut self,
        count: usize,
        mut make: impl FnMut(usize, &mut [u8; FRAME_MAX]) -> usize,
    ) -> Result<()> {
        let shared = self.skel.maps.bss_data.as_deref_mut().context(WHAT)?;
        for (i, frame) in shared.frames[..count].iter_mut().enumerate() {
            let octets = frame.octets.first_chunk_mut().context(WHAT)?;
            frame.length = make(i, octets) as u32;
        }
        Ok(())
    }

    /// Sends the first of them, or more than there are: all of them again and again.
    pub fn send(&mut self, count: usize) -> Result<()> {
        let shared = self.skel.maps.bss_data.as_deref_mut().context(WHAT)?;
        shared.position = 0;
        let longest = [0u8; FRAME_MAX];
        let mut options = bpf::bpf_test_run_opts {
            sz: mem::size_of::<bpf::bpf_test_run_opts>() as _,
            data_in: longest.as_ptr().cast(),
            data_size_in: FRAME_MAX as u32,
            repeat: count as i32,
            flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH,
            ..Default::default()
        };
        let program = self.skel.progs.flood_begin.as_fd().as_raw_fd();
        // SAFETY: the options and the frame that they point to live through the call.
        let ret = unsafe { bpf::bpf_prog_test_run_opts(program, &mut options) };
        if ret < 0 {
            return Err(io::Error::from_raw_os_error(-ret)).context("sending frames");
        }
        let shared = self.skel.maps.bss_data.as_deref().context(WHAT)?;
        ensure!(
            shared.position as usize == count,
            "{} of {count} frames were sent",
            shared.position
        );
        Ok(())
    }

    /// What drops the frames that have [`HOP_LIMIT`], for where they come back.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.skel.progs.flood_end.as_fd()
    }

    /// Frames that it dropped.
    pub fn ended(&self) -> u64 {
        self.skel.maps.bss_data.as_deref().map_or(0, |b| b.ended)
    }
}
