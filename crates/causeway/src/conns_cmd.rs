// SPDX-License-Identifier: Apache-2.0
//! `causeway conns`: the connections of stateful VIPs, which have slots of their own.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use causeway_api::balancer::{Connections, MoveConnection, VipView};
use causeway_balancer::slots::LOOK_MAX;
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::{socket_address as endpoint, units};
use clap::Subcommand;
use hyper::Method;

use crate::client::{Target, vip_path};

/// Arguments of `causeway conns`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the connections that send most packets, by two reads of all slots
    Top {
        /// How many
        #[arg(short = 'n', long, default_value_t = 20)]
        count: usize,
        /// Time between the two reads, at most 10s
        #[arg(long = "for", default_value = "1s", value_name = "TIME", value_parser = look)]
        apart: Duration,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Send a connection's packets to another real from now on: to a scrubber, say
    ///
    /// The server that has the connection sees no more of it. The move lasts as long as
    /// the connection.
    Move {
        /// The client's address and port
        #[arg(value_parser = endpoint)]
        client: SocketAddr,
        /// Name of the VIP, or address:port
        vip: String,
        /// Address of a real of the VIP; one with weight 0 gets nothing else
        real: IpAddr,
    },
}

fn look(text: &str) -> Result<Duration, String> {
    let apart = units::duration(text)?;
    match apart <= LOOK_MAX {
        true => Ok(apart),
        false => Err(format!("`{text}` is too long; look for at most 10s")),
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Top {
                count,
                apart,
                output,
            } => {
                let path = format!("/v1/connections?count={count}&ms={}", apart.as_millis());
                let report: Connections = self.target.get_after(apart, &path)?;
                match output {
                    OutputFormat::Table => {
                        print!("{}\n{}", summary(&report), senders(&report).to_text())
                    }
                    OutputFormat::Csv => print!("{}", senders(&report).to_csv()),
                    OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&report)?),
                }
            }
            Action::Move { client, vip, real } => {
                let vip = match endpoint(&vip) {
                    Ok(vip) => vip,
                    Err(_) => {
                        let named: VipView = self.target.get(&vip_path(&vip))?;
                        SocketAddr::new(named.address.parse()?, named.port)
                    }
                };
                let body = MoveConnection { client, vip, real };
                self.target
                    .send(Method::POST, "/v1/connections/move", &body)?;
                println!("moved {client} to {vip}: its packets go to {real} now");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn summary(report: &Connections) -> String {
    let told = &report.told;
    format!(
        "{} connections with slots; {} SYNs found none; agents reported {} ends, {} openings elsewhere ({} not taken)\n",
        report.open, report.refused, told.ended, told.learned, told.not_learned
    )
}

fn senders(report: &Connections) -> TextTable {
    let mut table = TextTable::new(&["CLIENT", "VIP", "REAL", ">PACKETS/S", ">PACKETS", "STATE"]);
    for sender in &report.heaviest {
        table.push(vec![
            sender.client.clone(),
            sender.vip.clone(),
            sender.real.clone(),
            format!("{:.0}", sender.rate_pps),
            sender.packets.to_string(),
            if sender.closed { "closed" } else { "open" }.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::{HeavyConnection, Notified};

    use super::*;

    #[test]
    fn senders_are_rows() {
        let sender = |closed| HeavyConnection {
            client: "192.0.2.7:4000".into(),
            vip: "198.51.100.1:80".into(),
            real_id: 3,
            real: "10.0.0.3".into(),
            rate_pps: 1234.4,
            packets: 99,
            closed,
        };
        let report = Connections {
            open: 2,
            refused: 1,
            told: Notified::default(),
            heaviest: vec![sender(false), sender(true)],
        };
        let text = senders(&report).to_text();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[1],
            [
                "192.0.2.7:4000",
                "198.51.100.1:80",
                "10.0.0.3",
                "1234",
                "99",
                "open"
            ]
        );
        assert_eq!(rows[2][5], "closed");
        assert!(summary(&report).starts_with("2 connections with slots; 1 SYNs"));
        let again: Connections =
            serde_json::from_value(serde_json::to_value(&report).unwrap()).unwrap();
        assert_eq!(again.heaviest[1].packets, 99);
    }

    #[test]
    fn a_look_has_its_limit() {
        assert_eq!(look("500ms"), Ok(Duration::from_millis(500)));
        assert!(look("11s").unwrap_err().contains("at most 10s"));
    }
}
