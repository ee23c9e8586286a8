// SPDX-License-Identifier: Apache-2.0
//! Replays recorded lists and watches, and keeps what is written to Services.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Map, Value, json};

use super::{Asked, answer, bookmark, parse, receive, recorded};

const KINDS: [&str; 3] = ["services", "endpointslices", "nodes"];

#[derive(Default)]
struct State {
    services: BTreeMap<String, Value>,
    events: Vec<Value>,
    lease: Option<Value>,
    asked: Vec<Asked>,
    /// A Service whose updates an admission webhook denies.
    locked: Option<String>,
    version: u64,
    /// Watches of nodes that break, each behind a bookmark.
    breaking: Vec<String>,
    /// Watches of Services that are told of changes.
    watching: Vec<TcpStream>,
    /// Watches that are told nothing more.
    silent: Vec<TcpStream>,
}

/// A server that ends with the test's process.
pub(crate) struct ApiServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut state = State {
            version: 10_000,
            ..State::default()
        };
        for page in 1..=2 {
            let page = parse(&recorded(&format!("services-list-{page}.json")));
            state.keep(page["items"].as_array().expect("items"));
        }
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&state, stream));
            }
        });
        Self { address, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Services by name.
    pub(crate) fn services(&self) -> Value {
        let services = lock(&self.state).services.clone();
        Value::Object(services.into_iter().collect::<Map<_, _>>())
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        lock(&self.state).events.clone()
    }

    /// The lease, if anybody has ever taken it.
    pub(crate) fn lease(&self) -> Option<Value> {
        lock(&self.state).lease.clone()
    }

    /// Refuses all changes of a Service.
    pub(crate) fn lock(&self, name: &str) {
        lock(&self.state).locked = Some(name.to_owned());
    }

    /// Has watches of nodes break, each behind a bookmark of one of these versions, the last one first.
    pub(crate) fn break_watches(&self, versions: Vec<String>) {
        lock(&self.state).breaking = versions;
    }

    /// Changes a Service, as its author does.
    pub(crate) fn change(&self, name: &str, patch: Value) {
        let (status, said) = lock(&self.state).patch(name, patch);
        assert_eq!(status, 200, "{said}");
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        let state = lock(&self.state);
        let asked = state.asked.iter();
        asked
            .map(|of| format!("{} {} {:?} {}", of.method, of.path, of.query, of.body))
            .collect()
    }

    /// The versions from which a kind was watched.
    pub(crate) fn watches(&self, kind: &str) -> Vec<String> {
        let state = lock(&self.state);
        let asked = state.asked.iter().filter(|of| of.path.ends_with(kind));
        asked
            .filter(|of| of.query.contains_key("watch"))
            .filter_map(|of| of.query.get("resourceVersion").cloned())
            .collect()
    }

    /// How often a kind was listed from its beginning on.
    pub(crate) fn lists(&self, kind: &str) -> usize {
        let state = lock(&self.state);
        let asked = state.asked.iter().filter(|of| of.path.ends_with(kind));
        let begins =
            |of: &&Asked| !of.query.contains_key("watch") && !of.query.contains_key("continue");
        asked.filter(begins).count()
    }

    /// Begins to delete a Service.
    pub(crate) fn delete(&self, name: &str) {
        let mut state = lock(&self.state);
        let patch = json!({ "metadata": { "deletionTimestamp": "2026-11-27T19:00:00Z" } });
        state.patch(name, patch);
    }
}

impl State {
    fn keep(&mut self, services: &[Value]) {
        for service in services {
            let name = service["metadata"]["name"].as_str().expect("a name");
            self.services.insert(name.to_owned(), service.clone());
        }
    }

