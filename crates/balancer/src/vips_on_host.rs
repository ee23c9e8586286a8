// SPDX-License-Identifier: Apache-2.0
//! VIPs that are addresses of the balancer's own host. Its program sees what comes for them before
//! the kernel does, so that SSH to the host, say, ends there.

use std::collections::HashMap;
use std::net::IpAddr;

use causeway_api::balancer::HeldVip;
use causeway_netio::OwnAddress;
use tracing::{info, warn};

use crate::config::{BalancerConfig, ProbeTo, Unserved};

/// What comes of it that a host holds an address of VIPs.
#[derive(Clone, Copy, Default)]
struct Harm {
    /// What is for the host goes elsewhere.
    takes: bool,
    /// The host answers what is for the reals.
    probes: bool,
}

/// The VIPs of a configuration that a host with these addresses holds, where that does harm: a host
/// that serves its VIPs' other ports itself may have them.
pub fn vips_on_host(config: &BalancerConfig, own: &[OwnAddress]) -> Vec<HeldVip> {
    let mut harms: HashMap<IpAddr, Harm> = HashMap::new();
    harms.extend(own.iter().map(|own| (own.address, Harm::default())));
    for vip in &config.vips {
        let Some(harm) = harms.get_mut(&vip.address) else {
            continue;
        };
        harm.takes |= config.unserved == Unserved::Drop || vip.port == 0;
        let health = vip.health.as_ref();
        harm.probes |= health.is_some_and(|health| health.to == ProbeTo::Vip);
    }
    let held = own.iter().filter_map(|own| {
        let harm = harms.get(&own.address)?;
        let OwnAddress {
            address,
            prefix_len,
            interface,
        } = own;
        let by = &config.interface;
        let what = match (harm.takes, harm.probes) {
            (true, _) => format!(
                "what comes for it on {by} goes to reals or is dropped, SSH to this host included"
            ),
            (false, true) => "the health probes of its reals end at this host".to_owned(),
            (false, false) => return None,
        };
        Some(HeldVip {
            address: *address,
            interface: interface.clone(),
            prefix_length: *prefix_len,
            text: format!(
                "this host holds the VIP {address} on {interface}: {what}; give the VIP an address of its own, or take it off this host: `ip addr del {address}/{prefix_len} dev {interface}`"
            ),
        })
    });
    held.collect()
}

/// The VIPs that are addresses of this host, where that does harm, by the last look.
#[derive(Debug, Default)]
pub struct VipsOnHost(Vec<HeldVip>);

impl VipsOnHost {
    /// Takes the addresses that this host has, and logs which VIPs are among them from now on.
    pub(crate) fn take_addresses(&mut self, config: &BalancerConfig, own: &[OwnAddress]) {
        let held = vips_on_host(config, own);
        for new in held.iter().filter(|held| !self.0.contains(held)) {
            warn!("{}", new.text);
        }
        let is_gone = |former: &&HeldVip| !held.iter().any(|now| now.address == former.address);
        for gone in self.0.iter().filter(is_gone) {
            info!("this host no longer holds the VIP {}", gone.address);
        }
        self.0 = held;
    }

    /// Each with what comes of it.
    pub fn views(&self) -> &[HeldVip] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::config;

    fn own(address: &str, prefix_len: u8, interface: &str) -> OwnAddress {
        OwnAddress {
            address: address.parse().unwrap(),
            prefix_len,
            interface: interface.to_owned(),
        }
    }

    const VIP: &str =
        "[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nreal = [{ address = \"10.0.0.1\" }]\n";

    fn told(text: &str) -> Vec<String> {
        let own = [own("192.0.2.1", 24, "eth1"), own("192.0.2.2", 24, "eth1")];
        let held = vips_on_host(&config(text), &own).into_iter();
        held.map(|held| held.text).collect()
    }

    #[test]
    fn a_vip_of_the_hosts_own_is_told_with_what_takes_it_off() {
        assert_eq!(
            told(VIP),
            [
                "this host holds the VIP 192.0.2.1 on eth1: what comes for it on eth0 goes to reals or is dropped, SSH to this host included; give the VIP an address of its own, or take it off this host: `ip addr del 192.0.2.1/24 dev eth1`"
            ]
        );
        assert_eq!(told(&VIP.replace("192.0.2.1", "192.0.2.3")), [""; 0]);
    }

    #[test]
    fn a_host_that_serves_the_other_ports_may_have_it_but_for_its_probes() {
        let pass = |vip: &str| format!("unserved = \"pass\"\n{vip}");
        assert_eq!(told(&pass(VIP)), [""; 0]);
        assert_eq!(told(&pass(&VIP.replace("80", "0"))).len(), 1);
        let probed = format!("{VIP}health = {{ probe = \"tcp\" }}\n");
        assert!(
            told(&pass(&probed))[0].contains("the health probes of its reals end at this host")
        );
        let asked = probed.replace("\"tcp\"", "\"tcp\", to = \"real\"");
        assert_eq!(told(&pass(&asked)), [""; 0]);
    }

    #[test]
    fn what_is_told_follows_the_hosts_addresses() {
        let config = config(VIP);
        let mut vips = VipsOnHost::default();
        let mut told = |own: &[OwnAddress]| {
            vips.take_addresses(&config, own);
            vips.views().len()
        };
        assert_eq!(told(&[]), 0);
        assert_eq!(told(&[own("192.0.2.1", 32, "lo")]), 1);
        assert_eq!(told(&[own("192.0.2.7", 32, "lo")]), 0);
    }
}
