// SPDX-License-Identifier: Apache-2.0
//! Two balancers on one segment, of which keepalived gives one the VIP's address.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};

use super::*;

const VIP: &str = "10.9.1.100";

/// Hosts on a bridge, `br0` with 10.9.1.1: what its namespace is called, and its address's end.
const HOSTS: [(&str, u8); 4] = [("lb1", 11), ("lb2", 12), ("s1", 21), ("s2", 22)];

fn segment() {
    // Names of namespaces are files there.
    fs::create_dir_all("/run/netns").expect("a mount point");
    let none = None::<&str>;
    mount(
        Some("tmpfs"),
        "/run/netns",
        Some("tmpfs"),
        MsFlags::empty(),
        none,
    )
    .expect("a directory for namespaces");
    ip("link add br0 type bridge");
    ip("addr add 10.9.1.1/24 dev br0");
    ip("link set br0 up");
    for (name, end) in HOSTS {
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add p-{name} type veth peer name eth0 netns {name}"
        ));
        ip(&format!("link set p-{name} master br0 up"));
        ip(&format!("-n {name} addr add 10.9.1.{end}/24 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
    }
    // The generic mode sends a packet on as it is: with its checksum.
    run_in(None, "ethtool", "-K br0 tx off");
    for server in ["s1", "s2"] {
        let quiet = "-qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";
        run_in(Some(server), "sysctl", quiet);
        ip(&format!("-n {server} addr add {VIP}/32 dev lo"));
        answer(server);
    }
}

/// A command in a host's namespace.
fn command_in(host: Option<&str>, program: &str) -> Command {
    let Some(host) = host else {
        return Command::new(program);
    };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host, program]);
    command
}

fn run_in(host: Option<&str>, program: &str, arguments: &str) {
    let output = command_in(host, program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it"));
    assert!(output.status.success(), "{program}: {}", stderr(&output));
}

/// Has a server answer each line at the VIP with its own name.
fn answer(server: &'static str) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let namespace = fs::File::open(format!("/run/netns/{server}")).expect("a namespace");
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("enter it");
        let listener = TcpListener::bind((VIP, 80)).expect("the VIP");
        ready.send(()).expect("somebody waits");
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("the other half"));
                let mut line = String::new();
                while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                    line.clear();
                    if writeln!(&stream, "{server}").is_err() {
                        break;
                    }
                }
            });
        }
    });
    is_ready.recv().expect("a server");
}

/// The balancer's and keepalived's files of a host, as docs/how-to/fail-over-with-keepalived.md
/// has them.
fn write_files(machine: &Machine, host: &str, priority: u8) {
    let dir = machine.dir.path().display();
    let mac = |server: &str| {
        let link = ip(&format!("-n {server} -br link show eth0"));
        link.split_whitespace().nth(2).expect("a MAC").to_owned()
    };
    let text = format!(
        "interface = \"eth0\"\n\
         pin_dir = \"{dir}/bpf/{host}\"\n\
         state_dir = \"{dir}/{host}-state\"\n\
         socket = \"{dir}/{host}.sock\"\n\
         http = false\n\
         hash_key = \"00112233445566778899aabbccddeeff\"\n\
         unserved = \"pass\"\n\
         xdp.mode = \"generic\"\n\
         encap.gateway_mac = \"02:00:00:00:00:01\"\n\
         flow_table = {{ ipv4 = 4096, ipv6 = 4096 }}\n\
         [[vip]]\n\
         name = \"web\"\n\
         address = \"{VIP}\"\n\
         port = 80\n\
         scheduler = \"maglev\"\n\
         forwarding = \"l2\"\n\
         real = [{{ address = \"10.9.1.21\", mac = \"{}\" }}, {{ address = \"10.9.1.22\", mac = \"{}\" }}]\n",
        mac("s1"),
        mac("s2")
    );
    fs::write(machine.path(&format!("{host}.toml")), text).expect("write a file");
    let status = format!("{BINARY} status --quiet --socket {dir}/{host}.sock");
    let answers = machine.path(&format!("{host}-answers"));
    let script = format!("#!/bin/sh\n{status} > /dev/null 2>&1\ntest $? -le 1\n");
    fs::write(&answers, script).expect("write a script");
    fs::set_permissions(&answers, fs::Permissions::from_mode(0o755)).expect("its mode");
    let each_second = "interval 1\n timeout 10\n fall 2\n rise 2\n weight -60";
    let text = format!(
        "global_defs {{ script_user root\n enable_script_security\n vrrp_version 3 }}\n\
         vrrp_script answers {{ script \"{}\"\n {each_second} }}\n\
         vrrp_script well {{ script \"{status}\"\n {each_second} }}\n\
         vrrp_instance web {{ state BACKUP\n interface eth0\n virtual_router_id 51\n\
         priority {priority}\n advert_int 0.2\n\
         virtual_ipaddress {{ {VIP}/32 dev eth0 }}\n\
         track_script {{\n answers\n well\n }} }}\n",
        answers.display()
    );
    let file = machine.path(&format!("{host}.keepalived"));
    fs::write(&file, text).expect("write a file");
    // keepalived runs no script that others may write.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
}

