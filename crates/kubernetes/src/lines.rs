// SPDX-License-Identifier: Apache-2.0
//! The lines of an answer, as they come.

use anyhow::ensure;
use causeway_service::exchange::HttpAnswer;
use http_body_util::BodyExt as _;

/// Splits a body into its lines, as they come.
pub(crate) struct Lines {
    answer: HttpAnswer,
    rest: Vec<u8>,
}

/// A longer line is no object: etcd takes 1.5 MiB.
const LINE_MAX: usize = 8 << 20;

impl Lines {
    /// The lines of an answer.
    pub(crate) fn of(answer: HttpAnswer) -> Self {
        Self {
            answer,
            rest: Vec::new(),
        }
    }

    /// The next line; `None` at the end. What comes after the last newline is cut off, and so no
    /// line. May be dropped and called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            let end = self.rest[searched..]
                .iter()
                .position(|octet| *octet == b'\n');
            if let Some(end) = end {
                let after = self.rest.split_off(searched + end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, after)));
            }
            searched = self.rest.len();
            ensure!(searched <= LINE_MAX, "a line is longer than 8 MiB");
            match self.answer.body.frame().await {
                Some(frame) => {
                    if let Some(data) = frame?.data_ref() {
                        self.rest.extend_from_slice(data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}
