// SPDX-License-Identifier: Apache-2.0
//! The meter on a real interface: a client's requests cross a veth pair. Needs
//! root; fails without.

mod sandbox;

use std::net::UdpSocket;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig, Tally};
use causeway_io::abi::MeterVerdict;
use causeway_io::{Error, Meter, MeterOptions, MeterSample, Mode};
use sandbox::{Netns, Sandbox, ip};

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
    client
}

/// Sends requests one by one, as a client does whose server takes 4 ms. The mean
/// time between them, ns; pauses that a busy machine made longer than 200 ms count
/// as the client's idle time, here and in the meter.
fn send_requests() -> f64 {
    let socket = UdpSocket::bind("10.3.0.2:0").expect("socket");
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        // Nobody listens; the ICMP error may come back here.
        let _ = socket.send_to(&[7; 200], SERVER);
        times.push(Instant::now());
        sleep(Duration::from_millis(4));
    }
    let gaps: Vec<Duration> = times
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .filter(|gap| *gap < Duration::from_millis(200))
        .collect();
    gaps.iter().sum::<Duration>().as_nanos() as f64 / gaps.len() as f64
}

/// One run; what the meter says and what the client knows, ns.
fn measure(method: Method) -> (Vec<MeterSample>, f64) {
    let client = client();
    let options = MeterOptions {
        method,
        epoch: Duration::from_millis(50),
        ..MeterOptions::new("m0")
    };
    let mut meter = Meter::start(&options).expect("meter");
    assert_eq!(meter.mode(), Mode::Native);
    let truth_ns = client.run(send_requests);
    let mut samples = meter.poll(Duration::ZERO).expect("poll");
    assert!(samples.len() >= 5, "{samples:?}");
    samples.extend(meter.open_epochs().expect("flows"));
    assert_eq!(meter.lost_records(), 0);
    let verdicts = meter.verdicts().expect("verdicts");
    let measured = verdicts.iter().find(|(v, _)| *v == MeterVerdict::Measured);
    assert_eq!(measured.map(|(_, c)| c.packets), Some(u64::from(REQUESTS)));
    let second = Meter::start(&options);
    assert!(matches!(second, Err(Error::Foreign { .. })), "{second:?}");
    drop(meter);
    Meter::start(&options).expect("the interface is free again");
    (samples, truth_ns)
}

fn check(method: Method) {
    let (samples, truth_ns) = measure(method);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("time");
    let mut sum = Tally::default();
    for sample in samples {
        assert_eq!(sample.flow.server.to_string(), SERVER);
        assert_eq!(sample.flow.client.ip().to_string(), "10.3.0.2");
        let start = Duration::from_nanos(sample.epoch_start_ns);
        assert!(start < now && now - start < Duration::from_secs(30));
        sum.sum2_ns += sample.tally.sum2_ns;
        sum.count2 += sample.tally.count2;
    }
    let mean_ns = sum.mean_ns().expect("an estimate");
    let error = mean_ns / truth_ns - 1.0;
    assert!(error.abs() < 0.05, "{mean_ns} ns instead of {truth_ns} ns");
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
        let refused = Meter::start(&options);
        assert!(
            matches!(refused, Err(Error::OutOfRange { .. })),
            "{refused:?}"
        );
        let missing = Meter::start(&MeterOptions::new("nowhere0"));
        assert!(matches!(missing, Err(Error::NoInterface(_))), "{missing:?}");
    });
}
