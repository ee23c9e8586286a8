// SPDX-License-Identifier: Apache-2.0
//! `causeway agent` as an operator runs it, on a veth pair in private namespaces:
//! start, stop, takeover, reload, removal, and files with faults. Needs root;
//! fails without.

#[path = "../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;
mod units;

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use causeway_core::agent_report::{DATAGRAM_MAX, Reception, ReportReceiver};
use causeway_core::cookie::CookieKey;
use causeway_service::config::KeysFile;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use sandbox::{Netns, Sandbox, ip, wait_for};

const VIP: &str = "192.0.2.1";
const SERVER: &str = "10.7.0.1";
/// An address that no host has.
const OTHER: &str = "10.7.0.9";

/// A server with its agent's files, and the balancer's side of the wire.
struct World {
    dir: tempfile::TempDir,
    pin_dir: PathBuf,
    balancer: Netns,
    service: UdpSocket,
}

impl World {
    fn build(sandbox: &Sandbox) -> Self {
        let balancer = Netns::new();
        ip("link add srv0 type veth peer name peer0");
        ip(&format!("link set peer0 netns {}", balancer.path()));
        ip(&format!("addr add {SERVER}/24 dev srv0"));
        ip(&format!("addr add {VIP}/32 dev lo"));
        ip("link set srv0 up");
        // The inner packets come from an address that no route leads to.
        sandbox::sysctl("ipv4/conf/all/rp_filter", "0");
        sandbox::sysctl("ipv4/conf/srv0/rp_filter", "0");
        ip("route add default via 10.7.0.2 dev srv0 onlink");
        balancer.ip("addr add 10.7.0.2/24 dev peer0");
        balancer.ip("link set peer0 up");
        let service = UdpSocket::bind((VIP, 7)).expect("a service");
        let world = Self {
            dir: tempfile::tempdir().expect("a directory"),
            pin_dir: sandbox.pin_dir("agent"),
            balancer,
            service,
        };
        world.configure(SERVER, VIP);
        world.await_wire();
        world
    }

    /// A link that has just come up drops what is sent for a while.
    fn await_wire(&self) {
        let probe = UdpSocket::bind((SERVER, 9)).expect("a socket");
        probe
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a timeout");
        wait_for("the wire", || {
            self.balancer.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                // What cannot be sent yet is sent again.
                let _ = socket.send_to(b"probe", (SERVER, 9));
            });
            probe.recv(&mut [0; 8]).is_ok()
        });
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("agent.toml")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    fn configure(&self, address: &str, vip: &str) {
        let text = format!(
            "[agent]\ninterface = \"srv0\"\naddresses = [\"{address}\"]\nvips = [\"{vip}\"]\nbalancers = [\"10.7.0.0/24\"]\n\
             pin_dir = \"{}\"\nsocket = \"{}\"\nhttp = false\n",
            self.pin_dir.display(),
            self.socket().display()
        );
        fs::write(self.file(), text).expect("write the configuration");
    }

    fn agent(&self) -> Agent {
        self.agent_by(causeway())
    }

    /// The same by a command that ends in the binary.
    fn agent_by(&self, mut command: Command) -> Agent {
        let log = fs::File::create(self.dir.path().join("log")).expect("a log");
        let child = command
            .args(["agent", "-c"])
            .arg(self.file())
            .stderr(log)
            .spawn()
            .expect("start the agent");
        wait_for("the agent", || self.log().contains("serving on"));
        Agent(child)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).expect("the log")
    }

    /// Sends a datagram for the VIP through a tunnel to the server.
    fn send(&self) {
        let builder = etherparse::PacketBuilder::ipv4([198, 51, 100, 1], [192, 0, 2, 1], 64);
        let mut inner = Vec::new();
        builder
            .udp(5000, 7)
            .write(&mut inner, b"hello")
            .expect("a packet");
        self.balancer.run(|| {
            // SAFETY: a plain system call; the descriptor is new and checked.
            let raw = unsafe {
                let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_IPIP);
                assert!(fd >= 0, "a raw socket needs root");
                OwnedFd::from_raw_fd(fd)
            };
            let sent = UdpSocket::from(raw).send_to(&inner, (SERVER, 0));
            assert_eq!(sent.expect("send"), inner.len());
        });
    }

    /// Whether a datagram that is sent now reaches the service.
    fn delivers(&self) -> bool {
        self.delivers_within(Duration::from_secs(20))
    }

    /// The same where none is expected.
    fn withholds(&self) -> bool {
        !self.delivers_within(Duration::from_secs(1))
    }

    fn delivers_within(&self, patience: Duration) -> bool {
        let timeout = self.service.set_read_timeout(Some(patience));
        timeout.expect("a timeout");
        self.send();
        match self.service.recv(&mut [0; 16]) {
            Ok(length) => length == 5,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Err(e) => panic!("{e}"),
        }
    }

    /// Packets of a verdict, as `causeway agent stats` prints them.
    fn count(&self, verdict: &str) -> u64 {
        let output = causeway()
            .args(["agent", "stats", "--all", "-o", "csv", "--socket"])
            .arg(self.socket())
            .output()
            .expect("run causeway");
        let rows = stdout(&output);
        let row = rows
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{verdict},")))
            .unwrap_or_else(|| panic!("no {verdict} in {rows}"));
        let packets = row.split(',').nth(1).expect("packets");
        packets.parse().expect("a number")
    }

    fn unload(&self) -> String {
        let output = causeway()
            .args(["agent", "unload", "--yes", "-c"])
            .arg(self.file())
            .output()
            .expect("run causeway");
        assert!(output.stderr.is_empty(), "{output:?}");
        stdout(&output)
    }
}

