// SPDX-License-Identifier: Apache-2.0
//! The clients: programs of the distribution with the options that people give them, and
//! how to read what they report.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::truth::Response;
use crate::quic::gotool;

/// What answers on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    /// nginx: `/v/SIZE/US` answers after 0.4 to 1.6 times US; `/page/N` is a page with N such
    /// answers in it, which loads itself again.
    Http,
    /// The same over TLS 1.3, as HTTP/1.1 or HTTP/2.
    Https,
    /// PostgreSQL, with or without TLS.
    Postgres,
    /// MariaDB.
    Mariadb,
    /// Redis.
    Redis,
    /// memcached.
    Memcached,
    /// Python's websockets, an echo after 5 ms.
    WebSocket,
    /// Python's grpcio, 5 ms a message.
    Grpc,
}

impl Service {
    /// Where it listens.
    pub(super) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
            Self::Postgres => 5432,
            Self::Mariadb => 3306,
            Self::Redis => 6379,
            Self::Memcached => 11211,
            Self::WebSocket => 8765,
            Self::Grpc => 50051,
        }
    }
}

/// What shows when requests began and responses ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TruthSource {
    /// Turns of the connection ([`super::truth`]).
    Packets,
    /// The same behind a handshake of TLS.
    PacketsOfTls,
    /// Turns, all of them longer by what the mean of the client's report is above theirs:
    /// beside microseconds, its own system calls count.
    PacketsAndReport,
    /// The client's log of each request.
    Log,
}

/// What a client reports, and where.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClientReport {
    /// Nothing that is read.
    Nothing,
    /// wrk's output.
    Wrk,
    /// ab's table for gnuplot.
    Ab,
    /// curl's `%{time_total} %{time_pretransfer}`.
    Curl,
    /// h2load's log.
    H2load,
    /// pgbench's log of transactions.
    Pgbench,
    /// redis-benchmark's CSV.
    Redis,
    /// Lines of our own programs: the response's end, ns of wall time, and its latency, us.
    Lines,
}

/// One client.
pub(super) struct EverydayClient {
    pub(super) name: &'static str,
    pub(super) service: Service,
    /// Requests outstanding on a connection at most.
    pub(super) in_flight: u32,
    /// For the shell; it fails where the client does. TIMES (what curl is to write of each request), HOST, SECONDS, LOG (a
    /// file), PYTHON and GO (our clients on public libraries) and COUNT (requests that take about so long) are replaced;
    /// `again` runs a command for SECONDS, `until_time` ends one that has no end after so many.
    command: &'static str,
    /// A turn without path, for COUNT.
    turn_us: u64,
    pub(super) truth: TruthSource,
    report: ClientReport,
    /// Between a response and the next request.
    pause_ms: u64,
    /// Files, and the Debian packages that have them.
    needs: &'static [(&'static str, &'static str)],
}

impl EverydayClient {
    /// Length of the epochs that it is judged by, over such a path: whole seconds, and ten
    /// requests at least where they come one after another.
    pub(super) fn epoch_s(&self, path_ms: u64) -> u64 {
        let turn_ms = self.turn_us / 1000 + path_ms + self.pause_ms;
        (10 * turn_ms).div_ceil(1000).max(1)
    }

    /// How long it runs: whole epochs, two at least.
    pub(super) fn seconds(&self, path_ms: u64, usual: u64) -> u64 {
        let epoch_s = self.epoch_s(path_ms);
        usual.div_ceil(epoch_s).max(2) * epoch_s
    }

    /// Whether its requests share a connection as streams of HTTP/2, which are answered in any order.
    pub(super) fn is_multiplexed(&self) -> bool {
        self.service == Service::Https && self.in_flight > 1
    }

