// SPDX-License-Identifier: Apache-2.0
//! Validation of `[announce]`.

use std::path::PathBuf;
use std::time::Duration;

use causeway_service::config::{Faults, Words, directory, text, time_within};

use super::raw::RawAnnounce;
use super::words::OnStop;

/// Longer than a start takes, shorter than an operator waits for.
const DELAY: Duration = Duration::from_secs(3);

/// How VIPs that are ready are announced to routers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// File that BIRD includes.
    pub bird: PathBuf,
    /// Command that has BIRD read it again; empty: none.
    pub configure: Vec<String>,
    /// How long a VIP has been ready before it is announced.
    pub delay: Duration,
    /// What becomes of the routes when the process stops.
    pub on_stop: OnStop,
}

pub(super) fn announce(raw: &RawAnnounce, faults: &mut Faults<'_>) -> Option<Announce> {
    let Some(bird) = &raw.bird else {
        if raw.delay.is_some() || raw.on_stop.is_some() || raw.configure.is_some() {
            faults.file("[announce] needs `bird`, the file that BIRD includes; add for example bird = \"/run/causeway/bird.conf\"");
        }
        return None;
    };
    let delay = time_within(raw.delay.as_ref(), "delay", ["0s", "1h"], faults);
    let default = || ["birdc", "configure"].map(str::to_owned).to_vec();
    Some(Announce {
        bird: directory(Some(bird), "", faults),
        configure: raw.configure.clone().unwrap_or_else(default),
        delay: delay.unwrap_or(DELAY),
        on_stop: text(raw.on_stop.as_ref(), faults, OnStop::from_word).unwrap_or(OnStop::Keep),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::BalancerConfig;
    use super::*;

    fn parse(announce: &str) -> Result<Option<Announce>, String> {
        let text = format!(
            "interface = \"eth0\"\n[announce]\n{announce}\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nreal = [{{ address = \"10.0.0.1\" }}]\n"
        );
        let config = BalancerConfig::parse(Path::new("lb.toml"), &text);
        config
            .map(|config| config.announce)
            .map_err(|errors| errors.faults[0].message.clone())
    }

    #[test]
    fn announcements_have_defaults_and_bounds() {
        assert_eq!(parse("").unwrap(), None);
        let announce = parse("bird = \"/run/bird.conf\"").unwrap().unwrap();
        assert_eq!(announce.configure, ["birdc", "configure"]);
        assert_eq!(announce.delay, DELAY);
        // A restart takes nothing down that forwards on.
        assert_eq!(announce.on_stop, OnStop::Keep);
        for (announce, expected) in [
            ("delay = \"1s\"", "[announce] needs `bird`"),
            (
                "bird = \"bird.conf\"",
                "`bird.conf` is not an absolute path",
            ),
            (
                "bird = \"/b\"\ndelay = \"2h\"",
                "delay must lie between 0s and 1h",
            ),
            ("bird = \"/b\"\non_stop = \"stay\"", "unknown stop `stay`"),
        ] {
            let said = parse(announce).unwrap_err();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
