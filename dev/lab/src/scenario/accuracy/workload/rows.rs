// SPDX-License-Identifier: Apache-2.0
//! The rows themselves, by what they are about.

use super::{Draw, ServerKind};
use crate::link_emulator::Impairment;
use crate::load::protocol::AppProtocol;
use crate::quic::{Order, Stack};
use crate::timed_http_server::Discipline;

const fn round_trip(ms: u64) -> Impairment {
    Impairment {
        round_trip_us: ms * 1000,
        loss: 0.0,
        reorder: 0.0,
        hold_us: 0,
        jitter_us: 0,
        overtake: false,
    }
}

pub(super) fn windows(draw: &mut Draw) {
    let web = draw.web(
        "web",
        "W=4, pages as a browser asks for them, connections of 1 to 2 s",
        4,
    );
    (web.max_age_ms, web.idle_ms, web.connections) = (2_000, 20.0, 8);
    web.target.signed_pct = Some(0.5);
    web.paper("median 0.63 % over all responses, tails beyond 15 %");
    draw.web("w1", "W=1", 1).within(0.1);
    draw.web("w2", "W=2, independent service times", 2);
    draw.web("w4_par", "W=4, independent service times", 4)
        .within(1.2)
        .mostly_within10()
        .paper("median 0.63 % over all responses");
    draw.web("w6_par", "W=6, independent service times", 6);
    draw.web("w8_par", "W=8, independent service times", 8)
        .within(2.0);
}

pub(super) fn disciplines(draw: &mut Draw) {
    draw.web("w4_batch", "W=4, one service time for all that wait", 4)
        .discipline(Discipline::Batch)
        .within(1.0)
        .mostly_within10();
    draw.web("w2_seq", "W=2, served one after the other", 2)
        .discipline(Discipline::Serial);
    draw.web("w4_seq", "W=4, served one after the other", 4)
        .discipline(Discipline::Serial)
        .within(0.8)
        .mostly_within10();
    let cpu = draw.web(
        "w4_cpu10",
        "W=4, nginx with 8 to 25 % of a CPU, in 10 ms periods",
        4,
    );
    cpu.server = ServerKind::Throttled {
        shares: (0.08, 0.25),
        every_ms: 400,
    };
    cpu.page.service_median_us = 0.0;
    cpu.page.service_min_us = 0;
    cpu.within(1.5).mostly_within10();
    draw.web("w1_idle", "W=1, idle between pages, 300 ms on the mean", 1)
        .within(1.0)
        .idle_ms = 300.0;
    draw.web("w4_idle", "W=4, idle between pages, 30 ms on the mean", 4)
        .within(1.0)
        .idle_ms = 30.0;
}

pub(super) fn paths(draw: &mut Draw) {
    draw.web("w4_wan20", "W=4, 20 ms of path", 4)
        .path(round_trip(20))
        .within(1.0);
    draw.web("w6_wan40", "W=6, 40 ms of path", 6)
        .path(round_trip(40));
    draw.web("w4_wan80", "W=4, 80 ms of path", 4)
        .path(round_trip(80));
    let slow = draw.web("w4_wan20_slow", "W=4, 20 ms of path, service of 60 ms", 4);
    slow.path(round_trip(20)).page.service_median_us = 60_000.0;
    slow.page.service_sigma = 0.4;
    slow.connections = 8;
    draw.web("w1_loss1", "W=1, 1 % of the client's packets lost", 1)
        .path(Impairment {
            loss: 0.01,
            ..Impairment::default()
        })
        .within(1.2)
        .paper("robust (figure 6a)");
    draw.web("w4_loss1", "W=4, 1 % of the client's packets lost", 4)
        .path(Impairment {
            loss: 0.01,
            ..Impairment::default()
        })
        .within(1.2)
        .paper("robust (figure 6a)");
    draw.web(
        "w4_reorder25",
        "W=4, 25 % of the client's packets held back",
        4,
    )
    .discipline(Discipline::Batch)
    .path(Impairment {
        reorder: 0.25,
        hold_us: 400,
        ..Impairment::default()
    })
    .within(1.6)
    .paper("robust (figure 6b)");
}

pub(super) fn offloads(draw: &mut Draw) {
    draw.web("w4_par_offload", "W=4, independent, TSO and GRO on", 4)
        .offloads = true;
    draw.web(
        "w4_batch_offload",
        "W=4, one time for all, TSO and GRO on",
        4,
    )
    .discipline(Discipline::Batch)
    .offloads = true;
}

pub(super) fn stores(draw: &mut Draw) {
    for (name, about, w, offloads) in [
        ("memcached_w1", "memcached, get and set, W=1", 1, false),
        (
            "memcached_w4",
            "memcached, get and set, W=4: time of the client's batch",
            4,
            false,
        ),
        ("memcached_w4_offload", "the same, TSO and GRO on", 4, true),
    ] {
        draw.web(name, about, w)
            .store(ServerKind::Memcached, AppProtocol::Memcached)
            .paper("follows closely (figure 10)")
            .offloads = offloads;
    }
    for (name, about, w) in [
        ("redis_p4", "Redis, 4 in one write: time of the batch", 4),
        ("redis_p16", "Redis, 16 in one write: time of the batch", 16),
    ] {
        draw.web(name, about, w)
            .store(ServerKind::Redis, AppProtocol::Redis)
            .pipeline = true;
    }
}

