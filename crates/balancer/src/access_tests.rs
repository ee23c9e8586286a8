// SPDX-License-Identifier: Apache-2.0
//! What other hosts get of the API, over real TLS with curl.

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use causeway_service::api::ApiConfig;
use causeway_service::process::{self, Listeners, Process, Routers, Work};
use causeway_service::tokens::{NewToken, Role};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::sync::oneshot;

use super::api;
use super::fake::FakePlane;
use super::run::{copy_of, load};
use super::serve_tests::{address_of_its_own, shared};
use crate::config::BalancerConfig;

/// Files of a daemon: authority, certificate, tokens.
struct Files {
    dir: tempfile::TempDir,
    address: SocketAddr,
    client_ca: bool,
}

impl Files {
    fn new() -> Self {
        let address = address_of_its_own();
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
            address,
            client_ca: false,
        };
        let made = rcgen::generate_simple_self_signed([address.ip().to_string()]).unwrap();
        files.write("cert.pem", &made.cert.pem(), 0o644);
        files.write("key.pem", &made.signing_key.serialize_pem(), 0o600);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A token for each role.
    fn tokens(&self) -> [String; 3] {
        let _ = fs::remove_file(self.path("tokens"));
        ["viewer", "operator", "admin"].map(|name| {
            let role = match name {
                "viewer" => Role::Viewer,
                "operator" => Role::Operator,
                _ => Role::Admin,
            };
            let made = NewToken::make(&format!("the-{name}"), role).unwrap();
            made.add_to(&self.path("tokens")).unwrap();
            made.token
        })
    }

    fn text(&self) -> String {
        let dir = self.dir.path().display();
        let authority = match self.client_ca {
            true => format!("client_ca = \"{dir}/clients.pem\"\n"),
            false => String::new(),
        };
        format!(
            "interface = \"eth0\"\n[api]\nlisten = \"{}\"\ncertificate = \"{dir}/cert.pem\"\nkey = \"{dir}/key.pem\"\ntokens = \"{dir}/tokens\"\n{authority}",
            self.address
        )
    }

    fn config(&self) -> Result<ApiConfig, String> {
        let config = BalancerConfig::parse(Path::new("lb.toml"), &self.text());
        config
            .map(|config| config.api.expect("[api]"))
            .map_err(|errors| errors.to_string())
    }

    /// Status and body; a status of 0 where there was no answer.
    fn curl(&self, arguments: &[&str], path: &str) -> (u16, String) {
        let output = Command::new("curl")
            .args([
                "-s",
                "--noproxy",
                "*",
                "--max-time",
                "20",
                "-w",
                "\n%{http_code}",
            ])
            .arg("--cacert")
            .arg(self.path("cert.pem"))
            .args(arguments)
            .arg(format!("https://{}{path}", self.address))
            .output()
            .expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap();
        (code.parse().unwrap(), body.to_owned())
    }

    /// The same with a token.
    fn ask(&self, token: &str, arguments: &[&str], path: &str) -> (u16, String) {
        let header = format!("Authorization: Bearer {token}");
        self.curl(&[&["-H", &header], arguments].concat(), path)
    }
}

