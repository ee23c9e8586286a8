// SPDX-License-Identifier: Apache-2.0
//! `causeway trace`: why a packet would go where it goes, or with `--live` why packets
//! went where they went.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use causeway_balancer::{BalancerConfig, in_force};
use causeway_dataplane::{ConnLayout, Protocol, Traced, Vip, trace};
use causeway_service::config::socket_address as endpoint;
use clap::ValueEnum;
use etherparse::PacketBuilder;
use serde_json::json;

use crate::capture::{self, PacketFormat, Plane, Selection, Style, ensure_named};

/// Say what a running balancer would do with a packet, and why; with --live, what it does
///
/// `causeway trace 198.51.100.7:4000 192.0.2.1:80 --packet syn` asks for one packet that
/// is not sent: nothing is changed by it. `causeway trace --live` prints each packet
/// that comes, what became of it, and why, until it is stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration of the running balancer
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/causeway.toml"
    )]
    config: PathBuf,
    /// Client's address and port
    #[arg(required_unless_present = "live", conflicts_with = "live", value_parser = endpoint)]
    client: Option<SocketAddr>,
    /// Name of the VIP, or address:port
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    vip: Option<String>,
    /// Do it for packets as they arrive
    #[arg(long, conflicts_with_all = ["packet", "echo", "payload"])]
    live: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: PacketFormat,
    #[command(flatten)]
    selection: Selection,
    /// What the client sends
    ///
    /// [default: udp for the name of a VIP of UDP, else ack]
    #[arg(long, value_enum)]
    packet: Option<Kind>,
    /// Timestamp that the client echoes; without it the packet has none
    #[arg(long, value_name = "N", value_parser = number)]
    echo: Option<u32>,
    /// Bytes of payload
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=9000))]
    payload: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A TCP segment of an open connection
    Ack,
    /// The first segment of a connection
    Syn,
    /// A TCP segment that ends one
    Fin,
    /// A TCP segment that resets one
    Rst,
    /// A datagram
    Udp,
}

/// Decimal, or hexadecimal behind `0x`.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is not a number of 32 bits"))
}

