// SPDX-License-Identifier: Apache-2.0
//! The process around the engine: what ends it, and what it leaves alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

use axum::Router;
use axum::routing::get;
use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_service::process::{self, Listeners, Process, Routers, Work};
use causeway_service::tokens::Rules;
use nix::sys::signal::{Signal, raise};

use super::engine::Engine;
use super::fake::FakePlane;
use super::shared::Shared;
use super::tests::{MS, START, WEB, config};
use super::{discovery, probe, serve};
use crate::config::BalancerConfig;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A signal goes to all that listen for it in the process.
static SIGNALS: Mutex<()> = Mutex::new(());

/// Another one for each daemon of each test. A port that the kernel chose and that was given
/// back might be another process's when the daemon binds it.
pub(super) fn address_of_its_own() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high | 128, low, NEXT.fetch_add(1, Ordering::Relaxed));
    SocketAddr::from((ip, 9470))
}

pub(super) fn shared(plane: &FakePlane) -> Arc<Shared> {
    shared_by(plane, config(WEB))
}

pub(super) fn shared_by(plane: &FakePlane, config: BalancerConfig) -> Arc<Shared> {
    let engine = Engine::start(Box::new(plane.clone()), config, START).unwrap();
    let status = Status {
        version: String::new(),
        interface: "eth0".to_owned(),
        mode: "native".to_owned(),
        took_over: false,
        pid: 0,
        started: Moment::default(),
        interval_ns: 100 * MS,
        config_file: String::new(),
        last_reload_error: None,
        last_good: false,
        unfinished: None,
        state_error: None,
        data_plane_error: None,
        held_vips: Vec::new(),
    };
    Arc::new(Shared::new(engine, status, "lb.toml".into()))
}

/// An engine that is held, as by a reload of many VIPs.
pub(super) struct HeldEngine {
    let_go: mpsc::Sender<()>,
    holder: thread::JoinHandle<bool>,
}

impl HeldEngine {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        let (taken, is_taken) = mpsc::channel();
        let (let_go, is_let_go) = mpsc::channel();
        let shared = Arc::clone(shared);
        let holder = thread::spawn(move || {
            let _engine = shared.engine();
            taken.send(()).unwrap();
            is_let_go.recv_timeout(TIMEOUT).is_ok()
        });
        is_taken.recv().unwrap();
        Self { let_go, holder }
    }

    /// Whether it came to this while the engine was held.
    pub(super) fn let_go(self) -> bool {
        let _ = self.let_go.send(());
        self.holder.join().unwrap()
    }
}

/// The runtime has two threads, which probes that are out, and requests, need.
#[tokio::test]
async fn probes_and_discovery_wait_for_the_engine_where_they_keep_nobody_waiting() {
    let shared = shared(&FakePlane::default());
    let probes: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(probe::run(shared.clone()));
    let discovery = Box::pin(discovery::run(shared.clone()));
    for (what, run) in [("probes", probes), ("discovery", discovery)] {
        let held = HeldEngine::of(&shared);
        let running = tokio::spawn(run);
        // There is one thread here.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(held.let_go(), "{what}");
        running.abort();
    }
}

#[test]
fn a_control_loop_that_fails_ends_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let listeners = Listeners::bind((&dir.path().join("lb.sock"), None), None, None).unwrap();
    let plane = FakePlane::default();
    let shared = shared(&plane);
    plane.state().panic = true;
    let (tell, told) = mpsc::channel();
    let process = Process::begin().unwrap();
    thread::spawn(move || tell.send(serve::serve(process, shared, listeners, None)));
    let error = told.recv_timeout(TIMEOUT).unwrap().unwrap_err();
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("the control loop has failed"),
        "{sentence}"
    );
}

#[test]
fn a_file_in_the_place_of_the_socket_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "mine").unwrap();
    let error = Listeners::bind((&path, None), None, None).err().unwrap();
    assert!(
        error
            .to_string()
            .ends_with("is not a socket; set `socket` to another path")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn of_daemons_that_start_at_a_time_one_has_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("lb.sock");
    for _ in 0..50 {
        // One that a killed daemon has left.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        // A program that another test starts has a copy of it until it runs.
        let end = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&socket).is_ok() {
            assert!(Instant::now() < end, "somebody listens there");
        }
        let start = Arc::new(std::sync::Barrier::new(4));
        let starts = [(); 4].map(|()| {
            let (start, socket) = (Arc::clone(&start), socket.clone());
            thread::spawn(move || {
                start.wait();
                Listeners::bind((&socket, None), None, None).ok()
            })
        });
        let bound: Vec<_> = starts
            .into_iter()
            .filter_map(|start| start.join().unwrap())
            .collect();
        assert_eq!(bound.len(), 1);
        assert!(UnixStream::connect(&socket).is_ok());
        drop(bound);
        assert!(!socket.exists());
    }
}

#[test]
fn requests_in_progress_are_answered_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lb.sock");
    let listeners = Listeners::bind((&path, None), None, None).unwrap();
    let (asked, mut stop) = tokio::sync::mpsc::unbounded_channel();
    let slow = move || {
        let _ = asked.send(());
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "done"
        }
    };
    let routers = Routers {
        unix: Router::new().route("/", get(slow)),
        tcp: Router::new(),
        rules: Rules::PLAIN,
    };
    let process = Process::begin().unwrap();
    let server = thread::spawn(move || {
        let failed = async {
            let _ = stop.recv().await;
            anyhow::anyhow!("the test is over")
        };
        let reload = || Ok::<_, String>(String::new());
        process::serve_routers(process, routers, &listeners, work(reload, failed))
    });
    assert!(ask(&path).ends_with("\r\n\r\ndone"));
    assert!(server.join().unwrap().is_err());
}