/// A balancer's API that is served until it is dropped.
struct Served {
    files: Files,
    listeners: Arc<Listeners>,
    end: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl Served {
    fn start(files: Files) -> Self {
        let config = files.config().unwrap();
        Self::start_with(files, &config)
    }

    fn start_with(files: Files, config: &ApiConfig) -> Self {
        let socket = files.path("lb.sock");
        let listeners = Arc::new(Listeners::bind((&socket, None), None, Some(config)).unwrap());
        let serving = Arc::clone(&listeners);
        let (end, ended) = oneshot::channel();
        let server = thread::spawn(move || {
            let shared = shared(&FakePlane::default());
            let routers = Routers {
                unix: api::router(Arc::clone(&shared)),
                tcp: axum::Router::new(),
                rules: api::RULES,
            };
            let work = Work {
                reload: || Ok::<_, String>(String::new()),
                works: || true,
                failed: async {
                    let _ = ended.await;
                    anyhow::anyhow!("the test is over")
                },
            };
            let process = Process::begin().unwrap();
            process::serve_routers(process, routers, &serving, work).unwrap_err();
        });
        Self {
            files,
            listeners,
            end: Some(end),
            server: Some(server),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

const REAL: &str = "/v1/vips/web/reals/10.0.0.1";
const DRAIN: [&str; 4] = ["-X", "PATCH", "-d", "{\"drain\": true}"];

#[test]
fn each_role_may_what_it_may() {
    let files = Files::new();
    let [viewer, operator, admin] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    let post = |body| ["-X", "POST", "-d", body];
    for (token, arguments, path, status) in [
        (&viewer, &[][..], "/v1/stats", 200),
        (&viewer, &["-I"], "/v1/stats", 200),
        (&viewer, &[], "/metrics", 200),
        (&viewer, &DRAIN, REAL, 403),
        (&viewer, &["-X", "DELETE"], "/v1/overrides", 403),
        (&viewer, &post("x = 1"), "/v1/check", 403),
        (&operator, &[], "/v1/vips", 200),
        (&operator, &DRAIN, REAL, 200),
        (&operator, &["-X", "DELETE"], "/v1/overrides", 200),
        (&operator, &post("{}"), "/v1/vips", 403),
        (&operator, &post("{}"), "/v1/vips/web/reals", 403),
        (&operator, &["-X", "DELETE"], REAL, 403),
        (&operator, &["-X", "PATCH", "-d", "{}"], "/v1/vips/web", 403),
        (&operator, &post(""), "/v1/reload", 403),
        // What is not there is there for no role.
        (&operator, &["-X", "PUT"], "/v1/stats", 403),
        (&admin, &DRAIN, REAL, 200),
        (&admin, &post("{}"), "/v1/vips", 422),
        (&admin, &["-X", "DELETE"], REAL, 204),
        (&admin, &["-X", "PUT"], "/v1/stats", 405),
    ] {
        let (answered, body) = files.ask(token, arguments, path);
        assert_eq!(answered, status, "{arguments:?} {path}: {body}");
    }
    // Files of the page hold nothing that is not in the binary.
    assert_eq!(files.curl(&[], "/").0, 200);
    assert_eq!(files.curl(&[], "/page.js").0, 200);
    let (status, body) = files.curl(&["-D", "-"], "/v1/openapi.json");
    assert_eq!(status, 401);
    assert!(body.contains("www-authenticate: Bearer"), "{body}");
    assert!(body.contains("a token is needed"), "{body}");
    let (status, body) = files.ask(&viewer, &DRAIN, REAL);
    assert_eq!(status, 403);
    assert!(
        body.contains("the token of the-viewer has the role viewer; this needs operator"),
        "{body}"
    );
}

#[test]
fn a_client_that_guesses_is_not_looked_at() {
    let files = Files::new();
    let [viewer, ..] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    assert_eq!(files.ask(&viewer, &[], "/v1/status").0, 200);
    for _ in 0..10 {
        assert_eq!(files.ask("guess", &[], "/v1/status").0, 401);
    }
    let (status, body) = files.ask(&viewer, &["-D", "-"], "/v1/status");
    assert_eq!(status, 429);
    assert!(body.contains("retry-after: "), "{body}");
    // The page can still be had, and says so.
    assert_eq!(files.curl(&[], "/").0, 200);
}

#[test]
fn what_is_too_much_is_refused() {
    let files = Files::new();
    let [.., admin] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    files.write("large", &" ".repeat(3 << 20), 0o600);
    let body = format!("@{}", files.path("large").display());
    // Asked for before it is sent, sent at once, and sent without a length.
    for how in [
        "Expect: 100-continue",
        "Expect:",
        "Transfer-Encoding: chunked",
    ] {
        let large = ["-X", "POST", "-H", how, "--data-binary", &body];
        assert_eq!(files.ask(&admin, &large, "/v1/check").0, 413, "{how}");
        assert_eq!(files.ask(&admin, &large, "/v1/vips").0, 413, "{how}");
    }
    // More than twice the limit: the read that passes it may bring as much again.
    let head = format!("X-Long: {}", "x".repeat(100 << 10));
    let long = ["-H", &head, "-H", &head];
    assert_eq!(files.ask(&admin, &long, "/v1/status").0, 431);
    // One host may have this many connections and no more.
    let hold = |_| TcpStream::connect(files.address).unwrap();
    let held: Vec<TcpStream> = (0..16).map(hold).collect();
    let mut last = hold(16);
    last.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    drop(held);
}

#[test]
fn two_listeners_have_two_ports() {
    let files = Files::new();
    files.tokens();
    let file = |http: &str| {
        let text = files
            .text()
            .replacen("[api]", &format!("http = {http}\n[api]"), 1);
        let text = text.replace(&files.address.to_string(), "0.0.0.0:9470");
        BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|errors| errors.to_string())
    };
    let refused = file("\"127.0.0.1:9470\"").unwrap_err();
    assert!(
        refused.contains("lb.toml:4: 0.0.0.0:9470 takes the port of `http`, 127.0.0.1:9470"),
        "{refused}"
    );
    for http in ["\"127.0.0.1:9471\"", "false"] {
        assert!(file(http).is_ok(), "{http}");
    }
    // As the kernel has it.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    assert!(std::net::TcpListener::bind(("0.0.0.0", port)).is_err());
}

#[test]
fn nothing_is_said_in_clear_or_to_who_does_not_know_the_authority() {
    let files = Files::new();
    let [viewer, ..] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    let clear = Command::new("curl")
        .args(["-s", "--noproxy", "*", "--max-time", "20"])
        .arg(format!("http://{}/", files.address))
        .output()
        .unwrap();
    assert!(!clear.status.success() && clear.stdout.is_empty());
    let other = Files::new();
    let ca = other.path("cert.pem").display().to_string();
    assert_eq!(files.ask(&viewer, &["--cacert", &ca], "/v1/status").0, 0);
    assert_eq!(files.ask(&viewer, &["--tls-max", "1.1"], "/v1/status").0, 0);
}

#[test]
fn new_files_hold_from_the_reload_on() {
    let files = Files::new();
    let [former, ..] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    assert_eq!(files.ask(&former, &[], "/v1/status").0, 200);
    let before = files.config().unwrap();
    let [new, ..] = files.tokens();
    let made = rcgen::generate_simple_self_signed([files.address.ip().to_string()]).unwrap();
    files.write("cert.pem", &made.cert.pem(), 0o644);
    files.write("key.pem", &made.signing_key.serialize_pem(), 0o600);
    let after = files.config().unwrap();
    assert_ne!(before, after);
    served.listeners.doors().renew(None, Some(&after));
    assert_eq!(files.ask(&new, &[], "/v1/status").0, 200);
    assert_eq!(files.ask(&former, &[], "/v1/status").0, 401);
}

/// The rest of a file waits for an operator, and a stolen token must not wait for it.
#[test]
fn a_reload_that_is_refused_renews_what_other_hosts_are_served_by() {
    let files = Files::new();
    let [former, ..] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    let shared = Arc::into_inner(shared(&FakePlane::default())).expect("nobody else has it");
    let shared = shared.with_doors(served.listeners.doors());
    // It has no such file.
    let refused = || shared.reload().unwrap_err().to_string();
    let renewed = "; certificate and tokens of [api] are renewed all the same";
    assert!(!refused().ends_with(renewed));
    assert_eq!(files.ask(&former, &[], "/v1/status").0, 200);
    let [new, ..] = files.tokens();
    assert!(refused().ends_with(renewed));
    assert_eq!(files.ask(&new, &[], "/v1/status").0, 200);
    assert_eq!(files.ask(&former, &[], "/v1/status").0, 401);
    // What cannot be used stays as it was, and keeps nothing else.
    files.write("key.pem", "x", 0o600);
    let [newer, ..] = files.tokens();
    assert!(refused().ends_with(renewed));
    assert_eq!(files.ask(&newer, &[], "/v1/status").0, 200);
    files.write("tokens", "x", 0o644);
    assert!(!refused().ends_with(renewed));
    assert_eq!(files.ask(&newer, &[], "/v1/status").0, 200);
}

#[test]
fn a_start_does_without_files_of_the_api_until_they_are_in_order() {
    let files = Files::new();
    let [viewer, ..] = files.tokens();
    let file = files.path("lb.toml");
    let vip = "[[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nreal = [{ address = \"10.0.0.1\" }]\n";
    let state = files.path("state");
    let text = format!("state_dir = {state:?}\n{}{vip}", files.text());
    fs::write(&file, &text).unwrap();
    assert_eq!(load(&file).unwrap().api_errors(), None);
    let key = fs::read_to_string(files.path("key.pem")).unwrap();
    let other = KeyPair::generate().unwrap();
    files.write("key.pem", &other.serialize_pem(), 0o600);
    let loaded = load(&file).unwrap();
    assert_eq!((loaded.reals(), loaded.refused()), (1, None));
    let errors = loaded.api_errors().expect("errors");
    assert!(errors.contains("it is not the key of the certificate"));
    // So does the copy that is in the place of a file with another fault.
    copy_of(&file, &state).save(&text).unwrap();
    fs::write(&file, text.replace("port = 80", "port = 800000")).unwrap();
    let loaded = load(&file).unwrap();
    assert!(loaded.refused().is_some() && loaded.api_errors().is_some());
    // Nor does an empty file take its VIPs away.
    fs::write(
        &file,
        format!("interface = \"eth0\"\nstate_dir = {state:?}\n"),
    )
    .unwrap();
    let loaded = load(&file).unwrap();
    assert_eq!(loaded.reals(), 1);

    let text = files.text();
    let config = BalancerConfig::without_api_files(Path::new("lb.toml"), &text).unwrap();
    let served = Served::start_with(files, &config.api.unwrap());
    let files = &served.files;
    assert_eq!(files.ask(&viewer, &[], "/v1/status").0, 0);
    files.write("key.pem", &key, 0o600);
    assert!(served.listeners.doors().renew_files().is_some());
    assert_eq!(files.ask(&viewer, &[], "/v1/status").0, 200);
}

#[test]
fn with_an_authority_of_clients_each_shows_a_certificate() {
    let mut files = Files::new();
    files.client_ca = true;
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = authority.self_signed(&key).unwrap();
    files.write("clients.pem", &own.pem(), 0o644);
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::new(vec!["alice".to_owned()]).unwrap();
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = client.signed_by(&key, &issuer).unwrap();
    files.write("alice.pem", &certificate.pem(), 0o644);
    files.write("alice.key", &key.serialize_pem(), 0o600);
    let [viewer, ..] = files.tokens();
    let served = Served::start(files);
    let files = &served.files;
    assert_eq!(files.ask(&viewer, &[], "/v1/status").0, 0);
    let [cert, key] = ["alice.pem", "alice.key"].map(|name| files.path(name));
    let shown = [
        "--cert",
        cert.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    assert_eq!(files.ask(&viewer, &shown, "/v1/status").0, 200);
    // It says who comes, and not what they may.
    assert_eq!(files.curl(&shown, "/v1/status").0, 401);
}

#[test]
fn each_fault_of_the_files_is_told_with_its_mend() {
    let files = Files::new();
    files.tokens();
    files.config().unwrap();
    let text = files.text();
    let check = |text: &str| {
        let parsed = BalancerConfig::parse(Path::new("lb.toml"), text);
        parsed.map(drop).unwrap_err().to_string()
    };
    for (key, expected) in [
        ("listen", "`api.listen` is missing; name the address"),
        (
            "certificate",
            "`api.certificate` is missing; other hosts are served by TLS alone",
        ),
        ("key", "`api.key` is missing"),
        (
            "tokens",
            "`api.tokens` is missing; who may do what stands in a file",
        ),
    ] {
        let without: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with(&format!("{key} =")))
            .collect();
        let error = check(&without.join("\n"));
        assert!(
            error.contains(expected) && error.lines().count() == 1,
            "{error}"
        );
    }
    let spoilt = |name: &str, text: &str, mode: u32| {
        let former = fs::read_to_string(files.path(name)).unwrap();
        files.write(name, text, mode);
        let error = files.config().unwrap_err();
        files.write(name, &former, 0o600);
        error
    };
    let other = rcgen::generate_simple_self_signed([files.address.ip().to_string()]).unwrap();
    for (name, text, mode, expected) in [
        ("tokens", String::new(), 0o600, "lb.toml:6: file "),
        (
            "tokens",
            String::new(),
            0o600,
            "it holds no token; `causeway token",
        ),
        (
            "tokens",
            "a admin b".to_owned(),
            0o600,
            "line 1: a SHA-256 has 64",
        ),
        ("tokens", String::new(), 0o640, "chmod 600"),
        ("cert.pem", "x".to_owned(), 0o600, "lb.toml:4: file "),
        ("key.pem", "x".to_owned(), 0o600, "it holds no private key"),
        ("key.pem", "x".to_owned(), 0o604, "chmod o= /"),
        (
            "key.pem",
            other.signing_key.serialize_pem(),
            0o600,
            "it is not the key of the certificate",
        ),
    ] {
        let error = spoilt(name, &text, mode);
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.lines().count() == 1, "{error}");
    }
    fs::remove_file(files.path("tokens")).unwrap();
    let error = files.config().unwrap_err();
    assert!(error.contains("; `causeway token NAME --add /"), "{error}");
}
