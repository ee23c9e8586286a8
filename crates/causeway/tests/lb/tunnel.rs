// SPDX-License-Identifier: Apache-2.0
//! Both ends of a tunnel, while addresses and devices of its paths come and go.

use super::*;
use sandbox::Netns;

/// End 1 in the test's namespace, end 2 in one of its own. Between them each path has a link.
struct Ends {
    dir: tempfile::TempDir,
    far: Netns,
}

impl Ends {
    fn run(test: impl FnOnce(&Self) + Send + 'static) {
        Sandbox::run(|_| {
            let ends = Self {
                dir: tempfile::tempdir().expect("a directory"),
                far: Netns::new(),
            };
            ends.link(0);
            ends.link(1);
            test(&ends);
        });
    }

    /// Makes the link of a path, `near0` or `near1` here, with an address at each end.
    fn link(&self, path: u8) {
        ip(&format!(
            "link add near{path} type veth peer name far{path}"
        ));
        ip(&format!("link set far{path} netns {}", self.far.path()));
        ip(&format!("addr add 10.9.{path}.1/24 dev near{path}"));
        ip(&format!("link set near{path} up"));
        self.far
            .ip(&format!("addr add 10.9.{path}.2/24 dev far{path}"));
        self.far.ip(&format!("link set far{path} up"));
    }

    fn file(&self, end: u8, kind: &str) -> PathBuf {
        self.dir.path().join(format!("{end}.{kind}"))
    }

    /// Starts an end with its unit's rights; `more` is a line of path 1.
    fn start(&self, end: u8, more: &str) -> Daemon {
        self.start_threads(2, end, more)
    }

    fn start_threads(&self, threads: u8, end: u8, more: &str) -> Daemon {
        let (state, socket, other) = (self.file(end, "state"), self.file(end, "sock"), 3 - end);
        let text = format!(
            "[tunnel]\ndevice = \"cw0\"\naddresses = [\"10.5.0.{end}/24\"]\nkeys = \"none\"\n\
             threads = {threads}\nhttp = false\nstate_dir = \"{}\"\nsocket = \"{}\"\n\
             [[tunnel.path]]\nid = 0\nlocal = \"10.9.0.{end}:7000\"\nremote = \"10.9.0.{other}:7000\"\n\
             [[tunnel.path]]\nid = 1\nlocal = \"10.9.1.{end}:7000\"\nremote = \"10.9.1.{other}:7000\"\n\
             {more}\n",
            state.display(),
            socket.display()
        );
        fs::write(self.file(end, "toml"), text).expect("write the configuration");
        self.start_again(end)
    }

    /// Starts an end with the file that is there.
    fn start_again(&self, end: u8) -> Daemon {
        let log = fs::File::create(self.file(end, "log")).expect("a log");
        let mut command = units::confined("causeway-tunnel", BINARY);
        command
            .args(["tunnel", "-c"])
            .arg(self.file(end, "toml"))
            .stdin(Stdio::null())
            .stderr(log);
        let mut spawn = || command.spawn().expect("start causeway tunnel");
        match end {
            1 => Daemon(spawn()),
            _ => Daemon(self.far.run(spawn)),
        }
    }

    fn log(&self, end: u8) -> String {
        fs::read_to_string(self.file(end, "log")).unwrap_or_default()
    }

    /// What `causeway tunnel` answers for an end.
    fn ask(&self, end: u8, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .arg("tunnel")
            .args(arguments)
            .arg("--socket")
            .arg(self.file(end, "sock"))
            .output()
            .expect("run causeway")
    }

    /// The states of both paths; none while the end does not answer.
    fn states(&self, end: u8) -> Vec<String> {
        let output = self.ask(end, &["stats", "-o", "json"]);
        let Ok(status) = serde_json::from_slice::<Value>(&output.stdout) else {
            return Vec::new();
        };
        let paths = status["paths"].as_array().expect("paths");
        let states = paths.iter().map(|path| path["state"].as_str());
        states
            .map(|state| state.expect("a state").to_owned())
            .collect()
    }

    /// Waits until the paths of an end are in these states.
    fn wait_for(&self, end: u8, states: [&str; 2]) {
        let told = || {
            format!(
                "end {end} is {:?} instead of {states:?}: {}",
                self.states(end),
                self.log(end)
            )
        };
        wait(told, || self.states(end) == states);
    }

    /// How often an end's log says so.
    fn times_logged(&self, end: u8, text: &str) -> usize {
        self.log(end).matches(text).count()
    }
}