#[test]
fn a_squatted_port_does_not_prevent_a_start() {
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let address = squatter.local_addr().unwrap();
    let listeners =
        Listeners::bind((&dir.path().join("lb.sock"), None), Some(address), None).unwrap();
    assert!(UnixStream::connect(listeners.socket()).is_ok());
}

/// Neither who holds all the connections there can be, nor who says half a word, keeps others
/// out for long; and the Unix socket does not notice.
#[test]
fn who_holds_connections_keeps_nobody_out() {
    let address = address_of_its_own();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lb.sock");
    let listeners = Listeners::bind((&path, None), Some(address), None).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let process = Process::begin().unwrap();
    let server = thread::spawn(move || {
        let failed = async {
            let _ = ended.await;
            anyhow::anyhow!("the test is over")
        };
        let page = || Router::new().route("/", get(|| async { "done" }));
        let routers = Routers {
            unix: page(),
            tcp: page(),
            rules: Rules::PLAIN,
        };
        let reload = || Ok::<_, String>(String::new());
        process::serve_routers(process, routers, &listeners, work(reload, failed))
    });
    let connect = |_| {
        let mut held = TcpStream::connect(address).unwrap();
        held.write_all(b"GET / HT").unwrap();
        held
    };
    let held: Vec<TcpStream> = (0..100).map(connect).collect();
    assert!(ask(&path).ends_with("\r\n\r\ndone"));
    let mut last = TcpStream::connect(address).unwrap();
    last.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
    write!(last, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\ndone"), "{answer}");
    // A web page that has bound its own name to this address gets nothing.
    for (host, status) in [
        ("attacker.example", "421"),
        ("attacker.example:9470", "421"),
        ("LOCALHOST:9470", "200"),
        ("127.0.0.1", "200"),
        ("[::1]:9470", "200"),
    ] {
        let mut asking = TcpStream::connect(address).unwrap();
        asking.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
        write!(asking, "GET / HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.0 {status} ")),
            "{host}: {answer}"
        );
    }
    // Nor does one by a port that ssh forwards to the Unix socket, but for our own.
    for (origin, host, status) in [
        ("http://attacker.example", "localhost:9470", "403"),
        (
            "http://attacker.example:9470",
            "attacker.example:9470",
            "403",
        ),
        ("http://localhost:8000", "localhost:9470", "403"),
        ("null", "localhost:9470", "403"),
        ("http://localhost:9470", "localhost:9470", "200"),
    ] {
        let mut asking = UnixStream::connect(&path).unwrap();
        write!(
            asking,
            "GET / HTTP/1.0\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        let begin = format!("HTTP/1.0 {status} ");
        assert!(answer.starts_with(&begin), "{origin}: {answer}");
    }
    drop((held, end));
    assert!(server.join().unwrap().is_err());
}

#[test]
fn a_reload_that_is_asked_for_during_the_start_comes_after_it() {
    let _alone = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let listeners = Listeners::bind((&dir.path().join("lb.sock"), None), None, None).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let process = Process::begin().unwrap();
        raise(Signal::SIGHUP).unwrap();
        let routers = Routers {
            unix: Router::new(),
            tcp: Router::new(),
            rules: Rules::PLAIN,
        };
        let (reloaded, mut stop) = tokio::sync::mpsc::unbounded_channel();
        let failed = async {
            let _ = stop.recv().await;
            anyhow::anyhow!("the test is over")
        };
        let reload = move || reloaded.send(()).map(|()| String::new());
        tell.send(process::serve_routers(
            process,
            routers,
            &listeners,
            work(reload, failed),
        ))
    });
    let error = told.recv_timeout(TIMEOUT).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the test is over");
}

#[test]
fn a_reload_that_hangs_holds_up_nothing_else_and_the_next_one_comes_after_it() {
    let _alone = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let listeners = Listeners::bind((&dir.path().join("lb.sock"), None), None, None).unwrap();
    let (begun, begins) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let (end, mut ended) = tokio::sync::mpsc::unbounded_channel::<()>();
    let (catch, caught) = mpsc::channel();
    let server = thread::spawn(move || {
        let process = Process::begin().unwrap();
        let routers = Routers {
            unix: Router::new().route("/", get(async || "here")),
            tcp: Router::new(),
            rules: Rules::PLAIN,
        };
        let reload = move || {
            begun.send(()).unwrap();
            goes_on.lock().unwrap().recv().map(|()| String::new())
        };
        let failed = async {
            let _ = ended.recv().await;
            anyhow::anyhow!("the test is over")
        };
        catch.send(()).unwrap();
        process::serve_routers(process, routers, &listeners, work(reload, failed))
    });
    caught.recv_timeout(TIMEOUT).unwrap();
    raise(Signal::SIGHUP).unwrap();
    begins.recv_timeout(TIMEOUT).unwrap();
    // Two more, while it hangs: one reload for both.
    raise(Signal::SIGHUP).unwrap();
    raise(Signal::SIGHUP).unwrap();
    assert!(ask(&dir.path().join("lb.sock")).ends_with("here"));
    assert!(begins.try_recv().is_err(), "one at a time");
    go_on.send(()).unwrap();
    begins.recv_timeout(TIMEOUT).unwrap();
    end.send(()).unwrap();
    let error = server.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the test is over", "though one hangs");
    drop(go_on);
    assert!(begins.try_recv().is_err());
}

/// Work that goes on, and is over when `failed` says so.
fn work<R, F>(reload: R, failed: F) -> Work<R, impl FnMut() -> bool, F> {
    Work {
        reload,
        works: || true,
        failed,
    }
}

fn ask(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
