// SPDX-License-Identifier: Apache-2.0
//! Two engines for tests.

use std::net::SocketAddr;

use causeway_bifrost::{PathConfig, PathId, TransportConfig, TransportEngine};

/// The address of either, as the other sees it.
pub(crate) fn peer() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7000))
}

/// Two engines without a session, with this many paths of MTU 1500 between them.
pub(crate) fn engines(paths: u8) -> [TransportEngine; 2] {
    engines_with_mtu(paths, 1500)
}

/// The same with another MTU.
pub(crate) fn engines_with_mtu(paths: u8, mtu: u16) -> [TransportEngine; 2] {
    [1, 2].map(|instance| {
        let mut engine = TransportEngine::new(TransportConfig::default(), instance).unwrap();
        for id in 0..paths {
            let path = PathConfig { peer: peer(), mtu };
            engine.add_path(0, PathId(id), path).unwrap();
        }
        engine
    })
}
