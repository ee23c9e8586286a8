// SPDX-License-Identifier: Apache-2.0
//! What this server has received of the fleet's book (`[agent.report] book`): VIPs, its ids, keys
//! of cookies, balancers. It comes from any balancer, never from the store, and the last good of it
//! is on this server's disk: without a balancer in reach the agent goes on by that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use causeway_api::agent::{AgentBookView, AgentIdView};
use causeway_api::fleet::FleetPosition;
use causeway_core::agent_report::{
    AgentFollows, AgentOrders, EpochSecrets, ReportKeys, ReportSecrets, ServiceId, ServiceKey,
    vip_name,
};
use causeway_core::cookie::{CookieKeyError, KeyEpoch, Keys};
use causeway_core::fleet::{FleetAgent, KeyNumber};
use causeway_dataplane::{Protocol, Vip};
use causeway_quic_lb::CidConfig;
use causeway_quic_lb::file::{CidFile, CidService};
use causeway_service::{FileRights, keep_file, parse_version, replace_beside};
use serde::{Deserialize, Serialize};

use crate::config::AgentConfig;

const FILE: &str = "agent-book.json";
const VERSION: u32 = 2;

/// By each address that balancers know this server by: how far its agent has come, and the orders.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FollowedBook(BTreeMap<IpAddr, (FleetAgent, AgentOrders)>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    version: u32,
    servers: BTreeMap<IpAddr, KeptOrders>,
}

/// What is kept of one server, with the secrets that its orders as a text lack.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptOrders {
    agent: FleetAgent,
    orders: AgentOrders,
    keys: BTreeMap<KeyNumber, String>,
    secrets: [Option<String>; 2],
}

impl FollowedBook {
    /// What a former agent has kept.
    pub(crate) fn load(dir: &Path) -> Result<Self, String> {
        let path = dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let wrong = |fault: String| format!("{} {fault}", path.display());
        let file: KeptFile = parse_version(&text, VERSION).map_err(wrong)?;
        let servers = file.servers.into_iter().map(|(server, kept)| {
            let heard = kept.read();
            let heard = heard.map_err(|why| wrong(format!("is damaged ({why})")))?;
            Ok((server, heard))
        });
        servers.collect::<Result<_, String>>().map(Self)
    }

    /// Keeps it for the next agent, for its owner alone: it holds keys.
    pub(crate) fn save(&self, dir: &Path) -> std::io::Result<()> {
        let servers = self.0.iter();
        let file = KeptFile {
            version: VERSION,
            servers: servers
                .map(|(server, (agent, orders))| (*server, KeptOrders::new(agent, orders)))
                .collect(),
        };
        keep_file(&dir.join(FILE), &serde_json::to_vec(&file)?)
    }

    /// Has this server's QUIC programs issue connection ids as the book says. Without any, no file
    /// is made.
    pub(crate) fn give_quic_ids(&self, file: &AgentConfig) -> anyhow::Result<()> {
        let ids = self.quic_ids(&file.addresses);
        let path = &file.quic.file;
        let there = CidFile::load(path).ok();
        if there.as_ref() == Some(&ids) || there.is_none() && ids.services.is_empty() {
            return Ok(());
        }
        let rights = FileRights {
            owner: file.quic.owner,
            ..FileRights::PRIVATE
        };
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = made.and_then(|()| replace_beside(path, ids.to_text().as_bytes(), rights));
        written.with_context(|| {
            format!(
                "cannot write {} ([agent.quic] file), by which QUIC programs issue connection ids; systemd's unit needs its directory in ReadWritePaths",
                path.display()
            )
        })
    }

