// SPDX-License-Identifier: Apache-2.0
//! From one build's struct to another's: by the names of fields. A field that only one of the two
//! has is zero, or left out.

use crate::btf::{Field, Fields};

/// How a key or a value of one layout becomes one of another.
#[derive(Clone, Debug)]
pub(crate) struct Translator {
    moves: Vec<(Field, Field)>,
    len: usize,
    is_same: bool,
}

impl Translator {
    /// From `old` to `new`, of which a value has `len` bytes. A part whose name is in `whole` comes
    /// over whole or not at all: what an estimator knows is of no use without a part of it.
    pub(crate) fn new(old: &Fields, new: &Fields, len: usize, whole: &[&str]) -> Self {
        let is_of = |part: &str, field: &Field| {
            let behind = field.path.strip_prefix(part);
            behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let part_of = |fields: &Fields, part: &str| -> Vec<Field> {
            let own: Vec<_> = fields.iter().filter(|field| is_of(part, field)).collect();
            let first = own.first().map_or(0, |field| field.offset);
            let from_there = |field: &Field| Field {
                offset: field.offset - first,
                ..field.clone()
            };
            own.into_iter().map(from_there).collect()
        };
        let differs = |part: &str| part_of(old, part) != part_of(new, part);
        let dropped: Vec<&str> = whole.iter().copied().filter(|part| differs(part)).collect();
        let moves = new.iter().filter_map(|to| {
            let from = old.get(&to.path)?;
            let is_kept = !dropped.iter().any(|part| is_of(part, to)) && from.mark == to.mark;
            (is_kept && from.size <= to.size).then(|| (from.clone(), to.clone()))
        });
        Self {
            moves: moves.collect(),
            len,
            is_same: old == new,
        }
    }

    /// Whether all of these fields come over.
    pub(crate) fn has(&self, fields: &[&str]) -> bool {
        let has = |path: &&str| self.moves.iter().any(|(from, _)| from.path == *path);
        fields.iter().all(has)
    }

    pub(crate) fn apply(&self, old: &[u8]) -> Vec<u8> {
        if self.is_same && old.len() == self.len {
            return old.to_vec();
        }
        let mut new = vec![0; self.len];
        for (from, to) in &self.moves {
            let count = from.count.min(to.count);
            if from.size == to.size {
                let len = count * to.size;
                let source = old.get(from.offset..from.offset + len);
                let target = new.get_mut(to.offset..to.offset + len);
                if let (Some(source), Some(target)) = (source, target) {
                    target.copy_from_slice(source);
                }
                continue;
            }
            for n in 0..count {
                let (from_at, to_at) = (from.offset + n * from.size, to.offset + n * to.size);
                let source = old.get(from_at..from_at + from.size);
                let target = new.get_mut(to_at..to_at + to.size);
                if let (Some(source), Some(target)) = (source, target) {
                    widen(source, target);
                }
            }
        }
        new
    }
}

/// A number into more bytes.
fn widen(from: &[u8], to: &mut [u8]) {
    if cfg!(target_endian = "little") {
        to[..from.len()].copy_from_slice(from);
    } else {
        let at = to.len() - from.len();
        to[at..].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(of: &[(&str, usize, usize, usize)]) -> Fields {
        let field = |&(path, offset, size, count): &(&str, usize, usize, usize)| Field {
            path: path.to_owned(),
            offset,
            size,
            count,
            mark: 0,
        };
        of.iter().map(field).collect()
    }

    #[test]
    fn fields_follow_their_names() {
        let old = fields(&[("real", 0, 2, 1), ("gone", 2, 2, 1), ("key.a", 4, 1, 4)]);
        let new = fields(&[("key.a", 0, 1, 4), ("new", 4, 4, 1), ("real", 8, 4, 1)]);
        let there = Translator::new(&old, &new, 12, &[]);
        let value = [7_u16.to_ne_bytes(), [9, 9]].concat();
        let value = [value, vec![1, 2, 3, 4]].concat();
        let wanted = [[1, 2, 3, 4], [0; 4], 7_u32.to_ne_bytes()].concat();
        assert_eq!(there.apply(&value), wanted);
        assert!(there.has(&["real", "key.a"]) && !there.has(&["new"]));
        // Back, a number may not fit any more: it is left out.
        let back = Translator::new(&new, &old, 8, &[]);
        assert_eq!(back.apply(&wanted), [0, 0, 0, 0, 1, 2, 3, 4]);
        assert!(!back.has(&["real"]));
        // What is too short says nothing.
        assert_eq!(there.apply(&[7, 0]).len(), 12);
    }

    #[test]
    fn some_parts_come_whole_or_not_at_all() {
        let old = fields(&[
            ("real", 0, 4, 1),
            ("chain.a", 4, 4, 1),
            ("chain.b", 8, 4, 1),
        ]);
        let moved = fields(&[
            ("chain.a", 0, 4, 1),
            ("chain.b", 4, 4, 1),
            ("real", 8, 4, 1),
        ]);
        let value = [1_u32, 2, 3].map(u32::to_ne_bytes).concat();
        let to = |new: &Fields| Translator::new(&old, new, 12, &["chain"]).apply(&value);
        assert_eq!(to(&moved), [2_u32, 3, 1].map(u32::to_ne_bytes).concat());
        let other = fields(&[
            ("chain.a", 0, 4, 1),
            ("chain.c", 4, 4, 1),
            ("real", 8, 4, 1),
        ]);
        assert_eq!(to(&other), [0_u32, 0, 1].map(u32::to_ne_bytes).concat());
    }
}
