// SPDX-License-Identifier: Apache-2.0
//! Start, stop, takeover, reload, removal, and starts that are refused.

use super::*;

#[test]
fn a_daemon_comes_and_goes_and_the_data_plane_stays() {
    Machine::run(|machine| {
        let daemon = machine.start();
        let mode = fs::metadata(machine.path("run/lb.sock")).expect("the socket");
        assert_eq!(mode.permissions().mode() & 0o777, 0o660);
        let before = machine.json(&["vip", "show", "web"]);
        assert_eq!(before["reals"][1]["address"], "10.0.0.2");
        let well = machine.client(&["status"]);
        let said = String::from_utf8_lossy(&well.stdout).into_owned();
        assert_eq!(well.status.code(), Some(0), "{said}");
        assert!(said.starts_with("balancer 0."), "{said}");
        assert!(
            said.ends_with("1 of 1 VIP ready; reals: 2 active\nall is well\n"),
            "{said}"
        );
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
        let read = |name: &str| fs::read_to_string(machine.path(name)).unwrap_or_default();
        let wait_for = |what: &str, is: &dyn Fn() -> bool| {
            wait(|| format!("{what}: {}", read("watch.err")), is);
        };
        let file = |name: &str| fs::File::create(machine.path(name)).expect("a file");
        let _watching = Daemon(
            Command::new(BINARY)
                .args(["stats", "--watch", "50ms", "-o", "csv", "--socket"])
                .arg(machine.path("run/lb.sock"))
                .stdout(file("watch.out"))
                .stderr(file("watch.err"))
                .spawn()
                .expect("run causeway"),
        );
        wait_for("counters", &|| read("watch.out").contains("10.0.0.2"));
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        assert!(machine.xdp_is_attached());
        wait_for("the daemon's end", &|| {
            read("watch.err").contains("is gone")
        });
        let seen = read("watch.out").len();
        let gone = machine.client(&["stats"]);
        assert!(stderr(&gone).contains("is gone (the data plane goes on without it)"));
        assert_eq!(machine.client(&["status"]).status.code(), Some(3));

        let daemon = machine.start();
        wait_for("counters again", &|| read("watch.out").len() > seen);
        let refused = machine.unload();
        assert!(stderr(&refused).ends_with("runs; stop it first\n"));
        drop(daemon);
        for (arguments, expected) in [
            (&["lb", "--detach"][..], "unexpected argument '--detach'"),
            (&["lb", "unload"], "say --yes if that is meant"),
        ] {
            let mut command = Command::new(BINARY);
            command.args(arguments).arg("-c").arg(machine.config());
            let refused = command.output().expect("run causeway");
            assert!(!refused.status.success() && machine.xdp_is_attached());
            assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
        }
        let unloaded = machine.unload();
        let said = String::from_utf8_lossy(&unloaded.stdout).into_owned();
        assert!(said.starts_with("unloaded from eth0; "), "{said}");
        assert!(!machine.xdp_is_attached());
        assert!(!machine.path("bpf/lb").exists());
        let again = machine.unload();
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
            // What it cannot do: that a ring is not read stands in the log at level debug.
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

/// What systemd gives a service: `$JOURNAL_STREAM` names the file of its standard error.
#[test]
fn journald_gets_priorities() {
    Machine::run(|machine| {
        fs::write(machine.path("log"), "").expect("a log");
        let log = fs::metadata(machine.path("log")).expect("the log");
        let mut command = Command::new(BINARY);
        let stream = format!("{}:{}", log.dev(), log.ino());
        command.env("JOURNAL_STREAM", stream);
        let _daemon = machine.start_by(command);
        machine.wait_for_log("<6> INFO attached to eth0");
        let none = machine.client(&["real", "drain", "web", "10.0.0.9"]);
        assert!(!none.status.success());
        machine.wait_for_log("<4> WARN not changed who=");
        let lines = machine.log();
        assert!(lines.lines().all(|line| line.starts_with('<')), "{lines}");
    });
}

#[test]
fn logs_are_json_or_quiet_where_it_is_asked_for() {
    Machine::run(|machine| {
        let mut command = Command::new(BINARY);
        command.env("CAUSEWAY_LOG_FORMAT", "json");
        let daemon = machine.start_by(command);
        machine.wait_for_log("attached to eth0");
        let none = machine.client(&["real", "drain", "web", "10.0.0.9"]);
        assert!(!none.status.success());
        machine.wait_for_log("not changed");
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        let log = machine.log();
        let lines = log.lines().map(serde_json::from_str::<Value>);
        let lines: Vec<Value> = lines.map(|line| line.expect(&log)).collect();
        let has = |line: &Value, name: &str| line[name].as_str().is_some_and(|of| !of.is_empty());
        for line in &lines {
            let all = ["time", "level", "message"];
            assert!(all.iter().all(|name| has(line, name)), "{line}");
        }
        let changed = lines.iter().find(|line| line["message"] == "not changed");
        let changed = changed.expect(&log);
        assert_eq!(
            (changed["level"].as_str(), &changed["result"]),
            (Some("warn"), &404.into())
        );
        assert!(has(changed, "who") && has(changed, "what"), "{changed}");

        let mut command = Command::new(BINARY);
        command.arg("--quiet");
        let _daemon = machine.start_by(command);
        let none = machine.client(&["real", "drain", "web", "10.0.0.9"]);
        assert!(!none.status.success());
        machine.wait_for_log("WARN not changed");
        assert!(!machine.log().contains("INFO"), "{}", machine.log());

        // Also the last word of a daemon that does not start.
        let refused = Command::new(BINARY)
            .args(["--log-format", "json", "lb", "-c"])
            .arg(machine.path("none.toml"))
            .output();
        let told = stderr(&refused.expect("run causeway"));
        let told: Value = serde_json::from_str(&told).expect(&told);
        assert_eq!(told["level"], "error");
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

        let haproxys = machine.client(&["stats", "--haproxy"]);
        let haproxys = String::from_utf8_lossy(&haproxys.stdout);
        assert!(haproxys.starts_with("# pxname,svname,"), "{haproxys}");
        assert!(haproxys.contains("\nweb,10.0.0.1,,"), "{haproxys}");

        machine.write_config(", { address = \"10.0.0.3\", weight = 2 }");
        daemon.signal(Signal::SIGHUP);
        machine.wait_for_log("reloaded: 1 VIP with 3 reals on eth0");
        let vip = machine.json(&["vip", "show", "web"]);
        // What was set by hand stays.
        assert_eq!(vip["reals"][0]["state"], "drain");
        assert_eq!(vip["reals"][2]["weight"], 2);

        machine.write_config(", { address = \"10.0.0.3\", wieght = 2 }");
        daemon.signal(Signal::SIGHUP);
        machine.wait_for_log("unknown key `wieght`; did you mean `weight`?");
        let status = machine.client(&["status", "-o", "json"]);
        assert_eq!(status.status.code(), Some(1));
        let told: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        assert_eq!(told["troubles"][0]["kind"], "reload_refused");
        let trouble = told["troubles"][0]["text"].as_str().unwrap_or_default();
        assert!(trouble.contains("did you mean `weight`?"), "{told}");
        let vips = machine.json(&["vip", "list"]);
        assert_eq!(vips[0]["reals"].as_array().map(Vec::len), Some(3));
        let metrics = http_get("/metrics");
        assert!(metrics.contains(
            "causeway_real_weight{vip=\"web\",real=\"10.0.0.3\",kind=\"configured\"} 2.0"
        ));
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run promtool, of Debian's package prometheus");
        let mut page = promtool.stdin.take().expect("its input");
        let (_, body) = metrics.split_once("\r\n\r\n").expect("a body");
        std::io::Write::write_all(&mut page, body.as_bytes()).expect("write");
        drop(page);
        let told = promtool.wait_with_output().expect("promtool");
        assert!(told.status.success(), "{}", stderr(&told));
    });
}

/// Drains outlive a kill, and a broken file on the disk does not keep the daemon down.
#[test]
fn a_restart_forgets_nothing_and_starts_with_the_last_good_file() {
    Machine::run(|machine| {
        let daemon = machine.start();
        for arguments in [
            &["real", "drain", "web", "10.0.0.1"][..],
            &["real", "weight", "web", "10.0.0.2", "7"],
        ] {
            let done = machine.client(arguments);
            assert!(done.status.success(), "{}", stderr(&done));
        }
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        let good = fs::read_to_string(machine.config()).expect("the configuration");
        fs::write(machine.config(), format!("{good}\n[broken")).expect("break it");

        let daemon = machine.start();
        machine.wait_for_log("is refused, and the copy of how it was last in force is used");
        let reals = &machine.json(&["vip", "show", "web"])["reals"];
        assert_eq!(
            (&reals[0]["state"], &reals[1]["weight"]),
            (&"drain".into(), &7.into())
        );
        let metrics = http_get("/metrics");
        assert!(
            metrics.contains("causeway_config_last_reload_successful 0.0"),
            "{metrics}"
        );
        let status = http_get("/v1/status");
        assert!(status.contains("\"last_good\":true"), "{status}");
        let refused = machine.client(&["reload"]);
        assert_eq!(refused.status.code(), Some(1));
        let config = |action: &str| {
            let mut command = Command::new(BINARY);
            command.args(["config", action]).arg(machine.config());
            command.output().expect("run causeway")
        };
        let difference = || {
            let output = config("diff");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.code(), said + &stderr(&output))
        };
        let restart = good.replace("ipv4 = 4096", "ipv4 = 8192");
        fs::write(
            machine.config(),
            format!("measure.enabled = true\nhttp = false\n{restart}"),
        )
        .expect("write");
        let (code, said) = difference();
        assert_eq!(code, Some(2), "{said}");
        for part in ["flow_table.ipv4", "8192", "restart", "refused: "] {
            assert!(said.contains(part), "{said}");
        }
        let refused = config("check");
        assert!(!refused.status.success());
        let said = stderr(&refused);
        assert!(
            said.contains("`http`, `flow_table.ipv4` needs a restart"),
            "{said}"
        );

        fs::write(machine.config(), format!("{good}[vip.health]\n")).expect("write");
        let (code, said) = difference();
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("health") && !said.contains("weight"),
            "{said}"
        );
        fs::write(machine.config(), good).expect("mend it");
        // What is set by hand goes on.
        assert_eq!(difference(), (Some(0), String::new()));
        let taken = machine.client(&["reload"]);
        let said = String::from_utf8_lossy(&taken.stdout).into_owned();
        assert!(
            said.contains("2 values set by hand"),
            "{said}{}",
            stderr(&taken)
        );
        assert!(http_get("/metrics").contains("causeway_config_last_reload_successful 1.0"));
        let overrides = machine.json(&["override", "list"]);
        assert_eq!(overrides.as_array().map(Vec::len), Some(2), "{overrides}");
        let dropped = machine.client(&["override", "drop", "--all"]);
        assert!(dropped.status.success(), "{}", stderr(&dropped));
        drop(daemon);
        // Damaged state costs one sentence.
        fs::write(machine.path("state/state.json"), "{").expect("damage it");
        let _daemon = machine.start();
        machine.wait_for_log("starting without the drains, weights and states of health");
        let reals = &machine.json(&["vip", "show", "web"])["reals"];
        assert_eq!(reals[0]["state"], "active");
    });
}

/// Other hosts can wait, packets cannot.
#[test]
fn a_daemon_starts_without_the_files_of_its_api_and_a_reload_brings_them() {
    Machine::run(|machine| {
        let good = fs::read_to_string(machine.config()).expect("the configuration");
        let [certificate, key, tokens] =
            ["api.pem", "api.key", "tokens"].map(|of| machine.path(of));
        fs::write(
            machine.config(),
            format!(
                "{good}\n[api]\nlisten = \"127.0.0.1:9479\"\ncertificate = {certificate:?}\nkey = {key:?}\ntokens = {tokens:?}\n"
            ),
        )
        .expect("write");
        let _daemon = machine.start();
        machine.wait_for_log("other hosts are not served as [api] says until");
        let reals = &machine.json(&["vip", "show", "web"])["reals"];
        assert_eq!(reals[0]["state"], "active");
        let status = http_get("/v1/status");
        assert!(status.contains("api.key: cannot be read"), "{status}");
        assert!(http_get("/metrics").contains("causeway_config_last_reload_successful 0.0"));
        assert_eq!(machine.client(&["reload"]).status.code(), Some(1));

        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
        fs::write(&certificate, made.cert.pem()).expect("write");
        fs::write(&key, made.signing_key.serialize_pem()).expect("write");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
        let mut token = Command::new(BINARY);
        token.args(["token", "alice", "--add"]).arg(&tokens);
        assert!(token.output().expect("run causeway").status.success());
        let taken = machine.client(&["reload"]);
        assert!(taken.status.success(), "{}", stderr(&taken));
        assert!(http_get("/metrics").contains("causeway_config_last_reload_successful 1.0"));
        let let_in = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"])
            .arg(&certificate)
            .arg("https://127.0.0.1:9479/")
            .output()
            .expect("run curl");
        assert_eq!(String::from_utf8_lossy(&let_in.stdout), "200");
    });
}

/// What a reload refuses neither takes the VIPs down at the next start nor keeps the daemon down,
/// and no fault in the file keeps what runs from being taken down.
#[test]
fn a_start_takes_no_file_that_a_reload_refuses() {
    Machine::run(|machine| {
        let mut daemon = machine.start();
        let good = fs::read_to_string(machine.config()).expect("the configuration");
        let (empty, _) = good.split_once("[[vip]]").expect("a VIP");
        let elsewhere = good.replace("\"eth0\"", "\"eth7\"");
        for (file, why) in [(empty, "the file has no [[vip]]"), (&elsewhere, "eth7")] {
            fs::write(machine.config(), file).expect("write");
            let refused = machine.client(&["reload"]);
            assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
            daemon.signal(Signal::SIGKILL);
            assert!(!daemon.wait());
            daemon = machine.start();
            machine.wait_for_log("the copy of how it was last in force is used");
            assert!(machine.log().contains(why), "{}", machine.log());
            let reals = &machine.json(&["vip", "show", "web"])["reals"];
            assert_eq!(reals.as_array().map(Vec::len), Some(2), "{reals}");
        }
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait());
        fs::write(machine.config(), format!("{good}\n[broken")).expect("break it");
        let unloaded = machine.unload();
        assert!(unloaded.status.success(), "{}", stderr(&unloaded));
        // Now a file without VIPs may be meant.
        fs::write(machine.config(), empty).expect("write");
        let _daemon = machine.start();
        let vips = machine.json(&["vip", "list"]);
        assert_eq!(vips.as_array().map(Vec::len), Some(0), "{vips}");
    });
}

