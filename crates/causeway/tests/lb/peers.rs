// SPDX-License-Identifier: Apache-2.0
//! Two balancers of one VIP, on machines of their own with a link between them: clients are seen
//! by the first alone.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use etherparse::PacketBuilder;

use super::*;

/// Where the datagram begins in a frame: Ethernet, IPv4, UDP.
const PAYLOAD: usize = 14 + 20 + 8;

/// One of the two, which takes commands and answers what it has done.
struct End {
    told: Receiver<u32>,
    tells: Sender<u32>,
}

impl End {
    fn tell(&self, number: u32) {
        self.tells.send(number).expect("the other end");
    }

    fn hear(&self) -> u32 {
        let heard = self.told.recv_timeout(4 * TIMEOUT);
        heard.expect("a word of the other end")
    }
}

/// Writes the configuration of a member, by whose clients it is known which real they are on.
fn configure(machine: &Machine, own: &str) {
    machine.write_config("");
    let keys = machine.write_keys();
    let text = fs::read_to_string(machine.config()).expect("the configuration");
    let text = format!(
        "{text}latency = \"response\"\n\
         source = [\n\
           {{ from = [\"10.9.1.0/24\"], reals = [\"10.0.0.1\"] }},\n\
           {{ from = [\"10.9.2.0/24\"], reals = [\"10.0.0.2\"] }},\n\
         ]\n\
         [peers]\n\
         listen = \"{own}:9473\"\n\
         keys = \"{}\"\n\
         members = [\"10.8.0.1:9473\", \"10.8.0.2:9473\"]\n",
        keys.display()
    );
    fs::write(machine.config(), text).expect("write the configuration");
}

/// A client that asks again as soon as it is answered.
struct Client {
    network: u8,
    port: u16,
    latency: Duration,
    due: Instant,
    turn: u32,
}

impl Client {
    fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [0xff; 6]).ipv4(
            [10, 9, self.network, 3],
            [192, 0, 2, 1],
            64,
        );
        let mut frame = Vec::new();
        match self.turn {
            0 => builder
                .tcp(self.port, 80, 0, 64_000)
                .syn()
                .write(&mut frame, &[]),
            turn => builder
                .tcp(self.port, 80, 1 + (turn - 1) * 100, 64_000)
                .ack(1 + (turn - 1) * 1000)
                .write(&mut frame, &[7; 100]),
        }
        .expect("a frame");
        frame
    }
}

/// Plays clients whose real answers in 2 ms, and some whose real takes 60, until `stop`.
fn play(stop: &AtomicBool) {
    let wire = Wire::on("peer0");
    let client = |n: u16| Client {
        network: 1 + (n % 2) as u8,
        port: 40_000 + n,
        latency: Duration::from_millis([2, 60][usize::from(n % 2)]),
        due: Instant::now(),
        turn: 0,
    };
    let mut clients: Vec<Client> = (0..40).map(client).collect();
    while !stop.load(Ordering::Relaxed) {
        for client in &mut clients {
            if client.due <= Instant::now() {
                wire.send(&client.frame());
                client.due = Instant::now() + client.latency;
                client.turn += 1;
            }
        }
        let due = clients.iter().map(|client| client.due).min();
        let now = Instant::now();
        thread::sleep(due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now)));
    }
}

/// Waits until `holds` of what the command prints, which is given back.
fn wait_until(machine: &Machine, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let told = || machine.json(arguments);
    let failed = || format!("{arguments:?}: {:#}\n{}", told(), machine.log());
    until(failed, || Some(told()).filter(&holds))
}

/// The first: it sees clients until it is asked to stop, and dies.
fn seeing(machine: &Machine, end: &End) {
    let other = end.hear();
    ip("link add fleet1 type veth peer name fleet2");
    ip(&format!("link set fleet2 netns {other}"));
    ip("addr add 10.8.0.1/24 dev fleet1");
    ip("link set fleet1 up");
    configure(machine, "10.8.0.1");
    let daemon = machine.start();
    end.tell(1);
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    let clients = thread::spawn(move || play(&stops));
    end.hear();
    daemon.signal(Signal::SIGKILL);
    assert!(!daemon.wait());
    stop.store(true, Ordering::Relaxed);
    clients.join().expect("the clients");
    end.tell(1);
}

