// SPDX-License-Identifier: Apache-2.0
//! Probes against servers: real ones, and ones that say what no server would.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use causeway_api::Moment;
use causeway_dataplane::DataPlaneError;
use nix::errno::Errno;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::{Desk, Outcome, ProbeOrder, is_of_this_host, send};
use crate::config::{Authorities, Beside, ProbeConfig, ProbeTo, Protocol, vip_from_json};
use crate::fake::FakePlane;
use crate::serve_tests::{HeldEngine, address_of_its_own, shared_by};
use crate::tests::{WEB, config};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The mark of probes means nothing on loopback.
fn order(target: SocketAddr, probe: ProbeConfig) -> ProbeOrder {
    ProbeOrder {
        real: 1,
        number: 1,
        deadline_ns: 0,
        target,
        to: ProbeTo::Vip,
        protocol: Protocol::Tcp,
        address: "10.0.0.1".parse().expect("an address"),
        probe,
    }
}

async fn probe(target: SocketAddr, probe: ProbeConfig) -> Result<String, String> {
    let order = order(target, probe);
    let outcome = tokio::time::timeout(TIMEOUT, send(&order)).await;
    text(outcome.expect("an outcome"))
}

fn text(outcome: Outcome) -> Result<String, String> {
    let reason = outcome.map(|seen| seen.reason);
    reason.map_err(|error| format!("{error:#}"))
}

/// A probe by its keys in the file.
fn keys(keys: serde_json::Value) -> ProbeConfig {
    let protocol = match keys["probe"] == "quic" {
        true => "udp",
        false => "tcp",
    };
    let vip = vip_from_json(
        serde_json::json!({
            "address": "192.0.2.1", "port": 80, "protocol": protocol, "health": keys,
            "real": [{ "address": "10.0.0.1" }],
        }),
        Beside::NOTHING,
    );
    vip.expect("a vip").health.expect("health").probe
}

/// A server that sends this to each client once it has received something, and closes.
async fn says(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer).await;
        }
    });
    target
}

/// A server of Debian's, which ends with the test.
struct Server {
    child: Child,
    _dir: Option<tempfile::TempDir>,
    target: SocketAddr,
}