/// Two keepers would hand one slot to two CPUs.
#[test]
fn who_starts_by_the_copy_keeps_connection_slots_once() {
    Machine::run(|machine| {
        let text = fs::read_to_string(machine.config()).expect("the configuration");
        let stateful = "scheduler = \"maglev\"\nstateful = true\nforwarding = \"gue\"";
        let text = text
            .replace(
                "flow_table =",
                "stateful = { connections = 1024 }\nlimits = { reals = 2 }\nflow_table =",
            )
            .replace("scheduler = \"latency\"", stateful);
        fs::write(machine.config(), &text).expect("write");
        let daemon = machine.start();
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        // There is no room for them beside those that are there.
        let others = text.replace("\"10.0.0.", "\"10.0.1.");
        fs::write(machine.config(), others).expect("write");
        let daemon = machine.start();
        machine.wait_for_log("the copy of how it was last in force is used");
        assert!(machine.log().contains("limits.reals"), "{}", machine.log());
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).expect("threads");
        // A thread may end meanwhile.
        let comms = tasks.map(|task| task.expect("a thread").path().join("comm"));
        let names = comms.filter_map(|comm| fs::read_to_string(comm).ok());
        assert_eq!(names.filter(|name| name == "slots\n").count(), 1);
    });
}

/// A look copies all connections: many at a time would fill the memory, and any local user may
/// ask.
#[test]
fn the_heaviest_are_asked_for_one_at_a_time() {
    Machine::run(|machine| {
        let text = fs::read_to_string(machine.config()).expect("the configuration");
        let stateful = "scheduler = \"maglev\"\nstateful = true\nforwarding = \"gue\"";
        let text = text
            .replace(
                "flow_table =",
                "stateful = { connections = 1024 }\nflow_table =",
            )
            .replace("scheduler = \"latency\"", stateful);
        fs::write(machine.config(), text).expect("write");
        let _daemon = machine.start();
        let long = || {
            let mut command = Command::new(BINARY);
            command.args(["conns", "top", "--for", "10s", "--socket"]);
            command.arg(machine.path("run/lb.sock"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Daemon(command.spawn().expect("run causeway"))
        };
        let mut first = long();
        let told = || "never refused".to_owned();
        let refused = until(told, || {
            let second = machine.client(&["conns", "top", "--for", "1ms"]);
            if !second.status.success() {
                return Some(second);
            }
            // The second may have been the first.
            if first.0.try_wait().expect("a state").is_some() {
                first = long();
            }
            None
        });
        let said = stderr(&refused);
        assert!(
            said.contains("another request looks at the connections"),
            "{said}"
        );
        let many = machine.client(&["conns", "top", "--count", "5000"]);
        assert!(
            stderr(&many).contains("at most 1000 are named"),
            "{}",
            stderr(&many)
        );
        // The longest look there is.
        assert!(first.wait(), "it was not answered");
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

        // Before anything is attached, or the next start would take over what has learnt nothing.
        let keys = machine.write_keys();
        let reports = format!(
            "[agent_reports]\nlisten = \"198.51.100.1:9472\"\nkeys = \"{}\"\n[[vip]]\n",
            keys.display()
        );
        let reports = text.replace("[[vip]]\n", &reports);
        fs::write(&other, reports.replace("bpf/lb", "bpf/other")).expect("write");
        let said = refused(start(&other));
        assert!(
            said.contains("cannot listen for agents on 198.51.100.1:9472"),
            "{said}"
        );
        assert!(!machine.path("bpf/other").exists());

        fs::write(&other, text.replace("latency", "latancy")).expect("write");
        let said = refused(start(&other));
        assert!(
            said.contains("unknown scheduler `latancy`; did you mean `latency`?"),
            "{said}"
        );

        machine.unload();
        let mut nobody = start(&machine.config());
        nobody.uid(65_534).gid(65_534);
        for open in [machine.dir.path(), &machine.path("run")] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).expect("open a directory");
        }
        let said = refused(nobody);
        assert!(said.contains("root"), "{said}");
    });
}

