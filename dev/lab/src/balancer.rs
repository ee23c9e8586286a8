// SPDX-License-Identifier: Apache-2.0
//! `causeway lb` itself, the product under test, as a process in the balancer's
//! namespace.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use causeway_dataplane::Protocol;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::netns::Netns;
use crate::topology::{BACK_MTU, DEVICE, Node, format_mac};
use crate::{api, clock};

/// A VIP of the configuration file.
#[derive(Debug, Clone)]
pub struct VipEntry {
    /// Address of the service.
    pub address: IpAddr,
    /// Port of the service.
    pub port: u16,
    /// Transport protocol of the service.
    pub protocol: Protocol,
    /// The configuration's word.
    pub scheduler: String,
    /// Further keys of the VIP, such as `flow_table = false`.
    pub keys: Vec<String>,
    /// `ipip` or `l2`.
    pub forwarding: ServerForwarding,
    /// Its servers.
    pub reals: Vec<RealEntry>,
}

/// How packets reach the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerForwarding {
    /// In an outer IP header.
    Ipip,
    /// In UDP behind an outer IP header.
    Gue,
    /// By the destination MAC address.
    L2,
}

/// A server of a VIP.
#[derive(Debug, Clone)]
pub struct RealEntry {
    /// Address, also in `l2` mode.
    pub address: IpAddr,
    /// MAC address, used in `l2` mode only.
    pub mac: [u8; 6],
    /// Configured weight.
    pub weight: u32,
    /// Takes no new connections.
    pub drain: bool,
    /// Further keys, such as `id = 3`.
    pub keys: Vec<String>,
}

impl RealEntry {
    /// A server by its address in the family of `vip`.
    pub fn of(node: &Node, vip: IpAddr) -> Self {
        let address = match vip {
            IpAddr::V4(_) => node.ipv4.into(),
            IpAddr::V6(_) => node.ipv6.into(),
        };
        Self {
            address,
            mac: node.mac,
            weight: 100,
            drain: false,
            keys: Vec::new(),
        }
    }
}

/// What goes into the configuration file beside paths.
#[derive(Debug, Clone, Default)]
pub struct BalancerSettings {
    pub vips: Vec<VipEntry>,
    /// Lines for `[control]`, such as `floor = 0.02`.
    pub control: Vec<String>,
    /// What the balancer takes for the largest packet on its link; by default
    /// what the topology has.
    pub mtu: Option<u32>,
    /// Whether it measures; by default as the product does.
    pub measure: Option<bool>,
    /// Further lines of the file's head, such as `hash_key = "..."`.
    pub head: Vec<String>,
    /// IPv4 flows that its table is made for; by default a few.
    pub flows: Option<u32>,
    /// Further lines for `[encap]`.
    pub encap: Vec<String>,
}

/// A `causeway lb` with files, pins and sockets of its own. Dropped, it is
/// killed; the pins go with the sandbox or by [`Balancer::detach`].
#[derive(Debug)]
pub struct Balancer {
    binary: PathBuf,
    netns: Netns,
    node: Node,
    directory: TempDir,
    pin_dir: PathBuf,
    child: Option<Child>,
}

const START_TIMEOUT: Duration = Duration::from_secs(20);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

