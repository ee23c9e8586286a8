// SPDX-License-Identifier: Apache-2.0
//! Daemons with no more rights than their units give them, and fewer once they serve; and units
//! that are never given up.

use std::os::unix::process::ExitStatusExt as _;

use super::*;

/// CAP_SYS_ADMIN of linux/capability.h.
const SYS_ADMIN: u64 = 1 << 21;

/// Effective and permitted capabilities of all threads.
fn rights(pid: u32) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let mut held = Vec::new();
    for task in tasks {
        let status = task.expect("a thread").path().join("status");
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(status) else {
            continue;
        };
        held.extend(status.lines().filter_map(|line| {
            let (name, set) = line.split_once(":\t")?;
            let set = u64::from_str_radix(set, 16);
            ["CapEff", "CapPrm"]
                .contains(&name)
                .then(|| set.expect("a set"))
        }));
    }
    assert!(held.len() >= 4, "{held:?}");
    held
}

#[test]
fn a_balancer_that_serves_is_no_administrator() {
    Machine::run(|machine| {
        let daemon = machine.start_by(units::confined("causeway-lb", BINARY));
        let held = rights(daemon.0.id());
        assert!(held.iter().all(|set| set & SYS_ADMIN == 0), "{held:x?}");
        assert!(held.iter().all(|set| *set != 0), "{held:x?}");
    });
}

/// Of a page that is to have the port of all others.
#[test]
fn the_units_rights_suffice_for_a_port_below_1024() {
    Machine::run(|machine| {
        let text = fs::read_to_string(machine.config()).expect("the configuration");
        let text = format!("http = \"127.0.0.1:443\"\n{text}");
        fs::write(machine.config(), text).expect("write the configuration");
        let _daemon = machine.start_by(units::confined("causeway-lb", BINARY));
        machine.wait_for_log(" and http://127.0.0.1:443");
    });
}

/// With a path from a port below 1024, which middleboxes let pass.
#[test]
fn the_units_rights_suffice_for_a_tunnel() {
    Machine::run(|machine| {
        let (file, socket) = (machine.path("tunnel.toml"), machine.path("tunnel.sock"));
        let text = format!(
            "[tunnel]\ndevice = \"cw0\"\naddresses = [\"10.5.0.1/24\"]\nkeys = \"none\"\nhttp = false\n\
             state_dir = \"{}\"\nsocket = \"{}\"\n[[tunnel.path]]\nid = 0\nlocal = \"10.9.0.2:443\"\nremote = \"10.9.0.9:7000\"\n",
            machine.path("state").display(),
            socket.display()
        );
        fs::write(&file, text).expect("write the configuration");
        let log = fs::File::create(machine.path("log")).expect("a log");
        let child = units::confined("causeway-tunnel", BINARY)
            .args(["tunnel", "-c"])
            .arg(&file)
            .stderr(log)
            .spawn()
            .expect("start causeway tunnel");
        let daemon = Daemon(child);
        machine.wait_for_log("carrying cw0");
        let held = rights(daemon.0.id());
        assert!(held.iter().all(|set| set & SYS_ADMIN == 0), "{held:x?}");
        daemon.signal(Signal::SIGHUP);
        machine.wait_for_log("reloaded");
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
    });
}

/// With systemd's default it is, after five starts that fail within ten seconds.
#[test]
fn a_unit_is_started_again_however_often_its_start_has_failed() {
    for unit in [
        "causeway-lb",
        "causeway-agent",
        "causeway-tunnel",
        "causeway-kubernetes",
    ] {
        assert_eq!(
            units::values(unit, "StartLimitIntervalSec"),
            ["0"],
            "{unit}"
        );
        assert_eq!(units::values(unit, "Restart"), ["always"], "{unit}");
    }
}

/// What the filter does not have ends a process: else the tests above would show nothing.
#[test]
fn the_filter_bites() {
    for unit in ["causeway-lb", "causeway-agent", "causeway-tunnel"] {
        let status = units::confined(unit, "mount")
            .args(["-t", "tmpfs", "none", "/nowhere"])
            .status()
            .expect("run mount");
        assert_eq!(status.signal(), Some(Signal::SIGSYS as i32), "{unit}");
    }
}
