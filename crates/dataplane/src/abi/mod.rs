// SPDX-License-Identifier: Apache-2.0
//! The structs and verdicts of `bpf/shared/abi.h`, as Rust sees them.
//!
//! Structs are written by hand, because map values carry no generated types; a
//! test compares every size, field and offset with the object's BTF. Verdicts and
//! numbers are generated from the C headers by the build script. Fields named `*_be` hold bytes
//! in network order; IPv4 addresses in 16-byte fields are IPv4-mapped.

mod cookie;
mod flow;
mod measure;
mod mirror;
mod real;
mod syn;
mod vip;

use std::net::{IpAddr, Ipv6Addr};
use std::ptr;

pub use cookie::*;
pub use flow::*;
pub use measure::*;
pub use mirror::*;
pub use real::*;
pub use syn::*;
pub use vip::*;

/// What XDP does with a packet after a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// The packet is dropped.
    Drop = 1,
    /// The packet goes on to the kernel.
    Pass = 2,
    /// The packet leaves through the interface that it came from.
    Tx = 3,
}

impl Action {
    /// The word of APIs, metrics and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Tx => "tx",
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/verdicts.rs"));

/// The numbers of `bpf/shared`, by their names there.
pub(crate) mod c {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// A struct of plain integers without padding that is the same in C.
///
/// # Safety
/// `#[repr(C)]`, no padding, and every bit pattern is a value.
pub unsafe trait Plain: Copy + Default {
    /// The value's bytes, as the kernel takes them.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the trait's contract: no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value's bytes, for the kernel to write.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every bit pattern is a value, so any write keeps it one.
        unsafe { std::slice::from_raw_parts_mut(ptr::from_mut(self).cast(), size_of::<Self>()) }
    }

    /// The value of `bytes`; `None` if they are not exactly as long.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the trait's contract: every bit pattern is a value; the length is checked.
        (bytes.len() == size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: integers have no padding and no invalid values.
unsafe impl Plain for u32 {}

// SAFETY: as above.
unsafe impl Plain for u64 {}

macro_rules! plain {
    ($($(#[$doc:meta])* $c:literal $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        // SAFETY: repr(C) of integers; the size equals the sum of the fields' sizes.
        unsafe impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "implicit padding");)*

        /// C name, size and (field, offset, size) of every mirrored struct.
        #[cfg(test)]
        pub(super) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize, usize)>)> {
            vec![$(($c, size_of::<$name>(), vec![$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                size_of::<$ty>(),
            )),*])),*]
        }
    };
}

use plain;

/// A prefix: an address and how many of its bits count.
pub type Prefix = (IpAddr, u8);

/// How many bits of a key's 16 bytes count, and those.
pub(crate) fn prefix_bytes((address, length): Prefix) -> (u32, [u8; 16]) {
    let mapped = if address.is_ipv4() { 96 } else { 0 };
    (mapped + u32::from(length), addr_bytes(address))
}

/// `addr` in the 16 bytes of a key or of a real.
pub fn addr_bytes(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address in 16 bytes of a key or of a real.
pub fn addr_from_bytes(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

#[cfg(test)]
mod tests {
    use libbpf_rs::btf::types::{Array, Composite, Int, MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, BtfType, HasSize as _};

    use super::*;

    fn size_of_type(ty: BtfType<'_>) -> usize {
        let ty = ty.skip_mods_and_typedefs();
        if let Ok(int) = Int::try_from(ty) {
            usize::from(int.bits) / 8
        } else if let Ok(array) = Array::try_from(ty) {
            array.capacity() * size_of_type(array.contained_type())
        } else {
            Composite::try_from(ty)
                .expect("integer, array or struct")
                .size()
        }
    }

    #[test]
    fn mirrors_have_the_layout_of_the_object() {
        let objects = [
            concat!(env!("OUT_DIR"), "/lb.bpf.o"),
            concat!(env!("OUT_DIR"), "/server.bpf.o"),
            concat!(env!("OUT_DIR"), "/meter.bpf.o"),
            concat!(env!("OUT_DIR"), "/rtt.bpf.o"),
            concat!(env!("OUT_DIR"), "/syn.bpf.o"),
        ]
        .map(|path| Btf::from_path(path).expect("BTF of the object"));
        let mirrors = [
            cookie::layouts(),
            flow::layouts(),
            measure::layouts(),
            real::layouts(),
            syn::layouts(),
            mirror::layouts(),
            vip::layouts(),
        ];
        for (name, size, fields) in mirrors.into_iter().flatten() {
            let (btf, c) = objects
                .iter()
                .find_map(|btf| Some((btf, btf.type_by_name::<Struct<'_>>(name)?)))
                .unwrap_or_else(|| panic!("struct {name} is in no object"));
            let composite = Composite::try_from(*c).expect("composite");
            let theirs: Vec<_> = composite
                .iter()
                .map(|member| {
                    let MemberAttr::Normal { offset } = member.attr else {
                        panic!("bit field in {name}")
                    };
                    let ty: BtfType<'_> = btf.type_by_id(member.ty).expect("member type");
                    let field = member.name.expect("name").to_str().expect("utf-8");
                    (field.to_owned(), offset as usize / 8, size_of_type(ty))
                })
                .collect();
            let ours: Vec<_> = fields
                .into_iter()
                .map(|(field, offset, size)| {
                    (field.trim_start_matches("r#").to_owned(), offset, size)
                })
                .collect();
            assert_eq!(size, composite.size(), "size of {name}");
            assert_eq!(ours, theirs, "fields of {name}");
        }
    }

    #[test]
    fn verdicts_keep_order_and_words() {
        for (index, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, index);
        }
        assert_eq!(Verdict::ALL[0].as_str(), "established");
        assert_eq!(Verdict::Established.action(), Action::Tx);
        assert_eq!(Verdict::NotVip.action(), Action::Pass);
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(addr_from_bytes(addr_bytes(addr)), addr);
        }
    }
}
