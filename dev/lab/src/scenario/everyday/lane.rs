// SPDX-License-Identifier: Apache-2.0
//! One path with all that a client needs at its ends, and the recording of one client.
//!
//! ```text
//!  client eth0 ---(veth, or a line with delay)--- c0 router ---+--- server (agent)
//!         truth is recorded here    requests recorded here     +--- balancer
//! ```
//!
//! With cookies clients ask the VIP, and the server answers past the balancer; otherwise
//! they ask the server itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use causeway_api::agent::ClientsView;
use causeway_balancer::GRADED_WINDOW;
use causeway_bench::ticks::SlowTicks;
use causeway_core::estimate::Tally;
use tempfile::TempDir;

use super::Plan;
use super::client::{ClientHost, EverydayClient, Service, TruthSource};
use super::truth::{self, Response};
use crate::agent::AgentProcess;
use crate::background::{KilledOnDrop, output_of, serve};
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::link;
use crate::link_emulator::LinkEmulator;
use crate::netns::Netns;
use crate::nginx::Nginx;
use crate::quic::tls::{Identity, identity};
use crate::record::{Directions, Recorder};
use crate::sandbox::Sandbox;
use crate::scenario::bench::{self, Bench};
use crate::scenario::client_timestamps::ClientTimestamps;
use crate::scenario::connections::{SharedKeys, with_ids};
use crate::topology::{self, DEVICE, Shape, Topology};
use crate::{api, clock};

/// The router's port to the client.
const ROUTER_PORT: &str = "c0";
/// What is still under way when a client ends, and what the balancer has not read yet.
const SETTLING: Duration = Duration::from_millis(500);
/// An agent counts what ends once no SYN of that time can be sent again.
const AGENT_SETTLES: Duration = Duration::from_millis(1200);
/// Longest that a client may run over its time.
const GRACE: Duration = Duration::from_secs(40);

/// What the product says of the server in one epoch.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    /// Wall time.
    pub(super) start_ns: u64,
    pub(super) mean_us: f64,
    pub(super) samples: f64,
    /// `low`, `medium`, `high`.
    pub(super) quality: String,
}

/// One client's run.
pub(super) struct EverydayRun {
    pub(super) responses: Vec<Response>,
    pub(super) estimates: Vec<Estimate>,
    /// The mean that the client reports.
    pub(super) client_us: Option<f64>,
    /// Length of the epochs.
    pub(super) epoch_s: u64,
    /// What the server took, by the packets at its own interface.
    pub(super) at_server: Vec<Response>,
    /// The same by its agent, over the whole run.
    pub(super) timed: Timed,
}

/// Transactions as an agent counts them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Timed {
    pub(super) count: u64,
    pub(super) sum_s: f64,
    pub(super) overlapping: u64,
    /// Timed or not.
    pub(super) completed: u64,
}

impl Timed {
    /// What an agent's view has of a service; none: it knows nothing of it.
    fn of(view: &ClientsView, port: u16) -> Option<Self> {
        let service = format!("*:{port}");
        let of = view.categories.iter().find(|of| of.service == service)?;
        Some(Self {
            count: of.totals.timed,
            sum_s: of.totals.timed_s,
            overlapping: of.totals.overlapping,
            completed: of.totals.completed,
        })
    }

    /// What was counted since; an error where that is nothing.
    fn since(self, before: Self) -> Result<Self> {
        let since = Self {
            count: self.count - before.count,
            sum_s: self.sum_s - before.sum_s,
            overlapping: self.overlapping - before.overlapping,
            completed: self.completed - before.completed,
        };
        ensure!(since.seen() > 0, "the server's agent has counted nothing");
        Ok(since)
    }

    fn seen(self) -> u64 {
        self.count + self.overlapping + self.completed
    }
}

/// A client, a path, a server with all services, a balancer.
pub(super) struct Lane {
    pub(super) path_ms: u64,
    bench: Bench,
    binary: PathBuf,
    python: PathBuf,
    directory: TempDir,
    cookies: Option<Cookies>,
    /// Sees what the server takes.
    observer: AgentProcess,
    _link: Option<LinkEmulator>,
    _services: Vec<Running>,
}

struct Cookies {
    balancer: Balancer,
    _agent: AgentProcess,
    _keys: SharedKeys,
}

