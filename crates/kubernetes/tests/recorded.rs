// SPDX-License-Identifier: Apache-2.0
//! The controller as a process, against recorded answers of a kube-apiserver 1.37.2 and a daemon
//! that reads the file as the balancer does.

mod replay;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use replay::api_server::ApiServer;
use replay::daemon::Daemon;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running controller; killed when dropped.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    dir: tempfile::TempDir,
    server: ApiServer,
    daemon: Daemon,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start(&dir.path().join("lb.sock"), &dir.path().join("lb.toml"));
        Self {
            server: ApiServer::start(),
            daemon,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_base(&self, scheduler: &str) {
        let text = format!(
            "interface = \"lo\"\nencap.gateway_mac = \"02:00:00:00:00:01\"\n\n[defaults]\nscheduler = \"{scheduler}\"\n\n\
             [[vip]]\nname = \"mine\"\naddress = \"192.0.2.9\"\nport = 80\nreal = [{{ address = \"10.9.0.1\" }}]\n"
        );
        fs::write(self.path("base.toml"), text).expect("write the base");
    }

    fn start(&self) -> Controller {
        let dir = self.dir.path().display();
        let text = format!(
            "server = \"http://{}\"\npool = [\"192.0.2.8/29\", \"2001:db8:1::/120\"]\nbase = \"{dir}/base.toml\"\n\
             file = \"{dir}/lb.toml\"\nsocket = \"{dir}/lb.sock\"\nmember = \"lb1\"\n",
            self.server.address()
        );
        fs::write(self.path("kubernetes.toml"), text).expect("write the settings");
        let log = fs::File::create(self.path("log")).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_causeway-kubernetes"))
            .arg("-c")
            .arg(self.path("kubernetes.toml"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn();
        Controller(child.expect("start the controller"))
    }

    /// Waits until something holds.
    fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "not seen: {what}\nlog: {}\nasked: {:#?}\nservices: {:#}\nfile: {}",
                fs::read_to_string(self.path("log")).unwrap_or_default(),
                self.server.asked(),
                self.server.services(),
                fs::read_to_string(self.path("lb.toml")).unwrap_or_default(),
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ingress(&self, name: &str) -> Value {
        let services = self.server.services();
        services[name]["status"]["loadBalancer"]["ingress"].clone()
    }

    /// The reals of a VIP that the daemon has, and whether each drains.
    fn reals(&self, vip: &str) -> Value {
        self.daemon.vips()[vip].clone()
    }
}

#[test]
fn recorded_answers_become_vips_statuses_and_events() {
    let world = World::new();
    world.write_base("p2c");
    let _controller = world.start();

    world.wait("the dual-stack Service in the status", |world| {
        let ports = json!([
            { "port": 80, "protocol": "TCP" },
            { "port": 443, "protocol": "UDP" },
        ]);
        // The operator's own address, 192.0.2.9, is not given out.
        world.ingress("web")
            == json!([
                { "ip": "192.0.2.10", "ipMode": "VIP", "ports": ports },
                { "ip": "2001:db8:1::", "ipMode": "VIP", "ports": ports },
            ])
    });
    // Affinity does not go with this scheduler: one Event, and nobody is hindered.
    world.wait("an Event about what the balancer refuses", |world| {
        let mut events = world.server.events().into_iter();
        events.any(|event| {
            event["involvedObject"]["name"] == "shop"
                && event["reason"] == "Refused"
                && event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("affinity"))
        })
    });
    assert_eq!(world.ingress("shop"), Value::Null);
    assert!(
        world.daemon.vips()["mine"].is_object(),
        "the operator's own"
    );

    // The operator mends it.
    world.write_base("latency");
    world.wait("the mended Service in the status", |world| {
        world.ingress("shop")[0]["ports"] == json!([{ "port": 8080, "protocol": "TCP" }])
    });
    // n1's endpoint has ended since the list; n3 has become ready; n4 is excluded.
    world.wait("endpoints and nodes of the watches", |world| {
        world.reals("default/shop:8080/tcp")["10.0.0.2"] == json!(false)
            && world.reals("default/web:80/tcp")
                == json!({ "10.0.0.1": false, "10.0.0.2": false, "10.0.0.3": false })
            && world.reals("default/web:80/tcp/ipv6")
                == json!({ "fd00::1": false, "fd00::2": false, "10.0.0.3": false })
    });
    // One that was added by a watch, and is in the list after the watch was lost.
    world.wait("the Service of the watch, but for SCTP", |world| {
        let ingress = world.ingress("dns");
        ingress[0]["ports"]
            == json!([
                { "port": 53, "protocol": "UDP" },
                { "port": 53, "protocol": "TCP" },
                { "port": 5060, "protocol": "SCTP", "error": "causeway.dev/ProtocolNotSupported" },
            ])
    });
    // The watch was cut in the middle of a line and went on from the bookmark; what the server
    // no longer knew was listed again.
    let watches: Vec<String> = world.server.watches("services");
    assert_eq!(watches[1], replay::bookmark("services"), "{watches:?}");
    assert_eq!(
        world.server.lists("services"),
        2,
        "{:?}",
        world.server.asked()
    );
    assert_eq!(world.ingress("other"), Value::Null, "another class");

    // Deleted: it stays until the balancer has let go of it.
    world.daemon.hold(true);
    world.server.delete("shop");
    world.wait("a deletion that waits for the balancer", |world| {
        let file = fs::read_to_string(world.path("lb.toml")).expect("the file");
        !file.contains("default/shop")
    });
    assert!(world.server.services()["shop"].is_object());
    world.daemon.hold(false);
    world.wait("the Service gone", |world| {
        world.server.services()["shop"].is_null()
    });
    assert!(world.daemon.vips()["default/shop:8080/tcp"].is_null());
}

#[test]
fn a_daemon_of_another_file_is_told_in_the_log_and_nothing_is_promised() {
    let world = World::new();
    world.write_base("latency");
    world
        .daemon
        .goes_by(Path::new("/etc/causeway/causeway.toml"));
    let _controller = world.start();
    world.wait("the remedy in the log", |world| {
        let log = fs::read_to_string(world.path("log")).unwrap_or_default();
        log.contains("it goes by /etc/causeway/causeway.toml, not by")
    });
    assert_eq!(world.ingress("web"), Value::Null);
}