    /// A package that is not installed.
    pub(super) fn missing(&self) -> Option<&'static str> {
        let missing = self
            .needs
            .iter()
            .find(|(path, _)| !Path::new(path).exists());
        missing.map(|(_, package)| *package)
    }

    /// How long beyond an epoch nothing may answer at its end, if it ends in time and without an error
    /// when it has lost its connection. A browser takes its time between pages, and to be ended.
    pub(super) fn silence_max_s(&self) -> Option<f64> {
        match self.report {
            ClientReport::H2load => Some(0.5),
            _ if self.command.contains("chromium") => Some(5.0),
            _ => None,
        }
    }

    /// The command, ready for the shell.
    pub(super) fn command(&self, on: &ClientHost<'_>) -> Result<String> {
        let turn_us = self.turn_us + on.path_ms * 1000;
        let count = on.seconds * 1_000_000 / turn_us * u64::from(self.in_flight);
        let python = format!("/usr/bin/python3 {}", on.python.display());
        let mut command = self
            .command
            .replace("TIMES", CURL_TIMES)
            .replace("HOST", on.host)
            .replace("SECONDS", &on.seconds.to_string())
            .replace("COUNT", &count.max(20).to_string())
            .replace("LOG", &on.log.display().to_string())
            .replace("PYTHON", &python);
        if command.contains("GO ") {
            let program = gotool::program()?.display().to_string();
            command = command.replace("GO ", &format!("{program} "));
        }
        Ok(format!(
            "again() {{ end=$(($(date +%s%N) + {}000000000)); \
             while [ $(date +%s%N) -lt $end ]; do \"$@\" || return; done; }}\n\
             until_time() {{ timeout \"$@\" || [ $? = 124 ]; }}\n{command}",
            on.seconds
        ))
    }

    /// The mean that it reports, us, and its responses where it logs each.
    pub(super) fn read(&self, output: &str, log: &Path) -> Result<(Option<f64>, Vec<Response>)> {
        let text = fs::read_to_string(log).unwrap_or_default();
        let responses: Option<Vec<Response>> = match self.report {
            ClientReport::Nothing => return Ok((None, Vec::new())),
            ClientReport::Wrk => return Ok((wrk_mean(output), Vec::new())),
            ClientReport::Redis => return Ok((redis_mean(output), Vec::new())),
            ClientReport::Ab => text.lines().skip(1).map(line_of_ab).collect(),
            ClientReport::Curl => text.lines().map(line_of_curl).collect(),
            ClientReport::H2load => text.lines().map(line_of_h2load).collect(),
            ClientReport::Pgbench => text.lines().map(line_of_pgbench).collect(),
            ClientReport::Lines => text.lines().map(line_of_ours).collect(),
        };
        let responses =
            responses.context("its log has a line of another form, or of a request that failed")?;
        let mean = super::mean(responses.iter().map(|r| r.latency_us));
        Ok((mean, responses))
    }
}

/// Where a client runs.
pub(super) struct ClientHost<'a> {
    pub(super) host: &'a str,
    pub(super) path_ms: u64,
    pub(super) seconds: u64,
    pub(super) log: PathBuf,
    pub(super) python: &'a Path,
}

fn numbers(line: &str) -> Vec<f64> {
    let words = line.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn response(end_us: f64, latency_us: f64) -> Response {
    Response {
        end_ns: (end_us * 1000.0) as u64,
        latency_us,
    }
}

/// `starttime seconds ctime dtime ttime wait`: whole milliseconds; the start is a date.
fn line_of_ab(line: &str) -> Option<Response> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [_, start_s, _, _, total_ms, _] = fields[..] else {
        return None;
    };
    let (start_s, total_ms): (f64, f64) = (start_s.parse().ok()?, total_ms.parse().ok()?);
    Some(response(start_s * 1e6, total_ms * 1000.0))
}

fn line_of_curl(line: &str) -> Option<Response> {
    match numbers(line)[..] {
        [total_s, ready_s] => Some(response(0.0, (total_s - ready_s) * 1e6)),
        _ => None,
    }
}

/// Start in microseconds, status (-1: none), microseconds.
fn line_of_h2load(line: &str) -> Option<Response> {
    match numbers(line)[..] {
        [start_us, 200.0, latency_us] => Some(response(start_us + latency_us, latency_us)),
        _ => None,
    }
}

