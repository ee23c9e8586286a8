// SPDX-License-Identifier: Apache-2.0
//! What ipvsadm prints, byte for byte, so that scripts which read it go on.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use causeway_api::balancer::{RealState, RealView, VipView};

/// The version of IPVS that the lists are of.
const TITLE: &str = "IP Virtual Server version 1.2.1 (size=4096)\n";

/// What a list holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Weights and connections.
    Plain,
    /// Counts since the VIP was made.
    Stats,
    /// Counts in a second, of two lists that far apart.
    Rate,
}

/// A list of these VIPs; `exact` without units.
pub(super) fn list(vips: &[VipView], kind: Kind, exact: bool) -> String {
    let mut text = TITLE.to_owned() + &title(kind);
    for vip in vips {
        let name = format!(
            "{}  {}",
            vip.protocol.to_uppercase(),
            endpoint(&vip.address, vip.port)
        );
        text += &match kind {
            Kind::Plain => format!("{name} {}\n", scheduler(&vip.scheduler)),
            _ => counts(&format!("{name:<33}"), &of_vip(vip), exact),
        };
        for real in &vip.reals {
            let name = format!("  -> {:<28}", endpoint(&real.address, vip.port));
            text += &match kind {
                Kind::Plain => format!(
                    "{name} {:<7} {:<6} {:<10} {:<10}\n",
                    forward(&vip.forwarding),
                    weight(real),
                    real.connections_active,
                    0
                ),
                _ => counts(&name, &of_real(real), exact),
            };
        }
    }
    text
}

fn title(kind: Kind) -> String {
    let columns = match kind {
        Kind::Plain => {
            return "Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n".to_owned();
        }
        Kind::Stats => ["Conns", "InPkts", "OutPkts", "InBytes", "OutBytes"],
        Kind::Rate => ["CPS", "InPPS", "OutPPS", "InBPS", "OutBPS"],
    };
    let mut text = format!("{:<33}", "Prot LocalAddress:Port");
    for column in columns {
        // Writing to a String does not fail.
        let _ = write!(text, " {column:>8}");
    }
    text + "\n  -> RemoteAddress:Port\n"
}

/// Connections, packets and bytes in, packets and bytes out: servers answer past the balancer.
fn of_vip(vip: &VipView) -> [u64; 5] {
    let opened = vip.reals.iter().map(|real| real.connections_opened).sum();
    [opened, vip.packets, 0, vip.bytes, 0]
}

fn of_real(real: &RealView) -> [u64; 5] {
    [real.connections_opened, real.packets, 0, real.bytes, 0]
}

fn counts(name: &str, counts: &[u64], exact: bool) -> String {
    let mut text = name.to_owned();
    for &count in counts {
        text += &large(count, exact);
    }
    text + "\n"
}

/// In nine columns, above 100 million with a unit.
fn large(count: u64, exact: bool) -> String {
    if exact {
        return match count.to_string() {
            digits if digits.len() <= 8 => format!("{digits:>9}"),
            digits => format!(" {digits}"),
        };
    }
    match count {
        0..100_000_000 => format!("{count:>9}"),
        100_000_000..1_000_000_000 => format!("{:>8}K", count / 1000),
        1_000_000_000..100_000_000_000 => format!("{:>8}M", count / 1_000_000),
        100_000_000_000..100_000_000_000_000 => format!("{:>8}G", count / 1_000_000_000),
        _ => format!("{:>8}T", count / 1_000_000_000_000),
    }
}

/// The same VIPs with what was counted since `before` in the place of the counts, in a second.
pub(super) fn rates(before: &[VipView], after: &[VipView], seconds: f64) -> Vec<VipView> {
    let rate = |after: u64, before: u64| (after.saturating_sub(before) as f64 / seconds) as u64;
    let mut rates = after.to_vec();
    for vip in &mut rates {
        // What came in between has no rate yet.
        let former = before.iter().find(|former| former.id == vip.id);
        let count = |of: fn(&VipView) -> u64, now| former.map_or(0, |former| rate(now, of(former)));
        vip.packets = count(|vip| vip.packets, vip.packets);
        vip.bytes = count(|vip| vip.bytes, vip.bytes);
        for real in &mut vip.reals {
            let former = former.and_then(|vip| vip.reals.iter().find(|r| r.id == real.id));
            let count =
                |of: fn(&RealView) -> u64, now| former.map_or(0, |former| rate(now, of(former)));
            real.packets = count(|real| real.packets, real.packets);
            real.bytes = count(|real| real.bytes, real.bytes);
            real.connections_opened =
                count(|real| real.connections_opened, real.connections_opened);
        }
    }
    rates
}

/// The rules that make these VIPs, as `ipvsadm -S` writes them.
pub(super) fn rules(vips: &[VipView]) -> String {
    let mut text = String::new();
    for vip in vips {
        let flag = if vip.protocol == "udp" { "-u" } else { "-t" };
        let service = format!("{flag} {}", endpoint(&vip.address, vip.port));
        let _ = write!(text, "-A {service} -s {}", scheduler(&vip.scheduler));
        // IPVS's goes by the client's address without it.
        let by_client = vip.affinity == "client" || vip.fragments == "forward";
        if vip.scheduler == "maglev" && !by_client {
            text += " -b mh-port";
        }
        // What IPVS keeps with each real is the VIP's here.
        if vip.forwarding != "ipip" {
            let _ = write!(text, " --forwarding {}", vip.forwarding);
        }
        text.push('\n');
        for real in &vip.reals {
            let _ = write!(
                text,
                "-a {service} -r {} {} -w {}",
                endpoint(&real.address, vip.port),
                if vip.forwarding == "l2" { "-g" } else { "-i" },
                weight(real)
            );
            if let Some(mac) = &real.mac {
                let _ = write!(text, " --mac {mac}");
            }
            text.push('\n');
        }
    }
    text
}

/// The word of IPVS that does the same, or else Causeway's.
fn scheduler(word: &str) -> &str {
    match word {
        "round-robin" => "rr",
        "weighted-round-robin" => "wrr",
        "least-loaded" => "wlc",
        "maglev" => "mh",
        "p2c" => "twos",
        word => word,
    }
}

fn forward(forwarding: &str) -> &'static str {
    match forwarding {
        "l2" => "Route",
        _ => "Tunnel",
    }
}

/// A real that drains has none, as `-w 0` has it.
fn weight(real: &RealView) -> u32 {
    use RealState::{Drain, Maintenance, Standby, Waiting};
    match real.is(&[Drain, Maintenance, Standby, Waiting]) {
        true => 0,
        false => real.weight,
    }
}

fn endpoint(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{address}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_have_the_width_and_the_units_of_ipvsadm() {
        for (count, expected) in [
            (0, "        0"),
            (99_999_999, " 99999999"),
            (100_000_000, "  100000K"),
            (1_000_000_000, "    1000M"),
            (100_000_000_000, "     100G"),
            (100_000_000_000_000, "     100T"),
        ] {
            assert_eq!(large(count, false), expected);
        }
        assert_eq!(large(12_345_678, true), " 12345678");
        assert_eq!(large(123_456_789, true), " 123456789");
    }

    #[test]
    fn titles_are_those_of_ipvsadm() {
        assert_eq!(
            title(Kind::Stats),
            "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n  -> RemoteAddress:Port\n"
        );
        assert_eq!(
            title(Kind::Rate),
            "Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS\n  -> RemoteAddress:Port\n"
        );
    }
}
