// SPDX-License-Identifier: Apache-2.0
//! One frame on its way to the balancer, for a flood that repeats it.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, mem};

use anyhow::{Context as _, Result, bail};

use super::{BALANCER_PORT, TIMEOUT};
use crate::load::frame_flood::FRAME_MAX;
use crate::netns::Netns;

/// The next frame to the balancer that `wanted` wants.
pub(super) fn frame(
    router: &Netns,
    wanted: impl Fn(&[u8]) -> bool + Send + 'static,
) -> Result<Vec<u8>> {
    router.run(move || {
        let socket = packet_socket(BALANCER_PORT).context("listening at the balancer's port")?;
        let deadline = Instant::now() + TIMEOUT;
        let mut frame = [0u8; FRAME_MAX];
        while Instant::now() < deadline {
            // SAFETY: the buffer is as long as is said.
            let length = unsafe {
                libc::recv(
                    socket.as_raw_fd(),
                    frame.as_mut_ptr().cast(),
                    frame.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            match usize::try_from(length) {
                Ok(length) if wanted(&frame[..length.min(FRAME_MAX)]) => {
                    return Ok(frame[..length].to_vec());
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        bail!("no such packet went to the balancer within {TIMEOUT:?}")
    })
}

/// A packet socket that receives all that goes through a device.
fn packet_socket(device: &str) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) with constants.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_ll is plain data; all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = nix::net::if_::if_nametoindex(device)? as i32;
    // SAFETY: the address lives through the call, and the length is its own.
    let rc = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as u32,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
