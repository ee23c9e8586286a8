// SPDX-License-Identifier: Apache-2.0
//! How busy the reals are, where the data plane and user space meet: the table is
//! mapped into memory, and both sides change it by atomic additions.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::*;
use crate::mapped::Shared;

/// What one flow means for its real's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTerms {
    /// Added by a new flow.
    pub rise: u32,
    /// Taken off by a flow's end.
    pub fall: u32,
    /// Relative capacity; 0 counts as 1.
    pub weight: u32,
}

/// `struct real_load`, shared with the kernel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Cell {
    load: AtomicI64,
    rise: AtomicU32,
    fall: AtomicU32,
    weight: AtomicU32,
    pad: [u32; 3],
}

const _: () = {
    assert!(size_of::<Cell>() == size_of::<abi::RealLoad>());
    assert!(std::mem::offset_of!(Cell, rise) == std::mem::offset_of!(abi::RealLoad, rise));
    assert!(std::mem::offset_of!(Cell, fall) == std::mem::offset_of!(abi::RealLoad, fall));
    assert!(std::mem::offset_of!(Cell, weight) == std::mem::offset_of!(abi::RealLoad, weight));
};

// SAFETY: all fields are atomic but the padding, which is not read.
unsafe impl Shared for Cell {}

impl LoadBalancer {
    pub(super) fn clear_load(&self, id: RealId) {
        let Some(cell) = self.loads.get(id as usize) else {
            return;
        };
        for part in [&cell.rise, &cell.fall, &cell.weight] {
            part.store(0, Ordering::Relaxed);
        }
        cell.load.store(0, Ordering::Relaxed);
    }

    fn load_cell(&self, id: RealId) -> Result<&Cell> {
        self.registry().real(id)?;
        let cell = self.loads.get(id as usize);
        cell.ok_or(DataPlaneError::UnknownReal(id))
    }

    /// A real's load. It may be below 0 for a moment: a flow that began before loads
    /// were counted may end.
    pub fn load(&self, id: RealId) -> Result<i64> {
        Ok(self.load_cell(id)?.load.load(Ordering::Relaxed))
    }

    /// Sets a real's load.
    pub fn set_load(&self, id: RealId, load: i64) -> Result<()> {
        self.load_cell(id)?.load.store(load, Ordering::Relaxed);
        Ok(())
    }

    /// Adds to a real's load, beside the data plane: neither loses what the other adds.
    pub fn add_load(&self, id: RealId, change: i64) -> Result<()> {
        self.load_cell(id)?
            .load
            .fetch_add(change, Ordering::Relaxed);
        Ok(())
    }

    /// What one flow means for a real's load; nothing before it was set.
    pub fn load_terms(&self, id: RealId) -> Result<LoadTerms> {
        let cell = self.load_cell(id)?;
        Ok(LoadTerms {
            rise: cell.rise.load(Ordering::Relaxed),
            fall: cell.fall.load(Ordering::Relaxed),
            weight: cell.weight.load(Ordering::Relaxed),
        })
    }

    /// Sets what one flow means for a real's load.
    pub fn set_load_terms(&self, id: RealId, terms: LoadTerms) -> Result<()> {
        let cell = self.load_cell(id)?;
        cell.rise.store(terms.rise, Ordering::Relaxed);
        cell.fall.store(terms.fall, Ordering::Relaxed);
        cell.weight.store(terms.weight, Ordering::Relaxed);
        Ok(())
    }
}
