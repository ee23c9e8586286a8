// SPDX-License-Identifier: Apache-2.0
//! Stands for the balancer's daemon: reads the file by its parser, and has no data plane.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use causeway_balancer::BalancerConfig;
use serde_json::{Map, Value, json};

use super::{Asked, answer, receive};

#[derive(Default)]
struct State {
    goes_by: PathBuf,
    config: Option<BalancerConfig>,
    holds: bool,
}

/// A daemon that ends with the test's process.
pub(crate) struct Daemon(Arc<Mutex<State>>);

impl Daemon {
    /// One at `socket` that goes by `file`.
    pub(crate) fn start(socket: &Path, file: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let state = Arc::new(Mutex::new(State {
            goes_by: file.to_owned(),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(asked) = receive(&stream) else {
                    continue;
                };
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let (status, body) = state.answer(&asked);
                drop(state);
                answer(&stream, status, &body.to_string());
            }
        });
        Self(state)
    }

    /// Lets it go by another file.
    pub(crate) fn goes_by(&self, file: &Path) {
        self.lock().goes_by = file.to_owned();
    }

    /// Has it fail reloads.
    pub(crate) fn hold(&self, holds: bool) {
        self.lock().holds = holds;
    }

    /// Its VIPs by name: their reals, and whether each drains.
    pub(crate) fn vips(&self) -> Value {
        let state = self.lock();
        let vips = state.config.iter().flat_map(|config| &config.vips);
        let reals = vips.map(|vip| {
            let reals = vip.reals.iter();
            let reals = reals.map(|real| (real.address.to_string(), json!(real.drain)));
            (vip.name.clone(), Value::Object(reals.collect()))
        });
        Value::Object(reals.collect::<Map<_, _>>())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn answer(&mut self, asked: &Asked) -> (u16, Value) {
        match asked.path.as_str() {
            "/v1/status" => (200, json!({ "config_file": self.goes_by })),
            "/v1/vips" => {
                let vips = self.config.iter().flat_map(|config| &config.vips);
                let vips = vips.map(|vip| {
                    let reals = vip.reals.iter();
                    let reals: Vec<Value> = reals
                        .map(|real| json!({ "address": real.address.to_string() }))
                        .collect();
                    json!({ "name": vip.name, "reals": reals })
                });
                (200, vips.collect())
            }
            "/v1/check" => match BalancerConfig::parse(&self.goes_by, &asked.body) {
                Ok(config) => (200, json!(config.summary())),
                Err(errors) => (422, json!({ "error": errors.to_string() })),
            },
            "/v1/reload" if self.holds => (500, json!({ "error": "the data plane failed" })),
            "/v1/reload" => {
                let text = fs::read_to_string(&self.goes_by).expect("the file");
                match BalancerConfig::parse(&self.goes_by, &text) {
                    Ok(config) => {
                        let summary = json!(config.summary());
                        self.config = Some(config);
                        (200, summary)
                    }
                    Err(errors) => (422, json!({ "error": errors.to_string() })),
                }
            }
            _ => (404, json!({ "error": "no such thing" })),
        }
    }
}
