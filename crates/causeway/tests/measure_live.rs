// SPDX-License-Identifier: Apache-2.0
//! `causeway measure -i` on the loopback of a private network namespace, beside
//! what the client itself measures. Needs root and BPF.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DELAY: Duration = Duration::from_millis(5);
const REQUESTS: usize = 300;

/// Runs `test` on a thread with a network of its own; the kernel cleans up.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("this test needs root: it makes a namespace and loads a BPF program");
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .unwrap();
        assert!(up.success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Starts the meter and waits until it is on the interface.
fn start(args: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let (child, stderr, _) = start_on("lo", args);
    (child, stderr)
}

/// [`start`] on another interface; with what it says of the place.
fn start_on(
    interface: &str,
    args: &[&str],
) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-i", interface])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(
        line.starts_with(&format!("measuring on {interface}")),
        "{line}"
    );
    (child, stderr, line)
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// What a command that cannot measure says.
fn refusal(args: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-o", "table"])
        .args(args.split(' '))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{args}");
    String::from_utf8(output.stderr).unwrap()
}

/// Ends the meter as Ctrl-C does; standard output and the rest of standard error.
fn stop(mut child: Child, mut stderr: BufReader<std::process::ChildStderr>) -> (String, String) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    stderr.read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{err}");
    (out, err)
}

/// What a client felt: times to the last byte, in microseconds.
struct Felt(Vec<f64>);

impl Felt {
    fn mean_us(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// A program that waits for a processor once its kernel has the response feels more than the
    /// response took: what is felt promptly is the least, and all of it the most.
    fn assert_near(&self, estimate_us: f64, out: &str) {
        let (least_us, most_us) = (0.95 * self.prompt_us(), 1.05 * self.mean_us());
        assert!(
            (least_us..most_us).contains(&estimate_us),
            "{estimate_us} us estimated, {least_us} to {most_us} felt\n{out}"
        );
    }

    /// The mean of those in which neither side waited long for a processor.
    fn prompt_us(&self) -> f64 {
        let most_us = (DELAY + Duration::from_millis(2)).as_secs_f64() * 1e6;
        let prompt: Vec<f64> = self.0.iter().copied().filter(|&us| us < most_us).collect();
        Self(prompt).mean_us()
    }
}

/// One request after the other.
fn converse(listener: &TcpListener) -> Felt {
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            let mut request = [0; 100];
            while peer.read_exact(&mut request).is_ok() {
                thread::sleep(DELAY);
                peer.write_all(&[0; 1000]).unwrap();
            }
        });
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nodelay(true).unwrap();
        let mut felt = Vec::new();
        for _ in 0..REQUESTS {
            let sent = Instant::now();
            client.write_all(&[0; 100]).unwrap();
            client.read_exact(&mut [0; 1000]).unwrap();
            felt.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        Felt(felt)
    })
}

#[test]
fn live_estimates_are_the_client_s() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let (child, stderr) = start(&["-o", "csv", "--epoch", "200ms"]);
        let felt = converse(&listener);
        let (out, err) = stop(child, stderr);
        let mut lines = out.lines();
        let header = "proto,src,sport,dst,dport,epoch_start_ns,estimate_us,samples,window,quality";
        assert_eq!(lines.next(), Some(header));
        let (mut sum_us, mut samples) = (0.0, 0.0);
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(
                (fields[0], fields[3], fields[4]),
                ("6", "127.0.0.1", "8080"),
                "{line}"
            );
            assert_eq!(fields[5].parse::<u64>().unwrap() % 200_000_000, 0);
            let count: f64 = fields[7].parse().unwrap();
            sum_us += fields[6].parse::<f64>().unwrap() * count;
            samples += count;
        }
        assert!(
            samples >= REQUESTS as f64 * 0.95,
            "{samples} samples\n{out}"
        );
        felt.assert_near(sum_us / samples, &out);
        assert!(err.starts_with("packets: measured "), "{err}");
    });
}

#[test]
fn the_table_sums_up_when_the_meter_ends() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let (child, stderr) = start(&["--per", "server"]);
        converse(&listener);
        let (out, _) = stop(child, stderr);
        let lines: Vec<Vec<&str>> = out
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 2, "{out}");
        assert_eq!(lines[1][..2], ["tcp", "127.0.0.1:8080"], "{out}");
    });
}

#[test]
fn an_unknown_interface_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-i", "nosuch0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nosuch0"), "{error}");
}