    fn quic_ids(&self, addresses: &BTreeSet<IpAddr>) -> CidFile {
        let mut services: Vec<CidService> = Vec::new();
        let own = self
            .0
            .iter()
            .filter(|(server, _)| addresses.contains(*server));
        for (agent, orders) in own.map(|(_, heard)| heard) {
            for (service, cids) in &orders.cids {
                let issued = agent.issued_cid(&vip_name(service));
                let config = issued.and_then(|of| cids.configs.get(&of));
                let id = orders.services.get(service);
                let (Some(config), Some((id, _))) = (config, id) else {
                    continue;
                };
                let (address, port, _) = *service;
                // One id is enough where balancers know this server by two addresses.
                let known = |other: &CidService| (other.address, other.port) == (address, port);
                if !services.iter().any(known) {
                    services.push(CidService {
                        address,
                        port,
                        server_id: (*id).into(),
                        config: *config,
                    });
                }
            }
        }
        CidFile { services }
    }

    /// Takes what a balancer sends; whether that changed anything. A balancer may lag.
    pub(crate) fn handle_orders(&mut self, server: IpAddr, orders: AgentOrders) -> bool {
        let Some((agent, own)) = self.0.get_mut(&server) else {
            let mut agent = FleetAgent::new(server);
            agent.handle_book(orders.book());
            self.0.insert(server, (agent, orders));
            return true;
        };
        if agent.handle_book(orders.book()) {
            *own = orders;
            return true;
        }
        agent.position() == Some(orders.position) && own.add(&orders)
    }

    /// Whether it says what this server serves: something of each of its addresses, if it is that there is nothing.
    pub(crate) fn is_known(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        addresses.iter().all(|of| self.0.contains_key(of))
    }

    /// What is acknowledged in a server's name.
    pub(crate) fn follows(&self, server: IpAddr) -> Option<AgentFollows> {
        self.0.get(&server).map(|(_, orders)| orders.follows())
    }

    /// `file` as the book has it.
    pub(crate) fn over(&self, file: &AgentConfig) -> AgentConfig {
        let mut config = file.clone();
        let (Some(report), Some(cookies)) = (&mut config.report, &mut config.cookies) else {
            return config;
        };
        let of_file = |(server, _): &(&IpAddr, _)| file.addresses.contains(*server);
        // An address that is no real of the fleet is told of the book without keys.
        let rank = |(agent, orders): &(FleetAgent, AgentOrders)| {
            (!orders.keys.is_empty(), agent.position())
        };
        let mut newest: Option<&(FleetAgent, AgentOrders)> = None;
        for (server, heard) in self.0.iter().filter(of_file) {
            let orders = &heard.1;
            config.balancers.extend(&orders.tunnels);
            let told: BTreeSet<_> = report.to.iter().copied().collect();
            report.to.extend(orders.balancers.difference(&told));
            for ((address, port, protocol), (id, layout)) in &orders.services {
                config.vips.insert(*address);
                if let (Some(layout), Some(Protocol::Tcp)) =
                    (layout, Protocol::from_number(*protocol))
                {
                    let vip = Vip {
                        address: *address,
                        port: *port,
                        protocol: Protocol::Tcp,
                    };
                    cookies.vips.insert(vip, (*id, *layout));
                }
            }
            let heard_later = heard.0.issued() >= Some(cookies.keys.number);
            take_secrets(&mut report.keys, *server, orders.secrets, heard_later);
            let is_newer = newest.is_none_or(|other| rank(other) < rank(heard));
            newest = newest.filter(|_| !is_newer).or(Some(heard));
        }
        let Some((agent, orders)) = newest else {
            return config;
        };
        let Some(issued) = agent.issued() else {
            return config;
        };
        let epoch = epoch_of(issued);
        let signs = |server| report.keys.of_server(server, epoch).is_some();
        // An address without a secret of that epoch signs by the other one.
        if file.addresses.iter().any(|server| signs(*server)) {
            report.keys.current = epoch;
        }
        if let Some(key) = orders.keys.get(&issued) {
            let mut others = orders.keys.iter();
            let other = others.find(|(number, _)| epoch_of(**number) != epoch);
            cookies.keys.cookies = Keys::new(epoch, *key, other.map(|(_, key)| *key));
        }
        config
    }

