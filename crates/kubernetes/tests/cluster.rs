// SPDX-License-Identifier: Apache-2.0
//! A real kube-apiserver with Debian's etcd, and a real balancer, in namespaces of their own. It
//! needs KUBE_APISERVER, which scripts/kube-apiserver builds, and the binary `causeway` beside the
//! controller's: `scripts/test-long kubernetes` has both.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

const CONTROLLER: &str = env!("CARGO_BIN_EXE_causeway-kubernetes");
const TIMEOUT: Duration = Duration::from_secs(90);
const ADMIN: &str = "admin-token";
const SERVER: &str = "https://127.0.0.1:6443";
/// A node that answers: this machine itself.
const NODE: &str = "10.9.0.2";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A machine of its own.
struct Machine {
    dir: tempfile::TempDir,
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn ip(arguments: &str) {
    let output = run("ip", &arguments.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

impl Machine {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .expect("this test needs root: it makes namespaces and loads BPF programs");
        let none = None::<&str>;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(none, "/", none, private, none).expect("make mounts private");
        let dir = tempfile::tempdir().expect("a directory");
        let machine = Self { dir };
        fs::create_dir(machine.path("bpf")).expect("a mount point");
        let flags = MsFlags::empty();
        mount(none, &machine.path("bpf"), Some("bpf"), flags, none).expect("mount bpffs");
        for step in [
            "link set lo up",
            "link add eth0 type veth peer name peer0",
            "link set peer0 up",
            "link set eth0 up",
            "addr add 10.9.0.2/24 dev eth0",
        ] {
            ip(step);
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn last_lines(&self, name: &str) -> String {
        let text = self.text(name);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn spawn(&self, program: &Path, arguments: &[&str], log: &str) -> Process {
        let log = fs::File::create(self.path(log)).expect("a log");
        let child = Command::new(program)
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn();
        Process(child.unwrap_or_else(|error| panic!("{}: {error}", program.display())))
    }

    fn wait<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "not seen: {what}\nAPI server: {}\ncontroller: {}\nbalancer: {}\nservices: {}\nfile: {}",
                self.last_lines("apiserver.log"),
                self.text("controller.log"),
                self.text("lb.log"),
                self.kube("GET", SERVICES, None).1,
                self.text("causeway.toml"),
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Asks the API server as its administrator.
    fn kube(&self, method: &str, path: &str, body: Option<(&str, &str)>) -> (bool, Value) {
        let mut command = Command::new("curl");
        command.args(["-sk", "-m", "20", "-X", method, "-w", "\n%{http_code}"]);
        command.args(["-H", &format!("Authorization: Bearer {ADMIN}")]);
        if let Some((kind, body)) = body {
            command.args([
                "-H",
                &format!("Content-Type: {kind}"),
                "--data-binary",
                body,
            ]);
        }
        let output = command
            .arg(format!("{SERVER}{path}"))
            .output()
            .expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap_or(("", ""));
        let value = serde_json::from_str(body).unwrap_or(Value::Null);
        (code.starts_with('2'), value)
    }

    fn make(&self, path: &str, object: &Value) {
        let made = self.kube(
            "POST",
            path,
            Some(("application/json", &object.to_string())),
        );
        assert!(made.0, "{object}: {}", made.1);
    }

    fn patch(&self, path: &str, patch: &Value) {
        let kind = "application/merge-patch+json";
        let done = self.kube("PATCH", path, Some((kind, &patch.to_string())));
        assert!(done.0, "{patch}: {}", done.1);
    }

    fn service(&self, name: &str) -> Option<Value> {
        let (found, service) = self.kube("GET", &format!("{SERVICES}/{name}"), None);
        found.then_some(service)
    }

    /// The first address of a Service's status.
    fn address(&self, name: &str) -> Option<String> {
        let service = self.service(name)?;
        let ip = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
        ip.as_str().map(str::to_owned)
    }

    fn node(&self, name: &str, address: &str) {
        self.make("/api/v1/nodes", &json!({ "metadata": { "name": name } }));
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.patch(&format!("/api/v1/nodes/{name}/status"), &status);
    }

    fn causeway(&self, arguments: &[&str]) -> Option<Value> {
        let socket = self.path("lb.sock");
        let output = Command::new(causeway())
            .args(arguments)
            .args(["-o", "json", "--socket"])
            .arg(socket)
            .output()
            .expect("causeway");
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// The reals of a VIP of the balancer with their states; `None` without the VIP.
    fn reals(&self, vip: &str) -> Option<Vec<(String, String)>> {
        let vip = self.causeway(&["vip", "show", vip])?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reals = vip["reals"].as_array()?.iter();
        let mut reals: Vec<_> = reals
            .map(|of| (word(&of["address"]), word(&of["state"])))
            .collect();
        reals.sort();
        Some(reals)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Without this the directory cannot be removed.
        let _ = umount2(&self.path("bpf"), MntFlags::MNT_DETACH);
    }
}

/// The balancer's binary, which is built into the same directory.
fn causeway() -> PathBuf {
    Path::new(CONTROLLER).with_file_name("causeway")
}

fn load_balancer(more: &Value, ports: &Value) -> Value {
    let mut spec = json!({
        "type": "LoadBalancer", "loadBalancerClass": "causeway.dev/lb", "ports": ports,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

fn endpoints(of: &[(&str, bool)]) -> Value {
    let endpoints = of.iter().enumerate().map(|(at, (node, ready))| {
        json!({
            "addresses": [format!("10.244.0.{}", at + 1)], "nodeName": node,
            "conditions": { "ready": ready, "serving": true, "terminating": !ready },
        })
    });
    endpoints.collect()
}

/// Answers as kube-proxy does where a node has three endpoints of a Service.
fn says_three(port: u16) {
    let listener = TcpListener::bind((NODE, port)).expect("the health-check node port");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let head = "HTTP/1.1 200 OK\r\nX-Load-Balancing-Endpoint-Weight: 3\r\n";
            let _ = stream.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes());
        }
    });
}

/// Starts etcd and the API server, and applies the manifest.
fn cluster(machine: &Machine) -> [Process; 2] {
    let apiserver = std::env::var_os("KUBE_APISERVER");
    let apiserver =
        PathBuf::from(apiserver.expect("KUBE_APISERVER: scripts/kube-apiserver prints it"));
    let etcd = machine.spawn(
        Path::new("etcd"),
        &["--data-dir", "etcd", "--unsafe-no-fsync"],
        "etcd.log",
    );
    let key = run("openssl", &["genrsa", "2048"]);
    fs::write(machine.path("sa.key"), key.stdout).expect("a key");
    fs::write(
        machine.path("tokens.csv"),
        format!("{ADMIN},admin,1,\"system:masters\"\n"),
    )
    .expect("tokens");
    let server = machine.spawn(
        &apiserver,
        &[
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=sa.key",
            "--service-account-signing-key-file=sa.key",
            "--authorization-mode=RBAC",
            "--token-auth-file=tokens.csv",
            "--cert-dir=certs",
            "--bind-address=127.0.0.1",
            "--advertise-address=10.9.0.2",
            "--secure-port=6443",
        ],
        "apiserver.log",
    );
    machine.wait("the API server", |machine| {
        machine
            .kube("GET", "/api/v1/namespaces/kube-system", None)
            .0
            .then_some(())
    });
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/rbac.yaml");
    let manifest = fs::read_to_string(manifest).expect("the manifest");
    for document in manifest.split("\n---\n") {
        let kind = document
            .lines()
            .find_map(|line| line.strip_prefix("kind: "));
        let kind = kind.expect("a kind");
        let group = match kind {
            "ServiceAccount" | "Secret" => "/api/v1",
            _ => "/apis/rbac.authorization.k8s.io/v1",
        };
        let namespace = match kind.starts_with("Cluster") {
            true => "",
            false => "/namespaces/kube-system",
        };
        let path = format!("{group}{namespace}/{}s", kind.to_lowercase());
        machine.wait("the manifest", |machine| {
            machine
                .kube("POST", &path, Some(("application/yaml", document)))
                .0
                .then_some(())
        });
    }
    // No controller of the cluster fills the Secret here: the same account's token by request.
    let (made, token) = machine.kube(
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/causeway-kubernetes/token",
        Some(("application/json", "{}")),
    );
    assert!(made, "{token}");
    let token = token["status"]["token"].as_str().expect("a token");
    let file = machine.path("token");
    fs::write(&file, token).expect("the token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    [etcd, server]
}

#[test]
#[ignore = "needs a kube-apiserver; scripts/test-long kubernetes"]
fn a_cluster_drives_a_balancer() {
    let machine = Machine::new();
    let _cluster = cluster(&machine);
    machine.node("n1", "10.0.0.1");
    machine.node("n2", NODE);
    let dir = machine.dir.path().display().to_string();
    fs::write(
        machine.path("base.toml"),
        format!(
            "interface = \"eth0\"\npin_dir = \"{dir}/bpf/lb\"\nstate_dir = \"{dir}/state\"\n\
             socket = \"{dir}/lb.sock\"\nhttp = false\nencap.gateway_mac = \"02:00:00:00:00:01\"\n\
             flow_table = {{ ipv4 = 4096, ipv6 = 4096 }}\n[defaults]\nscheduler = \"latency\"\n"
        ),
    )
    .expect("the base");
    fs::write(
        machine.path("kubernetes.toml"),
        format!(
            "server = \"{SERVER}\"\nca = \"{dir}/certs/apiserver.crt\"\ntoken = \"{dir}/token\"\n\
             pool = [\"192.0.2.8/30\"]\nbase = \"{dir}/base.toml\"\nfile = \"{dir}/causeway.toml\"\n\
             socket = \"{dir}/lb.sock\"\ndrain = \"3s\"\nmember = \"lb1\"\n"
        ),
    )
    .expect("the settings");
    let settings = format!("{dir}/kubernetes.toml");
    let start = || machine.spawn(Path::new(CONTROLLER), &["-c", &settings], "controller.log");
    let mut controller = start();
    machine.wait("a file to start with", |machine| {
        machine.path("causeway.toml").exists().then_some(())
    });
    let file = format!("{dir}/causeway.toml");
    let _lb = machine.spawn(&causeway(), &["lb", "-c", &file], "lb.log");

    // A Service appears: VIP, then status.
    let http = json!([{ "port": 80, "protocol": "TCP" }]);
    let local = json!({ "externalTrafficPolicy": "Local" });
    machine.make(
        SERVICES,
        &json!({ "metadata": { "name": "web" }, "spec": load_balancer(&local, &http) }),
    );
    machine.make(
        SLICES,
        &json!({
            "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4", "endpoints": endpoints(&[("n1", true), ("n2", true)]),
        }),
    );
    let address = machine.wait("web's address", |machine| machine.address("web"));
    assert_eq!(address, "192.0.2.8");
    let web = "default/web:80/tcp";
    let port = machine.service("web").expect("web")["spec"]["healthCheckNodePort"].clone();
    assert!(
        machine
            .text("causeway.toml")
            .contains(&format!("to = \"real\", port = {port}"))
    );
    // One node says that it has three endpoints; the other one says nothing.
    says_three(port.as_u64().expect("a port") as u16);
    machine.wait("web's nodes and the weight that one says", |machine| {
        let vip = machine.causeway(&["vip", "show", web])?;
        let (first, second) = (&vip["reals"][0], &vip["reals"][1]);
        let is_up = second["state"] == "active" && second["health"]["weight"] == 3;
        (first["address"] == "10.0.0.1" && first["state"] == "down" && is_up).then_some(())
    });

    // An endpoint ends: its node drains, and is removed later.
    let slice = format!("{SLICES}/web-1");
    machine.patch(
        &slice,
        &json!({ "endpoints": endpoints(&[("n1", false), ("n2", true)]) }),
    );
    machine.wait("n1 drains", |machine| {
        let reals = machine.reals(web)?;
        reals
            .contains(&("10.0.0.1".to_owned(), "drain".to_owned()))
            .then_some(())
    });
    machine.patch(&slice, &json!({ "endpoints": endpoints(&[("n2", true)]) }));
    machine.wait("n1 is removed", |machine| {
        (machine.reals(web)?.len() == 1).then_some(())
    });

    // A node is taken out of all Services that any node can serve; SCTP is left out alone.
    let mixed = json!([
        { "name": "a", "port": 80, "protocol": "TCP" },
        { "name": "b", "port": 81, "protocol": "SCTP" },
    ]);
    machine.make(
        SERVICES,
        &json!({ "metadata": { "name": "api" }, "spec": load_balancer(&json!({}), &mixed) }),
    );
    machine.wait("api's address", |machine| machine.address("api"));
    let api = machine.service("api").expect("api");
    assert_eq!(
        api["status"]["loadBalancer"]["ingress"][0]["ports"],
        json!([
            { "port": 80, "protocol": "TCP" },
            { "port": 81, "protocol": "SCTP", "error": "causeway.dev/ProtocolNotSupported" },
        ])
    );
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    machine.patch(
        "/api/v1/nodes/n2",
        &json!({ "metadata": { "labels": { label: "" } } }),
    );
    machine.wait("n2 is removed", |machine| {
        let reals = machine.reals("default/api:80/tcp")?;
        (reals.len() == 1 && reals[0].0 == "10.0.0.1").then_some(())
    });
    machine.patch(
        "/api/v1/nodes/n2",
        &json!({ "metadata": { "labels": { label: null } } }),
    );

    machine.wait("web has n2 alone again", |machine| {
        let reals = machine.reals(web)?;
        (reals.len() == 1 && reals[0].0 == NODE).then_some(())
    });

    // What cannot be served is told, and hinders nobody.
    let asked = json!({ "causeway.dev/addresses": "203.0.113.1" });
    machine.make(
        SERVICES,
        &json!({ "metadata": { "name": "wrong", "annotations": asked }, "spec": load_balancer(&json!({}), &http) }),
    );
    let event = machine.wait("an Event", |machine| {
        let (_, events) = machine.kube("GET", "/api/v1/namespaces/default/events", None);
        let mut events = events["items"].as_array()?.iter();
        events
            .find(|of| of["involvedObject"]["name"] == "wrong")
            .cloned()
    });
    assert_eq!(event["reason"], "AddressRefused");
    assert_eq!(machine.address("wrong"), None);

    // The controller is killed: nothing changes, and the next one goes on.
    drop(controller);
    let before = machine.reals(web);
    controller = start();
    machine.patch(
        &slice,
        &json!({ "endpoints": endpoints(&[("n1", true), ("n2", true)]) }),
    );
    machine.wait("n1 is back", |machine| {
        (machine.reals(web)?.len() == 2).then_some(())
    });
    assert_eq!(before.map(|reals| reals.len()), Some(1));
    assert_eq!(machine.address("web").as_deref(), Some("192.0.2.8"));

    // The copy of what the balancer has taken is written as soon as it can be.
    let copy = machine.path("causeway.toml.taken");
    fs::remove_file(&copy).expect("the copy");
    fs::create_dir(&copy).expect("what is in its way");
    machine.patch(&slice, &json!({ "endpoints": endpoints(&[("n2", true)]) }));
    machine.wait("n1 is removed again", |machine| {
        (machine.reals(web)?.len() == 1).then_some(())
    });
    machine.wait("a fault of the copy", |machine| {
        let log = machine.text("controller.log");
        log.contains(".taken cannot be written").then_some(())
    });
    fs::remove_dir(&copy).expect("the way is free");
    machine.wait("the copy", |machine| {
        (machine.text("causeway.toml.taken") == machine.text("causeway.toml")).then_some(())
    });

    // A Service is deleted: its VIP goes first.
    assert!(machine.kube("DELETE", &format!("{SERVICES}/web"), None).0);
    machine.wait("web is gone", |machine| {
        machine.service("web").is_none().then_some(())
    });
    assert_eq!(machine.reals(web), None);
    assert!(
        machine.reals("default/api:80/tcp").is_some(),
        "the other one stays"
    );
    // And the last VIP: the operator's file has none.
    assert!(machine.kube("DELETE", &format!("{SERVICES}/api"), None).0);
    machine.wait("api is gone", |machine| {
        machine.service("api").is_none().then_some(())
    });
    assert_eq!(machine.reals("default/api:80/tcp"), None);
    let log = machine.text("controller.log");
    assert!(!log.contains("forbidden"), "{log}");
    drop(controller);
}
