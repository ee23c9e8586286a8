// SPDX-License-Identifier: Apache-2.0
//! A signal at any instant of a daemon's start ends it cleanly: it leaves no socket
//! behind. Needs root; fails without.

#[path = "../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use sandbox::{Sandbox, ip};

/// Starts that are ended at the line that says where the daemon serves.
const AT_THE_LINE: u32 = 5;
/// Starts that are ended as soon as the signal has a handler.
const AT_THE_HANDLER: u32 = 8;
/// Starts that are ended at instants spread evenly up to a little behind the line.
const ANYWHERE: u32 = 12;
/// How long an end may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How a daemon is started, again and again.
struct Start {
    command: &'static str,
    file: PathBuf,
    socket: PathBuf,
}

impl Start {
    /// `config` names no socket: it is added at the end of its first table.
    fn new(dir: &Path, command: &'static str, config: &str) -> Self {
        let (file, socket) = (dir.join("causeway.toml"), dir.join("run/causeway.sock"));
        let more = format!("socket = \"{}\"\nhttp = false\n", socket.display());
        let state = dir.join("state").display().to_string();
        let config = config.replace("MORE\n", &more).replace("STATE", &state);
        fs::write(&file, config).expect("write the configuration");
        Self {
            command,
            file,
            socket,
        }
    }

    fn spawn(&self) -> (Daemon, BufReader<ChildStderr>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args([self.command, "-c"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the daemon");
        let log = BufReader::new(child.stderr.take().expect("its log"));
        (Daemon(child), log)
    }

    /// Ends one start by `signal` as soon as the line is read. Returns how long that took.
    fn end_at_the_line(&self, signal: Signal) -> Duration {
        let began = Instant::now();
        let (mut daemon, mut log) = self.spawn();
        let mut said = String::new();
        while !said.contains("serving on") {
            let read = log.read_line(&mut said).expect("a line");
            assert!(read > 0, "the start has failed: {said}");
        }
        daemon.signal(signal);
        let took = began.elapsed();
        let status = daemon.wait();
        assert!(status.success(), "{}: {status}, {said}", self.command);
        assert!(!self.socket.exists(), "{} leaves a socket", self.command);
        took
    }

    /// Ends one start by `signal` as soon as `ready` says so.
    fn end_when(&self, signal: Signal, ready: impl Fn(&Daemon) -> bool, when: &str) {
        let (mut daemon, log) = self.spawn();
        while !ready(&daemon) {}
        let catches = daemon.catches(signal);
        daemon.signal(signal);
        let status = daemon.wait();
        let said: Vec<String> = log.lines().map_while(Result::ok).collect();
        let told = format!("{} {when}: {status}, {said:?}", self.command);
        // Before it has done anything it ends as every program does.
        let by_default = status.signal() == Some(signal as i32);
        assert!(status.success() || (by_default && !catches), "{told}");
        assert!(!self.socket.exists(), "{told} leaves a socket");
    }

    fn check(&self) {
        let signals = [Signal::SIGTERM, Signal::SIGINT];
        let mut by_turns = signals.into_iter().cycle();
        let mut next = || by_turns.next().expect("a cycle");
        let took = (0..AT_THE_LINE).map(|_| self.end_at_the_line(next()));
        let longest = took.max().expect("some starts") * 11 / 10;
        for _ in 0..AT_THE_HANDLER {
            let signal = next();
            self.end_when(signal, |daemon| daemon.catches(signal), "at the handler");
        }
        for part in 0..ANYWHERE {
            let time = longest * part / ANYWHERE;
            let pause = |_: &Daemon| {
                thread::sleep(time);
                true
            };
            // Without a handler SIGINT is ignored where a shell runs this in the background.
            self.end_when(Signal::SIGTERM, pause, &format!("after {time:?}"));
        }
    }
}

/// A daemon; killed when the test ends early.
struct Daemon(Child);

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("signal the daemon");
    }

    /// Whether a handler for it is installed.
    fn catches(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.expect("its status");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.expect("a mask") & 1 << (signal as i32 - 1) != 0
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().expect("wait for the daemon") {
                return status;
            }
            assert!(Instant::now() < deadline, "the signal was lost");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &'static str, config: impl FnOnce(&Sandbox) -> String + Send + 'static) {
    Sandbox::run(move |sandbox| {
        ip("link add eth0 type veth peer name peer0");
        ip("link set peer0 up");
        ip("link set eth0 up");
        ip("addr add 10.9.0.2/24 dev eth0");
        let dir = tempfile::tempdir().expect("a directory");
        Start::new(dir.path(), command, &config(sandbox)).check();
    });
}

#[test]
fn a_balancer_ends_cleanly_at_any_instant_of_its_start() {
    run("lb", |sandbox| {
        format!(
            "interface = \"eth0\"\npin_dir = \"{}\"\nstate_dir = \"STATE\"\nMORE\n\
             encap.gateway_mac = \"02:00:00:00:00:01\"\n\
             flow_table = {{ ipv4 = 4096, ipv6 = 4096 }}\n\
             [[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
             real = [{{ address = \"10.0.0.1\" }}]\n",
            sandbox.pin_dir("lb").display()
        )
    });
}

#[test]
fn an_agent_ends_cleanly_at_any_instant_of_its_start() {
    run("agent", |sandbox| {
        format!(
            "[agent]\ninterface = \"eth0\"\naddresses = [\"10.9.0.2\"]\nvips = [\"192.0.2.1\"]\nbalancers = [\"10.9.0.1\"]\n\
             pin_dir = \"{}\"\nstate_dir = \"STATE\"\nMORE\n",
            sandbox.pin_dir("agent").display()
        )
    });
}

#[test]
fn a_tunnel_ends_cleanly_at_any_instant_of_its_start() {
    run("tunnel", |_| {
        "[tunnel]\ndevice = \"cw0\"\naddresses = [\"10.5.0.1/24\"]\nkeys = \"none\"\nstate_dir = \"STATE\"\nMORE\n\
         [[tunnel.path]]\nid = 0\nlocal = \"10.9.0.2:7000\"\nremote = \"10.9.0.1:7000\"\n"
            .to_owned()
    });
}
