// SPDX-License-Identifier: Apache-2.0
//! The commands over TLS against a daemon, and what its log has of that.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

impl Machine {
    /// Runs a command that asks the daemon over TLS with this token.
    fn remote(&self, arguments: &[&str], token: &str) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .args(["--api", "https://10.9.0.2:9470", "--ca"])
            .arg(self.path("api.pem"))
            .arg("--token-file")
            .arg(self.path(token))
            .output()
            .expect("run causeway")
    }

    /// A certificate and its key, and the table that names them, at this port.
    fn table(&self, name: &str, port: u16) -> String {
        let made = rcgen::generate_simple_self_signed(["10.9.0.2".to_owned()]);
        let made = made.expect("a certificate");
        fs::write(self.path("api.pem"), made.cert.pem()).expect("write");
        fs::write(self.path("api.key"), made.signing_key.serialize_pem()).expect("write");
        let own = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path("api.key"), own).expect("keep it");
        let dir = self.dir.path().display();
        format!(
            "[{name}]\nlisten = \"10.9.0.2:{port}\"\ncertificate = \"{dir}/api.pem\"\nkey = \"{dir}/api.key\"\ntokens = \"{dir}/tokens\"\n"
        )
    }

    /// Has an agent or a tunnel read its file, then a broken one, and looks at what `status` says.
    fn reload_and_see(&self, command: &str, file: &std::path::Path) {
        let own = |action: &str| {
            let socket = self.path(&format!("run/{command}.sock"));
            let mut own = Command::new(BINARY);
            own.args([command, action, "--socket"]).arg(socket);
            own.output().expect("run causeway")
        };
        let whole = |of: &Output| String::from_utf8_lossy(&of.stdout).into_owned() + &stderr(of);
        let reloaded = own("reload");
        assert!(whole(&reloaded).starts_with("reloaded: "), "{reloaded:?}");
        let before = own("status");
        // No other end answers this tunnel, and no address of this server is the VIP.
        let expected = match command {
            "agent" => "trouble: this server does not hold the VIP 192.0.2.1, ",
            _ => "trouble: the other end has not answered yet",
        };
        assert_eq!(before.status.code(), Some(1), "{before:?}");
        assert!(whole(&before).contains(expected), "{before:?}");
        assert!(
            whole(&before).contains(&format!("{command} 0.")),
            "{before:?}"
        );

        let text = fs::read_to_string(file).expect("the file");
        fs::write(file, text.clone() + "nonsense = 1\n").expect("write");
        let refused = own("reload");
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(
            whole(&refused).contains("unknown key `nonsense`"),
            "{refused:?}"
        );
        let after = own("status");
        assert_eq!(after.status.code(), Some(1), "{after:?}");
        let told = "the last reload was refused, and what was before holds: ";
        assert!(whole(&after).contains(told), "{after:?}");
        // Others may as admins.
        let remote = self.remote(&[command, "reload"], "vera");
        assert!(stderr(&remote).contains("this needs admin"), "{remote:?}");
        fs::write(file, text).expect("write");
        assert!(own("reload").status.success());
    }

    /// Makes a token, as an operator does.
    fn token(&self, name: &str, role: &str) {
        let made = Command::new(BINARY)
            .args(["token", name, "--role", role, "--add"])
            .arg(self.path("tokens"))
            .output()
            .expect("run causeway");
        assert!(made.status.success(), "{}", stderr(&made));
        fs::write(self.path(name), made.stdout).expect("write the token");
        let own = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(name), own).expect("keep it");
    }
}

#[test]
fn other_hosts_do_what_their_tokens_may() {
    Machine::run(|machine| {
        let table = machine.table("api", 9470);
        machine.token("vera", "viewer");
        machine.token("otto", "operator");
        let text = fs::read_to_string(machine.config()).expect("the configuration");
        fs::write(machine.config(), text + &table).expect("write");
        let _daemon = machine.start();

        let seen = machine.remote(&["stats", "-o", "json"], "vera");
        assert!(seen.status.success(), "{}", stderr(&seen));
        let drain = ["real", "drain", "web", "10.0.0.1"];
        let refused = machine.remote(&drain, "vera");
        assert!(!refused.status.success());
        let sentence = stderr(&refused);
        assert!(sentence.contains("this needs operator"), "{sentence}");
        let done = machine.remote(&drain, "otto");
        assert!(done.status.success(), "{}", stderr(&done));
        let own = machine.client(&["real", "weight", "web", "10.0.0.2", "3"]);
        assert!(own.status.success(), "{}", stderr(&own));
        for line in [
            "who=vera (viewer) from 10.9.0.2 what=PATCH /v1/vips/web/reals/10.0.0.1",
            "changed who=otto (operator) from 10.9.0.2 what=PATCH /v1/vips/web/reals/10.0.0.1 with={\"drain\":true} result=200",
            "changed who=user 0 on the socket what=PATCH /v1/vips/web/reals/10.0.0.2 with={\"weight\":3} result=200",
        ] {
            assert!(machine.log().contains(line), "{line}\n{}", machine.log());
        }

        // A token is there from the next reload on, and gone from the one after that.
        machine.token("ada", "admin");
        assert!(!machine.remote(&["reload"], "ada").status.success());
        let reloaded = machine.client(&["reload"]);
        assert!(reloaded.status.success(), "{}", stderr(&reloaded));
        let by_ada = machine.remote(&["reload"], "ada");
        assert!(by_ada.status.success(), "{}", stderr(&by_ada));
        let tokens = fs::read_to_string(machine.path("tokens")).expect("tokens");
        let lines = tokens.lines().filter(|line| !line.starts_with("otto"));
        let tokens: Vec<&str> = lines.collect();
        fs::write(machine.path("tokens"), tokens.join("\n")).expect("write");
        assert!(machine.remote(&["reload"], "ada").status.success());
        let unknown = stderr(&machine.remote(&["stats"], "otto"));
        assert!(unknown.contains("not known here"), "{unknown}");
    });
}