impl Server {
    async fn start(
        mut command: Command,
        target: SocketAddr,
        dir: Option<tempfile::TempDir>,
    ) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut server = Self {
            child: child.expect("start the server"),
            _dir: dir,
            target,
        };
        let connected = tokio::time::timeout(TIMEOUT, async {
            while TcpStream::connect(target).await.is_err() {
                let ended = server.child.try_wait().expect("wait");
                assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        connected.await.expect("the server listens");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So that none of its ports waits for packets of a connection that is over.
#[tokio::test]
async fn a_connection_ends_by_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("its address");
    assert_eq!(
        probe(target, ProbeConfig::Tcp).await,
        Ok("connected".to_owned())
    );
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let error = stream.read(&mut [0; 1]).await.expect_err("no end in order");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_server_meets_no_reset_while_it_writes_its_page() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("its address");
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.read(&mut [0; 1024]).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n";
        stream.write_all(head).await.expect("the head");
        for half in [b"all ", b"well"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
            stream.write_all(half).await.expect("a half of the page");
        }
    });
    let http = keys(serde_json::json!({ "probe": "http" }));
    assert_eq!(probe(target, http).await, Ok("status 200".to_owned()));
    served.await.expect("no error");
}

/// One that is sent after a wait would else be overdue at once, and its real down.
#[test]
fn a_probe_has_its_whole_time_however_long_the_engine_was_held() {
    let health = "port = 80\nhealth = { interval = \"2s\", timeout = \"1s\" }";
    let shared = shared_by(
        &FakePlane::default(),
        config(&WEB.replace("port = 80", health)),
    );
    let (_done, outcomes) = mpsc::unbounded_channel();
    let mut desk = Desk {
        shared: Arc::clone(&shared),
        outcomes,
        warned_ns: None,
    };
    // By now each has been due for long.
    shared.engine().poll_health(1);
    let held = HeldEngine::of(&shared);
    let polled = thread::spawn(move || desk.poll());
    thread::sleep(Duration::from_millis(20));
    let held_until_ns = Moment::now().monotonic_ns;
    assert!(held.let_go());
    let (orders, now_ns, _) = polled.join().expect("a poll");
    assert_eq!(orders.len(), 4);
    for order in orders {
        assert!(order.deadline_ns >= held_until_ns + 1_000_000_000);
        assert_eq!(order.deadline_ns, now_ns + 1_000_000_000);
    }
}

#[test]
fn what_this_host_lacks_is_no_outcome() {
    let of = |errno: Errno| anyhow::Error::from(std::io::Error::from(errno));
    for errno in [
        Errno::EADDRINUSE,
        Errno::EADDRNOTAVAIL,
        Errno::EAGAIN,
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EPERM,
    ] {
        assert!(is_of_this_host(&of(errno)), "{errno}");
        assert!(
            is_of_this_host(&of(errno).context("no raw socket")),
            "{errno}"
        );
    }
    let marking = DataPlaneError::Bpf {
        doing: "mark socket 7".to_owned(),
        cause: Errno::EPERM.into(),
    };
    assert!(is_of_this_host(&marking.into()));
    for errno in [
        Errno::ECONNREFUSED,
        Errno::ECONNRESET,
        Errno::EHOSTUNREACH,
        Errno::ENETUNREACH,
        Errno::ETIMEDOUT,
    ] {
        assert!(!is_of_this_host(&of(errno)), "{errno}");
    }
    assert!(!is_of_this_host(&anyhow::anyhow!("status 500")));
}

/// As kube-proxy has it: the number of a Service's endpoints on its node.
#[tokio::test]
async fn a_page_of_the_real_itself_says_its_weight() {
    for (answer, weight) in [
        (
            &b"HTTP/1.1 200 OK\r\nX-Load-Balancing-Endpoint-Weight: 3\r\nContent-Length: 0\r\n\r\n"
                [..],
            Some(3),
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None),
    ] {
        let mut order = order(
            says(answer).await,
            keys(serde_json::json!({ "probe": "http" })),
        );
        order.to = ProbeTo::Real;
        let seen = tokio::time::timeout(TIMEOUT, send(&order)).await;
        assert_eq!(seen.expect("an outcome").expect("a page").weight, weight);
    }
}

#[tokio::test]
async fn redis_answers_a_ping() {
    for (extra, expected) in [
        (vec![], Ok("+PONG".to_owned())),
        (
            vec!["--requirepass", "secret"],
            Ok("-NOAUTH Authentication required.".to_owned()),
        ),
    ] {
        let target = address_of_its_own();
        let [ip, port] = [target.ip().to_string(), target.port().to_string()];
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", &ip]);
        command.args(["--save", "", "--dir", "/tmp"]).args(extra);
        let server = Server::start(command, target, None).await;
        assert_eq!(probe(server.target, ProbeConfig::Redis).await, expected);
    }
    for (answer, expected) in [
        (
            &b"-LOADING Redis is loading\r\n"[..],
            "-LOADING Redis is loading",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request"),
        (&[b'+'; 4096], "the answer is not Redis'"),
        (b"", "the answer is not Redis'"),
    ] {
        let outcome = probe(says(answer).await, ProbeConfig::Redis).await;
        assert_eq!(outcome, Err(expected.to_owned()));
    }
}

/// Writes nginx's file: with a certificate for a.example by an authority of its own, whose
/// file it gives.
fn nginx(dir: &Path, clear: SocketAddr, tls: SocketAddr) -> std::path::PathBuf {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).expect("an authority");
    let issuer = rcgen::Issuer::from_params(&params, &authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).expect("write");
    write("ca.pem", authority.pem());
    write("cert.pem", certificate.pem());
    write("key.pem", key.serialize_pem());
    write("big", "x".repeat(80 << 10));
    let at = dir.display();
    write(
        "nginx.conf",
        format!(
            "daemon off; master_process off; pid {at}/pid; error_log /dev/null;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p;\n\
             fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
             server {{ listen {clear}; listen {tls} ssl;\n\
             ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem;\n\
             location /up {{ return 200 \"all is well\"; }}\n\
             location /gone {{ return 410; }}\n\
             location /big {{ root {at}; }} }} }}\n"
        ),
    );
    dir.join("ca.pem")
}

#[tokio::test]
async fn nginx_is_asked_for_statuses_bodies_and_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    let (clear, within_tls) = (address_of_its_own(), address_of_its_own());
    let ca = nginx(dir.path(), clear, within_tls);
    let mut command = Command::new("nginx");
    command.arg("-c").arg(dir.path().join("nginx.conf"));
    command.arg("-p").arg(dir.path());
    let server = Server::start(command, clear, Some(dir)).await;
    for (path, status, body, expected) in [
        ("/up", "200", None, Ok("status 200")),
        (
            "/up",
            "200-299",
            Some("is well"),
            Ok("status 200, and the page has `is well`"),
        ),
        (
            "/up",
            "200",
            Some("unwell"),
            Err("status 200, and the page does not have `unwell` in its first 64 KiB"),
        ),
        (
            "/gone",
            "200-399",
            None,
            Err("status 410 instead of 200-399"),
        ),
        ("/gone", "200, 404 410", None, Ok("status 410")),
        (
            "/big",
            "200",
            Some("y"),
            Err("status 200, and the page does not have `y` in its first 64 KiB"),
        ),
    ] {
        let mut of = serde_json::json!({ "probe": "http", "path": path, "status": status });
        if let Some(body) = body {
            of["body"] = body.into();
        }
        let outcome = probe(server.target, keys(of)).await;
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(outcome, expected, "{path}");
    }
    let https = |host: &str, ca: Option<&Path>| {
        let mut of = serde_json::json!({ "probe": "https", "path": "/up", "host": host });
        if let Some(ca) = ca {
            of["ca"] = ca.display().to_string().into();
        }
        keys(of)
    };
    let ok = Ok("status 200".to_owned());
    assert_eq!(probe(within_tls, https("b.example", None)).await, ok);
    assert_eq!(probe(within_tls, https("a.example", Some(&ca))).await, ok);
    let other_name = probe(within_tls, https("b.example", Some(&ca))).await;
    assert!(other_name.unwrap_err().contains("not valid for name"));
    let system = https("a.example", Some(Path::new("system")));
    let other_authority = probe(within_tls, system).await.unwrap_err();
    assert!(
        other_authority.contains("UnknownIssuer"),
        "{other_authority}"
    );
}

#[tokio::test]
async fn pages_that_no_server_would_send() {
    let page = || keys(serde_json::json!({ "probe": "http", "body": "well" }));
    for (answer, expected) in [
        (&b""[..], "the answer is not HTTP"),
        (b"HTTP/1.1 ", "the answer is not HTTP"),
        (b"SSH-2.0-x\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 \xff\xff\xff \r\n\r\n", "the answer is not HTTP"),
        // A status has three digits.
        (b"HTTP/1.1 +20 OK\r\n\r\nwell", "the answer is not HTTP"),
        (b"HTTP/1.1 20 OK\r\n\r\nwell", "the answer is not HTTP"),
        (b"HTTP/1.1 0200 OK\r\n\r\nwell", "the answer is not HTTP"),
        (&[b'H'; 40_000], "the answer is not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\nwel",
            "the page breaks off",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx",
            "the page breaks off",
        ),
    ] {
        let error = probe(says(answer).await, page()).await.unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    // In pieces of the transfer's own.
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nwe\r\n2\r\nll\r\n0\r\n\r\n";
    let outcome = probe(says(chunked).await, page()).await;
    assert_eq!(
        outcome,
        Ok("status 200, and the page has `well`".to_owned())
    );
}

#[tokio::test]
async fn postgresql_serves_whom_it_asks_or_turns_away() {
    let postgres = || keys(serde_json::json!({ "probe": "postgres" }));
    for (answer, expected) in [
        (
            &b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"[..],
            Ok("asks who it is"),
        ),
        (b"E\0\0\0\x13SFATAL\0C28000\0\0", Ok("28000: ")),
        (b"E\0\0\0\x13C57P03\0Mstart\0\0", Err("57P03: start")),
        (b"E\0\0\0\x12C53300\0Mfull\0\0", Err("53300: full")),
        (b"EFATAL:  no fork\n\0", Err("early eof")),
        (b"E\0\0\0\0", Err("the answer is not PostgreSQL's")),
        (b"S", Err("the answer is not PostgreSQL's: early eof")),
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            Err("the answer is not PostgreSQL's"),
        ),
    ] {
        let outcome = probe(says(answer).await, postgres()).await;
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(outcome, expected, "{answer:?}");
    }
}

/// A server of HTTP/2 with this head, message and end.
async fn grpc_says(
    status: u16,
    message: &'static [u8],
    trailers: &'static [(&'static str, &'static str)],
) -> SocketAddr {
    use http_body_util::{BodyExt as _, Full};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service =
                hyper::service::service_fn(move |request: hyper::Request<_>| async move {
                    let body: hyper::body::Incoming = request.into_body();
                    let _ = body.collect().await;
                    let mut map = hyper::HeaderMap::new();
                    for (name, value) in trailers {
                        map.insert(*name, value.parse().expect("a value"));
                    }
                    let body = Full::new(bytes::Bytes::from_static(message));
                    let body = body.with_trailers(async move { Some(Ok(map)) });
                    hyper::Response::builder().status(status).body(body)
                });
            let io = hyper_util::rt::TokioIo::new(stream);
            let executor = hyper_util::rt::TokioExecutor::new();
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service),
            );
        }
    });
    target
}

