// SPDX-License-Identifier: Apache-2.0
//! The tunnel's process from start to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use causeway_service::http::reading_only;
use causeway_service::last_good::{Attempt, StartConfig, StartsByCopy as _};
use causeway_service::process::{Listeners, Process, Routers, Work, serve_routers};
use causeway_service::tokens::Rules;
use tracing::info;

use crate::TunnelConfig;
use crate::tunnel::{self, Tunnel};

/// Serves until SIGTERM or SIGINT.
pub fn run(
    process: Process,
    file: PathBuf,
    start: StartConfig<TunnelConfig>,
) -> anyhow::Result<()> {
    TunnelConfig::serve(process, &file, start, attempt)
}

fn attempt(
    process: Process,
    file: &Path,
    start: StartConfig<TunnelConfig>,
) -> anyhow::Result<Attempt> {
    let config = &start.config;
    let listeners = Listeners::bind(
        (&config.socket, config.socket_group.as_ref()),
        config.http,
        config.api.as_ref(),
    )?;
    let summary = config.summary();
    let (tunnel, failed) = match Tunnel::start(start, file.to_owned(), listeners.doors()) {
        Ok(started) => started,
        Err(error) => return Ok(Attempt::Refused(process, error)),
    };
    info!("carrying {summary}");
    listeners.announce();
    let router = tunnel::router(Arc::clone(&tunnel));
    let routers = Routers {
        tcp: reading_only(router.clone(), listeners.socket()),
        unix: router,
        rules: Rules::PLAIN,
    };
    let reloaded = Arc::clone(&tunnel);
    let work = Work {
        reload: move || reloaded.reload(),
        works: || tunnel.answers(),
        failed,
    };
    let result = serve_routers(process, routers, &listeners, work);
    tunnel.stop();
    result.map(|()| Attempt::Stopped)
}
