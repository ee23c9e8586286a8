// SPDX-License-Identifier: Apache-2.0
//! `causeway agent` as an operator runs it, on a veth pair in private namespaces:
//! start, stop, takeover, reload, removal, and files with faults. Needs root;
//! fails without.

#[path = "../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;
mod units;

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use causeway_core::agent_report::{DATAGRAM_MAX, Reception, ReportReceiver};
use causeway_core::cookie::CookieKey;
use causeway_service::config::KeysFile;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use sandbox::{Netns, Sandbox, ip, wait_for};

const VIP: &str = "192.0.2.1";
const SERVER: &str = "10.7.0.1";
/// Of an agent that goes by its file.
const IN_FORCE: &str = "causeway_agent_config_last_reload_successful 1.0";
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
             pin_dir = \"{}\"\nstate_dir = \"{}\"\nsocket = \"{}\"\nhttp = false\n",
            self.pin_dir.display(),
            self.path("state"),
            self.socket().display()
        );
        fs::write(self.file(), text).expect("write the configuration");
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).expect("the configuration")
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).expect("write the configuration");
    }

    /// A path beside the configuration.
    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// `[agent.cookie]` with a keys file of this server.
    fn cookie_table(&self) -> String {
        let [cookies, root] = [7, 8].map(|byte| CookieKey::from_bytes([byte; 16]));
        let server = SERVER.parse().expect("an address");
        let own = KeysFile::new(cookies, root).for_server(&[server]);
        let own = own.expect("a server's keys");
        own.write(&self.dir.path().join("keys"))
            .expect("write the keys");
        format!("[agent.cookie]\nkeys = \"{}\"\n", self.path("keys"))
    }

    /// What `causeway agent status` says.
    fn status(&self) -> String {
        let output = causeway()
            .args(["agent", "status", "--socket"])
            .arg(self.socket())
            .output()
            .expect("run causeway");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What Prometheus gets.
    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect("127.0.0.1:9471").expect("the address of `http`");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// What is said of a service's clients, once there is anything.
    fn clients_of(&self, service: &str) -> Option<Value> {
        let output = causeway()
            .args(["agent", "stats", "--clients", "-o", "json", "--socket"])
            .arg(self.socket())
            .output()
            .expect("run causeway");
        let view: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let mut categories = view["categories"].as_array().expect("a list").iter();
        categories.find(|of| of["service"] == service).cloned()
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

    /// Sends a datagram of these bytes for the VIP through a tunnel to the server.
    fn send(&self, bytes: &[u8]) {
        let builder = etherparse::PacketBuilder::ipv4([198, 51, 100, 1], [192, 0, 2, 1], 64);
        let mut inner = Vec::new();
        builder
            .udp(5000, 7)
            .write(&mut inner, bytes)
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

    fn delivers_within(&self, limit: Duration) -> bool {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let sent = NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        self.send(&sent);
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let timeout = self.service.set_read_timeout(Some(left));
            timeout.expect("a timeout");
            let mut received = [0; 16];
            match self.service.recv(&mut received) {
                // What was sent before may come late.
                Ok(_) if !received.starts_with(&sent) => {}
                Ok(length) => return length == sent.len(),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => panic!("{e}"),
            }
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

/// A book as an agent keeps it.
fn kept_book(services: Value, cids: Value, tunnels: Value) -> Value {
    let key = "02".repeat(16);
    json!({ "version": 2, "servers": { SERVER: {
        "agent": { "real": SERVER, "issued": 2, "issued_cids": { format!("{VIP}:443/udp"): 2 } },
        "keys": { "2": key }, "secrets": [null, null],
        "orders": {
            "position": { "generation": { "count": 0, "by": 0 }, "revision": 4 }, "issued": 2,
            "services": services, "cids": cids, "balancers": [], "tunnels": tunnels,
        },
    } } })
}

/// In such a book, a service of QUIC with configurations of connection ids.
fn quic_service() -> (Value, Value) {
    let vip = json!([VIP, 443, 17]);
    let config = json!({
        "config": 2, "algorithm": "siphash", "server_id_length": 2, "nonce_length": 8,
        "key": "02".repeat(16),
    });
    let cids = json!({ "issued": 2, "configs": { "2": config } });
    (json!([[vip, [9, null]]]), json!([[vip, cids]]))
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
        refused(&["agent", "--detach"], "unexpected argument '--detach'");
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
        let plain = world
            .text()
            .replace("http = false", "http = \"127.0.0.1:443\"");
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

/// As a balancer does; without an agent no cookie key would be changed and nothing reported.
#[test]
fn an_agent_whose_file_is_broken_starts_with_the_last_good_one() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let good = world
            .text()
            .replace("http = false", "http = \"127.0.0.1:9471\"");
        world.write(&good);
        let mut agent = world.agent();
        assert!(world.metrics().contains(IN_FORCE));
        agent.0.kill().expect("SIGKILL");
        agent.0.wait().expect("the agent's end");

        world.write(&format!("{good}\n[broken"));
        let agent = world.agent();
        let used = "is refused, and the copy of how it was last in force is used";
        assert!(world.log().contains(used), "{}", world.log());
        assert!(world.delivers());
        assert!(world.metrics().contains("_successful 0.0"));
        let said = world.status();
        let trouble = "agent.toml was refused at the start, and the copy of the last good one is in force: correct it, then `causeway agent reload`: ";
        assert!(said.contains(trouble), "{said}");

        world.write(&good);
        agent.signal(Signal::SIGHUP);
        wait_for("the reload", || world.log().contains("reloaded: "));
        assert!(world.metrics().contains(IN_FORCE));
        assert!(!world.status().contains("refused"), "{}", world.status());
        agent.terminate();

        // Nor does one that can be read, and not be put in force.
        world.write(&good.replace("srv0", "srv9"));
        let agent = world.agent();
        assert!(world.log().contains(used), "{}", world.log());
        assert!(world.delivers());
        agent.terminate();
        // What runs can be taken down by it, too.
        world.write("[broken");
        fs::rename(world.path("state"), world.path("kept")).expect("move the copy");
        let unload = |said: &str| {
            let mut command = causeway();
            command.args(["agent", "unload", "--yes", "-c"]);
            let output = command.arg(world.file()).output().expect("run causeway");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(told.contains(said), "{told}");
            output.status.success()
        };
        assert!(!unload("agent.toml:1: "), "there is no copy");
        world.write(&format!("{good}\n[broken"));
        fs::rename(world.path("kept"), world.path("state")).expect("move it back");
        assert!(unload(used));
        assert!(!has_program());
        assert!(!unload("agent.toml:"), "nothing is in force any more");
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

/// Else it would go on in the kernel by what it was last told.
#[test]
fn a_restart_takes_down_what_the_file_has_no_more() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let plain = world.text();
        let cookie = format!(
            "{}[[agent.cookie.vip]]\naddress = \"{VIP}\"\nport = 80\nid = 1\n",
            world.cookie_table()
        );
        let clients = format!("[agent.clients]\nhistory = \"\"\nservices = [\"{VIP}:80\"]\n");
        // By links, which are pinned, or by filters.
        let writes_cookies = || {
            let filters = sandbox::run("tc", "filter show dev srv0 egress");
            let pins = fs::read_dir(&world.pin_dir).expect("pins");
            let mut pins = pins.map(|pin| pin.expect("a pin").file_name());
            let program = "causeway_cookie";
            filters.contains(program) || pins.any(|pin| pin.to_string_lossy().contains(program))
        };
        let counts = || sandbox.pin_dir("agent-clients").exists();
        let begin = |text: &str| {
            world.write(text);
            world.agent()
        };
        let agent = begin(&format!("{plain}{cookie}{clients}"));
        assert!(writes_cookies() && counts() && world.delivers());
        agent.terminate();

        let agent = begin(&format!("{plain}{clients}"));
        assert!(!writes_cookies(), "without [agent.cookie]");
        assert!(counts() && world.delivers());
        agent.terminate();

        let agent = begin(&plain);
        assert!(!counts(), "without [agent.clients]");
        assert!(world.delivers());
        agent.terminate();

        let is_of_tunnels = |line: &&str| {
            ["addresses", "vips", "balancers"]
                .iter()
                .any(|key| line.starts_with(key))
        };
        let mut alone: Vec<&str> = plain.lines().filter(|line| !is_of_tunnels(line)).collect();
        alone.push(&clients);
        let agent = begin(&alone.join("\n"));
        assert!(!has_program(), "without addresses");
        assert!(counts() && world.withholds());
        assert!(world.status().contains("clients measured"));
        agent.terminate();
        world.unload();
        assert!(!counts());
    });
}

/// Who goes by the book for TCP, too, is not to lack it for a directory that is missing.
#[test]
fn an_agent_goes_by_the_book_though_its_quic_programs_cannot_be_given_it() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let (blocked, state) = (world.path("blocked"), world.path("state"));
        let more = format!(
            "{}[agent.report]\nto = [\"10.7.0.2:9472\"]\nbook = true\n[agent.quic]\nfile = \"{blocked}/ids.json\"\n",
            world.cookie_table()
        );
        world.write(&(world.text() + &more));
        fs::write(&blocked, "a file, no directory").expect("write");
        fs::create_dir(&state).expect("a directory");
        let (service, cids) = quic_service();
        let book = kept_book(service, cids, json!([]));
        fs::write(world.path("state/agent-book.json"), book.to_string()).expect("write");
        let agent = world.agent();
        let lacks = "[agent.quic] file";
        assert!(world.log().contains(lacks), "{}", world.log());
        assert!(world.status().contains(lacks), "{}", world.status());
        assert!(world.status().contains("follows the book, at 0.4"));
        assert!(world.delivers());
        fs::remove_file(&blocked).expect("room");
        wait_for("the file", || !world.status().contains(lacks));
        let given = fs::read_to_string(format!("{blocked}/ids.json")).expect("the file");
        let given: Value = serde_json::from_str(&given).expect("JSON");
        assert_eq!(given["services"][0]["server_id"], 9);
        agent.terminate();
    });
}

