// SPDX-License-Identifier: Apache-2.0
//! The daemon as requests have it. The runtime has two threads, which the health probes need, too:
//! a request that waited there for the engine would have probes fail for want of a thread.

use std::sync::Arc;

use crate::engine::{Engine, EngineError};
use crate::shared::Shared;

/// What waits for the engine, a gateway or a disk is done where it keeps no other request, and no
/// health probe, waiting. There is no other way to the engine from here.
#[derive(Clone)]
pub(crate) struct Daemon(Arc<Shared>);

impl Daemon {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Does `work` with the engine, which it holds meanwhile.
    pub(super) async fn engine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.shared(|shared| work(&mut shared.engine())).await
    }

    /// Does `work`, which takes the engine for as long as it needs it.
    pub(crate) async fn shared<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Shared>) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let done = self.0.aside(work).await;
        done.map_err(|error| EngineError::Plane(error.into()))?
    }
}
