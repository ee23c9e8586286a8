// SPDX-License-Identifier: Apache-2.0
//! The data plane that is looked at, and what its numbers mean.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use causeway_agent::AgentConfig;
use causeway_balancer::in_force;
use causeway_dataplane::abi::{Action, ServerVerdict, Verdict};
use causeway_dataplane::{
    Forwarding, Inventory, MirroredPacket, RealId, Vip, VipId, destination_of,
};

use crate::config_cmd::is_agents_file;

/// A balancer or a server on this machine, by its configuration.
#[derive(Debug)]
pub(crate) enum Plane {
    /// A balancer.
    Balancer {
        /// Where its maps are.
        pin_dir: PathBuf,
        /// Where packets come and go.
        interface: String,
        /// Names of VIPs in the file.
        names: Vec<(String, Vip)>,
        /// What the data plane has, which the file need not name.
        pool: Inventory,
    },
    /// A server's end of the tunnels.
    Server {
        /// Where its maps are.
        pin_dir: PathBuf,
        /// Where packets come.
        interface: String,
    },
}

/// A verdict, of either kind of data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Its word.
    pub verdict: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What XDP did.
    pub action: Action,
}

/// These commands find the data plane by the daemon's file, so that they work without the daemon.
pub(crate) fn ensure_named(file: &Path) -> Result<()> {
    ensure!(
        file.exists(),
        "there is no file {}: name the one that the daemon was started with (-c FILE), which says where its maps are",
        file.display()
    );
    Ok(())
}

impl Plane {
    /// Reads the configuration, which says itself whose it is.
    pub(crate) fn load(file: &Path) -> Result<Self> {
        ensure_named(file)?;
        if is_agents_file(file) {
            let config = AgentConfig::load(file).map_err(|errors| anyhow::anyhow!("{errors}"))?;
            return Ok(Self::Server {
                pin_dir: config.pin_dir,
                interface: config.interface,
            });
        }
        let config = in_force(file).map_err(|errors| anyhow::anyhow!("{errors}"))?;
        let names = config.vips.iter().map(|vip| (vip.name.clone(), vip.key()));
        Ok(Self::Balancer {
            names: names.collect(),
            pin_dir: config.pin_dir,
            interface: config.interface,
            pool: Inventory::default(),
        })
    }

    /// Where its maps are pinned.
    pub(crate) fn pin_dir(&self) -> &Path {
        match self {
            Self::Balancer { pin_dir, .. } | Self::Server { pin_dir, .. } => pin_dir,
        }
    }

    /// The interface that its program is on.
    pub(crate) fn interface(&self) -> &str {
        match self {
            Self::Balancer { interface, .. } | Self::Server { interface, .. } => interface,
        }
    }

