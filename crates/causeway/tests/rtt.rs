// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt` against its own server on the loopback interface, and the server
//! against strangers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A server on a free port; killed when dropped.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start(address: &str, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["rtt", "serve", "-L", address, "-p", "0"])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .expect("causeway runs");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
        stderr.read_line(&mut line).expect("the first line");
        let at = line
            .split(' ')
            .find_map(|word| word.trim_end_matches(';').parse().ok())
            .unwrap_or_else(|| panic!("no address in {line:?}"));
        Self { child, at }
    }

    fn client(&self, arguments: &[&str]) -> Output {
        client(self.at, arguments)
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).expect("connect");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("a timeout");
        stream
    }

    fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &process]).status();
        assert!(status.expect("kill runs").success(), "{name}");
    }

    /// What the server answers to a first line, until it closes.
    fn answer_to(&self, bytes: &[u8]) -> String {
        let mut stream = self.stranger();
        // It may close while we write.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(at: SocketAddr, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["rtt", &at.ip().to_string(), "-p", &at.port().to_string()])
        .args(arguments)
        .output()
        .expect("causeway runs")
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).expect("JSON")
}

fn row<'a>(report: &'a Value, method: &str, end: &str) -> &'a Value {
    let rows = report["methods"].as_array().expect("methods");
    let found = rows
        .iter()
        .find(|r| r["method"] == method && r["end"] == end);
    found.unwrap_or_else(|| panic!("no {method} at the {end} in {report}"))
}

#[test]
fn requests_are_answered_over_both_transports_and_both_ip_versions() {
    for address in ["127.0.0.1", "::1"] {
        let server = Server::start(address, &[]);
        for (transport, sizes) in [("tcp", "1,2"), ("tcp", "100000,300000"), ("udp", "64,1200")] {
            let arguments = [
                "-t", transport, "-r", sizes, "-l", "-40", "-m", "rr", "-o", "json",
            ];
            let report = json(&server.client(&arguments));
            let rr = row(&report, "rr", "client");
            assert_eq!(rr["count"], 40, "{address} {transport} {sizes}");
            assert_eq!(report["server_transactions"], 40);
            assert_eq!(report["timeouts"], 0);
            assert!(
                rr["min_us"].as_f64() > Some(0.0) && rr["p99_us"].as_f64() <= rr["max_us"].as_f64()
            );
        }
    }
}

/// As netperf's TCP_CRR: a handshake is a part of each transaction, and the server closes first.
#[test]
fn each_request_has_a_connection_of_its_own_that_the_server_closes() {
    for address in ["127.0.0.1", "::1"] {
        let server = Server::start(address, &[]);
        for sizes in ["1,2", "100000,300000"] {
            let arguments = [
                "-t",
                "TCP_CRR",
                "-r",
                sizes,
                "-l",
                "-40",
                "--streams",
                "3",
                "-m",
                "rr,connect,tcp",
                "-o",
                "json",
            ];
            let report = json(&server.client(&arguments));
            let (rr, connect) = (
                row(&report, "rr", "client"),
                row(&report, "connect", "client"),
            );
            assert_eq!(rr["count"], 120);
            assert_eq!(connect["count"], 120);
            for key in ["min_us", "p50_us"] {
                assert!(rr[key].as_f64() > connect[key].as_f64(), "{key}: {report}");
            }
            assert_eq!(report["server_transactions"], 120);
            for end in ["client", "server"] {
                assert_eq!(report["tcp"][end]["streams"], 120, "{end}: {report}");
            }
            assert_eq!(report["timeouts"], 0);
            assert_eq!(report["failed"], 0);
            assert_eq!(report["conditions"]["connection_each"], true);
        }
        let (at_server, at_client) = time_wait(server.at);
        // The client ends the control connections.
        assert!(at_server > 0 && at_client <= 2, "{at_server} {at_client}");
    }
}

