// SPDX-License-Identifier: Apache-2.0
//! What a network driver says of its device: its name, queues, rings and offloads, as ethtool(8)
//! prints them. By the ioctl, which every kernel and driver answers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
// linux/ethtool.h
const GDRVINFO: u32 = 0x3;
const GRINGPARAM: u32 = 0x10;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const SS_FEATURES: u32 = 4;
const STRING_LEN: usize = 32;
/// More offloads than any kernel knows: what says so lies.
const FEATURES_MAX: u32 = 1024;

/// A number that can be set: as it is, and as it can be at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// As it is.
    pub now: u32,
    /// As it can be at most; 0 where the driver has no such thing.
    pub max: u32,
}

/// An offload of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Whether it is on.
    pub on: bool,
    /// Whether it can be turned on and off.
    pub changeable: bool,
}

/// A device as its driver describes it. What a driver does not report is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// The driver's name.
    pub driver: String,
    /// Its version, or the kernel's.
    pub version: String,
    /// Queues that receive alone.
    pub rx_queues: Setting,
    /// Queues that send alone.
    pub tx_queues: Setting,
    /// Queues that do both.
    pub combined_queues: Setting,
    /// Descriptors of a queue that sends.
    pub tx_ring: Setting,
    /// Offloads by the kernel's names, such as `rx-lro`.
    pub offloads: BTreeMap<String, Offload>,
}

impl DriverInfo {
    /// Asks the driver of a device in the calling thread's network namespace.
    ///
    /// # Errors
    /// No such device. A driver that does not answer a question is not an error.
    pub fn of(device: &str) -> io::Result<Self> {
        let ask = Asker::new(device)?;
        let mut info = Self::default();
        // struct ethtool_drvinfo: cmd, driver[32], version[32], and 128 bytes of others.
        if let Some(words) = ask.numbers::<49>(GDRVINFO)? {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            info.driver = c_text(&bytes[4..36]);
            info.version = c_text(&bytes[36..68]);
        }
        // struct ethtool_channels: cmd, then rx, tx, other and combined, at most and now.
        if let Some(words) = ask.numbers::<9>(GCHANNELS)? {
            let setting = |at: usize| Setting {
                now: words[at + 4],
                max: words[at],
            };
            (info.rx_queues, info.tx_queues) = (setting(1), setting(2));
            info.combined_queues = setting(4);
        }
        // struct ethtool_ringparam: cmd, then rx, mini, jumbo and tx, at most and now.
        if let Some(words) = ask.numbers::<9>(GRINGPARAM)? {
            info.tx_ring = Setting {
                now: words[8],
                max: words[4],
            };
        }
        info.offloads = ask.offloads()?;
        Ok(info)
    }
}

struct Asker {
    socket: std::os::fd::OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Asker {
    fn new(device: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        if device.is_empty() || device.len() >= name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
        Ok(Self { socket, name })
    }

    /// Has the kernel fill in `words`, whose first is the command; whether it did.
    fn fill(&self, words: &mut [u32]) -> io::Result<bool> {
        // SAFETY: an ifreq is plain data; all zeroes is a value of it.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: every caller gives as many words as its command fills in, and they live.
        let ret = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
        if ret >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENODEV) => Err(error),
            _ => Ok(false),
        }
    }

    fn numbers<const N: usize>(&self, command: u32) -> io::Result<Option<[u32; N]>> {
        let mut words = [0; N];
        words[0] = command;
        Ok(self.fill(&mut words)?.then_some(words))
    }

    fn offloads(&self) -> io::Result<BTreeMap<String, Offload>> {
        // struct ethtool_sset_info: cmd, reserved, a mask of sets, then a count for each bit.
        let mut set = [GSSET_INFO, 0, 0, 0, 0];
        // The mask is 64 bits wide, and lies on eight bytes.
        set[if cfg!(target_endian = "little") { 2 } else { 3 }] = 1 << SS_FEATURES;
        if !self.fill(&mut set)? || set[4] == 0 || set[4] > FEATURES_MAX {
            return Ok(BTreeMap::new());
        }
        let count = set[4];
        // struct ethtool_gstrings: cmd, set, count, strings of 32 bytes.
        let mut names = vec![0; 3 + count as usize * STRING_LEN / 4];
        names[..3].copy_from_slice(&[GSTRINGS, SS_FEATURES, count]);
        // struct ethtool_gfeatures: cmd, count of blocks; each available, requested, active
        // and never changed.
        let blocks = count.div_ceil(32);
        let mut bits = vec![0; 2 + blocks as usize * 4];
        bits[..2].copy_from_slice(&[GFEATURES, blocks]);
        if !self.fill(&mut names)? || !self.fill(&mut bits)? {
            return Ok(BTreeMap::new());
        }
        let names: Vec<u8> = names[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        Ok(offloads(&names, &bits[2..]))
    }
}

/// Names of 32 bytes each, and four words for each 32 of them.
fn offloads(names: &[u8], bits: &[u32]) -> BTreeMap<String, Offload> {
    let named = names.chunks_exact(STRING_LEN).enumerate();
    let known = named.filter_map(|(index, name)| {
        let name = c_text(name);
        let block = bits.get(index / 32 * 4..)?.first_chunk::<4>()?;
        let is = |word: u32| word & 1 << (index % 32) != 0;
        let [available, _, active, never] = *block;
        let offload = Offload {
            on: is(active),
            changeable: is(available) && !is(never),
        };
        (!name.is_empty()).then_some((name, offload))
    });
    known.collect()
}

fn c_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_are_bits_of_the_block_that_their_number_lies_in() {
        let mut names = vec![0; 34 * STRING_LEN];
        for (index, name) in [(0, "rx-lro"), (31, "rx-gro"), (33, "rx-gro-hw")] {
            let at = index * STRING_LEN;
            names[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let bits = [1, 0, 1 << 31, 0, 2, 0, 2, 2];
        let known = offloads(&names, &bits);
        let of = |on, changeable| Offload { on, changeable };
        let expected = [
            ("rx-gro", of(true, false)),
            ("rx-gro-hw", of(true, false)),
            ("rx-lro", of(false, true)),
        ];
        assert_eq!(known, expected.map(|(n, o)| (n.to_owned(), o)).into());
        // Fewer blocks than names: those are left out.
        assert_eq!(offloads(&names, &bits[..4]).len(), 2);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        for name in ["", "no-such-device", "a-name-that-is-far-too-long"] {
            assert!(DriverInfo::of(name).is_err(), "{name}");
        }
    }
}
