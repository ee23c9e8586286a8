// SPDX-License-Identifier: Apache-2.0
//! `causeway measure -i` on the loopback of a private network namespace, beside
//! what the client itself measures. Needs root and BPF.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
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
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-i", "lo"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("measuring on lo"), "{line}");
    (child, stderr)
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

/// One request after the other; the mean time to the last byte, in microseconds.
fn converse(listener: &TcpListener) -> f64 {
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
        let mut total = Duration::ZERO;
        for _ in 0..REQUESTS {
            let sent = Instant::now();
            client.write_all(&[0; 100]).unwrap();
            client.read_exact(&mut [0; 1000]).unwrap();
            total += sent.elapsed();
        }
        total.as_secs_f64() * 1e6 / REQUESTS as f64
    })
}

#[test]
fn live_estimates_are_what_the_client_felt() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let (child, stderr) = start(&["-o", "csv", "--epoch", "200ms"]);
        let felt_us = converse(&listener);
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
        let error = (sum_us / samples - felt_us).abs() / felt_us;
        assert!(
            error < 0.05,
            "{} us estimated, {felt_us} felt\n{out}",
            sum_us / samples
        );
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
