// SPDX-License-Identifier: Apache-2.0
//! What documents and example files say, against the program.

mod pages;
mod units;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway_dataplane::abi::{Action, CookieResult, ServerCookie, ServerVerdict, Verdict};
use serde_json::Value;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(in_repository(path)).expect("a page")
}

/// A row of a table of verdicts.
fn row(word: &str, action: Action, meaning: &str) -> String {
    let action = format!("{action:?}").to_lowercase();
    format!("| `{word}` | {action} | {meaning} |\n")
}

#[test]
fn the_reference_explains_every_verdict() {
    let balancers = Verdict::ALL.map(|v| row(v.as_str(), v.action(), v.meaning()));
    let servers = ServerVerdict::ALL.map(|v| row(v.as_str(), v.action(), v.meaning()));
    let page = read("docs/reference/metrics.md");
    for rows in [balancers.concat(), servers.concat()] {
        let table = format!("| verdict | action | |\n| --- | --- | --- |\n{rows}\n");
        assert!(
            page.contains(&table),
            "docs/reference/metrics.md should hold:\n{table}"
        );
    }
}

#[test]
fn the_reference_explains_every_result_and_event_of_cookies() {
    let results = CookieResult::ALL.map(|r| row(r.as_str(), r.action(), r.meaning()));
    let events = ServerCookie::ALL.map(|e| format!("| `{}` | {} |\n", e.as_str(), e.meaning()));
    let page = read("docs/reference/metrics.md");
    for (head, rows) in [
        ("| result | | |\n| --- | --- | --- |\n", results.concat()),
        ("| event | |\n| --- | --- |\n", events.concat()),
    ] {
        let table = format!("{head}{rows}\n");
        assert!(
            page.contains(&table),
            "docs/reference/metrics.md should hold:\n{table}"
        );
    }
}

/// Every expression of the dashboard, with a range and values in the place of Grafana's.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        Value::Object(object) => {
            if let Some(Value::String(text)) = object.get("expr") {
                let text = text.replace("$__rate_interval", "5m");
                found.push(text.replace("$instance", ".*").replace("$vip", ".*"));
            }
            object.values().for_each(|value| expressions(value, found));
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value =
        serde_json::from_str(&read("packaging/grafana/causeway.json")).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard["panels"], &mut found);
    assert!(found.len() > 20, "{}", found.len());
    let page = read("docs/reference/metrics.md");
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let queries = variables.iter().filter_map(|of| of["definition"].as_str());
    for text in found.iter().map(String::as_str).chain(queries) {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c: char| !is_of_name(c));
        let mut metrics = words
            .filter(|word| word.starts_with("causeway_"))
            .peekable();
        assert!(metrics.peek().is_some(), "{text} asks for no metric");
        for metric in metrics {
            let name = metric.strip_suffix("_bucket").unwrap_or(metric);
            // Tables of agents and tunnels leave out what all names begin with.
            let short = name
                .strip_prefix("causeway_clients_")
                .or_else(|| name.strip_prefix("causeway_tunnel_"))
                .unwrap_or(name);
            assert!(page.contains(&format!("`{short}")), "{name} in {text}");
        }
    }
    // Prometheus' own reader takes them.
    let mut rules = String::from("groups:\n- name: dashboard\n  rules:\n");
    for (at, text) in found.iter().enumerate() {
        rules += &format!("  - {{ record: \"panel:number:{at}\", expr: {text:?} }}\n");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), rules).expect("write");
    let promtool = Command::new("promtool")
        .args(["check", "rules"])
        .arg(file.path())
        .output();
    let promtool = promtool.expect("run promtool, of Debian's package prometheus");
    let said = String::from_utf8_lossy(&promtool.stderr);
    assert!(promtool.status.success(), "{said}");
}

