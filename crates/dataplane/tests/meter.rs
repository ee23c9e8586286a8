// SPDX-License-Identifier: Apache-2.0
//! The meter on a real interface: a client's requests cross a veth pair. Needs
//! root; fails without.

mod sandbox;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig, Tally};
use causeway_dataplane::abi::{MeterVerdict, PacketsBytes, Plain as _};
use causeway_dataplane::skel::meter::MeterSkelBuilder;
use causeway_dataplane::{
    Attach, AttachedMode, DataPlaneError, KernelMeter, MeterHook, MeterOptions, MeterSample,
};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags};

use sandbox::{Netns, Sandbox, ip, run_first, wait_for, wait_for_carrier};

const SERVER: &str = "10.3.0.1:443";
const REQUESTS: u32 = 120;

/// A client in a namespace of its own, behind the interface m0.
fn client() -> Netns {
    let client = Netns::new();
    let peer = client.path();
    ip(&format!("link add m0 type veth peer name c0 netns {peer}"));
    ip("addr add 10.3.0.1/24 dev m0");
    ip("link set m0 up");
    client.ip("addr add 10.3.0.2/24 dev c0");
    client.ip("link set c0 up");
    wait_for_carrier("m0");
    client
}

/// What the client knows of the times between its requests, ns.
struct Truth {
    /// Their mean without those longer than twice the median.
    usual_ns: f64,
    /// Their mean.
    mean_ns: f64,
    /// Their median.
    median_ns: f64,
}

impl Truth {
    /// How much the machine's other work has moved the mean.
    fn disturbance(&self) -> f64 {
        self.mean_ns / self.median_ns - 1.0
    }

    /// A busy machine makes some pauses longer. Each estimator has its own view of
    /// whether such a one is the server's or the client's, so that its mean may lie
    /// anywhere between the two; on an idle machine they are one.
    fn assert_near(&self, mean_ns: f64, what: &str) {
        let Self {
            usual_ns,
            mean_ns: all_ns,
            ..
        } = *self;
        assert!(
            0.95 * usual_ns < mean_ns && mean_ns < 1.05 * all_ns,
            "{what}: {mean_ns} ns instead of {usual_ns} to {all_ns} ns"
        );
    }
}

/// Sends requests one by one, as a client does whose server takes 4 ms. Pauses that a
/// busy machine made longer than 200 ms count as the client's idle time, here and in the
/// meter.
fn send_requests() -> Truth {
    run_first();
    let socket = UdpSocket::bind("10.3.0.2:0").expect("socket");
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        // No socket listens; the ICMP error may come back here.
        let _ = socket.send_to(&[7; 200], SERVER);
        times.push(Instant::now());
        sleep(Duration::from_millis(4));
    }
    let mut gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_nanos() as f64)
        .filter(|gap_ns| *gap_ns < 2e8)
        .collect();
    gaps.sort_by(f64::total_cmp);
    let mean = |gaps: &[f64]| gaps.iter().sum::<f64>() / gaps.len() as f64;
    let median_ns = gaps[gaps.len() / 2];
    let usual = gaps.partition_point(|gap_ns| *gap_ns <= 2.0 * median_ns);
    Truth {
        usual_ns: mean(&gaps[..usual]),
        mean_ns: mean(&gaps),
        median_ns,
    }
}

/// Requests that went past a meter.
struct Run {
    meter: KernelMeter,
    /// Epochs that had ended by then, and all.
    ended: usize,
    samples: Vec<MeterSample>,
    truth: Truth,
    /// The interface lives as long as its peer.
    _client: Netns,
}

/// Sends requests past a meter with these options; what it found.
fn once(options: &MeterOptions) -> Run {
    let client = client();
    let mut meter = KernelMeter::start(options).expect("meter");
    let truth = client.run(send_requests);
    // The last of them may wait for a processor.
    let seen = || {
        count(&meter, MeterVerdict::Measured) + count(&meter, MeterVerdict::ServerSide)
            >= u64::from(REQUESTS)
    };
    wait_for("all requests", seen);
    let mut samples = meter.poll(Duration::ZERO).expect("poll");
    let ended = samples.len();
    samples.extend(meter.open_epochs().expect("flows").samples);
    Run {
        meter,
        ended,
        samples,
        truth,
        _client: client,
    }
}

