// SPDX-License-Identifier: Apache-2.0
//! Questions about the kernel's links, addresses, routes and neighbours.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Bytes of a netlink message's header; the first four are the message's length.
const HEADER_LEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Sends a dump request and collects what `pick` takes of the answer. Entries that
/// this build cannot decode are passed over: a newer kernel may have them.
///
/// The socket asks the kernel to be strict: it then dumps what the request's header and attributes
/// select, and not the whole table.
pub(crate) fn dump<T>(
    request: RouteNetlinkMessage,
    mut pick: impl FnMut(RouteNetlinkMessage) -> Option<T>,
) -> io::Result<Vec<T>> {
    let socket = send(request, NLM_F_DUMP | NLM_F_REQUEST)?;
    let mut found = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in decoded(&datagram) {
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(entry) => found.extend(pick(entry)),
                _ => {}
            }
        }
    }
}

/// Asks for one entry. `None` if the kernel has none, or one that cannot be decoded.
pub(crate) fn get(request: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
    let socket = send(request, NLM_F_REQUEST)?;
    let (datagram, _) = socket.recv_from_full()?;
    match decoded(&datagram).next().map(|message| message.payload) {
        Some(NetlinkPayload::InnerMessage(entry)) => Ok(Some(entry)),
        Some(NetlinkPayload::Error(error)) => {
            let error = error.to_io();
            let none = [
                libc::ENOENT,
                libc::ENODEV,
                libc::ENETUNREACH,
                libc::EHOSTUNREACH,
            ];
            match error
                .raw_os_error()
                .is_some_and(|code| none.contains(&code))
            {
                true => Ok(None),
                false => Err(error),
            }
        }
        _ => Ok(None),
    }
}

/// Asks for a change, and waits until it is made.
pub(crate) fn change(request: RouteNetlinkMessage) -> io::Result<()> {
    let socket = send(request, NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE)?;
    let (datagram, _) = socket.recv_from_full()?;
    match decoded(&datagram).next().map(|message| message.payload) {
        Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(()),
    }
}

/// Asks another protocol than routing for all entries, by what it has behind the netlink header, and
/// shows each message of the answer: its kind, and what is behind that header.
pub(crate) fn raw_dump(
    protocol: isize,
    kind: u16,
    request: &[u8],
    mut visit: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + request.len());
    bytes.extend(((HEADER_LEN + request.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_DUMP | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(request);
    socket.send(&bytes, 0)?;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in messages(&datagram) {
            let (head, body) = message.split_at(HEADER_LEN);
            match u16::from_ne_bytes([head[4], head[5]]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = body.first_chunk().map_or(0, |c| i32::from_ne_bytes(*c));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                kind => visit(kind, body),
            }
        }
    }
}

/// The value of the first attribute of a kind.
pub(crate) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    const HEADER: usize = 4;
    const KIND_MASK: u16 = 0x3fff;
    loop {
        let [l0, l1, k0, k1] = *bytes.first_chunk::<HEADER>()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(HEADER..len)?;
        if u16::from_ne_bytes([k0, k1]) & KIND_MASK == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn send(request: RouteNetlinkMessage, flags: u16) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.set_netlink_get_strict_chk(true)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    Ok(socket)
}

fn decoded(datagram: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    messages(datagram).filter_map(|bytes| NetlinkMessage::deserialize(bytes).ok())
}

/// The messages of a datagram, each padded to four bytes.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
        let message = datagram.get(..len).filter(|_| len >= HEADER_LEN)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::messages;

    #[test]
    fn a_datagram_is_split_at_the_lengths_it_names() {
        let mut datagram = vec![0; 18];
        datagram[0] = 18;
        datagram.extend([0, 0]);
        datagram.extend([16, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        let lens: Vec<usize> = messages(&datagram).map(<[u8]>::len).collect();
        assert_eq!(lens, [18, 16]);
    }

    #[test]
    fn lengths_that_lie_end_the_datagram() {
        for len in [0_u32, 3, 15, 21, u32::MAX] {
            let mut datagram = [0; 20];
            datagram[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&datagram).count(), 0, "{len}");
        }
        assert_eq!(messages(&[1, 2]).count(), 0);
    }
}
