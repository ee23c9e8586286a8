// SPDX-License-Identifier: Apache-2.0
//! What the values of a map consist of, by the types that the kernel keeps with it (BTF). The build
//! that made the map need not be known: its fields have names.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::MapHandle;

use crate::map::errno;

/// Structs in structs, and arrays of them, before a type is taken for damaged.
const DEPTH_MAX: usize = 16;
/// Fields of one type, likewise.
const FIELDS_MAX: usize = 1 << 16;

/// A number, or an array of them, in a key or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Names from the outermost struct on, as `key.saddr_be`; empty where the whole is a number.
    pub(crate) path: String,
    /// Bytes before it.
    pub(crate) offset: usize,
    /// Bytes of one number.
    pub(crate) size: usize,
    /// How many.
    pub(crate) count: usize,
    /// Of a union, or of a struct with bit fields, which comes as bytes: what tells it from others.
    pub(crate) mark: u64,
}

/// The fields of a key or a value, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Field> {
        self.0.iter()
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Field> {
        self.0.iter().find(|field| field.path == path)
    }

    /// The number at `index` of a field in a value; `None` if there is no such field.
    pub(crate) fn number(&self, value: &[u8], path: &str, index: usize) -> Option<u64> {
        let field = self.get(path).filter(|field| index < field.count)?;
        let at = field.offset + index * field.size;
        let bytes = value.get(at..at + field.size)?;
        Some(match *bytes {
            [one] => one.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}

impl FromIterator<Field> for Fields {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

/// Key and value of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapTypes {
    pub(crate) key: Fields,
    pub(crate) value: Fields,
}

/// One type, as far as it matters how values lie in memory (linux/btf.h).
#[derive(Debug)]
enum Type {
    /// A number of so many bytes.
    Number(usize),
    /// A typedef, or a qualifier.
    Other(u32),
    Array {
        of: u32,
        count: usize,
    },
    /// Its bytes, and members with name, type and offset in bits.
    Struct(usize, Vec<(String, u32, u32)>),
    /// A union, or a struct with bit fields: the same, and the offset's word as it is.
    Bytes(usize, Vec<(String, u32, u32)>),
    /// Nothing that a value may have.
    None,
}

/// The types of one program.
#[derive(Debug)]
pub(crate) struct Btf(Vec<Type>);

/// Reads numbers off a slice, and nothing beyond its end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*head))
    }
}