fn start_in(machine: &Machine, host: &str, program: &str, arguments: &[&str]) -> Daemon {
    let log = fs::File::create(machine.path(&format!("{host}.log"))).expect("a log");
    let child = command_in(Some(host), program)
        .args(arguments)
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .stdin(Stdio::null())
        .spawn();
    Daemon(child.unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it")))
}

fn start_keepalived(machine: &Machine, host: &str) -> Daemon {
    let path = |name: &str| {
        machine
            .path(&format!("{host}.{name}"))
            .display()
            .to_string()
    };
    let (file, pid, vrrp) = (path("keepalived"), path("pid"), path("vrrp"));
    let words = ["-n", "-l", "-P", "-f", &file, "-p", &pid, "-r", &vrrp];
    start_in(machine, host, "keepalived", &words)
}

fn wait_for_holder(machine: &Machine, host: &str, holds: bool) {
    let addresses = || ip(&format!("-n {host} addr show dev eth0"));
    let told = || {
        let log = fs::read_to_string(machine.path(&format!("{host}.log")));
        format!("{host}: {} {}", addresses(), log.unwrap_or_default())
    };
    wait(told, || addresses().contains(VIP) == holds);
}

/// What the server behind a connection is called.
fn ask(stream: &TcpStream) -> String {
    writeln!(&*stream, "who").expect("ask");
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .expect("an answer");
    line.trim().to_owned()
}

#[test]
fn keepalived_moves_a_vip_and_its_connections_stay() {
    Machine::run(|machine| {
        segment();
        let balancers = ["lb1", "lb2"].map(|host| {
            write_files(machine, host, if host == "lb1" { 150 } else { 100 });
            let config = machine.path(&format!("{host}.toml")).display().to_string();
            let daemon = start_in(machine, host, BINARY, &["lb", "-c", &config]);
            let log =
                || fs::read_to_string(machine.path(&format!("{host}.log"))).unwrap_or_default();
            wait(log, || log().contains("serving on"));
            daemon
        });
        let [first, _second] = ["lb1", "lb2"].map(|host| start_keepalived(machine, host));
        wait_for_holder(machine, "lb1", true);
        wait_for_holder(machine, "lb2", false);

        let vip = format!("{VIP}:80").parse().expect("an address");
        let open = |_| {
            let stream = TcpStream::connect_timeout(&vip, TIMEOUT).expect("a connection");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a bound");
            let server = ask(&stream);
            (stream, server)
        };
        let mut open: Vec<_> = (0..16).map(open).collect();
        let servers: std::collections::BTreeSet<_> = open.iter().map(|of| &of.1).collect();
        assert_eq!(servers.len(), 2, "{servers:?}");
        let mut all_go_on = |when: &str| {
            for (stream, server) in &mut open {
                assert_eq!(ask(stream), *server, "{when}");
            }
        };

        // The host is cut off.
        ip("link set p-lb1 down");
        wait_for_holder(machine, "lb2", true);
        all_go_on("cut off");
        ip("link set p-lb1 up");
        wait_for_holder(machine, "lb2", false);
        all_go_on("back");

        // Its balancer ends: the address goes, although packets are still forwarded.
        let [balancer, _other] = balancers;
        balancer.signal(Signal::SIGTERM);
        assert!(balancer.wait());
        wait_for_holder(machine, "lb2", true);
        wait_for_holder(machine, "lb1", false);
        all_go_on("without the first balancer");
        drop(first);
    });
}