enum Running {
    Nginx(#[expect(dead_code)] Nginx),
    Process(#[expect(dead_code)] KilledOnDrop),
}

impl Lane {
    /// Builds one of `path_ms`; the names of its namespaces have it.
    pub(super) fn build(
        sandbox: Sandbox,
        binary: &Path,
        path_ms: u64,
        plan: &Plan,
    ) -> Result<Self> {
        let (clients, servers) = (1, 1);
        let prefix = format!("{path_ms}ms-");
        let topology = Topology::build_another(sandbox, Shape { clients, servers }, &prefix)?;
        topology.servers.iter().try_for_each(bench::decapsulate)?;
        let bench = Bench {
            sandbox,
            topology,
            servers: Vec::new(),
        };
        let directory = tempfile::Builder::new().prefix("everyday-").tempdir()?;
        // Databases have users of their own.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let python = directory.path().join("clients.py");
        fs::write(&python, include_str!("clients.py"))?;
        fs::write(
            directory.path().join("page.html"),
            include_str!("page.html"),
        )?;
        let services = plan.services();
        let ports = services.iter().map(|of| format!("\"*:{}\"", of.port()));
        let observer = AgentProcess::start_measuring(
            binary,
            &bench.topology.servers[0],
            &bench::pin_dir(&bench.topology.servers[0]).join("observer"),
            &format!(
                "[agent.clients]\nhistory = \"\"\nothers = false\nservices = [{}]\n",
                ports.collect::<Vec<_>>().join(", ")
            ),
        )?;
        let mut lane = Self {
            path_ms,
            _link: None,
            _services: Vec::new(),
            cookies: None,
            observer,
            binary: binary.to_owned(),
            bench,
            python,
            directory,
        };
        lane._link = match path_ms {
            0 => None,
            _ => Some(lane.bench.lengthen(0, path_ms, plan.seed)?),
        };
        lane.set_offloads()?;
        for service in &services {
            // HTTP and HTTPS are one nginx.
            if *service != Service::Https || !services.contains(&Service::Http) {
                let running = lane.start(*service);
                let running = running.with_context(|| format!("{service:?}"))?;
                lane._services.push(running);
            }
        }
        if plan.timestamps.contains(&ClientTimestamps::Cookie) {
            lane.cookies = Some(lane.start_cookies(&services)?);
        }
        Ok(lane)
    }

    /// What makes the server's timestamps tick slower.
    pub(super) fn slow_ticks(&self) -> Result<SlowTicks> {
        self.server().netns.run(|| SlowTicks::attach(DEVICE))
    }

    fn client(&self) -> &Netns {
        &self.bench.topology.clients[0].netns
    }

    fn server(&self) -> &topology::Node {
        &self.bench.topology.servers[0]
    }

    /// No buffer stands for several packets where something is recorded.
    fn set_offloads(&self) -> Result<()> {
        let router = &self.bench.topology.router.netns;
        let mut ends = vec![(&self.server().netns, DEVICE)];
        if self.path_ms == 0 {
            ends.extend([(self.client(), DEVICE), (router, ROUTER_PORT)]);
        }
        ends.into_iter().try_for_each(|(netns, device)| {
            netns.run(move || {
                link::set_offloads(device, false).with_context(|| format!("offloads of {device}"))
            })
        })?;
        // Behind it is XDP: it cuts what it sends in any case.
        router.run(|| link::set_gro("s0", false).context("GRO of s0"))
    }

    /// The VIP of a service; its name is the port.
    fn vip(&self, service: Service) -> VipEntry {
        let mut vip = with_ids(self.bench.vip4(0, "maglev", ServerForwarding::Ipip));
        vip.port = service.port();
        vip.keys.push(format!("name = \"{}\"", service.port()));
        vip
    }

    fn start_cookies(&self, services: &BTreeSet<Service>) -> Result<Cookies> {
        let keys = SharedKeys::with_cookies(&self.binary)?;
        let vips: Vec<VipEntry> = services.iter().map(|service| self.vip(*service)).collect();
        let sockets: Vec<SocketAddr> = vips
            .iter()
            .map(|vip| (vip.address, vip.port).into())
            .collect();
        let lines = keys.cookies_for(0, &sockets);
        let agent = self.bench.agent(&self.binary, 0, &lines)?;
        let settings = BalancerSettings {
            vips,
            head: vec![keys.balancer_lines()],
            ..BalancerSettings::default()
        };
        Ok(Cookies {
            balancer: self.bench.balancer(&self.binary, &settings)?,
            _agent: agent,
            _keys: keys,
        })
    }

    fn start(&self, service: Service) -> Result<Running> {
        let netns = &self.server().netns;
        let port = service.port();
        let mut command = match service {
            Service::Http | Service::Https => {
                let more = nginx_lines(identity()?, self.directory.path());
                let http = Service::Http.port();
                let listen = "reuseport backlog=4096";
                let nginx = Nginx::start_with(netns, "server", http, 1, listen, &more)?;
                return Ok(Running::Nginx(nginx));
            }
            Service::Postgres => return Ok(Running::Process(self.start_postgres()?)),
            Service::Mariadb => return Ok(Running::Process(self.start_mariadb()?)),
            Service::Redis => {
                let mut command = netns.command("redis-server");
                command.args(["--bind", "0.0.0.0", "--protected-mode", "no"]);
                command.args(["--save", "", "--appendonly", "no", "--dir"]);
                command.arg(self.directory.path());
                command
            }
            Service::Memcached => {
                let mut command = netns.command("memcached");
                command.args(["-u", "root", "-U", "0", "-l", "0.0.0.0"]);
                command
            }
            Service::WebSocket | Service::Grpc => {
                let role = match service {
                    Service::Grpc => "serve-grpc",
                    _ => "serve-websocket",
                };
                let mut command = netns.command("/usr/bin/python3");
                command.arg(&self.python).arg(role).arg(port.to_string());
                command
            }
        };
        Ok(Running::Process(serve(netns, &mut command, port)?))
    }

    fn start_postgres(&self) -> Result<KilledOnDrop> {
        let netns = &self.server().netns;
        let programs = postgres_programs()?;
        let data = self.owned_by("postgres")?;
        let mut initdb = as_user(netns, "postgres", &programs.join("initdb"));
        initdb.args(["-A", "trust", "-N", "-D"]).arg(&data);
        output_of(&mut initdb)?;
        let identity = identity()?;
        for (from, name) in [
            (&identity.certificate, "server.crt"),
            (&identity.key, "server.key"),
        ] {
            let to = data.join(name);
            fs::copy(from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(0o600))?;
            chown(&to, "postgres")?;
        }
        fs::write(data.join("pg_hba.conf"), "host all all 0.0.0.0/0 trust\n")?;
        let mut postgres = as_user(netns, "postgres", &programs.join("postgres"));
        postgres.arg("-D").arg(&data).args(["-c", "ssl=on"]);
        for setting in [
            "listen_addresses=*",
            "unix_socket_directories=",
            "fsync=off",
        ] {
            postgres.args(["-c", setting]);
        }
        let running = serve(netns, &mut postgres, Service::Postgres.port())?;
        let mut pgbench = netns.command("pgbench");
        pgbench.args(["-i", "-q", "-h", "127.0.0.1", "-U", "postgres", "postgres"]);
        // It may accept before it is ready.
        let deadline = Instant::now() + GRACE;
        while let Err(error) = output_of(&mut pgbench) {
            ensure!(Instant::now() < deadline, "{error:#}");
            sleep(Duration::from_millis(200));
        }
        Ok(running)
    }

    fn start_mariadb(&self) -> Result<KilledOnDrop> {
        let netns = &self.server().netns;
        let data = self.owned_by("mysql")?;
        let directory = format!("--datadir={}", data.display());
        let mut install = netns.command("mariadb-install-db");
        install.env("TMPDIR", &data);
        install.args(["--no-defaults", "--user=mysql", &directory]);
        install.args(["--skip-test-db", "--auth-root-authentication-method=normal"]);
        output_of(&mut install)?;
        let mut mariadb = netns.command("mariadbd");
        mariadb.env("TMPDIR", &data);
        mariadb.args([
            "--no-defaults",
            "--user=mysql",
            "--skip-grant-tables",
            "--skip-networking=0",
        ]);
        mariadb.args(["--skip-name-resolve", "--bind-address=0.0.0.0", &directory]);
        let files = |name: &str| data.join(name).display().to_string();
        mariadb.arg(format!("--socket={}", files("socket")));
        mariadb.arg(format!("--pid-file={}", files("pid")));
        serve(netns, &mut mariadb, Service::Mariadb.port())
    }

    /// A new directory of that user.
    fn owned_by(&self, user: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(user);
        fs::create_dir(&path)?;
        chown(&path, user)?;
        Ok(path)
    }

    /// Runs a client and collects truth and estimates.
    pub(super) fn run(
        &self,
        client: &EverydayClient,
        (timestamps, tick_ms): (ClientTimestamps, u32),
        seconds: u64,
        keep: &str,
    ) -> Result<EverydayRun> {
        let host = match timestamps {
            ClientTimestamps::Cookie => topology::vip4(0),
            _ => self.server().ipv4,
        };
        let switch = if timestamps == ClientTimestamps::Off {
            "0"
        } else {
            "1"
        };
        self.client().sysctl("net/ipv4/tcp_timestamps", switch)?;
        let scratch = tempfile::Builder::new().prefix("client-").tempdir()?;
        let on = ClientHost {
            host: &host.to_string(),
            path_ms: self.path_ms,
            seconds,
            log: scratch.path().join("log"),
            python: &self.python,
        };
        let router = &self.bench.topology.router.netns;
        let both = Recorder::start(self.client(), DEVICE, Directions::Both)?;
        let requests = Recorder::start(router, ROUTER_PORT, Directions::Arriving)?;
        let server = Recorder::start(&self.server().netns, DEVICE, Directions::Both)?;
        let port = client.service.port();
        let timed = self.timed(port)?;
        let epoch_s = client.epoch_s(self.path_ms);
        wait_for_epoch(epoch_s * 1_000_000_000);
        let begun_ns = clock::monotonic_ns();
        let output = self.run_command(&client.command(&on)?, seconds)?;
        let ended_ns = wall_ns();
        sleep(SETTLING + Duration::from_millis(self.path_ms));
        let (both, requests, server) = (both.finish()?, requests.finish()?, server.finish()?);
        let (client_us, log) = client.read(&output, &on.log)?;
        let of_tls =
            matches!(client.truth, TruthSource::PacketsOfTls) || client.service == Service::Https;
        // Packets do not show which of several answers belongs to which request.
        let at_server = match client.in_flight {
            1 => truth::responses(&server, port, of_tls)?,
            _ if log.is_empty() => truth::responses(&server, port, of_tls)?,
            _ => without(&log, self.path_ms),
        };
        let responses = match client.truth {
            TruthSource::Log => log,
            TruthSource::Packets => truth::responses(&both, port, false)?,
            TruthSource::PacketsOfTls => truth::responses(&both, port, true)?,
            TruthSource::PacketsAndReport => {
                let report_us = client_us.context("the client reports no mean")?;
                truth::with_mean(truth::responses(&both, port, false)?, report_us)
            }
        };
        ensure!(!responses.is_empty(), "no response: {output}");
        ensure!(!at_server.is_empty(), "nothing at the server: {output}");
        if let Some(beyond_s) = client.silence_max_s() {
            ensure_to_the_end(&responses, ended_ns, epoch_s as f64 + beyond_s)?;
        }
        let ticks = match tick_ms {
            1 => String::new(),
            _ => format!("{tick_ms}"),
        };
        let name = format!("{}.{timestamps}{ticks}.{}ms", client.name, self.path_ms);
        let requests_file = scratch.path().join("requests.pcap");
        fs::write(&requests_file, &requests)?;
        if !keep.is_empty() {
            save(Path::new(keep), &name, &requests, &responses)?;
        }
        let estimates = match (timestamps, &self.cookies) {
            (ClientTimestamps::Cookie, Some(cookies)) => {
                cookies.estimates(port, begun_ns, epoch_s * 1_000_000_000)?
            }
            _ => self.measured(&requests_file, epoch_s)?,
        };
        Ok(EverydayRun {
            responses,
            estimates,
            client_us,
            epoch_s,
            at_server,
            timed: self.timed_at_last(port)?.since(timed)?,
        })
    }

    /// What the agent has counted of a service so far.
    fn timed(&self, port: u16) -> Result<Timed> {
        // It has no service before that has answered.
        Ok(Timed::of(&self.observer.clients()?, port).unwrap_or_default())
    }

    /// The same, once all that has ended is in it.
    fn timed_at_last(&self, port: u16) -> Result<Timed> {
        sleep(AGENT_SETTLES);
        let mut timed = self.timed(port)?;
        loop {
            sleep(SETTLING);
            let now = self.timed(port)?;
            if now.seen() == timed.seen() {
                return Ok(now);
            }
            timed = now;
        }
    }

    fn run_command(&self, command: &str, seconds: u64) -> Result<String> {
        let limit = GRACE.as_secs() + seconds;
        let output = self
            .client()
            .command("timeout")
            .args(["-k", "1", &limit.to_string(), "sh", "-c", command])
            .stdin(Stdio::null())
            .output()
            .context("cannot run timeout (Debian package coreutils)")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "{}: {command}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// What `causeway measure` makes of a recording of requests.
    fn measured(&self, file: &Path, epoch_s: u64) -> Result<Vec<Estimate>> {
        let mut measure = Command::new(&self.binary);
        measure.args(["measure", "--per", "server", "-o", "csv", "--epoch"]);
        let text = output_of(measure.arg(format!("{epoch_s}s")).arg("-r").arg(file))?;
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let row = |line: &str| -> Option<Estimate> {
            let fields: Vec<&str> = line.split(',').collect();
            let field = |name| {
                fields
                    .get(head.iter().position(|word| *word == name)?)
                    .copied()
            };
            Some(Estimate {
                start_ns: field("epoch_start_ns")?.parse().ok()?,
                mean_us: field("estimate_us")?.parse().ok()?,
                samples: field("samples")?.parse().ok()?,
                quality: field("quality")?.to_owned(),
            })
        };
        let rows: Option<Vec<Estimate>> = lines.map(row).collect();
        rows.with_context(|| format!("causeway measure printed another form:\n{text}"))
    }
}

impl Cookies {
    /// What the balancer's history has of the real since a moment, CLOCK_MONOTONIC, its
    /// epochs put together to longer ones.
    fn estimates(&self, port: u16, since_ns: u64, epoch_ns: u64) -> Result<Vec<Estimate>> {
        let history = api::history_since(&self.balancer.socket(), since_ns)?;
        let of_port = history.series.iter().filter(|s| s.vip == port.to_string());
        let halves = |samples: f64| (2.0 * samples).round() as u64;
        let mut tallies: BTreeMap<u64, Tally> = BTreeMap::new();
        for epoch in of_port.flat_map(|series| &series.epochs) {
            let tally = tallies.entry(epoch.start_ns / epoch_ns).or_default();
            let sum_us = 2.0 * epoch.samples * epoch.estimate_us.unwrap_or_default();
            tally.sum_halves_ns += (1e3 * sum_us).round() as u64;
            tally.weight_halves += halves(epoch.samples);
            tally.bound_halves += halves(epoch.low);
            tally.window = GRADED_WINDOW;
        }
        let estimate = |(number, tally): (u64, Tally)| {
            Some(Estimate {
                start_ns: number * epoch_ns,
                mean_us: tally.mean_ns()? / 1e3,
                samples: tally.weight_halves as f64 / 2.0,
                quality: tally.confidence().quality.name().to_owned(),
            })
        };
        Ok(tallies.into_iter().filter_map(estimate).collect())
    }
}

/// What a client's log has, less the path.
fn without(log: &[Response], path_ms: u64) -> Vec<Response> {
    let of_server = |response: &Response| Response {
        latency_us: (response.latency_us - path_ms as f64 * 1000.0).max(0.0),
        ..*response
    };
    log.iter().map(of_server).collect()
}

/// Until the next epoch begins, so that a run has no part of one at its start.
fn wait_for_epoch(epoch_ns: u64) {
    sleep(Duration::from_nanos(epoch_ns - wall_ns() % epoch_ns));
}

fn wall_ns() -> u64 {
    clock::monotonic_ns().wrapping_add_signed(clock::wall_offset_ns())
}

/// That something answered in the last so many seconds of a client's run.
fn ensure_to_the_end(responses: &[Response], ended_ns: u64, most_s: f64) -> Result<()> {
    let last_ns = responses.iter().map(|response| response.end_ns).max();
    let silent_s = ended_ns.saturating_sub(last_ns.unwrap_or(0)) as f64 / 1e9;
    ensure!(
        silent_s < most_s,
        "no response in the last {silent_s:.1} s of the client's run: its connection broke, or the \
         machine stood still"
    );
    Ok(())
}

/// TLS and HTTP/2 beside HTTP, and answers of a varying time and any size. nginx's random
/// numbers are the same in every run.
fn nginx_lines(identity: &Identity, pages: &Path) -> String {
    format!(
        r#"
    listen {port} ssl http2 backlog=4096;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.3;
    http2_max_concurrent_streams 256;
    location /page/ {{
      default_type text/html;
      root {pages};
      try_files /page.html =404;
    }}
    location ~ ^/v/(\d+)/(\d+)$ {{
      content_by_lua_block {{
        ngx.req.read_body()
        ngx.sleep(tonumber(ngx.var[2]) / 1e6 * (0.4 + 1.2 * math.random()))
        local rest = tonumber(ngx.var[1])
        ngx.header.content_length = rest
        while rest > 0 do
          local part = math.min(rest, 1048576)
          ngx.print(body_of(part))
          rest = rest - part
        end
      }}
    }}
"#,
        port = Service::Https.port(),
        certificate = identity.certificate.display(),
        key = identity.key.display(),
        pages = pages.display(),
    )
}

/// Where Debian has the programs of the newest PostgreSQL.
fn postgres_programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("Debian package postgresql")?;
    let versions = versions.flatten().map(|version| version.path().join("bin"));
    let complete = versions.filter(|programs| programs.join("initdb").exists());
    complete
        .max()
        .context("no initdb: Debian package postgresql")
}

fn as_user(netns: &Netns, user: &str, program: &Path) -> Command {
    let mut command = netns.command("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    command.arg(program);
    command
}

fn chown(path: &Path, user: &str) -> Result<()> {
    let found = nix::unistd::User::from_name(user)?;
    let found = found.with_context(|| format!("there is no user {user}"))?;
    Ok(nix::unistd::chown(path, Some(found.uid), Some(found.gid))?)
}

/// The recording, and what it should be held against.
fn save(directory: &Path, name: &str, pcap: &[u8], responses: &[Response]) -> Result<()> {
    let context = || format!("cannot write to {}", directory.display());
    fs::create_dir_all(directory).with_context(context)?;
    fs::write(directory.join(format!("{name}.pcap")), pcap).with_context(context)?;
    let mut text = String::from("end_ns,latency_us\n");
    for response in responses {
        text += &format!("{},{:.1}\n", response.end_ns, response.latency_us);
    }
    fs::write(directory.join(format!("{name}.truth.csv")), text).with_context(context)
}

#[cfg(test)]
mod tests {
    use causeway_api::agent::{CategoryView, ClientTotals};

    use super::*;

    #[test]
    fn an_agent_that_counts_nothing_is_told() {
        let view = |service: &str, timed, overlapping| ClientsView {
            categories: vec![CategoryView {
                service: service.to_owned(),
                totals: ClientTotals {
                    timed,
                    overlapping,
                    ..ClientTotals::default()
                },
                ..CategoryView::default()
            }],
            ..ClientsView::default()
        };
        assert!(Timed::of(&view("*:81", 7, 0), 80).is_none());
        let [before, same, timed, overlapping] =
            [(7, 2), (7, 2), (8, 2), (7, 3)].map(|(timed, overlapping)| {
                Timed::of(&view("*:80", timed, overlapping), 80).expect("it")
            });
        assert!(Timed::default().since(Timed::default()).is_err());
        assert!(same.since(before).is_err());
        assert_eq!(timed.since(before).map(|of| of.count).ok(), Some(1));
        assert_eq!(
            overlapping.since(before).map(|of| of.overlapping).ok(),
            Some(1)
        );
    }

    #[test]
    fn a_client_that_falls_silent_has_failed() {
        let second = 1_000_000_000;
        let until = |end_ns| {
            let latency_us = 5000.0;
            let responses = [second, end_ns].map(|end_ns| Response { end_ns, latency_us });
            ensure_to_the_end(&responses, 4 * second, 1.5)
        };
        assert!(until(3 * second).is_ok());
        // Of three seconds two without an answer.
        assert!(until(2 * second).is_err());
    }
}
