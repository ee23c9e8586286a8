// SPDX-License-Identifier: Apache-2.0
//! What can go wrong between Causeway and the kernel. Every message says what failed, where, and
//! the remedy.
//!
//! A message names its cause where the sentence wants it. The cause is therefore no
//! `source`: a caller that prints an error with all that lies behind it would print it twice.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::xdp_mode::AttachedMode;

/// An error of the data plane's life: loading, attaching, its maps.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    /// No right to load BPF programs.
    #[error(
        "the kernel does not let this process load BPF programs: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    NotPermitted,
    /// The program to hand packets on to cannot be used.
    #[error(
        "{} cannot get the packets after the meter: {why}. Name a pinned XDP program, or a pinned program array with one in slot 0",
        .path.display()
    )]
    Next {
        /// Where it is pinned.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// TC programs cannot call XDP programs.
    #[error("the next program is an XDP program, which packets at TC have passed: attach by XDP")]
    NextNeedsXdp,
    /// The kernel has one state for each kind of estimator.
    #[error("name each kind of estimator once")]
    SameEstimator,
    /// A kernel without the BPF system call.
    #[error("this kernel has no BPF: it needs CONFIG_BPF_SYSCALL, in Linux 6.1 or newer")]
    NoBpf,
    /// No such interface in this network namespace.
    #[error("there is no network interface {0} here; `ip link` lists them")]
    NoInterface(String),
    /// A setting out of its range.
    #[error("{what} must be from {min} to {max}, not {value}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// What it was.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// Pins live in a BPF file system only.
    #[error(
        "{} is not in a BPF file system, where maps and links are pinned: `mount -t bpf bpf /sys/fs/bpf`, or choose a pin_dir inside one",
        .0.display()
    )]
    NotBpffs(PathBuf),
    /// The pin directory cannot be made, read or removed.
    #[error("cannot {doing} {}: {cause}", .path.display())]
    PinDir {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// Another process owns the pins.
    #[error(
        "another causeway process runs with the pins of {}: stop it first, or choose another pin_dir",
        .0.display()
    )]
    Busy(PathBuf),
    /// Pins of another kind of data plane.
    #[error(
        "{} holds the pins of {found}, and this is {ours}: choose another pin_dir, or take the old one down (`causeway lb unload --yes`, `causeway agent unload --yes`)",
        .pin_dir.display()
    )]
    OtherKind {
        /// Where the pins are.
        pin_dir: PathBuf,
        /// What they are of.
        found: &'static str,
        /// What was to start.
        ours: &'static str,
    },
    /// Pins of another layout whose types the kernel does not tell.
    #[error(
        "the data plane pinned in {} has layout {found}, this build has {ours}, and what its maps hold cannot be read ({cause}): start with CAP_SYS_ADMIN, as the packages' units do, or take it down (`causeway lb unload --yes`, `causeway agent unload --yes`); connections in its table are lost then",
        .pin_dir.display()
    )]
    Unreadable {
        /// Where the pins are.
        pin_dir: PathBuf,
        /// Layout of the pins.
        found: u32,
        /// Layout of this build.
        ours: u32,
        /// Why not.
        cause: io::Error,
    },
    /// A table is to become smaller than what is in use.
    #[error(
        "{what} number {number} is in use, and the configuration has numbers below {max} alone: raise {setting}, or remove {what}s before it is lowered"
    )]
    InUse {
        /// What there are too many of.
        what: &'static str,
        /// The highest number.
        number: u64,
        /// How many there may be.
        max: u64,
        /// The setting that bounds them.
        setting: &'static str,
    },
    /// The pins belong to another interface.
    #[error(
        "the data plane pinned in {} runs on {pinned}, not on {wanted}: take it down first (`causeway lb unload --yes`, `causeway agent unload --yes`), or choose another pin_dir",
        .pin_dir.display()
    )]
    OtherInterface {
        /// Where the pins are.
        pin_dir: PathBuf,
        /// The interface that the pinned link is on.
        pinned: String,
        /// The interface of the configuration.
        wanted: String,
    },
    /// The interface went away while the data plane ran.
    #[error(
        "the interface {0} is gone, and no packet is forwarded until an interface of that name is there again: the program is then attached within seconds"
    )]
    InterfaceGone(String),
    /// The interface is turned off.
    #[error(
        "the interface {0} is down, and no packet is forwarded: turn it on by `ip link set {0} up`"
    )]
    InterfaceDown(String),
    /// The interface is turned on, and nothing is at its other end.
    #[error(
        "the interface {0} has no carrier, and no packet is forwarded: look at its cable, and at what it is connected to"
    )]
    NoCarrier(String),
    /// The interface has another name now.
    #[error(
        "the interface {wanted} is called {now} now; packets are still forwarded: give it its old name, or set `interface` and restart"
    )]
    Renamed {
        /// The interface of the configuration.
        wanted: String,
        /// Its name.
        now: String,
    },
    /// Pins cannot be made again.
    #[error("the data plane is not pinned any more and ends with this process: {0}")]
    Unpinned(Box<DataPlaneError>),
    /// There are other pins in the place of ours.
    #[error(
        "{} was created again, and its pins are not of this process: remove it, or restart to take it over",
        .0.display()
    )]
    OtherPins(PathBuf),
    /// A program of another owner is on the interface.
    #[error(
        "{interface} already runs the XDP program {program} (id {id}), which is not of this pin_dir: {}, or use another interface",
        remedy_of(program, interface)
    )]
    Foreign {
        /// The interface.
        interface: String,
        /// The program's name.
        program: String,
        /// The program's id.
        id: u32,
    },
    /// Native mode was demanded, and the driver has none.
    #[error(
        "the driver of {0} has no native XDP: set xdp.mode to \"generic\" (slower), or use another interface"
    )]
    NoNative(String),
    /// The driver has XDP and refuses it as things are.
    #[error(
        "the driver of {interface} refuses native XDP: {cause}. Usual causes: an MTU too large for XDP, large receive offload, too few queues; or set xdp.mode to \"generic\" (slower)"
    )]
    NativeRefused {
        /// The interface.
        interface: String,
        /// The driver's answer.
        cause: io::Error,
    },
    /// The same, of a program that only measures.
    #[error(
        "the driver of {interface} refuses native XDP: {cause}. Usual causes: an MTU too large for XDP, large receive offload, too few queues; measure with `--attach tc`, or `--no-bpf`"
    )]
    MeterRefused {
        /// The interface.
        interface: String,
        /// The driver's answer.
        cause: io::Error,
    },
    /// The running data plane has another mode.
    #[error(
        "the data plane on {interface} runs in {running} mode; the mode cannot change under traffic: take it down first (`causeway lb unload --yes`, `causeway agent unload --yes`)"
    )]
    OtherMode {
        /// The interface.
        interface: String,
        /// Its mode.
        running: AttachedMode,
    },
    /// The verifier or the loader refused an object.
    #[error(
        "the kernel refused the program {program}: {cause:#}. The verifier's words are in the log at level debug"
    )]
    Load {
        /// The object.
        program: &'static str,
        /// Why.
        cause: libbpf_rs::Error,
    },
    /// A system call on a link or program failed.
    #[error("cannot {doing}: {cause}")]
    Bpf {
        /// What was tried.
        doing: String,
        /// Why not.
        cause: io::Error,
    },
    /// A system call on a map failed.
    #[error("cannot {doing} the map {map}: {cause}")]
    Map {
        /// What was tried.
        doing: &'static str,
        /// The map.
        map: String,
        /// Why not.
        cause: io::Error,
    },
    /// No room in a table.
    #[error("all {max} {what} are in use: raise {setting}")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// How many there can be.
        max: u32,
        /// The setting that bounds them.
        setting: &'static str,
    },
    /// More of something than a table holds.
    #[error("there are no more than {max} {what}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there can be.
        max: u32,
    },
    /// A VIP's id that is not in use.
    #[error("there is no VIP with id {0}")]
    UnknownVip(u32),
    /// A real's id that is not in use.
    #[error("there is no real with id {0}")]
    UnknownReal(u32),
    /// Ids are given out for VIPs with cookies only.
    #[error("the VIP with id {0} has no cookies")]
    NoCookies(u32),
    /// No control group to see connections open in.
    #[error(
        "{} is not a control group of version 2: name one that the VIPs' servers run in, such as /sys/fs/cgroup",
        .0.display()
    )]
    NoCgroup(PathBuf),
    /// The control group to see connections open in is not there now.
    #[error(
        "there is no control group {} now, so that connections get their clock for cookies at the first segment that the server sends, not when they open: it is looked for until it is there; start the service that it is of, or correct `cgroup`",
        .0.display()
    )]
    CgroupGone(PathBuf),
    /// Nothing that could be looked at.
    #[error(
        "no data plane that can be captured from is pinned in {}: is it started, and is this its pin_dir? If it is of an older build, restart its process",
        .0.display()
    )]
    NoMirror(PathBuf),
    /// One at a time looks at packets.
    #[error("process {0} already captures on this data plane: wait until it ends, or stop it")]
    MirrorBusy(u32),
    /// One address and port cannot be two VIPs.
    #[error("{0} is a VIP already")]
    DuplicateVip(String),
}

