// SPDX-License-Identifier: Apache-2.0
//! Talks to a running daemon: through its Unix socket, or by TLS with a token from another host.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use causeway_api::Problem;
use causeway_service::exchange::{RELOAD_TIMEOUT, ServerUrl, segment, send};
use causeway_service::tls::{self, ClientFiles};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// How long a daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// More than the answer about a million reals is no answer.
const BODY_MAX: usize = 1 << 30;

/// How long it may take without a word.
const UNTOLD: Duration = Duration::from_secs(2);

/// Where the daemon listens; part of every command that talks to it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// Unix socket of the daemon
    #[arg(
        short,
        long,
        global = true,
        value_name = "PATH",
        default_value = "/run/causeway/lb.sock",
        env = "CAUSEWAY_SOCKET"
    )]
    pub socket: PathBuf,
    /// Address of a balancer on another host, instead of the socket: https://HOST:PORT
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "CAUSEWAY_API",
        help_heading = "Another host's daemon"
    )]
    pub api: Option<Uri>,
    #[command(flatten)]
    pub credentials: Credentials,
    /// The command that starts what listens there.
    #[arg(skip = "lb")]
    command: &'static str,
}

/// Where the agent listens.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentTarget {
    /// Unix socket of the agent
    #[arg(
        short,
        long,
        value_name = "PATH",
        default_value = "/run/causeway/agent.sock",
        env = "CAUSEWAY_AGENT_SOCKET"
    )]
    socket: PathBuf,
    /// Address of an agent on another host, instead of the socket: https://HOST:PORT
    #[arg(long, value_name = "URL", env = "CAUSEWAY_AGENT_API")]
    api: Option<Uri>,
    #[command(flatten)]
    credentials: Credentials,
}

impl From<AgentTarget> for Target {
    fn from(at: AgentTarget) -> Self {
        Self::agent(at.socket).or_at(at.api, at.credentials)
    }
}

/// What shows who asks another host.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Another host's daemon")]
pub(crate) struct Credentials {
    /// File with the token
    #[arg(long, global = true, value_name = "FILE", env = "CAUSEWAY_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificates of the authorities to trust, in PEM; without, those of the system
    #[arg(long, global = true, value_name = "FILE", env = "CAUSEWAY_CA")]
    pub ca: Option<PathBuf>,
    /// Own certificate in PEM, for a daemon that asks for one
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "CAUSEWAY_CERT",
        requires = "key"
    )]
    pub cert: Option<PathBuf>,
    /// Its private key
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "CAUSEWAY_KEY",
        requires = "cert"
    )]
    pub key: Option<PathBuf>,
}

impl Credentials {
    fn files(&self) -> ClientFiles {
        ClientFiles {
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
        }
    }
}

impl Target {
    /// The balancer at `socket`.
    pub(crate) fn balancer(socket: PathBuf) -> Self {
        Self::at(socket, "lb")
    }

    /// The agent at `socket`.
    pub(crate) fn agent(socket: PathBuf) -> Self {
        Self::at(socket, "agent")
    }

    /// The tunnel at `socket`.
    pub(crate) fn tunnel(socket: PathBuf) -> Self {
        Self::at(socket, "tunnel")
    }

    fn at(socket: PathBuf, command: &'static str) -> Self {
        Self {
            socket,
            api: None,
            credentials: Credentials::default(),
            command,
        }
    }

    /// The same daemon on another host, if one is named.
    pub(crate) fn or_at(self, api: Option<Uri>, credentials: Credentials) -> Self {
        Self {
            api,
            credentials,
            ..self
        }
    }

    /// What messages call it.
    fn name(&self) -> String {
        match &self.api {
            Some(api) => api.to_string(),
            None => self.socket.display().to_string(),
        }
    }