impl Args {
    /// Whether it looks at packets that come.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.live {
            let style = match self.output {
                PacketFormat::Json => Style::Json,
                PacketFormat::Table => Style::Reasons,
            };
            return capture::trace_live(&self.config, style, &self.selection);
        }
        self.check_alone()?;
        ensure_named(&self.config)?;
        let config = in_force(&self.config).map_err(|errors| anyhow::anyhow!("{errors}"))?;
        let (vip, kind) = self.vip_in(&config)?;
        let frame = self.frame(vip, kind)?;
        let stateful = &config.stateful;
        let layout = ConnLayout {
            connections: stateful.connections,
            tier_bits: stateful.balancers.trailing_zeros() as u8,
            tier: stateful.number as u8,
        };
        let traced = trace(&config.pin_dir, layout, config.tunnel_ends, &[frame])
            .with_context(|| format!("no balancer can be asked in {}", config.pin_dir.display()))?;
        let mut plane = Plane::load(&self.config)?;
        plane.refresh()?;
        // A frame to a real on the link has the VIP's address, and the real's MAC.
        let vip = plane.vip_of(Vip {
            address: vip.ip(),
            port: vip.port(),
            protocol: match kind {
                Kind::Udp => Protocol::Udp,
                _ => Protocol::Tcp,
            },
        });
        let sent_to = |traced: &Traced| {
            let destination = traced.destination()?;
            let real = plane.real_of(&traced.frame, vip);
            Some(real.map_or(destination, |(_, address)| address))
        };
        if self.output == PacketFormat::Json {
            let view = |traced: &Traced| {
                json!({
                    "verdict": traced.verdict.as_str(),
                    "meaning": traced.verdict.meaning(),
                    "action": traced.verdict.action().as_str(),
                    "sent_to": sent_to(traced).map(|to| to.to_string()),
                    "bytes": sent_to(traced).map(|_| traced.frame.len()),
                })
            };
            traced.iter().for_each(|one| println!("{}", view(one)));
            return Ok(ExitCode::SUCCESS);
        }
        for traced in traced {
            println!("verdict   {}", traced.verdict.as_str());
            println!("meaning   {}", traced.verdict.meaning());
            println!("action    {}", traced.verdict.action().as_str());
            if let Some(destination) = sent_to(&traced) {
                println!("sent to   {destination}, {} bytes", traced.frame.len());
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What chooses among packets that come means nothing for one that is not sent.
    fn check_alone(&self) -> Result<()> {
        match self.selection.is_everything() {
            true => Ok(()),
            false => bail!("what chooses packets goes with --live alone"),
        }
    }

    /// Where the VIP is that is meant, and the packet to it.
    fn vip_in(&self, config: &BalancerConfig) -> Result<(SocketAddr, Kind)> {
        let text = self.vip.as_deref().unwrap_or_default();
        let vips = config.vips.iter();
        let named = vips.map(|vip| (vip.name.as_str(), vip.key()));
        self.vip_among(named.filter(|(name, _)| *name == text).map(|(_, vip)| vip))
    }

    /// The same, of the VIPs that have the name, of which there is one at most.
    fn vip_among(&self, mut named: impl Iterator<Item = Vip>) -> Result<(SocketAddr, Kind)> {
        let text = self.vip.as_deref().unwrap_or_default();
        let Some(vip) = named.next() else {
            let address = endpoint(text).map_err(|wrong| {
                anyhow::anyhow!(
                    "{wrong}; nor has {} a VIP of that name",
                    self.config.display()
                )
            })?;
            return Ok((address, self.packet.unwrap_or(Kind::Ack)));
        };
        if vip.port == 0 {
            bail!(
                "{text} takes every port: name the one that the packet goes to, as {}",
                SocketAddr::new(vip.address, 80)
            );
        }
        let kind = self.packet.unwrap_or(match vip.protocol {
            Protocol::Tcp => Kind::Ack,
            Protocol::Udp => Kind::Udp,
        });
        Ok((SocketAddr::new(vip.address, vip.port), kind))
    }

    /// An Ethernet frame; the balancer looks at no address of it.
    fn frame(&self, vip: SocketAddr, kind: Kind) -> Result<Vec<u8>> {
        let Some(client) = self.client else {
            bail!("name the client with its port");
        };
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = match (client.ip(), vip.ip()) {
            (IpAddr::V4(client), IpAddr::V4(vip)) => link.ipv4(client.octets(), vip.octets(), 64),
            (IpAddr::V6(client), IpAddr::V6(vip)) => link.ipv6(client.octets(), vip.octets(), 64),
            _ => bail!(
                "client {} and vip {} are of different families",
                client.ip(),
                vip.ip()
            ),
        };
        let payload = vec![0; self.payload.into()];
        let mut frame = Vec::new();
        let (from, to) = (client.port(), vip.port());
        if kind == Kind::Udp {
            ip.udp(from, to).write(&mut frame, &payload)?;
            return Ok(frame);
        }
        let tcp = ip.tcp(from, to, 1, 64_000);
        let mut tcp = match kind {
            Kind::Syn => tcp.syn(),
            Kind::Fin => tcp.fin().ack(1),
            Kind::Rst => tcp.rst(),
            Kind::Ack | Kind::Udp => tcp.ack(1),
        };
        if let Some(echo) = self.echo {
            use etherparse::TcpOptionElement::{Noop, Timestamp};
            tcp = tcp.options(&[Noop, Noop, Timestamp(1, echo)])?;
        }
        tcp.write(&mut frame, &payload)?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = ["trace"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args)
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("17"), Ok(17));
        assert_eq!(number("0xffffFFFF"), Ok(u32::MAX));
        assert!(number("0x100000000").is_err() && number("-1").is_err());
    }

    #[test]
    fn a_packet_has_one_family() {
        let frame = |vip: &str| {
            let line = format!("198.51.100.7:4000 {vip} --packet syn --echo 7");
            parse(&line).unwrap().frame(vip.parse().unwrap(), Kind::Syn)
        };
        assert_eq!(frame("192.0.2.1:80").unwrap().len(), 14 + 20 + 32);
        assert!(frame("[2001:db8::1]:80").is_err());
    }

    #[test]
    fn a_name_brings_its_port_and_protocol() {
        let of = |line: &str, port, protocol| {
            let vip = Vip {
                address: "192.0.2.1".parse().unwrap(),
                port,
                protocol,
            };
            let args = parse(&format!("198.51.100.7:4000 {line}")).unwrap();
            let found = args.vip_among([vip].into_iter());
            found.map(|(address, kind)| (address.port(), kind))
        };
        assert_eq!(of("dns", 53, Protocol::Udp).unwrap(), (53, Kind::Udp));
        assert_eq!(of("web", 80, Protocol::Tcp).unwrap(), (80, Kind::Ack));
        let syn = of("dns --packet syn", 53, Protocol::Udp).unwrap();
        assert_eq!(syn, (53, Kind::Syn));
        let every = of("web", 0, Protocol::Tcp).unwrap_err().to_string();
        assert!(every.contains("takes every port"), "{every}");
        let none = parse("198.51.100.7:4000 web").unwrap();
        let none = none.vip_among([].into_iter()).unwrap_err().to_string();
        assert!(none.contains("nor has"), "{none}");
    }

    #[test]
    fn one_packet_or_live_ones() {
        assert!(parse("").is_err());
        assert!(parse("198.51.100.7:4000").is_err());
        let alone = |line: &str| parse(line).unwrap().check_alone();
        assert!(alone("198.51.100.7:4000 192.0.2.1:80").is_ok());
        assert!(alone("198.51.100.7:4000 192.0.2.1:80 --count 1").is_err());
        assert!(parse("--live 198.51.100.7:4000 192.0.2.1:80").is_err());
        assert!(parse("--live --packet syn").is_err());
        let live = parse("--live -o json --vip web --count 3 --for 1s").unwrap();
        assert!(live.is_live() && live.output == PacketFormat::Json);
    }
}
