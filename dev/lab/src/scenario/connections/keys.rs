// SPDX-License-Identifier: Apache-2.0
//! What balancers, agents and servers have alike: keys and ids.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use tempfile::TempDir;

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

    /// The line of a balancer's file.
    pub(in crate::scenario) fn hash_key_line() -> String {
        let [first, second] = Self::HASH_KEY.map(|word| format!("{:016x}", word.swap_bytes()));
        format!("hash_key = \"{first}{second}\"")
    }

    /// Those of cookies, for balancers and agents.
    pub(in crate::scenario) fn cookies(&self) -> PathBuf {
        self.directory.path().join("keys")
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
        let vip = |address: IpAddr| {
            format!(
                "[[agent.cookie.vip]]\naddress = \"{address}\"\nport = {PORT}\nid = {}\n\
                 cookie = \"timestamp\"\n",
                server_id(index)
            )
        };
        format!(
            "[agent.cookie]\nkeys = \"{}\"\n{}{}",
            self.cookies().display(),
            vip(topology::vip4(0).into()),
            vip(topology::vip6(0).into())
        )
    }

    /// What makes an agent get the fleet's book from the balancer that listens there, and write
    /// cookies by it. Its keys file is this server's own, and is made once.
    pub(in crate::scenario) fn book_of_agent(
        &self,
        server: &Node,
        balancer: SocketAddr,
    ) -> Result<String> {
        let addresses = [server.ipv4.to_string(), server.ipv6.to_string()];
        let output = std::process::Command::new(&self.binary)
            .args(["cookie", "server-keys", "--keys"])
            .arg(self.cookies())
            .args(&addresses)
            .output()?;
        ensure!(
            output.status.success(),
            "causeway cookie server-keys: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let file = self.directory.path().join(format!("{}.keys", server.ipv4));
        std::fs::write(&file, output.stdout)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "state_dir = \"STATE\"\n[agent.cookie]\nkeys = \"{}\"\n\
             [agent.report]\nto = [\"{balancer}\"]\nbook = true\n\
             [agent.quic]\nfile = \"STATE/quic-ids.json\"\n",
            file.display()
        ))
    }

    /// A configuration of connection ids, as the balancer's file has it.
    pub(in crate::scenario) fn quic_cid(&self, number: u8) -> Result<String> {
        let file = self.directory.path().join(format!("quic-{number}.key"));
        std::fs::write(&file, quic_key(number))?;
        Ok(format!(
            "{{ config = {number}, algorithm = \"siphash\", key = \"{}\", \
             server_id_length = 2, nonce_length = {NONCE} }}",
            file.display()
        ))
    }

    /// Runs a command on the key file.
    fn causeway(&self, arguments: &[&str]) -> Result<()> {
        let output = std::process::Command::new(&self.binary)
            .args(arguments)
            .arg(self.cookies())
            .output()?;
        ensure!(
            output.status.success(),
            "causeway {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
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