#[tokio::test]
async fn grpc_tells_a_services_state() {
    const OK: &[(&str, &str)] = &[("grpc-status", "0")];
    let grpc = || keys(serde_json::json!({ "probe": "grpc", "service": "shop.Cart" }));
    for (status, message, trailers, expected) in [
        (200, &b"\0\0\0\0\x02\x08\x01"[..], OK, Ok("serving")),
        (
            200,
            b"\0\0\0\0\x02\x08\x02",
            OK,
            Err("the service is not serving"),
        ),
        (
            200,
            b"",
            &[("grpc-status", "5")][..],
            Err("the service is not known"),
        ),
        (
            200,
            b"",
            &[("grpc-status", "12")],
            Err("the server does not offer grpc.health.v1"),
        ),
        (
            200,
            b"",
            &[("grpc-status", "14"), ("grpc-message", "later")],
            Err("gRPC code 14: later"),
        ),
        (
            200,
            b"\0\0\0\0\x02\x08\x01",
            &[],
            Err("the answer is not gRPC"),
        ),
        (503, b"", OK, Err("status 503")),
        (
            200,
            b"\0\xff\xff\xff\xff",
            OK,
            Err("the answer is not a message of grpc.health.v1"),
        ),
    ] {
        let target = grpc_says(status, message, trailers).await;
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(probe(target, grpc()).await, expected);
    }
    let plain = probe(says(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, grpc()).await;
    assert!(plain.unwrap_err().starts_with("no HTTP/2"));
}

#[tokio::test]
async fn dns_goes_by_tcp_to_vips_of_tcp() {
    let dns = || keys(serde_json::json!({ "probe": "dns", "record": "soa", "rcode": "noerror" }));
    for (answer, expected) in [
        (
            &b"\0\x0c\0\x01\x81\x80\0\x01\0\0\0\0\0\0"[..],
            Ok("answered"),
        ),
        (
            b"\0\x0c\0\x01\x81\x83\0\x01\0\0\0\0\0\0",
            Err("the answer is code 3"),
        ),
        (
            b"\0\x0c\0\x02\x81\x80\0\x01\0\0\0\0\0\0",
            Err("the answer is not the DNS'"),
        ),
        (b"\0\x0c\0", Err("early eof")),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(probe(says(answer).await, dns()).await, expected);
    }
}

#[tokio::test]
async fn loopback_answers_echoes_of_both_families() {
    for address in ["127.0.0.1", "::1"] {
        let target = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), 80);
        assert_eq!(
            probe(target, ProbeConfig::Icmp).await,
            Ok("echo".to_owned()),
            "{address}"
        );
    }
}