/// Connections of a server in TIME-WAIT: at its end, and at the other. IPv4 and IPv6, of this
/// thread's namespace.
fn time_wait(at: SocketAddr) -> (usize, usize) {
    let version = if at.is_ipv6() { "tcp6" } else { "tcp" };
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{version}"));
    let table = table.expect("the kernel's table");
    let port = format!(":{:04X}", at.port());
    let waits = |column: usize| {
        let lines = table.lines().map(|line| line.split_whitespace());
        let fields = lines.map(Iterator::collect::<Vec<_>>);
        fields
            .filter(|of| of[3] == "06" && of[column].ends_with(&port))
            .count()
    };
    (waits(1), waits(2))
}

/// A connection each, too, has its values at both interfaces. Needs root.
#[test]
fn handshakes_of_single_requests_are_seen_on_the_interface() {
    let server = Server::start("127.0.0.1", &["-i", "lo", "-m", "synack"]);
    let arguments = [
        "-t",
        "tcp-crr",
        "-m",
        "rr,connect,synack",
        "-i",
        "lo",
        "-l",
        "-40",
        "-w",
        "5ms",
        "-o",
        "json",
    ];
    let report = json(&server.client(&arguments));
    assert_eq!(row(&report, "synack", "client")["count"], 40, "{report}");
    // Of the last ones it does not know yet.
    let there = row(&report, "synack", "server")["count"].as_u64();
    assert!(there > Some(0), "{report}");
}

