// SPDX-License-Identifier: Apache-2.0

//! Why a packet was not read.

use std::fmt;

macro_rules! skips {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)+) => {
        /// Why a packet was not read. Each reason is one counter; [`Skip::name`]
        /// is its word in messages, JSON and metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Skip {
            $($(#[$doc])* $variant,)+
        }

        impl Skip {
            /// Every reason, in the order of the layers.
            pub const ALL: &'static [Skip] = &[$(Skip::$variant,)+];

            /// The word for this reason: lower case, underscores.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Skip::$variant => $name,)+
                }
            }
        }
    };
}

skips! {
    /// A simple packet block of a pcapng file: it has no time.
    NoTime => "no_time",
    /// A link type that has no parser, on one interface of a pcapng file.
    LinkType => "link_type",
    /// The capture ends inside the link-layer header.
    ShortLink => "short_link",
    /// More VLAN tags and MPLS labels than the parser follows.
    LinkDepth => "link_depth",
    /// Neither IPv4 nor IPv6: ARP, LLDP, spanning tree, ...
    NotIp => "not_ip",
    /// The capture ends inside the IP header or its extensions.
    ShortIp => "short_ip",
    /// An IP header whose version or lengths contradict each other.
    BadIp => "bad_ip",
    /// More IPv6 extension headers than the parser follows.
    ExtensionDepth => "extension_depth",
    /// A fragment other than the first: it has no transport header.
    Fragment => "fragment",
    /// The capture ends inside a tunnel header.
    ShortTunnel => "short_tunnel",
    /// A tunnel's header of an unknown version or flags.
    BadTunnel => "bad_tunnel",
    /// More tunnels within tunnels than the parser follows.
    TunnelDepth => "tunnel_depth",
    /// The capture ends inside the transport header.
    ShortTransport => "short_transport",
    /// A transport header whose lengths contradict the IP header.
    BadTransport => "bad_transport",
    /// A protocol that carries no requests, or none that can be seen.
    Protocol => "protocol",
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Skip {}

/// How many packets were skipped for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipCounts([u64; Skip::ALL.len()]);

impl SkipCounts {
    /// Counts one packet.
    pub fn add(&mut self, skip: Skip) {
        self.0[skip as usize] += 1;
    }

    /// Adds another set of counts.
    pub fn merge(&mut self, other: &SkipCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Packets skipped for `skip`.
    pub fn get(&self, skip: Skip) -> u64 {
        self.0[skip as usize]
    }

    /// Packets skipped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, in the order of the layers.
    pub fn nonzero(&self) -> impl Iterator<Item = (Skip, u64)> + '_ {
        Skip::ALL
            .iter()
            .map(|&skip| (skip, self.get(skip)))
            .filter(|&(_, count)| count > 0)
    }
}
