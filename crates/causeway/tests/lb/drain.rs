// SPDX-License-Identifier: Apache-2.0
//! Draining a real until it is empty, and a VIP that is added with all that a file can say.

use etherparse::PacketBuilder;

use super::*;

/// Sends a client's segment from the far end of the interface: to open a connection, or to end it.
fn send(client_port: u16, ends: bool) {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [0xff; 6])
        .ipv4([10, 9, 1, 3], [192, 0, 2, 1], 64)
        .tcp(client_port, 80, 1, 64_000);
    let builder = if ends { builder.rst() } else { builder.syn() };
    let mut frame = Vec::new();
    builder.write(&mut frame, &[]).expect("a frame");
    Wire::on("peer0").send(&frame);
}

/// Connections that a real of `web` has, by the balancer.
fn open(machine: &Machine, real: &str) -> u64 {
    let vip = machine.json(&["vip", "show", "web"]);
    let mut reals = vip["reals"].as_array().expect("reals").iter();
    let real = reals.find(|view| view["address"] == real);
    real.expect("the real")["connections_active"]
        .as_u64()
        .expect("a count")
}

#[test]
fn a_drain_waits_until_no_connection_is_open() {
    Machine::run(|machine| {
        let _daemon = machine.start();
        let mut ports = 40_000..40_000;
        let told = || "no connection came to 10.0.0.1".to_owned();
        wait(told, || {
            send(ports.end, false);
            ports.end += 1;
            open(machine, "10.0.0.1") > 0
        });

        let early = machine.client(&[
            "real",
            "drain",
            "web",
            "10.0.0.1",
            "--wait",
            "--timeout",
            "10s",
        ]);
        assert_eq!(early.status.code(), Some(1), "{}", stderr(&early));
        let told = stderr(&early);
        assert!(
            told.contains(" open of ") && told.contains("still open after "),
            "{told}"
        );

        let refused = |words: &[&str], why: &str| {
            let done = machine.client(words);
            assert_eq!(done.status.code(), Some(1), "{words:?}");
            let told = stderr(&done);
            assert!(
                told.contains(&format!("nothing was changed: {why}"))
                    && told.contains("say --yes if that is meant"),
                "{told}"
            );
        };
        refused(&["real", "del", "web", "10.0.0.1"], "10.0.0.1 has ");
        let last = "10.0.0.2 is the last real of web that takes connections, and new ones would be dropped";
        refused(&["real", "drain", "web", "10.0.0.2"], last);
        refused(&["real", "maintenance", "--all", "10.0.0.2"], last);
        refused(&["real", "weight", "web", "10.0.0.2", "0"], last);
        assert_eq!(machine.json(&["real", "list"])[1]["state"], "active");

        for port in ports {
            send(port, true);
        }
        let words = ["vip", "add", "192.0.2.9:443", "--name", "tls"];
        let added = machine.client(&[&words[..], &["-r", "10.0.0.1", "-r", "10.0.0.2"]].concat());
        assert!(added.status.success(), "{}", stderr(&added));
        let all = ["real", "drain", "--all", "10.0.0.1"];
        let drained = machine.client(&[&all[..], &["--wait", "--timeout", "60s"]].concat());
        assert_eq!(drained.status.code(), Some(0), "{}", stderr(&drained));
        assert_eq!(
            String::from_utf8_lossy(&drained.stdout),
            "draining: real 10.0.0.1 of web, tls\n\
             empty: real 10.0.0.1 of web, tls has no open connection\n"
        );
        assert_eq!(open(machine, "10.0.0.1"), 0);
        let states = || {
            let reals = machine.json(&["real", "list"]);
            let reals = reals.as_array().expect("reals").iter();
            let of = reals.filter(|real| real["address"] == "10.0.0.1");
            let of = of.map(|real| format!("{} {}", real["vip"], real["state"]));
            of.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(states(), r#""web" "drain", "tls" "drain""#);
        let none = machine.client(&["real", "drain", "--all", "10.0.0.99"]);
        assert!(
            stderr(&none).contains("nothing was changed: no vip has a real `10.0.0.99`"),
            "{}",
            stderr(&none)
        );
        let overrides = machine.json(&["override", "list"]);
        assert_eq!(overrides[0]["real"], "10.0.0.1");
        for (words, state) in [
            (&[&all[..], &["--undo"]].concat()[..], "active"),
            (&["real", "maintenance", "--all", "10.0.0.1"], "maintenance"),
        ] {
            let done = machine.client(words);
            assert!(done.status.success(), "{}", stderr(&done));
            assert_eq!(states(), format!(r#""web" "{state}", "tls" "{state}""#));
        }
        let last = machine.client(&["real", "drain", "web", "10.0.0.2", "--yes"]);
        assert!(last.status.success(), "{}", stderr(&last));
        let gone = machine.client(&["real", "del", "tls", "10.0.0.1"]);
        assert!(gone.status.success(), "{}", stderr(&gone));
    });
}

#[test]
fn a_vip_is_added_with_all_that_a_file_can_say() {
    Machine::run(|machine| {
        let _daemon = machine.start();
        let words = "vip add 192.0.2.9:8080 --name shop -r 10.0.0.3=2@02:00:00:00:00:03 \
                     -r 10.0.0.4@02:00:00:00:00:04 --scheduler latency --control observe \
                     --latency response --forwarding l2 --fragments forward --min-healthy 2 \
                     --slow-start 5s --health probe=http,path=/up,status=204,passive=true,interval=5s \
                     --limit 100/200 --source 203.0.113.0/24=10.0.0.3";
        let words: Vec<&str> = words.split_whitespace().collect();
        let added = machine.client(&words);
        assert!(added.status.success(), "{}", stderr(&added));
        let vip = machine.json(&["vip", "show", "shop"]);
        for (key, expected) in [
            ("scheduler", "latency"),
            ("control", "observe"),
            ("latency", "response"),
            ("forwarding", "l2"),
        ] {
            assert_eq!(vip[key], expected, "{vip}");
        }
        assert_eq!(vip["min_healthy"], 2);
        assert_eq!(vip["reals"][0]["mac"], "02:00:00:00:00:03");
        assert_eq!(vip["reals"][0]["weight"], 2);
        assert_eq!(vip["sources"][0]["from"][0], "203.0.113.0/24");
        // Health is known from the first probes on.
        let health = || machine.json(&["vip", "show", "shop"])["reals"][0]["health"].clone();
        wait(|| vip.to_string(), || health().is_object());
        // What does not fit together is the balancer's sentence.
        let words = "vip add 192.0.2.9:81 -r 10.0.0.3 --forwarding l2";
        let words: Vec<&str> = words.split_whitespace().collect();
        let refused = machine.client(&words);
        assert!(
            stderr(&refused).contains("has no `mac`"),
            "{}",
            stderr(&refused)
        );
    });
}
