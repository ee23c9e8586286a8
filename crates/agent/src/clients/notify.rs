// SPDX-License-Identifier: Apache-2.0
//! Notifications: to the log, a program, a web address. They have a thread of their own, so that a
//! slow receiver does not delay the measurement; the queue is bounded.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use causeway_api::agent::ClientEvent;
use tracing::{info, warn};

/// How long a web address or a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Events that may wait; more are dropped with a warning.
const WAITING: usize = 64;

/// Where to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Recipients {
    /// An `http://` address.
    pub webhook: Option<String>,
    /// A program with its arguments.
    pub exec: Vec<String>,
}

/// Handle of the thread that notifies. Once dropped, the thread ends when all is sent.
#[derive(Debug)]
pub(super) struct Notifier {
    events: SyncSender<(ClientEvent, Recipients)>,
}

impl Notifier {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        let (events, inbox) = sync_channel(WAITING);
        thread::Builder::new()
            .name("notify".to_owned())
            .spawn(move || run(&inbox))?;
        Ok(Self { events })
    }

    /// Logs the event and passes it on; never waits.
    pub(super) fn tell(&self, event: ClientEvent, recipients: Recipients) {
        match event.state.as_str() {
            "exceeded" => warn!("{event}"),
            _ => info!("{event}"),
        }
        if recipients == Recipients::default() {
            return;
        }
        match self.events.try_send((event, recipients)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                warn!("{WAITING} notifications wait; one more is dropped")
            }
            Err(TrySendError::Disconnected(_)) => warn!("the notifier has ended"),
        }
    }
}

fn run(inbox: &Receiver<(ClientEvent, Recipients)>) {
    while let Ok((event, recipients)) = inbox.recv() {
        let Ok(body) = serde_json::to_string(&event) else {
            continue;
        };
        if let Some(address) = &recipients.webhook
            && let Err(error) = post(address, &body)
        {
            warn!("the webhook {address} failed: {error:#}");
        }
        if let Some((program, arguments)) = recipients.exec.split_first()
            && let Err(error) = execute(program, arguments, &body)
        {
            warn!("{program} failed: {error:#}");
        }
    }
}

/// POSTs a body; any answer of 200 to 299 will do.
fn post(address: &str, body: &str) -> Result<()> {
    let rest = address
        .strip_prefix("http://")
        .context("not an http:// address")?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let with_port = match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:80"),
    };
    let mut stream = connect(with_port.to_socket_addrs()?)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).context("no answer")?;
    match &status {
        [b'H', b'T', b'T', b'P', b'/', _, _, _, _, b'2', _, _] => Ok(()),
        _ => bail!("answered {}", String::from_utf8_lossy(&status)),
    }
}

/// Connects to the first address of a name that answers; all of them share the time, so that one that
/// is silent leaves some to those behind it.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> Result<TcpStream> {
    let mut addresses = addresses.collect::<Vec<_>>().into_iter();
    let deadline = Instant::now() + TIMEOUT;
    let mut last = None;
    while let Some(to) = addresses.next() {
        let left = deadline.saturating_duration_since(Instant::now());
        let waiting = (addresses.len() as u32).saturating_add(1);
        // A time of nothing is refused, and not waited for.
        let share = (left / waiting).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&to, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no address of that name")?.into())
}

/// Runs a program with a body on its standard input, and waits for it.
fn execute(program: &str, arguments: &[String], body: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read may have ended already.
        let _ = stdin.write_all(body.as_bytes());
    }
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return match status.success() {
                true => Ok(()),
                false => bail!("ended with {status}"),
            };
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    bail!("did not end within {} s and was killed", TIMEOUT.as_secs())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn event() -> ClientEvent {
        ClientEvent {
            threshold: "slow".to_owned(),
            state: "exceeded".to_owned(),
            service: "*:80".to_owned(),
            clients: "all".to_owned(),
            device: "eth0".to_owned(),
            statistic: "p99".to_owned(),
            value_s: 2.5,
            limit_s: 2.0,
            unix_ms: 1,
            ..ClientEvent::default()
        }
    }

    #[test]
    fn a_webhook_gets_the_event_and_a_program_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/hook", listener.local_addr().unwrap());
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("told");
        let notifier = Notifier::start().unwrap();
        let script = format!("cat > {}.new && mv {0}.new {0}", file.display());
        let exec = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let webhook = Some(address);
        notifier.tell(event(), Recipients { webhook, exec });
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 1024];
        while !request.ends_with(b"}") {
            let got = stream.read(&mut buffer).unwrap();
            assert_ne!(got, 0);
            request.extend(&buffer[..got]);
        }
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .unwrap();
        let request = String::from_utf8(request).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /hook HTTP/1.1\r\n"), "{head}");
        assert_eq!(serde_json::from_str::<ClientEvent>(body).unwrap(), event());
        let deadline = Instant::now() + TIMEOUT;
        while !file.exists() {
            assert!(Instant::now() < deadline, "the program was not told");
            thread::sleep(Duration::from_millis(10));
        }
        let told = std::fs::read_to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<ClientEvent>(&told).unwrap(), event());
    }

    #[test]
    fn a_webhook_by_name_is_reached_by_any_of_its_addresses() {
        let port = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (closed, open) = (port(), port());
        let [former, there] = [&closed, &open].map(|of| of.local_addr().unwrap());
        drop(closed);
        let stream = connect([former, there].into_iter()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        assert!(connect([former].into_iter()).is_err());
        let unknown = connect(std::iter::empty()).unwrap_err();
        assert_eq!(unknown.to_string(), "no address of that name");
    }

    #[test]
    fn what_fails_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        assert!(post(&format!("http://{closed}"), "{}").is_err());
        let failed = execute("false", &[], "{}").unwrap_err();
        assert!(failed.to_string().starts_with("ended with"), "{failed}");
    }
}
