// SPDX-License-Identifier: Apache-2.0
//! One configuration of a VIP for all who hold it.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::VipConfig;

/// A VIP's configuration, shared by the file as it was read, what is in force, and the VIP at
/// work. Who changes it gets a copy, so that two that are the same are nearly always one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedVip(Arc<VipConfig>);

impl SharedVip {
    /// Takes those of `known` in the place of others that say the same: a file that is read again
    /// is a copy of what there is but for some VIPs.
    pub fn share(vips: &mut [Self], known: &[Self]) {
        let known: HashMap<_, _> = known.iter().map(|vip| (vip.key(), vip)).collect();
        for vip in vips {
            if let Some(known) = known.get(&vip.key()).filter(|known| **known == vip) {
                vip.clone_from(known);
            }
        }
    }
}

impl From<VipConfig> for SharedVip {
    fn from(vip: VipConfig) -> Self {
        Self(Arc::new(vip))
    }
}

impl Deref for SharedVip {
    type Target = VipConfig;

    fn deref(&self) -> &VipConfig {
        &self.0
    }
}

impl DerefMut for SharedVip {
    fn deref_mut(&mut self) -> &mut VipConfig {
        Arc::make_mut(&mut self.0)
    }
}
