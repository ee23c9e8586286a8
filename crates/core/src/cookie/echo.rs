// SPDX-License-Identifier: Apache-2.0
//! A flow of the balancer's whose echoes are dated under timestamp cookies, for tests and
//! simulations: in production the kernel runs the same C, `bpf/shared/cookie_echo.h`.

use crate::estimate::{Packet, Samples};

/// `struct flow`, as far as the estimator goes.
#[repr(C, align(8))]
#[derive(Clone, Debug)]
pub struct EchoFlow([u8; 192]);

unsafe extern "C" {
    #[cfg(test)]
    pub(super) safe fn causeway_flow_size() -> u32;
    safe fn causeway_cookie_echo_packet(
        flow: &mut EchoFlow,
        packet: &Packet,
        bits: u32,
        out: &mut Samples,
    );
}

impl Default for EchoFlow {
    fn default() -> Self {
        Self([0; 192])
    }
}

impl EchoFlow {
    /// Takes in a packet of the client that echoes a cookie of `bits` bits and the clock above
    /// it.
    pub fn packet(&mut self, packet: &Packet, bits: u8) -> Samples {
        let mut out = Samples::default();
        causeway_cookie_echo_packet(self, packet, bits.into(), &mut out);
        out
    }
}