/// Client, transaction, latency, script, end in seconds and microseconds, and with a rate how
/// late it began, which the latency holds.
fn line_of_pgbench(line: &str) -> Option<Response> {
    let numbers = numbers(line);
    let [_, _, latency_us, _, s, us, ref late @ ..] = numbers[..] else {
        return None;
    };
    let late_us = late.first().unwrap_or(&0.0);
    Some(response(s * 1e6 + us, latency_us - late_us))
}

fn line_of_ours(line: &str) -> Option<Response> {
    let (end_ns, latency_us) = line.split_once(' ')?;
    Some(Response {
        end_ns: end_ns.parse().ok()?,
        latency_us: latency_us.parse().ok()?,
    })
}

/// `    Latency     5.28ms  ...`
fn wrk_mean(output: &str) -> Option<f64> {
    let mut lines = output.lines().map(str::trim_start);
    let rest = lines.find_map(|line| line.strip_prefix("Latency  "))?;
    let word = rest.split_whitespace().next()?;
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = word[..word.len() - unit.len()].parse().ok()?;
    let scale = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(number * scale)
}

/// `"test","rps","avg_latency_ms",...` and a line of values.
fn redis_mean(output: &str) -> Option<f64> {
    let values = output.lines().last()?.split(',').nth(2)?;
    let mean_ms: f64 = values.trim_matches('"').parse().ok()?;
    Some(mean_ms * 1000.0)
}

const WRK: (&str, &str) = ("/usr/bin/wrk", "wrk");
const AB: (&str, &str) = ("/usr/bin/ab", "apache2-utils");
const CURL: (&str, &str) = ("/usr/bin/curl", "curl");
/// The whole time of a request, and when it was sent, seconds. The first that fails ends it.
const CURL_TIMES: &str = "-f --fail-early -w '%{time_total} %{time_pretransfer}\\n'";
const H2LOAD: (&str, &str) = ("/usr/bin/h2load", "nghttp2-client");
const REDIS: (&str, &str) = ("/usr/bin/redis-benchmark", "redis-tools");
const PGBENCH: (&str, &str) = ("/usr/bin/pgbench", "postgresql");
const CHROMIUM: (&str, &str) = ("/usr/bin/chromium", "chromium");
const PYTHON: (&str, &str) = ("/usr/bin/python3", "python3");
const REQUESTS: (&str, &str) = (
    "/usr/lib/python3/dist-packages/requests",
    "python3-requests",
);

/// Loads a page again and again, and has what the page says of each part of it in LOG.
macro_rules! chromium {
    ($url:literal) => {
        concat!(
            "{ until_time -k 2 $((SECONDS + 6)) chromium --headless --no-sandbox --disable-gpu \
             --ignore-certificate-errors --no-first-run --disable-background-networking \
             --disable-component-update --disable-quic --enable-logging=stderr \
             --user-data-dir=LOG.profile ",
            $url,
            " > LOG.out 2>&1 || [ $? = 137 ]; } && \
             sed -n 's/.*\"part \\([0-9]* [0-9.]*\\)\".*/\\1/p' LOG.out > LOG"
        )
    };
}

/// wrk that writes as many requests at once as the list has paths, by a script of its own.
macro_rules! wrk_pipeline {
    ($paths:literal) => {
        concat!(
            "printf 'local path = \"/v/200/5000\"\nlocal all = ",
            $paths,
            "\nfunction init()\n for i, of in ipairs(all) do all[i] = wrk.format(nil, of) end\n \
             all = table.concat(all)\nend\nfunction request() return all end\n' > LOG.lua; \
             wrk -t1 -c1 -dSECONDSs --timeout 10s -s LOG.lua http://HOST/"
        )
    };
}

use ClientReport::{Ab, Curl, H2load, Lines, Nothing, Pgbench, Redis, Wrk};
use TruthSource::{Log, Packets, PacketsAndReport, PacketsOfTls};

