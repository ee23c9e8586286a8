// SPDX-License-Identifier: Apache-2.0
//! Probes of databases, which need no password.

use anyhow::{Context as _, Result, bail, ensure};
use causeway_core::health::{PostgresError, redis_serves};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::connect;
use crate::health::ProbeOrder;

/// A line of Redis, and an error of PostgreSQL, are shorter.
const ANSWER_MAX: usize = 1024;
/// Version 3.0 of the protocol, which every PostgreSQL since 7.4 speaks.
const PROTOCOL: u32 = 3 << 16;

/// Sends `PING` as a client would by hand: no array, so that any version knows it.
pub(super) async fn redis(order: &ProbeOrder) -> Result<String> {
    let mut stream = connect(order).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut said = Vec::with_capacity(ANSWER_MAX);
    while !said.ends_with(b"\r\n") && said.len() < ANSWER_MAX {
        if stream.read_buf(&mut said).await? == 0 {
            break;
        }
    }
    let line = said
        .split(|octet| *octet == b'\r')
        .next()
        .unwrap_or_default();
    let shown = || String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned();
    ensure!(said.contains(&b'\r'), "the answer is not Redis'");
    match redis_serves(line) {
        true => Ok(shown()),
        false => bail!("{}", shown()),
    }
}

/// Asks to come in as `user`, as `pg_isready` does: a request for a password, or a refusal, shows
/// that the server serves.
pub(super) async fn postgres(order: &ProbeOrder, user: &str) -> Result<String> {
    let mut stream = connect(order).await?;
    stream.write_all(&startup(user)).await?;
    let mut head = [0; 5];
    let read = stream.read_exact(&mut head).await;
    read.context("the answer is not PostgreSQL's")?;
    match head[0] {
        b'R' => {
            // The end of the session, without which the server's log has a line for each probe.
            let _ = stream.write_all(b"X\0\0\0\x04").await;
            return Ok("asks who it is".to_owned());
        }
        b'E' => {}
        _ => bail!("the answer is not PostgreSQL's"),
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut fields = vec![0; length.saturating_sub(4).min(ANSWER_MAX)];
    stream.read_exact(&mut fields).await?;
    let error = PostgresError::parse(&fields).context("the answer is not PostgreSQL's")?;
    match error.is_about_the_server() {
        true => bail!("{}: {}", error.code, error.message),
        false => Ok(format!("{}: {}", error.code, error.message)),
    }
}

fn startup(user: &str) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(PROTOCOL.to_be_bytes());
    for text in ["user", user, "application_name", "causeway", ""] {
        message.extend(text.as_bytes());
        message.push(0);
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_startup_message_has_its_length_before_it() {
        let message = super::startup("u");
        assert_eq!(message[..8], [0, 0, 0, 42, 0, 3, 0, 0]);
        assert_eq!(&message[8..], b"user\0u\0application_name\0causeway\0\0");
    }
}
