// SPDX-License-Identifier: Apache-2.0
//! `causeway agent join`: gets this server's keys file from a balancer, by a token that is good
//! once.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use causeway_core::agent_report::{
    Boot, DATAGRAM_MAX, JoinAnswer, JoinAttempt, JoinRefusal, JoinTicket,
};
use causeway_service::config::KeysFile;
use causeway_service::seal::SealKeys;

/// Between two datagrams.
const AGAIN: Duration = Duration::from_millis(500);
/// For the store to take the claim, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks the balancer that listens for agents there, from this server's address, if one is given;
/// writes the keys file, which must not exist. Says what it did.
pub fn join(
    balancer: SocketAddr,
    from: Option<IpAddr>,
    token: &str,
    keys: &Path,
) -> anyhow::Result<String> {
    if keys.exists() {
        bail!(
            "{} exists; remove it first if this server is to join anew",
            keys.display()
        );
    }
    let ticket: JoinTicket = token.parse()?;
    let any: IpAddr = match balancer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = from.unwrap_or(any);
    let socket = UdpSocket::bind((from, 0));
    let socket = socket.with_context(|| format!("{from} is not an address of this server"))?;
    let reached = socket.connect(balancer);
    reached.with_context(|| format!("{balancer} cannot be reached"))?;
    let server = socket.local_addr()?.ip();
    let own = SealKeys::new().context("the system gives no random numbers")?;
    let public = own.public();
    let boot = Boot {
        time_s: u32::from_be_bytes([public[0], public[1], public[2], public[3]]),
        id: u32::from_be_bytes([public[4], public[5], public[6], public[7]]),
    };
    let attempt = JoinAttempt::new(ticket, public, server, boot);
    let (key, sealed) = exchange(&socket, attempt, balancer, server)?;
    let text = own.open(key, ticket.secret().salt(), &sealed);
    let file: Option<KeysFile> = text.and_then(|text| text.parse().ok());
    let file = file.with_context(|| {
        format!("what {balancer} has sent cannot be read; is it of this version of Causeway?")
    })?;
    let written = file.write(keys);
    written.with_context(|| {
        format!(
            "cannot write {}; the token is used: make another one",
            keys.display()
        )
    })?;
    Ok(format!(
        "{}: the keys of {server}, by which its agent hears the fleet's book",
        keys.display()
    ))
}

fn exchange(
    socket: &UdpSocket,
    mut attempt: JoinAttempt,
    balancer: SocketAddr,
    server: IpAddr,
) -> anyhow::Result<([u8; 32], Vec<u8>)> {
    let deadline = Instant::now() + TIMEOUT;
    let mut buffer = [0; DATAGRAM_MAX + 1];
    socket.set_read_timeout(Some(AGAIN))?;
    while Instant::now() < deadline {
        // What a closed port has answered to the last one.
        let sent = socket.send(&attempt.ask());
        if sent.is_err_and(|error| error.kind() != ErrorKind::ConnectionRefused) {
            bail!("{balancer} cannot be reached from {server}");
        }
        let received = match socket.recv(&mut buffer) {
            Ok(length) => attempt.handle(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::thread::sleep(AGAIN);
                None
            }
            Err(_) => None,
        };
        match received {
            None | Some(JoinAnswer::Challenged) => {}
            Some(JoinAnswer::Given(key, sealed)) => return Ok((key, sealed)),
            Some(JoinAnswer::Refused(refusal)) => return Err(refused(refusal, balancer, server)),
        }
    }
    bail!(
        "{balancer} has not answered {server} for {TIMEOUT:?}: is that `agent_reports.listen` of a balancer of the fleet, does UDP get there, and is the token one of `causeway fleet token`? `causeway fleet status` there counts what has come"
    );
}

fn refused(why: JoinRefusal, balancer: SocketAddr, server: IpAddr) -> anyhow::Error {
    match why {
        JoinRefusal::Used => anyhow!(
            "{balancer} says that the token has been used; if not by this server, it was stolen: see docs/how-to/several-balancers.md. `causeway fleet token` makes another"
        ),
        JoinRefusal::Expired => anyhow!(
            "{balancer} says that the token has expired; `causeway fleet token` makes another"
        ),
        JoinRefusal::WrongAddress => anyhow!(
            "{balancer} sees this server as {server}, and the token is for another address; name that with --from, or make a token for this one"
        ),
    }
}