/// What most of them have in common.
const fn client(
    name: &'static str,
    service: Service,
    command: &'static str,
    report: ClientReport,
    needs: &'static [(&'static str, &'static str)],
) -> EverydayClient {
    EverydayClient {
        name,
        service,
        in_flight: 1,
        command,
        turn_us: 5_500,
        truth: match service {
            Service::Https => PacketsOfTls,
            // pgbench logs every transaction.
            Service::Grpc | Service::Postgres => Log,
            Service::Redis => PacketsAndReport,
            _ => Packets,
        },
        report,
        pause_ms: 0,
        needs,
    }
}

/// Python's http.client with a pause.
const fn pausing(name: &'static str, command: &'static str, pause_ms: u64) -> EverydayClient {
    EverydayClient {
        pause_ms,
        ..client(name, Service::Http, command, Lines, &[PYTHON])
    }
}

/// HTTP/2 with several requests outstanding.
const fn streams(name: &'static str, command: &'static str, in_flight: u32) -> EverydayClient {
    EverydayClient {
        in_flight,
        truth: Log,
        ..client(name, Service::Https, command, H2load, &[H2LOAD])
    }
}

/// curl with 10 MB, for whose window longer paths take several round trips.
const fn transfer(name: &'static str, command: &'static str) -> EverydayClient {
    EverydayClient {
        turn_us: 400_000,
        ..client(name, Service::Http, command, Curl, &[CURL])
    }
}

