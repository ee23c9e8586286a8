// SPDX-License-Identifier: Apache-2.0
//! sd_notify(3): reports to systemd what the daemon is doing. Without
//! `NOTIFY_SOCKET` every call does nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::debug;

/// Startup is done.
pub fn ready() {
    send("READY=1");
}

/// A reload began at this CLOCK_MONOTONIC time; [`ready`] ends it.
pub fn reloading(monotonic_ns: u64) {
    send(&format!(
        "RELOADING=1\nMONOTONIC_USEC={}",
        monotonic_ns / 1000
    ));
}

/// The daemon is about to end.
pub fn stopping() {
    send("STOPPING=1");
}

/// How often systemd wants a sign that the daemon works (`WatchdogSec=`), halved as
/// sd_watchdog_enabled(3) advises; `None` if it does not.
pub(crate) fn watchdog_period() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let wanted = number("WATCHDOG_USEC").filter(|&usec| ours && usec > 1);
    wanted.map(|usec| Duration::from_micros(usec / 2))
}

/// The daemon works.
pub(crate) fn works() {
    send("WATCHDOG=1");
}

fn send(message: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = try_send(&address, message) {
        debug!("cannot notify {}: {error}", address.display());
    }
}

fn try_send(address: &OsStr, message: &str) -> io::Result<()> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        try_send(path.as_os_str(), "READY=1").unwrap();
        let mut buffer = [0; 32];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        assert!(try_send(OsStr::new("/nonexistent"), "READY=1").is_err());
    }
}