#[test]
fn the_example_files_pass_the_check() {
    for (file, expected) in [
        ("packaging/etc/causeway.toml", "4 VIPs with 6 reals on eth0"),
        (
            "packaging/etc/agent.toml",
            "1 tunnel address and 1 VIP on eth0",
        ),
        (
            "packaging/etc/causeway-tunnel.toml",
            "cw0 with 2 paths and 1 thread, sealed",
        ),
    ] {
        // The tunnel's names a file of keys, which each operator makes.
        let dir = tempfile::tempdir().expect("a directory");
        let keys = dir.path().join("tunnel.keys");
        let key = format!("send = 1\n[keys]\n1 = \"{}\"\n", "a5".repeat(32));
        fs::write(&keys, key).expect("write keys");
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).expect("set a mode");
        let text = read(file).replace("/etc/causeway/tunnel.keys", &keys.display().to_string());
        let copy = dir.path().join("example.toml");
        fs::write(&copy, text).expect("write a copy");
        let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["config", "check"])
            .arg(&copy)
            .output()
            .expect("run causeway");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let said = String::from_utf8_lossy(&output.stdout);
        let mut lines = said.lines();
        let ok = format!("ok: {expected}");
        assert!(
            lines.next().is_some_and(|line| line.ends_with(&ok)),
            "{said}"
        );
        let memory = lines.any(|line| line.contains(" MiB of the kernel's memory: flow table "));
        assert_eq!(memory, file == "packaging/etc/causeway.toml", "{said}");

        let for_programs = || {
            let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
                .args(["config", "check", "-o", "json"])
                .arg(&copy)
                .output();
            let answer = output.expect("run causeway").stdout;
            serde_json::from_slice::<Value>(&answer).expect("JSON")
        };
        let told = for_programs();
        assert_eq!(told["ok"], true, "{told}");
        assert_eq!(told["memory_bytes"].is_u64(), memory, "{told}");
        assert_eq!(told["reals"].as_u64(), memory.then_some(6), "{told}");
        let faulty = fs::read_to_string(&copy).expect("the copy") + "xyz = 1\n";
        fs::write(&copy, &faulty).expect("write a fault");
        let told = for_programs();
        assert_eq!(told["ok"], false, "{told}");
        assert_eq!(told["faults"][0]["line"], faulty.lines().count(), "{told}");
    }
}

/// What the units name is what the page on installing installs, and starts.
#[test]
fn the_units_start_what_is_installed() {
    let page = read("docs/how-to/install.md");
    for (unit, part, configuration) in [
        ("causeway-lb", "lb", "causeway.toml"),
        ("causeway-agent", "agent", "agent.toml"),
        ("causeway-tunnel", "tunnel", "causeway-tunnel.toml"),
    ] {
        assert!(page.contains(&format!("/{unit}.service)")), "{unit}");
        // systemd looks for it in /usr/local/bin, where a build from source is put, and /usr/bin.
        let program = "causeway";
        assert!(page.contains("/usr/local/bin/"));
        let file = format!("/etc/causeway/{configuration}");
        assert!(page.contains(&file), "{file}");
        let only = |key| units::values(unit, key);
        assert_eq!(only("ExecStart"), [format!("{program} {part} -c {file}")]);
        // They have a copy of the last good file to start with.
        assert!(only("ExecStartPre").is_empty());
        assert_eq!(only("StateDirectory"), ["causeway"]);
        assert_eq!(only("ConditionPathExists"), [file]);
        assert_eq!(only("Type"), ["notify"]);
        assert_eq!(only("Documentation"), [format!("man:causeway-{part}(1)")]);

        // systemd's own opinion, of a copy that names a binary that is there.
        let dir = tempfile::tempdir().expect("a directory");
        let text =
            std::fs::read_to_string(in_repository(&format!("packaging/systemd/{unit}.service")));
        let copy = dir.path().join(format!("{unit}.service"));
        let text = text.expect("a unit").replace(
            &format!("={program} "),
            concat!("=", env!("CARGO_BIN_EXE_causeway"), " "),
        );
        std::fs::write(&copy, text).expect("write");
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&copy)
            .output()
            .expect("systemd-analyze, of the package systemd");
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(
            verified.status.success() && said.is_empty(),
            "{unit}: {said}"
        );
    }
}

