// SPDX-License-Identifier: Apache-2.0
//! A Redis server, and clients that ask it for a small value.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::latencies::RequestTimes;
use super::loads::{self, Ends, Pace, TcpStack};
use crate::background::KilledOnDrop;
use crate::clock::until;
use crate::netns::Netns;

/// Where it listens.
pub(super) const PORT: u16 = 6379;
/// Bytes of the value.
const VALUE: usize = 100;
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server; dropped, it is killed.
pub(super) struct Redis {
    child: KilledOnDrop,
    _directory: TempDir,
}

impl Redis {
    /// Starts it on all addresses of a namespace, with nothing kept on disk, and stores the
    /// value.
    pub(super) fn start(netns: &Netns) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("redis-").tempdir()?;
        let child = netns
            .command("redis-server")
            .args(["--port", &PORT.to_string(), "--bind", "0.0.0.0"])
            .args(["--save", "", "--appendonly", "no", "--protected-mode", "no"])
            .arg("--dir")
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run redis-server (Debian package redis-server)")?;
        let mut server = Self {
            child: KilledOnDrop(child),
            _directory: directory,
        };
        netns.ip("link set lo up\n")?;
        let stored = until(START_TIMEOUT, || {
            if let Some(status) = server.child.try_wait()? {
                bail!("redis-server ended at its start ({status})");
            }
            Ok(netns.run(store).ok())
        })?;
        stored.context("redis-server does not answer")?;
        Ok(server)
    }
}

fn store() -> Result<()> {
    let mut stream = loads::open(SocketAddr::from(([127, 0, 0, 1], PORT)), TcpStack::Tcp)?;
    let value = "v".repeat(VALUE);
    write!(
        stream,
        "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n${VALUE}\r\n{value}\r\n"
    )?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"+OK\r\n", "SET was refused");
    Ok(())
}

/// GETs of the value by a timetable, on connections that stay.
pub(super) fn gets(ends: &Ends, pace: Pace) -> Result<RequestTimes> {
    let target: SocketAddr = format!("{}:{PORT}", ends.address).parse()?;
    let stack = ends.stack;
    let expected = format!("${VALUE}\r\n{}\r\n", "v".repeat(VALUE)).into_bytes();
    loads::paced(&ends.client, pace, move || {
        let mut stream = loads::open(target, stack)?;
        let expected = expected.clone();
        Ok(move || {
            stream.write_all(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n")?;
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer)?;
            match answer == expected {
                true => Ok(()),
                false => Err(io::Error::from(ErrorKind::InvalidData)),
            }
        })
    })
}