/// All of them.
pub(super) const CLIENTS: &[EverydayClient] = &[
    client(
        "wrk",
        Service::Http,
        "wrk -t1 -c1 -dSECONDSs --timeout 10s http://HOST/v/200/5000",
        Wrk,
        &[WRK],
    ),
    client(
        "wrk-c4",
        Service::Http,
        "wrk -t1 -c4 -dSECONDSs --timeout 10s http://HOST/v/2000/5000",
        Wrk,
        &[WRK],
    ),
    EverydayClient {
        in_flight: 2,
        ..client(
            "wrk-P2",
            Service::Http,
            wrk_pipeline!("{path,path}"),
            Nothing,
            &[WRK],
        )
    },
    EverydayClient {
        in_flight: 4,
        ..client(
            "wrk-P4",
            Service::Http,
            wrk_pipeline!("{path,path,path,path}"),
            Nothing,
            &[WRK],
        )
    },
    client(
        "wrk-https",
        Service::Https,
        "wrk -t1 -c1 -dSECONDSs --timeout 10s https://HOST/v/200/5000",
        Wrk,
        &[WRK],
    ),
    client(
        "ab-c4",
        Service::Http,
        "ab -q -tSECONDS -n1000000 -c4 -g LOG http://HOST/v/200/5000",
        Ab,
        &[AB],
    ),
    client(
        "ab-c4-keepalive",
        Service::Http,
        "ab -q -k -tSECONDS -n1000000 -c4 -g LOG http://HOST/v/200/5000",
        Ab,
        &[AB],
    ),
    client(
        "ab-c4-https",
        Service::Https,
        "ab -q -tSECONDS -n1000000 -c4 -g LOG https://HOST/v/200/5000",
        Ab,
        &[AB],
    ),
    client(
        "curl-keepalive",
        Service::Http,
        "until_time SECONDS stdbuf -oL curl -s -o /dev/null TIMES \
         'http://HOST/v/300/5000?[1-999999]' > LOG",
        Curl,
        &[CURL],
    ),
    client(
        "curl-keepalive-https",
        Service::Https,
        "until_time SECONDS stdbuf -oL curl -sk --http1.1 -o /dev/null \
         TIMES 'https://HOST/v/300/5000?[1-999999]' > LOG",
        Curl,
        &[CURL],
    ),
    client(
        "curl",
        Service::Http,
        "again curl -s -o /dev/null TIMES \
         http://HOST/v/300/5000 > LOG",
        Curl,
        &[CURL],
    ),
    client(
        "curl-https",
        Service::Https,
        "again curl -sk --http1.1 -o /dev/null TIMES \
         https://HOST/v/300/5000 > LOG",
        Curl,
        &[CURL],
    ),
    client(
        "curl-post",
        Service::Http,
        "head -c 20000 /dev/zero > LOG.body; until_time SECONDS stdbuf -oL curl -s -H Expect: \
         --data-binary @LOG.body -o /dev/null TIMES \
         'http://HOST/v/300/5000?[1-999999]' > LOG",
        Curl,
        &[CURL],
    ),
    client(
        "curl-post-expect",
        Service::Http,
        "head -c 20000 /dev/zero > LOG.body; again curl -s -H 'Expect: 100-continue' \
         --data-binary @LOG.body -o /dev/null TIMES \
         http://HOST/v/300/5000 > LOG",
        Curl,
        &[CURL],
    ),
    transfer(
        "curl-download-10M",
        "again curl -s -o /dev/null TIMES \
         http://HOST/v/10485760/5000 > LOG",
    ),
    transfer(
        "curl-upload-10M",
        "head -c 10485760 /dev/zero > LOG.body; again curl -s -H Expect: --data-binary @LOG.body \
         -o /dev/null TIMES http://HOST/v/300/5000 > LOG",
    ),
    streams(
        "h2load-m1",
        "h2load -c1 -m1 -D SECONDS --log-file=LOG https://HOST/v/1000/5000",
        1,
    ),
    streams(
        "h2load-m2",
        "h2load -c1 -m2 -D SECONDS --log-file=LOG https://HOST/v/1000/5000",
        2,
    ),
    streams(
        "h2load-m4",
        "h2load -c1 -m4 -D SECONDS --log-file=LOG https://HOST/v/1000/5000",
        4,
    ),
    streams(
        "h2load-m10",
        "h2load -c1 -m10 -D SECONDS --log-file=LOG https://HOST/v/1000/5000",
        10,
    ),
    streams(
        "h2load-m100",
        "h2load -c1 -m100 -D SECONDS --log-file=LOG https://HOST/v/1000/5000",
        100,
    ),
    client(
        "pgbench-S",
        Service::Postgres,
        "pgbench -n -S -T SECONDS -l --log-prefix=LOG. -h HOST -U postgres \
         'dbname=postgres sslmode=disable' && cat LOG.* > LOG",
        Pgbench,
        &[PGBENCH],
    ),
    client(
        "pgbench-S-extended",
        Service::Postgres,
        "pgbench -n -S -M extended -T SECONDS -l --log-prefix=LOG. -h HOST -U postgres \
         'dbname=postgres sslmode=disable' && cat LOG.* > LOG",
        Pgbench,
        &[PGBENCH],
    ),
    client(
        "pgbench-5ms",
        Service::Postgres,
        "echo 'select pg_sleep(0.005);' | pgbench -n -f - -T SECONDS -l \
         --log-prefix=LOG. -h HOST -U postgres 'dbname=postgres sslmode=disable' && cat LOG.* > LOG",
        Pgbench,
        &[PGBENCH],
    ),
    client(
        "pgbench-5ms-tls",
        Service::Postgres,
        "echo 'select pg_sleep(0.005);' | pgbench -n -f - -T SECONDS -l \
         --log-prefix=LOG. -h HOST -U postgres 'dbname=postgres sslmode=require' && cat LOG.* > LOG",
        Pgbench,
        &[PGBENCH],
    ),
    client(
        "pgbench-5ms-R20",
        Service::Postgres,
        "echo 'select pg_sleep(0.005);' | pgbench -n -f - -R 20 -T SECONDS -l \
         --log-prefix=LOG. -h HOST -U postgres 'dbname=postgres sslmode=disable' && cat LOG.* > LOG",
        Pgbench,
        &[PGBENCH],
    ),
    EverydayClient {
        in_flight: 4,
        ..client(
            "pgbench-5ms-P4",
            Service::Postgres,
            "printf '%s\\n' '\\startpipeline' 'select pg_sleep(0.005);' 'select pg_sleep(0.005);' \
             'select pg_sleep(0.005);' 'select pg_sleep(0.005);' '\\endpipeline' | \
             pgbench -n -M extended -f - -T SECONDS -l --log-prefix=LOG. -h HOST -U postgres \
             'dbname=postgres sslmode=disable' && cat LOG.* > LOG",
            Pgbench,
            &[PGBENCH],
        )
    },
    EverydayClient {
        turn_us: 100,
        ..client(
            "redis-P1",
            Service::Redis,
            "redis-benchmark -h HOST -c 1 -n COUNT -t get --csv",
            Redis,
            &[REDIS],
        )
    },
    EverydayClient {
        turn_us: 100,
        in_flight: 4,
        ..client(
            "redis-P4",
            Service::Redis,
            "redis-benchmark -h HOST -c 1 -P 4 -n COUNT -t get --csv",
            Redis,
            &[REDIS],
        )
    },
    EverydayClient {
        turn_us: 100,
        in_flight: 16,
        ..client(
            "redis-P16",
            Service::Redis,
            "redis-benchmark -h HOST -c 1 -P 16 -n COUNT -t get --csv",
            Redis,
            &[REDIS],
        )
    },
    client(
        "mysqlslap-5ms",
        Service::Mariadb,
        "mysqlslap -h HOST -u root --skip-ssl --create-schema=mysql --no-drop --concurrency=1 --number-of-queries=COUNT \
         --query='select sleep(0.005)'",
        Nothing,
        &[
            ("/usr/bin/mysqlslap", "mariadb-client"),
            ("/usr/sbin/mariadbd", "mariadb-server"),
        ],
    ),
    client(
        "pymemcache-1ms",
        Service::Memcached,
        "PYTHON memcached HOST 1 SECONDS LOG",
        Lines,
        &[
            PYTHON,
            (
                "/usr/lib/python3/dist-packages/pymemcache",
                "python3-pymemcache",
            ),
        ],
    ),
    pausing(
        "http.client-5ms",
        "PYTHON http http://HOST/v/300/5000 5 SECONDS LOG",
        5,
    ),
    pausing(
        "http.client-20ms",
        "PYTHON http http://HOST/v/300/5000 20 SECONDS LOG",
        20,
    ),
    pausing(
        "http.client-60ms",
        "PYTHON http http://HOST/v/300/5000 60 SECONDS LOG",
        60,
    ),
    pausing(
        "http.client-205ms",
        "PYTHON http http://HOST/v/300/5000 205 SECONDS LOG",
        205,
    ),
    pausing(
        "http.client-300ms",
        "PYTHON http http://HOST/v/300/5000 300 SECONDS LOG",
        300,
    ),
    pausing(
        "http.client-2s",
        "PYTHON http http://HOST/v/300/5000 2000 SECONDS LOG",
        2000,
    ),
    client(
        "requests-20ms",
        Service::Http,
        "PYTHON requests http://HOST/v/300/5000 20 SECONDS LOG",
        Lines,
        &[PYTHON, REQUESTS],
    ),
    client(
        "requests-https-60ms",
        Service::Https,
        "PYTHON requests https://HOST/v/300/5000 60 SECONDS LOG",
        Lines,
        &[PYTHON, REQUESTS],
    ),
    client(
        "requests-post-20ms",
        Service::Http,
        "PYTHON requests-post http://HOST/v/300/5000 20 SECONDS LOG",
        Lines,
        &[PYTHON, REQUESTS],
    ),
    client(
        "websocket-20ms",
        Service::WebSocket,
        "PYTHON websocket ws://HOST:8765 20 SECONDS LOG",
        Lines,
        &[
            PYTHON,
            (
                "/usr/lib/python3/dist-packages/websockets",
                "python3-websockets",
            ),
        ],
    ),
    client(
        "go-https",
        Service::Https,
        "echo https://HOST/v/2000/5000 SECONDS LOG http1 | GO get",
        Lines,
        &[],
    ),
    EverydayClient {
        truth: Log,
        ..client(
            "go-h2",
            Service::Https,
            "echo https://HOST/v/2000/5000 SECONDS LOG http2 | GO get",
            Lines,
            &[],
        )
    },
    EverydayClient {
        truth: Log,
        ..client(
            "go-h2-64K",
            Service::Https,
            "echo https://HOST/v/65536/5000 SECONDS LOG http2 | GO get",
            Lines,
            &[],
        )
    },
    client(
        "chromium",
        Service::Http,
        chromium!("http://HOST/page/12"),
        Lines,
        &[CHROMIUM],
    ),
    EverydayClient {
        in_flight: 12,
        truth: Log,
        ..client(
            "chromium-h2",
            Service::Https,
            chromium!("https://HOST/page/12"),
            Lines,
            &[CHROMIUM],
        )
    },
    client(
        "grpc-unary",
        Service::Grpc,
        "PYTHON grpc-unary HOST:50051 0 SECONDS LOG",
        Lines,
        &[PYTHON, GRPC],
    ),
    client(
        "grpc-stream",
        Service::Grpc,
        "PYTHON grpc-stream HOST:50051 0 SECONDS LOG",
        Lines,
        &[PYTHON, GRPC],
    ),
];

