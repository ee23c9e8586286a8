// SPDX-License-Identifier: Apache-2.0

#![warn(missing_docs)]

//! The multipath transport under the tenants' TCP, as a sans-IO engine.
//!
//! A [`TransportEngine`] is one end of one tunnel. It knows neither sockets nor clocks nor
//! payload: it takes the time, headers and handles, and gives back headers, handles
//! and a deadline. The guests' packets stay in the caller's memory from the socket
//! to the vNIC.
//!
//! # Contract
//!
//! **Time** is `now_ns`, nanoseconds of any monotonic clock. It never goes back
//! between two calls.
//!
//! **Memory.** Payload lies in slots of the caller, named by opaque numbers; a
//! [`Span`] is a range in a slot. The caller counts references to each slot:
//!
//! * [`TransportEngine::handle_frame`] that returns `Ok` takes one reference to the frame's
//!   slot. The frame's bytes must not change until it comes back.
//! * [`TransportEngine::handle_datagram`] that returns [`SlotReference::Taken`] takes one
//!   reference to the datagram's slot; several datagrams of one receive buffer take one each.
//! * [`TransportEngine::poll_release`] gives references back, those of frames and of
//!   datagrams alike: the caller tells them apart by its slot numbers.
//! * [`TransportEngine::poll_deliver`] hands the references of its spans to the caller, one for
//!   each span, whatever the verdict will be. The engine does not release those.
//!
//! Never are more references out than [`Limits::frames`] for frames and
//! [`Limits::chunks`] for datagrams, so a slab of that many slots cannot run dry. (A
//! small datagram that is held pins its whole slot: give small datagrams small slots.)
//!
//! **Order of calls.** Any, with three rules. After each batch of `handle_*` calls,
//! drain `poll_deliver`, then `poll_transmit`, `poll_release` and `poll_event`; that
//! order lets an acknowledgement say what the same batch delivered. Then sleep until a
//! socket or the TUN is readable or [`TransportEngine::poll_timeout`] is reached, and call
//! [`TransportEngine::handle_timeout`] (the time may be reached already). Each delivery gets
//! its verdict by [`TransportEngine::delivered`] before the next `poll_deliver`.
//!
//! **Backpressure.** Read the TUN only while [`TransportEngine::can_accept`] is true. It is
//! false when what waits is more than the windows of all live paths let through (and
//! [`TransportConfig::read_ahead_ns`] beside bulk), when this end or the peer holds as much as
//! it may and while there is no live path: the guest's queue in front of the TUN is then the
//! one that fills, and its TCP sees that as any full queue. Once that has lasted for longer than a
//! frame may wait, [`TransportEngine::is_cut_off`] is true: the TUN is then read, too, and what
//! comes is dropped, so that nothing old is sent first when a path is back. What waits in the
//! engine is sent flow by flow in turns, those with little to send first.
//!
//! # A loop
//!
//! ```text
//! loop {
//!     wait(sockets, tun if engine.can_accept() or engine.is_cut_off(), engine.poll_timeout());
//!     for each datagram received: engine.handle_datagram(now, path, from, bytes, span)
//!     engine.handle_timeout(now);    // not before: what it waits for may have come
//!     while engine.can_accept() or engine.is_cut_off():  engine.handle_frame(now, span, flow_hash(packet))
//!     while let Some(delivery) = engine.poll_deliver():
//!         verdict = vnic.push(delivery.spans);  engine.delivered(now, token, verdict)
//!     while engine.poll_transmit(now, &mut batch):  one sendmsg with UDP_SEGMENT
//!     while let Some(release) = engine.poll_release():  slab.unref(release)
//! }
//! ```
//!
//! # Frames
//!
//! A frame is what one `read` of a TUN with `IFF_VNET_HDR` gives: ten bytes of
//! `struct virtio_net_hdr` (little-endian, `TUNSETVNETLE`), then an IP packet of up to 65,535
//! bytes. It is segmented into at most 64 chunks of one size, the last of which may be shorter.
//! Each travels in one UDP datagram; the frame is reassembled and written to the far TUN as it
//! was: the guests' packets are neither checksummed nor segmented on the way. See [`wire`] for the format.

pub mod wire;

mod batch;
mod config;
mod control;
mod drop_reason;
mod engine;
mod events;
mod fair_queue;
mod flow_hash;
mod gro;
mod metrics;
mod outbound;
mod path;
mod path_table;
mod read_ahead;
mod reassembly;
mod release_queue;
mod reorder;
mod scheduler;
mod seal;
mod segmentation;
mod send_buffer;
mod session;
mod types;
mod virtio;

pub use batch::{DatagramParts, Transmit};
pub use config::{
    Limits, PathConfig, Rto, Schedule, TransportConfig, TransportConfigError, TunnelKey, TunnelKeys,
};
pub use drop_reason::DropReason;
pub use engine::TransportEngine;
pub use events::TunnelEvent;
pub use flow_hash::flow_hash;
pub use metrics::{PathMetrics, PathState, TunnelMetrics};
pub use types::{Delivery, DeliveryToken, DeliveryVerdict, PathId, Release, SlotReference, Span};
pub use virtio::VNET_HEADER_LEN;