/// The same, for times to compare: a run that the machine disturbed says little about a
/// meter, so that the first calm one counts, or the last after a minute.
fn past(options: &MeterOptions) -> Run {
    let start = Instant::now();
    loop {
        let run = once(options);
        if run.truth.disturbance() < 0.02 || start.elapsed() > Duration::from_secs(60) {
            return run;
        }
        drop(run.meter);
        ip("link del m0");
    }
}

/// One run; what the meter says and what the client knows.
fn measure(method: Method) -> (Vec<MeterSample>, Truth) {
    let options = MeterOptions {
        method,
        epoch: Duration::from_millis(50),
        ..MeterOptions::new("m0")
    };
    let run = past(&options);
    assert_eq!(run.meter.hook(), MeterHook::Xdp(AttachedMode::Native));
    assert!(run.ended >= 5, "{:?}", run.samples);
    assert_eq!(run.meter.lost_records(), 0);
    assert_eq!(measured(&run.meter), u64::from(REQUESTS));
    let second = KernelMeter::start(&MeterOptions {
        attach: Attach::Xdp,
        ..options.clone()
    });
    assert!(
        matches!(second, Err(DataPlaneError::Foreign { .. })),
        "{second:?}"
    );
    drop(run.meter);
    KernelMeter::start(&options).expect("the interface is free again");
    (run.samples, run.truth)
}

fn check(method: Method) {
    let (samples, truth) = measure(method);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("time");
    let mut sum = Tally::default();
    for sample in samples {
        assert_eq!(sample.flow.server.to_string(), SERVER);
        assert_eq!(sample.flow.client.ip().to_string(), "10.3.0.2");
        let start = Duration::from_nanos(sample.epoch_start_ns);
        assert!(start < now && now - start < Duration::from_secs(300));
        sum.sum_halves_ns += sample.tally.sum_halves_ns;
        sum.weight_halves += sample.tally.weight_halves;
    }
    let mean_ns = sum.mean_ns().expect("an estimate");
    truth.assert_near(mean_ns, "all epochs");
}

#[test]
fn live_latency_by_the_window_chain() {
    Sandbox::run(|_| check(Method::WindowChain));
}

#[test]
fn live_latency_by_a_fixed_gap() {
    Sandbox::run(|_| check(Method::FixedGap(FixedGapConfig::default())));
}

#[test]
fn live_latency_by_modes() {
    Sandbox::run(|_| check(Method::Modes(ModesConfig::default())));
}

#[test]
fn settings_out_of_range_are_refused() {
    Sandbox::run(|_| {
        let options = MeterOptions {
            epoch: Duration::ZERO,
            ..MeterOptions::new("lo")
        };
        let refused = KernelMeter::start(&options);
        assert!(
            matches!(refused, Err(DataPlaneError::OutOfRange { .. })),
            "{refused:?}"
        );
        let missing = KernelMeter::start(&MeterOptions::new("nowhere0"));
        assert!(
            matches!(missing, Err(DataPlaneError::NoInterface(_))),
            "{missing:?}"
        );
    });
}

fn measured(meter: &KernelMeter) -> u64 {
    count(meter, MeterVerdict::Measured)
}

/// Packets of a verdict.
fn count(meter: &KernelMeter, of: MeterVerdict) -> u64 {
    let verdicts = meter.verdicts().expect("verdicts");
    let found = verdicts.iter().find(|(verdict, _)| *verdict == of);
    found.map_or(0, |(_, count)| count.packets)
}

fn tally(samples: &[MeterSample], slot: u8) -> Tally {
    let mut sum = Tally::default();
    let mine = samples.iter().filter(|sample| sample.slot == slot);
    mine.for_each(|sample| sum.merge(&sample.tally));
    sum
}

fn assert_near(samples: &[MeterSample], slot: u8, truth: &Truth) {
    let mean_ns = tally(samples, slot).mean_ns().expect("an estimate");
    truth.assert_near(mean_ns, &format!("slot {slot}"));
}

/// More flows than the meter keeps, one after another, in an epoch that does not end.
const FLOWS: usize = 300;
const KEPT: u32 = 64;

fn small() -> MeterOptions {
    MeterOptions {
        max_flows: KEPT,
        epoch: Duration::from_secs(1 << 20),
        ..MeterOptions::new("m0")
    }
}