impl Balancer {
    /// Starts `causeway lb` on the balancer's node and waits until it answers.
    pub fn start(binary: &Path, node: &Node, settings: &BalancerSettings) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("lb-").tempdir()?;
        let unique = directory
            .path()
            .file_name()
            .context("a directory without a name")?;
        let mut balancer = Self {
            binary: binary.to_owned(),
            netns: node.netns.clone(),
            node: node.clone(),
            pin_dir: Path::new("/sys/fs/bpf").join(unique),
            directory,
            child: None,
        };
        balancer.write_config(settings)?;
        balancer.restart()?;
        Ok(balancer)
    }

    /// Replaces the configuration file; the process does not know yet.
    pub fn write_config(&self, settings: &BalancerSettings) -> Result<()> {
        let text = self.config(settings)?;
        fs::write(self.config_file(), text).context("cannot write the configuration")
    }

    /// Starts the process again; it must not run.
    pub fn restart(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "causeway lb runs already");
        let child = self
            .command(&[])?
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        self.child = Some(child);
        self.wait_ready()
    }

    /// The command that starts the process, behind the words of one that watches it.
    pub fn command(&self, before: &[String]) -> Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        let mut command = match before {
            [] => self.netns.command(&self.binary),
            [watcher, arguments @ ..] => {
                let mut command = self.netns.command(watcher);
                command.args(arguments).arg(&self.binary);
                command
            }
        };
        command
            .args(["lb", "-c"])
            .arg(self.config_file())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// The same with another build of the product from now on.
    pub fn restart_as(&mut self, binary: &Path) -> Result<()> {
        self.binary = binary.to_owned();
        self.restart()
    }

    /// SIGKILL: the process has no chance to do anything.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("causeway lb does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let mut child = self.child.take().context("causeway lb does not run")?;
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("causeway lb did not end by SIGTERM: {}", self.messages())
    }

    /// Has the process read its configuration again (SIGHUP).
    pub fn reload(&self) -> Result<()> {
        self.signal(Signal::SIGHUP)
    }

    /// The same, and waits until it has: for changes that do not show in the reals.
    pub fn reload_now(&self) -> Result<()> {
        let reloads = || self.messages().matches("reloaded: ").count();
        let before = reloads();
        self.reload()?;
        let deadline = Instant::now() + RELOAD_TIMEOUT;
        while reloads() == before {
            ensure!(
                Instant::now() < deadline,
                "the daemon did not take the new file: {}",
                self.messages()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Loads a new file and waits until the daemon shows its reals and their states;
    /// returns when it did, CLOCK_MONOTONIC.
    pub fn apply(&self, settings: &BalancerSettings) -> Result<u64> {
        let vips = settings.vips.iter();
        let wanted: BTreeSet<(String, String, bool)> = vips
            .flat_map(|vip| {
                let reals = vip.reals.iter();
                reals.map(|r| (vip.address.to_string(), r.address.to_string(), r.drain))
            })
            .collect();
        self.write_config(settings)?;
        self.reload()?;
        let deadline = Instant::now() + RELOAD_TIMEOUT;
        while Instant::now() < deadline {
            let shown = api::stats(&self.socket())?;
            let shown: BTreeSet<(String, String, bool)> = shown
                .vips
                .iter()
                .flat_map(|vip| {
                    let reals = vip.reals.iter();
                    reals.map(|r| (vip.address.clone(), r.address.clone(), r.state == "drain"))
                })
                .collect();
            if shown == wanted {
                return Ok(clock::monotonic_ns());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the daemon did not take the new file: {}", self.messages())
    }

    /// Takes the data plane down (`causeway lb unload`).
    pub fn detach(&self) -> Result<()> {
        let output = self
            .netns
            .command(&self.binary)
            .args(["lb", "unload", "--yes", "-c"])
            .arg(self.config_file())
            .output()?;
        ensure!(
            output.status.success(),
            "causeway lb unload: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Runs `causeway ARGUMENTS --socket SOCKET` and returns its standard output.
    pub fn cli(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .netns
            .command(&self.binary)
            .args(arguments)
            .arg("--socket")
            .arg(self.socket())
            .output()?;
        ensure!(
            output.status.success(),
            "causeway {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("lb.sock")
    }

    /// Where maps and link are pinned.
    pub fn pin_dir(&self) -> &Path {
        &self.pin_dir
    }

    /// What it leaves its successors.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// PID of the running process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Everything the process has logged, over all its lives.
    pub fn messages(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("causeway lb does not run")?;
        kill(Pid::from_raw(pid as i32), signal).context("kill")
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(child) = self.child.as_mut()
                && let Some(status) = child.try_wait()?
            {
                self.child = None;
                let messages = self.messages();
                let last = messages.lines().last().unwrap_or_default();
                bail!("causeway lb ended at its start ({status}): {last}");
            }
            if api::stats(&self.socket()).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("causeway lb does not answer: {}", self.messages())
    }

    /// The configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("causeway.toml")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("lb.log")
    }

    fn config(&self, settings: &BalancerSettings) -> Result<String> {
        let at = self.directory.path().display();
        let mut s = format!(
            "interface = \"{DEVICE}\"\n\
             pin_dir = \"{}\"\n\
             state_dir = \"{at}/state\"\n\
             socket = \"{at}/lb.sock\"\n\
             reconcile = true\n\
             {}\
             [encap]\n\
             source = \"{}\"\n\
             source6 = \"{}\"\n\
             mtu = {}\n\
             {}\
             [history]\n\
             length = \"10m\"\n\
             [flow_table]\n\
             ipv4 = {}\n\
             ipv6 = 65536\n\
             [control]\n",
            self.pin_dir.display(),
            settings
                .head
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
            self.node.ipv4,
            self.node.ipv6,
            settings.mtu.unwrap_or(BACK_MTU),
            settings
                .encap
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
            settings.flows.unwrap_or(65_536),
        );
        for line in &settings.control {
            writeln!(s, "{line}")?;
        }
        if let Some(measure) = settings.measure {
            writeln!(s, "[measure]\nenabled = {measure}")?;
        }
        for vip in &settings.vips {
            write_vip(&mut s, vip)?;
        }
        Ok(s)
    }
}

fn write_vip(s: &mut String, vip: &VipEntry) -> Result<()> {
    let forwarding = match vip.forwarding {
        ServerForwarding::Ipip => "ipip",
        ServerForwarding::Gue => "gue",
        ServerForwarding::L2 => "l2",
    };
    let protocol = vip.protocol;
    writeln!(
        s,
        "[[vip]]\naddress = \"{}\"\nport = {}\nprotocol = \"{protocol}\"\nscheduler = \"{}\"\n\
         forwarding = \"{forwarding}\"",
        vip.address, vip.port, vip.scheduler
    )?;
    for key in &vip.keys {
        writeln!(s, "{key}")?;
    }
    for real in &vip.reals {
        writeln!(
            s,
            "[[vip.real]]\naddress = \"{}\"\nweight = {}\ndrain = {}",
            real.address, real.weight, real.drain
        )?;
        for key in &real.keys {
            writeln!(s, "{key}")?;
        }
        if vip.forwarding == ServerForwarding::L2 {
            writeln!(s, "mac = \"{}\"", format_mac(real.mac))?;
        }
    }
    Ok(())
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = self.kill();
        }
    }
}