    /// `GET path`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::GET, path, None)?)
    }

    /// The same of what the daemon answers only after a while.
    pub(crate) fn get_after<T: DeserializeOwned>(
        &self,
        pause: Duration,
        path: &str,
    ) -> anyhow::Result<T> {
        let limits = (UNTOLD + pause, TIMEOUT + pause);
        parse(&self.call_within(limits, Method::GET, path, None)?)
    }

    /// The same where the daemon may have no such thing.
    pub(crate) fn get_if_any<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        match self.get(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is::<Absent>() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `method path` with a JSON body; the answer is not looked at.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<()> {
        let body = serde_json::to_vec(body)?;
        self.call(method, path, Some(body)).map(drop)
    }

    /// `PATCH path` with a JSON body. An error says whether something may have been changed; `look`
    /// is the command that shows it.
    pub(crate) fn change(
        &self,
        path: &str,
        body: &impl Serialize,
        look: &str,
    ) -> anyhow::Result<()> {
        self.send(Method::PATCH, path, body).map_err(|error| {
            let said = match error.is::<Unanswered>() {
                true => format!("it may have been changed, look with `{look}`"),
                false => "nothing was changed".to_owned(),
            };
            error.context(said)
        })
    }

    /// `POST path` with this text.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, text: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::POST, path, Some(text.into()))?)
    }

    /// The same, where the daemon reads its file again.
    pub(crate) fn post_for_reload<T: DeserializeOwned>(
        &self,
        path: &str,
        text: &str,
    ) -> anyhow::Result<T> {
        let limits = (UNTOLD, RELOAD_TIMEOUT);
        parse(&self.call_within(limits, Method::POST, path, Some(text.into()))?)
    }

    /// `DELETE path`, whose answer says what was there.
    pub(crate) fn delete_for<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::DELETE, path, None)?)
    }

    /// `DELETE path`.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, None).map(drop)
    }

    /// Has the daemon read its file again, and gives a summary of what is in force.
    pub(crate) fn reload(&self) -> anyhow::Result<String> {
        let limits = (UNTOLD, RELOAD_TIMEOUT);
        parse(&self.call_within(limits, Method::POST, "/v1/reload", None)?)
    }

    fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> anyhow::Result<Bytes> {
        self.call_within((UNTOLD, TIMEOUT), method, path, body)
    }

    /// Says after the first time that it waits, and ends after the second.
    fn call_within(
        &self,
        (untold, timeout): (Duration, Duration),
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> anyhow::Result<Bytes> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let asked = tokio::time::timeout(timeout, call(self, method, path, body));
            tokio::pin!(asked);
            let answer = tokio::select! {
                answer = &mut asked => answer,
                // Tell the user what the command waits for.
                () = tokio::time::sleep(untold) => {
                    eprintln!("causeway: waiting for the daemon at {}", self.name());
                    asked.await
                }
            };
            match answer {
                Ok(answer) => answer,
                Err(_) => bail!(Unanswered(format!(
                    "the daemon at {} did not answer within {} s",
                    self.name(),
                    timeout.as_secs()
                ))),
            }
        })
    }
}

