// SPDX-License-Identifier: Apache-2.0
//! The server's side of tunnels: an XDP program that removes the outer headers of
//! packets to the server's own tunnel addresses.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use crate::abi::{self, PacketsBytes, ServerVerdict};
use crate::error::{Error, Result};
use crate::map::{PerCpu, Table};
use crate::pins::Kind;
use crate::plane::{self, Blueprint, Detached, Plane, Started, Startup};
use crate::skel::server::ServerSkelBuilder;
use crate::xdp::XdpMode;

const BLUEPRINT: Blueprint = Blueprint {
    kind: Kind::Decapsulator,
    program: "causeway_server",
    link: "link_server",
};

/// How to start a decapsulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecapsulatorOptions {
    /// The interface where tunnel packets arrive.
    pub interface: String,
    /// Where maps and link are pinned: a directory of its own in a BPF file system.
    pub pin_dir: PathBuf,
    /// How the program is to run.
    pub xdp_mode: XdpMode,
    /// UDP port where GUE arrives.
    pub gue_port: u16,
}

/// A decapsulator that is loaded, pinned and attached. It stays when this value is
/// dropped.
#[derive(Debug)]
pub struct Decapsulator {
    _plane: Plane,
    own_addresses: Table<abi::Address, u32>,
    verdicts: PerCpu<PacketsBytes>,
}

impl Decapsulator {
    /// Starts a decapsulator, or takes over the one pinned in `options.pin_dir`. A
    /// new one has no addresses and lets everything pass.
    pub fn start(options: &DecapsulatorOptions) -> Result<(Self, Started)> {
        let startup = Startup::begin(
            BLUEPRINT,
            &options.interface,
            &options.pin_dir,
            options.xdp_mode,
        )?;
        let failed = |source| Error::Load {
            program: BLUEPRINT.program,
            source,
        };
        let mut object = MaybeUninit::uninit();
        let mut skel = ServerSkelBuilder::default()
            .open(&mut object)
            .map_err(failed)?;
        if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
            settings.cfg_gue_port = options.gue_port;
        }
        startup.prepare(skel.open_object_mut(), &[])?;
        let skel = skel.load().map_err(failed)?;
        let (mut plane, started) = startup.attach(skel.object())?;
        let decapsulator = Self {
            own_addresses: Table::new(plane.take_map("own_addresses")?)?,
            verdicts: PerCpu::new(plane.take_map("verdicts")?)?,
            _plane: plane,
        };
        Ok((decapsulator, started))
    }

    /// Takes the decapsulator pinned in `pin_dir` down. Nothing there is no error.
    pub fn detach(pin_dir: &Path) -> Result<Detached> {
        plane::detach(pin_dir, BLUEPRINT.link)
    }

    /// The tunnel addresses of this server.
    pub fn addresses(&self) -> Result<BTreeSet<IpAddr>> {
        let entries = self.own_addresses.entries()?;
        let addresses = entries.iter();
        Ok(addresses
            .map(|(key, _)| abi::addr_from_bytes(key.bytes))
            .collect())
    }

    /// Sets the tunnel addresses: those by which the balancer knows this server.
    /// Packets to addresses that stay are decapsulated throughout.
    pub fn set_addresses(&self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        let old = self.addresses()?;
        for address in addresses.difference(&old) {
            self.own_addresses.put(&key(*address), &1)?;
        }
        for address in old.difference(addresses) {
            self.own_addresses.remove(&key(*address))?;
        }
        Ok(())
    }

    /// What became of all packets.
    pub fn verdicts(&self) -> Result<Vec<(ServerVerdict, PacketsBytes)>> {
        let count = ServerVerdict::ALL.len() as u32;
        let counters = self.verdicts.first(count, PacketsBytes::add)?;
        Ok(ServerVerdict::ALL.into_iter().zip(counters).collect())
    }
}

fn key(address: IpAddr) -> abi::Address {
    abi::Address {
        bytes: abi::addr_bytes(address),
    }
}