impl From<causeway_netio::NoInterface> for DataPlaneError {
    fn from(missing: causeway_netio::NoInterface) -> Self {
        Self::NoInterface(missing.0)
    }
}

impl DataPlaneError {
    /// The last system call on a map failed.
    pub(crate) fn map(doing: &'static str, map: &str, cause: impl Into<io::Error>) -> Self {
        Self::Map {
            doing,
            map: map.to_owned(),
            cause: cause.into(),
        }
    }

    /// The last system call on a link or program failed.
    pub(crate) fn bpf(doing: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Bpf {
            doing: doing.into(),
            cause: cause.into(),
        }
    }
}

/// The result of an operation on the data plane.
pub type Result<T, E = DataPlaneError> = std::result::Result<T, E>;

/// How to take a program off an interface. Ours hang there by links, which bpftool does not detach.
fn remedy_of(program: &str, interface: &str) -> String {
    match program {
        "causeway_lb" => "a balancer with another pin_dir serves there, or did: take it down with its own file (`causeway lb unload -c FILE --yes`)".to_owned(),
        "causeway_server" => "an agent with another pin_dir serves there, or did: take it down with its own file (`causeway agent unload -c FILE --yes`)".to_owned(),
        "causeway_meter" => "`causeway measure` runs there: stop it".to_owned(),
        _ => format!(
            "detach it by what attached it, or by `ip link set dev {interface} xdp off` (a link: `bpftool link detach`)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn causes_are_told_once() {
        let cause = || io::Error::from_raw_os_error(libc::EBUSY);
        let errors = [
            DataPlaneError::PinDir {
                doing: "make",
                path: "/sys/fs/bpf/x".into(),
                cause: cause(),
            },
            DataPlaneError::NativeRefused {
                interface: "eth0".to_owned(),
                cause: cause(),
            },
            DataPlaneError::Load {
                program: "lb.bpf.o",
                cause: cause().into(),
            },
            DataPlaneError::bpf("attach a link", cause()),
            DataPlaneError::map("read", "reals", cause()),
        ];
        for error in errors {
            let told = error.to_string().matches("(os error 16)").count();
            assert!(told == 1 && error.source().is_none(), "{error}");
        }
    }
}
