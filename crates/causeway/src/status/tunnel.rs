// SPDX-License-Identifier: Apache-2.0
//! How a tunnel's end is.

use causeway_api::tunnel::{PathView, TunnelStatus};
use causeway_service::config::plural;
use serde_json::json;

use super::{Condition, Daemon, Trouble, refused, seconds, told};
use crate::client::Target;

/// Asks a tunnel's end how it is.
pub(crate) fn ask(target: &Target) -> anyhow::Result<Condition> {
    Ok(condition(&target.get("/v1/status")?))
}

fn condition(status: &TunnelStatus) -> Condition {
    let paths = &status.paths;
    let carrying = paths.iter().filter(|path| carries(path)).count();
    Condition {
        daemon: Daemon {
            daemon: "tunnel",
            version: status.version.clone(),
            interface: status.device.clone(),
            mode: None,
            pid: status.pid,
            uptime_s: seconds(status.started, status.at),
            config_file: status.config_file.clone(),
        },
        figures: json!({
            "paths": paths.len(),
            "paths_carrying": carrying,
            "key": (status.key != 0).then_some(status.key),
        }),
        serves: format!(
            "{carrying} of {} carry, {}",
            plural(paths.len(), "path"),
            match status.key {
                0 => "in clear".to_owned(),
                key => format!("sealed with key {key}"),
            }
        ),
        troubles: of_paths(status.totals.sessions, paths)
            .into_iter()
            .chain(of_threads(status.threads, &status.threads_cut_off))
            .chain(told("state_not_kept", &status.state_error))
            .chain(refused(
                &status.config_file,
                status.last_good,
                &status.last_reload_error,
                "causeway tunnel reload",
            ))
            .collect(),
    }
}

/// What keeps a tunnel, or some of its paths, from carrying.
pub(crate) fn troubles(status: &TunnelStatus) -> Vec<Trouble> {
    condition(status).troubles
}

fn carries(path: &PathView) -> bool {
    ["alive", "partly"].contains(&path.state.as_str())
}

fn of_paths(sessions: u64, paths: &[PathView]) -> Vec<Trouble> {
    let carried = paths.iter().any(carries);
    let nothing = (!carried).then(|| match sessions {
        0 => Trouble::new(
            "no_answer",
            "the other end has not answered yet: is it started, with these paths, keys and as many threads, and do firewalls let UDP pass?",
        ),
        _ => Trouble::new(
            "no_path",
            "no path is alive: nothing is carried until the other end answers",
        ),
    });
    // Where nothing is carried, that a path does not answer is said.
    let troubled = paths
        .iter()
        .filter(|path| path.state != "alive" && (carried || path.open_error.is_some()));
    let text = |path: &PathView| match &path.open_error {
        Some(error) => format!("path {} is {}: {error}", path.id, path.state),
        None => format!(
            "path {} from {} to {} is {}",
            path.id, path.local, path.remote, path.state
        ),
    };
    let troubled = troubled.map(|path| Trouble::new("path_down", text(path)));
    nothing.into_iter().chain(troubled).collect()
}

/// Where no thread carries, that of paths says it.
fn of_threads(threads: usize, cut_off: &[usize]) -> Option<Trouble> {
    if cut_off.is_empty() || cut_off.len() >= threads {
        return None;
    }
    let numbers: Vec<String> = cut_off.iter().map(usize::to_string).collect();
    let numbers = numbers.join(", ");
    Some(Trouble::new(
        "thread_cut_off",
        format!(
            "of {threads} threads no path is alive for {numbers}: the flows there are not carried; has the other end as many threads, and do firewalls let the ports of thread N pass, each path's plus N?"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_carry_nothing_are_named_where_others_do() {
        let told = |threads, cut_off: &[usize]| of_threads(threads, cut_off).map(|it| it.text);
        assert_eq!(told(2, &[]), None);
        assert_eq!(told(2, &[0, 1]), None);
        let text = told(4, &[1, 3]).expect("a trouble");
        assert!(
            text.starts_with("of 4 threads no path is alive for 1, 3: "),
            "{text}"
        );
        assert!(text.contains("as many threads"), "{text}");
    }

    #[test]
    fn a_tunnel_that_carries_nothing_says_so() {
        let path = |state: &str| PathView {
            state: state.to_owned(),
            ..PathView::default()
        };
        let told = |sessions, states: [&str; 2]| {
            let troubles = of_paths(sessions, &states.map(path));
            let texts: Vec<String> = troubles.into_iter().map(|trouble| trouble.text).collect();
            texts.join("|")
        };
        assert!(told(0, ["probing", "probing"]).contains("not answered yet"));
        assert!(told(1, ["dead", "down"]).contains("no path is alive"));
        assert_eq!(told(1, ["alive", "alive"]), "");
        assert_eq!(told(1, ["dead", "alive"]), "path 0 from  to  is dead");
        assert_eq!(told(1, ["partly", "alive"]), "path 0 from  to  is partly");

        let closed = PathView {
            open_error: Some("path a to b: x".to_owned()),
            ..path("down")
        };
        for (other, expected) in [
            ("alive", vec!["path 0 is down: path a to b: x"]),
            (
                "dead",
                vec![
                    "no path is alive: nothing is carried until the other end answers",
                    "path 0 is down: path a to b: x",
                ],
            ),
        ] {
            let troubles = of_paths(1, &[closed.clone(), path(other)]);
            let texts: Vec<&str> = troubles.iter().map(|t| t.text.as_str()).collect();
            assert_eq!(texts, expected);
        }
    }
}
