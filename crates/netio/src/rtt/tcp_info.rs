// SPDX-License-Identifier: Apache-2.0
//! `struct tcp_info` (linux/tcp.h), as `getsockopt(TCP_INFO)` gives it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// What the kernel says of one connection. Fields have the names of `struct tcp_info`; those that
/// an older kernel does not know are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TcpInfo {
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub snd_cwnd: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    /// In nanoseconds; 0 before the first measurement, for which the kernel says "all ones".
    pub min_rtt_ns: u64,
    pub total_retrans: u32,
    pub data_segs_out: u32,
    pub delivered: u32,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
}

impl TcpInfo {
    /// Asks the kernel.
    ///
    /// # Errors
    /// Those of getsockopt(2): not a TCP socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        // SAFETY: the structure has numbers alone, which may be 0.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&info) as libc::socklen_t;
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
        Ok(Self {
            rto_us: info.tcpi_rto,
            ato_us: info.tcpi_ato,
            snd_mss: info.tcpi_snd_mss,
            snd_cwnd: info.tcpi_snd_cwnd,
            rtt_us: info.tcpi_rtt,
            rttvar_us: info.tcpi_rttvar,
            min_rtt_ns: match info.tcpi_min_rtt {
                u32::MAX => 0,
                us => u64::from(us) * 1_000,
            },
            total_retrans: info.tcpi_total_retrans,
            data_segs_out: info.tcpi_data_segs_out,
            delivered: info.tcpi_delivered,
            bytes_retrans: info.tcpi_bytes_retrans,
            dsack_dups: info.tcpi_dsack_dups,
        })
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
        assert_eq!(info.data_segs_out, 5);
        assert_eq!((info.total_retrans, info.bytes_retrans), (0, 0));
        assert!(info.rtt_us > 0 && info.rtt_us < 10_000_000, "{info:?}");
        assert!(info.min_rtt_ns > 0 && info.delivered >= 5, "{info:?}");
    }
}