/// A packet socket sees both directions, so that every estimator runs.
#[test]
fn without_bpf_every_estimator_runs() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let names = "window-chain,seq-ack,handshake";
        let args = [
            "--no-bpf",
            "--per",
            "server",
            "--percentiles",
            "--estimator",
            names,
            "-o",
            "json",
            "--epoch",
            "1h",
        ];
        let (child, stderr) = start(&[&args[..], &["tcp port 8080"]].concat());
        let felt = converse(&listener);
        let (out, err) = stop(child, stderr);
        let rows: Vec<serde_json::Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |name: &str| {
            let mut mine = rows.iter().filter(|row| row["estimator"] == name);
            mine.next().unwrap_or_else(|| panic!("{name} in {out}"))
        };
        felt.assert_near(of("window-chain")["estimate_us"].as_f64().unwrap(), &out);
        assert!(
            of("window-chain")["p90_us"].as_f64().unwrap() >= 5_000.0,
            "{out}"
        );
        assert_eq!(of("handshake")["samples"], 1);
        assert!(of("seq-ack")["samples"].as_u64().unwrap() > 250, "{out}");
        assert!(
            err.contains("from clients ") && err.contains("from servers "),
            "{err}"
        );
    });
}

#[test]
fn what_the_kernel_cannot_do_goes_by_a_socket_and_says_so() {
    in_namespace(|| {
        for (args, why) in [
            (
                &["--estimator", "spin"][..],
                "since spin runs in user space alone",
            ),
            (
                &["-o", "csv", "--percentiles"],
                "since the kernel has no percentiles of single epochs",
            ),
            (&["port 80"], "since filter expressions run on sockets"),
        ] {
            let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
                .args(["measure", "-i", "lo"])
                .args(args)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stderr = BufReader::new(child.stderr.take().unwrap());
            // The reason comes first; the last line of the start, when it can be stopped.
            let mut said = String::new();
            while !said
                .lines()
                .last()
                .is_some_and(|line| line.starts_with("measuring on lo"))
            {
                assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
            }
            assert!(said.contains(why), "{said}");
            stop(child, stderr);
        }
    });
}

/// Metrics of a running meter, over several estimators, beside an XDP program.
#[test]
fn metrics_and_percentiles_come_from_the_kernel_too() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let (first, first_err) = start(&["-o", "csv"]);
        let args = [
            "--serve",
            "127.0.0.1:9471",
            "--estimator",
            "window-chain,fixed-gap",
        ];
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["measure", "-i", "lo"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut lines = [String::new(), String::new()];
        lines
            .iter_mut()
            .for_each(|line| _ = stderr.read_line(line).unwrap());
        let said = lines.concat();
        assert!(
            said.contains("TC ingress") && said.contains("http://127.0.0.1:9471/metrics"),
            "{said}"
        );
        converse(&listener);
        // Rows come about a second after their epoch, metrics once a second.
        let series = "causeway_measure_latency_seconds_count{estimator=\"window-chain\",proto=\"6\",address=\"127.0.0.1\",port=\"8080\"} ";
        let deadline = Instant::now() + Duration::from_secs(60);
        let page = loop {
            let page = scrape("127.0.0.1:9471");
            let count = page
                .split_once(series)
                .and_then(|(_, rest)| rest.lines().next());
            let count: u64 = count.map_or(0, |count| count.parse().unwrap());
            if count >= REQUESTS as u64 * 9 / 10 {
                break page;
            }
            assert!(Instant::now() < deadline, "{page}");
            thread::sleep(Duration::from_millis(200));
        };
        assert!(page.contains("estimator=\"fixed-gap\""), "{page}");
        assert!(
            page.contains("causeway_measure_packets_total{verdict=\"measured\"}"),
            "{page}"
        );
        let (table, _) = stop(child, stderr);
        let line = table
            .lines()
            .find(|line| line.contains("window-chain"))
            .unwrap();
        assert!(
            line.contains("127.0.0.1:8080") && line.contains(" ms"),
            "{table}"
        );
        stop(first, first_err);
    });
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"),
        "{answer}"
    );
    answer
}