#[test]
fn a_daemon_goes_on_with_a_gateway_that_is_silent_when_it_takes_over() {
    Machine::run(|machine| {
        let text = fs::read_to_string(machine.config()).expect("the configuration");
        let looked_up = text.replace("encap.gateway_mac = \"02:00:00:00:00:01\"\n", "");
        fs::write(machine.config(), looked_up).expect("write the configuration");
        ip("route add default via 10.9.0.1");
        let answers = |mac: &str| {
            ip(&format!(
                "neigh replace 10.9.0.1 lladdr {mac} dev eth0 nud permanent"
            ));
        };
        let next_hop = || {
            let stats = machine.json(&["stats"]);
            let hop = &stats["next_hop"][0];
            [&hop["state"], &hop["mac"]].map(|of| of.as_str().unwrap_or_default().to_owned())
        };
        let wait_for =
            |state: &str, mac: &str| wait(|| machine.log(), || next_hop() == [state, mac]);

        // What has never forwarded does not start.
        let first = Command::new(BINARY)
            .args(["lb", "-c"])
            .arg(machine.config())
            .output();
        let said = stderr(&first.expect("run causeway"));
        assert!(
            said.contains("the gateway 10.9.0.1 on eth0 did not answer"),
            "{said}"
        );
        assert!(!machine.xdp_is_attached());

        answers("02:00:00:00:00:07");
        let daemon = machine.start();
        wait_for("reachable", "02:00:00:00:00:07");
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        ip("neigh del 10.9.0.1 dev eth0");
        let _daemon = machine.start();
        wait_for("silent", "02:00:00:00:00:07");
        answers("02:00:00:00:00:09");
        wait_for("reachable", "02:00:00:00:00:09");
    });
}

