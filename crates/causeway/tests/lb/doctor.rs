// SPDX-License-Identifier: Apache-2.0
//! `causeway doctor` on a machine with one thing wrong at a time: it is named, and the command in
//! the finding fixes it.

use super::*;

/// Runs `causeway doctor` for a file: its exit code and its findings.
fn look(file: &Path) -> (Option<i32>, Vec<Value>) {
    let output = Command::new(BINARY)
        .args(["doctor", "-o", "json", "-c"])
        .arg(file)
        .output()
        .expect("run causeway doctor");
    let looks: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let found = looks[0]["findings"].as_array().expect("findings").clone();
    (output.status.code(), found)
}

fn rule<'a>(found: &'a [Value], rule: &str) -> Option<&'a Value> {
    found.iter().find(|finding| finding["rule"] == rule)
}

/// Does harm, expects the rule to speak with exit code 1, does what it says, and expects silence.
fn mends(file: &Path, harm: &str, name: &str) {
    shell(harm);
    let (code, found) = look(file);
    let Some(finding) = rule(&found, name) else {
        panic!("{harm}: no {name} in {found:#?}");
    };
    assert_eq!(code, Some(1), "{harm}");
    shell(finding["mend"].as_str().expect("a command"));
    let (_, found) = look(file);
    assert_eq!(rule(&found, name), None, "{harm}");
}

/// Has the file ask for generic mode.
fn generic(file: &Path) {
    let text = fs::read_to_string(file).expect("the file");
    fs::write(file, format!("xdp.mode = \"generic\"\n{text}")).expect("write the file");
}

fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status();
    assert!(status.expect("run sh").success(), "{command}");
}

#[test]
fn a_balancer_is_told_what_is_in_its_way_and_what_mends_it() {
    Machine::run(|machine| {
        let file = machine.config();
        let (code, found) = look(&file);
        // What it sends in native mode is lost: nothing runs at the far end.
        let veth = rule(&found, "veth").expect("veth");
        assert_eq!((code, &veth["level"]), (Some(1), &"warning".into()));
        generic(&file);
        let (code, found) = look(&file);
        assert!(found.iter().all(|one| one["level"] == "note"), "{found:#?}");
        assert_eq!(code, Some(0));
        let _daemon = machine.start();
        let (code, _) = look(&file);
        assert_eq!(code, Some(0), "its own program is in no one else's way");

        mends(&file, "ip link set eth0 down", "down");
        mends(&file, "ip addr add 192.0.2.1/32 dev lo", "vip-held");
        mends(&file, "ip addr add 192.0.2.1/24 dev peer0", "vip-held");
        let text = fs::read_to_string(&file).expect("the file");
        let longer = format!("encap.mtu = 1600\n{text}");
        fs::write(&file, longer).expect("write the file");
        mends(&file, "true", "encap-mtu");
        fs::write(&file, &text).expect("write the file");

        // Another interface's file: the program there is none of its own.
        let agents = machine.path("agent.toml");
        let dir = machine.path("bpf/agent");
        let text = format!(
            "[agent]\ninterface = \"eth0\"\naddresses = [\"10.9.0.2\"]\nvips = [\"192.0.2.1\"]\n\
             balancers = [\"10.9.0.9\"]\npin_dir = \"{}\"\n",
            dir.display()
        );
        fs::write(&agents, text).expect("write the file");
        let (code, found) = look(&agents);
        assert_eq!(code, Some(1));
        let says = &rule(&found, "occupied").expect("occupied")["says"];
        assert!(
            says.as_str().expect("text").contains("causeway_lb"),
            "{says}"
        );
        mends(&agents, "true", "vip-missing");
        mends(&agents, "true", "arp");
        shell(
            "ip link add eth1 type veth peer name peer1 && ip link set peer1 up && ip link set eth1 up",
        );
        let away = "ip addr add 10.8.0.2/24 dev eth1 && ip route add default via 10.8.0.1 \
                    && sysctl -qw net.ipv4.conf.eth0.rp_filter=1";
        mends(&agents, away, "rp-filter");

        let (_, found) = look_at(&["no0"]);
        assert!(rule(&found, "missing").is_some(), "{found:#?}");
    });
}

