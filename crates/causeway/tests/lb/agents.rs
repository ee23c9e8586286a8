// SPDX-License-Identifier: Apache-2.0
//! Two balancers with one book, and the agent of a server that gets it from them: three daemons
//! as operators run them.

use super::*;

/// Of the two balancers.
const LISTEN: [&str; 2] = ["127.0.0.1:9472", "127.0.0.1:9473"];

/// Runs a command that must succeed.
fn causeway(arguments: &[&str]) -> String {
    let output = Command::new(BINARY)
        .args(arguments)
        .output()
        .expect("run causeway");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("a text")
}

struct Fleet<'a> {
    machine: &'a Machine,
}

impl Fleet<'_> {
    fn file(&self, name: &str) -> String {
        self.machine.path(name).display().to_string()
    }

    fn write_balancer(&self, at: usize, reals: &[&str]) {
        let reals = reals
            .iter()
            .map(|real| format!("{{ address = \"{real}\" }}"));
        let reals: Vec<_> = reals.collect();
        let dir = self.machine.dir.path().display();
        let text = format!(
            "interface = \"lb{at}\"\npin_dir = \"{dir}/bpf/lb{at}\"\nstate_dir = \"{dir}/state{at}\"\n\
             socket = \"{dir}/lb{at}.sock\"\nhttp = false\n\
             encap.gateway_mac = \"02:00:00:00:00:01\"\n\
             flow_table = {{ ipv4 = 4096, ipv6 = 4096 }}\n\
             [cookie]\nkeys = \"{dir}/cookie.keys\"\n\
             [agent_reports]\nlisten = \"{}\"\n\
             [fleet]\nname = \"edge\"\nmember = \"lb{at}\"\nagents = true\n\
             store = {{ dir = \"{dir}/store\" }}\n\
             [[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\n\
             real = [{}]\n",
            LISTEN[at],
            reals.join(", ")
        );
        fs::write(self.file(&format!("lb{at}.toml")), text).expect("write");
    }

    /// It names one balancer, no VIP, no id, and a keys file that is never replaced.
    fn write_agent(&self) {
        let keys = self.file("cookie.keys");
        let own = causeway(&["cookie", "server-keys", "10.0.0.1", "--keys", &keys]);
        let file = self.machine.path("server.keys");
        fs::write(&file, own).expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("keep them");
        let dir = self.machine.dir.path().display();
        let text = format!(
            "[agent]\ninterface = \"srv0\"\naddresses = [\"10.0.0.1\"]\n\
             pin_dir = \"{dir}/bpf/agent\"\nstate_dir = \"{dir}/agent\"\n\
             socket = \"{dir}/agent.sock\"\nhttp = false\n\
             [agent.cookie]\nkeys = \"{dir}/server.keys\"\n\
             [agent.report]\nto = [\"{}\"]\nbook = true\n",
            LISTEN[0]
        );
        fs::write(self.file("agent.toml"), text).expect("write");
    }

    /// Starts a daemon, `lb` or `agent`, and waits until it answers.
    fn start(&self, kind: &str, name: &str) -> Daemon {
        let log = fs::File::create(self.machine.path(&format!("{name}.log"))).expect("a log");
        let child = Command::new(BINARY)
            .args([kind, "-c", &self.file(&format!("{name}.toml"))])
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("start a daemon");
        let daemon = Daemon(child);
        let log = || {
            let log = self.machine.path(&format!("{name}.log"));
            fs::read_to_string(log).unwrap_or_default()
        };
        wait(
            || format!("{name}: {}", log()),
            || log().contains("serving on"),
        );
        daemon
    }

    fn view(&self, at: usize) -> Value {
        let socket = self.file(&format!("lb{at}.sock"));
        let text = causeway(&["fleet", "--socket", &socket, "status", "-o", "json"]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits until a balancer sees the fleet so.
    fn sees(&self, at: usize, what: &str, holds: impl Fn(&Value) -> bool) {
        let told = || format!("{what}: {:#}", self.view(at));
        wait(told, || holds(&self.view(at)));
    }

    fn book(&self) -> Value {
        let socket = self.file("agent.sock");
        let text = causeway(&["agent", "stats", "--socket", &socket, "-o", "json"]);
        let stats: Value = serde_json::from_str(&text).expect("JSON");
        stats["books"][0].clone()
    }

    /// Waits until the agent goes by such a book.
    fn agent_has(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let told = || format!("{what}: {:#}", self.book());
        wait(told, || holds(&self.book()));
    }

    /// When it returns, both balancers go by the file: it may be written again.
    fn rotate(&self, step: &str) {
        causeway(&["cookie", "rotate", step, &self.file("cookie.keys")]);
        for at in 0..2 {
            let socket = self.file(&format!("lb{at}.sock"));
            causeway(&["reload", "--socket", &socket]);
        }
    }
}

/// A push is a revision, which another member undoes; what takes away too much is held.
fn goes_back(fleet: &Fleet<'_>, first: &Daemon) {
    let sockets = [0, 1].map(|at| fleet.file(&format!("lb{at}.sock")));
    fleet.write_balancer(0, &["10.0.0.1", "10.0.0.9"]);
    let said = causeway(&["fleet", "--socket", &sockets[0], "push"]);
    assert!(said.contains("gets 1 real (10.0.0.9)"), "{said}");
    assert!(said.contains("VIPs and reals by revision"), "{said}");
    fleet.sees(1, "it has the revision", |view| {
        view["history"][0]["by"] == "lb0"
    });
    let history = causeway(&["fleet", "--socket", &sockets[1], "history"]);
    assert!(history.contains("gets 1 real (10.0.0.9)"), "{history}");

    fleet.write_balancer(0, &["10.0.0.8"]);
    let push = ["fleet", "--socket", &sockets[0], "push"];
    let held = Command::new(BINARY)
        .args(push)
        .output()
        .expect("run causeway");
    assert_eq!(held.status.code(), Some(1), "{}", stderr(&held));
    let said = String::from_utf8(held.stdout).expect("a text");
    let loses = "vip 192.0.2.1:80/tcp loses 2 reals (10.0.0.1, 10.0.0.9) of 2";
    assert!(
        said.contains(&format!("to be confirmed: {loses}")),
        "{said}"
    );
    first.signal(Signal::SIGHUP);
    fleet.sees(0, "its file is held", |view| view["held"][0]["of"] == 2);
    let status = causeway(&["fleet", "--socket", &sockets[0], "status"]);
    assert!(status.contains(loses), "{status}");

    let said = causeway(&["fleet", "--socket", &sockets[1], "rollback"]);
    assert!(said.contains("loses 1 real (10.0.0.9)"), "{said}");
    fleet.sees(0, "the other has gone back", |view| {
        view["history"][0]["back_to"].is_u64()
    });
    fleet.write_balancer(0, &["10.0.0.1"]);
}

fn rotation(machine: &Machine) {
    for name in ["lb0", "lb1", "srv0"] {
        ip(&format!("link add {name} type veth peer name {name}p"));
        ip(&format!("link set {name} up"));
        ip(&format!("link set {name}p up"));
    }
    ip("addr add 10.0.0.2/24 dev lb0");
    ip("addr add 10.0.1.2/24 dev lb1");
    ip("addr add 192.0.2.1/32 dev lo");
    let fleet = Fleet { machine };
    causeway(&["cookie", "new-keys", &fleet.file("cookie.keys")]);
    (0..2).for_each(|at| fleet.write_balancer(at, &["10.0.0.1"]));
    fleet.write_agent();
    let balancers = [0, 1].map(|at| fleet.start("lb", &format!("lb{at}")));
    let socket = fleet.file("lb0.sock");
    causeway(&["fleet", "--socket", &socket, "found"]);
    fleet.sees(1, "the second serves", |view| view["in_service"] == true);
    let agent = fleet.start("agent", "agent");

    // It learns its id, the keys, and the balancer that its file does not name.
    fleet.agent_has("it hears the book", |book| {
        book["balancers"].as_array().map(Vec::len) == Some(2)
            && book["ids"][0]["vip"] == "192.0.2.1:80/tcp"
    });
    let id = fleet.view(0)["ids"][0]["id"].clone();
    assert_eq!(fleet.book()["ids"][0]["id"], id);
    assert_eq!(fleet.book()["key_issued"], 2);
    for at in 0..2 {
        fleet.sees(at, "it is heard", |view| {
            view["agents"][0]["acknowledged"] == view["book"]
        });
    }

    // A key is not issued while an agent has not got it.
    agent.signal(Signal::SIGSTOP);
    fleet.rotate("--prepare");
    let lags = |view: &Value| {
        let waits = view["waiting"].as_array().into_iter().flatten();
        let mut waits = waits.filter(|wait| wait["what"] == "key 3 is issued");
        view["key_other"] == 3
            && waits.any(|wait| wait["agents"][0] == "10.0.0.1" && wait["members"][0].is_null())
    };
    fleet.sees(0, "all but the agent accept the key", lags);
    fleet.sees(1, "all but the agent accept the key", lags);
    let status = causeway(&["fleet", "--socket", &socket, "status"]);
    assert!(
        status.contains("waits for the agent of 10.0.0.1: key 3 is issued"),
        "{status}"
    );
    assert!(
        status.contains("agents: 0 of 1 go by this book"),
        "{status}"
    );
    assert_eq!(fleet.view(0)["key_issued"], 2);
    agent.signal(Signal::SIGCONT);
    fleet.sees(1, "the key is issued", |view| view["key_issued"] == 3);
    fleet.agent_has("it issues the key", |book| book["key_issued"] == 3);
    fleet.rotate("--switch");

    goes_back(&fleet, &balancers[0]);

    // The first balancer, which alone its file names, is gone.
    let [first, second] = balancers;
    drop(first);
    fleet.write_balancer(1, &["10.0.0.1", "10.0.0.7"]);
    let before = fleet.view(1)["book"].clone();
    causeway(&["fleet", "--socket", &fleet.file("lb1.sock"), "push"]);
    fleet.sees(1, "the second hears it", |view| {
        view["book"] != before && view["agents"][0]["acknowledged"] == view["book"]
    });

    // Without a balancer it goes on by what it has on disk.
    drop(second);
    drop(agent);
    let before = fs::read_to_string(machine.path("agent/agent-book.json")).expect("the book");
    let _agent = fleet.start("agent", "agent");
    let book = fleet.book();
    assert_eq!(book["ids"][0]["id"], id);
    assert_eq!(book["key_issued"], 3);
    let kept: Value = serde_json::from_str(&before).expect("JSON");
    let mut servers = kept["servers"].as_object().expect("servers").values();
    assert!(servers.all(|own| own["agent"]["issued"] == 3), "{before}");
}

#[test]
fn an_agent_hears_the_book_holds_keys_back_and_goes_on_without_balancers() {
    Machine::run(rotation);
}
