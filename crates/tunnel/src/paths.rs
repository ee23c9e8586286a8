// SPDX-License-Identifier: Apache-2.0
//! Which paths of a tunnel have sockets, and why the others have none: an address, a device or
//! a route may come later, and a device may be made anew.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use causeway_bifrost::{self as bifrost, PathId};
use causeway_netio::tunnel::{PathOptions, PathRoute, TunnelError, UdpPath};
use causeway_netio::{Interface, NoInterface};
use tracing::{info, warn};

use crate::config::{TunnelConfig, TunnelPathConfig};
use crate::shard::AddedPaths;

/// Socket buffers: what a path carries while the thread does something else, 8 MiB.
const SOCKET_BYTES: usize = 8 << 20;

/// Paths are open in all threads or in none.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenPaths {
    open: BTreeMap<u8, OpenPath>,
    /// Why the others are not open, and those not anew whose device was made anew.
    faults: BTreeMap<u8, String>,
}

/// A path with sockets.
#[derive(Debug, Clone, Copy)]
struct OpenPath {
    /// Number of the device that its sockets are bound to, if they are.
    device: Option<u32>,
    /// Of the first thread's socket.
    route: PathRoute,
    /// As the threads were told it.
    mtu: u16,
}

impl OpenPaths {
    /// Opens what can be opened, for each thread.
    ///
    /// # Errors
    /// No path can be opened, or one cannot for a reason that will not pass.
    pub(crate) fn at_start(config: &TunnelConfig) -> anyhow::Result<(Self, Vec<AddedPaths>)> {
        let (mut paths, mut added) = (Self::default(), none_added(config));
        let mut late = BTreeMap::new();
        for (id, path) in &config.paths {
            match PathSockets::open(*id, path, config.threads) {
                Ok(sockets) => paths.take(*id, sockets, &mut added),
                Err(error) if may_pass(&error) => drop(late.insert(*id, error)),
                Err(error) => return Err(error),
            }
        }
        if paths.open.is_empty()
            && let Some((_, error)) = late.pop_first()
        {
            return Err(error);
        }
        for (id, error) in &late {
            paths.note(*id, error);
        }
        Ok((paths, added))
    }

    /// What a reload adds to each thread.
    ///
    /// # Errors
    /// A path that is new, or was open before, cannot be opened.
    pub(crate) fn change(
        &mut self,
        running: &TunnelConfig,
        wanted: &TunnelConfig,
    ) -> anyhow::Result<Vec<AddedPaths>> {
        self.open.retain(|id, _| wanted.paths.contains_key(id));
        self.faults.retain(|id, _| wanted.paths.contains_key(id));
        let mut added = none_added(wanted);
        for (id, path) in &wanted.paths {
            let before = running.paths.get(id);
            // One that is not open is left to `open_missing`, however it changes.
            if before == Some(path) || (before.is_some() && !self.open.contains_key(id)) {
                continue;
            }
            if let (Some(before), Some(open)) = (before, self.open.get_mut(id))
                && before.has_socket_of(path)
            {
                if before.remote != path.remote {
                    open.route = route_to(path, open.device)?;
                }
                let mtu = match path.mtu {
                    Some(mtu) => mtu,
                    None => open.route.mtu().context("the MTU of a path")?,
                };
                self.take_mtu(*id, path, mtu, &mut added);
                continue;
            }
            if before.is_some_and(|before| before.local == path.local) {
                bail!(
                    "path {id} keeps its local port {} and changes its device: give it another local port, or restart the tunnel",
                    path.local
                );
            }
            self.take(
                *id,
                PathSockets::open(*id, path, wanted.threads)?,
                &mut added,
            );
        }
        Ok(added)
    }

    /// Opens, for each thread, what is not open, and anew what is bound to a device that was made
    /// anew. A path without an MTU of its own gets that which its route has now, if it is larger:
    /// that it is smaller is seen by what is sent. What cannot be opened is logged when the reason is new.
    pub(crate) fn open_missing(&mut self, config: &TunnelConfig) -> Vec<AddedPaths> {
        let mut added = none_added(config);
        for (id, path) in &config.paths {
            if !self.lacks_sockets(*id, path) {
                if let Some(mtu) = self.larger_mtu(*id, path) {
                    info!("path {id} takes packets of {mtu} bytes now");
                    self.take_mtu(*id, path, mtu, &mut added);
                }
                continue;
            }
            match PathSockets::open(*id, path, config.threads) {
                Ok(sockets) => {
                    info!("path {id} has new sockets");
                    self.take(*id, sockets, &mut added);
                }
                Err(error) => self.note(*id, &error),
            }
        }
        added
    }

