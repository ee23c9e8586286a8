// SPDX-License-Identifier: Apache-2.0
//! Probes of name servers: a question by UDP, or by TCP to VIPs of that.

use anyhow::{Context as _, Result, ensure};
use causeway_core::health::dns_code;
use causeway_dataplane::probe::aim_at;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use super::{any_address, connect};
use crate::config::{Protocol, RecordType};
use crate::health::ProbeOrder;

/// Enough of an answer to see its head.
const HEAD: usize = 512;
const RECURSION_DESIRED: u8 = 0x01;

pub(super) async fn ask(
    order: &ProbeOrder,
    name: &str,
    record: RecordType,
    right: &[u8],
) -> Result<String> {
    let id = (order.number as u16).to_be_bytes();
    let query = query(id, name, record);
    let code = match order.protocol {
        Protocol::Udp => by_udp(order, &query, id).await?,
        Protocol::Tcp => by_tcp(order, &query, id).await?,
    };
    ensure!(right.contains(&code), "the answer is code {code}");
    Ok("answered".to_owned())
}

async fn by_udp(order: &ProbeOrder, query: &[u8], id: [u8; 2]) -> Result<u8> {
    let socket = UdpSocket::bind(any_address(order)).await?;
    aim_at(&socket, order.real)?;
    socket.connect(order.target).await?;
    // The port, new for each probe, is what distinguishes answers; the id is a second check.
    socket.send(query).await?;
    let mut answer = [0; HEAD];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(code) = dns_code(&answer[..length], id) {
            return Ok(code);
        }
    }
}

async fn by_tcp(order: &ProbeOrder, query: &[u8], id: [u8; 2]) -> Result<u8> {
    let mut stream = connect(order).await?;
    let length = (query.len() as u16).to_be_bytes();
    stream.write_all(&[&length, query].concat()).await?;
    let mut head = [0; 14];
    stream.read_exact(&mut head).await?;
    dns_code(&head[2..], id).context("the answer is not the DNS'")
}

/// A question for a record of a name.
fn query(id: [u8; 2], name: &str, record: RecordType) -> Vec<u8> {
    let mut query = vec![id[0], id[1], RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(record.code().to_be_bytes());
    // Class IN.
    query.extend([0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_rfc_1035_says() {
        assert_eq!(
            query([0x12, 0x34], "a.example.", RecordType::A),
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01"
        );
        assert_eq!(query([0, 0], ".", RecordType::Soa)[12..], [0, 0, 6, 0, 1]);
    }
}
