// SPDX-License-Identifier: Apache-2.0
//! Packets of a running balancer, as tcpdump and tshark read them.

use super::*;

/// Opens connections to the VIP, from the far end of the interface, until `done`. They
/// get no answer: their SYNs are what counts.
fn knock(done: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "knocked in vain");
        let vip = "192.0.2.1:80".parse().expect("an address");
        let _ = std::net::TcpStream::connect_timeout(&vip, Duration::from_millis(50));
    }
}

/// A way from this machine's own stack to the VIP, through the other end of the veth.
fn route_to_the_vip() {
    let link = ip("link show eth0");
    let mac = link
        .split_whitespace()
        .skip_while(|word| *word != "link/ether")
        .nth(1);
    ip("addr add 10.9.1.3/32 dev peer0");
    ip("route add 192.0.2.1/32 dev peer0 src 10.9.1.3");
    let mac = mac.expect("a MAC address");
    ip(&format!(
        "neigh add 192.0.2.1 lladdr {mac} dev peer0 nud permanent"
    ));
}

fn read_with(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it"));
    assert!(output.status.success(), "{program}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn packets_are_captured_before_and_after_with_verdicts() {
    Machine::run(|machine| {
        let causeway = |words: &str| {
            let mut words = words.split_whitespace();
            let mut command = Command::new(BINARY);
            command
                .args(words.next())
                .arg("-c")
                .arg(machine.config())
                .args(words);
            command
        };
        let nobody = causeway("capture").output().expect("run causeway");
        assert!(
            stderr(&nobody).contains("is it started"),
            "{}",
            stderr(&nobody)
        );

        let daemon = machine.start();
        route_to_the_vip();
        let file = machine.path("packets.pcapng");
        let file = file.to_str().expect("a name");
        let words = "capture --vip web --verdict opened --for 60s --count 2 -w";
        let capture = causeway(words)
            .arg(file)
            .arg("tcp")
            .stderr(Stdio::piped())
            .spawn();
        let capture = std::cell::RefCell::new(Daemon(capture.expect("run causeway")));
        knock(|| capture.borrow_mut().0.try_wait().expect("wait").is_some());
        let mut said = String::new();
        let mut capture = capture.into_inner();
        let end = capture
            .0
            .stderr
            .take()
            .expect("a pipe")
            .read_to_string(&mut said);
        end.expect("what it said");
        assert!(said.starts_with("causeway: 2 of "), "{said}");
        assert!(said.contains("0 lost"), "{said}");

        let listed = read_with("tcpdump", &["-nn", "-r", file]);
        let syn = "> 192.0.2.1.80: Flags [S]";
        // Two as they came, two within the tunnel.
        assert_eq!(listed.matches(syn).count(), 4, "{listed}");
        let fields =
            "-e frame.interface_name -e frame.packet_id -e frame.comment -e ip.dst -e eth.dst";
        let fields: Vec<&str> = fields.split(' ').collect();
        let shark = [
            &["-r", file, "-T", "fields", "-E", "separator=|"],
            &fields[..],
        ]
        .concat();
        let shark = read_with("tshark", &shark);
        let lines: Vec<Vec<&str>> = shark
            .lines()
            .map(|line| line.split('|').collect())
            .collect();
        assert_eq!(lines.len(), 4, "{shark}");
        for pair in lines.chunks(2) {
            let (before, after) = (&pair[0], &pair[1]);
            assert_eq!((before[0], after[0]), ("before", "after"));
            assert_eq!(before[1], after[1], "two halves of one packet");
            assert!(before[2].starts_with("verdict=opened action=tx vip=web real=10.0.0."));
            assert_eq!(before[2], after[2]);
            assert_eq!(before[3], "192.0.2.1");
            let (real, inner) = after[3].split_once(',').expect("a packet in a packet");
            assert_eq!(inner, "192.0.2.1");
            assert!(before[2].contains(&format!("real={real} ")), "{shark}");
            assert_eq!(after[4], "02:00:00:00:00:01");
        }

        let words = "trace --live -o json --count 1 --for 60s --real 10.0.0.2 --client 10.9.1.0/24";
        let mut live = causeway(words);
        let live = live.stdout(Stdio::piped()).spawn();
        let live = std::cell::RefCell::new(Daemon(live.expect("run causeway")));
        knock(|| live.borrow_mut().0.try_wait().expect("wait").is_some());
        let mut line = String::new();
        let mut live = live.into_inner();
        let read = live
            .0
            .stdout
            .take()
            .expect("a pipe")
            .read_to_string(&mut line);
        read.expect("a line");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&line["vip"], &line["sent_to"]),
            (&"web".into(), &"10.0.0.2".into())
        );
        assert_eq!(
            (&line["packet"], &line["action"]),
            (&"tcp [S]".into(), &"tx".into())
        );
        assert!(line["meaning"].is_string() && line["real_id"].is_number());

        // What cannot run leaves the file of a former capture as it is.
        let kept = fs::read(file).expect("the capture");
        let refused = |words: &str, why: &str| {
            let output = causeway(words).arg("-w").arg(file).output();
            let output = output.expect("run causeway");
            assert!(!output.status.success(), "{words}");
            assert!(stderr(&output).contains(why), "{}", stderr(&output));
            assert!(fs::read(file).expect("the capture") == kept, "{words}");
        };
        refused("capture --verdict nosuch", "there is no verdict");
        let other = machine.path("other.pcapng");
        let running = causeway("capture --for 60s -w").arg(&other).spawn();
        let _running = Daemon(running.expect("run causeway"));
        wait(|| "no capture runs".to_owned(), || other.exists());
        refused("capture --for 1s", "");
        drop(daemon);
    });
}