/// And none of the profiles that forbid pins, by AppArmor, which no test here has.
#[test]
fn the_container_has_the_rights_of_the_unit() {
    let page = read("docs/how-to/install.md");
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split([',', ' ']);
        words.map(|word| word.replace("CAP_", "")).collect()
    };
    let (_, run) = page.split_once("podman run ").expect("a command");
    let (run, _) = run.split_once("```").expect("its end");
    let added = run
        .split_whitespace()
        .skip_while(|word| *word != "--cap-add");
    let added = words(added.take(2).last().expect("capabilities"));
    let [of_unit] = &units::values("causeway-lb", "CapabilityBoundingSet")[..] else {
        panic!("one set");
    };
    assert_eq!(added, words(of_unit));
    assert!(run.contains("--security-opt apparmor=unconfined"));
}

#[test]
fn every_link_leads_somewhere_and_every_named_file_exists() {
    let root = in_repository("");
    let mut faults = Vec::new();
    for page in pages::all(&root) {
        let name = page.path.strip_prefix(&root).expect("within").display();
        faults.extend(
            page.dead_links()
                .iter()
                .map(|l| format!("{name}: link {l}")),
        );
        let missing = page.missing_files(&root);
        faults.extend(missing.iter().map(|f| format!("{name}: file {f}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every key of an example file is in the reference.
#[test]
fn the_reference_has_every_configuration_key() {
    for (file, page) in [
        ("packaging/etc/causeway.toml", "docs/reference/balancer.md"),
        ("packaging/etc/agent.toml", "docs/reference/agent.md"),
        (
            "packaging/etc/causeway-tunnel.toml",
            "docs/reference/tunnel.md",
        ),
    ] {
        let reference = read(page);
        let example = read(file);
        for line in example.lines() {
            let Some((key, _)) = line.trim_start_matches(['#', ':', ' ']).split_once(" = ") else {
                continue;
            };
            let is_key = key
                .chars()
                .all(|c| c.is_ascii_lowercase() || c == '_' || c.is_numeric());
            let named = [format!("`{key}`"), format!(".{key}`")];
            let named = named.iter().any(|name| reference.contains(name));
            assert!(!is_key || named, "{page} does not have `{key}` of {file}");
        }
    }
}

/// What the program prints with these arguments.
fn printed(args: &[&str]) -> String {
    let mut causeway = Command::new(env!("CARGO_BIN_EXE_causeway"));
    let output = causeway.args(args).output().expect("run causeway");
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The names of all keys of a schema.
fn keys_of(schema: &Value, keys: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        keys.extend(properties.keys().cloned());
    }
    match schema {
        Value::Object(members) => members.values().for_each(|m| keys_of(m, keys)),
        Value::Array(elements) => elements.iter().for_each(|e| keys_of(e, keys)),
        _ => {}
    }
}

/// Whether a value fits a schema: of its words those that ours have.
fn fits(value: &Value, schema: &Value, whole: &Value) -> bool {
    let fits = |value: &Value, schema: &Value| fits(value, schema, whole);
    let all = |member: &str, each: &dyn Fn(&Value) -> bool| match &schema[member] {
        Value::Array(elements) => elements.iter().all(each),
        _ => true,
    };
    let any = |member: &str, each: &dyn Fn(&Value) -> bool| match &schema[member] {
        Value::Array(elements) => elements.iter().any(each),
        _ => true,
    };
    let is_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("the type {other}"),
        None => true,
    };
    let refers = schema["$ref"].as_str().and_then(|to| to.strip_prefix('#'));
    let is_known = |key: &str, value: &Value| match (
        &schema["properties"][key],
        &schema["additionalProperties"],
    ) {
        (Value::Null, Value::Null) => true,
        (Value::Null, Value::Bool(known)) => *known,
        (Value::Null, others) => fits(value, others),
        (known, _) => fits(value, known),
    };
    is_type
        && refers.is_none_or(|to| fits(value, whole.pointer(to).expect("a definition")))
        && any("anyOf", &|one| fits(value, one))
        && any("oneOf", &|one| fits(value, one))
        && any("enum", &|word| word == value)
        && schema.get("const").is_none_or(|word| word == value)
        && all("required", &|key| {
            value.get(key.as_str().expect("a key")).is_some()
        })
        && value
            .as_object()
            .is_none_or(|keys| keys.iter().all(|(key, value)| is_known(key, value)))
        && value.as_array().is_none_or(|them| {
            schema["items"].is_null() || them.iter().all(|one| fits(one, &schema["items"]))
        })
}

#[test]
fn the_schemas_take_what_the_daemons_take() {
    let schema = |daemon: &str| -> Value {
        serde_json::from_str(&read(&format!("docs/reference/schema/{daemon}.json"))).expect("JSON")
    };
    let document = |text: &str| -> Value { toml::from_str(text).expect("TOML") };
    for (daemon, file) in [
        ("balancer", "causeway"),
        ("agent", "agent"),
        ("tunnel", "causeway-tunnel"),
    ] {
        let (schema, example) = (schema(daemon), read(&format!("packaging/etc/{file}.toml")));
        assert!(fits(&document(&example), &schema, &schema), "{file}");
    }
    let schema = schema("balancer");
    for (text, taken) in [
        (
            "hash_key = { file = \"/x\" }\n[pool.a]\nscheduler = \"hash\"\n[[vip]]\nport = [80, 443]\npool = \"a\"",
            true,
        ),
        (
            "http = false\n[flow_table]\nipv4 = \"1Mi\"\nipv6 = 1024",
            true,
        ),
        ("interface = 5", false),
        ("http = 5", false),
        ("[xdp]\nmod = \"auto\"", false),
        ("[[vip]]\nscheduler = \"hsh\"", false),
        ("[[vip]]\nprotocol = \"sctp\"", false),
        ("[[vip]]\nport = [80, \"x\"]", false),
        ("[pool.a]\nwieght = 1", false),
        ("hash_key = { path = \"/x\" }", false),
    ] {
        assert_eq!(fits(&document(text), &schema, &schema), taken, "{text}");
    }
}

/// The committed schemas are those of the code, and the reference has each of their keys.
#[test]
fn the_schemas_are_those_of_the_code_and_their_keys_are_in_the_reference() {
    for daemon in ["balancer", "agent", "tunnel"] {
        let of_code = printed(&["config", "schema", daemon]);
        assert!(
            of_code == read(&format!("docs/reference/schema/{daemon}.json")),
            "docs/reference/schema/{daemon}.json is another: `make gen`"
        );
        let mut keys = BTreeSet::new();
        keys_of(&serde_json::from_str(&of_code).expect("JSON"), &mut keys);
        assert!(keys.len() > 20, "{keys:?}");
        keys.remove("$schema");
        let reference = read(&format!("docs/reference/{daemon}.md"));
        let words: BTreeSet<&str> = reference
            .split('`')
            .skip(1)
            .step_by(2)
            .flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
            .collect();
        let missing: Vec<&String> = keys.iter().filter(|k| !words.contains(&***k)).collect();
        assert!(
            missing.is_empty(),
            "docs/reference/{daemon}.md lacks {missing:?}"
        );
    }
}

#[test]
fn the_descriptions_of_the_apis_are_those_of_the_code() {
    for daemon in ["balancer", "agent", "tunnel"] {
        let of_code = printed(&["generate", "openapi", daemon]);
        let committed = read(&format!("docs/reference/openapi/{daemon}.json"));
        assert!(
            of_code == committed,
            "docs/reference/openapi/{daemon}.json is another: `make gen`"
        );
    }
}

/// Every option of a command in a code block is in that command's help.
#[test]
fn the_options_of_commands_exist() {
    for page in pages::all(&in_repository("")) {
        for call in page.calls() {
            let commands: Vec<&str> = call
                .iter()
                .copied()
                .take_while(|w| !w.starts_with('-'))
                .collect();
            let help = (0..=commands.len().min(3)).rev().find_map(|n| {
                let mut causeway = Command::new(env!("CARGO_BIN_EXE_causeway"));
                let output = causeway.args(&commands[..n]).arg("--help").output();
                let output = output.expect("run causeway");
                output
                    .status
                    .success()
                    .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
            });
            let help = help.expect("causeway has help");
            for word in &call {
                let option = word.split('=').next().unwrap_or_default();
                assert!(
                    !option.starts_with("--") || help.contains(option),
                    "{}: {call:?} has {option}",
                    page.path.display()
                );
            }
        }
    }
}

/// A list of docs/design/walks.md: file and function of each step.
type Steps = Vec<(String, String)>;

/// The lists, each with the steps of the first one that it stands for.
fn walks() -> Vec<(Option<std::ops::Range<usize>>, Steps)> {
    let page = read("docs/design/walks.md").replace("\nare these:", " are these:");
    let mut lists: Vec<(Option<std::ops::Range<usize>>, Steps)> = Vec::new();
    let mut replaced = None;
    for line in page.lines() {
        if let Some(before) = line.strip_suffix(" are these:") {
            let (_, steps) = before.rsplit_once("steps ").expect("which steps");
            let (from, to) = steps.split_once(" to ").expect("from and to");
            let number = |text: &str| text.parse::<usize>().expect("a number");
            replaced = Some(number(from) - 1..number(to));
        }
        let Some((number, step)) = line.split_once(". `") else {
            continue;
        };
        let (file, rest) = step.split_once("`: `").expect("file and function");
        let (function, _) = rest.split_once('`').expect("a function");
        match number.parse::<u32>().expect("a number") {
            1 => lists.push((replaced.take(), Vec::new())),
            number => assert_eq!(
                lists.last().map(|(_, steps)| steps.len()),
                Some(number as usize - 1),
                "{line}"
            ),
        }
        let step = (file.to_owned(), function.to_owned());
        lists.last_mut().expect("begun").1.push(step);
    }
    lists
}

/// Whether a line of a source declares the function rather than calls it.
fn declares(file: &str, line: &str, function: &str) -> bool {
    match file.ends_with(".rs") {
        true => line.contains(&format!("fn {function}(")),
        // Declared at the margin, called behind a tab.
        false => !line.starts_with(['\t', '#', ' ']) && line.contains(&format!("{function}(")),
    }
}

#[test]
fn walks_through_the_source_are_as_it_is() {
    let lists = walks();
    for (_, steps) in &lists {
        for (file, function) in steps {
            let source = read(file);
            assert!(
                source.lines().any(|line| declares(file, line, function)),
                "{file} has no function {function}: mend docs/design/walks.md"
            );
            // Called, or handed over as a value; the entry is the kernel's to call.
            let mut lines = lists
                .iter()
                .flat_map(|(_, steps)| steps)
                .flat_map(|(file, _)| {
                    let lines = read(file);
                    let calls = lines.lines().filter(|line| !declares(file, line, function));
                    calls.map(str::to_owned).collect::<Vec<_>>()
                });
            let named = [format!("{function}("), format!("{function})")];
            assert!(
                function == "causeway_lb"
                    || lines.any(|line| named.iter().any(|name| line.contains(name))),
                "no step calls {function} of {file}: mend docs/design/walks.md"
            );
        }
    }
    let files = |steps: &[(String, String)], end: &str| {
        let all = steps.iter().map(|(file, _)| file.clone());
        let named = all.filter(|file| file.ends_with(end));
        named.collect::<std::collections::BTreeSet<_>>().len()
    };
    let [(None, known), variants @ .., (None, weight)] = lists.as_slice() else {
        panic!("a walk to a verdict, variants of it, and one to a weight");
    };
    // The page says how many there are, in the order of its lists.
    let page = read("docs/design/walks.md");
    let mut rows = page.lines().skip_while(|line| !line.starts_with("| --- "));
    rows.next();
    let mut says = |way: &[(String, String)]| {
        let counts = format!("| {} | {} | ", way.len(), files(way, ".h"));
        let row = rows.next().unwrap_or_default();
        assert!(row.contains(&counts), "{counts:?} of {way:?}, not {row:?}");
    };
    says(known);
    assert!(known.len() <= 25 && files(known, ".h") <= 8, "{known:?}");
    assert!(!variants.is_empty());
    for (replaced, steps) in variants {
        let replaced = replaced.clone().expect("which steps it stands for");
        let mut way = known.clone();
        way.splice(replaced, steps.iter().cloned());
        says(&way);
    }
    let counted = format!("\nthese are {}:\n", files(weight, ""));
    assert!(page.contains(&counted), "{counted:?} of {weight:?}");
}
