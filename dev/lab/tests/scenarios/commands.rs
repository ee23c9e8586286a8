// SPDX-License-Identifier: Apache-2.0
//! The command line of the lab.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{alone, lab};

#[test]
fn list_names_every_scenario() {
    let output = lab().arg("list").output().expect("causeway-lab runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for name in [
        "accuracy",
        "paper",
        "control",
        "direct",
        "smoke",
        "takeover",
        "replace",
        "accuracy-web",
        "everyday",
        "bifrost",
        "bifrost-faults",
        "bifrost-balancer",
        "degrade",
        "packet-cost",
        "packet-rate",
        "agent-cost",
        "syn-flood",
        "cookie",
        "cookie-soak",
        "cookie-loss",
        "cookie-uploads",
        "mptcp",
        "tiers",
        "quic-cid",
        "quic-smoke",
        "pcc-scale",
        "fct",
        "fleet",
        "health",
        "rtt-explain",
        "rtt-peers",
        "rtt-study",
        "certes",
        "certes-drops",
        "accept-queue",
        "client-latency",
        "clients-everybody",
        "page",
    ] {
        assert!(names.contains(&name), "{name} is not in\n{text}");
    }
}

#[test]
fn unknown_words_fail_with_a_sentence() {
    for (arguments, expected) in [
        (&["nonsense"][..], "choose one of direct"),
        (&["direct", "--param", "nonsense=1"], "it has"),
        (&["direct", "--param", "slots=many"], "cannot be read"),
        (
            &["replace", "--param", "forwarding=gue"],
            "choose ipip or l2",
        ),
        (
            &["degrade", "--param", "forwarding=gue"],
            "choose ipip or l2",
        ),
        (&["tiers", "--param", "forwarding=l2"], "choose ipip or gue"),
        (&["everyday", "--param", "slow_clients=wrkk"], "\"wrkk\""),
    ] {
        let output = lab()
            .arg("run")
            .args(arguments)
            .output()
            .expect("causeway-lab runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

/// Ctrl-C ends a run at once, the way programs end by Ctrl-C, and nothing stays.
#[test]
fn interrupts_end_everything() {
    let _alone = alone();
    // By which what it has started is found.
    let seed = rand::random::<u32>().to_string();
    let mut child = lab()
        .args(["run", "direct", "--param", "seconds=60", "--seed", &seed])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("causeway-lab runs");
    sleep(Duration::from_secs(2));
    assert!(
        child.try_wait().expect("wait").is_none(),
        "it ended by itself"
    );
    let start = Instant::now();
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.expect("kill").success());
    let status = child.wait().expect("wait");
    assert_eq!(status.signal(), Some(2), "{status}");
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "not before its end"
    );
    let stays = || {
        let processes = std::fs::read_dir("/proc").expect("processes");
        let mut files = processes.filter_map(|entry| Some(entry.ok()?.path().join("cmdline")));
        files.any(|file| {
            let words = std::fs::read(file).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|word| word == seed.as_bytes())
        })
    };
    while stays() {
        assert!(start.elapsed() < Duration::from_secs(30), "processes stay");
        sleep(Duration::from_millis(50));
    }
}