/// Read by a shell: a program that was just written is busy as long as a process that another
/// test starts has its descriptor.
fn script(text: &str) -> (tempfile::TempDir, ProbeConfig) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("check");
    std::fs::write(&file, format!("{text}\n")).expect("write");
    let command = serde_json::json!(["/bin/sh", file, "a b", dir.path()]);
    let probe = serde_json::json!({ "probe": "script", "command": command });
    let probe = keys(probe);
    (dir, probe)
}

#[tokio::test]
async fn a_script_says_by_its_exit_status() {
    let target = "192.0.2.1:80".parse().expect("an address");
    for (text, expected) in [
        ("exit 0", Ok("exit status 0")),
        ("exit 3", Err("exit status 3")),
        (
            "echo too many; echo more; exit 1",
            Err("exit status 1: too many"),
        ),
        (
            "yes | head -c 1000000; echo; exit 2",
            Err("exit status 2: y"),
        ),
        (
            "echo $1 $CAUSEWAY_REAL $CAUSEWAY_VIP $CAUSEWAY_PORT $CAUSEWAY_PROTOCOL $HOME",
            Ok("a b 10.0.0.1 192.0.2.1 80 tcp"),
        ),
        // What it leaves behind has its output still.
        ("sleep 1000 & echo $! > $2/left; echo fine", Ok("fine")),
        ("kill -9 $$", Err("signal: 9 (SIGKILL)")),
    ] {
        let (dir, check) = script(text);
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(probe(target, check).await, expected, "{text}");
        if let Ok(left) = std::fs::read_to_string(dir.path().join("left")) {
            let _ = Command::new("kill").arg(left.trim()).status();
        }
    }
}