/// With the rights that the unit leaves a daemon that serves.
#[test]
fn an_interface_that_changes_under_the_daemon_is_followed() {
    Machine::run(|machine| {
        let _daemon = machine.start_by(units::confined("causeway-lb", BINARY));
        let up = || http_get("/metrics").contains("causeway_data_plane_up 1.0");
        let wait_until_up = |wanted: bool| wait(|| machine.log(), || up() == wanted);
        ip("link set eth0 mtu 1400");
        machine.wait_for_log("MTU 1400");
        ip("addr del 10.9.0.2/24 dev eth0");
        machine.wait_for_log("of ipv4 reals is of no use, as there is no source address");
        let told = machine.client(&["status"]);
        assert_eq!(told.status.code(), Some(1));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let lost = "there is no source address for packets to ipv4 reals, which are dropped";
        assert!(told.contains(lost), "{told}");
        ip("addr add 10.9.0.3/24 dev eth0");
        machine.wait_for_log("the outer source address is 10.9.0.3");
        machine.wait_for_log("the next hop of ipv4 reals is configured again");
        ip("link del eth0");
        machine.wait_for_log("the interface eth0 is gone");
        wait_until_up(false);
        let status = http_get("/v1/status");
        assert!(status.contains("\"data_plane_error\":\"the interface eth0 is gone"));
        ip("link add eth0 type veth peer name peer0");
        machine.wait_for_log("interface eth0 was removed and is there again");
        // As it comes.
        machine.wait_for_log("the interface eth0 is down");
        let told = machine.client(&["status"]);
        assert_eq!(told.status.code(), Some(1));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("trouble: the interface eth0 is down, and no packet is forwarded: turn it on by `ip link set eth0 up`\n"), "{told}");
        ip("link set peer0 up");
        ip("link set eth0 up");
        wait_until_up(true);
        assert!(machine.xdp_is_attached());
        fs::remove_dir_all(machine.path("bpf/lb")).expect("remove the pins");
        machine.wait_for_log("pins of the data plane were removed");
        assert!(machine.path("bpf/lb/link_lb").exists());
    });
}

