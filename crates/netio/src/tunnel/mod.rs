// SPDX-License-Identifier: Apache-2.0
//! What a tunnel's end needs of the kernel: the guests' TUN device, which hands over and
//! takes whole super-packets, UDP sockets that send and receive many datagrams in one
//! call, and the memory that payload stays in on its way between them.
//!
//! Nothing here orders, retransmits or drops: that is the transport's.
//!
//! The kernel is called directly. Of the crates at hand tun-rs cuts super-packets into
//! packets by itself, and quinn-udp sends one contiguous buffer; here messages are made of
//! ranges of memory wherever they lie, without a copy.

pub(crate) mod address;
mod send;
mod slab;
mod tun;
mod udp;
mod wait;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

pub use send::{SendBatch, SendBuffers, Sent};
pub use slab::{BUFFER_BYTES, BufferId, Slab};
pub use tun::{Device, DeviceOptions, FRAME_MAX, Tun, VNET_HEADER};
pub use udp::{PathOptions, PathRoute, ReceiveStatus, ReceivedMessage, UdpPath, UdpReceiver};
pub use wait::{Ready, Waiter, Waker};

/// Why a tunnel's device or path cannot be used.
#[derive(Debug, Error)]
pub enum TunnelError {
    /// A kernel without TUN devices.
    #[error(
        "there is no /dev/net/tun: load the module with `modprobe tun`, or in a container pass the device in"
    )]
    NoTun,
    /// No right to make devices.
    #[error(
        "the kernel does not let this process make the TUN device {0}: run as root, or with CAP_NET_ADMIN"
    )]
    NotPermitted(String),
    /// The device exists and is made otherwise.
    #[error(
        "the device {0} exists with other flags than the tunnel needs: remove it with `ip link del {0}`, or make it with `ip tuntap add {0} mode tun multi_queue vnet_hdr`"
    )]
    OtherDevice(String),
    /// The device is in use.
    #[error("another process has the TUN device {0}: stop it, or choose another `device`")]
    DeviceBusy(String),
    /// The namespace's file cannot be entered.
    #[error("cannot enter the network namespace {}: {cause}", .path.display())]
    Namespace {
        /// Its file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// Another step with the device failed.
    #[error("TUN device {device}: cannot {doing}: {cause}")]
    Device {
        /// Its name.
        device: String,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        cause: io::Error,
    },
    /// A step with a path's socket failed.
    #[error("path {local} to {remote}: cannot {doing}: {cause}")]
    Path {
        /// This end.
        local: SocketAddr,
        /// The other end.
        remote: SocketAddr,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        cause: io::Error,
    },
    /// Sleeping and waking failed.
    #[error("cannot {doing}: {cause}")]
    Wait {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        cause: io::Error,
    },
}
