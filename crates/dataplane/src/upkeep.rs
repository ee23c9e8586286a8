// SPDX-License-Identifier: Apache-2.0
//! What keeps a data plane in the kernel, looked after while its process runs.
//!
//! An interface that is recreated has no program, and a link to the old one never works
//! again. Pins may be removed by hand, or go with their file system: then the kernel takes
//! everything down when the process ends. Both are put right from what the process holds.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use causeway_netio::Interface;
use libbpf_rs::MapHandle;

use crate::error::{DataPlaneError, Result};
use crate::map::io_error;
use crate::pins::{Blueprint, PinDir};
use crate::xdp::{self, Link};
use crate::xdp_mode::XdpMode;

/// A program on its interface, and the pins that hold it and its maps.
#[derive(Debug)]
pub(crate) struct Upkeep {
    pub(crate) blueprint: Blueprint,
    pub(crate) interface: String,
    pub(crate) mode: XdpMode,
    pub(crate) pins: PinDir,
    pub(crate) link: Link,
    pub(crate) program: OwnedFd,
    pub(crate) maps: Vec<(String, MapHandle)>,
}

/// What a look at a data plane has put right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// The interface that the program has been attached to again.
    pub attached: Option<Interface>,
    /// Pins that were gone and have been made again.
    pub pinned: usize,
    /// Programs for cookies that were gone and have been attached again.
    pub filters: usize,
}

/// Where a link is.
enum LinkAt {
    /// On the interface that it is to be on.
    Right,
    /// On an interface that has another name now.
    Renamed(String),
    /// Nowhere in this network namespace.
    Lost,
}

impl Upkeep {
    pub(crate) fn new(
        blueprint: Blueprint,
        interface: &Interface,
        mode: XdpMode,
        pins: PinDir,
        link: Link,
        program: BorrowedFd<'_>,
        maps: &BTreeMap<String, MapHandle>,
    ) -> Result<Self> {
        let program = program.try_clone_to_owned();
        let maps = maps.iter().map(|(name, map)| {
            let another = MapHandle::try_from(map);
            let another = another.map_err(|e| DataPlaneError::map("hold", name, io_error(&e)))?;
            Ok((name.clone(), another))
        });
        Ok(Self {
            blueprint,
            interface: interface.name.clone(),
            mode,
            pins,
            link,
            program: program.map_err(|e| DataPlaneError::bpf("hold a program", e))?,
            maps: maps.collect::<Result<_>>()?,
        })
    }

    /// Looks, and puts right what can be. The error says what cannot; what works goes on.
    pub(crate) fn mend(&mut self) -> Result<Repairs> {
        let attached = self.mend_link();
        // Also those of a data plane without an interface: its tables are to outlive the process.
        let pinned = self.mend_pins();
        let attached = attached?;
        let pinned = pinned.map_err(|error| DataPlaneError::Unpinned(Box::new(error)))?;
        // What was put right is told first; the next look tells this.
        if attached.is_none() && pinned == 0 {
            self.check_link()?;
        }
        Ok(Repairs {
            // That of a new link was not gone.
            pinned: pinned.saturating_sub(usize::from(attached.is_some())),
            attached,
            filters: 0,
        })
    }

    fn mend_link(&mut self) -> Result<Option<Interface>> {
        match self.link_at()? {
            LinkAt::Right => return Ok(None),
            LinkAt::Renamed(now) => {
                return Err(DataPlaneError::Renamed {
                    wanted: self.interface.clone(),
                    now,
                });
            }
            LinkAt::Lost => {}
        }
        let gone = |_| DataPlaneError::InterfaceGone(self.interface.clone());
        let interface = Interface::find(&self.interface).map_err(gone)?;
        // A process that is killed in between leaves no pin of a link that does not work.
        self.pins.forget(self.blueprint.link)?;
        let (link, _) = Link::attach(self.program.as_fd(), &interface, self.mode)?;
        self.link = link;
        Ok(Some(interface))
    }

    /// Whether the program is on an interface here, also on one that has another name now.
    pub(crate) fn is_attached(&self) -> Result<bool> {
        Ok(!matches!(self.link_at()?, LinkAt::Lost))
    }

    /// Whether packets can come and go.
    fn check_link(&self) -> Result<()> {
        let gone = || DataPlaneError::InterfaceGone(self.interface.clone());
        let interface = Interface::find(&self.interface).map_err(|_| gone())?;
        match interface.is_up().map_err(|_| gone())? {
            (false, _) => Err(DataPlaneError::InterfaceDown(interface.name)),
            (_, false) => Err(DataPlaneError::NoCarrier(interface.name)),
            _ => Ok(()),
        }
    }

    fn link_at(&self) -> Result<LinkAt> {
        let info = self.link.info()?;
        if info.ifindex == 0 {
            return Ok(LinkAt::Lost);
        }
        // Numbers are of a network namespace, and the interface may have left this one.
        let runs_on = |interface: &Interface| {
            let occupant = xdp::occupant(interface)?;
            Ok::<_, DataPlaneError>(occupant.is_some_and(|it| it.program == info.program))
        };
        if let Ok(named) = Interface::find(&self.interface)
            && named.index == info.ifindex
            && runs_on(&named)?
        {
            return Ok(LinkAt::Right);
        }
        let Some(now) = xdp::name_of(info.ifindex) else {
            return Ok(LinkAt::Lost);
        };
        let other = Interface {
            name: now,
            index: info.ifindex,
        };
        match runs_on(&other)? {
            true => Ok(LinkAt::Renamed(other.name)),
            false => Ok(LinkAt::Lost),
        }
    }

    fn mend_pins(&mut self) -> Result<usize> {
        self.pins.reopen(self.blueprint.kind)?;
        let mut pinned = 0;
        for (name, map) in &mut self.maps {
            let pin = self.pins.pin(name);
            if !pin.exists() {
                map.pin(pin)
                    .map_err(|e| DataPlaneError::map("pin", name, io_error(&e)))?;
                pinned += 1;
            }
        }
        let pin = self.pins.pin(self.blueprint.link);
        if !pin.exists() {
            self.link.pin(&pin)?;
            pinned += 1;
        }
        Ok(pinned)
    }
}
