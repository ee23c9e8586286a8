// SPDX-License-Identifier: Apache-2.0
//! The daemon as a process, with the real data plane on a veth pair in private
//! namespaces. These tests need root and BPF.

mod access;
mod agents;
mod bird;
mod capture;
mod discover;
mod doctor;
mod drain;
mod ipvs;
mod life;
mod peers;
mod rights;
#[path = "../../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;
mod tunnel;
#[path = "../units/mod.rs"]
mod units;
mod vrrp;

use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use sandbox::Sandbox;

const BINARY: &str = env!("CARGO_BIN_EXE_causeway");
const TIMEOUT: Duration = Duration::from_secs(60);

/// A machine of its own: network, mounts, BPF file system, one interface.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// Runs `test` on a thread with its own namespaces; the kernel cleans up.
    fn run(test: impl FnOnce(&Self) + Send + 'static) {
        Sandbox::run(|sandbox| {
            let machine = Self {
                dir: tempfile::tempdir().expect("a directory"),
            };
            symlink(sandbox.bpffs(), machine.path("bpf")).expect("the BPF file system");
            ip("link add eth0 type veth peer name peer0");
            ip("link set peer0 up");
            ip("link set eth0 up");
            ip("addr add 10.9.0.2/24 dev eth0");
            machine.write_config("");
            test(&machine);
        });
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

    /// Writes a keys file for cookies and reports.
    fn write_keys(&self) -> PathBuf {
        let file = self.path("lb.keys");
        let key = "7".repeat(32);
        let text = format!("current = 0\nkey0 = \"{key}\"\nreports0 = \"{key}\"\n");
        fs::write(&file, text).expect("write the keys");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("keep them");
        file
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
        let told = || format!("no answer: {}", self.log());
        wait(told, || self.client(&["vip", "list"]).status.success());
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log holds `text`.
    fn wait_for_log(&self, text: &str) {
        let told = || format!("no `{text}` in {}", self.log());
        wait(told, || self.log().contains(text));
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

    fn unload(&self) -> Output {
        Command::new(BINARY)
            .args(["lb", "unload", "--yes", "-c"])
            .arg(self.config())
            .output()
            .expect("run causeway")
    }

    fn xdp_is_attached(&self) -> bool {
        ip("-d link show eth0").contains("prog/xdp")
    }
}

/// A packet socket on an interface.
struct Wire {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

impl Wire {
    fn on(interface: &str) -> Self {
        let name = CString::new(interface).expect("a name");
        // SAFETY: the address is one of a packet socket with its own size, the name outlives the
        // calls, what fails is told by the results, and no other code has the new socket.
        unsafe {
            let protocol = (libc::ETH_P_ALL as u16).to_be();
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(protocol));
            assert!(socket >= 0, "a packet socket");
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let wire = Self {
                socket: OwnedFd::from_raw_fd(socket),
                address,
            };
            let size = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(
                libc::bind(socket, (&raw const wire.address).cast(), size),
                0
            );
            wire
        }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the frame and the address outlive the call, and are as long as they say.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize);
    }

    /// The next frame.
    fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; 2048];
        // SAFETY: the buffer outlives the call, and is as long as it says.
        let length = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        frame.truncate(usize::try_from(length).expect("a frame"));
        frame
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

/// Waits until `holds`; if it does not, the test fails with what `told` says.
fn wait(told: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    until(told, || holds().then_some(()));
}

/// The same for what `ask` finds.
fn until<T>(told: impl Fn() -> String, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "{}", told());
        thread::sleep(Duration::from_millis(20));
    }
}

fn ip(arguments: &str) -> String {
    sandbox::run("ip", arguments)
}

/// Without what a command says where the machine keeps its daemon from answering at once.
fn stderr(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    said.split_inclusive('\n')
        .filter(|line| !line.starts_with("causeway: waiting for the daemon at "))
        .collect()
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