/// Without a balancer in reach nothing else says what this server serves.
#[test]
fn a_book_that_is_lost_takes_no_vip_out_of_a_running_data_plane() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let state = world.path("state");
        let more = format!(
            "{}[agent.report]\nto = [\"10.7.0.2:9472\"]\nbook = true\n",
            world.cookie_table()
        );
        let text = world.text() + &more;
        let by_the_book = |line: &&str| !line.starts_with("vips") && !line.starts_with("balancers");
        let lines: Vec<&str> = text.lines().filter(by_the_book).collect();
        world.write(&lines.join("\n"));
        fs::create_dir(&state).expect("a directory");
        let file = world.path("state/agent-book.json");
        let book =
            |services: Value, cids: Value| kept_book(services, cids, json!([["10.7.0.0", 24]]));
        let (service, cids) = quic_service();
        fs::write(&file, book(service, cids).to_string()).expect("write");
        let agent = world.agent();
        assert!(world.delivers());
        agent.terminate();
        let ids = || fs::read_to_string(world.path("quic-ids.json")).expect("QUIC ids");
        let issued = ids();
        assert!(issued.contains("siphash"), "{issued}");

        fs::write(&file, "{").expect("damage");
        let agent = world.agent();
        let says_so = || {
            world
                .status()
                .contains("nothing is known of the fleet's book")
        };
        assert!(world.delivers(), "{}", world.log());
        assert!(says_so(), "{}", world.status());
        assert_eq!(ids(), issued);
        agent.signal(Signal::SIGHUP);
        wait_for("the reload", || world.log().contains("reloaded: "));
        assert!(world.delivers() && says_so());
        agent.terminate();

        // A book that says so takes it out.
        fs::write(&file, book(json!([]), json!([])).to_string()).expect("write");
        let agent = world.agent();
        assert!(world.withholds());
        assert_ne!(ids(), issued);
        assert!(!says_so());
        agent.terminate();
    });
}

