// SPDX-License-Identifier: Apache-2.0
//! One frame on its way to the balancer, for a flood that repeats it.

use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::BALANCER_PORT;
use crate::load::frame_flood::{FRAME_MAX, packet_socket};
use crate::netns::Netns;

/// How long there may be none.
const PATIENCE: Duration = Duration::from_secs(60);

/// The next frame to the balancer that `wanted` wants.
pub(super) fn frame(
    router: &Netns,
    wanted: impl Fn(&[u8]) -> bool + Send + 'static,
) -> Result<Vec<u8>> {
    router.run(move || {
        let every = libc::ETH_P_ALL as u16;
        let socket =
            packet_socket(BALANCER_PORT, every).context("listening at the balancer's port")?;
        let deadline = Instant::now() + PATIENCE;
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
        bail!("no such packet went to the balancer within {PATIENCE:?}")
    })
}
