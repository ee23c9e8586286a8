// SPDX-License-Identifier: Apache-2.0
//! Numbers and addresses as text, as `Display` has them, without its formatting: with
//! short epochs a row has ten of them for a few dozen packets.

use std::io::{self, Write};
use std::net::IpAddr;

pub(crate) fn decimal(out: &mut impl Write, number: impl Into<u64>) -> io::Result<()> {
    out.write_all(itoa::Buffer::new().format(number.into()).as_bytes())
}

/// Writes nanoseconds as microseconds with three decimal places.
pub(crate) fn micros(out: &mut impl Write, ns: f64) -> io::Result<()> {
    let ns = ns.round() as u64;
    let part = |scale| b'0' + (ns / scale % 10) as u8;
    decimal(out, ns / 1000)?;
    out.write_all(&[b'.', part(100), part(10), part(1)])
}

pub(crate) fn address(out: &mut impl Write, address: IpAddr) -> io::Result<()> {
    let IpAddr::V4(address) = address else {
        return write!(out, "{address}");
    };
    let [first, rest @ ..] = address.octets();
    decimal(out, first)?;
    for octet in rest {
        out.write_all(b".")?;
        decimal(out, octet)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_is_what_display_writes() {
        for number in [
            0,
            1,
            9,
            10,
            99,
            100,
            65_535,
            1_795_253_055_000_000_000,
            u64::MAX,
        ] {
            assert_eq!(text(|out| decimal(out, number)), number.to_string());
        }
        for (ns, micro) in [
            (0.0, "0.000"),
            (7.4, "0.007"),
            (1000.0, "1.000"),
            (2_232_410.5, "2232.411"),
            (45_060.0, "45.060"),
        ] {
            assert_eq!(text(|out| micros(out, ns)), micro);
        }
        for ip in [
            "0.0.0.0",
            "10.9.255.1",
            "192.168.100.20",
            "2001:db8::1",
            "::",
        ] {
            assert_eq!(text(|out| address(out, ip.parse().unwrap())), ip);
        }
    }
}