/// The kernel drops the SYN, and sends it again after a second.
#[test]
fn a_syn_that_is_lost_shows_as_a_long_handshake() {
    in_namespace(|| {
        std::fs::write("/proc/sys/net/core/somaxconn", "1").expect("a setting");
        let server = Server::start("127.0.0.1", &[]);
        let child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["rtt", "127.0.0.1", "-p", &server.at.port().to_string()])
            .args(["-t", "tcp-crr", "--streams", "8", "--rate", "20", "-l", "4"])
            .args(["-m", "rr,connect", "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("causeway runs");
        let end = Instant::now() + Duration::from_secs(60);
        let until = |what: &str, is: &dyn Fn() -> bool| {
            while !is() {
                assert!(Instant::now() < end, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        until("no transaction", &|| time_wait(server.at).0 > 0);
        server.signal("STOP");
        // Two wait to be accepted; there is room for no more.
        let before = listen_drops();
        until("no SYN was dropped", &|| listen_drops() > before);
        server.signal("CONT");
        let report = json(&child.wait_with_output().expect("causeway ends"));
        let (rr, connect) = (
            row(&report, "rr", "client"),
            row(&report, "connect", "client"),
        );
        assert!(connect["max_us"].as_f64() > Some(990_000.0), "{report}");
        assert!(
            rr["max_us"].as_f64() > connect["max_us"].as_f64(),
            "{report}"
        );
        assert_eq!(report["timeouts"], 0);
        assert_eq!(report["failed"], 0);
        assert_eq!(rr["count"], report["server_transactions"]);
    });
}

/// SYNs that listeners of this thread's namespace had no room for.
fn listen_drops() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "ListenDrops").expect("it");
    value.parse().expect("a number")
}

#[test]
fn a_transaction_without_a_free_port_is_counted_and_told() {
    in_namespace(|| {
        let server = Server::start("127.0.0.1", &[]);
        let run = |ports: &str| {
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports).expect("a setting");
            server.client(&[
                "-t",
                "tcp-crr",
                "-l",
                "-20",
                "--streams",
                "2",
                "-m",
                "rr",
                "-o",
                "json",
            ])
        };
        // The control connection takes one.
        let output = run("50000 50000");
        assert_eq!(output.status.code(), Some(1));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["failed"], 40, "{report}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.starts_with("40 transactions failed (no local port was free"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        // Two take turns at the other.
        let report = json(&run("50002 50003"));
        let answered = row(&report, "rr", "client")["count"].as_u64().expect("it");
        assert_eq!(Some(40 - answered), report["failed"].as_u64(), "{report}");
        assert_eq!(report["server_transactions"], answered);
    });
}

#[test]
fn a_server_that_knows_no_single_requests_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut line = String::new();
        let read = BufReader::new(&stream).read_line(&mut line);
        assert!(read.is_ok_and(|len| len > 0));
        let welcome = b"{\"token\":\"0123456789abcdef\",\"kernel\":\"6.1\"}\n";
        stream.write_all(welcome).expect("it is there");
    });
    let output = client(at, &["-t", "tcp-crr", "-l", "-1", "-m", "rr"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("does not know -t tcp-crr"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn both_kernels_are_asked_and_ping_closes_as_ping_does() {
    let server = Server::start("127.0.0.1", &[]);
    let arguments = [
        "-l",
        "0.5",
        "-w",
        "5m",
        "--ping-interval",
        "50ms",
        "--histogram",
    ];
    let table = text(&server.client(&arguments));
    for expected in [
        "tcp     client",
        "tcp     server",
        "closed loop, 5.00 ms between",
        "coordinated omission",
        "0% packet loss, time",
        "rtt min/avg/max/mdev = ",
        " minrtt:",
        "TEN_USEC      :    0:",
    ] {
        assert!(table.contains(expected), "{expected} is not in\n{table}");
    }
}

#[test]
fn a_slow_application_is_no_network_trouble() {
    let server = Server::start("127.0.0.1", &["--service", "100ms"]);
    let arguments = ["-l", "-40", "-x", "-o", "json", "--streams", "2"];
    let report = json(&server.client(&arguments));
    let p50 = row(&report, "rr", "client")["p50_us"].as_f64();
    assert!(p50 > Some(100_000.0), "{report}");
    // On a busy machine there is more to say.
    let verdicts = report["explain"]["verdicts"].as_array();
    let mut verdicts = verdicts.expect("verdicts").iter();
    assert!(
        verdicts.any(|verdict| *verdict == "slow-application"),
        "{report}"
    );
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    // Ten requests a second's worth of service, a hundred asked for: each waits for
    // all before it, and a closed loop would not have noticed.
    let server = Server::start("127.0.0.1", &["--service", "20ms"]);
    let arguments = ["-l", "-25", "--rate", "100", "-m", "rr", "-o", "json"];
    let report = json(&server.client(&arguments));
    assert_eq!(report["conditions"]["loop"], "open");
    let max = row(&report, "rr", "client")["max_us"].as_f64();
    // The last one leaves at 24 x 20 ms instead of 24 x 10 ms.
    assert!(max > Some(200_000.0), "{report}");
    assert!(report["late"].as_u64() > Some(20), "{report}");
}

#[test]
fn selectors_and_logs_are_what_scripts_expect() {
    let server = Server::start("127.0.0.1", &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let (log, page) = (dir.path().join("run.hlog"), dir.path().join("run.html"));
    let output = server.client(&[
        "-t",
        "TCP_RR",
        "-B",
        "brand",
        "-l",
        "-100",
        "-w",
        "-1m",
        "-b",
        "1",
        "-r",
        "1,2",
        "-o",
        "result_brand,MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY",
        "--hdr-log",
        &log.to_string_lossy(),
        "--html",
        &page.to_string_lossy(),
    ]);
    let lines = text(&output);
    let (heading, row) = lines.split_once('\n').expect("two lines");
    assert_eq!(
        heading,
        "Result Tag,Minimum Latency Microseconds,Mean Latency Microseconds,50th Percentile Latency Microseconds,90th Percentile Latency Microseconds,99th Percentile Latency Microseconds"
    );
    assert!(row.starts_with("brand,"), "{row}");
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(
        log.contains("Tag=rr,") && log.contains("Tag=server-tcp,"),
        "{log}"
    );
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("<svg") && !page.contains("src=\"http"));
    let lines = text(&server.client(&["-l", "-10", "-k", "TRANSACTION_RATE,P99_LATENCY"]));
    assert!(lines.starts_with("TRANSACTION_RATE=") && lines.contains("\nP99_LATENCY="));
}

/// Over the loopback interface both samplers see every packet twice, once out and
/// once in; that is not a network, but each method has its values. Needs root.
#[test]
fn every_method_measures_at_once() {
    let watched = "sampled,synack,timestamps,causal";
    let server = Server::start("127.0.0.1", &["-i", "lo", "-N", "1", "-m", watched]);
    let all = "rr,tcp,sampled,ping,synack,timestamps,causal";
    let report = json(&server.client(&["-l", "1", "-w", "2m", "-N", "1", "-m", all, "-o", "json"]));
    for method in all.split(',') {
        let row = row(&report, method, "client");
        assert!(row["count"].as_u64() > Some(0), "{report}");
    }
    for method in watched.split(',') {
        let row = row(&report, method, "server");
        assert!(row["count"].as_u64() > Some(0), "{report}");
    }
    assert_eq!(row(&report, "synack", "client")["count"], 1);
    assert_eq!(row(&report, "synack", "server")["count"], 1);
    assert!(row(&report, "sampled", "server")["bucket_p50_ms"].as_f64() > Some(0.0));
    assert_eq!(report["conditions"]["server_sample"], 1);
}

#[test]
fn what_is_not_there_is_one_sentence() {
    let nobody = "127.0.0.1:9".parse().expect("an address");
    let output = client(nobody, &["-l", "-1"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("no `causeway rtt serve` answers at 127.0.0.1 port 9"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn strangers_get_a_sentence_and_nothing_else() {
    let server = Server::start("127.0.0.1", &[]);
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "none of its protocol"),
        (b"rr 0123456789abcdef\n", "no such session"),
        (
            b"{\"causeway_rtt\":99,\"request\":1,\"response\":1}\n",
            "speaks version 99",
        ),
        (
            b"{\"causeway_rtt\":1,\"request\":0,\"response\":1}\n",
            "have 1 to 1048576 bytes",
        ),
        (
            b"{\"causeway_rtt\":1,\"request\":1,\"response\":4000000000}\n",
            "have 1 to",
        ),
        (b"\n", "none of its protocol"),
    ] {
        let answer = server.answer_to(bytes);
        assert!(answer.contains(expected), "{answer:?}");
    }
    // Nothing that its client would take for the response.
    assert_eq!(server.answer_to(b"crr 0123456789abcdef\nr"), "");
    // Endless lines are cut off, and nothing is kept of them.
    let answer = server.answer_to(&vec![b'x'; 1 << 20]);
    assert!(answer.len() < 200, "{answer:?}");
    // A client that sends nothing is disconnected.
    let mut silent = server.stranger();
    let ended = silent.read_to_end(&mut Vec::new());
    assert!(ended.is_ok(), "{ended:?}");
    // And the server still serves.
    let report = json(&server.client(&["-l", "-10", "-m", "rr", "-o", "json"]));
    assert_eq!(row(&report, "rr", "client")["count"], 10);
}

#[test]
fn sessions_are_bounded_and_end_with_their_client() {
    let server = Server::start("127.0.0.1", &[]);
    let hello = b"{\"causeway_rtt\":1,\"request\":1,\"response\":1}\n";
    let mut held = Vec::new();
    let refused = loop {
        let mut stream = server.stranger();
        stream.write_all(hello).expect("write");
        let mut line = String::new();
        BufReader::new(stream.try_clone().expect("clone"))
            .read_line(&mut line)
            .expect("an answer");
        if line.contains("error") {
            break line;
        }
        held.push(stream);
        assert!(held.len() <= 64, "no bound");
    };
    assert!(refused.contains("64 clients are being served"), "{refused}");
    drop(held);
    let end = Instant::now() + Duration::from_secs(60);
    while !server.client(&["-l", "-1", "-m", "rr"]).status.success() {
        assert!(Instant::now() < end, "sessions do not end");
    }
}

/// An outage ends no run, and what it took is in the percentiles.
#[test]
fn answers_that_do_not_come_in_time_are_waited_for_and_counted() {
    // Within its timeout a connection must be opened, too.
    let server = Server::start("127.0.0.1", &["--service", "12s"]);
    let began = Instant::now();
    let arguments = ["-l", "10", "--timeout", "4s", "-m", "rr", "-o", "json"];
    let report = json(&server.client(&arguments));
    assert!(began.elapsed() >= Duration::from_secs(10));
    let timeouts = report["timeouts"].as_u64().expect("timeouts");
    assert!(timeouts >= 2, "{report}");
    let rr = row(&report, "rr", "client");
    assert!(rr["p50_us"].as_f64() >= Some(4_000_000.0), "{rr}");
    let each = [
        "-t",
        "tcp-crr",
        "-l",
        "2",
        "--timeout",
        "500ms",
        "-m",
        "rr",
        "-o",
        "json",
    ];
    let report = json(&server.client(&each));
    let rr = row(&report, "rr", "client");
    assert!(rr["min_us"].as_f64() >= Some(500_000.0), "{report}");
    assert_eq!(report["timeouts"], rr["count"]);
}

/// What a connection was that another has taken the place of is in the figures, and what
/// the interface shows of the other one counts. Needs root.
#[test]
fn a_connection_in_the_place_of_another_is_measured_like_it() {
    let server = Server::start("127.0.0.1", &[]);
    let arguments = [
        "-m",
        "rr,tcp,synack",
        "-i",
        "lo",
        "-l",
        "-30",
        "--timeout",
        "2s",
        "-w",
        "5ms",
        "-o",
        "json",
        "-r",
        "1,1",
    ];
    // Behind its answer to the opening and twenty responses.
    let report = json(&client(broken(&server, Breaks::Silent(23)), &arguments));
    // A busy machine may have more.
    let timeouts = report["timeouts"].as_u64().expect("timeouts");
    assert!(timeouts >= 1, "{report}");
    assert_eq!(row(&report, "rr", "client")["count"], 30);
    // A line that opens each, and the requests.
    let segments = report["tcp"]["client"]["data_segs_out"].as_u64();
    assert!(segments >= Some(32), "{report}");
    let opened = row(&report, "synack", "client")["count"].as_u64();
    assert_eq!(opened, Some(1 + timeouts), "{report}");
}

/// A stream that loses its answer opens another: only those that are open count.
#[test]
fn streams_that_have_ended_make_room_for_others() {
    let server = Server::start("127.0.0.1", &[]);
    let mut control = server.stranger();
    let hello = b"{\"causeway_rtt\":1,\"request\":1,\"response\":1,\"udp_ports\":[]}\n";
    control.write_all(hello).expect("it listens");
    let mut welcome = String::new();
    let mut lines = BufReader::new(&control);
    lines.read_line(&mut welcome).expect("a welcome");
    let welcome: Value = serde_json::from_str(&welcome).expect("JSON");
    let token = welcome["token"].as_str().expect("a token");
    for n in 0..1001 {
        let mut stream = server.stranger();
        let opening = format!("rr {token}\nr");
        stream.write_all(opening.as_bytes()).expect("it listens");
        let mut answer = [0; 4];
        let read = stream.read_exact(&mut answer);
        assert!(read.is_ok() && answer.starts_with(b"ok\n"), "{n}: {read:?}");
    }
    // Its sums are those of all.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        (&control).write_all(b"\"report\"\n").expect("it is there");
        let mut report = String::new();
        lines.read_line(&mut report).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["transactions"], 1001, "{report}");
        if report["tcp"]["data_segs_out"].as_u64() >= Some(2002) {
            break;
        }
        assert!(Instant::now() < end, "{report}");
    }
}

/// Any listener will do for its handshakes, and each interval is printed as it ends.
#[test]
fn handshakes_need_no_server_of_ours() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let arguments = ["-m", "synack", "--ping-interval", "20ms", "-l", "-30"];
    let mut json_too = arguments.to_vec();
    json_too.extend(["-o", "json"]);
    let report = json(&client(at, &json_too));
    assert_eq!(row(&report, "synack", "client")["count"], 30, "{report}");
    assert_eq!(report["connections"]["opened"], 30);
    // An interval without any prints nothing: they are spread over many.
    let mut live = arguments.to_vec();
    live[3] = "100ms";
    live.extend(["-D", "200ms"]);
    let output = client(at, &live);
    assert!(text(&output).contains("30 connections to port"));
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        lines.lines().count() >= 2 && lines.contains(" s  synack "),
        "{lines}"
    );
    drop(listener);
    // A program that another test starts has a copy of it until it runs.
    let end = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(at).is_ok() {
        assert!(Instant::now() < end, "{at} is open");
    }
    let refused = client(at, &arguments);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("refuses connections at port"), "{error}");
    assert!(!refused.status.success());
}

