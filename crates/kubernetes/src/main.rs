// SPDX-License-Identifier: Apache-2.0
//! `causeway-kubernetes`: a controller beside a balancer.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_kubernetes::run;
use causeway_kubernetes::settings::KubernetesSettings;
use causeway_service::config::Words as _;
use causeway_service::log::{self, LogFormat};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{CommandFactory as _, Parser};

/// Serve Kubernetes Services of type LoadBalancer by the Causeway balancer on this machine
///
/// Follows the cluster's Services, endpoints and nodes, writes the balancer's file, has it read again,
/// and writes to the cluster what then is in force. Runs until SIGTERM or SIGINT; the balancer goes
/// on without it.
#[derive(Debug, Parser)]
#[command(name = "causeway-kubernetes", version)]
struct Args {
    /// Settings
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/kubernetes.toml"
    )]
    config: PathBuf,
    /// Only check the settings
    #[arg(long)]
    check: bool,
    /// Print the settings' keys as a JSON Schema
    #[arg(long)]
    schema: bool,
    /// Print the man page
    #[arg(long, hide = true)]
    man: bool,
    /// Log more; twice: all
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Log warnings and errors alone
    #[arg(long, conflicts_with = "verbose")]
    quiet: bool,
    /// How to log: sentences, or a JSON object on each line
    #[arg(
        long,
        value_name = "FORMAT",
        env = "CAUSEWAY_LOG_FORMAT",
        default_value = "text",
        value_parser = PossibleValuesParser::new(LogFormat::ALL.iter().map(|of| of.0))
            .try_map(|word| LogFormat::from_word(&word).map_err(std::io::Error::other))
    )]
    log_format: LogFormat,
}

fn main() -> ExitCode {
    let args = Args::parse();
    log::init(args.verbose, args.quiet, args.log_format);
    if args.man {
        let page = clap_mangen::Man::new(Args::command());
        return match page.render(&mut std::io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                log::failure(&format!("cannot write the man page: {error}"));
                ExitCode::FAILURE
            }
        };
    }
    if args.schema {
        print!("{}", KubernetesSettings::schema());
        return ExitCode::SUCCESS;
    }
    let settings = match KubernetesSettings::load(&args.config) {
        Ok(settings) => settings,
        Err(errors) => {
            log::failure(&errors.to_string());
            return ExitCode::FAILURE;
        }
    };
    if args.check {
        println!("{} is valid", args.config.display());
        return ExitCode::SUCCESS;
    }
    match run::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::failure(&format!("causeway-kubernetes: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
