// SPDX-License-Identifier: Apache-2.0
//! The runs: what clients, way and server are like.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use causeway_api::agent::{ClientsView, HistoryRow};
use causeway_core::certes::LINUX_6_5_S;
use causeway_sim::certes::workload::{Backlog, SynSchedule, Workload, table_ii};

use super::net::Net;
use super::score::{self, Score};
use crate::accept_queue_server::{AcceptQueueConfig, AcceptQueueServer, Served};
use crate::agent::AgentProcess;
use crate::clock::{self, until};
use crate::impatient_clients::{ImpatientClients, ImpatientClientsConfig};
use crate::load::flood::Flood;
use crate::nginx::Nginx;

/// One experiment.
#[derive(Debug, Clone)]
pub(crate) struct CertesRun {
    pub name: String,
    pub clients: usize,
    pub workers: usize,
    pub service: Duration,
    /// Limits of the accept queue, one after the other.
    pub backlog: Vec<i32>,
    pub requests: u32,
    /// How long clients try to connect; equal shares.
    pub patience: Vec<Duration>,
    pub on_off: Option<(Duration, Duration)>,
    pub arrivals: Option<(f64, f64)>,
    /// Share of SYNs that are dropped at the server by chance, besides.
    pub policed: f64,
    /// Added round trip, microseconds.
    pub round_trip_us: u64,
    /// Share of packets lost, each way.
    pub loss: f64,
    /// SYNs of a flood, per second.
    pub flood: u64,
    /// `net.ipv4.tcp_syn_linear_timeouts` of the clients, where it is not the kernel's.
    pub linear_timeouts: Option<u32>,
    /// How many ports the clients have, where it is not the kernel's number: tuples come again sooner.
    pub ports: Option<u16>,
    /// Whether nginx serves, each worker one client at a time.
    pub nginx: bool,
    /// All times of clients and server are divided by this, SYN timeouts among them.
    pub scale: u32,
    /// What befalls the agent in the middle.
    pub trouble: Option<AgentTrouble>,
    /// Further lines of the agent's file, in [agent] and in [agent.clients].
    pub agent: (String, String),
}

/// What a measurement must outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentTrouble {
    /// It is killed and started again.
    Restart,
    /// Its time of day is set back by an hour, and then to tomorrow.
    Clock,
}

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
/// How long each of several limits of the accept queue holds.
const BACKLOG_PERIOD: Duration = Duration::from_secs(6);
/// A slot of the agent.
const SLOT: Duration = Duration::from_millis(250);

/// Between two looks at what the agent says.
const POLL: Duration = Duration::from_millis(200);
/// Table II's on and off times divided by this: a run has both.
const ON_OFF_DIVISOR: f64 = 8.0;
/// Round trips below this are a bare veth's.
const ROUND_TRIP_MIN_S: f64 = 0.001;

/// Clients that keep a server with a short queue busy.
pub(crate) fn steady() -> CertesRun {
    CertesRun {
        name: "steady".to_owned(),
        clients: 400,
        workers: 16,
        service: MS(100),
        backlog: vec![64],
        requests: 1,
        patience: vec![S(9)],
        on_off: None,
        arrivals: None,
        policed: 0.0,
        round_trip_us: 0,
        loss: 0.0,
        flood: 0,
        linear_timeouts: None,
        ports: None,
        nginx: false,
        scale: 1,
        trouble: None,
        agent: (String::new(), String::new()),
    }
}

/// All runs.
pub(super) fn matrix() -> Vec<CertesRun> {
    vec![
        steady(),
        CertesRun {
            name: "on-off".to_owned(),
            on_off: Some((MS(8000), MS(7000))),
            ..steady()
        },
        CertesRun {
            name: "queue".to_owned(),
            clients: 600,
            backlog: vec![2048, 512, 128, 32, 64, 256, 1024],
            ..steady()
        },
        CertesRun {
            name: "http11".to_owned(),
            requests: 5,
            service: MS(20),
            ..steady()
        },
        CertesRun {
            name: "policed".to_owned(),
            policed: 0.3,
            clients: 300,
            ..steady()
        },
        CertesRun {
            name: "wan".to_owned(),
            round_trip_us: 150_000,
            ..steady()
        },
        CertesRun {
            name: "loss".to_owned(),
            round_trip_us: 150_000,
            loss: 0.03,
            ..steady()
        },
        CertesRun {
            name: "patience".to_owned(),
            patience: vec![S(3), S(9), S(20)],
            clients: 500,
            ..steady()
        },
        CertesRun {
            // Twice as many as there are clients, of which the kernel takes the even ones.
            name: "ports".to_owned(),
            ports: Some(1600),
            ..steady()
        },
        CertesRun {
            name: "nginx".to_owned(),
            nginx: true,
            ..steady()
        },
        CertesRun {
            name: "restart".to_owned(),
            trouble: Some(AgentTrouble::Restart),
            // When the agent is killed some clients that gave up are in its history, some
            // are judged and not there yet, and some still wait. No retry is due when
            // patience ends, so that no client is connected and gone at once.
            patience: vec![S(6)],
            ..steady()
        },
        CertesRun {
            name: "clock".to_owned(),
            trouble: Some(AgentTrouble::Clock),
            ..steady()
        },
        CertesRun {
            name: "flood".to_owned(),
            flood: 300,
            ..steady()
        },
    ]
}