#[tokio::test]
async fn a_script_that_takes_too_long_ends_with_all_that_it_started() {
    let (dir, check) = script("sleep 1000 & echo $! > $2/new; mv $2/new $2/started; wait");
    let order = order("192.0.2.1:80".parse().expect("an address"), check);
    let started = dir.path().join("started");
    let pid = tokio::time::timeout(TIMEOUT, async {
        tokio::select! {
            outcome = send(&order) => panic!("{outcome:?}"),
            pid = async {
                loop {
                    if let Ok(pid) = std::fs::read_to_string(&started) {
                        break pid;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            } => pid,
        }
    });
    let pid = pid.await.expect("the script starts");
    let gone = tokio::time::timeout(TIMEOUT, async {
        let stat = format!("/proc/{}/stat", pid.trim());
        // Of a child that is not waited for, a zombie is left.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    gone.await.expect("what the script started has ended");
}

/// A server's TLS by a certificate for another name, which no authority has signed.
fn server(alpn: &str) -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["other.example".to_owned()]);
    let made = made.expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate with its key");
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

fn https(status: &str) -> ProbeConfig {
    ProbeConfig::Http {
        tls: Some(Authorities::default()),
        path: "/up".to_owned(),
        host: Some("a.example:8443".to_owned()),
        status: status.parse().expect("statuses"),
        body: None,
    }
}

#[tokio::test]
async fn https_asks_within_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let target = listener.local_addr().expect("its address");
    let acceptor = TlsAcceptor::from(Arc::new(server("http/1.1")));
    let serve = tokio::spawn(async move {
        let mut names = Vec::new();
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.expect("a client");
            let mut stream = acceptor.accept(stream).await.expect("TLS");
            names.push(stream.get_ref().1.server_name().map(str::to_owned));
            let mut request = [0; 18];
            stream.read_exact(&mut request).await.expect("a request");
            assert_eq!(&request, b"GET /up HTTP/1.1\r\n");
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .expect("answer");
            stream.shutdown().await.expect("close");
        }
        // The last one speaks in clear.
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream
            .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
            .await
            .expect("answer");
        names
    });
    assert_eq!(
        probe(target, https("204")).await,
        Ok("status 204".to_owned())
    );
    let wrong = probe(target, https("200")).await;
    assert_eq!(wrong, Err("status 204 instead of 200".to_owned()));
    let clear = probe(target, https("200")).await.unwrap_err();
    assert!(clear.starts_with("no TLS: "), "{clear}");
    let names = serve.await.expect("the server");
    assert_eq!(
        names,
        [Some("a.example".to_owned()), Some("a.example".to_owned())]
    );
}

#[tokio::test]
async fn quic_completes_a_handshake() {
    let tls = QuicServerConfig::try_from(server("h3")).expect("TLS 1.3");
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let endpoint = quinn::Endpoint::server(config, address).expect("a server");
    let target = endpoint.local_addr().expect("its address");
    let (closed, mut ended) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let closed = closed.clone();
            tokio::spawn(async move {
                if let Ok(connection) = incoming.await {
                    closed.send(connection.closed().await)
                } else {
                    Ok(())
                }
            });
        }
    });
    let quic = |host: Option<&str>, alpn: &str| ProbeConfig::Quic {
        host: host.map(str::to_owned),
        alpn: alpn.to_owned(),
        tls: Authorities::default(),
    };
    for host in [None, Some("a.example:8443")] {
        let done = probe(target, quic(host, "h3")).await;
        assert_eq!(done, Ok("handshake complete".to_owned()));
        // The server gets the close, though this side does not wait for that.
        let reason = ended.recv().await.expect("the end of the connection");
        assert!(
            matches!(reason, quinn::ConnectionError::ApplicationClosed(_)),
            "{reason}"
        );
    }
    let refused = probe(target, quic(None, "h9")).await;
    assert!(refused.unwrap_err().contains("protocol"));
}

