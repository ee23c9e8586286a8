// SPDX-License-Identifier: Apache-2.0
//! Reals of a file beside the configuration, and probes that need rights of the unit.

use super::*;

impl Machine {
    /// Has `web` take these lines in the place of its reals.
    fn with(&self, lines: &str) {
        self.write_config("");
        let text = fs::read_to_string(self.config()).expect("the configuration");
        let reals = &text[text.find("real = ").expect("reals")..];
        let text = text.replace(reals, &format!("{lines}\n"));
        fs::write(self.config(), text).expect("write the configuration");
    }

    /// Waits until the VIP's reals are as `expected` says: address and state.
    fn wait_for_reals(&self, expected: &[(&str, &str)]) {
        let reals = || {
            let vip = self.json(&["vip", "show", "web"]);
            let reals = vip["reals"].as_array().expect("reals").iter();
            let reals = reals.map(|real| (real["address"].clone(), real["state"].clone()));
            reals.collect::<Vec<_>>()
        };
        let expected = expected.iter().map(|(a, s)| ((*a).into(), (*s).into()));
        let expected: Vec<(Value, Value)> = expected.collect();
        let told = || format!("{:?}: {}", reals(), self.log());
        wait(told, || reals() == expected);
    }
}

#[test]
fn reals_of_a_file_come_drain_and_outlive_the_daemon() {
    Machine::run(|machine| {
        let list = machine.path("reals");
        let write = |text: &str| {
            fs::write(machine.path("reals.new"), text).expect("write");
            fs::rename(machine.path("reals.new"), &list).expect("rename");
        };
        write("10.0.0.1\n10.0.0.2\n");
        machine.with(&format!(
            "discover = {{ file = \"{}\", drain = \"1h\" }}",
            list.display()
        ));
        let daemon = machine.start();
        machine.wait_for_reals(&[("10.0.0.1", "active"), ("10.0.0.2", "active")]);
        write("10.0.0.1\n10.0.0.3 2\n");
        machine.wait_for_reals(&[
            ("10.0.0.1", "active"),
            ("10.0.0.2", "drain"),
            ("10.0.0.3", "active"),
        ]);
        write("10.0.0.9\n");
        machine.wait_for_log("an answer that takes away 2 reals is held");
        let shown = machine.client(&["vip", "show", "web"]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(
            shown.contains("2 found, 1 draining; an answer that takes away 2 is held"),
            "{shown}"
        );
        // What is known holds, though the next daemon gets no answer.
        let kept = || fs::read_to_string(machine.path("state/state.json")).unwrap_or_default();
        wait(kept, || {
            kept().contains("10.0.0.3") && kept().contains("gone_ns\": 1")
        });
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        fs::remove_file(&list).expect("remove the list");
        let daemon = machine.start();
        machine.wait_for_reals(&[
            ("10.0.0.1", "active"),
            ("10.0.0.2", "drain"),
            ("10.0.0.3", "active"),
        ]);
        machine.wait_for_log("its reals stay as they are");
        write("10.0.0.9\n");
        let accepted = || machine.client(&["vip", "accept", "web"]).status.success();
        wait(|| machine.log(), accepted);
        machine.wait_for_reals(&[
            ("10.0.0.1", "drain"),
            ("10.0.0.2", "drain"),
            ("10.0.0.3", "drain"),
            ("10.0.0.9", "active"),
        ]);
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        assert!(machine.unload().status.success());
    });
}

/// Raw sockets and processes, in the sandbox of the unit.
#[test]
fn the_units_rights_suffice_for_every_probe() {
    Machine::run(|machine| {
        for (probe, state, reason) in [
            (
                "probe = \"icmp\", interval = \"200ms\", timeout = \"200ms\"",
                "down",
                "no answer within 200 ms",
            ),
            // A process takes its time where processors are short.
            (
                "probe = \"script\", command = [\"/bin/echo\", \"fine\"], interval = \"10s\", \
                 timeout = \"10s\", rise = 1",
                "up",
                "fine",
            ),
            (
                "probe = \"script\", command = [\"/usr/bin/setpriv\", \"--reuid=nobody\", \
                 \"--regid=nogroup\", \"--clear-groups\", \"--\", \"/usr/bin/id\", \"-un\"], \
                 interval = \"10s\", timeout = \"10s\", rise = 1",
                "up",
                "nobody",
            ),
        ] {
            machine.with(&format!(
                "health = {{ {probe} }}\nreal = [{{ address = \"10.0.0.1\" }}]"
            ));
            ip("route replace default via 10.9.0.9 dev eth0");
            ip("neigh replace 10.9.0.9 lladdr 02:00:00:00:00:01 dev eth0");
            let daemon = machine.start_by(units::confined("causeway-lb", BINARY));
            let health = || machine.json(&["vip", "show", "web"])["reals"][0]["health"].clone();
            let told = || format!("{}: {}", health(), machine.log());
            wait(told, || {
                let health = health();
                health["state"] == state && health["reason"] == reason
            });
            daemon.signal(Signal::SIGTERM);
            assert!(daemon.wait(), "{}", machine.log());
        }
    });
}

/// In the sandbox of the unit, too: signals to another user's processes are a right of their own.
#[test]
fn a_script_that_hangs_as_another_user_is_ended() {
    Machine::run(|machine| {
        // As long as no other process sleeps.
        let seconds = format!("600.{}", std::process::id());
        machine.with(&format!(
            "health = {{ probe = \"script\", command = [\"/usr/bin/setpriv\", \"--reuid=nobody\", \
             \"--clear-groups\", \"--\", \"/bin/sleep\", \"{seconds}\"], interval = \"10s\", \
             timeout = \"2s\", fall = 1 }}\nreal = [{{ address = \"10.0.0.1\" }}]"
        ));
        let wanted = format!("/bin/sleep\0{seconds}\0");
        let is_asleep = || {
            let mut all = fs::read_dir("/proc").expect("processes").flatten();
            all.any(|of| {
                fs::read(of.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
            })
        };
        let _daemon = machine.start_by(units::confined("causeway-lb", BINARY));
        wait(|| machine.log(), is_asleep);
        let health = || machine.json(&["vip", "show", "web"])["reals"][0]["health"].clone();
        wait(
            || format!("{}: {}", health(), machine.log()),
            || health()["reason"] == "no answer within 2000 ms",
        );
        wait(|| "the script is still there".to_owned(), || !is_asleep());
    });
}