/// A running agent; killed when the test ends early.
struct Agent(Child);

impl Agent {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("a signal");
    }

    fn terminate(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.0.wait().expect("the agent's end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn causeway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn has_program() -> bool {
    sandbox::run("ip", "link show srv0").contains("xdp")
}

#[test]
fn an_agent_decapsulates_also_while_it_is_away() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        assert!(world.withholds(), "without an agent nothing decapsulates");
        let agent = world.agent();
        assert!(world.log().contains("attached to srv0 in native mode"));
        assert!(world.delivers());
        assert_eq!(world.count("decapsulated"), 1);
        agent.terminate();
        assert!(world.delivers());

        let mut agent = world.agent();
        assert!(world.log().contains("took over the running data plane"));
        assert_eq!(world.count("decapsulated"), 2);
        agent.0.kill().expect("SIGKILL");
        agent.0.wait().expect("the agent's end");
        assert!(world.delivers());

        let agent = world.agent();
        assert_eq!(world.count("decapsulated"), 3);
        let refused = |arguments: &[&str], expected: &str| {
            let mut command = causeway();
            command.args(arguments).arg("-c").arg(world.file());
            let output = command.output().expect("run causeway");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !output.status.success() && said.contains(expected),
                "{said}"
            );
            assert!(has_program());
        };
        refused(&["agent", "unload", "--yes"], "runs; stop it first");
        agent.terminate();
        refused(&["agent", "unload"], "say --yes if that is meant");
        refused(
            &["agent", "--detach"],
            "is called `causeway agent unload --yes` now",
        );
        let said = world.unload();
        assert!(said.starts_with("unloaded from srv0; "), "{said}");
        assert!(!has_program());
        assert!(world.withholds());
        assert!(world.unload().starts_with("nothing was attached"));
    });
}

/// As the unit of systemd has it: root with few capabilities, and the accounting of SYNs.
#[test]
fn the_units_capabilities_suffice() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let plain = fs::read_to_string(world.file()).expect("the configuration");
        let dir = world.dir.path().display();
        let more =
            format!("[agent.clients]\nhistory = \"{dir}/history\"\nservices = [\"{VIP}:80\"]\n");
        fs::write(world.file(), plain + &more).expect("write the configuration");
        for first in [true, false] {
            let binary = env!("CARGO_BIN_EXE_causeway");
            let agent = world.agent_by(units::confined("causeway-agent", binary));
            let took_over = world.log().contains("took over the running data plane");
            assert_eq!(took_over, !first, "{}", world.log());
            assert!(world.delivers());
            assert_eq!(world.count("decapsulated"), 2 - u64::from(first));
            assert!(!world.log().contains("WARN"), "{}", world.log());
            // Types of maps were read in the start.
            let status = format!("/proc/{}/status", agent.0.id());
            let status = fs::read_to_string(status).expect("a status");
            let held = status
                .lines()
                .find_map(|line| line.strip_prefix("CapPrm:\t"));
            let held = held.and_then(|set| u64::from_str_radix(set, 16).ok());
            assert_eq!(held.expect("its rights") >> 21 & 1, 0, "CAP_SYS_ADMIN");
            agent.terminate();
        }
    });
}

