// SPDX-License-Identifier: Apache-2.0
//! `causeway ipvs`: a script of ipvsadm's, against a daemon.

use super::*;

const TITLE: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
                     Prot LocalAddress:Port Scheduler Flags\n  \
                     -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n";

fn ipvs(machine: &Machine, line: &str) -> Output {
    let words: Vec<&str> = ["ipvs"].into_iter().chain(line.split(' ')).collect();
    machine.client(&words)
}

/// What it prints, which must have gone well.
fn done(machine: &Machine, line: &str) -> String {
    let output = ipvs(machine, line);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn restore(machine: &Machine, rules: &str) -> Output {
    let mut child = Command::new(BINARY)
        .args(["ipvs", "-R", "--socket"])
        .arg(machine.path("run/lb.sock"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run causeway");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, rules.as_bytes()).expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_script_of_ipvsadm_sets_up_a_service() {
    Machine::run(|machine| {
        let _daemon = machine.start();
        done(machine, "-C");
        assert_eq!(done(machine, "-Ln"), TITLE);
        // The service first, then its reals, as every script has it.
        done(machine, "-A -t 192.0.2.9:80 -s wrr");
        assert_eq!(
            done(machine, "-Ln"),
            format!("{TITLE}TCP  192.0.2.9:80 wrr\n")
        );
        done(machine, "-a -t 192.0.2.9:80 -r 10.0.0.1:80 -i -w 3");
        done(machine, "-a -t 192.0.2.9:80 -r 10.0.0.2 -i");
        done(machine, "-A -u [2001:db8::9]:53 -s sh");
        done(machine, "-a -u [2001:db8::9]:53 -r fd00::1");
        let web = "TCP  192.0.2.9:80 wrr\n  \
                   -> 10.0.0.1:80                  Tunnel  3      0          0         \n  \
                   -> 10.0.0.2:80                  Tunnel  1      0          0         \n";
        let dns = "UDP  [2001:db8::9]:53 mh\n  \
                   -> [fd00::1]:53                 Tunnel  1      0          0         \n";
        assert_eq!(done(machine, "-Ln"), format!("{TITLE}{web}{dns}"));
        assert_eq!(
            done(machine, "-l -n -t 192.0.2.9:80"),
            format!("{TITLE}{web}")
        );
        let view = machine.json(&["vip", "show", "192.0.2.9:80"]);
        assert_eq!(view["scheduler"], "weighted-round-robin");

        done(machine, "-e -t 192.0.2.9:80 -r 10.0.0.2:80 -w 0");
        done(machine, "-E -t 192.0.2.9:80 -s lc");
        let rules = done(machine, "-Sn");
        assert_eq!(
            rules,
            "-A -t 192.0.2.9:80 -s wlc\n\
             -a -t 192.0.2.9:80 -r 10.0.0.1:80 -i -w 3\n\
             -a -t 192.0.2.9:80 -r 10.0.0.2:80 -i -w 0\n\
             -A -u [2001:db8::9]:53 -s mh\n\
             -a -u [2001:db8::9]:53 -r [fd00::1]:53 -i -w 1\n"
        );
        let stats = done(machine, "-Ln --stats -u [2001:db8::9]:53");
        assert_eq!(
            stats.lines().last(),
            Some("  -> [fd00::1]:53                        0        0        0        0        0")
        );
        let rate = done(machine, "-Ln --rate");
        assert!(
            rate.contains("      CPS    InPPS   OutPPS    InBPS   OutBPS\n"),
            "{rate}"
        );

        // Down to nothing, and back.
        done(machine, "-d -u [2001:db8::9]:53 -r fd00::1");
        done(machine, "-D -u [2001:db8::9]:53");
        done(machine, "-C");
        assert_eq!(done(machine, "-Sn"), "");
        // Causeway's own schedulers go out and in as they are called.
        done(machine, "-A -t 192.0.2.8:80 -s latency");
        let rules = done(machine, "-Sn");
        assert!(
            rules.starts_with("-A -t 192.0.2.8:80 -s latency\n"),
            "{rules}"
        );
        // What is there is not added again.
        assert_eq!(restore(machine, &rules).status.code(), Some(1));
        done(machine, "-C");
        let restored = restore(machine, &rules);
        assert!(restored.status.success(), "{}", stderr(&restored));
        assert_eq!(done(machine, "-Sn"), rules);
    });
}

#[test]
fn sh_and_mh_go_by_client_unless_ports_are_asked_for() {
    Machine::run(|machine| {
        let _daemon = machine.start();
        done(machine, "-C");
        let affinity = |vip: &str| machine.json(&["vip", "show", vip])["affinity"].clone();
        // Were they to take fragments, the second of an address would be refused.
        done(machine, "-A -t 192.0.2.9:80 -s sh");
        done(machine, "-A -t 192.0.2.9:443 -s sh");
        assert_eq!(affinity("192.0.2.9:80"), "client");
        assert_eq!(affinity("192.0.2.9:443"), "client");
        done(machine, "-E -t 192.0.2.9:80 -s wrr");
        assert_eq!(affinity("192.0.2.9:80"), "none");
        done(machine, "-E -t 192.0.2.9:80 -s sh");
        assert_eq!(affinity("192.0.2.9:80"), "client");
        done(machine, "-E -t 192.0.2.9:80 -s mh -b mh-port");
        assert_eq!(affinity("192.0.2.9:80"), "none");
        // By Causeway's own command, too.
        for word in ["client", "none"] {
            let set = machine.client(&["vip", "set", "192.0.2.9:80", "--affinity", word]);
            assert!(set.status.success(), "{}", stderr(&set));
            assert_eq!(affinity("192.0.2.9:80"), word);
        }

        let rules = done(machine, "-Sn");
        assert_eq!(
            rules,
            "-A -t 192.0.2.9:80 -s mh -b mh-port\n-A -t 192.0.2.9:443 -s mh\n"
        );
        done(machine, "-C");
        let restored = restore(machine, &rules);
        assert!(restored.status.success(), "{}", stderr(&restored));
        assert_eq!(affinity("192.0.2.9:80"), "none");
        assert_eq!(affinity("192.0.2.9:443"), "client");
        assert_eq!(done(machine, "-Sn"), rules);
    });
}

#[test]
fn what_has_no_equal_is_one_sentence_and_changes_nothing() {
    Machine::run(|machine| {
        let _daemon = machine.start();
        let before = done(machine, "-Sn");
        for (line, expected) in [
            (
                "-a -t 192.0.2.1:80 -r 10.0.0.3 -m",
                "addresses are not rewritten",
            ),
            (
                "-a -t 192.0.2.1:80 -r 10.0.0.3 -g",
                "forwarding is the service's",
            ),
            (
                "-a -t 192.0.2.1:80 -r 10.0.0.3:8080 -i",
                "ports are not rewritten",
            ),
            (
                "-a -t 192.0.2.1:80 -r 10.0.0.3 -i -x 100",
                "no bound of connections",
            ),
            ("-A -t 192.0.2.9:80 -p", "for one real a client, use -s sh"),
            ("-A -f 1 -s rr", "services go by address, port"),
            ("-A -t 192.0.2.9:80 -O", "a packet is not picked alone"),
            ("-Z", "counters only grow"),
            ("-L -c", "causeway conns top"),
            ("--set 1 2 3", "timeouts stand in the file"),
            ("--start-daemon master", "no daemon copies connections"),
            ("--stop-daemon backup", "no daemon copies connections"),
        ] {
            let output = ipvs(machine, line);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{line}: {said}");
            assert!(said.contains(expected), "{line}: {said}");
            assert_eq!(said.lines().count(), 1, "{line}: {said}");
        }
        // A file of rules with one such line is not begun with.
        let add = "-A -t 192.0.2.9:80 -s wrr";
        for (second, code, expected) in [
            ("-A -t 192.0.2.8:80 -s rr -p 60", 2, "use -s sh"),
            (
                "-a -t 192.0.2.9:80 -r 10.0.0.1:80 -g",
                2,
                "forwarding is the service's, and 192.0.2.9:80 has ipip",
            ),
            (
                "-a -t 192.0.2.9:80 -r 10.0.0.1:8080 -i",
                2,
                "ports are not rewritten",
            ),
            ("-a -t 192.0.2.1:80 -r 10.0.0.9 -g", 2, "has ipip"),
            ("-Z", 2, "counters only grow"),
            (
                "-a -t 192.0.2.7:80 -r 10.0.0.1",
                1,
                "there is no service tcp 192.0.2.7:80",
            ),
            (add, 1, "service tcp 192.0.2.9:80 exists already"),
        ] {
            let output = restore(machine, &format!("{add}\n{second}\n"));
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{second}: {said}");
            assert!(said.contains("line 2: "), "{second}: {said}");
            assert!(said.contains(expected), "{second}: {said}");
            assert_eq!(done(machine, "-Sn"), before, "{second}");
        }
        // What a line before it has made or removed counts.
        let rules = format!(
            "{add} --forwarding gue\n-a -t 192.0.2.9:80 -r 10.0.0.1 --tun-type gue -i\n-D -t 192.0.2.9:80\n"
        );
        let output = restore(machine, &rules);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(done(machine, "-Sn"), before);
        // Wrong arguments, and what the balancer refuses.
        assert_eq!(
            ipvs(machine, "-A -D -t 192.0.2.9:80").status.code(),
            Some(2)
        );
        assert_eq!(ipvs(machine, "-D -t 192.0.2.9:80").status.code(), Some(1));
    });
}