#[test]
fn a_vip_of_the_hosts_own_is_told_by_start_status_and_check_until_it_is_gone() {
    Machine::run(|machine| {
        let held = "this host holds the VIP 192.0.2.1 on eth0";
        let mend = "`ip addr del 192.0.2.1/24 dev eth0`";
        ip("addr add 192.0.2.1/24 dev eth0");
        let _daemon = machine.start();
        machine.wait_for_log(held);
        let status = || {
            let output = machine.client(&["status"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.code(), text)
        };
        let (code, text) = status();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(held) && text.contains(mend), "{text}");
        let checked = Command::new(BINARY)
            .args(["config", "check", "--running"])
            .arg(machine.config())
            .output()
            .expect("run causeway config check");
        let told = stderr(&checked);
        assert!(checked.status.success(), "{told}");
        assert_eq!(
            told.matches(&format!("warning: {held}")).count(),
            1,
            "{told}"
        );
        ip("addr del 192.0.2.1/24 dev eth0");
        machine.wait_for_log("this host no longer holds the VIP 192.0.2.1");
        let (_, text) = status();
        assert!(!text.contains("holds the VIP"), "{text}");
    });
}

/// Without a file, for interfaces by name.
fn look_at(interfaces: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = Command::new(BINARY)
        .args(["doctor", "-o", "json"])
        .args(interfaces)
        .output()
        .expect("run causeway doctor");
    let looks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = looks[0]["findings"].as_array().expect("findings").clone();
    (output.status.code(), found)
}

/// A veth drops what its far end's MTU has no room for, without a word.
#[test]
fn a_path_that_swallows_long_packets_is_found() {
    Machine::run(|machine| {
        let far = Command::new("unshare")
            .args(["-n", "sleep", "120"])
            .spawn()
            .expect("a namespace");
        let far = Daemon(far);
        let id = far.0.id();
        let here = fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
        let there = || fs::read_link(format!("/proc/{id}/ns/net")).expect("a namespace");
        wait(|| "no namespace".to_owned(), || there() != here);
        shell(&format!(
            "ip link add eth1 type veth peer name far && ip link set far netns {id} \
             && ip addr add 10.0.0.254/24 dev eth1 && ip link set eth1 up \
             && nsenter -t {id} -n sh -c 'ip addr add 10.0.0.1/24 dev far; ip addr add 10.0.0.2/24 dev far; ip link set far mtu 1300 up'"
        ));
        let file = machine.config();
        let text = fs::read_to_string(&file).expect("the file");
        fs::write(&file, text.replace("\"eth0\"", "\"eth1\"")).expect("write the file");
        generic(&file);
        // An answer that comes late, where the processor is short, is taken for a loss.
        const TRIES: usize = 5;
        // It lets a VLAN tag's four bytes through on top.
        let largest = "packets of more than 1304 bytes are lost on the way to 10.0.0.1";
        let says = |found: &[Value]| Some(rule(found, "path-mtu")?["says"].as_str()?.to_owned());
        let is_found = (0..TRIES).any(|_| {
            let (code, found) = look(&file);
            code == Some(1) && says(&found).is_some_and(|says| says.starts_with(largest))
        });
        assert!(is_found, "not that {largest}: {:#?}", look(&file));
        let mended = format!(
            "encap.mtu = 1304\n{}",
            fs::read_to_string(&file).expect("it")
        );
        fs::write(&file, mended).expect("write the file");
        let is_well = (0..TRIES).any(|_| {
            let (code, found) = look(&file);
            code == Some(0) && rule(&found, "path-mtu").is_none()
        });
        assert!(is_well, "packets that fit are lost: {:#?}", look(&file));
    });
}
