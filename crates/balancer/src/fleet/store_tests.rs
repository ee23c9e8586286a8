// SPDX-License-Identifier: Apache-2.0
//! What a fleet relies on, of each store.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use causeway_service::tls::ClientFiles;
use tempfile::TempDir;

use super::dir_store::DirStore;
use super::etcd_store::EtcdStore;
use super::store::{Store, StoreError};
use crate::config::fleet::{EtcdConfig, Password};
use crate::serve_tests::address_of_its_own;

/// How long anything may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A lease that does not end within a test.
const HOUR: Duration = Duration::from_secs(3600);

/// Debian's etcd at an address and with a directory of its own. Dropped, it is killed.
pub(super) struct Etcd {
    process: Child,
    ip: IpAddr,
    dir: TempDir,
    /// Files of its certificate and key, if clients come by TLS.
    tls: Option<TempDir>,
    /// What else it is told.
    flags: Vec<String>,
}

impl Etcd {
    pub(super) fn start() -> Self {
        Self::start_with(Vec::new())
    }

    fn start_with(flags: Vec<String>) -> Self {
        Self::start_at(address_of_its_own().ip(), None, flags)
    }

    fn start_at(ip: IpAddr, tls: Option<TempDir>, flags: Vec<String>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let process = Self::run(dir.path(), ip, tls.as_ref(), &flags);
        let etcd = Self {
            process,
            ip,
            dir,
            tls,
            flags,
        };
        etcd.wait_ready();
        etcd
    }

    fn run(dir: &Path, ip: IpAddr, tls: Option<&TempDir>, flags: &[String]) -> Child {
        let scheme = tls.map_or("http", |_| "https");
        let client = format!("{scheme}://{ip}:2379");
        let peer = format!("http://{ip}:2380");
        let mut command = Command::new("etcd");
        if let Some(tls) = tls {
            command.arg("--cert-file").arg(tls.path().join("cert.pem"));
            command.arg("--key-file").arg(tls.path().join("key.pem"));
        }
        command
            .arg("--data-dir")
            .arg(dir)
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run etcd (Debian package etcd-server)")
    }

    fn wait_ready(&self) {
        let mut store = store(&self.config(), "ready");
        in_time(|| store.read().is_ok());
    }

    pub(super) fn config(&self) -> EtcdConfig {
        EtcdConfig {
            endpoints: vec![match self.tls {
                Some(_) => format!("https://{}:2379", self.ip),
                None => format!("http://{}:2379", self.ip),
            }],
            prefix: "/causeway".to_owned(),
            user: None,
            tls: ClientFiles {
                ca: self.tls.as_ref().map(|tls| tls.path().join("cert.pem")),
                identity: None,
            },
        }
    }

    fn etcdctl(&self, words: &[&str]) {
        let endpoint = &self.config().endpoints[0];
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout=30s", "--command-timeout=60s"])
            .arg(format!("--endpoints={endpoint}"))
            .args(words)
            .output()
            .expect("run etcdctl (Debian package etcd-client)");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {words:?}: {said}");
    }

    /// From now on users are asked for passwords: `lb` for "secret", `root` for "top".
    fn ask_for_passwords(&self) {
        for words in [
            &["user", "add", "root:top"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "causeway"],
            &[
                "role",
                "grant-permission",
                "causeway",
                "--prefix=true",
                "readwrite",
                "/causeway/",
            ],
            &["user", "add", "lb:secret"],
            &["user", "grant-role", "lb", "causeway"],
            &["auth", "enable"],
        ] {
            self.etcdctl(words);
        }
    }

    fn store_of(&self, user: Option<(&str, &str)>) -> EtcdStore {
        let user = user.map(|(name, word)| (name.to_owned(), Password(word.to_owned())));
        let config = EtcdConfig {
            user,
            ..self.config()
        };
        store(&config, "edge")
    }

    pub(super) fn stop(&mut self) {
        self.process.kill().expect("kill etcd");
        self.process.wait().expect("its end");
    }

