// SPDX-License-Identifier: Apache-2.0
//! BIRD on the router and on every balancer: BGP with BFD, and routes over several
//! balancers at once.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::background::KilledOnDrop;
use crate::clock::until;
use crate::netns::Netns;
use crate::topology::{DEVICE, Node};

/// Debian's package bird2.
const BIRD: &str = "/usr/sbin/bird";
const BIRDC: &str = "/usr/sbin/birdc";
const ROUTER_AS: u32 = 64_512;
const BALANCERS_AS: u32 = 64_513;
/// Two seconds without an answer are an end: on two busy cores less would be noise.
const BFD: &str = "interval 100 ms; multiplier 20;";

/// A running BIRD. Dropped, it is killed.
pub(super) struct Bird {
    netns: Netns,
    directory: TempDir,
    process: Option<KilledOnDrop>,
}

impl Bird {
    /// On the router, for these balancers.
    pub(super) fn on_router(router: &Node, balancers: &[Node]) -> Result<Self> {
        let mut text = head(router, "br0");
        text.push_str(
            "protocol kernel { merge paths on; ipv4 { import none; export where source = RTS_BGP; }; }\n\
             protocol kernel { merge paths on; ipv6 { import none; export where source = RTS_BGP; }; }\n",
        );
        for (index, balancer) in balancers.iter().enumerate() {
            let sessions = [
                ("ipv4", balancer.ipv4.to_string()),
                ("ipv6", balancer.ipv6.to_string()),
            ];
            for (family, address) in sessions {
                writeln!(
                    text,
                    "protocol bgp lb{index}_{family} {{ local as {ROUTER_AS}; \
                     neighbor {address} as {BALANCERS_AS}; passive on; bfd on; \
                     error wait time 1, 2; \
                     {family} {{ import all; export none; }}; }}"
                )?;
            }
        }
        Self::start(&router.netns, text)
    }

    /// On a balancer, for what its daemon announces.
    pub(super) fn on_balancer(balancer: &Node, router: &Node) -> Result<Self> {
        let mut text = head(balancer, DEVICE);
        text.push_str("include \"DIRECTORY/causeway.conf\";\n");
        let sessions = [
            ("ipv4", router.ipv4.to_string(), "causeway4"),
            ("ipv6", router.ipv6.to_string(), "causeway6"),
        ];
        for (family, address, from) in sessions {
            writeln!(
                text,
                "protocol bgp router_{family} {{ local as {BALANCERS_AS}; \
                 neighbor {address} as {ROUTER_AS}; bfd on; \
                 connect delay time 1; connect retry time 1; error wait time 1, 2; \
                 {family} {{ import none; export where proto = \"{from}\"; next hop self; }}; }}"
            )?;
        }
        Self::start(&balancer.netns, text)
    }

    /// `text` may name the DIRECTORY of its files.
    fn start(netns: &Netns, text: String) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("bird-").tempdir()?;
        let text = text.replace("DIRECTORY", &directory.path().display().to_string());
        fs::write(directory.path().join("bird.conf"), text)?;
        fs::write(directory.path().join("causeway.conf"), "")?;
        let mut bird = Self {
            netns: netns.clone(),
            directory,
            process: None,
        };
        bird.restart()?;
        Ok(bird)
    }

    /// Starts it again, with nothing to announce.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.withdraw_all()?;
        let process = self
            .netns
            .command(BIRD)
            .args(["-f", "-c"])
            .arg(self.file("bird.conf"))
            .arg("-s")
            .arg(self.file("bird.ctl"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {BIRD} (Debian package bird2)"))?;
        self.process = Some(KilledOnDrop(process));
        let asked = || Ok(self.ask(&["show", "status"]).ok());
        let answer = until(Duration::from_secs(60), asked)?;
        answer.context("BIRD does not answer").map(drop)
    }

    /// SIGKILL: its sessions end by silence.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// As an operator does it who takes a balancer out of service.
    pub(super) fn withdraw(&self) -> Result<()> {
        self.withdraw_all()?;
        self.ask(&["configure"]).map(drop)
    }

    fn withdraw_all(&self) -> Result<()> {
        Ok(fs::write(self.file("causeway.conf"), "")?)
    }

    /// `[announce]` of the balancer's file.
    pub(super) fn announce(&self) -> String {
        format!(
            "[announce]\nbird = \"{}\"\ndelay = \"0s\"\n\
             configure = [\"{BIRDC}\", \"-s\", \"{}\", \"configure\"]",
            self.file("causeway.conf").display(),
            self.file("bird.ctl").display()
        )
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let output = std::process::Command::new(BIRDC)
            .arg("-s")
            .arg(self.file("bird.ctl"))
            .args(words)
            .output()
            .with_context(|| format!("cannot run {BIRDC}"))?;
        ensure!(
            output.status.success(),
            "birdc {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn head(node: &Node, interface: &str) -> String {
    format!(
        "router id {};\nprotocol device {{}}\n\
         protocol bfd {{ interface \"{interface}\" {{ {BFD} }}; }}\n",
        node.ipv4
    )
}