pub(super) fn slow(draw: &mut Draw) {
    let rows: [(&'static str, &'static str, u32, f64, u32); 4] = [
        (
            "slow_250ms",
            "W=1, every response after 250 ms",
            250_000,
            0.0,
            0,
        ),
        (
            "slow_1s",
            "W=1, every response after 1 s",
            1_000_000,
            0.0,
            0,
        ),
        (
            "slow_5s",
            "W=1, every response after 5 s",
            5_000_000,
            0.0,
            0,
        ),
        (
            "slow_mixture",
            "W=1, 90 % after 0.3 ms, 10 % after 500 ms",
            300,
            0.1,
            500_000,
        ),
    ];
    for (name, about, us, share, slow_us) in rows {
        let row = draw
            .web(name, about, 1)
            .service(us, share, slow_us)
            .within(1.0);
        row.seconds = row.seconds.max(4.0 * f64::from(us) / 1e6);
    }
}

pub(super) fn http3(draw: &mut Draw) {
    let quinn = Stack::Quinn;
    // The sizes are those of PIRATE, section 5.7: 30 to 130 bytes, and 1.6 to 15.1 kB.
    draw.web("h3_w1", "HTTP/3, 1 stream", 1)
        .quic(quinn, Order::Par)
        .within(1.6)
        .paper("close to the truth (figure 9)");
    draw.web("h3_w4_small", "HTTP/3, 4 streams, small responses", 4)
        .quic(quinn, Order::Par)
        .sizes(80.0, 0.4, 512)
        .within(1.6)
        .paper("close to the truth (figure 9, -noack)");
    draw.web("h3_w4", "HTTP/3, 4 streams, responses of some kB", 4)
        .quic(quinn, Order::Par)
        .sizes(6_000.0, 0.6, 15_360)
        .within(1.6)
        .paper("close to the truth (figure 9, -ack)");
    draw.web(
        "h3_w4_batch",
        "HTTP/3, 4 streams, one service time for all",
        4,
    )
    .quic(quinn, Order::Batch)
    .sizes(6_000.0, 0.6, 15_360)
    .within(1.6);
    for (name, about, w) in [
        ("h3_w8", "HTTP/3, 8 streams", 8),
        ("h3_w12", "HTTP/3, 12 streams", 12),
        ("h3_w16", "HTTP/3, 16 streams", 16),
    ] {
        let row = draw.web(name, about, w);
        row.quic(quinn, Order::Par).sizes(6_000.0, 0.6, 15_360);
        row.target.worst_flow_pct = Some(5.0);
    }
    draw.web("h3_w4_wan20", "HTTP/3, 4 streams, 20 ms of path", 4)
        .quic(quinn, Order::Par)
        .path(round_trip(20))
        .within(1.6);
    let idle = draw.web("h3_w4_idle", "HTTP/3, 4 streams, idle between pages", 4);
    idle.quic(quinn, Order::Par).within(1.6);
    idle.idle_ms = 300.0;
    for (name, about, w) in [
        ("h3_go_w1", "HTTP/3 on quic-go, 1 stream", 1),
        ("h3_go_w4", "HTTP/3 on quic-go, 4 streams", 4),
        ("h3_go_w8", "HTTP/3 on quic-go, 8 streams", 8),
    ] {
        let row = draw.web(name, about, w);
        row.quic(Stack::QuicGo, Order::Par)
            .sizes(6_000.0, 0.6, 15_360);
        match w {
            ..=4 => row.target.median_pct = Some(1.6),
            _ => row.target.worst_flow_pct = Some(5.0),
        }
    }
    let rows: [(&'static str, &'static str, u32, f64, u32); 4] = [
        (
            "h3_slow_250ms",
            "HTTP/3, 1 stream, every response after 250 ms",
            250_000,
            0.0,
            0,
        ),
        (
            "h3_slow_1s",
            "HTTP/3, 1 stream, every response after 1 s",
            1_000_000,
            0.0,
            0,
        ),
        (
            "h3_slow_5s",
            "HTTP/3, 1 stream, every response after 5 s",
            5_000_000,
            0.0,
            0,
        ),
        (
            "h3_slow_mixture",
            "HTTP/3, 90 % after 0.3 ms, 10 % after 500 ms",
            300,
            0.1,
            500_000,
        ),
    ];
    for (name, about, us, share, slow_us) in rows {
        let row = draw.web(name, about, 1);
        row.quic(quinn, Order::Par)
            .service(us, share, slow_us)
            .within(1.6);
        row.seconds = row.seconds.max(4.0 * f64::from(us) / 1e6);
    }
}