async fn call(
    target: &Target,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
) -> anyhow::Result<Bytes> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let body = Full::new(Bytes::from(body.unwrap_or_default()));
    let Some(api) = &target.api else {
        let stream = UnixStream::connect(&target.socket)
            .await
            .map_err(|error| unreachable_daemon(target, &error))?;
        return exchange(stream, request.header("host", "causeway").body(body)?).await;
    };
    let host = ServerUrl::parse(&api.to_string(), "a daemon", "https://lb1.example:9470");
    let host = host.map_err(anyhow::Error::msg)?;
    let stream = TcpStream::connect((host.host.as_str(), host.port)).await;
    let stream = stream.with_context(|| format!("cannot connect to {api}"))?;
    let request = request.header("host", host.authority.as_str());
    match host.tls {
        true => {
            let stream = tls::connect(stream, &host.host, &target.credentials.files()).await?;
            let request = match target
                .credentials
                .token_file
                .as_deref()
                .map(tls::bearer)
                .transpose()?
            {
                Some(token) => request.header("authorization", token),
                None => request,
            };
            exchange(stream, request.body(body)?).await
        }
        // What is read in clear on this machine needs no token.
        false => exchange(stream, request.body(body)?).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Bytes> {
    let unanswered = || Unanswered("cannot talk to the daemon".to_owned());
    let answer = send(stream, request).await;
    let answer = answer.with_context(unanswered)?;
    let status = answer.status;
    let body = answer.read(BODY_MAX).await;
    let body = body.with_context(unanswered)?;
    match status.is_success() {
        true => Ok(body),
        false => Err(refusal(status, &body)),
    }
}

fn unreachable_daemon(target: &Target, error: &std::io::Error) -> anyhow::Error {
    let (socket, command) = (target.socket.display(), target.command);
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "no daemon runs at {socket}; start one with `causeway {command} -c FILE`, or name its socket with --socket"
        ),
        ErrorKind::ConnectionRefused => anyhow!(
            "the daemon at {socket} is gone (the data plane goes on without it); start it again with `causeway {command} -c FILE`"
        ),
        ErrorKind::PermissionDenied => {
            anyhow!("you may not use {socket}; run as root, or join the group that owns it")
        }
        _ => anyhow!("cannot connect to {socket}: {error}"),
    }
}

/// The daemon may have done what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unanswered(String);

/// Of what is not there, in the daemon's sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Absent(String);

fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if status == StatusCode::NOT_FOUND => Absent(problem.error).into(),
        Ok(problem) => anyhow!("{}", problem.error),
        Err(_) => anyhow!("the daemon answered {status}"),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body)
        .context("the daemon is of another version: its answer is not understood")
}

pub(crate) fn vip_path(vip: &str) -> String {
    format!("/v1/vips/{}", segment(vip))
}

pub(crate) fn real_path(vip: &str, real: &str) -> String {
    format!("{}/reals/{}", vip_path(vip), segment(real))
}

/// A server in all VIPs that have it.
pub(crate) fn server_path(real: &str) -> String {
    format!("/v1/reals/{}", segment(real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_one_sentence_with_a_way_on() {
        let target = Target::balancer(PathBuf::from("/nonexistent/lb.sock"));
        let error = target.get::<Problem>("/v1/status").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no daemon runs at /nonexistent/lb.sock; start one with `causeway lb -c FILE`, or name its socket with --socket"
        );
    }

    #[test]
    fn what_is_not_there_is_told_from_what_fails() {
        use std::io::{Read as _, Write as _};
        let ask = |answer: &'static str| {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("lb.sock");
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let daemon = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                let body = r#"{"error": "so it is"}"#;
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {answer}\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .unwrap();
            });
            let answer = Target::balancer(socket).get_if_any::<Problem>("/v1/fleet");
            daemon.join().unwrap();
            answer.map_err(|error| error.to_string())
        };
        assert!(matches!(ask("404 Not Found"), Ok(None)));
        assert!(ask("200 OK").is_ok_and(|found| found.is_some()));
        assert_eq!(ask("500 Internal Server Error").unwrap_err(), "so it is");
    }

    #[test]
    fn a_change_without_an_answer_may_have_been_made() {
        use std::io::{Read as _, Write as _};
        let ask = |answer: &'static str| {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("lb.sock");
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let daemon = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let target = Target::balancer(socket);
            let changed = target.change("/v1/vips/web", &[0; 0], "causeway vip list");
            daemon.join().unwrap();
            format!("{:#}", changed.unwrap_err())
        };
        for broken in ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"] {
            let said = ask(broken);
            let start = "it may have been changed, look with `causeway vip list`: ";
            assert!(said.starts_with(start), "{said}");
        }
        let refused = "HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\n{\"error\": \"no\"}";
        assert_eq!(ask(refused), "nothing was changed: no");
    }

    #[test]
    fn a_socket_without_a_daemon_says_that_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("lb.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = Target::agent(socket)
            .get::<Problem>("/v1/status")
            .unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is gone (the data plane goes on without it); start it again with `causeway agent -c FILE`")
        );
    }
}