/// What a connection on the way to the server is broken at.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    /// The control connection, when the client asks for the report.
    Report,
    /// Streams, behind so many bytes of the server.
    Streams(u64),
    /// The first stream, which stays open and gets nothing more behind so many bytes.
    Silent(u64),
}

/// Stands between a client and the server, and breaks what is on its way.
fn broken(server: &Server, breaks: Breaks) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (here, there) = (listener.local_addr().expect("an address"), server.at);
    thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let Ok(mut client) = client else { return };
            let mut server = TcpStream::connect(there).expect("connect");
            let most = match breaks {
                Breaks::Streams(bytes) if n > 0 => bytes,
                Breaks::Silent(bytes) if n == 1 => bytes,
                _ => u64::MAX,
            };
            let mut lines = (
                client.try_clone().expect("a handle"),
                server.try_clone().expect("a handle"),
            );
            thread::spawn(move || {
                if n == 0 && breaks == Breaks::Report {
                    // Greeting and answer, and then the question.
                    let mut from = BufReader::new(&client);
                    for _ in 0..2 {
                        let mut line = String::new();
                        from.read_line(&mut line).expect("a line");
                        if !line.contains("report") {
                            server.write_all(line.as_bytes()).expect("it is there");
                        }
                    }
                } else {
                    let _ = io::copy(&mut client, &mut server);
                }
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let (to, from) = &mut lines;
                let _ = io::copy(&mut (&mut *from).take(most), to);
                if matches!(breaks, Breaks::Silent(_)) {
                    let _ = io::copy(from, &mut io::sink());
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    here
}

/// An end that is not a clean one costs what it hides, and not what was measured.
#[test]
fn what_was_measured_outlives_a_connection_that_breaks() {
    let server = Server::start("127.0.0.1", &[]);
    let arguments = ["-r", "1,1", "-m", "rr", "-l", "-50", "-o", "json"];
    for (breaks, count, told) in [
        (Breaks::Report, 50, "the server's report is missing ("),
        // Behind the three bytes of its answer to the opening.
        (Breaks::Streams(23), 20, "a stream ended early ("),
    ] {
        let output = client(broken(&server, breaks), &arguments);
        let report = json(&output);
        assert_eq!(row(&report, "rr", "client")["count"], count);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.starts_with(told) && error.lines().count() == 1,
            "{error}"
        );
    }
    // Nothing at all is a failure, with its cause.
    let output = client(broken(&server, Breaks::Streams(3)), &arguments);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("a stream ended early ("), "{error}");
}

