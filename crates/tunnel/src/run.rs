// SPDX-License-Identifier: Apache-2.0
//! The tunnel's process from start to end.

use std::path::PathBuf;
use std::sync::Arc;

use causeway_service::access::Rules;
use causeway_service::http::reading_only;
use causeway_service::process::{Listeners, Process, Routers, Work, serve_routers};
use tracing::info;

use crate::TunnelConfig;
use crate::tunnel::{self, Tunnel};

/// Serves until SIGTERM or SIGINT.
pub fn run(process: Process, file: PathBuf, config: TunnelConfig) -> anyhow::Result<()> {
    let listeners = Listeners::bind(
        (&config.socket, config.socket_group.as_ref()),
        config.http,
        config.api.as_ref(),
    )?;
    let summary = config.summary();
    let (tunnel, failed) = Tunnel::start(config, file, listeners.doors())?;
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
    result
}
