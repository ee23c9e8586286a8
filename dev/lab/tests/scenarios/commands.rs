// SPDX-License-Identifier: Apache-2.0
//! The command line of the lab.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use causeway_lab::scenario;

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
    let all: Vec<&str> = scenario::all().iter().map(|of| of.name).collect();
    assert_eq!(names, all, "{text}");
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
    let start = Instant::now();
    let server = loop {
        if let Some(server) = nginx_of(child.id()) {
            break server;
        }
        let ended = child.try_wait().expect("wait");
        assert!(ended.is_none(), "it ended by itself: {ended:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "nothing starts");
        sleep(Duration::from_millis(20));
    };
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
        let mut files = processes().map(|id| format!("/proc/{id}/cmdline"));
        files.any(|file| {
            let words = std::fs::read(file).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|word| word == seed.as_bytes())
        })
    };
    while stays() || is_nginx(server) {
        assert!(start.elapsed() < Duration::from_secs(30), "processes stay");
        sleep(Duration::from_millis(50));
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_nginx(process: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.is_ok_and(|name| name.trim() == "nginx")
}

/// One that this process, or what it has started, has started.
fn nginx_of(ancestor: u32) -> Option<u32> {
    let parent = |process: &u32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok()
    };
    let is_its = |process: u32| {
        let mut ancestors = std::iter::successors(Some(process), parent);
        ancestors.any(|id| id == ancestor)
    };
    processes().find(|&process| is_nginx(process) && is_its(process))
}
