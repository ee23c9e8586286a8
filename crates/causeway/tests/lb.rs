// SPDX-License-Identifier: Apache-2.0
//! The daemon as a process, with the real data plane on a veth pair in private
//! namespaces. These tests need root and BPF.

mod units;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_causeway");
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine of its own: network, mounts, BPF file system, one interface.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// Runs `test` on a thread with its own namespaces; the kernel cleans up.
    fn run(test: impl FnOnce(&Self) + Send + 'static) {
        let thread = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
                .expect("these tests need root: they make namespaces and load BPF programs");
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).expect("make mounts private");
            let machine = Self {
                dir: tempfile::tempdir().expect("a directory"),
            };
            fs::create_dir(machine.path("bpf")).expect("a mount point");
            let flags = MsFlags::empty();
            mount(none, &machine.path("bpf"), Some("bpf"), flags, none).expect("mount bpffs");
            ip("link set lo up");
            ip("link add eth0 type veth peer name peer0");
            ip("link set peer0 up");
            ip("link set eth0 up");
            ip("addr add 10.9.0.2/24 dev eth0");
            machine.write_config("");
            test(&machine);
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path("lb.toml")
    }

    /// Writes the configuration; `more` are further reals of the VIP `web`.
    fn write_config(&self, more: &str) {
        let dir = self.dir.path().display();
        let text = format!(
            "interface = \"eth0\"\n\
             pin_dir = \"{dir}/bpf/lb\"\n\
             state_dir = \"{dir}/state\"\n\
             socket = \"{dir}/run/lb.sock\"\n\
             encap.gateway_mac = \"02:00:00:00:00:01\"\n\
             flow_table = {{ ipv4 = 4096, ipv6 = 4096 }}\n\
             [[vip]]\n\
             name = \"web\"\n\
             address = \"192.0.2.1\"\n\
             port = 80\n\
             scheduler = \"latency\"\n\
             real = [{{ address = \"10.0.0.1\" }}, {{ address = \"10.0.0.2\" }}{more}]\n"
        );
        fs::write(self.config(), text).expect("write the configuration");
    }

    /// Starts the daemon and waits until it answers.
    fn start(&self) -> Daemon {
        self.start_by(Command::new(BINARY))
    }

    /// The same by a command that ends in the binary.
    fn start_by(&self, mut command: Command) -> Daemon {
        let log = fs::File::create(self.path("log")).expect("a log");
        let child = command
            .args(["lb", "-c"])
            .arg(self.config())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("start causeway lb");
        let daemon = Daemon(child);
        let deadline = Instant::now() + PATIENCE;
        while !self.client(&["vip", "list"]).status.success() {
            assert!(Instant::now() < deadline, "no answer: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log holds `text`.
    fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no `{text}` in {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a command that talks to the daemon.
    fn client(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .arg("--socket")
            .arg(self.path("run/lb.sock"))
            .output()
            .expect("run causeway")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.client(&[arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn detach(&self) -> Output {
        Command::new(BINARY)
            .args(["lb", "--detach", "-c"])
            .arg(self.config())
            .output()
            .expect("run causeway")
    }

    fn xdp_is_attached(&self) -> bool {
        ip("-d link show eth0").contains("prog/xdp")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Without this the directory cannot be removed.
        let _ = umount2(&self.path("bpf"), MntFlags::MNT_DETACH);
    }
}

/// A running daemon; killed when dropped, so that none outlives a failed test.
struct Daemon(Child);

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("signal the daemon");
    }

    /// Waits for the end; returns whether it ended with 0.
    fn wait(mut self) -> bool {
        self.0.wait().expect("wait for the daemon").success()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("run ip");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        stderr(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_daemon_comes_and_goes_and_the_data_plane_stays() {
    Machine::run(|machine| {
        let daemon = machine.start();
        let mode = fs::metadata(machine.path("run/lb.sock")).expect("the socket");
        assert_eq!(mode.permissions().mode() & 0o777, 0o660);
        let before = machine.json(&["vip", "show", "web"]);
        assert_eq!(before["reals"][1]["address"], "10.0.0.2");
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        machine.wait_for_log("the data plane goes on forwarding from");
        assert!(machine.xdp_is_attached());
        assert!(!machine.path("run/lb.sock").exists());

        let daemon = machine.start();
        machine.wait_for_log("took over the running data plane of eth0");
        let after = machine.json(&["vip", "show", "web"]);
        assert_eq!(
            (&after["id"], &after["reals"][1]["id"]),
            (&before["id"], &before["reals"][1]["id"])
        );
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        assert!(machine.xdp_is_attached());
        let gone = machine.client(&["stats"]);
        assert!(stderr(&gone).contains("is gone (the data plane goes on without it)"));

        let daemon = machine.start();
        drop(daemon);
        let detached = machine.detach();
        let said = String::from_utf8_lossy(&detached.stdout).into_owned();
        assert!(said.starts_with("detached from eth0; "), "{said}");
        assert!(!machine.xdp_is_attached());
        assert!(!machine.path("bpf/lb").exists());
        let again = machine.detach();
        assert!(again.status.success());
        assert!(String::from_utf8_lossy(&again.stdout).starts_with("nothing was attached"));
    });
}

/// As the unit of systemd has it: root with few capabilities, for a first start and for
/// one that takes over.
#[test]
fn the_units_capabilities_suffice() {
    Machine::run(|machine| {
        for first in [true, false] {
            let mut command = units::confined("causeway-lb", BINARY);
            command.arg("-v");
            let daemon = machine.start_by(command);
            assert_eq!(machine.log().contains("took over"), !first);
            machine.write_config(", { address = \"10.0.0.3\" }");
            daemon.signal(Signal::SIGHUP);
            machine.wait_for_log("reloaded: 1 VIP with 3 reals on eth0");
            // What it cannot do: a ring that is not read is told to those who debug.
            for word in ["WARN", "is not read"] {
                assert!(!machine.log().contains(word), "{}", machine.log());
            }
            machine.write_config("");
            daemon.signal(Signal::SIGTERM);
            assert!(daemon.wait(), "{}", machine.log());
        }
        assert!(machine.xdp_is_attached());
    });
}

#[test]
fn changes_reach_the_data_plane_and_bad_files_do_not() {
    Machine::run(|machine| {
        let daemon = machine.start();
        let drained = machine.client(&["real", "drain", "web", "10.0.0.1"]);
        assert!(drained.status.success(), "{}", stderr(&drained));
        assert_eq!(
            machine.json(&["vip", "show", "web"])["reals"][0]["state"],
            "drain"
        );

        machine.write_config(", { address = \"10.0.0.3\", weight = 2 }");
        daemon.signal(Signal::SIGHUP);
        machine.wait_for_log("reloaded: 1 VIP with 3 reals on eth0");
        let vip = machine.json(&["vip", "show", "web"]);
        assert_eq!(vip["reals"][0]["state"], "active");
        assert_eq!(vip["reals"][2]["weight"], 2);

        machine.write_config(", { address = \"10.0.0.3\", wieght = 2 }");
        daemon.signal(Signal::SIGHUP);
        machine.wait_for_log("unknown key `wieght`; did you mean `weight`?");
        let vips = machine.json(&["vip", "list"]);
        assert_eq!(vips[0]["reals"].as_array().map(Vec::len), Some(3));
        let metrics = http_get("/metrics");
        assert!(metrics.contains(
            "causeway_real_weight{vip=\"web\",real=\"10.0.0.3\",kind=\"configured\"} 2.0"
        ));
        assert!(metrics.trim_end().ends_with("# EOF"));
    });
}

/// A GET on the loopback address, as any program would.
fn http_get(path: &str) -> String {
    let mut stream = std::net::TcpStream::connect("127.0.0.1:9470").expect("the HTTP address");
    std::io::Write::write_all(
        &mut stream,
        format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes(),
    )
    .expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    answer
}

/// Opens connections to the VIP, from the far end of the interface, until `done`. Nobody
/// answers: their SYNs are what counts.
fn knock(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "knocked in vain");
        let vip = "192.0.2.1:80".parse().expect("an address");
        let _ = std::net::TcpStream::connect_timeout(&vip, Duration::from_millis(50));
    }
}

/// A way from this machine's own stack to the VIP, through the other end of the veth.
fn route_to_the_vip() {
    let link = ip("link show eth0");
    let mac = link
        .split_whitespace()
        .skip_while(|word| *word != "link/ether")
        .nth(1);
    ip("addr add 10.9.1.3/32 dev peer0");
    ip("route add 192.0.2.1/32 dev peer0 src 10.9.1.3");
    let mac = mac.expect("a MAC address");
    ip(&format!(
        "neigh add 192.0.2.1 lladdr {mac} dev peer0 nud permanent"
    ));
}

fn read_with(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it"));
    assert!(output.status.success(), "{program}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn packets_are_captured_before_and_after_with_verdicts() {
    Machine::run(|machine| {
        let causeway = |words: &str| {
            let mut words = words.split_whitespace();
            let mut command = Command::new(BINARY);
            command
                .args(words.next())
                .arg("-c")
                .arg(machine.config())
                .args(words);
            command
        };
        let nobody = causeway("capture").output().expect("run causeway");
        assert!(
            stderr(&nobody).contains("is it started"),
            "{}",
            stderr(&nobody)
        );

        let daemon = machine.start();
        route_to_the_vip();
        let file = machine.path("packets.pcapng");
        let file = file.to_str().expect("a name");
        let words = "capture --vip web --verdict opened --duration 15s --count 2 -w";
        let capture = causeway(words)
            .arg(file)
            .arg("tcp")
            .stderr(Stdio::piped())
            .spawn();
        let capture = std::cell::RefCell::new(Daemon(capture.expect("run causeway")));
        knock(|| capture.borrow_mut().0.try_wait().expect("wait").is_some());
        let mut said = String::new();
        let mut capture = capture.into_inner();
        let end = capture
            .0
            .stderr
            .take()
            .expect("a pipe")
            .read_to_string(&mut said);
        end.expect("what it said");
        assert!(said.starts_with("causeway: 2 of "), "{said}");
        assert!(said.contains("0 lost"), "{said}");

        let listed = read_with("tcpdump", &["-nn", "-r", file]);
        let syn = "> 192.0.2.1.80: Flags [S]";
        // Two as they came, two within the tunnel.
        assert_eq!(listed.matches(syn).count(), 4, "{listed}");
        let fields =
            "-e frame.interface_name -e frame.packet_id -e frame.comment -e ip.dst -e eth.dst";
        let fields: Vec<&str> = fields.split(' ').collect();
        let shark = [
            &["-r", file, "-T", "fields", "-E", "separator=|"],
            &fields[..],
        ]
        .concat();
        let shark = read_with("tshark", &shark);
        let lines: Vec<Vec<&str>> = shark
            .lines()
            .map(|line| line.split('|').collect())
            .collect();
        assert_eq!(lines.len(), 4, "{shark}");
        for pair in lines.chunks(2) {
            let (before, after) = (&pair[0], &pair[1]);
            assert_eq!((before[0], after[0]), ("before", "after"));
            assert_eq!(before[1], after[1], "two halves of one packet");
            assert!(before[2].starts_with("verdict=opened action=tx vip=web real=10.0.0."));
            assert_eq!(before[2], after[2]);
            assert_eq!(before[3], "192.0.2.1");
            let (real, inner) = after[3].split_once(',').expect("a packet in a packet");
            assert_eq!(inner, "192.0.2.1");
            assert!(before[2].contains(&format!("real={real} ")), "{shark}");
            assert_eq!(after[4], "02:00:00:00:00:01");
        }

        let words =
            "trace --live --json --count 1 --duration 15s --real 10.0.0.2 --client 10.9.1.0/24";
        let mut live = causeway(words);
        let live = live.stdout(Stdio::piped()).spawn();
        let live = std::cell::RefCell::new(Daemon(live.expect("run causeway")));
        knock(|| live.borrow_mut().0.try_wait().expect("wait").is_some());
        let mut line = String::new();
        let mut live = live.into_inner();
        let read = live
            .0
            .stdout
            .take()
            .expect("a pipe")
            .read_to_string(&mut line);
        read.expect("a line");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&line["vip"], &line["sent_to"]),
            (&"web".into(), &"10.0.0.2".into())
        );
        assert_eq!(
            (&line["packet"], &line["action"]),
            (&"tcp [S]".into(), &"tx".into())
        );
        assert!(line["meaning"].is_string() && line["real_id"].is_number());
        drop(daemon);
    });
}

/// BIRD, with one protocol for each family that takes what Causeway offers.
fn start_bird(machine: &Machine) -> Daemon {
    let dir = machine.dir.path().display();
    let text = format!(
        "router id 10.9.0.2;\n\
         protocol device {{}}\n\
         include \"{dir}/bird.conf\";\n"
    );
    fs::write(machine.path("bird-main.conf"), text).expect("write BIRD's configuration");
    fs::write(machine.path("bird.conf"), "").expect("write what it includes");
    let bird = Command::new("/usr/sbin/bird")
        .args(["-f", "-c"])
        .arg(machine.path("bird-main.conf"))
        .arg("-s")
        .arg(machine.path("bird.ctl"))
        .spawn();
    Daemon(bird.expect("start BIRD; `make setup` installs it"))
}

/// What BIRD has to export.
fn routes(machine: &Machine) -> String {
    let socket = machine.path("bird.ctl");
    let output = Command::new("/usr/sbin/birdc")
        .arg("-s")
        .arg(socket)
        .args(["show", "route"])
        .output()
        .expect("run birdc");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn wait_for_route(machine: &Machine, present: bool) {
    let deadline = Instant::now() + PATIENCE;
    while routes(machine).contains("192.0.2.1/32") != present {
        let said = format!("{}\n{}", routes(machine), machine.log());
        assert!(Instant::now() < deadline, "{said}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn bird_announces_a_vip_that_is_ready() {
    Machine::run(|machine| {
        let _bird = start_bird(machine);
        let dir = machine.dir.path().display().to_string();
        let announce = |delay: &str, need: u32| {
            machine.write_config("");
            let text = fs::read_to_string(machine.config()).expect("the configuration");
            let announce = format!(
                "[announce]\nbird = \"{dir}/bird.conf\"\ndelay = \"{delay}\"\n\
                 configure = [\"birdc\", \"-s\", \"{dir}/bird.ctl\", \"configure\"]\n[[vip]]\nneed = {need}\n"
            );
            fs::write(machine.config(), text.replace("[[vip]]\n", &announce)).expect("write");
        };
        announce("300ms", 2);
        let daemon = machine.start();
        wait_for_route(machine, true);
        // BIRD has the route before its command has ended and the daemon knows.
        machine.wait_for_log("BIRD announces 192.0.2.1");
        assert_eq!(machine.json(&["vip", "show", "web"])["announced"], true);
        assert!(http_get("/metrics").contains("causeway_vip_announced{vip=\"web\"} 1.0"));
        // One of two reals drains: fewer are up than the VIP needs.
        let drained = machine.client(&["real", "drain", "web", "10.0.0.1"]);
        assert!(drained.status.success(), "{}", stderr(&drained));
        wait_for_route(machine, false);
        announce("0s", 1);
        daemon.signal(Signal::SIGHUP);
        wait_for_route(machine, true);
        // One that is killed leaves its successor what BIRD announces.
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        announce("1h", 1);
        let daemon = machine.start();
        machine.wait_for_log("BIRD announces 192.0.2.1");
        assert!(
            routes(machine).contains("192.0.2.1/32"),
            "{}",
            routes(machine)
        );
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        assert!(
            !routes(machine).contains("192.0.2.1/32"),
            "{}",
            routes(machine)
        );
        assert!(
            machine.xdp_is_attached(),
            "what is forwarded stays forwarded"
        );
    });
}

#[test]
fn what_prevents_a_start_is_one_sentence() {
    Machine::run(|machine| {
        let start = |config: &Path| {
            let mut command = Command::new(BINARY);
            command.args(["lb", "-c"]).arg(config);
            command
        };
        let refused = |mut command: Command| {
            let output = command.output().expect("run causeway");
            assert_eq!(output.status.code(), Some(1));
            let said = stderr(&output);
            assert_eq!(said.trim_end().lines().count(), 1, "{said}");
            said
        };
        let daemon = machine.start();
        let said = refused(start(&machine.config()));
        assert!(
            said.contains("cannot listen on http 127.0.0.1:9470")
                || said.contains("another daemon serves"),
            "{said}"
        );
        drop(daemon);

        let text = fs::read_to_string(machine.config()).expect("the configuration");
        let other = machine.path("other.toml");
        let elsewhere = text
            .replace("\"eth0\"", "\"eth7\"")
            .replace("bpf/lb", "bpf/other");
        fs::write(&other, &elsewhere).expect("write");
        let said = refused(start(&other));
        assert!(
            said.contains("there is no network interface eth7"),
            "{said}"
        );

        let lonely = text.replace("encap.gateway_mac = \"02:00:00:00:00:01\"\n", "");
        fs::write(&other, lonely.replace("bpf/lb", "bpf/other")).expect("write");
        let said = refused(start(&other));
        assert!(
            said.contains("has no default route with a gateway"),
            "{said}"
        );
        assert!(!machine.path("bpf/other").exists());

        fs::write(&other, text.replace("latency", "latancy")).expect("write");
        let said = refused(start(&other));
        assert!(
            said.contains("unknown scheduler `latancy`; did you mean `latency`?"),
            "{said}"
        );

        machine.detach();
        let mut nobody = start(&machine.config());
        nobody.uid(65_534).gid(65_534);
        for open in [machine.dir.path(), &machine.path("run")] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).expect("open a directory");
        }
        let said = refused(nobody);
        assert!(said.contains("root"), "{said}");
    });
}