    /// Starts it again, with or without what it had.
    pub(super) fn again(&mut self, wiped: bool) {
        if wiped {
            self.dir = tempfile::tempdir().expect("a directory");
        }
        self.process = Self::run(self.dir.path(), self.ip, self.tls.as_ref(), &self.flags);
        self.wait_ready();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may be stopped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// It waits for an answer longer than members do: a busy machine takes seconds to write a megabyte,
/// or to check a password.
pub(super) fn store(config: &EtcdConfig, fleet: &str) -> EtcdStore {
    let store = EtcdStore::new(config, fleet).expect("a store");
    store.within(TIMEOUT)
}

pub(super) fn in_time(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < 4 * TIMEOUT, "it did not come to hold");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What every store does. `open` gives stores of two processes.
fn contract(open: &dyn Fn() -> Box<dyn Store>) {
    let (mut one, mut other) = (open(), open());
    let empty = one.read().unwrap();
    assert_eq!(empty.book, None);
    assert!(empty.acks.is_empty() && empty.alive.is_empty());
    assert!(!empty.cluster.is_empty());
    assert_eq!(other.read().unwrap().cluster, empty.cluster);

    // Of two that found a fleet one does, and of two that change it.
    assert!(one.replace(None, "first \u{e9}").unwrap());
    assert!(!other.replace(None, "second").unwrap());
    let (version, text) = other.read().unwrap().book.unwrap();
    assert_eq!(text, "first \u{e9}");
    assert!(other.replace(Some(version), "third").unwrap());
    assert!(!one.replace(Some(version), "fourth").unwrap());
    let (later, text) = one.read().unwrap().book.unwrap();
    assert_eq!((text.as_str(), later == version), ("third", false));

    one.acknowledge("lb1", "a").unwrap();
    other.acknowledge("lb2", "b").unwrap();
    one.acknowledge("lb1", "c").unwrap();
    let acks = other.read().unwrap().acks;
    let acks: Vec<_> = acks.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(acks, [("lb1", "c"), ("lb2", "b")]);

    // A change ends the wait of another process, though it came before the wait.
    one.read().unwrap();
    other.acknowledge("lb2", "d").unwrap();
    let start = Instant::now();
    one.wait(TIMEOUT).unwrap();
    assert!(start.elapsed() < TIMEOUT);
    assert_eq!(one.read().unwrap().acks["lb2"], "d");

    // Leases end by themselves, and begin again. One may be over before it is seen.
    let short = Duration::from_secs(2);
    let mut is_renewed = |other: &mut dyn Store| {
        one.renew("lb1", short).unwrap();
        one.renew("lb1", short).unwrap();
        other.read().unwrap().alive.contains("lb1")
    };
    in_time(|| is_renewed(other.as_mut()));
    in_time(|| other.read().unwrap().alive.is_empty());
    in_time(|| is_renewed(other.as_mut()));
    assert_eq!(
        other.read().unwrap().acks.len(),
        2,
        "what is said outlives it"
    );
}

#[test]
fn a_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    contract(&|| Box::new(DirStore::new(dir.path().join("edge"))));
}

#[test]
fn etcd_keeps_the_contract() {
    let etcd = Etcd::start();
    contract(&|| Box::new(store(&etcd.config(), "edge")));
    // Fleets of one etcd do not see each other, not even by their names' beginnings.
    let mut beside = store(&etcd.config(), "edge2");
    assert_eq!(beside.read().unwrap().book, None);
}

#[test]
fn etcd_that_is_away_is_a_sentence_and_comes_back() {
    let mut etcd = Etcd::start();
    let mut store = store(&etcd.config(), "edge");
    assert!(store.replace(None, "book").unwrap());
    store.renew("lb1", Duration::from_secs(600)).unwrap();
    etcd.stop();
    let error = store.read().unwrap_err().to_string();
    let place = format!("etcd at http://{}:", etcd.ip);
    assert!(error.starts_with(&place), "{error}");
    assert!(store.wait(Duration::ZERO).is_err() || store.read().is_err());
    etcd.again(false);
    in_time(|| store.read().is_ok());
    assert_eq!(store.read().unwrap().book.unwrap().1, "book");
    etcd.stop();
    etcd.again(true);
    in_time(|| store.read().is_ok());
    assert_eq!(store.read().unwrap().book, None);
    // Its lease is gone with it.
    store.renew("lb1", Duration::from_secs(600)).unwrap();
    assert!(store.read().unwrap().alive.contains("lb1"));
}

#[test]
fn etcd_asks_for_a_password() {
    let etcd = Etcd::start();
    etcd.ask_for_passwords();
    let nobody = etcd.store_of(None).read().unwrap_err();
    assert!(matches!(nobody, StoreError::Refused(_)), "{nobody}");
    let error = etcd.store_of(Some(("lb", "wrong"))).read().unwrap_err();
    assert!(
        error.to_string().contains("authentication failed"),
        "{error}"
    );
    let mut store = etcd.store_of(Some(("lb", "secret")));
    assert!(store.replace(None, "book").unwrap());
    store.renew("lb1", Duration::from_secs(5)).unwrap();
    store.wait(Duration::ZERO).unwrap();
    assert_eq!(store.read().unwrap().book.unwrap().1, "book");
}

#[test]
fn a_signed_token_is_asked_for_again_once_users_have_changed() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, "of this test").unwrap();
    let key = key.display();
    let signed = format!("--auth-token=jwt,priv-key={key},sign-method=HS256,ttl=10m");
    let etcd = Etcd::start_with(vec![signed]);
    etcd.ask_for_passwords();
    let mut store = etcd.store_of(Some(("lb", "secret")));
    assert!(store.replace(None, "book").unwrap());
    etcd.etcdctl(&["--user", "root:top", "user", "add", "other:word"]);
    let (version, text) = store.read().unwrap().book.unwrap();
    assert_eq!(text, "book");
    etcd.etcdctl(&["--user", "root:top", "role", "add", "other"]);
    assert!(store.replace(Some(version), "later").unwrap());
}

