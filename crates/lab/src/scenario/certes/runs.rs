// SPDX-License-Identifier: Apache-2.0
//! The runs: what clients, way and server are like.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};

use super::net::Net;
use super::score::{self, Score};
use crate::agent::Agent;
use crate::clock;
use crate::crowd::{Crowd, CrowdConfig, Served, Server, ServerConfig};
use crate::load::flood::Flood;
use crate::nginx::Nginx;

/// One experiment.
#[derive(Debug, Clone)]
pub struct Run {
    pub name: &'static str,
    pub clients: usize,
    pub workers: usize,
    pub service: Duration,
    /// Limits of the accept queue, each for 6 s.
    pub backlog: Vec<i32>,
    pub requests: u32,
    /// How long clients try to connect, seconds; equal shares.
    pub patience_s: Vec<u64>,
    pub on_off: Option<(Duration, Duration)>,
    pub arrivals: Option<(f64, f64)>,
    /// Share of SYNs that are dropped at the server by chance, besides.
    pub policed: f64,
    /// Added round trip, microseconds.
    pub round_trip_us: u64,
    /// Share of packets lost, each way.
    pub loss: f64,
    /// SYNs of nobody, per second.
    pub flood: u64,
    /// `net.ipv4.tcp_syn_linear_timeouts` of the clients, where it is not the kernel's.
    pub linear_timeouts: Option<u32>,
    /// Whether nginx serves, each worker one client at a time.
    pub nginx: bool,
    /// What befalls the agent in the middle.
    pub trouble: Option<Trouble>,
    /// Further lines of the agent's file, in [agent] and in [agent.clients].
    pub agent: (String, String),
}

/// What a measurement must outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is killed and started again.
    Restart,
    /// Its time of day is set back by an hour, and then to tomorrow.
    Clock,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Clients that keep a server with a short queue busy.
pub fn steady() -> Run {
    Run {
        name: "steady",
        clients: 400,
        workers: 16,
        service: MS(100),
        backlog: vec![64],
        requests: 1,
        patience_s: vec![9],
        on_off: None,
        arrivals: None,
        policed: 0.0,
        round_trip_us: 0,
        loss: 0.0,
        flood: 0,
        linear_timeouts: None,
        nginx: false,
        trouble: None,
        agent: (String::new(), String::new()),
    }
}

/// All runs.
pub fn matrix() -> Vec<Run> {
    vec![
        steady(),
        Run {
            name: "on-off",
            on_off: Some((MS(8000), MS(7000))),
            ..steady()
        },
        Run {
            name: "queue",
            clients: 600,
            backlog: vec![2048, 512, 128, 32, 64, 256, 1024],
            ..steady()
        },
        Run {
            name: "http11",
            requests: 5,
            service: MS(20),
            ..steady()
        },
        Run {
            name: "policed",
            policed: 0.3,
            clients: 300,
            ..steady()
        },
        Run {
            name: "wan",
            round_trip_us: 150_000,
            ..steady()
        },
        Run {
            name: "loss",
            round_trip_us: 150_000,
            loss: 0.03,
            ..steady()
        },
        Run {
            name: "patience",
            patience_s: vec![3, 9, 20],
            clients: 500,
            ..steady()
        },
        Run {
            name: "nginx",
            nginx: true,
            ..steady()
        },
        Run {
            name: "restart",
            trouble: Some(Trouble::Restart),
            ..steady()
        },
        Run {
            name: "clock",
            trouble: Some(Trouble::Clock),
            ..steady()
        },
        Run {
            name: "flood",
            flood: 300,
            ..steady()
        },
    ]
}

/// Who serves.
enum Backend {
    Own(Server),
    Nginx(Nginx),
}