/// Latencies of connections that have ended are not lost with their flows.
#[test]
fn short_connections_are_in_records_before_they_are_evicted() {
    Sandbox::run(|_| {
        let client = client();
        let listener = TcpListener::bind(SERVER).expect("listener");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut request = [0; 100];
                while stream.read_exact(&mut request).is_ok() {
                    sleep(Duration::from_millis(1));
                    stream.write_all(b"answer").expect("an answer");
                }
            }
        });
        let mut meter = KernelMeter::start(&small()).expect("meter");
        client.run(|| {
            for _ in 0..FLOWS {
                let mut stream = TcpStream::connect(SERVER).expect("a connection");
                stream.set_nodelay(true).expect("nodelay");
                // Of which some are on time.
                for _ in 0..6 {
                    stream.write_all(&[7; 100]).expect("a request");
                    stream.read_exact(&mut [0; 6]).expect("an answer");
                }
            }
        });
        let mut flows = BTreeSet::new();
        wait_for("records of all connections", || {
            let samples = meter.poll(Duration::from_millis(10)).expect("poll");
            flows.extend(samples.iter().map(|sample| sample.flow));
            flows.len() == FLOWS
        });
        assert_eq!(meter.open_epochs().expect("flows").evicted, 0);
    });
}

/// What never says that it ends is evicted with its latencies, and counted.
#[test]
fn epochs_of_evicted_flows_are_counted() {
    Sandbox::run(|_| {
        let client = client();
        let mut meter = KernelMeter::start(&small()).expect("meter");
        let bind = |i| {
            // Ports that the kernel chooses come twice.
            UdpSocket::bind(("10.3.0.2", 20_000 + i as u16)).expect("socket")
        };
        let sockets: Vec<_> = client.run(|| (0..FLOWS).map(bind).collect());
        let (mut sent, mut stalled) = (0, 0);
        for socket in sockets {
            let start = Instant::now();
            for _ in 0..3 {
                let _ = socket.send_to(&[7; 200], SERVER);
                sent += 1;
                // Those that arrive at once are one request.
                wait_for("a packet", || measured(&meter) >= sent);
                sleep(Duration::from_millis(1));
            }
            stalled += u64::from(start.elapsed() > Duration::from_millis(20));
        }
        assert_eq!(meter.poll(Duration::ZERO).expect("poll"), []);
        let open = meter.open_epochs().expect("flows");
        assert!(open.samples.len() <= KEPT as usize, "{open:?}");
        // A flow that paused within its three packets may have no latency.
        let all = open.samples.len() as u64 + open.evicted;
        let flows = FLOWS as u64;
        assert!((flows - stalled..=flows).contains(&all), "{all}, {stalled}");
    });
}

#[test]
fn traffic_control_measures_the_same() {
    Sandbox::run(|_| {
        let options = MeterOptions {
            attach: Attach::Tc,
            epoch: Duration::from_millis(50),
            ..MeterOptions::new("m0")
        };
        let run = past(&options);
        assert_eq!(
            (run.meter.hook(), measured(&run.meter)),
            (MeterHook::Tc, u64::from(REQUESTS))
        );
        assert_near(&run.samples, 0, &run.truth);
        drop(run.meter);
        let left = std::process::Command::new("bpftool")
            .args(["net", "show", "dev", "m0"])
            .output();
        if let Ok(left) = left {
            let left = String::from_utf8_lossy(&left.stdout).into_owned();
            assert!(!left.contains("causeway"), "{left}");
        }
    });
}

#[test]
fn a_meter_leaves_a_running_xdp_program_alone() {
    Sandbox::run(|_| {
        let _client = client();
        let first = KernelMeter::start(&MeterOptions::new("m0")).expect("meter");
        let second = KernelMeter::start(&MeterOptions::new("m0")).expect("meter");
        assert_eq!(first.hook(), MeterHook::Xdp(AttachedMode::Native));
        assert_eq!(second.hook(), MeterHook::Tc);
    });
}