/// The workloads of table II with clients of Linux; clients, workers and the accept queue
/// are divided by `size`, and with them the connections per second, so that one machine has many.
pub(super) fn table_two(size: usize) -> Vec<CertesRun> {
    let workloads = table_ii(SynSchedule::Linux);
    workloads.iter().map(|of| real(of, size)).collect()
}

fn real(of: &Workload, size: usize) -> CertesRun {
    let backlog = match &of.backlog {
        Backlog::Fixed(limit) => vec![*limit],
        Backlog::Cycle { limits, .. } => limits.clone(),
    };
    let round_trip_s = Some(of.rtt_s).filter(|rtt_s| *rtt_s >= ROUND_TRIP_MIN_S);
    let s = Duration::from_secs_f64;
    CertesRun {
        name: of.name.clone(),
        clients: of.clients / size,
        workers: of.workers / size,
        service: s(of.service.mean_s),
        backlog: backlog.iter().map(|limit| (limit / size) as i32).collect(),
        requests: of.requests,
        patience: of.clients_are.iter().map(|of| s(of.fto_s)).collect(),
        on_off: of
            .on_off_s
            .map(|(on, off)| (s(on / ON_OFF_DIVISOR), s(off / ON_OFF_DIVISOR))),
        round_trip_us: (round_trip_s.unwrap_or(0.0) * 1e6) as u64,
        loss: of.loss,
        ..steady()
    }
}

/// The server.
enum Backend {
    Own(AcceptQueueServer),
    Nginx(Nginx),
}

impl Backend {
    fn start(run: &CertesRun, net: &Net, seed: u64) -> Result<Self> {
        if run.nginx {
            let listen = format!("backlog={}", run.backlog[0]);
            let (netns, workers) = (&net.server.netns, run.workers as u32);
            let nginx =
                Nginx::start_with(netns, &run.name, net.target().port(), workers, &listen, "")?;
            return Ok(Self::Nginx(nginx));
        }
        let config = AcceptQueueConfig {
            address: net.target(),
            workers: run.workers,
            service: run.service,
            backlog: run.backlog.clone(),
            period: BACKLOG_PERIOD / run.scale,
            seed,
        };
        AcceptQueueServer::start(&net.server.netns, config).map(Self::Own)
    }

    /// What its own log says.
    fn served(&self) -> Result<Vec<Served>> {
        match self {
            Self::Own(server) => Ok(server.served()),
            Self::Nginx(nginx) => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
                let offset_s = clock::monotonic_ns() as f64 / 1e9 - since_epoch;
                let log = nginx.blocking_log()?.into_iter();
                Ok(log
                    .map(|(at_s, took_s)| Served {
                        end_ns: ((at_s + offset_s) * 1e9) as u64,
                        took_ns: (took_s * 1e9) as u64,
                    })
                    .collect())
            }
        }
    }
}

/// A run under way.
pub(crate) struct RunningCertes {
    run: CertesRun,
    clients: ImpatientClients,
    server: Backend,
    agent: AgentProcess,
    flood: Option<Flood>,
    net: Net,
}

impl CertesRun {
    /// The same in a fraction of the time: as many clients lose as many SYNs, and come as
    /// many times again.
    pub(crate) fn scaled(self, scale: u32) -> Self {
        let more = f64::from(scale);
        Self {
            service: self.service / scale,
            patience: self.patience.iter().map(|of| *of / scale).collect(),
            on_off: self.on_off.map(|(on, off)| (on / scale, off / scale)),
            arrivals: self.arrivals.map(|(on, off)| (on * more, off * more)),
            round_trip_us: self.round_trip_us / u64::from(scale),
            flood: self.flood * u64::from(scale),
            scale: self.scale * scale,
            ..self
        }
    }

    /// When clients retransmit SYNs, as the agent's file has it.
    fn retries(&self) -> String {
        match (self.scale, self.linear_timeouts) {
            (1, Some(0)) => "schedule = \"rfc6298\"".to_owned(),
            (1, _) => "schedule = \"linux\"".to_owned(),
            (scale, _) => {
                let at = |s: &f64| format!("\"{:.0}ms\"", 1e3 * s / f64::from(scale));
                let all: Vec<String> = LINUX_6_5_S.iter().map(at).collect();
                format!("retries = [{}]", all.join(", "))
            }
        }
    }

