// SPDX-License-Identifier: Apache-2.0
//! The sockets that reports leave by and questions arrive at, one for each family of
//! addresses. They never wait.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use causeway_core::agent_report::DATAGRAM_MAX;

/// Datagrams read from a socket at one look; the rest waits for the next.
const LOOKS_MAX: usize = 1024;

/// By whether it is for IPv6.
#[derive(Debug, Default)]
pub(super) struct Sockets(BTreeMap<bool, UdpSocket>);

impl Sockets {
    /// Sends a datagram to these balancers. One that is not there gets the next one soon, or relies
    /// on what it sees itself.
    pub(super) fn send(&mut self, to: &[SocketAddr], datagram: &[u8]) {
        for balancer in to {
            let ipv6 = balancer.is_ipv6();
            if !self.0.contains_key(&ipv6)
                && let Ok(socket) = open(ipv6)
            {
                self.0.insert(ipv6, socket);
            }
            if let Some(socket) = self.0.get(&ipv6) {
                let _ = socket.send_to(datagram, balancer);
            }
        }
    }

    /// What `balancers` have sent that means something, as `read` finds. A datagram is looked into
    /// only if one of them seems to have sent it, and a flood keeps the agent from nothing else.
    pub(super) fn answers<T>(
        &self,
        balancers: &[SocketAddr],
        mut read: impl FnMut(&[u8], SocketAddr) -> Option<T>,
    ) -> Vec<(SocketAddr, T)> {
        let mut answers = Vec::new();
        let mut buffer = [0; DATAGRAM_MAX + 1];
        for socket in self.0.values() {
            for _ in 0..LOOKS_MAX {
                // Nothing there, or the news that a balancer is not: neither is an answer.
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    break;
                };
                let is_known = balancers.contains(&from);
                let answer = is_known.then(|| read(&buffer[..length], from)).flatten();
                answers.extend(answer.map(|answer| (from, answer)));
            }
        }
        answers
    }
}

fn open(ipv6: bool) -> io::Result<UdpSocket> {
    let any: SocketAddr = match ipv6 {
        true => (Ipv6Addr::UNSPECIFIED, 0).into(),
        false => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::{Duration, Instant};

    use causeway_core::agent_report::{
        Body, Boot, Question, Reception, ReportKeys, ReportReceiver, ReportSecrets, ReportSender,
    };
    use causeway_core::cookie::{CookieKey, KeyEpoch};

    use super::*;

    const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn a_question_counts_once_and_from_a_balancer_alone() {
        let root = CookieKey::from_bytes([7; 16]);
        let keys = ReportKeys {
            current: KeyEpoch::Zero,
            secrets: ReportSecrets::Root([Some(root), None]),
        };
        let mut sender = ReportSender::new(Boot { time_s: 1, id: 1 }, 0);
        let mut sockets = Sockets::default();
        let [balancer, stranger] =
            [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"));
        let address = balancer.local_addr().expect("its address");
        let report = sender.datagram(SERVER, Vec::new(), &keys);
        sockets.send(&[address], &report);
        let mut buffer = [0; DATAGRAM_MAX];
        let (length, agent) = balancer.recv_from(&mut buffer).expect("the report");
        let agent = SocketAddr::from((Ipv4Addr::LOCALHOST, agent.port()));
        let mut receiver = ReportReceiver::new(CookieKey::from_bytes([8; 16]));
        let received = receiver.receive(&buffer[..length], Some(&keys), 0);
        assert_eq!(received, Err(Reception::Unproven));
        let question = receiver.challenge(&buffer[..length], &keys, 0);
        let question = question.expect("a challenge");
        let send = |from: &UdpSocket, what: &[u8]| from.send_to(what, agent).expect("send");
        let mut questions = || {
            sockets.answers(&[address], |datagram, balancer| {
                sender.question(datagram, balancer, &[SERVER], &keys)
            })
        };
        send(&stranger, &question);
        assert_eq!(questions(), []);
        send(&balancer, &report);
        assert_eq!(questions(), []);
        send(&balancer, &question);
        // The kernel may have put it off.
        let end = Instant::now() + Duration::from_secs(60);
        let mut answers = questions();
        while answers.is_empty() && Instant::now() < end {
            answers = questions();
        }
        let [(from, Question::Challenge(SERVER, number))] = answers[..] else {
            panic!("no challenge");
        };
        assert_eq!(from, address);
        send(&balancer, &question);
        assert_eq!(questions(), []);
        let response = sender.datagram(SERVER, vec![Body::Response(number)], &keys);
        assert!(receiver.receive(&response, Some(&keys), 0).is_ok());
    }
}
