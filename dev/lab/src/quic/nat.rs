// SPDX-License-Identifier: Apache-2.0
//! A NAT before one connection's client, which gives it another port now and then
//! without telling it. Its connection ids stay: not the client has moved, only its
//! packets come from elsewhere (RFC 9000, section 9.3.1, calls it NAT rebinding).

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, spawn_local};

use super::socket::{is_confirmed, open_socket};

/// Longer than any datagram of a client or a server here.
const MAX_DATAGRAM: usize = 2048;

/// What a client takes for its server, and where its packets first come from.
pub(super) struct Nat {
    /// Send here.
    pub inside: SocketAddr,
    /// The address that the first packets have.
    pub outside: SocketAddr,
    /// The connection, once it is there: until its handshake is confirmed the ports stay, as a
    /// server follows nobody before (RFC 9000, section 9).
    pub connection: Rc<OnceCell<quinn::Connection>>,
    /// What carries the packets, for as long as the thread's tasks live or until it is
    /// aborted.
    pub task: AbortHandle,
}

struct Relay {
    inside: UdpSocket,
    outside: UdpSocket,
    /// The ports before, newest first.
    former: FormerPorts,
    target: SocketAddr,
    client: Option<SocketAddr>,
    connection: Rc<OnceCell<quinn::Connection>>,
    port: Port,
}

/// How far both ends are with the port of now.
#[derive(Clone, Copy, PartialEq)]
enum Port {
    New,
    /// The server has sent something to it.
    Answered,
    /// The client has sent something since, such as its answer to the challenge of a new path.
    Settled,
}

impl Nat {
    /// Opens a way to `target` that changes `every_ms` after the server has followed the last
    /// change: on a machine that stands still it could not follow before the next.
    pub(super) fn open(
        target: SocketAddr,
        every_ms: u64,
        moved: impl FnMut() + 'static,
    ) -> io::Result<Self> {
        let local: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let inside = std::net::UdpSocket::bind((local, 0))?;
        inside.set_nonblocking(true)?;
        let relay = Relay {
            inside: UdpSocket::from_std(inside)?,
            outside: outside(target)?,
            former: FormerPorts::default(),
            target,
            client: None,
            connection: Rc::default(),
            port: Port::New,
        };
        Ok(Self {
            inside: relay.inside.local_addr()?,
            outside: relay.outside.local_addr()?,
            connection: Rc::clone(&relay.connection),
            task: spawn_local(relay.run(Duration::from_millis(every_ms), moved)).abort_handle(),
        })
    }
}

fn outside(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open_socket(target)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

impl Relay {
    async fn run(mut self, every: Duration, mut moved: impl FnMut()) {
        let mut clock = tokio::time::interval(every);
        clock.tick().await;
        let (mut out, mut back) = (vec![0; MAX_DATAGRAM], vec![0; MAX_DATAGRAM]);
        let mut late = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                biased;
                Ok((len, client)) = self.inside.recv_from(&mut out) => {
                    self.client = Some(client);
                    if self.port == Port::Answered {
                        self.port = Port::Settled;
                        clock.reset();
                    }
                    // Like a router it forgets what it cannot send.
                    let _ = self.outside.send_to(&out[..len], self.target).await;
                }
                Ok(len) = self.outside.recv(&mut back) => {
                    if self.port == Port::New {
                        self.port = Port::Answered;
                    }
                    self.deliver(&back[..len]).await;
                }
                Ok(len) = self.former.recv(&mut late) => self.deliver(&late[..len]).await,
                _ = clock.tick(), if self.port == Port::Settled && self.may_move() => {
                    if let Ok(next) = outside(self.target) {
                        self.former.push(std::mem::replace(&mut self.outside, next));
                        self.port = Port::New;
                        moved();
                    }
                }
            }
        }
    }

    fn may_move(&self) -> bool {
        self.connection.get().is_some_and(is_confirmed)
    }

    async fn deliver(&self, datagram: &[u8]) {
        if let Some(client) = self.client {
            let _ = self.inside.send_to(datagram, client).await;
        }
    }
}

/// What arrives at former ports still reaches the client: a server goes back to the last port that it
/// has validated where the answer to its next challenge was late or lost (RFC 9000, section 9.3.2).
#[derive(Default)]
struct FormerPorts(VecDeque<UdpSocket>);

impl FormerPorts {
    /// Several times as many as a NAT can give before a server has given up a challenge.
    const MAX: usize = 16;

    fn push(&mut self, port: UdpSocket) {
        self.0.truncate(Self::MAX - 1);
        self.0.push_front(port);
    }

    /// The next datagram; never without a port.
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| {
            let mut buffer = ReadBuf::new(buffer);
            for port in &self.0 {
                if let Poll::Ready(result) = port.poll_recv(context, &mut buffer) {
                    return Poll::Ready(result.map(|()| buffer.filled().len()));
                }
            }
            Poll::Pending
        })
        .await
    }
}