/// The second: no packet of a client ever comes to it.
fn blind(machine: &Machine, end: &End) {
    end.tell(nix::unistd::gettid().as_raw() as u32);
    end.hear();
    ip("addr add 10.8.0.2/24 dev fleet2");
    ip("link set fleet2 up");
    configure(machine, "10.8.0.2");
    let _daemon = machine.start();
    let of_slow = |vip: &Value, key: &str| vip["reals"][1][key].as_f64().unwrap_or(f64::NAN);
    let vip = wait_until(machine, &["vip", "show", "web"], |vip| {
        of_slow(vip, "effective_weight") < 0.5
    });
    assert_eq!(vip["packets"], 0, "{vip:#}");
    assert_eq!(of_slow(&vip, "requests"), 0.0);
    machine.wait_for_log("measurements from balancer 10.8.0.1: 2 steer together");

    let member = |peers: &Value| peers["members"][0].clone();
    // One that has stood still for a while is taken for gone, until it is heard again.
    let peers = wait_until(machine, &["fleet", "peers"], |peers| {
        let apart = member(peers)["weights_apart"].as_f64();
        apart.is_some_and(|apart| apart < 0.2)
            && member(peers)["live"] == true
            && member(peers)["reals"] == 2
    });
    assert_eq!(peers["own"], "10.8.0.2:9473");
    let up = "causeway_peer_up{member=\"10.8.0.1:9473\"} 1.0";
    wait(
        || http_get("/metrics"),
        || http_get("/metrics").contains(up),
    );

    let wire = Wire::on("fleet2");
    let is_share = |frame: &Vec<u8>| {
        frame.get(PAYLOAD..PAYLOAD + 4) == Some(b"CWPR") && frame[26..30] == [10, 8, 0, 1]
    };
    let recorded = std::iter::repeat_with(|| wire.receive()).find(is_share);
    let recorded = recorded.expect("a datagram").split_off(PAYLOAD);
    let mut forged = recorded.clone();
    forged[40] ^= 1;
    let socket = UdpSocket::bind("10.8.0.2:0").expect("a socket");
    for datagram in [&recorded, &forged] {
        socket.send_to(datagram, "10.8.0.2:9473").expect("send");
    }
    wait_until(machine, &["fleet", "peers"], |peers| {
        let dropped = &member(peers)["dropped"];
        dropped["replayed"].as_u64() >= Some(1) && dropped["forged"].as_u64() >= Some(1)
    });

    // A machine that stands still blurs both servers: it is far enough apart when clients stop.
    wait_until(machine, &["vip", "show", "web"], |vip| {
        of_slow(vip, "effective_weight") < 0.4
    });
    end.tell(1);
    end.hear();
    let peers = wait_until(machine, &["fleet", "peers"], |peers| {
        member(peers)["live"] == false
    });
    assert_eq!(member(&peers)["reals"], 0, "{peers:#}");
    machine.wait_for_log("no measurements from balancer 10.8.0.1 any more: 1 steer together");
    // Nothing speaks for other weights.
    let vip = machine.json(&["vip", "show", "web"]);
    assert!(of_slow(&vip, "effective_weight") < 0.5, "{vip:#}");
    assert!(http_get("/metrics").contains("causeway_peer_up{member=\"10.8.0.1:9473\"} 0.0"));
}

#[test]
fn a_balancer_steers_by_what_another_measures_and_alone_when_that_is_gone() {
    let (to_seeing, of_blind) = channel();
    let (to_blind, of_seeing) = channel();
    let second = thread::spawn(move || {
        let end = End {
            told: of_seeing,
            tells: to_seeing,
        };
        Machine::run(move |machine| blind(machine, &end));
    });
    let end = End {
        told: of_blind,
        tells: to_blind,
    };
    Machine::run(move |machine| seeing(machine, &end));
    if let Err(panic) = second.join() {
        std::panic::resume_unwind(panic);
    }
}