#[test]
fn a_host_has_a_balancer_for_each_interface() {
    Machine::run(|machine| {
        ip("link add eth1 type veth peer name peer1");
        ip("link set peer1 up");
        ip("link set eth1 up");
        ip("addr add 10.9.2.2/24 dev eth1");
        let first = fs::read_to_string(machine.config()).expect("the file");
        let first = first.replace("\"latency\"", "\"maglev\"");
        let first = format!("hash_key = \"00112233445566778899aabbccddeeff\"\n{first}");
        fs::write(machine.config(), &first).expect("write the file");
        let mut second = format!("http = false\n{first}");
        for (of_one, of_other) in [
            ("\"eth0\"", "\"eth1\""),
            ("bpf/lb\"", "bpf/lb1\""),
            ("state\"", "state1\""),
            ("lb.sock\"", "lb1.sock\""),
        ] {
            assert_eq!(second.matches(of_one).count(), 1, "{second}");
            second = second.replace(of_one, of_other);
        }
        let other = machine.path("lb1.toml");
        fs::write(&other, &second).expect("write the file");
        let daemon = machine.start();
        let beside = Command::new(BINARY)
            .args(["lb", "-c"])
            .arg(&other)
            .stderr(fs::File::create(machine.path("log1")).expect("a log"))
            .spawn();
        let beside = Daemon(beside.expect("start causeway lb"));
        let log = || fs::read_to_string(machine.path("log1")).unwrap_or_default();
        wait(log, || log().contains("serving on"));
        assert!(log().contains("attached to eth1"), "{}", log());
        assert!(machine.xdp_is_attached() && ip("-d link show eth1").contains("prog/xdp"));

        // Routers may send a connection by either.
        let sent_to = |config: &Path, client: &str| {
            let output = Command::new(BINARY)
                .args([
                    "trace", client, "web", "--packet", "syn", "-o", "json", "-c",
                ])
                .arg(config)
                .output()
                .expect("run causeway");
            assert!(output.status.success(), "{}", stderr(&output));
            let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            said["sent_to"].as_str().expect("a real").to_owned()
        };
        let mut reals = std::collections::BTreeSet::new();
        for port in 4000..4016 {
            let client = format!("198.51.100.7:{port}");
            let real = sent_to(&machine.config(), &client);
            assert_eq!(real, sent_to(&other, &client), "{client}");
            reals.insert(real);
        }
        assert_eq!(reals.len(), 2);

        // One that goes leaves the other what it has.
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        assert!(machine.unload().status.success());
        assert!(!machine.xdp_is_attached() && ip("-d link show eth1").contains("prog/xdp"));
        drop(beside);
    });
}