/// A server's agent and a tunnel's end serve other hosts as the balancer does.
#[test]
fn agents_and_tunnels_serve_other_hosts_too() {
    Machine::run(|machine| {
        machine.token("vera", "viewer");
        let dir = machine.dir.path().display();
        for (command, table, look, config) in [
            (
                "agent",
                "agent.api",
                ["agent", "stats"],
                format!(
                    "[agent]\ninterface = \"eth0\"\naddresses = [\"10.9.0.2\"]\nvips = [\"192.0.2.1\"]\nbalancers = [\"10.9.0.1\"]\n\
                     pin_dir = \"{dir}/bpf/agent\"\nstate_dir = \"{dir}/state\"\nsocket = \"{dir}/run/agent.sock\"\n"
                ),
            ),
            (
                "tunnel",
                "tunnel.api",
                ["tunnel", "stats"],
                format!(
                    "[tunnel]\ndevice = \"cw0\"\naddresses = [\"10.5.0.1/24\"]\nkeys = \"none\"\nstate_dir = \"{dir}/state\"\nsocket = \"{dir}/run/tunnel.sock\"\n\
                     [[tunnel.path]]\nid = 0\nlocal = \"10.9.0.2:7000\"\nremote = \"10.9.0.1:7000\"\n"
                ),
            ),
        ] {
            let table = machine.table(table, 9470);
            let file = machine.path("other.toml");
            fs::write(&file, config + &table).expect("write");
            let log = fs::File::create(machine.path("log")).expect("a log");
            let daemon = Daemon(
                Command::new(BINARY)
                    .args([command, "-c"])
                    .arg(&file)
                    .stdin(Stdio::null())
                    .stderr(log)
                    .spawn()
                    .expect("start the daemon"),
            );
            let ask = || machine.remote(&[look[0], look[1], "-o", "json"], "vera");
            let told = || format!("{}{}", stderr(&ask()), machine.log());
            let seen = until(told, || Some(ask()).filter(|seen| seen.status.success()));
            let value: Value = serde_json::from_slice(&seen.stdout).expect("JSON");
            assert!(value.is_object(), "{value}");
            machine.reload_and_see(command, &file);
            // Without a token, nothing; by another authority's certificate, no client.
            fs::write(machine.path("guess"), "guess\n").expect("write");
            let own = fs::Permissions::from_mode(0o600);
            fs::set_permissions(machine.path("guess"), own).expect("keep it");
            let unknown = stderr(&machine.remote(&look, "guess"));
            assert!(unknown.contains("not known here"), "{command}: {unknown}");
            machine.table("other", 1);
            let untrusted = machine.remote(&look, "vera");
            assert!(!untrusted.status.success(), "{command}");
            drop(daemon);
        }
    });
}

/// A member of the socket's group may do what an operator may, and a reload changes the group.
#[test]
fn the_socket_lets_its_group_in() {
    Machine::run(|machine| {
        let group = |name: &str| nix::unistd::Group::from_name(name).expect("look it up");
        let (daemon, users) = ("daemon", "users");
        let id = |name: &str| group(name).expect("a group of every Debian").gid.as_raw();
        let with_group = |name: &str| {
            machine.write_config("");
            let text = fs::read_to_string(machine.config()).expect("the configuration");
            fs::write(
                machine.config(),
                format!("socket_group = \"{name}\"\n{text}"),
            )
            .expect("write");
        };
        // The test's own directories are root's.
        let open = || fs::Permissions::from_mode(0o755);
        fs::set_permissions(machine.dir.path(), open()).expect("open it");
        fs::copy(BINARY, machine.path("causeway")).expect("a copy");
        let as_member = |group: &str, arguments: &[&str]| {
            let mut command = Command::new(machine.path("causeway"));
            command
                .args(arguments)
                .arg("--socket")
                .arg(machine.path("run/lb.sock"));
            command.uid(65_534).gid(id(group));
            command.output().expect("run causeway")
        };

        with_group(daemon);
        let running = machine.start();
        let socket = || fs::metadata(machine.path("run/lb.sock")).expect("the socket");
        assert_eq!(
            (socket().gid(), socket().mode() & 0o777),
            (id(daemon), 0o660)
        );
        let seen = as_member(daemon, &["stats"]);
        assert!(seen.status.success(), "{}", stderr(&seen));
        assert!(as_member(daemon, &["status"]).status.code() != Some(3));
        let drained = as_member(daemon, &["real", "drain", "web", "10.0.0.1"]);
        assert!(drained.status.success(), "{}", stderr(&drained));
        let refused = as_member(daemon, &["vip", "del", "web"]);
        assert!(!refused.status.success());
        let told = stderr(&refused);
        assert!(
            told.contains("user 65534 on the socket has the role operator; this needs admin"),
            "{told}"
        );
        assert!(!as_member(users, &["stats"]).status.success());

        with_group(users);
        running.signal(Signal::SIGHUP);
        machine.wait_for_log("reloaded: ");
        assert_eq!(socket().gid(), id(users));
        assert!(as_member(users, &["stats"]).status.success());
        assert!(!as_member(daemon, &["stats"]).status.success());

        with_group("no-such-group");
        let told = machine.client(&["reload"]);
        assert!(stderr(&told).contains("there is no group `no-such-group` on this machine; make one by `groupadd --system no-such-group`"), "{told:?}");
        assert_eq!(socket().gid(), id(users));
    });
}
