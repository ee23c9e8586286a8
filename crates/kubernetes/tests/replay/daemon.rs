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

    /// Starts it anew with its file.
    pub(crate) fn restart(&self) {
        let mut state = self.lock();
        let config = BalancerConfig::load(&state.goes_by).expect("a file to start with");
        state.config = Some(config);
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
            "/v1/check" => match self.would_take(&asked.body) {
                Ok(config) => (200, json!(config.summary())),
                Err(refusal) => refusal,
            },
            "/v1/diff" => match self.parse(&asked.body) {
                Ok(config) => {
                    let refused = self.would_take(&asked.body).err();
                    let refused = refused.map(|(_, of)| of["error"].clone());
                    let former = self.config.as_ref();
                    let changes = former.map_or_else(Vec::new, |former| config.changes(former));
                    let refused: Vec<Value> = refused.into_iter().collect();
                    (200, json!({ "changes": changes, "refused": refused }))
                }
                Err(refusal) => refusal,
            },
            "/v1/reload" if self.holds => (500, json!({ "error": "the data plane failed" })),
            "/v1/reload" => {
                let text = fs::read_to_string(&self.goes_by).expect("the file");
                match self.would_take(&text) {
                    Ok(config) => {
                        let summary = json!(config.summary());
                        self.config = Some(config);
                        (200, summary)
                    }
                    Err(refusal) => refusal,
                }
            }
            _ => (404, json!({ "error": "no such thing" })),
        }
    }

    fn parse(&self, text: &str) -> Result<BalancerConfig, (u16, Value)> {
        BalancerConfig::parse(&self.goes_by, text)
            .map_err(|errors| (422, json!({ "error": errors.to_string() })))
    }

    /// As a reload of the balancer, which has what it has.
    fn would_take(&self, text: &str) -> Result<BalancerConfig, (u16, Value)> {
        let config = self.parse(text)?;
        let Some(running) = &self.config else {
            return Ok(config);
        };
        let loses = config.vips.is_empty() && !running.vips.is_empty() && !config.allow_empty;
        let loses = loses.then(|| "the file has no [[vip]]".to_owned());
        // A fleet shares VIPs with cookies, and holds a file that takes one away.
        let shared = |of: &BalancerConfig| -> Vec<_> {
            let vips = of.vips.iter().filter(|vip| vip.cookie.is_some());
            vips.map(|vip| vip.key()).collect()
        };
        let stay = shared(&config);
        let held = config.fleet.is_some() && !shared(running).iter().all(|vip| stay.contains(vip));
        let held = held.then(|| "held by the fleet".to_owned());
        match config.refused_by_reload(running).or(loses).or(held) {
            Some(why) => Err((409, json!({ "error": why }))),
            None => Ok(config),
        }
    }
}