/// grpc.health.v1 by hand: the package with its messages is not Debian's.
const GRPC_SERVER: &str = r#"
import sys, grpc
from concurrent import futures
states = {b'': 1, b'\x0a\x04down': 2}
class Health(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method != '/grpc.health.v1.Health/Check':
            return None
        def check(request, context):
            if request not in states:
                context.abort(grpc.StatusCode.NOT_FOUND, 'unknown service')
            return bytes([8, states[request]])
        return grpc.unary_unary_rpc_method_handler(check)
server = grpc.server(futures.ThreadPoolExecutor(2))
if len(sys.argv) > 2:
    server.add_generic_rpc_handlers((Health(),))
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
"#;

#[tokio::test]
#[ignore = "its servers are not among those of the tests: scripts/test-long probes"]
async fn grpc_of_python_tells_its_states() {
    for (offered, service, expected) in [
        (true, None, Ok("serving")),
        (true, Some("down"), Err("the service is not serving")),
        (true, Some("other"), Err("the service is not known")),
        (false, None, Err("the server does not offer grpc.health.v1")),
    ] {
        let target = address_of_its_own();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", GRPC_SERVER, &target.to_string()]);
        if offered {
            command.arg("health");
        }
        let server = Server::start(command, target, None).await;
        let mut of = serde_json::json!({ "probe": "grpc" });
        if let Some(service) = service {
            of["service"] = service.into();
        }
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(probe(server.target, keys(of)).await, expected);
    }
}

#[tokio::test]
#[ignore = "its servers are not among those of the tests: scripts/test-long probes"]
async fn postgresql_serves_without_a_password() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().display().to_string();
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgresql");
    let version = versions.flatten().next().expect("a version").path();
    let sh = |text: String| {
        let status = Command::new("sh")
            .args(["-c", &text])
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("run sh").success(), "{text}");
    };
    let bin = version.join("bin");
    let bin = bin.display();
    sh(format!(
        "chown postgres {at} && runuser -u postgres -- {bin}/initdb -D {at}/data -A scram-sha-256 \
         --pwfile=/etc/hostname"
    ));
    let target = address_of_its_own();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=postgres",
        "--regid=postgres",
        "--clear-groups",
        "--",
    ]);
    command.arg(version.join("bin/postgres"));
    command.args([
        "-D",
        &format!("{at}/data"),
        "-k",
        &at,
        "-p",
        &target.port().to_string(),
    ]);
    command.args(["-c", &format!("listen_addresses={}", target.ip())]);
    let server = Server::start(command, target, Some(dir)).await;
    let postgres = || keys(serde_json::json!({ "probe": "postgres" }));
    let ready = tokio::time::timeout(TIMEOUT, async {
        loop {
            match probe(server.target, postgres()).await {
                Ok(said) => break said,
                // As long as it begins.
                Err(error) => assert!(error.starts_with("57P03: "), "{error}"),
            }
        }
    });
    assert_eq!(ready.await.expect("it serves"), "asks who it is");
    // No client may log in from here any more.
    sh(format!(
        "echo 'host all all 192.0.2.1/32 reject' > {at}/data/pg_hba.conf && \
         kill -HUP {}",
        server.child.id()
    ));
    let refused = tokio::time::timeout(TIMEOUT, async {
        loop {
            let said = probe(server.target, postgres()).await;
            if said != Ok("asks who it is".to_owned()) {
                break said;
            }
        }
    });
    let refused = refused.await.expect("it has read its file");
    assert!(
        refused
            .expect("it serves")
            .starts_with("28000: no pg_hba.conf entry")
    );
}

#[tokio::test]
#[ignore = "its servers are not among those of the tests: scripts/test-long probes"]
async fn dnsmasq_answers_by_both_protocols() {
    let target = address_of_its_own();
    let mut command = Command::new("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--no-resolv",
        "--no-hosts",
        "--pid-file=",
    ]);
    command.args([
        "--conf-file=/dev/null",
        &format!("--listen-address={}", target.ip()),
        "--bind-interfaces",
    ]);
    command.args(["--address=/a.example/192.0.2.9", "--user=root"]);
    command.arg(format!("--port={}", target.port()));
    let server = Server::start(command, target, None).await;
    for (protocol, name, rcode, expected) in [
        (Protocol::Udp, "a.example", "noerror", Ok("answered")),
        (Protocol::Tcp, "a.example", "noerror", Ok("answered")),
        // It may connect to no host.
        (
            Protocol::Udp,
            "b.example",
            "noerror",
            Err("the answer is code 5"),
        ),
        (Protocol::Tcp, "b.example", "refused", Ok("answered")),
    ] {
        let of = serde_json::json!({ "probe": "dns", "name": name, "rcode": rcode });
        let mut order = order(server.target, keys(of));
        order.protocol = protocol;
        let outcome = tokio::time::timeout(TIMEOUT, send(&order)).await;
        let outcome = text(outcome.expect("an outcome"));
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(outcome, expected, "{protocol} {name}");
    }
}
