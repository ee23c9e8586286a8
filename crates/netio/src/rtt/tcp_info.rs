// SPDX-License-Identifier: Apache-2.0
//! `struct tcp_info` (linux/tcp.h), as `getsockopt(TCP_INFO)` gives it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// What the kernel says of one connection. Fields have the names of `ss -i` and of
/// `struct tcp_info`; those that an older kernel does not know are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub wscale: u8,
    pub flags: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent_ms: u32,
    pub last_ack_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
}

// As in linux/tcp.h up to tcpi_reord_seen (Linux 4.19).
const _: () = assert!(size_of::<TcpInfo>() == 224);
const _: () = assert!(std::mem::offset_of!(TcpInfo, rtt_us) == 68);
const _: () = assert!(std::mem::offset_of!(TcpInfo, min_rtt_us) == 148);
const _: () = assert!(std::mem::offset_of!(TcpInfo, delivered) == 192);

impl TcpInfo {
    /// Asks the kernel.
    ///
    /// # Errors
    /// Those of getsockopt(2): not a TCP socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut info = Self::default();
        let mut len = size_of::<Self>() as libc::socklen_t;
        // SAFETY: `info` is writable for `len` bytes, and any bytes are a value.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &mut len,
            )
        };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info)
    }

    /// Least round-trip time in nanoseconds; 0 before the first measurement, for
    /// which the kernel says "all ones".
    pub fn min_rtt_ns(&self) -> u64 {
        match self.min_rtt_us {
            u32::MAX => 0,
            us => u64::from(us) * 1_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_fills_the_fields_where_we_look() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        let mut buffer = [0; 100];
        for _ in 0..5 {
            client.write_all(&[1; 100]).expect("write");
            server.read_exact(&mut buffer).expect("read");
            server.write_all(&[2; 50]).expect("write");
            client.read_exact(&mut buffer[..50]).expect("read");
        }
        let info = TcpInfo::of(&client).expect("tcp_info");
        assert_eq!(info.state, 1, "established");
        assert_eq!((info.data_segs_out, info.data_segs_in), (5, 5));
        assert_eq!((info.bytes_sent, info.bytes_received), (500, 250));
        assert_eq!((info.total_retrans, info.bytes_retrans), (0, 0));
        assert!(info.rtt_us > 0 && info.rtt_us < 10_000_000, "{info:?}");
        assert!(info.min_rtt_ns() > 0 && info.delivered >= 5, "{info:?}");
    }
}