const GRPC: (&str, &str) = ("/usr/lib/python3/dist-packages/grpc", "python3-grpcio");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        assert_eq!(
            wrk_mean("  Thread Stats\n    Latency     5.28ms    1ms\n"),
            Some(5280.0)
        );
        assert_eq!(wrk_mean("  Latency   87.50us  1us"), Some(87.5));
        assert_eq!(wrk_mean("none"), None);
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"9.1\",\"0.110\"\n";
        assert_eq!(redis_mean(redis), Some(110.0));
        let ab = line_of_ab("Mon Nov 23 22:20:03 2026\t1795472403\t0\t6\t7\t6");
        assert_eq!(ab, Some(response(1_795_472_403e6, 7000.0)));
        let late = line_of_pgbench("0 3 7500 0 1795472403 500000 2000");
        assert_eq!(late, Some(response(1_795_472_403.5e6, 5500.0)));
        assert_eq!(
            line_of_curl("0.007 0.002").map(|r| r.latency_us.round()),
            Some(5000.0)
        );
        assert_eq!(line_of_h2load("100\t200\t50"), Some(response(150.0, 50.0)));
        assert_eq!(line_of_h2load("100\t503\t50"), None);
        assert_eq!(line_of_h2load("100\t-1\t50"), None);
        assert_eq!(line_of_ours("no"), None);
    }

    #[test]
    fn no_command_hides_that_its_client_failed() {
        for client in CLIENTS {
            let command = client.command;
            assert!(!command.contains("|| true"), "{command}");
            // What comes before a client may end with `;`, the client may not.
            let last = command.rsplit(';').next().unwrap_or_default();
            let starts = ["cat ", "rm ", "sed "]
                .iter()
                .any(|of| last.trim_start().starts_with(of));
            assert!(!starts, "{command}");
        }
    }

    #[test]
    fn the_shells_words_fail_as_their_command_does() {
        let directory = tempfile::tempdir().unwrap();
        let fails = |command: &'static str| {
            let on = ClientHost {
                host: "",
                path_ms: 0,
                seconds: 1,
                log: directory.path().join("log"),
                python: Path::new(""),
            };
            let client = client("", Service::Http, command, Nothing, &[]);
            let command = client.command(&on).unwrap();
            let status = std::process::Command::new("sh")
                .args(["-c", &command])
                .status();
            !status.unwrap().success()
        };
        assert!(!fails("again sleep 0.3 > LOG"));
        assert!(fails("again false > LOG"));
        assert!(!fails("until_time 0.2 sleep 60 > LOG"));
        let deaf = "until_time -k 0.2 2 sh -c 'trap : TERM; while :; do sleep 1; done' > LOG";
        assert!(fails(deaf), "killed");
        assert!(fails("until_time SECONDS false > LOG && cat LOG"));
    }
}