/// A server that answers as etcd does where nothing is stored.
struct FakeEtcd {
    address: SocketAddr,
    /// Answers no requests any more, and keeps what watches it has.
    is_away: Arc<AtomicBool>,
    watches: Arc<AtomicUsize>,
}

impl FakeEtcd {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Self {
            address: listener.local_addr().unwrap(),
            is_away: Arc::default(),
            watches: Arc::default(),
        };
        let (is_away, watches) = (Arc::clone(&fake.is_away), Arc::clone(&fake.watches));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (is_away, watches) = (Arc::clone(&is_away), Arc::clone(&watches));
                thread::spawn(move || Self::answer(stream.unwrap(), &is_away, &watches));
            }
        });
        fake
    }

    fn answer(stream: TcpStream, is_away: &AtomicBool, watches: &AtomicUsize) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                match line.trim_end() {
                    "" => break,
                    line => head.push(line.to_ascii_lowercase()),
                }
            }
            let length = head
                .iter()
                .find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.unwrap().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let is_watch = head[0].starts_with("post /v3/watch ");
            let answer = match is_watch {
                true => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                false if is_away.load(Ordering::SeqCst) => return,
                false => {
                    "HTTP/1.1 200 OK\r\ncontent-length: 32\r\n\r\n{\"header\":{\"cluster_id\":\"fake\"}}"
                }
            };
            watches.fetch_add(usize::from(is_watch), Ordering::SeqCst);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }

    fn watches(&self) -> usize {
        self.watches.load(Ordering::SeqCst)
    }
}

#[test]
fn a_watch_does_not_stay_with_a_server_that_is_cut_off() {
    let servers = [FakeEtcd::start(), FakeEtcd::start()];
    let config = EtcdConfig {
        endpoints: servers
            .each_ref()
            .map(|of| format!("http://{}", of.address))
            .to_vec(),
        prefix: "/causeway".to_owned(),
        user: None,
        tls: ClientFiles::default(),
    };
    let mut store = store(&config, "edge");
    let mut watched = |away: usize| {
        store.read().unwrap();
        assert!(!store.wait(Duration::ZERO).unwrap());
        servers[away].is_away.store(true, Ordering::SeqCst);
        servers.each_ref().map(FakeEtcd::watches)
    };
    assert_eq!(watched(0), [1, 0]);
    assert_eq!(watched(0), [1, 1]);
    // It goes on where it is.
    assert_eq!(watched(0), [1, 1]);
}