/// All three at once, and their distributions.
#[test]
fn estimators_run_side_by_side_in_the_kernel() {
    Sandbox::run(|_| {
        let options = MeterOptions {
            method: Method::FixedGap(FixedGapConfig::default()),
            more: vec![Method::Modes(ModesConfig::default()), Method::WindowChain],
            max_servers: 16,
            epoch: Duration::from_millis(50),
            ..MeterOptions::new("m0")
        };
        let run = past(&options);
        let (samples, truth) = (&run.samples, &run.truth);
        for slot in 0..3 {
            assert_near(samples, slot, truth);
            let servers = run.meter.servers().expect("histograms");
            let mine: Vec<_> = servers
                .iter()
                .filter(|server| server.slot == slot)
                .collect();
            assert_eq!(mine.len(), 1);
            assert_eq!(
                (mine[0].server.to_string(), mine[0].proto),
                (SERVER.to_owned(), 17)
            );
            let sum = tally(samples, slot);
            assert_eq!(mine[0].histogram.count(), sum.weight_halves, "slot {slot}");
            let median_ns = mine[0].histogram.quantile(0.5).expect("a median") as f64;
            assert!(
                (median_ns / truth.median_ns - 1.0).abs() < 0.1,
                "{median_ns} for {}",
                truth.median_ns
            );
        }
        assert_eq!(tally(samples, 2).window, 1);
        let twice = MeterOptions {
            more: vec![Method::FixedGap(FixedGapConfig::default())],
            ..options
        };
        assert!(matches!(
            KernelMeter::start(&twice),
            Err(DataPlaneError::SameEstimator)
        ));
    });
}

/// Packets measured with this network of clients.
fn measured_with(network: &str, bits: u8) -> u64 {
    let options = MeterOptions {
        client_nets: vec![(network.parse().expect("an address"), bits)],
        ..MeterOptions::new("m0")
    };
    measured(&once(&options).meter)
}

#[test]
fn with_both_sides_inside_a_client_network_ports_decide() {
    Sandbox::run(|_| assert_eq!(measured_with("10.3.0.0", 24), u64::from(REQUESTS)));
}

/// As WireGuard, NAT traversal and NTP have them.
#[test]
fn equal_ports_leave_it_to_the_first_packet() {
    Sandbox::run(|_| {
        let client = client();
        let meter = KernelMeter::start(&MeterOptions::new("m0")).expect("meter");
        client.run(|| {
            let socket = UdpSocket::bind("10.3.0.2:443").expect("socket");
            for _ in 0..10 {
                // No socket listens; the ICMP error may come back here.
                let _ = socket.send_to(&[7; 200], SERVER);
            }
        });
        wait_for("the packets", || measured(&meter) == 10);
    });
}

#[test]
fn client_networks_overrule_the_ports() {
    Sandbox::run(|_| {
        assert_eq!(
            measured_with("10.3.0.1", 32),
            0,
            "the server alone is inside"
        )
    });
}

/// A second meter, pinned and on no interface, stands for a balancer.
#[test]
fn packets_go_on_to_the_next_program() {
    Sandbox::run(|sandbox| {
        let pin = sandbox.bpffs().join("next");
        let storage = Box::leak(Box::new(std::mem::MaybeUninit::uninit()));
        let open = MeterSkelBuilder::default().open(storage).expect("open");
        let mut skel = open.load().expect("load");
        skel.progs.causeway_meter.pin(&pin).expect("pin");
        let options = MeterOptions {
            next: Some(pin.clone()),
            ..MeterOptions::new("m0")
        };
        let run = once(&options);
        assert_eq!(measured(&run.meter), u64::from(REQUESTS));
        let key = (MeterVerdict::Measured as u32).to_ne_bytes();
        let cpus = skel.maps.verdicts.lookup_percpu(&key, MapFlags::ANY);
        let packets = |cpu: &Vec<u8>| PacketsBytes::from_bytes(cpu).expect("size").packets;
        let after: u64 = cpus.expect("map").expect("index").iter().map(packets).sum();
        assert_eq!(after, u64::from(REQUESTS));
        for (next, words) in [
            (sandbox.bpffs().join("nothing"), "No such file"),
            (
                sandbox.bpffs().to_owned(),
                "cannot get the packets after the meter",
            ),
        ] {
            let options = MeterOptions {
                next: Some(next),
                ..MeterOptions::new("lo")
            };
            let error = KernelMeter::start(&options)
                .expect_err("no program")
                .to_string();
            assert!(error.contains(words), "{error}");
        }
    });
}