    /// Why paths are not open.
    pub(crate) fn faults(&self) -> &BTreeMap<u8, String> {
        &self.faults
    }

    /// Whether its sockets are missing, or bound to another device than has the name now. Where
    /// no device has it there is nothing to bind to.
    fn lacks_sockets(&self, id: u8, path: &TunnelPathConfig) -> bool {
        let Some(open) = self.open.get(&id) else {
            return true;
        };
        let device = path.device.as_deref().map(Interface::find);
        device.is_some_and(|device| device.is_ok_and(|device| Some(device.index) != open.device))
    }

    /// The MTU of the path's route, if it counts and has grown.
    fn larger_mtu(&self, id: u8, path: &TunnelPathConfig) -> Option<u16> {
        let open = self.open.get(&id).filter(|_| path.mtu.is_none())?;
        let mtu = open.route.mtu().ok()?;
        (mtu > open.mtu).then_some(mtu)
    }

    /// The path goes on with its sockets, and another MTU or remote address.
    fn take_mtu(&mut self, id: u8, path: &TunnelPathConfig, mtu: u16, added: &mut [AddedPaths]) {
        if let Some(open) = self.open.get_mut(&id) {
            open.mtu = mtu;
        }
        for (number, added) in added.iter_mut().enumerate() {
            let peer = counted_up(path.remote, number);
            added.insert(id, (bifrost::PathConfig { peer, mtu }, None));
        }
    }

    fn take(&mut self, id: u8, sockets: PathSockets, added: &mut [AddedPaths]) {
        if let Some((path, socket)) = sockets.threads.first() {
            let open = OpenPath {
                device: sockets.device,
                route: socket.route(),
                mtu: path.mtu,
            };
            self.open.insert(id, open);
        }
        self.faults.remove(&id);
        for (added, (path, socket)) in added.iter_mut().zip(sockets.threads) {
            added.insert(id, (path, Some(socket)));
        }
    }

    fn note(&mut self, id: u8, error: &anyhow::Error) {
        let fault = format!("{error:#}");
        if self.faults.get(&id) != Some(&fault) {
            warn!("path {id} is not open, and is tried again: {fault}");
            self.faults.insert(id, fault);
        }
    }
}

/// The sockets of a path.
struct PathSockets {
    device: Option<u32>,
    /// Of each thread.
    threads: Vec<(bifrost::PathConfig, UdpPath)>,
}

impl PathSockets {
    fn open(id: u8, path: &TunnelPathConfig, threads: usize) -> anyhow::Result<Self> {
        let device = path.device.as_deref().map(Interface::find).transpose();
        let device = device
            .with_context(|| format!("path {} to {}", path.local, path.remote))?
            .map(|device| device.index);
        let thread = |number| -> anyhow::Result<_> {
            let socket = UdpPath::open(&PathOptions {
                local: counted_up(path.local, number),
                remote: counted_up(path.remote, number),
                device,
                buffer_bytes: SOCKET_BYTES,
                merge: true,
            })?;
            let config = path_config(path, &socket)?;
            config.check(PathId(id))?;
            Ok((config, socket))
        };
        Ok(Self {
            device,
            threads: (0..threads).map(thread).collect::<anyhow::Result<_>>()?,
        })
    }
}

/// The way to a path's remote address, which its sockets are to have from now on: that there is one
/// is to be known before they do.
fn route_to(path: &TunnelPathConfig, device: Option<u32>) -> Result<PathRoute, TunnelError> {
    let mut local = path.local;
    local.set_port(0);
    let probe = UdpPath::open(&PathOptions {
        local,
        remote: path.remote,
        device,
        buffer_bytes: 4096,
        merge: false,
    })?;
    Ok(probe.route())
}

fn none_added(config: &TunnelConfig) -> Vec<AddedPaths> {
    std::iter::repeat_with(AddedPaths::new)
        .take(config.threads)
        .collect()
}

/// Whether what a path lacks may come by itself: its address, its device or a route.
fn may_pass(error: &anyhow::Error) -> bool {
    let code = match error.downcast_ref() {
        Some(TunnelError::Path { cause, .. }) => cause.raw_os_error(),
        _ => None,
    };
    error.is::<NoInterface>()
        || matches!(
            code,
            Some(
                libc::EADDRNOTAVAIL
                    | libc::ENODEV
                    | libc::ENETDOWN
                    | libc::ENETUNREACH
                    | libc::EHOSTUNREACH
            )
        )
}

