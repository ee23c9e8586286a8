// SPDX-License-Identifier: Apache-2.0
//! The controller as a process, against recorded answers of a kube-apiserver 1.37.2 and a daemon
//! that reads the file as the balancer does.

mod replay;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use replay::api_server::ApiServer;
use replay::daemon::Daemon;

const TIMEOUT: Duration = Duration::from_secs(60);
/// The operator's own VIP.
const MINE: &str = "[[vip]]\nname = \"mine\"\naddress = \"192.0.2.9\"\nport = 80\nreal = [{ address = \"10.9.0.1\" }]\n";

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
        self.write_base_with("", scheduler, MINE);
    }

    /// A base with these keys and VIPs.
    fn write_base_with(&self, keys: &str, scheduler: &str, vips: &str) {
        let text = format!(
            "interface = \"lo\"\n{keys}encap.gateway_mac = \"02:00:00:00:00:01\"\n\n[defaults]\nscheduler = \"{scheduler}\"\n\n{vips}"
        );
        fs::write(self.path("base.toml"), text).expect("write the base");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// What the controller has written.
    fn file(&self) -> String {
        fs::read_to_string(self.path("lb.toml")).unwrap_or_default()
    }

    /// Whether an Event says of a Service that the balancer refuses something.
    fn is_told(&self, name: &str) -> bool {
        let mut events = self.server.events().into_iter();
        events.any(|event| event["involvedObject"]["name"] == name && event["reason"] == "Refused")
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
        let log = world.log();
        log.contains("it goes by /etc/causeway/causeway.toml, not by")
    });
    assert_eq!(world.ingress("web"), Value::Null);
    // Another controller's balancer may be well: the lease is left to it.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(world.server.lease(), None);
    world.daemon.goes_by(&world.path("lb.toml"));
    world.wait("the status", |world| !world.ingress("web").is_null());
    assert!(world.server.lease().is_some());
}

#[test]
fn without_vips_of_the_operators_the_first_refusal_and_the_last_deletion_hinder_nothing() {
    let world = World::new();
    // Affinity, which `shop` has, does not go with this scheduler.
    world.write_base_with("", "p2c", "");
    let _controller = world.start();
    world.wait("those that can be served in their statuses", |world| {
        !world.ingress("web").is_null() && !world.ingress("dns").is_null()
    });
    world.wait("the refusal", |world| world.is_told("shop"));
    for name in ["web", "dns", "shop"] {
        world.server.delete(name);
    }
    world.wait("the last VIP gone", |world| {
        let services = world.server.services();
        world.daemon.vips() == json!({}) && services["web"].is_null() && services["dns"].is_null()
    });
}

#[test]
fn a_service_keeps_what_it_has_when_its_change_is_refused() {
    let world = World::new();
    world.write_base_with("", "p2c", "");
    let _controller = world.start();
    world.wait("those that can be served in their statuses", |world| {
        !world.ingress("web").is_null() && !world.ingress("dns").is_null()
    });
    let (ingress, reals) = (world.ingress("web"), world.reals("default/web:80/tcp"));
    let affinity = json!({ "spec": { "sessionAffinity": "ClientIP" } });
    world.server.change("web", affinity);
    world.wait("the refusal", |world| world.is_told("web"));
    let mut events = world.server.events().into_iter();
    let event = events.find(|of| of["involvedObject"]["name"] == "web");
    let event = event.expect("an Event")["message"].clone();
    let begin = "the balancer does not take its change, and goes on with what it has: ";
    assert!(
        event.as_str().is_some_and(|of| of.starts_with(begin)),
        "{event}"
    );
    thread::sleep(Duration::from_secs(1));
    assert_eq!(world.reals("default/web:80/tcp"), reals);
    assert_eq!(world.ingress("web"), ingress);

    // What it has goes only if that is refused, too.
    world.write_base_with("", "latency", "");
    world.wait("the change", |world| {
        world.file().contains("affinity = \"client\"") && world.ingress("shop") != Value::Null
    });
    world.write_base_with("", "p2c", "");
    world.wait("the VIPs gone that do not go with the new base", |world| {
        let vips = world.daemon.vips();
        vips["default/web:80/tcp"].is_null()
            && vips["default/shop:8080/tcp"].is_null()
            && vips["default/dns:53/udp"].is_object()
    });
}