    /// Reads again which VIPs and reals there are.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let pins = self.pin_dir();
        ensure!(
            pins.join("mirror_ctl").exists(),
            "the data plane in {} was taken down",
            pins.display()
        );
        if let Self::Balancer { pin_dir, pool, .. } = self {
            *pool = Inventory::pinned(pin_dir)
                .with_context(|| format!("no balancer can be asked in {}", pin_dir.display()))?;
        }
        Ok(())
    }

    /// VIPs by their names in the file.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, Vip)> {
        let names: &[_] = match self {
            Self::Balancer { names, .. } => names,
            Self::Server { .. } => &[],
        };
        names.iter().map(|(name, vip)| (name.as_str(), *vip))
    }

    /// What the number of a verdict stands for; `None` for one of another build.
    pub(crate) fn outcome(&self, verdict: u8) -> Option<Outcome> {
        let at = usize::from(verdict);
        match self {
            Self::Balancer { .. } => Verdict::ALL.get(at).map(|verdict| Outcome {
                verdict: verdict.as_str(),
                meaning: verdict.meaning(),
                action: verdict.action(),
            }),
            Self::Server { .. } => ServerVerdict::ALL.get(at).map(|verdict| Outcome {
                verdict: verdict.as_str(),
                meaning: verdict.meaning(),
                action: verdict.action(),
            }),
        }
    }

    /// A VIP's name; its address where the file has none.
    pub(crate) fn vip_name(&self, id: VipId) -> String {
        let Self::Balancer { names, pool, .. } = self else {
            return String::new();
        };
        let Some((_, vip)) = pool.vips.iter().find(|(known, _)| *known == id) else {
            return format!("vip {id}");
        };
        let named = names.iter().find(|(_, known)| known == vip);
        named.map_or_else(|| vip.to_string(), |(name, _)| name.clone())
    }

    /// Where a packet was sent: the real, if it is one of its VIP's, and the address.
    pub(crate) fn sent_to(&self, mirrored: &MirroredPacket) -> Option<(Option<RealId>, IpAddr)> {
        self.real_of(&mirrored.after.as_ref()?.data, mirrored.vip)
    }

    /// The VIP with this address, port and protocol, or else that of all ports.
    pub(crate) fn vip_of(&self, vip: Vip) -> Option<VipId> {
        let Self::Balancer { pool, .. } = self else {
            return None;
        };
        let of = |vip| pool.vips.iter().find(|(_, own)| *own == vip);
        let found = of(vip).or_else(|| of(Vip { port: 0, ..vip }));
        found.map(|(id, _)| *id)
    }

    /// Where a frame to a real of the VIP goes: the real, if it is one, and the address.
    pub(crate) fn real_of(
        &self,
        frame: &[u8],
        vip: Option<VipId>,
    ) -> Option<(Option<RealId>, IpAddr)> {
        let Self::Balancer { pool, .. } = self else {
            return None;
        };
        let destination = destination_of(frame)?;
        let mac: [u8; 6] = *frame.first_chunk()?;
        let mut reals = pool.reals.iter().filter(|(_, real)| Some(real.vip) == vip);
        let found = reals.find(|(_, real)| match real.forwarding {
            Forwarding::L2(own) => own == mac,
            _ => real.address == destination,
        });
        Some(match found {
            Some((id, real)) => (Some(*id), real.address),
            None => (None, destination),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use causeway_dataplane::{MirroredFrame, Protocol, Real};

    use super::*;

    /// One VIP with a real behind a tunnel and one on the link.
    pub(crate) fn balancer() -> Plane {
        let vip = Vip {
            address: "192.0.2.1".parse().unwrap(),
            port: 80,
            protocol: Protocol::Tcp,
        };
        let real = |address: &str, forwarding| Real {
            vip: 3,
            address: address.parse().unwrap(),
            forwarding,
        };
        Plane::Balancer {
            pin_dir: PathBuf::from("/sys/fs/bpf/causeway"),
            interface: "eth0".to_owned(),
            names: vec![("web".to_owned(), vip)],
            pool: Inventory {
                vips: vec![(3, vip)],
                reals: vec![
                    (7, real("10.0.0.1", Forwarding::Ipip)),
                    (8, real("10.0.0.2", Forwarding::L2([2, 0, 0, 0, 0, 8]))),
                ],
            },
        }
    }

    /// An IPv4 packet to `to`, in a frame to `mac`.
    pub(crate) fn frame(mac: u8, to: [u8; 4]) -> MirroredFrame {
        let mut data = vec![0; 14 + 20 + 20];
        data[..6].copy_from_slice(&[2, 0, 0, 0, 0, mac]);
        data[12..15].copy_from_slice(&[8, 0, 0x45]);
        data[16..18].copy_from_slice(&40_u16.to_be_bytes());
        data[23] = 6;
        data[26..30].copy_from_slice(&[198, 51, 100, 7]);
        data[30..34].copy_from_slice(&to);
        data[34..38].copy_from_slice(&[0x0f, 0xa0, 0, 80]);
        data[46] = 0x50;
        data[47] = 0x02;
        MirroredFrame {
            len: data.len() as u32,
            data,
        }
    }

    pub(crate) fn mirrored(after: Option<MirroredFrame>) -> MirroredPacket {
        MirroredPacket {
            t_ns: 5,
            vip: Some(3),
            verdict: Verdict::Opened as u8,
            result: None,
            before: frame(1, [192, 0, 2, 1]),
            after,
        }
    }

    #[test]
    fn a_real_is_known_by_its_tunnel_or_by_its_link() {
        let plane = balancer();
        let to = |mac, address| plane.sent_to(&mirrored(Some(frame(mac, address))));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(to(1, [10, 0, 0, 1]), Some((Some(7), address("10.0.0.1"))));
        assert_eq!(to(8, [192, 0, 2, 1]), Some((Some(8), address("10.0.0.2"))));
        let client = (None, address("198.51.100.7"));
        assert_eq!(to(1, [198, 51, 100, 7]), Some(client));
        assert_eq!(plane.sent_to(&mirrored(None)), None);
        let web = plane.names().next().map(|(_, vip)| vip);
        assert_eq!(web.and_then(|vip| plane.vip_of(vip)), Some(3));
        assert_eq!(
            web.and_then(|vip| plane.vip_of(Vip { port: 81, ..vip })),
            None
        );
        assert_eq!(plane.vip_name(3), "web");
        assert_eq!(plane.vip_name(4), "vip 4");
    }

    #[test]
    fn a_vip_of_all_ports_has_those_that_no_other_has() {
        let mut plane = balancer();
        let Plane::Balancer { pool, .. } = &mut plane else {
            panic!("a balancer");
        };
        let web = pool.vips[0].1;
        pool.vips.push((4, Vip { port: 0, ..web }));
        let of = |port, protocol| {
            plane.vip_of(Vip {
                port,
                protocol,
                ..web
            })
        };
        assert_eq!(of(80, Protocol::Tcp), Some(3));
        assert_eq!(of(8080, Protocol::Tcp), Some(4));
        assert_eq!(of(8080, Protocol::Udp), None);
    }
}