#[test]
fn a_tunnel_starts_by_the_path_whose_address_is_there_and_opens_the_other_when_it_comes() {
    Ends::run(|ends| {
        ip("addr del 10.9.1.1/24 dev near1");
        let _far = ends.start(2, "");
        let _near = ends.start(1, "");
        ends.wait_for(1, ["alive", "down"]);
        let status = ends.ask(1, &["status"]);
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        assert_eq!(status.status.code(), Some(1), "{said}");
        let why = "path 10.9.1.1:7000 to 10.9.1.2:7000: cannot take the local address and port";
        assert!(said.contains(&format!("path 1 is down: {why}")), "{said}");
        // It is tried again, and said once.
        thread::sleep(Duration::from_secs(5));
        let not_open = format!("path 1 is not open, and is tried again: {why}");
        assert_eq!(ends.times_logged(1, &not_open), 1, "{}", ends.log(1));

        ip("addr add 10.9.1.1/24 dev near1");
        ends.wait_for(1, ["alive", "alive"]);
        ends.wait_for(2, ["alive", "alive"]);
        // On a busy machine a path may be dead for a moment.
        wait(|| ends.log(1), || ends.ask(1, &["status"]).status.success());

        // Sockets keep an address that goes and comes back.
        ip("addr del 10.9.1.1/24 dev near1");
        ends.wait_for(1, ["alive", "dead"]);
        ip("addr add 10.9.1.1/24 dev near1");
        ends.wait_for(1, ["alive", "alive"]);
        let log = ends.log(1);
        assert_eq!(ends.times_logged(1, "path 1 has new sockets"), 1, "{log}");
        assert_eq!(ends.times_logged(1, &not_open), 1, "{log}");
    });
}

/// As a balancer does; without a daemon nothing is carried.
#[test]
fn a_tunnel_whose_file_is_broken_starts_with_the_last_good_one() {
    Ends::run(|ends| {
        let _far = ends.start(2, "");
        let near = ends.start(1, "");
        ends.wait_for(1, ["alive", "alive"]);
        let file = ends.file(1, "toml");
        let good = fs::read_to_string(&file).expect("the configuration");
        let used = "is refused, and the copy of how it was last in force is used";
        let mut last = near;
        // What cannot be read, and what cannot be put in force.
        for (broken, why) in [
            (good.replace("keys =", "keys"), "1.toml:4: "),
            (good.replace("\"cw0\"", "\"near0\""), "1.toml: "),
        ] {
            last.signal(Signal::SIGKILL);
            assert!(!last.wait());
            fs::write(&file, broken).expect("break the file");
            last = ends.start_again(1);
            ends.wait_for(1, ["alive", "alive"]);
            assert!(ends.log(1).contains(used), "{}", ends.log(1));
            let status = ends.ask(1, &["status"]);
            let said = String::from_utf8_lossy(&status.stdout).into_owned();
            let told = "the copy of the last good one is in force: correct it, then `causeway tunnel reload`: ";
            assert!(said.contains(told) && said.contains(why), "{said}");
            assert!(!ends.ask(1, &["reload"]).status.success());
        }
        fs::write(&file, &good).expect("mend it");
        assert!(ends.ask(1, &["reload"]).status.success());
        let status = ends.ask(1, &["status"]);
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(!said.contains("refused"), "{said}");
    });
}

#[test]
fn a_thread_that_the_other_end_does_not_have_is_named() {
    Ends::run(|ends| {
        let _far = ends.start_threads(1, 2, "");
        let _near = ends.start_threads(2, 1, "");
        ends.wait_for(1, ["partly", "partly"]);
        let said = || String::from_utf8_lossy(&ends.ask(1, &["status"]).stdout).into_owned();
        let why = "of 2 threads no path is alive for 1: the flows there are not carried";
        // On a busy machine a path may be dead for a moment.
        wait(said, || said().contains(why));
        // Each end takes merged UDP where its kernel does, and here both have the same.
        let merges_udp = || {
            let stats = ends.ask(2, &["stats", "-o", "json"]);
            let stats = serde_json::from_slice::<Value>(&stats.stdout);
            stats.ok().and_then(|stats| stats["merges_udp"].as_bool())
        };
        let release = nix::sys::utsname::uname().expect("uname");
        let release = release.release().to_string_lossy();
        let mut numbers = release
            .split(['.', '-'])
            .map(|part| part.parse().unwrap_or(0));
        let version: (u32, u32) = (
            numbers.next().expect("a version"),
            numbers.next().expect("a version"),
        );
        let merges = version >= (6, 2);
        wait(
            || format!("Linux {release}: {:?}", merges_udp()),
            || merges_udp() == Some(merges),
        );
    });
}

#[test]
fn a_path_goes_on_by_its_device_when_that_is_made_anew() {
    Ends::run(|ends| {
        // The far end's path takes whatever device has its address.
        let _far = ends.start(2, "");
        let _near = ends.start(1, "device = \"near1\"");
        ends.wait_for(1, ["alive", "alive"]);
        let number = || nix::net::if_::if_nametoindex("near1").expect("a device");
        let before = number();
        ip("link del near1");
        ends.wait_for(1, ["alive", "dead"]);
        ends.link(1);
        assert_ne!(number(), before);
        ends.wait_for(1, ["alive", "alive"]);
        ends.wait_for(2, ["alive", "alive"]);
        // Nor is there anything to do again.
        thread::sleep(Duration::from_secs(5));
        let log = ends.log(1);
        assert_eq!(ends.times_logged(1, "path 1 has new sockets"), 1, "{log}");
        assert_eq!(ends.times_logged(2, "has new sockets"), 0, "{log}");
    });
}