/// An address of the first thread, for the thread with this number: ports count up.
fn counted_up(mut address: SocketAddr, number: usize) -> SocketAddr {
    address.set_port(address.port() + number as u16);
    address
}

fn path_config(path: &TunnelPathConfig, socket: &UdpPath) -> anyhow::Result<bifrost::PathConfig> {
    let peer = socket.remote();
    let mtu = match path.mtu {
        Some(mtu) => mtu,
        None => socket.route().mtu().context("the MTU of a path")?,
    };
    Ok(bifrost::PathConfig { peer, mtu })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// An address for documentation: no machine has it.
    const NOBODYS: &str = "192.0.2.77:7000";
    const NOTHING: [[(u8, bool); 0]; 2] = [[], []];

    /// Paths by their ids, with their local addresses and what else they have.
    fn config(paths: &[(u8, &str, &str)]) -> TunnelConfig {
        let head = "[tunnel]\ndevice = \"cw0\"\nkeys = \"none\"\nthreads = 2\n".to_owned();
        let text = paths.iter().fold(head, |text, (id, local, more)| {
            let ends = format!("local = \"{local}\"\nremote = \"127.0.0.1:7999\"\n{more}\n");
            format!("{text}[[tunnel.path]]\nid = {id}\n{ends}")
        });
        TunnelConfig::parse("tunnel.toml".as_ref(), &text).unwrap()
    }

    /// Which paths each thread gets, and which of them with a socket.
    fn told(added: &[AddedPaths]) -> Vec<Vec<(u8, bool)>> {
        let thread = |added: &AddedPaths| {
            let paths = added.iter();
            paths
                .map(|(id, (_, socket))| (*id, socket.is_some()))
                .collect()
        };
        added.iter().map(thread).collect()
    }

    fn error_of(config: &TunnelConfig) -> String {
        let error = OpenPaths::at_start(config).err().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn a_path_whose_address_or_device_is_missing_is_left_for_later() {
        let config = config(&[
            (0, NOBODYS, ""),
            (1, "127.0.77.1:7000", ""),
            (2, "127.0.77.1:7010", "device = \"nothere0\""),
        ]);
        let (mut paths, added) = OpenPaths::at_start(&config).unwrap();
        assert_eq!(told(&added), [[(1, true)], [(1, true)]]);
        let faults: Vec<(u8, &str)> = paths
            .faults()
            .iter()
            .map(|(id, fault)| (*id, fault.as_str()))
            .collect();
        assert_eq!(
            faults,
            [
                (
                    0,
                    "path 192.0.2.77:7000 to 127.0.0.1:7999: cannot take the local address and port (is it an address of this machine, and the port free?): Cannot assign requested address (os error 99)"
                ),
                (
                    2,
                    "path 127.0.77.1:7010 to 127.0.0.1:7999: there is no network interface nothere0 here; `ip link` lists them"
                ),
            ]
        );
        // The one that is open stays as it is.
        assert_eq!(told(&paths.open_missing(&config)), NOTHING);
        assert_eq!(paths.faults().len(), 2);
    }

    #[test]
    fn without_any_path_or_with_a_fault_that_stays_there_is_no_start() {
        let told = error_of(&config(&[(0, NOBODYS, ""), (1, "192.0.2.78:7000", "")]));
        assert!(told.starts_with("path 192.0.2.77:7000 to "), "{told}");
        assert!(told.ends_with("requested address (os error 99)"), "{told}");

        let _taken = UdpSocket::bind("127.0.77.2:7001").unwrap();
        let told = error_of(&config(&[
            (0, "127.0.77.3:7000", ""),
            (1, "127.0.77.2:7000", ""),
        ]));
        assert!(
            told.starts_with("path 127.0.77.2:7001 to 127.0.0.1:8000: cannot take"),
            "{told}"
        );
        assert!(told.ends_with("Address already in use (os error 98)"));
    }

    #[test]
    fn a_reload_may_change_what_is_not_open_and_opens_it() {
        let open = (0, "127.0.77.4:7000", "");
        let before = config(&[open, (1, NOBODYS, "mtu = 1400")]);
        let (mut paths, _sockets) = OpenPaths::at_start(&before).unwrap();
        let after = config(&[open, (1, NOBODYS, "mtu = 1300")]);
        // There is no socket to go on with, and none yet.
        assert_eq!(told(&paths.change(&before, &after).unwrap()), NOTHING);
        assert_eq!(told(&paths.open_missing(&after)), NOTHING);

        let mended = config(&[open, (1, "127.0.77.5:7000", "mtu = 1300")]);
        assert_eq!(told(&paths.change(&after, &mended).unwrap()), NOTHING);
        assert_eq!(
            told(&paths.open_missing(&mended)),
            [[(1, true)], [(1, true)]]
        );
        assert_eq!(paths.faults().len(), 0);
        assert_eq!(told(&paths.open_missing(&mended)), NOTHING);
    }

    #[test]
    fn a_path_without_an_mtu_of_its_own_takes_over_that_of_its_route_when_it_grows() {
        thread::spawn(grow_in_a_namespace).join().unwrap();
    }

    /// In a namespace of the calling thread's own, which needs root.
    fn grow_in_a_namespace() {
        // SAFETY: it takes one integer, and concerns this thread alone.
        let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(status, 0, "a network namespace");
        let set_mtu = |mtu: &str| {
            let words = ["link", "set", "lo", "up", "mtu", mtu];
            assert!(Command::new("ip").args(words).status().unwrap().success());
        };
        set_mtu("1400");
        let config = config(&[
            (0, "127.0.77.8:7000", ""),
            (1, "127.0.77.9:7000", "mtu = 1300"),
        ]);
        let (mut paths, added) = OpenPaths::at_start(&config).unwrap();
        let mtus = |added: &[AddedPaths]| {
            let mtus = |added: &AddedPaths| {
                let paths = added.iter();
                paths
                    .map(|(id, (path, socket))| (*id, path.mtu, socket.is_some()))
                    .collect::<Vec<_>>()
            };
            added.iter().map(mtus).collect::<Vec<_>>()
        };
        assert_eq!(mtus(&added)[1], [(0, 1400, true), (1, 1300, true)]);
        set_mtu("1500");
        let added = paths.open_missing(&config);
        assert_eq!(mtus(&added), [[(0, 1500, false)], [(0, 1500, false)]]);
        assert_eq!(told(&paths.open_missing(&config)), NOTHING);
        // The device is narrower again: that is for the engine to see.
        set_mtu("1400");
        assert_eq!(told(&paths.open_missing(&config)), NOTHING);
    }

    #[test]
    fn a_reload_may_move_the_other_end_and_leave_the_mtu_to_the_route() {
        let local = "127.0.77.10:7000";
        let before = config(&[(0, local, "mtu = 1400")]);
        let (mut paths, _sockets) = OpenPaths::at_start(&before).unwrap();
        let settings = |added: &[AddedPaths]| {
            let thread = |added: &AddedPaths| {
                let (path, socket) = &added[&0];
                (path.peer.to_string(), path.mtu, socket.is_some())
            };
            added.iter().map(thread).collect::<Vec<_>>()
        };
        let mut after = config(&[(0, local, "")]);
        let added = paths.change(&before, &after).unwrap();
        let expected = [7999, 8000].map(|port| (format!("127.0.0.1:{port}"), u16::MAX, false));
        assert_eq!(settings(&added), expected);

        let before = after.clone();
        after.paths.get_mut(&0).unwrap().remote = "127.0.77.11:7999".parse().unwrap();
        let added = paths.change(&before, &after).unwrap();
        let expected = [7999, 8000].map(|port| (format!("127.0.77.11:{port}"), u16::MAX, false));
        assert_eq!(settings(&added), expected);
        assert_eq!(told(&paths.open_missing(&after)), NOTHING);

        let mut nowhere = after.clone();
        // Not from an address of loopback.
        nowhere.paths.get_mut(&0).unwrap().remote = "192.0.2.77:7999".parse().unwrap();
        let error = paths.change(&after, &nowhere).err().unwrap();
        assert!(
            format!("{error:#}").contains("cannot reach the remote address"),
            "{error:#}"
        );
    }

    #[test]
    fn a_reload_is_refused_for_a_new_path_that_cannot_be_opened() {
        let open = (0, "127.0.77.6:7000", "");
        let before = config(&[open]);
        let (mut paths, _sockets) = OpenPaths::at_start(&before).unwrap();
        let after = config(&[open, (1, NOBODYS, "")]);
        let error = paths.change(&before, &after).err().unwrap();
        let told = format!("{error:#}");
        assert!(
            told.starts_with("path 192.0.2.77:7000 to 127.0.0.1:7999: cannot take"),
            "{told}"
        );
    }
}