    /// The agent's file behind its first lines.
    fn agent_lines(&self) -> String {
        let class = |patience: &Duration| {
            format!(
                "[[agent.clients.retry]]\n{}\npatience = \"{}ms\"\n",
                self.retries(),
                patience.as_millis()
            )
        };
        let classes: Vec<String> = self.patience.iter().map(class).collect();
        format!(
            "{}[agent.clients]\nservices = [\"*:80\"]\nothers = false\nhistory = \"HISTORY\"\n\
             slot = \"{}ms\"\n{}learn = {}\n{}",
            self.agent.0,
            (SLOT / self.scale).as_millis(),
            self.agent.1,
            // A flood must not pass for clients without patience.
            self.patience.len() > 1 || self.flood > 0,
            classes.concat()
        )
    }

    /// Starts server, agent and clients, which begin transactions for so long.
    pub(crate) fn start(
        &self,
        binary: &Path,
        net: Net,
        duration: Duration,
        seed: u64,
    ) -> Result<RunningCertes> {
        let server = Backend::start(self, &net, seed)?;
        let pins = format!("/sys/fs/bpf/{}", self.name);
        let start = match self.trouble {
            Some(AgentTrouble::Clock) => AgentProcess::start_with_clock,
            _ => AgentProcess::start_with,
        };
        let agent = start(binary, &net.server, Path::new(&pins), &self.agent_lines())?;
        let clients = ImpatientClientsConfig {
            target: net.target(),
            clients: self.clients,
            requests: self.requests,
            connect_timeouts: self.patience.clone(),
            on_off: self.on_off,
            arrivals: self.arrivals,
            duration,
            service: self.service,
            seed,
        };
        let clients = ImpatientClients::start(&net.client, clients);
        let flood = (self.flood > 0).then(|| Flood::start(&net.client, net.target(), self.flood));
        Ok(RunningCertes {
            run: self.clone(),
            clients,
            server,
            agent,
            flood,
            net,
        })
    }
}

impl RunningCertes {
    /// Sets the limit of the server's accept queue, as a process does that calls listen(2)
    /// again.
    pub(crate) fn set_backlog(&self, limit: u32) -> Result<()> {
        match &self.server {
            Backend::Own(server) => server.set_backlog(limit),
            Backend::Nginx(_) => bail!("nginx keeps the queue that it began with"),
        }
    }

    pub(crate) fn agent(&self) -> &AgentProcess {
        &self.agent
    }

    /// What befalls the agent.
    pub(crate) fn trouble(&mut self) -> Result<()> {
        match self.run.trouble {
            None => Ok(()),
            Some(AgentTrouble::Restart) => self.agent.restart(),
            Some(AgentTrouble::Clock) => self.agent.set_clock("-1h"),
        }
    }

    /// What befalls it a little later.
    pub(crate) fn trouble_again(&self) -> Result<()> {
        match self.run.trouble {
            None | Some(AgentTrouble::Restart) => Ok(()),
            Some(AgentTrouble::Clock) => self.agent.set_clock("+1d"),
        }
    }

    /// Waits for the last client and for the agent to be done with it.
    pub(crate) fn finish(self, warm_up: Duration, counts: Duration) -> Result<Score> {
        let truth = self.clients.finish()?;
        if let Some(flood) = self.flood {
            flood.finish()?;
        }
        let longest = self.run.patience.iter().max().copied().unwrap_or_default();
        let range = score::range(&truth, warm_up, counts)?;
        // The agent knows which clients gave up one patience later.
        let timeout = S(30) + 3 * longest;
        let last = score::last_second(&truth)?.max(range.end);
        self.agent.wait_recorded(last, timeout)?;
        let history = self.agent.history()?;
        if self.run.trouble == Some(AgentTrouble::Clock) {
            score::check_clock(&history)?;
        }
        let live = match self.run.trouble {
            // Those who gave up before are another agent's.
            Some(AgentTrouble::Restart) => self.agent.clients()?,
            _ => live_when_settled(&self.agent, &history, timeout)?,
        };
        let served = self.server.served()?;
        drop(self.net);
        Score::of(&self.run, range, &truth, &served, &history, &live)
    }
}

/// What the agent says once its histogram has everybody who gave up: who may still come, whatever
/// its stack, is not in it, while the history goes by the patience that is known.
fn live_when_settled(
    agent: &AgentProcess,
    history: &[HistoryRow],
    timeout: Duration,
) -> Result<ClientsView> {
    let gave_up: f64 = history.iter().map(|row| row.gave_up).sum();
    let has_all = |live: &ClientsView| {
        let of = live.categories.iter();
        let counted: u64 = of.flat_map(|of| &of.gave_up.counts).sum();
        counted as f64 >= gave_up
    };
    let settled = until(timeout, || {
        sleep(POLL);
        Ok(Some(agent.clients()?).filter(has_all))
    })?;
    settled.map_or_else(|| agent.clients(), Ok)
}
