// SPDX-License-Identifier: Apache-2.0
//! The controller's own file, `/etc/causeway/kubernetes.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use causeway_service::config::{
    self, ConfigErrors, Faults, Renamed, Spanned, Text, read, text, time_within,
};
use causeway_service::tls::ClientFiles;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::api_server::{ApiServer, server_url};
use crate::balancer::LocalBalancer;
use crate::claims::ClaimRules;
use crate::objects::ObjectKey;
use crate::pool::AddressRange;
use crate::wanted::NodeRules;

const CLASS: &str = "causeway.dev/lb";
const BASE: &str = "/etc/causeway/causeway.toml";
const FILE: &str = "/var/lib/causeway-kubernetes/causeway.toml";
const SOCKET: &str = "/run/causeway/lb.sock";
const LEASE: &str = "kube-system/causeway";
/// Where kube-proxy serves `/healthz`.
const HEALTH_PORT: u16 = 10256;
const DRAIN_DEFAULT: Duration = Duration::from_secs(300);
const RENAMED: &Renamed = &[];

/// The keys as they are written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawSettings {
    server: Text,
    ca: Text,
    token: Text,
    certificate: Text,
    key: Text,
    class: Text,
    #[serde(default)]
    pool: Vec<Spanned<String>>,
    base: Text,
    file: Text,
    socket: Text,
    drain: Text,
    node_health_port: Option<Spanned<i64>>,
    lease: Text,
    member: Text,
}

/// All that the controller needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The cluster.
    pub server: ApiServer,
    /// The balancer.
    pub balancer: LocalBalancer,
    /// Whom to serve, and by which addresses.
    pub claims: ClaimRules,
    /// What holds for nodes.
    pub nodes: NodeRules,
    /// The balancer's file without the cluster's VIPs.
    pub base: PathBuf,
    /// The file that is written.
    pub file: PathBuf,
    /// The lease whose holder writes to the cluster.
    pub lease: ObjectKey,
    /// This controller's name among others of the cluster.
    pub member: String,
}

impl KubernetesSettings {
    /// The keys of the file as a JSON Schema.
    pub fn schema() -> String {
        config::schema::<RawSettings>("Configuration of causeway-kubernetes")
    }

    /// Reads and validates a file. All faults are reported together.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(path, &read(path)?)
    }

    /// Validates the text of a file; `path` only names it in messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        config::parse(path, text, RENAMED, settings)
    }
}