#[test]
fn a_reload_changes_addresses_and_refuses_what_it_cannot() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let agent = world.agent();
        world.configure(OTHER, VIP);
        agent.signal(Signal::SIGHUP);
        wait_for("the reload", || world.log().contains("reloaded: "));
        assert!(world.withholds());
        assert_eq!(world.count("not_ours"), 1);

        let text = fs::read_to_string(world.file()).expect("the configuration");
        fs::write(world.file(), text.replace("srv0", "lo")).expect("another one");
        agent.signal(Signal::SIGHUP);
        wait_for("the refusal", || {
            let cannot = "`interface` cannot change while the agent runs; stop it, `causeway agent unload --yes`, start it";
            world.log().contains(cannot)
        });
        // A VIP that the kernel does not hold is the usual mistake.
        world.configure(SERVER, "192.0.2.99");
        agent.signal(Signal::SIGHUP);
        wait_for("the hint", || {
            world.log().contains("`ip addr add 192.0.2.99/32 dev lo`")
        });
        assert!(world.withholds(), "what is no VIP's stays in its tunnel");
        assert_eq!(world.count("inner_not_vip"), 1);
        let strangers = fs::read_to_string(world.file()).expect("the configuration");
        let strangers = strangers
            .replace("192.0.2.99", VIP)
            .replace("10.7.0.0/24", "10.7.0.3");
        fs::write(world.file(), strangers).expect("another one");
        agent.signal(Signal::SIGHUP);
        wait_for("another balancer", || {
            world.withholds();
            world.count("tunnel_refused") > 0
        });
        agent.terminate();
    });
}

/// On the wire, and by an agent that was started again.
#[test]
fn a_balancer_takes_each_report_once() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let keys = world.dir.path().join("keys");
        let server = SERVER.parse().expect("an address");
        let [cookies, root] = [7, 8].map(|byte| CookieKey::from_bytes([byte; 16]));
        let balancers = KeysFile::new(cookies, root);
        let own = balancers.for_server(&[server]).expect("a server's keys");
        own.write(&keys).expect("write the keys");
        let plain = fs::read_to_string(world.file()).expect("the configuration");
        let more = format!(
            "[agent.report]\nto = [\"10.7.0.2:9472\"]\nkeys = \"{}\"\nload = true\n\
             load_interval = \"20ms\"\n",
            keys.display()
        );
        fs::write(world.file(), plain + &more).expect("write the configuration");
        let bind = || UdpSocket::bind("10.7.0.2:9472").expect("a socket");
        let listener = world.balancer.run(bind);
        let timeout = Some(Duration::from_secs(60));
        listener.set_read_timeout(timeout).expect("a timeout");
        let keys = balancers.reports.expect("keys of reports");
        let mut receiver = ReportReceiver::new(CookieKey::from_bytes([9; 16]));
        for agents in 0..2 {
            let agent = world.agent();
            let (mut taken, mut challenged) = (0, 0);
            while taken < 20 {
                let mut buffer = [0; DATAGRAM_MAX];
                let (length, from) = listener.recv_from(&mut buffer).expect("a report");
                let report = &buffer[..length];
                match receiver.receive(report, Some(&keys), 0) {
                    Ok(_) => taken += 1,
                    Err(refused) => {
                        assert_eq!(refused, Reception::Unproven);
                        let challenge = receiver.challenge(report, &keys, 0);
                        let challenge = challenge.expect("a challenge");
                        listener.send_to(&challenge, from).expect("sent");
                        challenged += 1;
                        continue;
                    }
                }
                let again = receiver.receive(report, Some(&keys), 0);
                assert_eq!(again, Err(Reception::Replayed));
            }
            // An agent that is started again is of the same boot, and known.
            assert_eq!(challenged > 0, agents == 0);
            agent.terminate();
            // What the next one is judged by is its own.
            listener.set_nonblocking(true).expect("no waiting");
            while listener.recv(&mut [0; DATAGRAM_MAX]).is_ok() {}
            listener.set_nonblocking(false).expect("waiting");
        }
        assert!(receiver.load(server, 0).is_some());
    });
}

#[test]
fn refusals_are_one_sentence() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let refused = |arguments: &[&str], expected: &str| {
            let output = causeway()
                .args(arguments)
                .arg(world.file())
                .output()
                .expect("run causeway");
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.contains(expected), "{said}");
        };
        let good = fs::read_to_string(world.file()).expect("the configuration");
        let write = |text: &str| fs::write(world.file(), text).expect("write");
        write(&good.replace("srv0", "srv9"));
        refused(&["agent", "-c"], "no network interface srv9 here");
        write(&good.replace(SERVER, "10.7.0"));
        let expected = "agent.toml:3: `10.7.0` is not a valid IP address";
        refused(&["agent", "-c"], expected);
        refused(&["config", "check"], expected);
        write(&good.replace("pin_dir = \"/", "pin_dir = \"/proc/"));
        refused(&["agent", "-c"], "is not in a BPF file system");
        refused(&["agent", "stats", "--socket"], "is gone");
        refused(&["lb", "-c"], "this is an agent's file");
        assert!(!has_program());
    });
}
