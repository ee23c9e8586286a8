// SPDX-License-Identifier: Apache-2.0
//! Cookies that begin, or come back, while connections are open: clients are not to take
//! segments for old ones (PAWS) for having seen the kernel's own timestamps.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use causeway_core::cookie::{CookieKey, CookieLayout, CookieMode, KeyEpoch, Keys};
use nix::libc;
use socket2::{Domain, Socket, Type};

use super::mend::take_off_by_hand;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Each pair of addresses has a clock of its own (RFC 7323, section 5.4), which may be ahead
/// of the cookies' or behind.
const CLIENTS: u8 = 32;

fn service() -> SocketAddr {
    SocketAddr::new(addr("10.7.0.1"), 8080)
}

/// A server whose VIP has no cookies yet, and clients.
struct World {
    clients: Netns,
    server: Decapsulator,
    listener: TcpListener,
}

impl World {
    fn build(options: &DecapsulatorOptions) -> Self {
        let clients = veth();
        for host in 0..CLIENTS {
            clients.ip(&format!("addr add 10.7.0.{}/24 dev peer0", 100 + host));
        }
        let (server, _) = Decapsulator::start(options).expect("a decapsulator");
        let keys = Keys::new(KeyEpoch::Zero, CookieKey::from_words([1, 2]), None);
        server.set_cookie_keys(Some(&keys)).expect("keys");
        let listener = listen(service());
        Self {
            clients,
            server,
            listener,
        }
    }

    fn begin_cookies(&self) {
        let vip = Vip {
            address: service().ip(),
            port: service().port(),
            protocol: Protocol::Tcp,
        };
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let vips = BTreeMap::from([(vip, (1, layout))]);
        self.server.set_cookie_vips(&vips).expect("a VIP");
    }

    /// A connection of each client.
    fn connect(&self) -> Vec<TcpStream> {
        let connect = |host| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            let from = SocketAddr::new(addr(&format!("10.7.0.{}", 100 + host)), 0);
            socket.bind(&from.into()).expect("its address");
            socket
                .connect_timeout(&service().into(), TIMEOUT)
                .expect("a connection");
            TcpStream::from(socket)
        };
        self.clients.run(|| (0..CLIENTS).map(connect).collect())
    }

    /// The same with the server's ends.
    fn open(&self) -> Vec<[TcpStream; 2]> {
        let accept = |client| [client, self.listener.accept().expect("accept").0];
        self.connect().into_iter().map(accept).collect()
    }

    /// Segments that clients took for old ones.
    fn rejected(&self) -> u64 {
        let text = self
            .clients
            .run(|| fs::read_to_string("/proc/thread-self/net/netstat"))
            .expect("counters");
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let mut words = || lines.next().expect("a line").split_whitespace();
        let count = words().zip(words()).find(|(name, _)| *name == "PAWSEstab");
        count.expect("PAWSEstab").1.parse().expect("a number")
    }
}

/// Has handshakes wait for the client's data.
fn defer_accept(listener: &TcpListener) {
    let seconds: libc::c_int = 60;
    // SAFETY: a descriptor, and an integer of the size that is told.
    let ret = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of_val(&seconds) as libc::socklen_t,
        )
    };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}

fn say(mut from: &TcpStream, byte: u8) {
    from.write_all(&[byte]).expect("send");
}

fn hear(mut to: &TcpStream, byte: u8) {
    let mut heard = [0];
    to.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    to.read_exact(&mut heard).expect("receive");
    assert_eq!(heard, [byte]);
}

fn tell(from: &TcpStream, to: &TcpStream, byte: u8) {
    say(from, byte);
    hear(to, byte);
}

/// With control groups, where connections are seen as they open, and without.
fn both_ways(test: fn(&Path, &DecapsulatorOptions)) {
    for is_seen in [true, false] {
        Sandbox::run(move |sandbox| {
            let pins = sandbox.pin_dir("server");
            let mut options = server_options(&pins);
            if !is_seen {
                let cgroup = Some("/sys/fs/cgroup/of-no-service".into());
                options.cookies = Some(CookieHooks { cgroup });
            }
            test(&pins, &options);
            Decapsulator::detach(&pins).expect("a detach");
        });
    }
}

#[test]
fn cookies_may_begin_within_a_handshake() {
    both_ways(|_, options| {
        let world = World::build(options);
        defer_accept(&world.listener);
        let clients = world.connect();
        world.begin_cookies();
        for client in clients {
            say(&client, 1);
            let (server, _) = world.listener.accept().expect("accept");
            hear(&server, 1);
            tell(&server, &client, 2);
            tell(&client, &server, 3);
        }
        assert_eq!(world.rejected(), 0);
    });
}

/// The SYN-ACK's cookie is of the former key, the connection's of the new one.
#[test]
fn keys_may_be_switched_within_a_handshake() {
    both_ways(|_, options| {
        let world = World::build(options);
        world.begin_cookies();
        defer_accept(&world.listener);
        let clients = world.connect();
        let [former, new] = [[1, 2], [3, 4]].map(CookieKey::from_words);
        let keys = Keys::new(KeyEpoch::One, new, Some(former));
        world.server.set_cookie_keys(Some(&keys)).expect("keys");
        for client in clients {
            say(&client, 1);
            let (server, _) = world.listener.accept().expect("accept");
            hear(&server, 1);
            tell(&server, &client, 2);
            tell(&client, &server, 3);
            tell(&server, &client, 4);
        }
        assert_eq!(world.rejected(), 0);
        let events = world.server.cookie_events().expect("counters");
        let count = |wanted| {
            let mut events = events.iter();
            let found = events.find(|(event, _)| event.as_str() == wanted);
            found.expect("an event").1
        };
        assert!(count("restored_opening") >= u64::from(CLIENTS));
        assert_eq!(count("echo_lost"), 0);
    });
}

#[test]
fn cookies_may_begin_before_a_server_speaks() {
    both_ways(|_, options| {
        let world = World::build(options);
        let open = world.open();
        world.begin_cookies();
        for [client, server] in &open {
            tell(server, client, 1);
            tell(client, server, 2);
            tell(server, client, 3);
        }
        assert_eq!(world.rejected(), 0);
    });
}

#[test]
fn open_connections_outlive_an_absence_of_the_programs() {
    both_ways(|pins, options| {
        let world = World::build(options);
        world.begin_cookies();
        let open = world.open();
        for [client, server] in &open {
            tell(client, server, 1);
            tell(server, client, 2);
        }
        take_off_by_hand(pins);
        open.iter().for_each(|[_, server]| say(server, 3));
        // Some of the kernel's timestamps are later than the cookies, and are taken.
        let has_heard = |client: &TcpStream| client.peek(&mut [0]).is_ok();
        for [client, _] in &open {
            client.set_nonblocking(true).expect("an option");
        }
        wait_for("clients that have heard", || {
            open.iter().filter(|[client, _]| has_heard(client)).count() >= open.len() / 8
        });
        // Without a control group it says that there is none, when it has done all else.
        let _ = world.server.mend();
        for (at, [client, server]) in open.iter().enumerate() {
            client.set_nonblocking(false).expect("an option");
            hear(client, 3);
            if at % 2 == 0 {
                tell(client, server, 4);
            }
            tell(server, client, 5);
            tell(client, server, 6);
            tell(server, client, 7);
        }
    });
}