/// A pipe without a writer stands for the disk.
#[test]
fn a_history_whose_disk_hangs_holds_up_nothing_else() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        ip("link add cl0 type veth peer name cl1");
        ip("link set cl0 up");
        let history = world.path("history");
        let former = format!("{history}.old");
        mkfifo(former.as_str(), Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
        let more = format!(
            "[agent.clients]\ninterfaces = [\"cl0\"]\nhistory = \"{history}\"\nservices = [\"{VIP}:80\"]\n"
        );
        world.write(&(world.text() + &more));
        let agent = world.agent();
        assert!(world.delivers());
        wait_for("the trouble", || {
            world.status().contains("has not answered for 10 s")
        });
        // Counting is looked after as ever.
        ip("link del cl0");
        wait_for("the hooks", || {
            world.status().contains("of interfaces without a program")
        });
        ip("link add cl0 type veth peer name cl1");
        wait_for("the hooks again", || {
            !world.status().contains("of interfaces without a program")
        });
        agent.terminate();
        fs::remove_file(&former).expect("the pipe");
        let agent = world.agent();
        wait_for("a history", || {
            fs::metadata(&history).is_ok_and(|file| file.len() > 0)
        });
        assert!(!world.status().contains("the history"));
        agent.terminate();
    });
}

/// Prometheus takes a counter that falls for one that was reset, and adds all of it again.
#[test]
fn an_agent_that_is_started_again_counts_no_client_twice() {
    Sandbox::run(|sandbox| {
        const NOBODY: &str = "192.0.2.77:80";
        let world = World::build(sandbox);
        // Clients get no answer at all.
        sandbox::sysctl("ipv4/ip_forward", "0");
        let route = format!("route add 192.0.2.0/24 via {SERVER} dev peer0");
        world.balancer.ip(&route);
        let more = format!("[agent.clients]\nhistory = \"\"\nservices = [\"{NOBODY}\"]\n");
        world.write(&(world.text() + &more));
        let try_and_go = |clients: usize| {
            world.balancer.run(|| {
                let to = NOBODY.parse().expect("an address");
                for _ in 0..clients {
                    let gone = TcpStream::connect_timeout(&to, Duration::from_millis(300));
                    gone.expect_err("nobody is there");
                }
            });
        };
        let counts = || {
            let of = world.clients_of(NOBODY).unwrap_or_default();
            let sum = |times: &str| -> u64 {
                let buckets = of[times]["counts"].as_array();
                let buckets = buckets.map_or(&[][..], Vec::as_slice);
                buckets.iter().filter_map(Value::as_u64).sum()
            };
            let total = |name: &str| of["totals"][name].as_u64().unwrap_or(0);
            let totals = (total("offered"), total("gave_up"));
            (totals, sum("gave_up"), sum("responses"))
        };
        let agent = world.agent();
        try_and_go(3);
        wait_for("their totals", || {
            let ((offered, gave_up), ..) = counts();
            offered >= 3 && gave_up >= 3
        });
        // Times of the kernel's go on with the next agent, and may not fall.
        assert_eq!(counts(), ((3, 3), 3, 0));
        agent.terminate();
        let agent = world.agent();
        assert!(world.log().contains("went on while no agent ran"));
        try_and_go(1);
        wait_for("its totals", || {
            let ((offered, gave_up), ..) = counts();
            offered >= 1 && gave_up >= 1
        });
        assert_eq!(counts(), ((1, 1), 1, 0));
        agent.terminate();
    });
}

