// SPDX-License-Identifier: Apache-2.0
//! Answers about many reals.

use serde_json::{Value, json};

use super::api_tests::Daemon;
use super::visits::tests::many;

/// 400 reals, of which an answer has 25 in a part.
#[tokio::test]
async fn an_answer_in_parts_is_whole() {
    let text = many().replacen("10.0.9.4\" }", "10.0.9.4\", drain = true }", 1);
    let daemon = Daemon::new(&text);
    let whole = daemon.get("/v1/vips").await;
    daemon.shared.engine().turns.set_few(25);
    assert_eq!(daemon.get("/v1/vips").await, whole);
    let stats = daemon.get("/v1/stats").await;
    assert_eq!(stats["vips"], whole);
    assert_eq!(stats["flow_table"]["flows"], 7);
    assert_eq!(whole.as_array().unwrap().len(), 40);
    let brief = daemon.get("/v1/stats?brief=true").await;
    let listed = brief["vips"].as_array().unwrap().iter();
    let listed: Vec<&Value> = listed
        .flat_map(|vip| vip["reals"].as_array().unwrap())
        .collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["address"], "10.0.9.4");
    assert_eq!(brief["vips"][8]["reals_active"], 9);
    // The page asks for a part: here two of ten reals each.
    let part = daemon.get("/v1/stats?from=7").await;
    assert_eq!(part["vips"], Value::from(&whole.as_array().unwrap()[7..9]));
    let expected = json!({ "from": 7, "total": 40, "not_ready": [] });
    assert_eq!(part["part"], expected);
    let beyond = daemon.get("/v1/stats?from=40").await;
    assert_eq!(beyond["vips"], json!([]));
    let one = daemon.get("/v1/vips/v9").await;
    assert_eq!(one, whole[8]);
}

/// With more reals than a scrape is for, the page leaves them out, says so, and has those of one VIP.
#[tokio::test]
async fn metrics_of_too_many_reals_are_left_out() {
    let daemon = Daemon::new(&many());
    daemon.shared.engine().reals = 1_000_000;
    let page = daemon.get("/metrics").await;
    let page = page.as_str().unwrap();
    assert!(
        page.contains("causeway_metrics_reals_left_out 1000000"),
        "{page}"
    );
    assert!(page.contains("causeway_vip_ready{vip=\"v9\"} 1"), "{page}");
    assert!(!page.contains("real=\""), "{page}");
    let page = daemon.get("/metrics?vip=v9").await;
    let page = page.as_str().unwrap();
    let of_nine = page.matches("real=\"10.0.9.10\"").count();
    assert!(of_nine > 10 && !page.contains("v8"), "{page}");
    let page = daemon.get("/metrics?vip=192.0.2.9:80").await;
    assert!(
        page.as_str().unwrap().contains("causeway_vip_ready"),
        "{page}"
    );
}
