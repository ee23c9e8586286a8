// SPDX-License-Identifier: Apache-2.0
//! The process of a daemon: signals, the sockets of its API, and how it ends.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::serve::Listener;
use causeway_api::Moment;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::getegid;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;
use tracing::{debug, error, info, warn};

use super::access::{self, Access, Entered, Peer};
use super::api::ApiConfig;
use super::config::SocketGroup;
use super::exchange::RELOAD_TIMEOUT;
use super::http::{without_foreign_names, without_foreign_pages};
use super::linger::Lingering;
use super::notify;
use super::privileges::give_up_sys_admin;
use super::tokens::Rules;

/// How long answers in progress may take once the daemon stops.
const GRACE: Duration = Duration::from_secs(2);
/// Connections to one socket that are served at a time; others wait for their turn.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest head of a request, but for what the last read of it brings.
const HEADER_MAX: usize = 64 << 10;
/// How long a connection serves requests, and what the last answer has besides: as long as clients
/// wait for the longest.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = RELOAD_TIMEOUT;

/// Who may use the sockets.
#[derive(Clone)]
pub struct Doors {
    socket: PathBuf,
    inode: u64,
    access: Option<Access>,
}

impl Doors {
    /// Goes by the group and the files as they are now.
    pub fn renew(&self, group: Option<&SocketGroup>, api: Option<&ApiConfig>) {
        self.give_socket(group);
        if let (Some(access), Some(api)) = (&self.access, api) {
            access.replace(api);
        }
    }

    /// Goes by the files of `[api]` as they are now, where a reload was refused: a token that was
    /// taken out of them is refused, whatever else is wrong. A sentence if something is new.
    pub fn renew_files(&self) -> Option<&'static str> {
        let (is_new, faults) = self.access.as_ref()?.read_again();
        for fault in faults {
            warn!("other hosts are served as before: {fault}");
        }
        is_new.then_some("certificate and tokens of [api] are renewed all the same")
    }

    fn give_socket(&self, group: Option<&SocketGroup>) {
        let own = getegid().as_raw();
        let wanted = group.map_or(own, |group| group.id);
        let Ok(file) = fs::symlink_metadata(&self.socket) else {
            return;
        };
        if file.ino() != self.inode || file.gid() == wanted {
            return;
        }
        if let Err(error) = lchown(&self.socket, None, Some(wanted)) {
            let name = group.map_or("of the process", |group| group.name.as_str());
            warn!(
                "{} does not get the group {name}, and its members are not let in: {error}; the daemon needs CAP_CHOWN for it",
                self.socket.display()
            );
        }
    }
}

/// The sockets of the API, bound before anything else is touched.
pub struct Listeners {
    socket: PathBuf,
    /// Of the file that was bound.
    inode: u64,
    unix: UnixListener,
    tcp: Option<std::net::TcpListener>,
    /// For other hosts.
    tls: Option<(std::net::TcpListener, Access)>,
}

impl Listeners {
    /// Binds what the configuration names. The socket of a daemon that is gone
    /// is replaced, that of a running one is an error. An address that cannot be had is
    /// done without.
    pub fn bind(
        (socket, group): (&Path, Option<&SocketGroup>),
        http: Option<SocketAddr>,
        api: Option<&ApiConfig>,
    ) -> anyhow::Result<Self> {
        let unix = bind_unix(socket)?;
        let inode = inode_of(socket).unwrap_or_default();
        // The Unix socket is what steers: a port taken by another program is no reason to do
        // without it.
        let tcp = http.and_then(|address| {
            let bound = bind_tcp(address);
            bound
                .inspect_err(|error| {
                    warn!(
                        "nothing is served on http {address}, and metrics cannot be scraped there: {error}; free the port (`ss -tlnp` names its owner) and restart, or set `http` to another or to false"
                    );
                })
                .ok()
        });
        let tls = api.and_then(|api| {
            let bound = bind_tcp(api.listen).inspect_err(|error| {
                warn!(
                    "other hosts are not served on {}: {error}; correct `api.listen` and restart",
                    api.listen
                );
            });
            Some((bound.ok()?, Access::new(api)))
        });
        let listeners = Self {
            socket: socket.to_owned(),
            inode,
            unix,
            tcp,
            tls,
        };
        listeners.doors().give_socket(group);
        Ok(listeners)
    }

