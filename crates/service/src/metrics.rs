// SPDX-License-Identifier: Apache-2.0
//! A daemon's page of metrics, and the families that every daemon has.

mod format;
mod latency;

use std::{fmt, fs};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use causeway_api::VerdictView;
use nix::sys::resource::{Resource, getrlimit};
use nix::time::{ClockId, clock_gettime};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_protobuf::encode_to_vec;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::http::problem;
use format::{Format, text_format};
pub use latency::{LatencyRow, latencies};

/// What a Prometheus server scrapes, in each format that it may ask for.
#[derive(Debug)]
pub struct MetricsPage(Registry);

impl MetricsPage {
    /// The collectors, each under its prefix, and the process.
    pub fn of<const N: usize>(collectors: [(&str, Box<dyn Collector>); N]) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        for (prefix, collector) in collectors {
            registry
                .sub_registry_with_prefix(prefix)
                .register_collector(collector);
        }
        Self(registry)
    }

    /// OpenMetrics.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.0)?;
        Ok(page)
    }

    /// In the format that is asked for.
    pub fn answer(&self, headers: &HeaderMap) -> Response {
        let format = Format::asked(headers);
        let body = match format {
            Format::Protobuf => encode_to_vec(&self.0).map_err(|error| error.to_string()),
            Format::OpenMetrics | Format::Text => match self.text() {
                Ok(page) if format == Format::Text => Ok(text_format(&page).into_bytes()),
                page => page
                    .map(String::into_bytes)
                    .map_err(|error| error.to_string()),
            },
        };
        match body {
            Ok(body) => ([(header::CONTENT_TYPE, format.kind())], body).into_response(),
            Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error),
        }
    }
}

/// This process, by the names that Prometheus' client libraries have for it. What the kernel does
/// not report is left out.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Ok(used) = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID) {
            let seconds = used.tv_sec() as f64 + used.tv_nsec() as f64 * 1e-9;
            let help = "Seconds of CPU that the process has used";
            encoder
                .encode_descriptor(
                    "process_cpu",
                    help,
                    Some(&Unit::Seconds),
                    MetricType::Counter,
                )?
                .encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        }
        let bytes = Some(Unit::Bytes);
        let seconds = Some(Unit::Seconds);
        let gauges = [
            (
                "process_resident_memory",
                "Memory of the process that is in RAM",
                bytes,
                resident_bytes(),
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                None,
                open_descriptors(),
            ),
            (
                "process_max_fds",
                "File descriptors that may be open",
                None,
                getrlimit(Resource::RLIMIT_NOFILE)
                    .ok()
                    .map(|(soft, _)| soft as f64),
            ),
            (
                "process_start_time",
                "When the process began, since 1970",
                seconds,
                start_time_s(),
            ),
        ];
        for (name, help, unit, value) in gauges {
            let Some(value) = value else { continue };
            gauge(&mut encoder, name, help, unit.as_ref(), value)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// Without the one that counts them.
fn open_descriptors() -> Option<f64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

/// The kernel reports it in ticks since it was booted (proc(5), field 22 of `stat`).
fn start_time_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, which is in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: sysconf reads a constant of the system.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot_s: f64 = boot
        .lines()
        .find_map(|l| l.strip_prefix("btime "))?
        .parse()
        .ok()?;
    (per_second > 0).then(|| boot_s + ticks / per_second as f64)
}

/// A family of counters, each with its labels.
pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    counters: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
    for (labels, value) in counters {
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

/// A family of gauges, each with its labels.
pub fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    gauges: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, value) in gauges {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A gauge without labels.
pub fn gauge<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    value: V,
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, unit, MetricType::Gauge)?
        .encode_gauge(&value)
}

/// Whether a daemon goes by its file, and could again after a restart.
pub fn config_in_force(
    encoder: &mut DescriptorEncoder<'_>,
    successful: bool,
    is_kept: bool,
) -> fmt::Result {
    let help = "Whether what the file said when it was read last is in force";
    let name = "config_last_reload_successful";
    gauge(encoder, name, help, None, flag(successful))?;
    let help = "Whether what is to outlive the daemon is on the disk";
    gauge(encoder, "state_kept", help, None, flag(is_kept))
}

/// The gauge of a statement: 1 if it holds, else 0.
pub fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// Packets and bytes by the data plane's verdict.
pub fn packets(verdicts: &[VerdictView], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&VerdictView) -> u64;
    let families: [(&str, &str, Option<Unit>, Value); 2] = [
        (
            "packets",
            "Packets by the data plane's verdict",
            None,
            |verdict| verdict.packets,
        ),
        (
            "packet",
            "Bytes of frames by the data plane's verdict",
            Some(Unit::Bytes),
            |verdict| verdict.bytes,
        ),
    ];
    for (name, help, unit, value) in families {
        let rows = verdicts.iter().map(|verdict| {
            let word = ("verdict", verdict.verdict.as_str());
            let action = ("action", verdict.action.as_str());
            ([word, action], value(verdict))
        });
        counters(encoder, name, help, unit.as_ref(), rows)?;
    }
    Ok(())
}

/// The version that runs.
pub fn build_info(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let help = "Version of the daemon";
    gauges(encoder, "build_info", help, None, [(version, 1.0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(page: &str, name: &str) -> f64 {
        let line = page.lines().find_map(|l| l.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
        line.trim().parse().expect("a number")
    }

    #[test]
    fn a_page_tells_of_its_process() {
        let read = || MetricsPage::of::<0>([]).text().expect("a page");
        let before = read();
        let held: Vec<_> = (0..5)
            .map(|_| fs::File::open("/proc/self/status").expect("a file"))
            .collect();
        let _touched = vec![1_u8; 64 << 20];
        let after = read();
        let more = |name| value(&after, name) - value(&before, name);
        // Other tests of this process open files and use memory meanwhile.
        assert!(value(&after, "process_open_fds") >= held.len() as f64);
        assert!(more("process_resident_memory_bytes") > f64::from(32 << 20));
        assert!(more("process_cpu_seconds_total") > 0.0);
        assert!(value(&after, "process_max_fds") >= value(&after, "process_open_fds"));
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64();
        let age = now - value(&after, "process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "began {age} s ago");
        assert!(after.ends_with("# EOF\n"));
    }

    #[tokio::test]
    async fn a_page_is_protobuf_for_who_asks_for_it() {
        let kind = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
        let headers = [(header::ACCEPT, kind.parse().expect("a value"))];
        let answer = MetricsPage::of::<0>([]).answer(&headers.into_iter().collect());
        assert_eq!(answer.headers()[header::CONTENT_TYPE], kind);
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await;
        let body = body.expect("a body");
        // The length of a family, and its name as the first field.
        let name = b"process_cpu_seconds_total";
        assert_eq!(body[1..3], [0x0a, name.len() as u8]);
        assert_eq!(body[3..3 + name.len()], name[..]);
    }
}