    /// Merges (RFC 7386), and tells who watches.
    fn patch(&mut self, name: &str, patch: Value) -> (u16, Value) {
        let Some(service) = self.services.get_mut(name) else {
            return (404, json!({ "message": "not found" }));
        };
        let version = &patch["metadata"]["resourceVersion"];
        if version.is_string() && *version != service["metadata"]["resourceVersion"] {
            return (409, json!({ "message": "the object has been modified" }));
        }
        merge(service, patch);
        self.version += 1;
        service["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let service = service.clone();
        let has_finalizers = service["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        let ends = service["metadata"]["deletionTimestamp"].is_string() && !has_finalizers;
        if ends {
            self.services.remove(name);
        }
        let kind = if ends { "DELETED" } else { "MODIFIED" };
        let line = json!({ "type": kind, "object": service }).to_string() + "\n";
        self.watching.retain_mut(|stream| chunk(stream, &line));
        (200, service)
    }
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        merge(&mut target[key], value);
    }
}

/// Sends a part of a body of unknown length; whether anybody reads it.
fn chunk(stream: &mut TcpStream, text: &str) -> bool {
    write!(stream, "{:x}\r\n{text}\r\n", text.len()).is_ok()
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(shared: &Mutex<State>, stream: TcpStream) {
    let reader = stream.try_clone().expect("a second handle");
    let Some(asked) = receive(reader) else { return };
    let mut state = lock(shared);
    state.asked.push(asked.clone());
    let segments: Vec<&str> = asked.path.split('/').collect();
    let kind = KINDS.into_iter().find(|kind| segments.last() == Some(kind));
    let (status, body) = match (asked.method.as_str(), kind, segments.as_slice()) {
        ("GET", Some(kind), _) if asked.query.contains_key("watch") => {
            watch(&mut state, kind, stream);
            return;
        }
        ("GET", Some(kind), _) => (200, list(&state, kind, &asked)),
        ("GET", None, [.., "leases", _]) => match &state.lease {
            Some(lease) => (200, lease.clone()),
            None => (404, json!({ "message": "not found" })),
        },
        ("POST" | "PUT", None, [.., "leases"] | [.., "leases", _]) => {
            state.lease = Some(parse(&asked.body));
            (201, parse(&asked.body))
        }
        ("POST", None, [.., "events"]) => {
            state.events.push(parse(&asked.body));
            (201, parse(&asked.body))
        }
        ("PATCH", None, [.., "services", name] | [.., "services", name, "status"]) => {
            match state.locked.as_deref() == Some(*name) {
                true => (403, json!({ "message": "a webhook denied the request" })),
                false => state.patch(name, parse(&asked.body)),
            }
        }
        _ => (404, json!({ "message": "not recorded" })),
    };
    drop(state);
    answer(stream, status, &body.to_string());
}

fn list(state: &State, kind: &str, asked: &Asked) -> Value {
    let page = if asked.query.contains_key("continue") {
        2
    } else {
        1
    };
    let mut list = parse(&recorded(&format!("{kind}-list-{page}.json")));
    if kind == "services" {
        let services = state.services.values();
        let own = |at: &usize| at % 2 == page - 1;
        let services = services.enumerate().filter(|(at, _)| own(at));
        list["items"] = services.map(|(_, service)| service.clone()).collect();
    }
    list
}

fn watch(state: &mut State, kind: &str, mut stream: TcpStream) {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
    if kind == "nodes"
        && let Some(version) = state.breaking.pop()
    {
        // As API servers before 1.34 write it: with a time, which is null.
        let meta = json!({ "resourceVersion": version, "creationTimestamp": null });
        let object = json!({ "kind": "Node", "apiVersion": "v1", "metadata": meta });
        let line = json!({ "type": "BOOKMARK", "object": object }).to_string() + "\n";
        chunk(&mut stream, &line);
        return;
    }
    let lines = recorded(&format!("{kind}-watch.jsonl"));
    if kind != "services" {
        // The rest comes at once, and nothing after it.
        chunk(&mut stream, &lines);
        state.silent.push(stream);
        return;
    }
    let before = state
        .asked
        .iter()
        .filter(|of| of.path.ends_with(kind) && of.query.contains_key("watch"));
    match before.count() {
        1 => {
            // All of it, its last line cut off: a connection that breaks.
            let end = lines.trim_end().len() - 20;
            let bookmark = lines
                .lines()
                .position(|line| line.contains(&bookmark(kind)));
            assert!(bookmark.is_some());
            chunk(&mut stream, &lines);
            chunk(
                &mut stream,
                &lines[..end].lines().last().unwrap_or_default()[..40],
            );
            for line in lines.lines().map(parse) {
                let object = &line["object"];
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                match line["type"].as_str() {
                    Some("ADDED") => state.keep(std::slice::from_ref(object)),
                    Some("DELETED") => {
                        state.services.remove(name);
                    }
                    _ => {}
                }
            }
        }
        2 => {
            chunk(&mut stream, &recorded("services-watch-gone.jsonl"));
        }
        _ => state.watching.push(stream),
    }
}