    /// What a reload renews. The addresses stay.
    pub fn doors(&self) -> Doors {
        Doors {
            socket: self.socket.clone(),
            inode: self.inode,
            access: self.tls.as_ref().map(|(_, access)| access.clone()),
        }
    }

    /// The Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Logs where the API is.
    pub fn announce(&self) {
        let socket = self.socket.display();
        match self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok()) {
            Some(http) => info!("serving on {socket} and http://{http}"),
            None => info!("serving on {socket}"),
        }
        let tls = self.tls.as_ref();
        let tls = tls.filter(|(_, access)| access.tls().is_some());
        if let Some(address) = tls.and_then(|(tls, _)| tls.local_addr().ok()) {
            info!("serving other hosts on https://{address}");
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // It may have been removed, and be another daemon's by now.
        if inode_of(&self.socket) == Some(self.inode) {
            // A file that cannot be removed is replaced by the next start.
            let _ = fs::remove_file(&self.socket);
        }
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|file| file.ino())
}

fn bind_tcp(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| {
            refused(
                error,
                format!("cannot make {} for the socket", parent.display()),
            )
        })?;
    }
    // Of two that start at a time neither may take the other's for an old one.
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    let directory = fs::File::open(parent)
        .with_context(|| format!("cannot open {} for the socket", parent.display()))?;
    let _one = Flock::lock(directory, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("cannot lock {} for the socket", parent.display()))?;
    match UnixStream::connect(path) {
        Ok(_) => bail!(
            "another daemon serves {}; stop it first, or set `socket`, and `pin_dir` where there is one, to others",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if !is_socket {
                bail!(
                    "{} is not a socket; set `socket` to another path",
                    path.display()
                );
            }
            fs::remove_file(path)
                .with_context(|| format!("cannot replace the old socket {}", path.display()))?;
        }
        Err(_) => {}
    }
    // The socket must never be open to all, not even between bind and chmod.
    let old = umask(Mode::from_bits_truncate(0o117));
    let bound = UnixListener::bind(path);
    umask(old);
    let listener =
        bound.map_err(|error| refused(error, format!("cannot listen on {}", path.display())))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The error, with the way out where rights are missing.
fn refused(error: std::io::Error, what: String) -> anyhow::Error {
    let out = match error.kind() {
        ErrorKind::PermissionDenied => "; run as root, or set `socket` to another path",
        _ => "",
    };
    anyhow::Error::new(error).context(what + out)
}

/// What a daemon has before anything else: its runtime, and its signals. Those that come
/// while it starts wait until it serves.
pub struct Process {
    runtime: Runtime,
    signals: Signals,
}

