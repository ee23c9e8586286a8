// SPDX-License-Identifier: Apache-2.0
//! The API's routes, and what the commands print of their answers.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fs, thread};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_service::http::reading_only;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::api;
use super::engine::Engine;
use super::fake::FakePlane;
use super::run::copy_of;
use super::serve_tests::HeldEngine;
use super::shared::Shared;
use super::state_dir::StateDir;
use super::tests::{MS, START, WEB, config};

pub(crate) struct Daemon {
    plane: FakePlane,
    intervals: Cell<u64>,
    pub(crate) shared: Arc<Shared>,
    dir: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lb.toml");
        fs::write(&file, format!("interface = \"eth0\"\n{text}")).unwrap();
        let plane = FakePlane::default();
        let engine = Engine::start(Box::new(plane.clone()), config(text), START).unwrap();
        let status = Status {
            version: "1.2.3".to_owned(),
            interface: "eth0".to_owned(),
            mode: "native".to_owned(),
            took_over: true,
            pid: 7,
            started: Moment::default(),
            interval_ns: 100 * MS,
            config_file: file.display().to_string(),
            last_reload_error: None,
            last_good: false,
            unfinished: None,
            state_error: None,
            data_plane_error: None,
            held_vips: Vec::new(),
        };
        let state_dir = dir.path().join("state");
        let state = StateDir::new(&state_dir, Path::new("/pins"));
        let copy = copy_of(&file, &state_dir);
        let shared = Arc::new(Shared::new(engine, status, file).with_state(state, copy));
        Self {
            plane,
            intervals: Cell::new(0),
            shared,
            dir,
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("lb.toml")
    }

    /// Runs intervals of 100 ms; each real answers 50 times at its latency.
    pub(crate) fn run(&self, intervals: u64, latencies_ms: &[f64]) {
        for _ in 0..intervals {
            let interval = self.intervals.get() + 1;
            self.intervals.set(interval);
            for (id, latency_ms) in latencies_ms.iter().enumerate() {
                self.plane.state().respond(id as u32, *latency_ms, 50);
            }
            let now = Moment {
                monotonic_ns: 60_000 * MS + interval * 100 * MS,
                realtime_ns: 1_700_000_000_000 * MS + interval * 100 * MS,
            };
            self.shared.engine().tick(now).unwrap();
        }
    }