impl Btf {
    /// Of the raw data, as the kernel and libbpf give them; `None` if they are cut off.
    fn parse(raw: &[u8]) -> Option<Self> {
        const MAGIC: u32 = 0xeb9f;
        let mut header = Reader(raw);
        let (magic, head_len) = (header.u32()?, header.u32()? as usize);
        let mut next = || header.u32().map(|number| number as usize);
        let (types_at, types_len, names_at, names_len) = (next()?, next()?, next()?, next()?);
        let part = |at: usize, len: usize| raw.get(head_len + at..)?.get(..len);
        let names = part(names_at, names_len)?;
        let name = |at: u32| {
            let bytes = names.get(at as usize..)?;
            let end = bytes.iter().position(|byte| *byte == 0)?;
            std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned)
        };
        let mut types = vec![Type::None];
        let mut rest = Reader(part(types_at, types_len)?);
        while !rest.0.is_empty() {
            let (_, info, size) = (rest.u32()?, rest.u32()?, rest.u32()?);
            let (kind, members) = (info >> 24 & 0x1f, info & 0xffff);
            let has_bit_fields = info >> 31 == 1;
            let mut skip = |words: u32| (0..words).try_for_each(|_| rest.u32().map(drop));
            types.push(match kind {
                1 => {
                    skip(1)?;
                    Type::Number(size as usize)
                }
                2 => Type::Number(size_of::<usize>()),
                3 => {
                    let (of, _, count) = (rest.u32()?, rest.u32()?, rest.u32()?);
                    let count = count as usize;
                    Type::Array { of, count }
                }
                4 | 5 => {
                    let mut all = Vec::new();
                    for _ in 0..members {
                        all.push((name(rest.u32()?)?, rest.u32()?, rest.u32()?));
                    }
                    match kind == 5 || has_bit_fields {
                        true => Type::Bytes(size as usize, all),
                        false => Type::Struct(size as usize, all),
                    }
                }
                6 => {
                    skip(2 * members)?;
                    Type::Number(size as usize)
                }
                // typedef, volatile, const, restrict and a type tag
                8..=11 | 18 => Type::Other(size),
                // a prototype, a variable, a section, a tag of a declaration, an enum of 64 bits
                13 => {
                    skip(2 * members)?;
                    Type::None
                }
                14 | 17 => {
                    skip(1)?;
                    Type::None
                }
                15 => {
                    skip(3 * members)?;
                    Type::None
                }
                19 => {
                    skip(3 * members)?;
                    Type::Number(size as usize)
                }
                // a declaration, a function, a floating point number
                7 | 12 | 16 => Type::None,
                _ => return None,
            });
        }
        (magic & 0xffff == MAGIC).then_some(Self(types))
    }

    /// The fields of a type; `None` if it is none that a map may hold.
    fn fields(&self, ty: u32) -> Option<Fields> {
        let mut fields = Fields::default();
        self.add(ty, "", 0, 0, &mut fields)?;
        Some(fields)
    }

    /// The type behind names and qualifiers.
    fn plain(&self, ty: u32) -> Option<&Type> {
        let mut ty = self.0.get(ty as usize)?;
        for _ in 0..DEPTH_MAX {
            match ty {
                Type::Other(of) => ty = self.0.get(*of as usize)?,
                found => return Some(found),
            }
        }
        None
    }

    /// A number that follows from the names and places of all that is in a type.
    fn mark(&self, ty: u32, depth: usize) -> Option<u64> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut hash = DefaultHasher::new();
        match self.plain(ty)? {
            Type::Number(size) => size.hash(&mut hash),
            Type::Array { of, count } => (self.mark(*of, depth + 1)?, count).hash(&mut hash),
            Type::Struct(size, members) | Type::Bytes(size, members) => {
                size.hash(&mut hash);
                for (name, of, offset) in members {
                    (name, self.mark(*of, depth + 1)?, offset).hash(&mut hash);
                }
            }
            Type::None | Type::Other(_) => return None,
        }
        Some(hash.finish())
    }

    fn add(
        &self,
        ty: u32,
        path: &str,
        offset: usize,
        depth: usize,
        fields: &mut Fields,
    ) -> Option<usize> {
        if depth > DEPTH_MAX || fields.0.len() > FIELDS_MAX {
            return None;
        }
        let mut push = |size, count, mark| {
            fields.0.push(Field {
                path: path.to_owned(),
                offset,
                size,
                count,
                mark,
            });
            Some(size * count)
        };
        match self.plain(ty)? {
            Type::Number(size) => push(*size, 1, 0),
            Type::Bytes(size, _) => push(1, *size, self.mark(ty, depth)?),
            Type::None | Type::Other(_) => None,
            Type::Array { of, count } => {
                let (mut of, mut count) = (*of, *count);
                while let Type::Array {
                    of: inner,
                    count: n,
                } = self.plain(of)?
                {
                    (of, count) = (*inner, count.checked_mul(*n)?);
                }
                if let Type::Number(size) = self.plain(of)? {
                    return push(*size, count, 0);
                }
                let mut at = offset;
                for n in 0..count {
                    at += self.add(of, &format!("{path}[{n}]"), at, depth + 1, fields)?;
                }
                Some(at - offset)
            }
            Type::Struct(size, members) => {
                for (name, of, bits) in members {
                    let dot = if path.is_empty() { "" } else { "." };
                    let at = offset + *bits as usize / 8;
                    let path = format!("{path}{dot}{name}");
                    self.add(*of, &path, at, depth + 1, fields)?;
                }
                Some(*size)
            }
        }
    }
}

/// The types of maps, of each program once.
#[derive(Debug, Default)]
pub(crate) struct TypesOfMaps(HashMap<u32, Option<Btf>>);

impl TypesOfMaps {
    /// Those of a map of the kernel; `None` if it has none, as rings of reals and ring buffers.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub(crate) fn of_kernel(&mut self, map: &MapHandle) -> io::Result<Option<MapTypes>> {
        let mut info = libbpf_sys::bpf_map_info::default();
        let mut len = size_of_val(&info) as u32;
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: `info` is as long as `len` says.
        let ret = unsafe { libbpf_sys::bpf_map_get_info_by_fd(fd, &mut info, &mut len) };
        if ret != 0 {
            return Err(errno(ret));
        }
        if info.btf_id == 0 {
            return Ok(None);
        }
        if let std::collections::hash_map::Entry::Vacant(entry) = self.0.entry(info.btf_id) {
            entry.insert(Btf::parse(&kernel_btf(info.btf_id)?));
        }
        let btf = self.0.get(&info.btf_id).and_then(Option::as_ref);
        Ok(btf.and_then(|btf| types(btf, info.btf_key_type_id, info.btf_value_type_id)))
    }
}

