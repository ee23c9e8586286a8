// SPDX-License-Identifier: Apache-2.0
//! `--serve`: metrics for Prometheus over plain HTTP, for this machine alone.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, ensure};
use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use causeway_service::metrics::MetricsPage;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A thread that answers with the page last published. It ends with this value.
pub(super) struct Server {
    address: SocketAddr,
    page: Arc<Mutex<Arc<MetricsPage>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a loopback address.
    ///
    /// # Errors
    /// An address of a network, for which there would have to be TLS; one that is
    /// taken.
    pub(super) fn start(address: SocketAddr) -> anyhow::Result<Self> {
        ensure!(
            address.ip().is_loopback(),
            "--serve {address} would show metrics to the network without encryption: \
             serve on 127.0.0.1 or [::1] and put a proxy with TLS before it"
        );
        let listener = std::net::TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| format!("cannot serve metrics on {address}"))?;
        let address = listener.local_addr()?;
        let runtime = runtime()?;
        let page = Arc::new(Mutex::new(Arc::new(MetricsPage::of([]))));
        let router = router(Arc::clone(&page));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    _ = axum::serve(listener, router) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self {
            address,
            page,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with this page from now on.
    pub(super) fn publish(&self, page: MetricsPage) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(page);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // A thread that is gone needs no telling.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// With a clock: axum sleeps where no descriptor is left for a connection.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn router(page: Arc<Mutex<Arc<MetricsPage>>>) -> Router {
    let metrics = move |headers: HeaderMap| {
        let page = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move { page.answer(&headers) }
    };
    Router::new().route("/metrics", get(metrics))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn a_server_may_wait_for_descriptors() {
        let runtime = super::runtime().expect("a runtime");
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
}