struct Signals {
    hangup: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Process {
    /// To be called before the configuration is read, while there is one thread: from here
    /// on SIGTERM and SIGINT leave no socket behind, and SIGHUP reads what was changed since.
    pub fn begin() -> anyhow::Result<Self> {
        // One that came between a handler and its listener would be lost.
        let set: SigSet = Signals::ALL.into_iter().collect();
        set.thread_block().context("cannot hold signals")?;
        // Its threads wait until they are caught, and hold none from then on: a command that one starts
        // holds what its thread does.
        let caught = Arc::new(OnceLock::new());
        let is_caught = Arc::clone(&caught);
        // They serve, and take no part in a start: what only that needs they never have.
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(move || {
                is_caught.wait();
                if let Err(error) = set.thread_unblock() {
                    warn!("commands that are started hold signals back: {error}");
                }
                if let Err(error) = give_up_sys_admin() {
                    warn!("cannot give up CAP_SYS_ADMIN: {error}");
                }
            })
            .enable_all()
            .build()
            .context("cannot start threads")?;
        let signals = {
            let _context = runtime.enter();
            Signals::catch()
        };
        // Also if it has failed: a runtime ends once its threads have.
        let _ = caught.set(());
        let signals = signals.context("cannot catch signals")?;
        set.thread_unblock().context("cannot take signals")?;
        Ok(Self { runtime, signals })
    }
}

impl Signals {
    const ALL: [Signal; 3] = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT];

    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// What to serve where.
pub struct Routers {
    /// On the Unix socket.
    pub unix: Router,
    /// On the loopback address: reads only.
    pub tcp: Router,
    /// What the routes of `unix` ask of other hosts, which are served them by TLS.
    pub rules: Rules,
}

/// The daemon's end, among a request's extensions: for answers that wait for news.
#[derive(Debug, Clone)]
pub struct DaemonEnd(watch::Receiver<()>);

impl DaemonEnd {
    /// Waits until the daemon stops.
    pub async fn come(mut self) {
        // Nothing is ever sent: its sender goes.
        let _ = self.0.changed().await;
    }
}

/// What a daemon does beside serving.
pub struct Work<R, W, F> {
    /// What SIGHUP calls, on a thread of its own: a disk may keep it waiting. It says what
    /// now holds.
    pub reload: R,
    /// Whether the work goes on, for systemd's watchdog.
    pub works: W,
    /// Gives a reason to end.
    pub failed: F,
}

/// Serves until SIGTERM or SIGINT, or until `work` has failed.
pub fn serve_routers<E: Display>(
    process: Process,
    routers: Routers,
    listeners: &Listeners,
    work: Work<
        impl Fn() -> Result<String, E> + Send + Sync + 'static,
        impl FnMut() -> bool,
        impl Future<Output = anyhow::Error>,
    >,
) -> anyhow::Result<()> {
    let Process { runtime, signals } = process;
    let result = runtime.block_on(serve_async(signals, routers, listeners, work));
    runtime.shutdown_timeout(GRACE);
    result
}

async fn serve_async<E: Display>(
    mut signals: Signals,
    routers: Routers,
    listeners: &Listeners,
    work: Work<
        impl Fn() -> Result<String, E> + Send + Sync + 'static,
        impl FnMut() -> bool,
        impl Future<Output = anyhow::Error>,
    >,
) -> anyhow::Result<()> {
    let Work {
        reload,
        mut works,
        failed,
    } = work;
    let mut servers = JoinSet::new();
    let mut reloads = Reloads::of(reload);
    let mut failed = pin!(failed);
    let watched = notify::watchdog_period();
    // Never where nothing watches.
    let mut watch = tokio::time::interval(watched.unwrap_or(Duration::from_secs(1 << 30)));
    watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (stop, stopped) = watch::channel(());
    let unix = tokio::net::UnixListener::from_std(listeners.unix.try_clone()?)?;
    let audited = access::audited(routers.unix);
    let router = without_foreign_pages(access::by_user(audited.clone(), routers.rules));
    servers.spawn(answer(unix, router, by_socket, stopped.clone()));
    if let Some(tcp) = &listeners.tcp {
        let tcp = tokio::net::TcpListener::from_std(tcp.try_clone()?)?;
        let router = without_foreign_names(routers.tcp);
        servers.spawn(answer(tcp, router, by_loopback, stopped.clone()));
    }
    if let Some((tls, access)) = &listeners.tls {
        let tls = tokio::net::TcpListener::from_std(tls.try_clone()?)?;
        let router = access::guarded(audited, access.clone(), routers.rules);
        let access = access.clone();
        let enter = move |stream, address| by_tls(access.clone(), stream, address);
        servers.spawn(answer(tls, router, enter, stopped));
    }
    notify::ready();
    let result = loop {
        tokio::select! {
            _ = signals.hangup.recv() => reloads.ask(),
            () = reloads.end(), if reloads.run() => {}
            _ = watch.tick(), if watched.is_some() => {
                if works() {
                    notify::works();
                }
            }
            _ = signals.terminate.recv() => break Ok(()),
            _ = signals.interrupt.recv() => break Ok(()),
            error = &mut failed => break Err(error),
        }
    };
    notify::stopping();
    drop(stop);
    // Requests in progress get their answers, as far as they come in time.
    let answered = async { while servers.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, answered).await;
    result
}

/// A connection that has been let in.
struct Entrance<S> {
    stream: S,
    peer: Peer,
    _entered: Option<Entered>,
}

impl<S> Entrance<S> {
    fn of(stream: S, peer: Peer) -> Self {
        Self {
            stream,
            peer,
            _entered: None,
        }
    }
}

async fn by_socket(
    stream: tokio::net::UnixStream,
    _: tokio::net::unix::SocketAddr,
) -> Option<Entrance<tokio::net::UnixStream>> {
    let user = stream.peer_cred().ok().map(|user| user.uid());
    Some(Entrance::of(stream, Peer::Socket(user)))
}

async fn by_loopback(stream: TcpStream, address: SocketAddr) -> Option<Entrance<TcpStream>> {
    Some(Entrance::of(stream, Peer::Host(address)))
}

async fn by_tls(
    access: Access,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<Entrance<TlsStream<TcpStream>>> {
    let entered = access.enter(address.ip())?;
    let handshake = TlsAcceptor::from(access.tls()?).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    let stream = match stream {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!("no TLS with {address}: {error}");
            return None;
        }
        Err(_) => return None,
    };
    Some(Entrance {
        stream,
        peer: Peer::Host(address),
        _entered: Some(entered),
    })
}

/// Answers connections until asked to stop; then what was asked by then. One that sends
/// no request, or takes no answer, is closed: any local user may come by TCP, and a
/// descriptor that is held is one that probes and rings do not get.
async fn answer<L, S, F>(
    mut listener: L,
    router: Router,
    enter: impl Fn(L::Io, L::Addr) -> F,
    mut stopped: watch::Receiver<()>,
) where
    L: Listener,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<Entrance<S>>> + Send + 'static,
{
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&free).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, (stream, address)) = tokio::select! {
            accepted = accepted => accepted,
            _ = stopped.changed() => break,
        };
        let entrance = enter(stream, address);
        let (router, mut stopped) = (router.clone(), stopped.clone());
        connections.spawn(async move {
            let _place = place;
            let entrance = tokio::select! {
                entrance = entrance => entrance,
                _ = stopped.changed() => None,
            };
            let Some(Entrance {
                stream,
                peer,
                _entered,
            }) = entrance
            else {
                return;
            };
            let end = DaemonEnd(stopped.clone());
            let service = router.map_request(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(end.clone());
                request
            });
            let service = TowerToHyperService::new(service);
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .max_buf_size(HEADER_MAX)
                .header_read_timeout(HEADER_TIMEOUT);
            let mut connection =
                pin!(builder.serve_connection(TokioIo::new(Lingering::new(stream)), service));
            // What goes wrong in a connection is its client's to see.
            tokio::select! {
                _ = connection.as_mut() => return,
                () = tokio::time::sleep(CONNECTION_LIFE) => {}
                _ = stopped.changed() => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, connection).await;
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// What SIGHUP asks for: one reload at a time, and one more after it for all that came meanwhile.
struct Reloads<R> {
    reload: Arc<R>,
    running: JoinSet<()>,
    wanted: bool,
}

impl<E: Display, R: Fn() -> Result<String, E> + Send + Sync + 'static> Reloads<R> {
    fn of(reload: R) -> Self {
        Self {
            reload: Arc::new(reload),
            running: JoinSet::new(),
            wanted: false,
        }
    }

    fn ask(&mut self) {
        self.wanted = true;
        self.begin();
    }

    fn begin(&mut self) {
        if self.run() || !std::mem::take(&mut self.wanted) {
            return;
        }
        let reload = Arc::clone(&self.reload);
        self.running.spawn_blocking(move || log_reload(&*reload));
    }

    /// Whether one has not ended yet.
    fn run(&self) -> bool {
        !self.running.is_empty()
    }

    /// Waits until the one that runs has ended.
    async fn end(&mut self) {
        if let Some(Err(error)) = self.running.join_next().await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        self.begin();
    }
}

fn log_reload<E: Display>(reload: &impl Fn() -> Result<String, E>) {
    notify::reloading(Moment::now().monotonic_ns);
    match reload() {
        Ok(summary) => info!("reloaded: {summary}"),
        Err(error) => error!("reload refused, the former configuration stays: {error}"),
    }
    notify::ready();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What holds back SIGTERM lets no script end what it has started.
    #[test]
    fn commands_are_started_with_no_signal_held_back() {
        let held = || {
            let mut grep = Command::new("grep");
            let status = grep.args(["SigBlk", "/proc/self/status"]);
            let status = status.output().expect("grep runs").stdout;
            String::from_utf8(status).expect("a line")
        };
        let free = "SigBlk:\t0000000000000000\n";
        let process = Process::begin().expect("a process");
        let here = held();
        let (of_worker, of_blocking) = process.runtime.block_on(async {
            let of_worker = tokio::spawn(async move { held() });
            let of_blocking = tokio::task::spawn_blocking(held);
            (of_worker.await, of_blocking.await)
        });
        assert_eq!(here, free);
        assert_eq!(of_worker.expect("a worker"), free);
        assert_eq!(of_blocking.expect("a thread"), free);
    }
}