/// A program says of which clients and of how long a response it is to be told.
#[test]
fn thresholds_are_set_while_an_agent_runs_and_it_tells_when_they_are_exceeded_and_when_no_more() {
    Sandbox::run(|sandbox| {
        let world = World::build(sandbox);
        let route = format!("route add {VIP}/32 via {SERVER} dev peer0");
        world.balancer.ip(&route);
        let listener = TcpListener::bind((VIP, 80)).expect("a service");
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut asked = [0; 4];
                let slow = client.read_exact(&mut asked).is_ok() && asked == *b"slow";
                std::thread::sleep(Duration::from_millis(if slow { 300 } else { 0 }));
                // A client that is gone needs no answer.
                let _ = client.write_all(b"done");
            }
        });
        let ask = |what: &[u8]| {
            world.balancer.run(|| {
                let mut stream = TcpStream::connect((VIP, 80)).expect("a connection");
                stream.write_all(what).expect("a request");
                stream.read_to_end(&mut Vec::new()).expect("an answer");
            });
        };
        let command = |arguments: &[&str]| {
            let mut command = causeway();
            command.args(["agent", "threshold"]).args(arguments);
            command.arg("--socket").arg(world.socket());
            command
        };
        let refused = |arguments: &[&str], expected: &str| {
            let output = command(arguments).output().expect("run causeway");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success());
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.contains(expected), "{said}");
        };
        // What is told behind an event, while clients come.
        let told = |after: u64, count: usize, come: &dyn Fn()| -> Vec<Value> {
            let (after, count) = (after.to_string(), count.to_string());
            let watch = ["watch", "--after", &after, "--count", &count, "-o", "json"];
            let mut watch = command(&watch)
                .stdout(Stdio::piped())
                .spawn()
                .expect("run causeway");
            wait_for("events", || {
                come();
                watch.try_wait().expect("its end").is_some()
            });
            let output = stdout(&watch.wait_with_output().expect("its output"));
            let lines = output.lines();
            lines
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .collect()
        };
        let states = |events: &[Value]| -> Vec<String> {
            let text = |of: &Value, key: &str| of[key].as_str().expect("text").to_owned();
            let all = events.iter();
            let mut all: Vec<String> = all
                .map(|of| text(of, "threshold") + " " + &text(of, "state"))
                .collect();
            all.sort();
            all
        };
        let last = |events: &[Value]| {
            let last = events.last().and_then(|of| of["id"].as_u64());
            last.expect("its number")
        };
        let completed = || {
            let of = world.clients_of(&format!("{VIP}:80")).unwrap_or_default();
            of["totals"]["completed"].as_u64().unwrap_or(0)
        };

        let text = world
            .text()
            .replace("http = false", "http = \"127.0.0.1:9471\"");
        let text = format!(
            "{text}[agent.clients]\nhistory = \"\"\nservices = [\"{VIP}:80\"]\n\
             [[agent.clients.threshold]]\nname = \"written\"\nabove = \"100ms\"\nfor = \"0s\"\nwindow = \"1s\"\n"
        );
        world.write(&text);
        let agent = world.agent();
        let service = format!("{VIP}:80");
        let wanted = [
            "add",
            "100ms",
            "--for",
            "0s",
            "--statistic",
            "p50",
            "--window",
            "1s",
            "--service",
            &service,
            "--name",
            "asked",
            "-o",
            "json",
        ];
        let added = stdout(&command(&wanted).output().expect("run causeway"));
        let added: Value = serde_json::from_str(&added).expect("JSON");
        assert_eq!(
            (&added["id"], &added["from_file"]),
            (&json!(2), &json!(false))
        );

        let events = told(0, 2, &|| ask(b"slow"));
        assert_eq!(states(&events), ["asked exceeded", "written exceeded"]);
        for event in &events {
            assert!(event["value_s"].as_f64() > Some(0.1), "{event}");
            assert_eq!(event["service"], service);
        }
        let logged = world.log();
        assert!(
            logged.contains("asked: the p50 client response time of"),
            "{logged}"
        );
        let gauge = |name: &str| {
            format!(
                "causeway_clients_threshold_exceeded{{threshold=\"{name}\",service=\"{service}\",clients=\"all\",device=\"srv0\"}} 1.0"
            )
        };
        let page = world.metrics();
        assert!(
            page.contains(&gauge("asked")) && page.contains(&gauge("written")),
            "{page}"
        );

        // The file's may change; what is counted, and what was asked for, stays.
        wait_for("totals", || completed() > 0);
        let before = completed();
        let history = world.path("history");
        let other = text
            .replace("100ms", "60s")
            .replace("history = \"\"", &format!("history = \"{history}\""));
        world.write(&other);
        agent.signal(Signal::SIGHUP);
        wait_for("the reload", || world.log().contains("reloaded: "));
        let events = told(last(&events), 1, &|| ());
        assert_eq!(states(&events), ["written removed"]);
        assert!(completed() >= before, "counts go on");
        wait_for("a history", || {
            fs::metadata(&history).is_ok_and(|file| file.len() > 0)
        });
        world.write(&other.replace(":80\"]", ":81\"]"));
        agent.signal(Signal::SIGHUP);
        wait_for("the refusal", || {
            let cannot = "`clients.services` cannot change while the agent runs; restart it";
            world.log().contains(cannot)
        });

        let events = told(last(&events), 1, &|| ask(b"fast"));
        assert_eq!(states(&events), ["asked recovered"]);
        refused(&["del", "3"], "threshold 3 is of the agent's file");
        let removed = stdout(&command(&["del", "2"]).output().expect("run causeway"));
        assert_eq!(removed, "removed 2, asked\n");
        refused(&["del", "2"], "there is no threshold 2; ");
        refused(
            &["add", "2s", "--service", "*:9"],
            "is for the service `*:9`, which `services` does not name",
        );
        let listed = stdout(&command(&["list"]).output().expect("run causeway"));
        assert!(
            listed.contains("written") && !listed.contains("asked"),
            "{listed}"
        );
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
