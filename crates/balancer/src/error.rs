// SPDX-License-Identifier: Apache-2.0
//! What requests are refused with.

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such VIP or real.
    #[error("{0}")]
    NotFound(String),
    /// The state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The data plane failed. The message has all causes, so that they are no `source`.
    #[error("{0:#}")]
    Plane(anyhow::Error),
}

impl EngineError {
    /// With what was done all the same.
    pub(super) fn with_note(self, note: &str) -> Self {
        let with = |text: String| format!("{text}; {note}");
        match self {
            Self::NotFound(text) => Self::NotFound(with(text)),
            Self::Conflict(text) => Self::Conflict(with(text)),
            Self::Invalid(text) => Self::Invalid(with(text)),
            Self::Plane(error) => Self::Plane(error),
        }
    }
}

impl From<anyhow::Error> for EngineError {
    fn from(error: anyhow::Error) -> Self {
        Self::Plane(error)
    }
}
