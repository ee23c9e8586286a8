// SPDX-License-Identifier: Apache-2.0
//! What a world is made of, and the sixteen workloads of the paper's table II.

use causeway_core::certes::{LINUX_6_5_S, RFC_1122_S, RetryClass};

/// How long a request keeps a worker busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// Mean, seconds. Times are exponentially distributed.
    pub mean_s: f64,
}

/// The listener's accept queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Backlog {
    /// One limit.
    Fixed(usize),
    /// Limits that follow each other, each for `period_s` (figure 20).
    Cycle {
        /// How long each limit holds, seconds.
        period_s: f64,
        /// The limits.
        limits: Vec<usize>,
    },
}

/// Clients, links and a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What tables call it.
    pub name: String,
    /// Clients in a closed loop: each begins a transaction when the one before has
    /// ended, or been given up.
    pub clients: usize,
    /// Between two transactions, mean of an exponential distribution, seconds.
    pub think_s: f64,
    /// Clients begin transactions during the first time of each period of both,
    /// seconds (workloads I and J).
    pub on_off_s: Option<(f64, f64)>,
    /// Connections that are served at the same time.
    pub workers: usize,
    /// Of one request.
    pub service: Service,
    /// Requests on a connection, one after the other.
    pub requests: u32,
    /// Limit of the accept queue.
    pub backlog: Backlog,
    /// Round trip, seconds.
    pub rtt_s: f64,
    /// Standard deviation of each packet's delay, seconds.
    pub jitter_s: f64,
    /// Share of packets of the handshake that the network loses, each way.
    pub loss: f64,
    /// Share of SYNs that the server drops by a policy, first ones and retries alike.
    pub policed: f64,
    /// SYNs of a flood, per second.
    pub flood_pps: f64,
    /// The clients as they are.
    pub clients_are: Vec<RetryClass>,
    /// The clients as the model takes them.
    pub model_takes: Vec<RetryClass>,
    /// How long it runs, seconds.
    pub duration_s: f64,
    /// What is left out of figures at the begin, seconds.
    pub warm_up_s: f64,
    /// Length of a slot, seconds.
    pub slot_s: f64,
}

/// When clients send SYNs again, and when they give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynSchedule {
    /// 3 and 9 s, given up at 21 s: the paper's clients.
    Paper,
    /// Linux 6.5 and newer, given up at 9 s: as many retries as patience allows.
    Linux,
}

impl SynSchedule {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Paper, Self::Linux];

    /// `paper` or `linux`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Linux => "linux",
        }
    }

    /// Clients of one class with this patience, or the usual one.
    pub fn class(self, fto_s: Option<f64>) -> RetryClass {
        match self {
            Self::Paper => RetryClass::new("rfc1122", RFC_1122_S, fto_s.unwrap_or(21.0)),
            Self::Linux => RetryClass::new("linux", LINUX_6_5_S, fto_s.unwrap_or(9.0)),
        }
    }

    /// Three patiences in equal shares, for workloads O and P: one retry fewer than
    /// the model takes, as many, and more.
    fn three_patiences(self) -> Vec<RetryClass> {
        let patience_s = match self {
            Self::Paper => [9.0, 21.0, 45.0],
            Self::Linux => [3.0, 9.0, 20.0],
        };
        patience_s.map(|fto_s| self.class(Some(fto_s))).to_vec()
    }
}

/// A row of table II: what the paper says of it, and the round trip's jitter.
struct Row {
    name: &'static str,
    clients: usize,
    /// The middle of the connections per second that it names.
    rate: f64,
    requests: u32,
    rtt_s: f64,
    loss: f64,
    on_off: bool,
    patiences: bool,
}

const fn row(
    name: &'static str,
    clients: usize,
    rate: f64,
    requests: u32,
    rtt_s: f64,
    loss: f64,
) -> Row {
    Row {
        name,
        clients,
        rate,
        requests,
        rtt_s,
        loss,
        on_off: false,
        patiences: false,
    }
}

const TABLE_II: [Row; 16] = [
    row("A", 2000, 1440.0, 1, 0.008, 0.0),
    row("B", 2000, 455.0, 1, 0.0005, 0.0),
    row("C", 2000, 498.0, 1, 0.152, 0.0),
    row("D", 2000, 248.0, 1, 0.0004, 0.0),
    row("E", 2000, 115.0, 15, 0.011, 0.0),
    row("F", 1400, 73.0, 15, 0.153, 0.0),
    row("G", 2000, 135.0, 5, 0.0007, 0.0),
    row("H", 1600, 135.0, 5, 0.152, 0.0),
    Row {
        on_off: true,
        ..row("I", 2000, 126.0, 5, 0.133, 0.0)
    },
    Row {
        on_off: true,
        ..row("J", 4800, 300.0, 1, 0.151, 0.0)
    },
    row("K", 2000, 140.0, 5, 0.0006, 0.03),
    row("L", 2000, 825.0, 1, 0.0009, 0.03),
    row("M", 1600, 82.0, 5, 0.151, 0.03),
    row("N", 2000, 273.0, 1, 0.151, 0.03),
    Row {
        patiences: true,
        ..row("O", 1500, 102.0, 5, 0.15, 0.03)
    },
    Row {
        patiences: true,
        ..row("P", 1800, 290.0, 1, 0.151, 0.03)
    },
];

/// Apache's daemons in the paper's testbed.
const WORKERS: usize = 255;
/// Its accept queue: the default of Apache 1.3.
const LISTEN_BACKLOG: usize = 511;
/// On and off times of workloads I and J, seconds.
const ON_OFF_S: (f64, f64) = (40.0, 40.0);

/// The workloads A to P of table II on this schedule. Service times are such that
/// all workers together serve the middle of the rate that the table names.
pub fn table_ii(schedule: SynSchedule) -> Vec<Workload> {
    TABLE_II.iter().map(|row| workload(row, schedule)).collect()
}

fn workload(row: &Row, schedule: SynSchedule) -> Workload {
    let requests = f64::from(row.requests);
    let busy_s = WORKERS as f64 / row.rate;
    let waiting_s = row.rtt_s * (requests - 1.0);
    Workload {
        name: row.name.to_owned(),
        clients: row.clients,
        think_s: 0.0,
        on_off_s: row.on_off.then_some(ON_OFF_S),
        workers: WORKERS,
        service: Service {
            mean_s: ((busy_s - waiting_s) / requests).max(0.002),
        },
        requests: row.requests,
        backlog: Backlog::Fixed(LISTEN_BACKLOG),
        rtt_s: row.rtt_s,
        // The pings of table II: over the long path a few ms off the mean.
        jitter_s: if row.rtt_s > 0.05 { 0.004 } else { 0.0 },
        loss: row.loss,
        policed: 0.0,
        flood_pps: 0.0,
        clients_are: match row.patiences {
            true => schedule.three_patiences(),
            false => vec![schedule.class(None)],
        },
        model_takes: vec![schedule.class(None)],
        duration_s: 1200.0,
        warm_up_s: 45.0,
        slot_s: 0.25,
    }
}