#[test]
fn a_base_that_waits_for_a_restart_is_in_the_file_and_the_cluster_is_followed_without_it() {
    let world = World::new();
    world.write_base("latency");
    let controller = world.start();
    world.wait("all in their statuses", |world| {
        let names = ["dns", "shop", "web"];
        names.iter().all(|name| !world.ingress(name).is_null())
    });
    world.write_base_with("unserved = \"pass\"\n", "latency", "");
    let sentence = "restart causeway-lb: `unserved` has changed";
    world.wait("what to do in the log", |world| {
        world.log().contains(sentence)
    });
    world.wait("the new base in the file", |world| {
        world.file().contains("unserved") && world.file().contains("default/shop")
    });
    world.server.delete("shop");
    world.wait("the Service gone", |world| {
        world.server.services()["shop"].is_null()
    });
    assert!(world.daemon.vips()["default/shop:8080/tcp"].is_null());
    assert!(
        world.daemon.vips()["mine"].is_object(),
        "by the base that is in force"
    );
    world.wait("the new base in the file again", |world| {
        world.file().contains("unserved") && !world.file().contains("default/shop")
    });
    assert_eq!(world.log().matches(sentence).count(), 1);

    // The next controller does so, too.
    drop(controller);
    let _controller = world.start();
    world.wait("what to do in its log", |world| {
        world.log().contains(sentence)
    });
    world.server.delete("dns");
    world.wait("the second Service gone", |world| {
        world.server.services()["dns"].is_null()
    });
    assert!(world.daemon.vips()["mine"].is_object());
    world.wait("the new base in the file once more", |world| {
        world.file().contains("unserved") && !world.file().contains("default/dns")
    });

    world.daemon.restart();
    assert!(world.daemon.vips()["mine"].is_null(), "the new base");
    assert!(world.daemon.vips()["default/web:80/tcp"].is_object());
    world.server.delete("web");
    world.wait("the third Service gone", |world| {
        world.server.services()["web"].is_null()
    });
}

#[test]
fn a_deleted_service_is_released_though_a_fleet_holds_what_has_cookies() {
    let world = World::new();
    let keys = world.path("cookie.keys");
    fs::write(&keys, format!("current = 0\nkey0 = \"{:032x}\"\n", 1)).expect("write the keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).expect("permissions");
    let keys = format!(
        "cookie.keys = \"{}\"\nfleet = {{ name = \"edge\", member = \"lb1\", store = {{ dir = \"/nowhere\" }} }}\n",
        keys.display()
    );
    world.write_base_with(&keys, "latency", MINE);
    let _controller = world.start();
    world.wait("all in their statuses", |world| {
        let names = ["dns", "shop", "web"];
        names.iter().all(|name| !world.ingress(name).is_null())
    });
    world.server.delete("shop");
    world.wait("the Service gone", |world| {
        world.server.services()["shop"].is_null()
    });
    assert!(world.daemon.vips()["default/web:80/tcp"].is_object());
}

#[test]
fn a_service_that_the_api_server_lets_nobody_change_does_not_hinder_the_others() {
    let world = World::new();
    world.write_base("latency");
    // It comes before `web`.
    world.server.lock("shop");
    let _controller = world.start();
    world.wait("the other one in the status", |world| {
        !world.ingress("web").is_null()
    });
    assert_eq!(world.ingress("shop"), Value::Null);
    world.wait("what was refused in the log", |world| {
        let log = world.log();
        log.contains("default/shop cannot be written: 403: a webhook denied the request")
    });
}

/// Their pauses would add up to more than the test's time, were each longer than the one before.
#[test]
fn watches_that_break_behind_a_bookmark_go_on_from_it_without_longer_pauses() {
    let world = World::new();
    world.write_base("latency");
    let bookmarks: Vec<String> = (20_000..20_012).map(|at| at.to_string()).collect();
    let last_first = bookmarks.iter().rev().cloned().collect();
    world.server.break_watches(last_first);
    let _controller = world.start();
    world.wait("the watch behind the last bookmark", |world| {
        let watches = world.server.watches("nodes");
        watches.last() == bookmarks.last()
    });
    assert_eq!(world.server.watches("nodes")[1..], bookmarks);
    assert!(
        !world.log().contains("nodes cannot be followed"),
        "{}",
        world.log()
    );
}