impl Backend {
    fn start(run: &Run, net: &Net, seed: u64) -> Result<Self> {
        if run.nginx {
            let listen = format!("backlog={}", run.backlog[0]);
            let (netns, workers) = (&net.server.netns, run.workers as u32);
            let nginx = Nginx::start_with(netns, run.name, net.target().port(), workers, &listen)?;
            return Ok(Self::Nginx(nginx));
        }
        let config = ServerConfig {
            address: net.target(),
            workers: run.workers,
            service: run.service,
            backlog: run.backlog.clone(),
            period: Duration::from_secs(6),
            seed,
        };
        Server::start(&net.server.netns, config).map(Self::Own)
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
pub struct Running {
    run: Run,
    crowd: Crowd,
    server: Backend,
    agent: Agent,
    flood: Option<Flood>,
    net: Net,
}

impl Run {
    /// The agent's file behind its first lines.
    fn agent_lines(&self) -> String {
        let schedule = match self.linear_timeouts {
            Some(0) => "rfc6298",
            _ => "linux",
        };
        let classes: Vec<String> = self
            .patience_s
            .iter()
            .map(|s| {
                format!("[[agent.clients.retry]]\nschedule = \"{schedule}\"\npatience = \"{s}s\"\n")
            })
            .collect();
        format!(
            "{}[agent.clients]\nservices = [\"*:80\"]\nothers = false\nhistory = \"HISTORY\"\n{}learn = {}\n{}",
            self.agent.0,
            self.agent.1,
            self.patience_s.len() > 1,
            classes.concat()
        )
    }

    /// Starts server, agent and clients, which begin transactions for so long.
    pub fn start(&self, binary: &Path, net: Net, duration: Duration, seed: u64) -> Result<Running> {
        let server = Backend::start(self, &net, seed)?;
        let pins = format!("/sys/fs/bpf/{}", self.name);
        let start = match self.trouble {
            Some(Trouble::Clock) => Agent::start_with_clock,
            _ => Agent::start_with,
        };
        let agent = start(binary, &net.server, Path::new(&pins), &self.agent_lines())?;
        let crowd = CrowdConfig {
            target: net.target(),
            clients: self.clients,
            requests: self.requests,
            patience: self
                .patience_s
                .iter()
                .map(|&s| Duration::from_secs(s))
                .collect(),
            on_off: self.on_off,
            arrivals: self.arrivals,
            duration,
            http: self.nginx.then_some(self.service),
            seed,
        };
        let crowd = Crowd::start(&net.client, crowd);
        let flood = (self.flood > 0).then(|| Flood::start(&net.client, net.target(), self.flood));
        Ok(Running {
            run: self.clone(),
            crowd,
            server,
            agent,
            flood,
            net,
        })
    }
}

impl Running {
    /// Sets the limit of the server's accept queue, as a process does that calls listen(2)
    /// again.
    pub fn set_backlog(&self, limit: u32) -> Result<()> {
        match &self.server {
            Backend::Own(server) => server.set_backlog(limit),
            Backend::Nginx(_) => bail!("nginx keeps the queue that it began with"),
        }
    }

    /// Its agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What befalls the agent.
    pub fn trouble(&mut self) -> Result<()> {
        match self.run.trouble {
            None => Ok(()),
            Some(Trouble::Restart) => self.agent.restart(),
            Some(Trouble::Clock) => self.agent.set_clock("-1h"),
        }
    }

    /// Waits for the last client and for the agent to be done with it.
    pub fn finish(self, warm_up: Duration, counts: Duration) -> Result<Score> {
        let truth = self.crowd.finish()?;
        if self.run.trouble == Some(Trouble::Clock) {
            self.agent.set_clock("+1d")?;
        }
        if let Some(flood) = self.flood {
            flood.finish()?;
        }
        let longest = self.run.patience_s.iter().max().copied().unwrap_or(0);
        let range = score::range(&truth, warm_up, counts)?;
        // The agent knows of those who gave up one patience later.
        let patience = Duration::from_secs(30 + 3 * longest);
        self.agent.wait_recorded(range.end, patience)?;
        let history = self.agent.history()?;
        if self.run.trouble == Some(Trouble::Clock) {
            // Records of both times of day: they are made a while after their second.
            let mut jumps = history
                .windows(2)
                .map(|two| two[1].unix_ms as i64 - two[0].unix_ms as i64);
            ensure!(
                jumps.any(|ms| ms > 80_000_000),
                "the clock was not set: {history:?}"
            );
        }
        let live = self.agent.clients()?;
        let served = self.server.served()?;
        drop(self.net);
        Score::of(&self.run, range, &truth, &served, &history, &live)
    }
}