/// Each write is a revision of all keys, of which etcd keeps every one by default.
#[test]
fn renewals_write_nothing_into_etcd() {
    let etcd = Etcd::start();
    let mut store = etcd.store_of(None);
    store.renew("lb1", HOUR).unwrap();
    assert!(store.replace(None, "first").unwrap());
    let (version, _) = store.read().unwrap().book.unwrap();
    for _ in 0..3 {
        store.renew("lb1", HOUR).unwrap();
    }
    assert!(store.replace(Some(version), "second").unwrap());
    assert_eq!(store.read().unwrap().book.unwrap().0, version + 1);
    // What others have taken away is there again.
    etcd.etcdctl(&["del", "/causeway/edge/alive/lb1"]);
    assert!(store.read().unwrap().alive.is_empty());
    store.renew("lb1", HOUR).unwrap();
    assert!(store.read().unwrap().alive.contains("lb1"));
}

#[test]
fn a_full_etcd_renews_leases_and_can_be_read() {
    let mut etcd = Etcd::start_with(vec!["--quota-backend-bytes=1000000".to_owned()]);
    let mut store = etcd.store_of(None);
    store.renew("lb1", HOUR).unwrap();
    assert!(store.replace(None, "book").unwrap());
    let (version, _) = store.read().unwrap().book.unwrap();
    let large = "x".repeat(1_200_000);
    let error = store.replace(Some(version), &large).unwrap_err();
    assert!(
        error.to_string().contains("database space exceeded"),
        "{error}"
    );
    let full = store.acknowledge("lb1", "a").unwrap_err();
    assert!(matches!(full, StoreError::Refused(_)), "{full}");
    store.renew("lb1", HOUR).unwrap();
    // One that comes now gets no lease.
    let mut other = etcd.store_of(None);
    let refused = other.renew("lb2", HOUR).unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
    let held = other.read().unwrap();
    assert_eq!(
        (held.book.unwrap().1.as_str(), held.alive.len()),
        ("book", 1)
    );
    // A lease outlives that etcd is away: there would be no other.
    etcd.stop();
    let away = store.renew("lb1", HOUR).unwrap_err();
    assert!(matches!(away, StoreError::Away(_)), "{away}");
    etcd.again(false);
    in_time(|| store.renew("lb1", HOUR).is_ok());
    assert!(store.read().unwrap().alive.contains("lb1"));
}

#[test]
fn what_etcd_does_not_take_for_its_size_is_said() {
    let etcd = Etcd::start();
    let mut store = etcd.store_of(None);
    for (bytes, kib) in [(1_600_000, 1563), (2_600_000, 2540)] {
        let error = store.replace(None, &"x".repeat(bytes)).unwrap_err();
        let said = format!(
            "; the book has {kib} KiB: give etcd a larger --max-request-bytes, or the fleet fewer reals"
        );
        assert!(error.to_string().ends_with(&said), "{error}");
    }
}

#[test]
fn etcd_is_reached_by_tls_and_must_be_trusted() {
    let tls = tempfile::tempdir().unwrap();
    let ip = address_of_its_own().ip();
    let made = rcgen::generate_simple_self_signed([ip.to_string()]).unwrap();
    fs::write(tls.path().join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(tls.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let etcd = Etcd::start_at(ip, Some(tls), Vec::new());
    contract(&|| Box::new(store(&etcd.config(), "edge")));
    let config = EtcdConfig {
        tls: ClientFiles::default(),
        ..etcd.config()
    };
    let error = store(&config, "edge").read().unwrap_err();
    assert!(
        error.to_string().contains(&format!("TLS with {ip} failed")),
        "{error}"
    );
}
