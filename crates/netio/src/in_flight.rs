// SPDX-License-Identifier: Apache-2.0
//! How many clients wait for an answer, by the kernel's own account of its connections
//! (sock_diag(7)): those where data came after data last went. No service has to help,
//! and it is as coarse as the kernel's times: what is answered within a millisecond or so
//! is never seen waiting.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use crate::netlink::attribute;
use crate::sock_diag::{self, MESSAGE_LEN, word};

/// `INET_DIAG_INFO`, and the bit that asks for it.
const INFO: u16 = 2;
const INFO_WANTED: u8 = 1 << (INFO - 1);
/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`: a client that has said all may still wait.
const STATES: u32 = 1 << 1 | 1 << 8;
/// Where `struct inet_diag_msg` has what waits to be read.
const RQUEUE_AT: usize = 56;
/// Where `struct tcp_info` has the milliseconds since data went last, and came last.
const SENT_AT: usize = 44;
const RECEIVED_AT: usize = 52;

/// Connections to these addresses of this network namespace whose client waits.
///
/// # Errors
/// If the kernel does not answer: it has no CONFIG_INET_DIAG, say.
pub fn in_flight(addresses: &BTreeSet<IpAddr>) -> io::Result<u32> {
    let families = [(libc::AF_INET, false), (libc::AF_INET6, true)];
    let mut count = 0;
    for (family, is_v6) in families {
        // Sockets for both families are among those of IPv6.
        if is_v6 || addresses.iter().any(IpAddr::is_ipv4) {
            sock_diag::dump(family, STATES, INFO_WANTED, |message| {
                let local = sock_diag::local(message).map(|local| local.ip().to_canonical());
                let ours = local.is_some_and(|local| addresses.contains(&local));
                count += u32::from(ours && waits(message) == Some(true));
            })?;
        }
    }
    Ok(count)
}

/// Whether the client has said something that nothing has been answered to.
fn waits(message: &[u8]) -> Option<bool> {
    if word(message, RQUEUE_AT)? > 0 {
        return Some(true);
    }
    let info = attribute(message.get(MESSAGE_LEN..)?, INFO)?;
    Some(word(info, RECEIVED_AT)? < word(info, SENT_AT)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sock_diag::SOURCE_AT;

    /// Until this many of the connections to this address wait.
    fn settles_at(address: IpAddr, expected: u32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut seen = u32::MAX;
        while Instant::now() < deadline {
            seen = in_flight(&BTreeSet::from([address])).expect("sock_diag");
            if seen == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{seen} of the connections to {address} wait, not {expected}");
    }

    /// An address that no other test uses; loopback has all of them.
    #[test]
    fn those_wait_who_have_asked_and_are_not_answered() {
        let [first, second] = [1, 2].map(|n| IpAddr::from(Ipv4Addr::new(127, 77, 3, n)));
        // The second is that of a socket for both families.
        let both = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        for (bound, address) in [(first, first), (both, second)] {
            let listener = TcpListener::bind((bound, 0)).expect("an address of loopback");
            let to = (address, listener.local_addr().expect("its address").port());
            let mut pairs: Vec<(TcpStream, TcpStream)> = (0..3)
                .map(|_| {
                    let client = TcpStream::connect(to).expect("connect");
                    (client, listener.accept().expect("accept").0)
                })
                .collect();
            let pause = || std::thread::sleep(Duration::from_millis(20));
            pause();
            settles_at(address, 0);
            // Two ask; what is not read yet counts like what is being worked on.
            for (client, _) in &mut pairs[..2] {
                client.write_all(b"?").expect("ask");
            }
            pairs[0].1.read_exact(&mut [0]).expect("read");
            pause();
            settles_at(address, 2);
            pairs[0].1.write_all(b"!").expect("answer");
            settles_at(address, 1);
        }
    }

    #[test]
    fn answers_that_are_cut_are_no_connections() {
        let mut message = vec![0; MESSAGE_LEN];
        message[0] = libc::AF_INET as u8;
        message[SOURCE_AT..SOURCE_AT + 4].copy_from_slice(&[192, 0, 2, 1]);
        message[5] = 80;
        let address = "192.0.2.1:80".parse().expect("address");
        assert_eq!(sock_diag::local(&message), Some(address));
        assert_eq!(waits(&message), None);
        let mut info = vec![0; 64];
        info[SENT_AT] = 9;
        info[RECEIVED_AT] = 8;
        let attributes = [&[5, 0, 7, 0, 1, 0, 0, 0][..], &[68, 0, 2, 0], &info].concat();
        let whole = [&message[..], &attributes].concat();
        assert_eq!(waits(&whole), Some(true));
        for len in 0..MESSAGE_LEN + 8 + 4 + RECEIVED_AT + 4 {
            assert_eq!(waits(&whole[..len]), None, "{len}");
        }
        message[RQUEUE_AT] = 1;
        assert_eq!(waits(&message), Some(true));
    }
}