#[test]
fn what_cannot_be_is_one_sentence() {
    for (args, words) in [
        (
            &["-i", "lo", "--serve", "0.0.0.0:9471"][..],
            "would show metrics to the network",
        ),
        (
            &["-i", "lo", "--serve", "127.0.0.1:0", "--per", "flow"],
            "would flood Prometheus",
        ),
        (&["-i", "lo", "--top", "-o", "csv"], "--top shows a table"),
        (
            &["-i", "lo", "--no-bpf", "--next-program", "/x"],
            "is for the meter in the kernel",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .arg("measure")
            .args(args)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains(words) && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn shadow_watches_for_a_time_and_attaches_nothing() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["shadow", "-i", "lo", "--for", "20s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert_eq!(line, "watching lo for 20s; Ctrl-C ends it early\n");
        converse(&listener);
        let link = |words: &[&str], program| {
            let output = Command::new(program).args(words).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let shown = link(&["-d", "link", "show", "lo"], "ip");
        assert!(shown.contains("lo:") && !shown.contains("xdp"), "{shown}");
        let shown = link(&["qdisc", "show", "dev", "lo"], "tc");
        assert!(!shown.contains("clsact"), "{shown}");
        let (out, _) = stop(child, stderr);
        assert!(out.contains("127.0.0.1:8080"), "{out}");
        assert!(out.contains("graded none"), "one server: {out}");
    });
}

#[test]
fn shadow_ends_with_its_interface() {
    in_namespace(|| {
        ip("link add va type veth peer name vb");
        ip("link set va up");
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["shadow", "-i", "va", "--for", "600s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut String::new()).unwrap();
        ip("link del va");
        let mut err = String::new();
        stderr.read_to_string(&mut err).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{err}");
        assert!(err.contains("va was deleted"), "{err}");
    });
}

/// Nothing waits for the end of the program: neither what is closed nor what is silent.
#[test]
fn a_socket_hands_out_what_is_over_while_it_measures() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        // An epoch that does not end here, and one that does.
        for (epoch, closes) in [("1h", true), ("200ms", false)] {
            let args = ["--no-bpf", "-o", "csv", "--per", "flow", "--epoch", epoch];
            let (mut child, stderr) = start(&args);
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            for _ in 0..3 {
                client.write_all(&[0; 100]).unwrap();
                peer.read_exact(&mut [0; 100]).unwrap();
                peer.write_all(&[0; 1000]).unwrap();
                client.read_exact(&mut [0; 1000]).unwrap();
            }
            let open = (!closes).then_some(client);
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let (tell, told) = mpsc::channel();
            thread::spawn(move || lines.for_each(|line| _ = tell.send(line.unwrap())));
            let line = || told.recv_timeout(Duration::from_secs(20));
            let (head, row) = (line(), line());
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
            assert!(child.wait().unwrap().success());
            drop((open, stderr));
            assert!(head.is_ok() && row.is_ok(), "{epoch}: {head:?}, {row:?}");
        }
    });
}

#[test]
fn percentiles_of_some_clients_are_not_the_kernel_s() {
    in_namespace(|| {
        for args in [
            &["--per", "server", "--percentiles"][..],
            &["--serve", "127.0.0.1:0", "--per", "server"],
        ] {
            let args = [args, &["--host", "127.0.0.2"]].concat();
            let (child, stderr, line) = start_on("lo", &args);
            stop(child, stderr);
            assert!(line.contains("through a packet socket, since"), "{line}");
            assert!(line.contains("--host"), "{line}");
        }
    });
}

#[test]
fn an_interface_without_an_ethernet_header_goes_by_the_socket() {
    in_namespace(|| {
        ip("tuntap add dev tun0 mode tun");
        ip("link set tun0 up");
        let (child, stderr, line) = start_on("tun0", &["-o", "csv"]);
        stop(child, stderr);
        let reason = "the meter in the kernel needs an Ethernet header, which tun0 does not have";
        assert!(line.contains("through a packet socket, since"), "{line}");
        assert!(line.contains(reason), "{line}");
        for option in ["--attach tc", "--next-program /sys/fs/bpf/next"] {
            let told = refusal(&format!("-i tun0 {option}"));
            assert!(told.contains(reason), "{told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
    });
}

/// Linux takes tags off, so that none is ever found.
#[test]
fn a_tag_is_not_looked_for_where_there_is_none() {
    in_namespace(|| {
        let told = refusal("-i lo vlan 5 and tcp");
        assert!(
            told.contains("-i lo.5") && told.contains("tcpdump"),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    });
}

#[test]
fn an_interface_that_goes_down_or_away_takes_no_results_along() {
    in_namespace(|| {
        for args in [&["--no-bpf"][..], &[]] {
            ip("link add va type veth peer name vb");
            ip("link set va up");
            ip("link set vb up");
            let args = [args, &["-o", "csv"]].concat();
            let (mut child, mut stderr, _) = start_on("va", &args);
            ip("link set va down");
            thread::sleep(Duration::from_millis(500));
            assert!(child.try_wait().unwrap().is_none(), "it ends: {args:?}");
            ip("link set va up");
            // Another of this name is another interface.
            ip("link del va");
            ip("link add va type veth peer name vb");
            let deadline = Instant::now() + Duration::from_secs(60);
            while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(50));
            }
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            let (mut out, mut err) = (String::new(), String::new());
            let mut stdout = child.stdout.take().unwrap();
            stdout.read_to_string(&mut out).unwrap();
            stderr.read_to_string(&mut err).unwrap();
            assert_eq!(
                ended.and_then(|status| status.code()),
                Some(1),
                "{args:?}: {err}"
            );
            assert!(out.starts_with("proto,"), "{out}");
            assert!(err.contains("packets: "), "{err}");
            assert!(err.contains("va was deleted: start again"), "{err}");
            ip("link del va");
        }
    });
}
