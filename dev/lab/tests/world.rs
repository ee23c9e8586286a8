// SPDX-License-Identifier: Apache-2.0
//! The sandbox, the topology and nginx themselves. Needs root.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use causeway_lab::cgroup::{self, Cgroup};
use causeway_lab::clock::until;
use causeway_lab::nginx::Nginx;
use causeway_lab::sandbox::{self, Sandbox};
use causeway_lab::topology::{Shape, Topology};

fn output(mut command: Command) -> Result<String> {
    let out = command.stderr(Stdio::piped()).output()?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    ensure!(
        out.status.success(),
        "{command:?}: {} {stdout}{stderr}",
        out.status
    );
    Ok(stdout.into_owned())
}

#[test]
fn the_sandbox_is_private() {
    sandbox::run_test("the_sandbox_is_private", |_| {
        ensure!(
            fs::read_dir("/run/netns")?.next().is_none(),
            "foreign namespaces"
        );
        // The kernel itself may put iterators (`maps.debug`) into a new bpffs.
        let pins: Vec<_> = fs::read_dir("/sys/fs/bpf")?
            .flatten()
            .map(|e| e.path())
            .collect();
        let foreign = pins
            .iter()
            .any(|p| p.extension().is_none_or(|e| e != "debug"));
        ensure!(!foreign, "foreign pins: {pins:?}");
        ensure!(std::process::id() < 20, "not in a PID namespace of our own");
        let devices = fs::read_to_string("/proc/net/dev")?;
        // Fallback tunnel devices may appear beside lo, links to the world may not.
        ensure!(!devices.contains("eth"), "foreign devices: {devices}");
        Ok(())
    });
}

#[test]
fn clients_reach_servers_past_the_balancer() {
    sandbox::run_test("clients_reach_servers_past_the_balancer", |sandbox| {
        nginx_answers(sandbox)?;
        Ok(())
    });
}

fn nginx_answers(sandbox: Sandbox) -> Result<()> {
    let shape = Shape {
        clients: 2,
        servers: 2,
    };
    let topology = Topology::build(sandbox, shape)?;
    let server = &topology.servers[1];
    let nginx = Nginx::start(&server.netns, "server1", 80, 1)?;
    for target in [server.ipv4.to_string(), format!("[{}]", server.ipv6)] {
        for client in &topology.clients {
            let mut curl = client.netns.command("curl");
            curl.args(["-sS", "--max-time", "30", &format!("http://{target}/who")]);
            ensure!(output(curl)? == "server1\n");
        }
    }
    let url = format!("http://{}/r/100/20000", server.ipv4);
    let timed = || -> Result<f64> {
        let mut curl = topology.clients[0].netns.command("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{time_total}", &url]);
        output(curl)?.parse().context("curl's time")
    };
    // A busy machine makes some longer.
    let least = |most: f64| -> Result<f64> {
        let mut least = timed()?;
        for _ in 0..50 {
            if least < most {
                break;
            }
            least = least.min(timed()?);
        }
        Ok(least)
    };
    let normal = least(0.1)?;
    nginx.set_factor(10.0)?;
    let slow = least(0.4)?;
    ensure!(
        (0.019..0.1).contains(&normal),
        "20 ms of service took {normal} s"
    );
    ensure!(
        (0.19..0.4).contains(&slow),
        "ten times 20 ms of service took {slow} s"
    );
    Ok(())
}

#[test]
fn a_new_cgroup_stays_while_others_sweep() {
    sandbox::run_test("a_new_cgroup_stays_while_others_sweep", |sandbox| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    cgroup::sweep();
                }
            });
            let mut groups = (0..500).map(|_| {
                let group = Cgroup::create(sandbox)?;
                group.set_cpu(Some(0.5), Duration::from_millis(10))
            });
            let all = groups.try_for_each(|group| group);
            done.store(true, Ordering::Relaxed);
            all
        })
    });
}

#[test]
fn a_cgroup_limits_the_cpu() {
    sandbox::run_test("a_cgroup_limits_the_cpu", |sandbox| {
        let group = Cgroup::create(sandbox)?;
        group.set_cpu(Some(0.1), Duration::from_millis(10))?;
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()?;
        group.add(busy.id())?;
        // Not what it used before it was in the group.
        let used = || causeway_lab::cpu::process_time(busy.id()).context("no such process");
        let (start, before) = (Instant::now(), used()?);
        std::thread::sleep(Duration::from_secs(1));
        let used = used()? - before;
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        // Beside others it would not have much more without a limit.
        let throttled = group.throttled();
        busy.kill()?;
        busy.wait()?;
        ensure!(throttled? > 0, "nobody was held up");
        ensure!(
            share < 0.25,
            "a group with 10 % of a CPU used {:.0} %",
            share * 100.0
        );
        Ok(())
    });
}

/// SIGKILL to the outermost process takes everything inside along.
#[test]
fn sigkill_leaves_nothing_behind() {
    const TEST: &str = "sigkill_leaves_nothing_behind";
    let marker = tempfile::NamedTempFile::new().expect("marker file");
    if let Some(path) = std::env::var_os("CAUSEWAY_TEST_MARKER") {
        sandbox::run_test(TEST, |sandbox| {
            let _group = Cgroup::create(sandbox)?;
            let topology = Topology::build(sandbox, Shape::default())?;
            // An argument that can be found again from outside.
            let unique = format!("86400.{}", rand::random::<u32>());
            topology.clients[0]
                .netns
                .command("sleep")
                .arg(&unique)
                .spawn()?;
            fs::write(&path, unique)?;
            std::thread::sleep(Duration::from_secs(120));
            Ok(())
        });
        return;
    }
    let mut outer = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", TEST, "--nocapture"])
        .env("CAUSEWAY_TEST_MARKER", marker.path())
        .spawn()
        .expect("start");
    let unique = wait_for(|| {
        let text = fs::read_to_string(marker.path()).unwrap_or_default();
        (!text.is_empty()).then_some(text)
    })
    .expect("the sandbox did not come up");
    assert!(running(&unique), "the sleeper should run");
    outer.kill().expect("kill");
    outer.wait().expect("wait");
    wait_for(|| (!running(&unique)).then_some(())).expect("a process has outlived its sandbox");
}

fn wait_for<T>(mut f: impl FnMut() -> Option<T>) -> Option<T> {
    until(Duration::from_secs(60), || Ok(f())).expect("nothing fails")
}

/// Whether any process has `argument` in its command line.
fn running(argument: &str) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    entries.flatten().any(|entry| {
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| {
            line.split(|&b| b == 0)
                .any(|word| word == argument.as_bytes())
        })
    })
}
