// SPDX-License-Identifier: Apache-2.0
//! `causeway agent threshold`: thresholds of a running agent, and what they tell.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use causeway_api::agent::{ClientEvent, ClientEvents, NewThreshold, ThresholdView};
use causeway_report::table::{OutputFormat, TextTable, ms};
use causeway_service::config::units;
use serde_json::json;

use crate::client::{AgentTarget, Target};
use crate::vip_cmd::print;

const PATH: &str = "/v1/clients/thresholds";
/// How long a request waits for events.
const WAIT: Duration = Duration::from_secs(10);
/// Between two tries to reach an agent that was there.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ThresholdAction {
    /// List the thresholds in force, and which are exceeded
    List {
        #[command(flatten)]
        target: AgentTarget,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Add a threshold, until it is removed or the agent ends, and print it with its id
    Add {
        #[command(flatten)]
        target: AgentTarget,
        #[command(flatten)]
        wanted: Wanted,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Remove a threshold that was added
    Del {
        #[command(flatten)]
        target: AgentTarget,
        /// Its id
        id: u64,
    },
    /// Print a line whenever one is exceeded, and when it is no more, until stopped
    Watch {
        #[command(flatten)]
        target: AgentTarget,
        /// Begin behind this event; 0: with all that the agent remembers
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
        /// End after so many events
        #[arg(long, value_name = "NUMBER")]
        count: Option<u64>,
        /// How to print; json holds an object a line
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// What to tell of.
#[derive(Debug, clap::Args)]
pub(crate) struct Wanted {
    /// It begins above this response time
    #[arg(value_name = "TIME", value_parser = units::duration)]
    above: Duration,
    /// It ends below this one; a fifth less unless given
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    below: Option<Duration>,
    /// Each once it has held for so long
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration, default_value = "5s")]
    lasting: Duration,
    /// mean, or a percentile such as p99
    #[arg(long, value_name = "STATISTIC", default_value = "mean")]
    statistic: String,
    /// What the statistic is of, 1s to 60s
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s")]
    window: Duration,
    /// One of `services`, or others; each unless given
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// One of `prefixes`, or others; each unless given
    #[arg(long, value_name = "PREFIX")]
    clients: Option<String>,
    /// What events call it
    #[arg(long)]
    name: Option<String>,
}

impl From<Wanted> for NewThreshold {
    fn from(of: Wanted) -> Self {
        Self {
            name: of.name,
            service: of.service,
            clients: of.clients,
            statistic: Some(of.statistic),
            above_s: of.above.as_secs_f64(),
            below_s: of.below.map(|below| below.as_secs_f64()),
            for_s: Some(of.lasting.as_secs_f64()),
            window_s: Some(of.window.as_secs_f64()),
        }
    }
}

impl ThresholdAction {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::List { target, output } => {
                let thresholds: Vec<ThresholdView> = Target::from(target).get(PATH)?;
                match (output, thresholds.is_empty()) {
                    (OutputFormat::Table, true) => println!("there are no thresholds"),
                    _ => print(output, &json!(thresholds), &table(&thresholds))?,
                }
            }
            Self::Add {
                target,
                wanted,
                output,
            } => {
                let body = serde_json::to_string(&NewThreshold::from(wanted))?;
                let added: ThresholdView = Target::from(target).post(PATH, &body)?;
                print(output, &json!(added), &table(std::slice::from_ref(&added)))?;
            }
            Self::Del { target, id } => {
                let path = format!("{PATH}/{id}");
                let removed: ThresholdView = Target::from(target).delete_for(&path)?;
                println!("removed {id}, {}", removed.name);
            }
            Self::Watch {
                target,
                after,
                count,
                output,
            } => watch(&target.into(), after, count, output)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints events as they come, `count` at most.
fn watch(
    target: &Target,
    after: Option<u64>,
    count: Option<u64>,
    output: OutputFormat,
) -> anyhow::Result<()> {
    let mut after = match after {
        Some(after) => after,
        None => target.get::<ClientEvents>("/v1/clients/events")?.last,
    };
    let (mut answered, mut printed) = (false, 0);
    while count.is_none_or(|count| printed < count) {
        let wait_s = WAIT.as_secs();
        let path = format!("/v1/clients/events?after={after}&wait_s={wait_s}");
        let found: ClientEvents = match target.get_after(WAIT, &path) {
            // It was there, and may be again: what happens until then it remembers.
            Err(error) if answered => {
                eprintln!("causeway: {error:#}");
                thread::sleep(RETRY_AFTER);
                continue;
            }
            found => found?,
        };
        answered = true;
        if found.missed {
            eprintln!("causeway: there were events that the agent does not remember");
        }
        after = found.last;
        let mut out = std::io::stdout().lock();
        for event in &found.events {
            if count.is_some_and(|count| printed >= count) {
                break;
            }
            out.write_all(line(event, output, printed == 0)?.as_bytes())?;
            printed += 1;
        }
        out.flush()?;
    }
    Ok(())
}

/// An event as a line; the first one of CSV has the header before it.
fn line(event: &ClientEvent, output: OutputFormat, is_first: bool) -> anyhow::Result<String> {
    Ok(match output {
        OutputFormat::Table => format!("{} {event}\n", event.id),
        OutputFormat::Json => serde_json::to_string(event)? + "\n",
        OutputFormat::Csv => {
            let csv = events(event).to_csv();
            match csv.split_once('\n').filter(|_| !is_first) {
                Some((_, row)) => row.to_owned(),
                None => csv,
            }
        }
    })
}

fn of_seconds(s: f64) -> String {
    ms(Some(s * 1e6))
}

fn events(event: &ClientEvent) -> TextTable {
    let mut table = TextTable::new(&[
        ">EVENT",
        ">UNIX MS",
        "STATE",
        ">ID",
        "NAME",
        "SERVICE",
        "CLIENTS",
        "DEVICE",
        "STATISTIC",
        ">VALUE MS",
        ">LIMIT MS",
    ]);
    table.push(vec![
        event.id.to_string(),
        event.unix_ms.to_string(),
        event.state.clone(),
        event.threshold_id.to_string(),
        event.threshold.clone(),
        event.service.clone(),
        event.clients.clone(),
        event.device.clone(),
        event.statistic.clone(),
        of_seconds(event.value_s),
        of_seconds(event.limit_s),
    ]);
    table
}

/// One row per threshold.
fn table(thresholds: &[ThresholdView]) -> TextTable {
    let mut table = TextTable::new(&[
        ">ID",
        "NAME",
        "FROM",
        "SERVICE",
        "CLIENTS",
        "STATISTIC",
        ">ABOVE MS",
        ">BELOW MS",
        ">FOR MS",
        ">WINDOW MS",
        "EXCEEDED",
    ]);
    for of in thresholds {
        let each = |named: &Option<String>| named.clone().unwrap_or_else(|| "each".to_owned());
        let exceeded = of.categories.iter().filter(|of| of.exceeded);
        let exceeded: Vec<String> = exceeded
            .map(|of| format!("{} {} {}", of.service, of.clients, of.device))
            .collect();
        table.push(vec![
            of.id.to_string(),
            of.name.clone(),
            if of.from_file { "file" } else { "added" }.to_owned(),
            each(&of.service),
            each(&of.clients),
            of.statistic.clone(),
            of_seconds(of.above_s),
            of_seconds(of.below_s),
            of_seconds(of.for_s),
            of_seconds(of.window_s),
            match exceeded.is_empty() {
                true => "-".to_owned(),
                false => exceeded.join(", "),
            },
        ]);
    }
    table
}
