// SPDX-License-Identifier: Apache-2.0
//! What a file may say of clients by their prefixes.

use super::*;

fn vip(lines: &str) -> Result<VipConfig, String> {
    let text = format!(
        "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
         real = [{{ address = \"10.0.0.1\" }}, {{ address = \"10.0.0.2\" }}]\n{lines}\n"
    );
    let config = BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|e| e.to_string())?;
    Ok((*config.vips[0]).clone())
}

#[test]
fn clients_have_reals_of_their_own() {
    let own = vip(
        "source = [{ from = [\"10.1.0.0/16\", \"10.2.0.0/16\"], reals = [\"10.0.0.2\"], exclusive = true, fallback = \"drop\" }]",
    )
    .unwrap();
    let source = &own.sources[0];
    assert_eq!(source.from.len(), 2);
    assert_eq!(source.from[0], ("10.1.0.0".parse().unwrap(), 16));
    assert_eq!(source.reals, [own.reals[1].address]);
    assert_eq!(source.fallback, Fallback::Drop);
    assert!(own.is_reserved(&own.reals[1]) && !own.is_reserved(&own.reals[0]));
    // A change of something else leaves it as it is, and a change of it is one.
    let change = serde_json::json!({ "scheduler": "hash" });
    let changed = changed_vip(&own, &change).unwrap();
    assert_eq!((&changed.sources, changed.limit), (&own.sources, own.limit));
    let change = serde_json::json!({ "source": [], "limit": { "rate": 5 } });
    let changed = changed_vip(&own, &change).unwrap();
    assert!(changed.sources.is_empty());
    assert_eq!(changed.limit.map(|limit| limit.rate), Some(5.0));
    let change = serde_json::json!({ "limit": { "rate": 0 } });
    assert_eq!(changed_vip(&changed, &change).unwrap().limit, None);
}

#[test]
fn a_limit_has_sensible_defaults() {
    let limit = |text: &str| vip(&format!("limit = {{ {text} }}")).map(|vip| vip.limit);
    let of = |rate, burst, prefix4, prefix6| {
        Some(FlowLimitConfig {
            rate,
            burst,
            prefix4,
            prefix6,
        })
    };
    assert_eq!(limit("rate = 100.0").unwrap(), of(100.0, 100, 32, 64));
    assert_eq!(limit("rate = 0.5").unwrap(), of(0.5, 10, 32, 64));
    assert_eq!(
        limit("rate = 20.0, burst = 5, prefix4 = 24, prefix6 = 56").unwrap(),
        of(20.0, 5, 24, 56)
    );
    assert_eq!(limit("rate = 0.0").unwrap(), None);
}

#[test]
fn faults_say_how_to_mend_them() {
    let source = |text: &str| format!("source = [{{ {text} }}]");
    for (lines, expected) in [
        (source("reals = [\"10.0.0.2\"]"), "the source has no `from`"),
        (
            source("from = [\"10.1.0.0/16\"]"),
            "the source has no `reals`",
        ),
        (
            source("from = [\"10.1.0.1/16\"], reals = [\"10.0.0.2\"]"),
            "bits behind its length",
        ),
        (
            source("from = [\"fd00::/8\"], reals = [\"10.0.0.2\"]"),
            "another family than 192.0.2.1",
        ),
        (
            source("from = [\"10.1.0.0/16\"], reals = [\"10.0.0.9\"]"),
            "`10.0.0.9` is not a real of this vip",
        ),
        (
            source("from = [\"10.1.0.0/16\", \"10.1.0.0/16\"], reals = [\"10.0.0.2\"]"),
            "10.1.0.0/16 is given twice",
        ),
        (
            source(
                "from = [\"10.1.0.0/16\"], reals = [\"10.0.0.1\", \"10.0.0.2\"], exclusive = true",
            ),
            "leave one to them",
        ),
        (
            source("from = [\"10.1.0.0/16\"], reals = [\"10.0.0.2\"], fallback = \"dorp\""),
            "did you mean `drop`?",
        ),
        (
            "scheduler = \"least-loaded\"\n".to_owned()
                + &source("from = [\"10.1.0.0/16\"], reals = [\"10.0.0.2\"]"),
            "plans for all clients alike",
        ),
        (
            "limit = { burst = 3 }".to_owned(),
            "the limit has no `rate`",
        ),
        (
            "limit = { rate = 20000.0 }".to_owned(),
            "rate must lie between 0",
        ),
        (
            "limit = { rate = 1.0, prefix4 = 33 }".to_owned(),
            "prefix4 must lie between 1 and 32",
        ),
        (
            "limit = { rate = 0.001, burst = 5 }".to_owned(),
            "lower burst, or raise rate",
        ),
    ] {
        let error = vip(&lines).unwrap_err();
        assert!(error.contains(expected), "{lines}: {error}");
    }
}
