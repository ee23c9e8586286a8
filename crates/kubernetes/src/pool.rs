// SPDX-License-Identifier: Apache-2.0
//! The addresses that Services may have.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Addresses of one network or range, all of them of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    numbers: RangeInclusive<u128>,
}

/// The addresses that Services may have, in the order in which they are given out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPool {
    ranges: Vec<AddressRange>,
}

impl FromStr for AddressRange {
    type Err = String;

    /// `198.51.100.0/28`, `198.51.100.10-198.51.100.20` or one address.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is neither a network nor a range of addresses; write for example \"198.51.100.0/28\" or \"198.51.100.10-198.51.100.20\""
            )
        };
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (address(first)?, address(last)?);
            if first.is_ipv4() != last.is_ipv4() || number(first) > number(last) {
                return Err(wrong());
            }
            return Ok(Self {
                first,
                numbers: number(first)..=number(last),
            });
        }
        let Some((first, length)) = text.split_once('/') else {
            let one = address(text)?;
            return Ok(Self {
                first: one,
                numbers: number(one)..=number(one),
            });
        };
        let first = address(first)?;
        let bits: u32 = if first.is_ipv4() { 32 } else { 128 };
        let length: u32 = length.parse().map_err(|_| wrong())?;
        let host_bits = bits.checked_sub(length).ok_or_else(wrong)?;
        let hosts = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |of| of - 1);
        if number(first) & hosts != 0 {
            return Err(format!(
                "{text} has bits behind its prefix; write {}/{length}",
                of_number(number(first) & !hosts, first)
            ));
        }
        Ok(Self {
            first,
            numbers: number(first)..=number(first) | hosts,
        })
    }
}

impl AddressRange {
    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.numbers.contains(&number(address))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        match self.numbers.start() == self.numbers.end() {
            true => Ok(()),
            false => write!(f, "-{}", of_number(*self.numbers.end(), self.first)),
        }
    }
}

impl From<Vec<AddressRange>> for AddressPool {
    fn from(ranges: Vec<AddressRange>) -> Self {
        Self { ranges }
    }
}

impl AddressPool {
    /// Whether an address may be given out.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// The first address of a family that is free.
    pub fn first_free(&self, ipv4: bool, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let ranges = self
            .ranges
            .iter()
            .filter(|range| range.first.is_ipv4() == ipv4);
        ranges
            .flat_map(|range| {
                let numbers = range.numbers.clone();
                numbers.map(|of| of_number(of, range.first))
            })
            .find(|address| !taken.contains(address))
    }
}

impl fmt::Display for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&words.join(", "))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address of this number in the family of `like`.
fn of_number(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(words: &[&str]) -> AddressPool {
        let ranges: Vec<AddressRange> = words.iter().map(|word| word.parse().unwrap()).collect();
        ranges.into()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_given_out_in_order_and_each_family_by_itself() {
        let pool = pool(&[
            "192.0.2.7-192.0.2.8",
            "2001:db8::/126",
            "198.51.100.9",
            "192.0.2.16/31",
        ]);
        let mut taken = BTreeSet::new();
        let mut given = Vec::new();
        while let Some(address) = pool.first_free(true, &taken) {
            given.push(address.to_string());
            taken.insert(address);
        }
        assert_eq!(
            given,
            [
                "192.0.2.7",
                "192.0.2.8",
                "198.51.100.9",
                "192.0.2.16",
                "192.0.2.17"
            ]
        );
        assert_eq!(pool.first_free(false, &taken), Some(ip("2001:db8::")));
        assert!(pool.contains(ip("2001:db8::3")) && !pool.contains(ip("2001:db8::4")));
        assert!(!pool.contains(ip("::c000:207")), "another family");
        assert_eq!(
            pool.to_string(),
            "192.0.2.7-192.0.2.8, 2001:db8::-2001:db8::3, 198.51.100.9, 192.0.2.16-192.0.2.17"
        );
    }

    #[test]
    fn a_whole_family_is_a_range() {
        let all = pool(&["::/0", "0.0.0.0/0"]);
        assert!(all.contains(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
        assert_eq!(all.first_free(true, &BTreeSet::new()), Some(ip("0.0.0.0")));
    }

    #[test]
    fn faults_say_how_to_write_it() {
        for (text, expected) in [
            (
                "192.0.2.1/24",
                "192.0.2.1/24 has bits behind its prefix; write 192.0.2.0/24",
            ),
            (
                "192.0.2.9-192.0.2.1",
                "`192.0.2.9-192.0.2.1` is neither a network nor",
            ),
            ("192.0.2.1-::1", "`192.0.2.1-::1` is neither"),
            ("192.0.2.0/33", "`192.0.2.0/33` is neither"),
            ("pool", "`pool` is neither"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