impl Btf {
    /// The types of an object that is not loaded yet.
    pub(crate) fn of_object(object: std::ptr::NonNull<libbpf_sys::bpf_object>) -> Option<Self> {
        let mut len = 0;
        // SAFETY: the object lives, and its data as long as it does; they are copied here.
        let raw = unsafe {
            let btf = libbpf_sys::bpf_object__btf(object.as_ptr());
            if btf.is_null() {
                return None;
            }
            let data = libbpf_sys::btf__raw_data(btf, &mut len);
            if data.is_null() {
                return None;
            }
            std::slice::from_raw_parts(data.cast::<u8>(), len as usize)
        };
        Self::parse(raw)
    }

    /// Those of one of the object's maps; `None` if it has none.
    pub(crate) fn of_map(&self, map: std::ptr::NonNull<libbpf_sys::bpf_map>) -> Option<MapTypes> {
        // SAFETY: the map lives as long as its object.
        let (key, value) = unsafe {
            (
                libbpf_sys::bpf_map__btf_key_type_id(map.as_ptr()),
                libbpf_sys::bpf_map__btf_value_type_id(map.as_ptr()),
            )
        };
        types(self, key, value)
    }
}

fn types(btf: &Btf, key: u32, value: u32) -> Option<MapTypes> {
    if value == 0 {
        return None;
    }
    Some(MapTypes {
        key: btf.fields(key)?,
        value: btf.fields(value)?,
    })
}

fn kernel_btf(id: u32) -> io::Result<Vec<u8>> {
    // SAFETY: takes a number and returns a descriptor or an error.
    let fd = unsafe { libbpf_sys::bpf_btf_get_fd_by_id(id) };
    if fd < 0 {
        return Err(errno(fd));
    }
    // SAFETY: a new descriptor that no other code owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut raw = Vec::new();
    // First how long they are, then the data.
    for _ in 0..2 {
        let mut info = libbpf_sys::bpf_btf_info {
            btf: raw.as_mut_ptr() as u64,
            btf_size: raw.len() as u32,
            ..Default::default()
        };
        let mut len = size_of_val(&info) as u32;
        // SAFETY: `info` is as long as `len` says, and `raw` as `btf_size`.
        let ret =
            unsafe { libbpf_sys::bpf_btf_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) };
        if ret != 0 {
            return Err(errno(ret));
        }
        raw.resize(info.btf_size as usize, 0);
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct pair { u32 a; u16 b[2]; }` by hand, with two of them in an array, and
    /// `struct { u32 a : bits; }`.
    fn pair(bits: u32) -> Vec<u8> {
        let names = b"\0u32\0u16\0pair\0a\0b\0";
        let types: [&[u32]; 6] = [
            &[1, 1 << 24, 4, 32],
            &[5, 1 << 24, 2, 16],
            &[0, 3 << 24, 0, 2, 1, 2],
            &[9, 4 << 24 | 2, 8, 14, 1, 0, 16, 3, 32],
            &[0, 3 << 24, 0, 4, 1, 2],
            &[9, 1 << 31 | 4 << 24 | 1, 4, 14, 1, bits << 24],
        ];
        let words: Vec<u32> = types.concat();
        let (types, names) = (4 * words.len() as u32, (names.len() as u32, names));
        let header = [0x0001_eb9f, 24, 0, types, types, names.0];
        let mut raw: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        raw.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        raw.extend(names.1);
        raw
    }

    #[test]
    fn fields_have_names_and_places() {
        let btf = Btf::parse(&pair(3)).expect("types");
        let fields = btf.fields(5).expect("an array of structs");
        let found: Vec<_> = fields
            .iter()
            .map(|field| (field.path.as_str(), field.offset, field.size, field.count))
            .collect();
        let wanted = [
            ("[0].a", 0, 4, 1),
            ("[0].b", 4, 2, 2),
            ("[1].a", 8, 4, 1),
            ("[1].b", 12, 2, 2),
        ];
        assert_eq!(found, wanted);
        assert_eq!(btf.fields(0), None, "nothing");
        assert_eq!(btf.fields(9), None, "no such type");
        let bits = |bits| Btf::parse(&pair(bits)).and_then(|btf| btf.fields(6));
        let first = bits(3);
        assert_eq!(first.as_ref().map(|fields| fields.0[0].count), Some(4));
        assert_eq!(first, bits(3));
        assert_ne!(first, bits(4));
    }

    #[test]
    fn types_that_are_cut_off_are_none() {
        let raw = pair(3);
        for len in 0..raw.len() {
            assert!(Btf::parse(&raw[..len]).is_none(), "{len}");
        }
    }
}
