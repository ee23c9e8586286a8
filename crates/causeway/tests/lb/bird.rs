// SPDX-License-Identifier: Apache-2.0
//! VIPs that BIRD announces.

use super::*;

/// BIRD, with one protocol for each family that takes what Causeway offers.
fn start_bird(machine: &Machine) -> Daemon {
    let dir = machine.dir.path().display();
    let text = format!(
        "router id 10.9.0.2;\n\
         protocol device {{}}\n\
         include \"{dir}/bird.conf\";\n"
    );
    fs::write(machine.path("bird-main.conf"), text).expect("write BIRD's configuration");
    fs::write(machine.path("bird.conf"), "").expect("write what it includes");
    let bird = Command::new("/usr/sbin/bird")
        .args(["-f", "-c"])
        .arg(machine.path("bird-main.conf"))
        .arg("-s")
        .arg(machine.path("bird.ctl"))
        .spawn();
    Daemon(bird.expect("start BIRD; `make setup` installs it"))
}

/// What BIRD has to export.
fn routes(machine: &Machine) -> String {
    let socket = machine.path("bird.ctl");
    let output = Command::new("/usr/sbin/birdc")
        .arg("-s")
        .arg(socket)
        .args(["show", "route"])
        .output()
        .expect("run birdc");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn wait_for_route(machine: &Machine, present: bool) {
    let told = || format!("{}\n{}", routes(machine), machine.log());
    let holds = || routes(machine).contains("192.0.2.1/32") == present;
    wait(told, holds);
}

#[test]
fn bird_announces_a_vip_that_is_ready() {
    Machine::run(|machine| {
        let _bird = start_bird(machine);
        let dir = machine.dir.path().display().to_string();
        let announce = |delay: &str, need: u32| {
            machine.write_config("");
            let text = fs::read_to_string(machine.config()).expect("the configuration");
            let announce = format!(
                "[announce]\nbird = \"{dir}/bird.conf\"\ndelay = \"{delay}\"\n\
                 configure = [\"birdc\", \"-s\", \"{dir}/bird.ctl\", \"configure\"]\n[[vip]]\nmin_healthy = {need}\n"
            );
            fs::write(machine.config(), text.replace("[[vip]]\n", &announce)).expect("write");
        };
        announce("300ms", 2);
        let daemon = machine.start();
        wait_for_route(machine, true);
        // BIRD has the route before its command has ended and the daemon knows.
        machine.wait_for_log("BIRD announces 192.0.2.1");
        assert_eq!(machine.json(&["vip", "show", "web"])["announced"], true);
        assert!(http_get("/metrics").contains("causeway_vip_announced{vip=\"web\"} 1.0"));
        // One of two reals drains: fewer are up than the VIP needs.
        let drained = machine.client(&["real", "drain", "web", "10.0.0.1"]);
        assert!(drained.status.success(), "{}", stderr(&drained));
        wait_for_route(machine, false);
        announce("0s", 1);
        daemon.signal(Signal::SIGHUP);
        wait_for_route(machine, true);
        // One that is killed leaves its successor what BIRD announces.
        daemon.signal(Signal::SIGKILL);
        assert!(!daemon.wait());
        announce("1h", 1);
        let daemon = machine.start();
        machine.wait_for_log("BIRD announces 192.0.2.1");
        assert!(
            routes(machine).contains("192.0.2.1/32"),
            "{}",
            routes(machine)
        );
        // A stop does not send clients elsewhere: what is forwarded stays forwarded.
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.wait(), "{}", machine.log());
        let kept = routes(machine);
        assert!(kept.contains("192.0.2.1/32"), "{kept}");
        assert!(machine.xdp_is_attached());
        // Taken down, it is.
        let unloaded = machine.unload();
        assert!(unloaded.status.success(), "{}", stderr(&unloaded));
        // BIRD takes a protocol down behind its answer.
        wait_for_route(machine, false);
    });
}