fn settings(raw: RawSettings, faults: &mut Faults<'_>) -> Option<KubernetesSettings> {
    if raw.server.is_none() {
        faults.file("`server` is missing; name the cluster's API server, for example server = \"https://10.0.0.10:6443\"");
    }
    let url = text(raw.server.as_ref(), faults, server_url);
    let path =
        |value: &Text, faults: &mut Faults<'_>| text(value.as_ref(), faults, config::absolute_path);
    let ca = path(&raw.ca, faults);
    let token = path(&raw.token, faults);
    let certificate = path(&raw.certificate, faults);
    let key = path(&raw.key, faults);
    if let Some(one) = raw.certificate.as_ref().xor(raw.key.as_ref()) {
        faults.at(
            one.span(),
            "`certificate` and `key` belong together; name both, or use `token`",
        );
    }
    if raw.pool.is_empty() {
        faults.file("`pool` is missing; name the addresses that Services may have, for example pool = [\"198.51.100.0/28\"]");
    }
    let ranges: Vec<AddressRange> = raw
        .pool
        .iter()
        .filter_map(|range| text(Some(range), faults, str::parse))
        .collect();
    let drain = time_within(raw.drain.as_ref(), "drain", ["0s", "168h"], faults);
    let any = |_: &u16| true;
    let health_port = config::number(raw.node_health_port.as_ref(), any, faults, |_| {
        "node_health_port must lie between 0 (nodes are not probed) and 65535".to_owned()
    });
    let health_port = Some(health_port.unwrap_or(HEALTH_PORT));
    let lease = text(raw.lease.as_ref(), faults, |word| {
        let (namespace, name) = word
            .split_once('/')
            .filter(|(namespace, name)| is_name(namespace) && is_name(name))
            .ok_or_else(|| {
                format!("`{word}` is not a namespace and a name; write for example \"{LEASE}\"")
            })?;
        Ok(ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    });
    let member = text(raw.member.as_ref(), faults, |word| match word.is_empty() {
        false => Ok(word.to_owned()),
        true => Err("`member` is empty; name this controller as no other is named".to_owned()),
    });
    let (base, file) = (path(&raw.base, faults), path(&raw.file, faults));
    let (base, file) = (base.unwrap_or(BASE.into()), file.unwrap_or(FILE.into()));
    if base == file {
        faults
            .file("`base` and `file` are the same file; the one is read, and the other is written");
    }
    let (default_namespace, default_name) = LEASE.split_once('/')?;
    Some(KubernetesSettings {
        server: ApiServer {
            url: url?,
            files: ClientFiles {
                ca,
                identity: certificate.zip(key),
            },
            token,
        },
        balancer: LocalBalancer {
            socket: path(&raw.socket, faults).unwrap_or(SOCKET.into()),
        },
        claims: ClaimRules {
            class: text(raw.class.as_ref(), faults, |word| Ok(word.to_owned()))
                .unwrap_or_else(|| CLASS.to_owned()),
            pool: ranges.into(),
        },
        nodes: NodeRules {
            drain_ns: drain.unwrap_or(DRAIN_DEFAULT).as_nanos() as u64,
            health_port: health_port.filter(|port| *port > 0),
        },
        base,
        file,
        lease: lease.unwrap_or_else(|| ObjectKey {
            namespace: default_namespace.to_owned(),
            name: default_name.to_owned(),
        }),
        member: member.unwrap_or_else(host_name),
    })
}

/// A name of an object (RFC 1123), or of a namespace.
fn is_name(word: &str) -> bool {
    let fits =
        |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"-.".contains(&octet);
    !word.is_empty() && word.bytes().all(fits)
}

fn host_name() -> String {
    let name = nix::unistd::gethostname();
    name.map_or_else(
        |_| "causeway".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<KubernetesSettings, String> {
        let parsed = KubernetesSettings::parse(Path::new("k.toml"), text);
        parsed.map_err(|errors| errors.faults[0].message.clone())
    }

    const LEAST: &str = "server = \"https://10.0.0.10:6443\"\npool = [\"192.0.2.0/28\"]\n";

    #[test]
    fn two_keys_are_enough() {
        let settings = parse(LEAST).unwrap();
        assert_eq!(settings.claims.class, CLASS);
        assert_eq!(settings.nodes.health_port, Some(HEALTH_PORT));
        assert_eq!(settings.lease.to_string(), LEASE);
        assert_eq!(settings.file, Path::new(FILE));
        assert!(!settings.member.is_empty());
    }

    #[test]
    fn faults_say_how_to_mend_them() {
        for (more, expected) in [
            ("token = \"token\"", "`token` is not an absolute path"),
            ("key = \"/k\"", "`certificate` and `key` belong together"),
            (
                "node_health_port = 65536",
                "node_health_port must lie between",
            ),
            (
                "lease = \"causeway\"",
                "`causeway` is not a namespace and a name",
            ),
            ("drain = \"169h\"", "drain must lie between"),
            ("member = \"\"", "`member` is empty"),
            (
                "base = \"/a\"\nfile = \"/a\"",
                "`base` and `file` are the same file",
            ),
            ("clas = \"a\"", "unknown key `clas`"),
        ] {
            let error = parse(&format!("{LEAST}{more}\n")).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(
            parse("pool = [\"192.0.2.0/28\"]")
                .unwrap_err()
                .starts_with("`server` is missing")
        );
        assert!(
            parse("server = \"https://a\"")
                .unwrap_err()
                .starts_with("`pool` is missing")
        );
    }

    fn in_repository(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(name);
        std::fs::read_to_string(&path).expect("a file of the repository")
    }

    #[test]
    fn the_unit_starts_with_the_settings() {
        let unit = in_repository("packaging/systemd/causeway-kubernetes.service");
        for line in [
            "ExecStart=causeway-kubernetes -c /etc/causeway/kubernetes.toml",
            "ConditionPathExists=/etc/causeway/kubernetes.toml",
            "StateDirectory=causeway-kubernetes",
        ] {
            assert!(unit.lines().any(|of| of == line), "{line}");
        }
        assert!(FILE.starts_with("/var/lib/causeway-kubernetes/"));
        let balancer = in_repository("packaging/kubernetes/causeway-lb.conf");
        assert!(balancer.contains(&format!("ExecStart=causeway lb -c {FILE}\n")));
        // It comes after what makes the file, and does not leave it at that without a word.
        assert!(balancer.contains("\nAfter=causeway-kubernetes.service\n"));
        assert!(balancer.contains("\nConditionPathExists=\n"));
    }

    /// What the example says of defaults is so.
    #[test]
    fn the_example_has_the_defaults() {
        let example = in_repository("packaging/etc/kubernetes.toml");
        let settings = parse(&example).unwrap();
        assert_eq!(parse(&example.replace("#: ", "")).unwrap(), settings);
    }

    #[test]
    fn the_reference_has_every_key() {
        let schema: serde_json::Value =
            serde_json::from_str(&KubernetesSettings::schema()).unwrap();
        let reference = in_repository("docs/reference/kubernetes.md");
        let example = in_repository("packaging/etc/kubernetes.toml");
        let keys = schema["properties"].as_object().unwrap().keys();
        for key in keys.filter(|key| *key != "$schema") {
            assert!(reference.contains(&format!("`{key}`")), "{key}");
            assert!(example.contains(&format!("{key} = ")), "{key}");
        }
    }
}