/// The exit code says that something is missing, and the table is there.
#[test]
fn what_was_measured_outlives_a_file_that_takes_nothing() {
    let server = Server::start("127.0.0.1", &[]);
    for option in ["--hdr-log", "--html"] {
        let output = server.client(&["-l", "1", "-w", "5m", "-m", "rr", option, "/dev/full"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{option}: {error}");
        assert!(error.contains("cannot write /dev/full: "), "{error}");
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(table.contains("rr      client"), "{option}: {table}");
    }
    // Where it is known before, nothing is measured for nothing.
    let began = Instant::now();
    let output = server.client(&["-l", "20", "-m", "rr", "--html", "/nonexistent/page"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// Translators of addresses forget connections that say nothing.
#[test]
fn a_silent_connection_is_kept_alive_by_the_server() {
    let server = Server::start("127.0.0.1", &[]);
    let mut control = server.stranger();
    let hello = b"{\"causeway_rtt\":1,\"request\":1,\"response\":1,\"udp_ports\":[]}\n";
    control.write_all(hello).expect("it listens");
    let mut welcome = String::new();
    let read = BufReader::new(&control).read_line(&mut welcome);
    assert!(
        read.is_ok_and(|len| len > 0) && welcome.contains("token"),
        "{welcome}"
    );
    let port = |at: io::Result<SocketAddr>| format!(":{:04X}", at.expect("an address").port());
    let (ours, its) = (port(control.local_addr()), port(control.peer_addr()));
    // Its timer is that of signs of life once the welcome is acknowledged, and due within a
    // minute: in hundredths of a second.
    let start = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
        let mut lines = table.lines().map(|line| line.split_whitespace());
        let fields = lines.find_map(|line| {
            let fields: Vec<&str> = line.collect();
            (fields[1].ends_with(&its) && fields[2].ends_with(&ours)).then_some(fields)
        });
        let fields = fields.unwrap_or_else(|| panic!("no {its} in {table}"));
        let (timer, due) = fields[5].split_once(':').expect("timer and time");
        if timer == "02" {
            assert!(
                u64::from_str_radix(due, 16).is_ok_and(|due| due <= 6_000),
                "{due}"
            );
            return;
        }
        assert!(start.elapsed().as_secs() < 60, "{timer}:{due}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn each_interval_of_a_log_begins_where_the_one_before_ended() {
    let server = Server::start("127.0.0.1", &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("rr.hlog");
    let name = path.to_str().expect("a name");
    let output = server.client(&[
        "-m",
        "rr",
        "-l",
        "1",
        "--wait",
        "1ms",
        "--interval",
        "100ms",
        "--hdr-log",
        name,
    ]);
    text(&output);
    let log = std::fs::read_to_string(&path).expect("the log");
    let seconds = |text: &str| text.parse::<f64>().expect("a number");
    let intervals = log.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("Tag=rr,")?.split(',').map(str::to_owned);
        Some((seconds(&cells.next()?), seconds(&cells.next()?)))
    });
    let mut end_s = 0.0;
    for (start_s, length_s) in intervals {
        // Both are written to the millisecond; one in which nothing came is not.
        assert!(start_s > end_s - 0.003, "{end_s} and then {start_s}\n{log}");
        end_s = start_s + length_s;
    }
    assert!(end_s > 0.0, "{log}");
}

/// A link-local address is one of an interface.
#[test]
fn a_ping_goes_out_by_the_interface_that_is_named() {
    in_namespace(|| {
        for arguments in [
            "link add va type veth peer name vb",
            "addr add fe80::1/64 dev va nodad",
            "addr add fe80::2/64 dev vb nodad",
            "link set va up",
            "link set vb up",
        ] {
            ip(arguments);
        }
        // The kernel takes packets to an IPv6 address in a little later than it has it.
        let is_local = || {
            let routes = Command::new("ip")
                .args(["-6", "route", "show", "table", "local"])
                .output();
            let routes = routes.expect("ip runs").stdout;
            String::from_utf8_lossy(&routes).contains("local fe80::1 dev va")
        };
        let end = Instant::now() + Duration::from_secs(60);
        while !is_local() {
            assert!(Instant::now() < end, "no route to fe80::1");
        }
        let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["rtt", "fe80::1%va", "-m", "ping", "-l", "-3", "-o", "json"])
            .output()
            .expect("causeway runs");
        assert_eq!(row(&json(&output), "ping", "client")["count"], 3);
    });
}

/// Runs a part of a test in a network namespace of its own.
fn in_namespace(part: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("this test needs root: it makes a namespace");
        ip("link set lo up");
        part();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}