    pub(crate) fn router(&self) -> Router {
        api::router(Arc::clone(&self.shared))
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        request(self.router(), method, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }
}

async fn request(router: Router, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let body = match body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(body)
        .unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

#[tokio::test]
async fn a_request_that_waits_for_the_engine_keeps_no_other_waiting() {
    let daemon = Daemon::new(WEB);
    let all: Value = daemon.get("/v1/openapi.json").await;
    let mut requests: Vec<(&str, String, Value)> = Vec::new();
    for (path, methods) in all["paths"].as_object().unwrap() {
        if methods.get("get").is_some() {
            let path = path.replace("{vip}", "web").replace("{real}", "10.0.0.1");
            requests.push(("GET", path, Value::Null));
        }
    }
    let vip = json!({ "address": "192.0.2.9", "port": 80, "real": [{ "address": "10.0.0.1" }] });
    for (method, path, body) in [
        ("POST", "/v1/reload", Value::Null),
        ("PATCH", "/v1/vips/web", json!({ "control": "observe" })),
        ("POST", "/v1/vips", vip),
    ] {
        requests.push((method, path.to_owned(), body));
    }
    for (method, path, body) in requests {
        let held = HeldEngine::of(&daemon.shared);
        // Polled after the request: it runs while that waits, or not at all.
        let other = async { held.let_go() };
        let ((code, answer), went_on) = tokio::join!(daemon.call(method, &path, body), other);
        assert!(!code.is_server_error(), "{path}: {answer}");
        assert!(went_on, "{method} {path} kept others waiting");
    }
}

#[tokio::test]
async fn stats_show_counters_latency_and_reasons() {
    let daemon = Daemon::new(WEB);
    daemon.run(12, &[5.0, 6.0, 5.0, 5.0]);
    let stats = daemon.get("/v1/stats").await;
    assert_eq!(stats["verdicts"][1]["verdict"], "not_vip");
    let real = &stats["vips"][0]["reals"][1];
    assert_eq!(real["address"], "10.0.0.2");
    assert_eq!(real["requests"], 600);
    assert_eq!(real["latency"]["mean_us"], 6000.0);
    assert_eq!(real["latency"]["samples"], 600);
    assert_eq!(real["reason"], "steady");
    let p50 = real["latency"]["p50_us"].as_f64().unwrap();
    assert!((p50 / 6000.0 - 1.0).abs() < 0.04);
}

#[tokio::test]
async fn history_can_begin_later() {
    let daemon = Daemon::new(WEB);
    daemon.run(10, &[5.0; 4]);
    let all = daemon.get("/v1/history").await;
    assert_eq!(all["epoch_ns"], 100 * MS);
    let epochs = all["series"][0]["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 10);
    let since = epochs[7]["start_ns"].as_u64().unwrap();
    let late = daemon.get(&format!("/v1/history?since_ns={since}")).await;
    assert_eq!(late["series"][3]["epochs"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn history_comes_in_pages_that_miss_nothing() {
    let daemon = Daemon::new(WEB);
    daemon.run(4, &[5.0; 4]);
    // A real that comes later has fewer epochs.
    let body = json!({ "address": "10.0.0.9" });
    daemon.call("POST", "/v1/vips/web/reals", body).await;
    daemon.run(5, &[5.0; 5]);
    let all = daemon.get("/v1/history").await;
    assert_eq!(all["next_since_monotonic_ns"], Value::Null);
    let mut epochs = vec![Vec::new(); 5];
    let (mut next, mut pages) = (0, 0);
    loop {
        let path = format!("/v1/history?limit=10&since_monotonic_ns={next}");
        let page = daemon.get(&path).await;
        for (all, series) in epochs.iter_mut().zip(page["series"].as_array().unwrap()) {
            all.extend_from_slice(series["epochs"].as_array().unwrap());
        }
        pages += 1;
        match page["next_since_monotonic_ns"].as_u64() {
            Some(ns) => next = ns,
            None => break,
        }
    }
    assert_eq!(pages, 5);
    for (paged, series) in epochs.iter().zip(all["series"].as_array().unwrap()) {
        assert_eq!(paged, series["epochs"].as_array().unwrap());
    }
    assert_eq!((epochs[0].len(), epochs[4].len()), (9, 5));
}

#[tokio::test]
async fn the_timeline_has_percentiles_weights_and_states_in_steps() {
    let daemon = Daemon::new(WEB);
    daemon.run(45, &[5.0; 4]);
    daemon.run(45, &[80.0, 5.0, 5.0, 5.0]);
    let timeline = daemon.get("/v1/vips/web/timeline").await;
    let floors = timeline["bucket_floors_us"].as_array().unwrap();
    let steps = timeline["reals"][0]["steps"].as_array().unwrap();
    let (first, last) = (&steps[1], &steps[steps.len() - 1]);
    for (step, ms) in [(first, 5.0), (last, 80.0)] {
        let p99 = step["p99_us"].as_f64().unwrap() / 1e3;
        assert!((p99 / ms - 1.0).abs() < 0.04, "{step}");
        assert_eq!(
            (&step["quality"], &step["state"]),
            (&json!("high"), &json!("active"))
        );
        let [place, count] = [0, 1].map(|at| step["buckets"][0][at].as_u64().unwrap());
        assert_eq!(count, step["samples"].as_u64().unwrap());
        let [from, to] = [0, 1].map(|more| floors[place as usize + more].as_f64().unwrap() / 1e3);
        assert!(from <= ms && ms < to, "{from} to {to}");
    }
    assert_eq!(first["weight"], 1.0);
    assert!(last["weight"].as_f64().unwrap() < 0.5, "{last}");
    let since = &steps[steps.len() - 2]["end"]["monotonic_ns"];
    let path = format!("/v1/vips/web/timeline?since_monotonic_ns={since}");
    let late = daemon.get(&path).await;
    assert_eq!(late["reals"][3]["steps"].as_array().unwrap().len(), 1);
    let all = daemon.get("/v1/moves").await["moves"]
        .as_array()
        .unwrap()
        .clone();
    let since = &all[0]["at"]["monotonic_ns"];
    let late = daemon
        .get(&format!("/v1/moves?since_monotonic_ns={since}"))
        .await;
    let later = all
        .iter()
        .filter(|of| of["at"]["monotonic_ns"] != *since)
        .count();
    assert_eq!(late["moves"].as_array().unwrap().len(), later);
    // Nothing was dropped, which is known.
    let drops = daemon.get("/v1/drops").await;
    assert_eq!(drops["steps"].as_array().unwrap().len(), steps.len());
    assert_eq!(drops["steps"][0]["packets"], json!({}));
}

#[tokio::test]
async fn history_is_found_although_the_clock_was_set_back() {
    let daemon = Daemon::new(WEB);
    daemon.run(10, &[5.0; 4]);
    // An hour back; then five more intervals.
    let hour_ns = 3_600_000 * MS;
    for interval in 11..16 {
        let now = Moment {
            monotonic_ns: 60_000 * MS + interval * 100 * MS,
            realtime_ns: 1_700_000_000_000 * MS + interval * 100 * MS - hour_ns,
        };
        daemon.shared.engine().tick(now).unwrap();
    }
    let since = 1_700_000_000_000 * MS + 1_200 * MS - hour_ns;
    let late = daemon.get(&format!("/v1/history?since_ns={since}")).await;
    assert_eq!(late["series"][0]["epochs"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn reals_are_added_changed_and_removed() {
    let daemon = Daemon::new(WEB);
    let real = "/v1/vips/web/reals/10.0.0.2";
    let (status, vip) = daemon.call("PATCH", real, json!({ "weight": 3 })).await;
    assert_eq!(
        (status, &vip["reals"][1]["weight"]),
        (StatusCode::OK, &json!(3))
    );
    let (_, vip) = daemon.call("PATCH", real, json!({ "drain": true })).await;
    assert_eq!(vip["reals"][1]["state"], "drain");
    assert_eq!(daemon.plane.state().share(0, 1), 0.0);
    let body = json!({ "address": "10.0.0.9", "weight": 2 });
    let (_, vip) = daemon
        .call("POST", "/v1/vips/192.0.2.1%3A80/reals", body)
        .await;
    assert_eq!(vip["reals"][4]["address"], "10.0.0.9");
    let (status, _) = daemon.call("DELETE", real, Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(daemon.plane.state().reals.len(), 4);
}

#[tokio::test]
async fn a_real_that_is_discovered_is_drained_and_not_removed() {
    let text = WEB.replace("real = [", "discover = { file = \"/nowhere\" }\nreal = [");
    let daemon = Daemon::new(&text);
    {
        let mut engine = daemon.shared.engine();
        let vip = engine.config().vips[0].clone();
        let found = vec![json!({ "address": "10.0.0.9" })];
        let found = crate::config::reals_from_json(&vip, found);
        engine.handle_found(START, &vip.endpoint(), found).unwrap();
    }
    let real = "/v1/vips/web/reals/10.0.0.9";
    let (status, problem) = daemon.call("DELETE", real, Value::Null).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(
        problem["error"],
        "10.0.0.9 is discovered, and the next answer would bring it back; drain it instead, or take it out of what web is discovered from"
    );
    let (status, _) = daemon.call("PATCH", real, json!({ "drain": true })).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn vips_are_added_and_removed() {
    let daemon = Daemon::new(WEB);
    let body = json!({
        "name": "api", "address": "2001:db8::1", "port": 443,
        "real": [{ "address": "2001:db8::9" }],
    });
    let (status, vip) = daemon.call("POST", "/v1/vips", body.clone()).await;
    assert_eq!(
        (status, &vip["scheduler"]),
        (StatusCode::CREATED, &json!("maglev"))
    );
    let (status, problem) = daemon.call("POST", "/v1/vips", body).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["error"]
            .as_str()
            .unwrap()
            .starts_with("vip api exists already")
    );
    let (status, _) = daemon.call("DELETE", "/v1/vips/api", Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(daemon.get("/v1/vips").await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn one_vip_of_an_address_takes_its_fragments_also_where_they_are_added() {
    let daemon = Daemon::new(WEB);
    let body = |port: u16, protocol: &str| {
        json!({
            "address": "192.0.2.9", "port": port, "protocol": protocol, "fragments": "forward",
            "real": [{ "address": "10.0.0.9" }],
        })
    };
    let add = async |port, protocol| {
        let (status, body) = daemon.call("POST", "/v1/vips", body(port, protocol)).await;
        (status, body["error"].clone())
    };
    assert_eq!(add(80, "tcp").await, (StatusCode::CREATED, Value::Null));
    assert_eq!(
        add(443, "tcp").await,
        (
            StatusCode::CONFLICT,
            json!(
                "vip 192.0.2.9:80/tcp takes the tcp fragments of 192.0.2.9, which one vip of an address and protocol may; leave fragments = \"forward\" out"
            )
        )
    );
    assert_eq!(add(443, "udp").await, (StatusCode::CREATED, Value::Null));
}

#[tokio::test]
async fn refusals_are_sentences() {
    let daemon = Daemon::new(WEB);
    let web = "/v1/vips/web/reals/10.0.0.1";
    let cases = [
        (
            "GET",
            "/v1/vips/nix",
            json!(null),
            404,
            "there is no vip `nix`; this balancer has web",
        ),
        (
            "DELETE",
            "/v1/vips/web/reals/10.0.0.7",
            json!(null),
            404,
            "vip web has no real `10.0.0.7`; it has 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4",
        ),
        (
            "PATCH",
            web,
            json!({ "weight": 70_000 }),
            422,
            "weight 70000 is out of range; use 0 (no new connections) to 65535",
        ),
        (
            "PATCH",
            web,
            json!({ "wait": 1 }),
            422,
            "the body is not what is expected: unknown field `wait`, expected one of `weight`, `drain`, `maintenance` at line 1 column 7",
        ),
        (
            "POST",
            "/v1/vips/web/reals",
            json!({ "address": "10.0.0.1" }),
            422,
            "vip web has real 10.0.0.1 already; `causeway real weight` changes its weight",
        ),
        (
            "POST",
            "/v1/vips/web/reals",
            json!({ "address": "x" }),
            422,
            "`x` is not a valid IP address; write for example 192.0.2.1 or 2001:db8::1",
        ),
        (
            "POST",
            "/v1/vips",
            json!({ "address": "192.0.2.9", "port": 1, "sheduler": "hash" }),
            422,
            "unknown key `sheduler`; did you mean `scheduler`?",
        ),
        (
            "PUT",
            "/v1/vips",
            json!(null),
            405,
            "/v1/vips does not take PUT",
        ),
        (
            "GET",
            "/v2",
            json!(null),
            404,
            "there is nothing at /v2; see /metrics, /v1/agreement, /v1/check, /v1/connections, /v1/diff, /v1/drops, /v1/fleet, /v1/haproxy, /v1/history, /v1/moves, /v1/overrides, /v1/peers, /v1/reals/{real}, /v1/reload, /v1/stats, /v1/status, /v1/vips, or at / for people",
        ),
    ];
    for (method, path, body, code, sentence) in cases {
        let (status, problem) = daemon.call(method, path, body).await;
        assert_eq!(
            (status.as_u16(), &problem["error"]),
            (code, &json!(sentence)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_long_file_is_compared_through_the_socket() {
    let daemon = Daemon::new(WEB);
    let text = fs::read_to_string(daemon.file()).unwrap() + &"# a long file\n".repeat(300_000);
    let shared = || Arc::clone(&daemon.shared);
    for (router, expected) in [
        (api::socket_router(shared()), StatusCode::OK),
        (api::router(shared()), StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let request = Request::post("/v1/diff").body(Body::from(text.clone()));
        let answer = router.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), expected);
    }
}

#[tokio::test]
async fn the_tcp_address_only_reads() {
    let daemon = Daemon::new(WEB);
    let router = || reading_only(daemon.router(), Path::new("/run/x.sock"));
    let (status, _) = request(router(), "GET", "/v1/stats", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    for (method, path) in [
        ("POST", "/v1/reload"),
        ("DELETE", "/v1/vips/web"),
        ("PUT", "/x"),
    ] {
        let (status, problem) = request(router(), method, path, Value::Null).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
        let sentence = problem["error"].as_str().unwrap();
        assert!(
            sentence.starts_with(
                "this address is read-only; write through the Unix socket /run/x.sock"
            )
        );
    }
    assert_eq!(daemon.plane.state().vips.len(), 1);
}

#[tokio::test]
async fn a_reload_takes_a_good_file_and_keeps_a_bad_one_out() {
    let daemon = Daemon::new(WEB);
    let good = format!(
        "interface = \"eth0\"\n{}",
        WEB.replace("10.0.0.4", "10.0.0.5")
    );
    fs::write(daemon.file(), &good).unwrap();
    let (status, summary) = daemon.call("POST", "/v1/reload", Value::Null).await;
    assert_eq!(
        (status, summary),
        (StatusCode::OK, json!("1 VIP with 4 reals on eth0"))
    );
    assert_eq!(
        daemon.get("/v1/vips/web").await["reals"][3]["address"],
        "10.0.0.5"
    );
    fs::write(daemon.file(), good.replace("latency", "latincy")).unwrap();
    let (status, problem) = daemon.call("POST", "/v1/reload", Value::Null).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let sentence = problem["error"].as_str().unwrap();
    assert!(sentence.ends_with("lb.toml:7: unknown scheduler `latincy`; did you mean `latency`?"));
    assert_eq!(
        daemon.get("/v1/status").await["last_reload_error"],
        problem["error"]
    );
    assert_eq!(daemon.get("/v1/vips/web").await["scheduler"], "latency");
    fs::write(daemon.file(), &good).unwrap();
    daemon.call("POST", "/v1/reload", Value::Null).await;
    assert_eq!(
        daemon.get("/v1/status").await["last_reload_error"],
        Value::Null
    );
}

/// Also the copy of the file, which no other event would write again.
#[tokio::test]
async fn what_could_not_be_kept_is_kept_once_there_is_room() {
    let daemon = Daemon::new(WEB);
    let state = daemon.dir.path().join("state");
    // No directory can be made there.
    fs::write(&state, "").unwrap();
    let text = format!("interface = \"eth0\"\n[encap]\nmtu = 1400\n{WEB}");
    fs::write(daemon.file(), text).unwrap();
    daemon.shared.reload().unwrap();
    daemon.shared.keep();
    let error = daemon.get("/v1/status").await["state_error"].clone();
    assert!(error.as_str().unwrap().contains("cannot be written"));
    let page = daemon.get("/metrics").await;
    assert!(page.as_str().unwrap().contains("causeway_state_kept 0.0"));
    fs::remove_file(&state).unwrap();
    daemon.shared.keep();
    assert_eq!(daemon.get("/v1/status").await["state_error"], Value::Null);
    let copy = fs::read_to_string(state.join("last-good.toml")).unwrap();
    assert!(copy.contains("mtu = 1400"), "{copy}");
    let page = daemon.get("/metrics").await;
    assert!(page.as_str().unwrap().contains("causeway_state_kept 1.0"));
}

#[tokio::test]
async fn a_data_plane_that_is_not_held_is_told() {
    let daemon = Daemon::new(WEB);
    let is_up = async || {
        let page = daemon.get("/metrics").await;
        page.as_str()
            .unwrap()
            .contains("causeway_data_plane_up 1.0")
    };
    daemon.shared.engine().mend();
    assert!(is_up().await);
    daemon.plane.state().hold_fault = Some("eth0 is gone".to_owned());
    daemon.shared.engine().mend();
    let error = daemon.get("/v1/status").await["data_plane_error"].clone();
    assert_eq!((error, is_up().await), ("eth0 is gone".into(), false));
    daemon.plane.state().hold_fault = None;
    daemon.shared.engine().mend();
    assert!(is_up().await);
}

#[test]
fn a_slow_gateway_holds_nobody_up() {
    let daemon = Daemon::new(WEB);
    let (asked, is_asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    daemon.plane.state().gateway_held = Some((asked, answers));
    let text = format!("interface = \"eth0\"\n[encap]\nmtu = 1400\n{WEB}");
    fs::write(daemon.file(), text).unwrap();
    let shared = Arc::clone(&daemon.shared);
    let reload = thread::spawn(move || shared.reload());
    is_asked.recv().unwrap();
    daemon.run(1, &[5.0; 4]);
    assert!(answer.send(()).is_ok(), "it went on before the gateway did");
    reload.join().unwrap().unwrap();
    assert_eq!(daemon.plane.state().next_hop.unwrap().mtu, 1400);
}

#[tokio::test]
async fn metrics_are_text_for_prometheus() {
    let daemon = Daemon::new(WEB);
    daemon.run(11, &[5.0; 4]);
    let page = daemon.get("/metrics").await;
    let page = page.as_str().unwrap();
    for line in [
        "# HELP causeway_packets_total Packets by the data plane's verdict",
        "# TYPE causeway_packets_total counter",
        "causeway_packets_total{verdict=\"not_vip\",action=\"pass\"} 7",
        "causeway_packet_bytes_total{verdict=\"established\",action=\"tx\"} 100000",
        "causeway_vip_packets_total{vip=\"web\"} 40",
        "causeway_real_requests_total{vip=\"web\",real=\"10.0.0.3\"} 550",
        "causeway_real_weight{vip=\"web\",real=\"10.0.0.1\",kind=\"meant\"} 1.0",
        "causeway_real_weight{vip=\"web\",real=\"10.0.0.1\",kind=\"effective\"} 1.0",
        "# TYPE causeway_real_response_latency_seconds histogram",
        "causeway_real_response_latency_seconds_sum{vip=\"web\",real=\"10.0.0.1\"} 2.75",
        "causeway_real_response_latency_seconds_bucket{le=\"0.004194304\",vip=\"web\",real=\"10.0.0.1\"} 0",
        "causeway_real_response_latency_seconds_bucket{le=\"0.006291456\",vip=\"web\",real=\"10.0.0.1\"} 550",
        "causeway_real_response_latency_seconds_bucket{le=\"+Inf\",vip=\"web\",real=\"10.0.0.1\"} 550",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line} is missing in\n{page}"
        );
    }
}

/// Python's CSV reader is not ours, and neither is the HAProxy that says its columns.
#[tokio::test]
async fn counters_are_told_as_haproxy_tells_its_own() {
    const READ: &str = "import csv, json, sys\nprint(json.dumps(list(csv.DictReader(sys.stdin))))";
    let daemon = Daemon::new(WEB);
    daemon.run(11, &[5.0; 4]);
    let drain = json!({ "drain": true });
    let path = "/v1/vips/web/reals/10.0.0.4";
    assert_eq!(daemon.call("PATCH", path, drain).await.0, StatusCode::OK);
    let text = daemon.get("/v1/haproxy").await;
    let text = text.as_str().expect("text");
    // As Telegraf and Datadog ask.
    for more in ["/;csv", "/;csv;norefresh"] {
        let same = daemon.get(&format!("/v1/haproxy{more}")).await;
        assert_eq!(same.as_str().map(str::len), Some(text.len()));
    }

    let python = |text: &str| -> Vec<serde_json::Map<String, Value>> {
        let mut python = std::process::Command::new("python3")
            .args(["-c", READ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("run python3");
        let mut input = python.stdin.take().expect("its input");
        std::io::Write::write_all(&mut input, text.as_bytes()).expect("write");
        drop(input);
        let told = python.wait_with_output().expect("its end");
        serde_json::from_slice(&told.stdout).expect("JSON")
    };
    let rows = python(text);
    let column = |name: &str| -> Vec<&str> {
        rows.iter()
            .map(|row| row[name].as_str().expect("a cell"))
            .collect()
    };
    let reals = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
    assert_eq!(column("# pxname"), ["web"; 6]);
    assert_eq!(column("svname")[1..5], reals);
    assert_eq!(
        (column("svname")[0], column("svname")[5]),
        ("FRONTEND", "BACKEND")
    );
    assert_eq!(column("type"), ["0", "2", "2", "2", "2", "1"]);
    assert_eq!(
        column("status"),
        ["OPEN", "no check", "no check", "no check", "DRAIN", "UP"]
    );
    assert_eq!(column("rtime")[1..5], ["5"; 4]);
    assert_eq!((column("req_tot")[0], column("act")[5]), ("2200", "3"));
    assert_eq!(column("bout"), [""; 6]);

    let theirs = haproxys_own();
    let (theirs, ours) = (
        theirs.lines().next().unwrap_or_default(),
        text.lines().next(),
    );
    let ours = ours.expect("a header");
    assert!(
        theirs.starts_with(ours),
        "{ours}\nis not the beginning of\n{theirs}"
    );
}

/// What a real HAProxy says to `show stat`.
fn haproxys_own() -> String {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("haproxy.sock");
    let config = dir.path().join("haproxy.cfg");
    let text = format!("global\n  stats socket {}\n", socket.display());
    fs::write(&config, text).expect("a configuration");
    let mut haproxy = std::process::Command::new("haproxy")
        .args(["-db", "-f"])
        .arg(&config)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("run haproxy, of Debian's package of that name");
    let mut told = String::new();
    for _ in 0..600 {
        if let Ok(mut stream) = UnixStream::connect(&socket) {
            stream.write_all(b"show stat\n").expect("ask");
            stream.read_to_string(&mut told).expect("an answer");
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    haproxy.kill().expect("kill haproxy");
    haproxy.wait().expect("its end");
    told
}

#[tokio::test]
async fn the_sum_of_latencies_never_falls() {
    let daemon = Daemon::new(WEB);
    let scrape = async || {
        let page = daemon.get("/metrics").await;
        let value = |name: &str| -> f64 {
            let name = format!("causeway_real_response_latency_seconds_{name}{{vip=\"web\",");
            let mut lines = page.as_str().unwrap().lines();
            let line = lines.find(|line| line.starts_with(&name)).unwrap();
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        (value("sum"), value("count"))
    };
    daemon.run(11, &[100.0; 4]);
    let slow = scrape().await;
    assert_eq!(slow, (55.0, 550.0));
    // The mean falls while the histogram is not read again.
    daemon.run(5, &[1.0; 4]);
    let fast = scrape().await;
    assert!(
        (fast.0 - 55.25).abs() < 1e-9 && fast.1 >= slow.1,
        "{fast:?}"
    );
}

/// The answer, field by field; the command line's tests make tables of it.
#[tokio::test]
async fn the_answer_of_stats_is_this() {
    let text = WEB.replace("\"latency\"", "\"latency\"\ncontrol = \"watermark\"");
    let daemon = Daemon::new(&text);
    daemon.run(12, &[5.0; 4]);
    daemon.run(22, &[100.0, 5.0, 5.0, 5.0]);
    let mut answer = daemon.get("/v1/stats").await;
    answer["at"] = serde_json::json!({ "monotonic_ns": 0, "realtime_ns": 0 });
    let answer = serde_json::to_string_pretty(&answer).unwrap() + "\n";
    let expected = include_str!("../testdata/stats.json");
    assert_eq!(answer, expected, "\n{answer}");
}

/// Where `value` is not what `schema` says, the path to it.
fn differs(value: &Value, schema: &Value, all: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = all.pointer(name.trim_start_matches('#')).unwrap();
        return differs(value, schema, all, at);
    }
    if let Some(either) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let fits = either
            .iter()
            .any(|of| differs(value, of, all, at).is_none());
        return (!fits).then(|| format!("{at} fits none of {schema}"));
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        // Anything at all.
        Value::Null => return None,
        kind => vec![kind.clone()],
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) if kinds.contains(&json!("number")) => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.contains(&json!(kind)) {
        return Some(format!("{at} is {value}, not {schema}"));
    }
    match value {
        Value::Array(list) => list.iter().enumerate().find_map(|(i, one)| {
            let own = schema["prefixItems"].get(i).unwrap_or(&schema["items"]);
            differs(one, own, all, &format!("{at}[{i}]"))
        }),
        Value::Object(map) => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let missing = required
                .iter()
                .find(|name| !map.contains_key(name.as_str().unwrap()));
            if let Some(name) = missing {
                return Some(format!("{at}.{name} is missing"));
            }
            map.iter().find_map(|(name, one)| {
                let own = schema["properties"]
                    .get(name)
                    .unwrap_or(&schema["additionalProperties"]);
                match own {
                    Value::Null => Some(format!("{at}.{name} is not described")),
                    own => differs(one, own, all, &format!("{at}.{name}")),
                }
            })
        }
        _ => None,
    }
}

#[tokio::test]
async fn answers_are_as_described() {
    let daemon = Daemon::new(WEB);
    daemon.run(60, &[5.0; 4]);
    daemon.run(30, &[90.0, 5.0, 5.0, 5.0]);
    let change = json!({ "weight": 3 });
    daemon
        .call("PATCH", "/v1/vips/web/reals/10.0.0.2", change)
        .await;
    let all: Value = daemon.get("/v1/openapi.json").await;
    let mut looked = 0;
    for (path, methods) in all["paths"].as_object().unwrap() {
        let Some(get) = methods.get("get") else {
            continue;
        };
        let described = &get["responses"]["200"]["content"]["application/json"]["schema"];
        // Stateful VIPs and fleets are in worlds of their own, and metrics are not JSON.
        if ["/v1/connections", "/v1/fleet", "/metrics"].contains(&path.as_str()) {
            continue;
        }
        let path = path.replace("{vip}", "web").replace("{real}", "10.0.0.1");
        let answer = daemon.get(&path).await;
        assert_eq!(differs(&answer, described, &all, &path), None);
        looked += 1;
    }
    assert!(looked >= 10, "{looked}");
    // It is held to something.
    let status = &all["components"]["schemas"]["Status"];
    let wrong = differs(&json!({ "pid": "7" }), status, &all, "status");
    assert!(wrong.is_some_and(|wrong| wrong.contains("is missing")));
}

/// Refusals, too, have one shape; what is described is there, and what is there is described.
#[tokio::test]
async fn every_route_is_described_here_and_in_the_reference() {
    let daemon = Daemon::new(WEB);
    let all: Value = daemon.get("/v1/openapi.json").await;
    let reference = include_str!("../../../docs/reference/api.md");
    let reference = reference.split("\n## The agent").next().unwrap();
    let in_reference: std::collections::BTreeSet<(String, String)> = reference
        .split('`')
        .filter_map(|word| word.split_once(' '))
        .filter(|(method, path)| {
            ["GET", "POST", "PATCH", "DELETE"].contains(method) && path.starts_with('/')
        })
        .map(|(method, path)| {
            (
                method.to_owned(),
                path.split('?')
                    .next()
                    .unwrap()
                    .replace("{address}", "{real}"),
            )
        })
        .collect();
    let mut described = std::collections::BTreeSet::new();
    for (path, methods) in all["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            described.insert((method.to_uppercase(), path.clone()));
            let (status, answer) = daemon
                .call(
                    &method.to_uppercase(),
                    &path.replace(['{', '}'], ""),
                    json!(null),
                )
                .await;
            let refused = answer["error"].as_str().unwrap_or_default();
            assert!(
                !refused.starts_with("there is nothing at"),
                "{method} {path}"
            );
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
    assert_eq!(described, in_reference);
}

#[tokio::test]
async fn whoever_may_look_has_the_page() {
    let daemon = Daemon::new(WEB);
    let router = reading_only(daemon.router(), Path::new("/run/lb.sock"));
    let (status, page) = request(router, "GET", "/", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.as_str().unwrap().contains("<title>Causeway</title>"));
}

/// What a file would change, against what is in force and without a change.
#[tokio::test]
async fn a_difference_is_told_and_not_made() {
    let daemon = Daemon::new(WEB);
    let (_, before) = daemon
        .call(
            "PATCH",
            "/v1/vips/web/reals/10.0.0.2",
            json!({ "weight": 3 }),
        )
        .await;
    // JSON is a form of the file.
    let reals = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
    let reals = reals.map(|address| json!({ "address": address }));
    let mut file = json!({ "interface": "eth0", "vip": [{
        "name": "web", "address": "192.0.2.1", "port": 80, "scheduler": "latency", "real": reals,
    }] });
    let same = daemon.call("POST", "/v1/diff", file.clone()).await;
    // What is set by hand goes on.
    assert_eq!(
        same,
        (StatusCode::OK, json!({ "changes": [], "refused": [] }))
    );
    file["interface"] = json!("eth1");
    file["vip"][0]["real"][3]["weight"] = json!(7);
    let (status, difference) = daemon.call("POST", "/v1/diff", file).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        difference["changes"],
        json!([
            { "change": "changed", "vip": null, "real": null, "key": "interface", "from": "eth0", "to": "eth1", "needs_restart": true, "needs_unload": true },
            { "change": "changed", "vip": "web", "real": "10.0.0.4", "key": "weight", "from": "1", "to": "7", "needs_restart": false, "needs_unload": false },
        ])
    );
    let refused = difference["refused"].as_array().unwrap();
    assert!(
        matches!(&refused[..], [one] if one.as_str().unwrap().starts_with("a change of `interface` needs the data plane taken down"))
    );
    assert_eq!(daemon.get("/v1/vips/web").await, before);
    let (status, refusal) = daemon
        .call("POST", "/v1/diff", json!({ "interfce": 1 }))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refusal["error"]
            .as_str()
            .unwrap()
            .contains("did you mean `interface`?")
    );
}
