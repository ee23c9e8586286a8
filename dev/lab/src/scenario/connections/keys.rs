// SPDX-License-Identifier: Apache-2.0
//! What balancers, agents and servers have alike: keys and ids.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use causeway_dataplane::Protocol;
use tempfile::TempDir;

use crate::background::output_of;
use crate::balancer::VipEntry;
use crate::quic::Cid;
use crate::scenario::bench::PORT;
use crate::topology::{self, Node};

/// Octets of the nonces in connection ids.
const NONCE: u8 = 8;

/// The key files of a run.
pub(in crate::scenario) struct SharedKeys {
    binary: PathBuf,
    directory: TempDir,
}

impl SharedKeys {
    /// The hash key of its balancers.
    pub(in crate::scenario) const HASH_KEY: [u64; 2] =
        [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    /// None are made yet.
    pub(in crate::scenario) fn new(binary: &Path) -> Result<Self> {
        Ok(Self {
            binary: binary.to_owned(),
            directory: tempfile::Builder::new().prefix("keys-").tempdir()?,
        })
    }

    /// Those of cookies are made.
    pub(in crate::scenario) fn with_cookies(binary: &Path) -> Result<Self> {
        let keys = Self::new(binary)?;
        keys.make_cookies()?;
        Ok(keys)
    }

    /// The line of a balancer's file.
    pub(in crate::scenario) fn hash_key_line() -> String {
        let [first, second] = Self::HASH_KEY.map(|word| format!("{:016x}", word.swap_bytes()));
        format!("hash_key = \"{first}{second}\"")
    }

    /// Those of cookies, for balancers and agents.
    pub(in crate::scenario) fn cookies(&self) -> PathBuf {
        self.directory.path().join("keys")
    }

    /// For the head of a balancer's file.
    pub(in crate::scenario) fn balancer_lines(&self) -> String {
        format!("[cookie]\nkeys = \"{}\"", self.cookies().display())
    }

    /// Makes those of cookies.
    pub(in crate::scenario) fn make_cookies(&self) -> Result<()> {
        self.causeway(&["cookie", "new-keys"])
    }

    /// One step of a rotation of those of cookies: `--prepare` or `--switch`.
    pub(in crate::scenario) fn rotate_cookies(&self, step: &str) -> Result<()> {
        self.causeway(&["cookie", "rotate", step])
    }

    /// What makes an agent write the cookies of its server, by number.
    pub(in crate::scenario) fn cookies_of_agent(&self, index: usize) -> String {
        let vips: [IpAddr; 2] = [topology::vip4(0).into(), topology::vip6(0).into()];
        self.cookies_for(index, &vips.map(|vip| (vip, PORT).into()))
    }

    /// The same for these services.
    pub(in crate::scenario) fn cookies_for(&self, index: usize, vips: &[SocketAddr]) -> String {
        let mut lines = format!("[agent.cookie]\nkeys = \"{}\"\n", self.cookies().display());
        for vip in vips {
            lines += &format!(
                "[[agent.cookie.vip]]\naddress = \"{}\"\nport = {}\nid = {}\n\
                 cookie = \"timestamp\"\n",
                vip.ip(),
                vip.port(),
                server_id(index)
            );
        }
        lines
    }

    /// What makes an agent get the fleet's book from the balancer that listens there, and write
    /// cookies by it. Its keys file is this server's own, and is made once.
    pub(in crate::scenario) fn book_of_agent(
        &self,
        server: &Node,
        balancer: SocketAddr,
    ) -> Result<String> {
        let addresses = [server.ipv4.to_string(), server.ipv6.to_string()];
        let mut command = Command::new(&self.binary);
        command.args(["cookie", "server-keys", "--keys"]);
        let made = output_of(command.arg(self.cookies()).args(&addresses))?;
        let file = self.directory.path().join(format!("{}.keys", server.ipv4));
        std::fs::write(&file, made)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "[agent.cookie]\nkeys = \"{}\"\n\
             [agent.report]\nto = [\"{balancer}\"]\nbook = true\n\
             [agent.quic]\nfile = \"STATE/quic-ids.json\"\n",
            file.display()
        ))
    }

    /// A configuration of connection ids, as the balancer's file has it.
    pub(in crate::scenario) fn quic_cid(&self, number: u8) -> Result<String> {
        self.quic_cid_by(number, "siphash")
    }

    /// The same by another algorithm.
    pub(in crate::scenario) fn quic_cid_by(&self, number: u8, algorithm: &str) -> Result<String> {
        let lengths = format!("server_id_length = 2, nonce_length = {NONCE}");
        if algorithm == "plain" {
            return Ok(format!(
                "{{ config = {number}, algorithm = \"plain\", {lengths} }}"
            ));
        }
        let file = self.directory.path().join(format!("quic-{number}.key"));
        std::fs::write(&file, quic_key(number))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "{{ config = {number}, algorithm = \"{algorithm}\", key = \"{}\", {lengths} }}",
            file.display()
        ))
    }

    /// Runs a command on the key file.
    fn causeway(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.binary);
        output_of(command.args(arguments).arg(self.cookies())).map(drop)
    }
}

/// [`SharedKeys::quic_cid`], as a server has it.
pub(in crate::scenario) fn cid(number: u8, server: usize) -> Cid {
    Cid {
        number,
        algorithm: "siphash".to_owned(),
        server_id_len: 2,
        nonce_len: NONCE,
        key: quic_key(number),
        server: server_id(server) as u32,
    }
}

/// A key; any will do.
fn quic_key(number: u8) -> String {
    format!("{:02x}", 0x51 + number).repeat(16)
}

/// A server's id in cookies and connection ids.
pub(in crate::scenario) fn server_id(index: usize) -> usize {
    index + 1
}

/// Gives a VIP cookies, and each of its reals the id that its agent has; of a VIP for QUIC only
/// the ids. Its reals are the servers, in order.
pub(in crate::scenario) fn with_ids(mut vip: VipEntry) -> VipEntry {
    if vip.protocol == Protocol::Tcp {
        vip.keys.push("cookie = \"timestamp\"".to_owned());
    }
    for (index, real) in vip.reals.iter_mut().enumerate() {
        real.keys.push(format!("id = {}", server_id(index)));
    }
    vip
}