    /// Its state, for people.
    pub(crate) fn view(&self) -> Vec<AgentBookView> {
        let servers = self.0.iter();
        let view = |(server, (agent, orders)): (&IpAddr, &(FleetAgent, AgentOrders))| {
            let ids = orders.services.iter();
            let id = |(service, (id, _)): (&ServiceKey, &ServiceId)| {
                let vip = vip_name(service);
                let issued = agent.issued_cid(&vip);
                let cids = orders.cids.get(service).zip(issued);
                let config = cids.and_then(|(own, of)| own.configs.get(&of));
                AgentIdView {
                    vip,
                    id: *id,
                    quic_cid: config.map(CidConfig::number),
                }
            };
            AgentBookView {
                server: server.to_string(),
                position: FleetPosition {
                    generation: orders.position.generation.count,
                    revision: orders.position.revision,
                },
                key_issued: agent.issued().unwrap_or_default(),
                keys: orders.keys.keys().copied().collect(),
                ids: ids.map(id).collect(),
                balancers: orders.balancers.iter().map(SocketAddr::to_string).collect(),
            }
        };
        servers.map(view).collect()
    }
}

/// The epoch of a key of cookies, and of the secrets of reports that are replaced with it.
fn epoch_of(number: KeyNumber) -> KeyEpoch {
    match number & 1 {
        0 => KeyEpoch::Zero,
        _ => KeyEpoch::One,
    }
}

/// Secrets of reports come with the book, so that a server needs a file once. That of a file made
/// later than what was received is for a server that has missed rotations.
fn take_secrets(keys: &mut ReportKeys, server: IpAddr, heard: EpochSecrets, heard_later: bool) {
    let ReportSecrets::Own(own) = &mut keys.secrets else {
        return;
    };
    let of_file = own.entry(server).or_default();
    for (secret, heard) in of_file.iter_mut().zip(heard) {
        *secret = match heard_later {
            true => heard.or(*secret),
            false => secret.or(heard),
        };
    }
}

impl KeptOrders {
    fn new(agent: &FleetAgent, orders: &AgentOrders) -> Self {
        let keys = orders.keys.iter();
        Self {
            agent: agent.clone(),
            orders: orders.clone(),
            keys: keys.map(|(of, key)| (*of, key.to_hex())).collect(),
            secrets: orders.secrets.map(|key| key.map(|key| key.to_hex())),
        }
    }

    fn read(self) -> Result<(FleetAgent, AgentOrders), CookieKeyError> {
        let keys = self.keys.into_iter();
        let [zero, one] = self.secrets.map(|hex| hex.map(|hex| hex.parse()));
        let orders = AgentOrders {
            keys: keys
                .map(|(of, hex)| Ok((of, hex.parse()?)))
                .collect::<Result<_, _>>()?,
            secrets: [zero.transpose()?, one.transpose()?],
            ..self.orders
        };
        let mut agent = self.agent;
        agent.handle_book(orders.book());
        Ok((agent, orders))
    }
}

/// Where it is kept, for messages.
pub(crate) fn kept_in(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use causeway_core::agent_report::ServiceCids;
    use causeway_core::cookie::{CookieKey, CookieLayout, CookieMode};
    use causeway_core::fleet::Position;
    use causeway_quic_lb::{Algorithm, CidKey};

    use super::*;

    const FILE_TEXT: &str = "[agent]\ninterface = \"eth0\"\naddresses = [\"10.0.0.1\"]\n\
        [agent.cookie]\nkeys = \"KEYS\"\n\
        [agent.report]\nto = [\"10.0.0.254:9472\"]\nbook = true\n";

    pub(crate) fn file() -> AgentConfig {
        let mut keys = tempfile::NamedTempFile::new().expect("a file");
        let key = "7".repeat(32);
        let text =
            format!("current = 0\nkey0 = \"{key}\"\n[server.\"10.0.0.1\"]\nreports0 = \"{key}\"\n");
        keys.write_all(text.as_bytes()).expect("written");
        let text = FILE_TEXT.replace("KEYS", &keys.path().display().to_string());
        AgentConfig::parse(Path::new("agent.toml"), &text).expect("a configuration")
    }

    fn key(byte: u8) -> CookieKey {
        CookieKey::from_bytes([byte; 16])
    }

    pub(crate) fn server() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    /// The book counts configurations of connection ids apart from keys; these go together.
    fn cids(issued: KeyNumber) -> ServiceCids {
        let config = |of: KeyNumber| {
            let algorithm = Algorithm::SipHash(CidKey::new([of as u8; 16]));
            CidConfig::new((of % 7) as u8, 2, 8, algorithm).expect("valid")
        };
        ServiceCids {
            issued,
            configs: [2, 3].map(|of| (of, config(of))).into(),
        }
    }

    pub(crate) fn orders(revision: u64, issued: KeyNumber, keys: &[KeyNumber]) -> AgentOrders {
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let vip = IpAddr::from([192, 0, 2, 1]);
        AgentOrders {
            position: Position {
                revision,
                ..Position::default()
            },
            issued,
            keys: keys.iter().map(|of| (*of, key(*of as u8))).collect(),
            secrets: [Some(key(70)), Some(key(71))],
            services: [
                ((vip, 80, 6), (5, Some(layout))),
                ((vip, 443, 17), (9, None)),
            ]
            .into(),
            cids: [((vip, 443, 17), cids(issued))].into(),
            balancers: [SocketAddr::from(([10, 0, 0, 253], 9472))].into(),
            tunnels: [(IpAddr::from([10, 9, 0, 0]), 16)].into(),
        }
    }

    #[test]
    fn what_was_heard_stands_in_the_file_s_place_and_outlives_the_agent() {
        let (dir, file) = (tempfile::tempdir().expect("a directory"), file());
        let mut heard = FollowedBook::load(dir.path()).expect("nothing");
        assert_eq!(heard.over(&file), file, "nothing is heard yet");
        assert_eq!(heard.follows(server()), None);
        assert!(heard.handle_orders(server(), orders(4, 2, &[2, 3])));
        assert!(
            !heard.handle_orders(server(), orders(3, 2, &[2])),
            "a balancer lags"
        );
        let config = heard.over(&file);
        let cookies = config.cookies.as_ref().expect("cookies");
        assert_eq!(
            cookies.keys.cookies,
            Keys::new(KeyEpoch::Zero, key(2), Some(key(3)))
        );
        assert_eq!(cookies.vips.len(), 1, "QUIC's has no cookie");
        assert_eq!(config.vips.len(), 1);
        assert_eq!(config.balancers.len(), 1);
        let report = config.report.as_ref().expect("reports");
        assert_eq!(report.to.len(), 2);
        assert_eq!(
            report.keys.of_server(server(), KeyEpoch::One),
            Some(key(71))
        );
        assert!(heard.handle_orders(server(), orders(5, 3, &[2, 3])));
        let config = heard.over(&file);
        assert_eq!(config.report.expect("reports").keys.current, KeyEpoch::One);
        assert_eq!(
            config.cookies.expect("cookies").keys.cookies,
            Keys::new(KeyEpoch::One, key(3), Some(key(2)))
        );
        // A book that was put back is from before the switch.
        let mut put_back = orders(6, 2, &[2, 3]);
        put_back.position.generation.count = 1;
        assert!(heard.handle_orders(server(), put_back));
        let quic = heard.quic_ids(&file.addresses);
        assert_eq!(quic.services.len(), 1);
        assert_eq!(quic.services[0].server_id, 9);
        assert_eq!(
            quic.services[0].config,
            cids(3).configs[&3],
            "it stays switched"
        );
        assert_eq!(heard.quic_ids(&BTreeSet::new()), CidFile::default());
        heard.save(dir.path()).expect("kept");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(kept_in(dir.path()))
                .expect("the file")
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(FollowedBook::load(dir.path()), Ok(heard.clone()));
        fs::write(kept_in(dir.path()), "{").expect("written");
        let error = FollowedBook::load(dir.path()).expect_err("damaged");
        assert!(error.contains("agent-book.json is damaged"), "{error}");
        let former = r#"{"version":1,"servers":{"10.0.0.1":{"generation":0}}}"#;
        fs::write(kept_in(dir.path()), former).expect("written");
        let error = FollowedBook::load(dir.path()).expect_err("another build's");
        assert!(
            error.contains("has version 1, this build reads 2"),
            "{error}"
        );
    }

    #[test]
    fn quic_programs_get_a_file_that_their_user_alone_reads() {
        let (dir, mut file) = (tempfile::tempdir().expect("a directory"), file());
        let path = dir.path().join("made").join("quic-ids.json");
        file.quic.file.clone_from(&path);
        let mut heard = FollowedBook::default();
        heard.give_quic_ids(&file).expect("nothing to write");
        assert!(!path.exists());
        heard.handle_orders(server(), orders(4, 2, &[2]));
        heard.give_quic_ids(&file).expect("written");
        let written = CidFile::load(&path).expect("read");
        assert_eq!(written.services[0].config, cids(2).configs[&2]);
        let there = fs::metadata(&path).expect("the file");
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&there.permissions()) & 0o777,
            0o600
        );
        let number = |of: &fs::Metadata| std::os::unix::fs::MetadataExt::ino(of);
        heard.give_quic_ids(&file).expect("nothing new");
        assert_eq!(
            number(&fs::metadata(&path).expect("the file")),
            number(&there)
        );
        // A server that is a real of none any more has nothing to issue by.
        let mut none = orders(5, 2, &[2]);
        none.services.clear();
        none.cids.clear();
        heard.handle_orders(server(), none);
        heard.give_quic_ids(&file).expect("written");
        assert_eq!(CidFile::load(&path).expect("read"), CidFile::default());
        file.quic.file = dir.path().to_owned();
        heard.handle_orders(server(), orders(6, 2, &[2]));
        let error = heard
            .give_quic_ids(&file)
            .expect_err("a directory is there");
        assert!(
            format!("{error:#}").contains("[agent.quic] file"),
            "{error:#}"
        );
    }

    #[test]
    fn an_address_that_is_no_real_hides_no_keys() {
        let mut file = file();
        let other = IpAddr::from([10, 0, 0, 2]);
        file.addresses.insert(other);
        for (real, unused) in [(server(), other), (other, server())] {
            let mut heard = FollowedBook::default();
            let mut none = orders(5, 3, &[]);
            none.services.clear();
            none.cids.clear();
            none.secrets = EpochSecrets::default();
            heard.handle_orders(unused, none);
            heard.handle_orders(real, orders(4, 2, &[2, 3]));
            let keys =
                |heard: &FollowedBook| heard.over(&file).cookies.expect("cookies").keys.cookies;
            assert_eq!(
                keys(&heard),
                Keys::new(KeyEpoch::Zero, key(2), Some(key(3))),
                "it lags"
            );
            heard.handle_orders(real, orders(5, 3, &[2, 3]));
            assert_eq!(keys(&heard), Keys::new(KeyEpoch::One, key(3), Some(key(2))));
            let keys = heard.over(&file).report.expect("reports").keys;
            assert_eq!(keys.current, KeyEpoch::One);
            assert!(keys.of_server(real, KeyEpoch::One).is_some());
        }
    }

    #[test]
    fn a_server_that_missed_rotations_goes_by_a_new_file() {
        let mut file = file();
        let mut heard = FollowedBook::default();
        heard.handle_orders(server(), orders(4, 2, &[2]));
        file.cookies.as_mut().expect("cookies").keys.number = 4;
        let report = heard.over(&file).report.expect("reports");
        let of_file: CookieKey = "7".repeat(32).parse().expect("a key");
        assert_eq!(
            report.keys.of_server(server(), KeyEpoch::Zero),
            Some(of_file)
        );
        assert_eq!(
            report.keys.of_server(server(), KeyEpoch::One),
            Some(key(71))
        );
    }
}
