// SPDX-License-Identifier: Apache-2.0
//! A private world for one run: new mount, PID, IPC and network namespaces
//! with their own `/proc`, `/run` (so `/run/netns` and `/run/causeway` too) and
//! bpffs.
//!
//! Three processes make it. The *outer* one waits, passes the exit code on and
//! sweeps what namespaces cannot hold (cgroups). Its child is *init*, PID 1 of
//! the new PID namespace, which mounts, starts the *inner* process and reaps.
//! When init ends, the kernel kills every process inside, which in turn frees
//! mounts, network namespaces and pinned BPF objects. Init asks for SIGKILL at
//! the death of the outer process, so that also SIGKILL to the outer one leaves
//! nothing behind. All three are the same executable with the same arguments;
//! an environment variable names the stage.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{env, fs, io, thread};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use crate::{cgroup, link, role};

const STAGE: &str = "CAUSEWAY_LAB_STAGE";
const STAGE_INIT: &str = "init";
/// Private scratch space; on a tmpfs, so it goes with the sandbox.
const TMP: &str = "/run/tmp";

/// Proof that this process runs inside a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Sandbox {
    _private: (),
}

impl Sandbox {
    /// The sandbox this process already is in, if any.
    pub fn current() -> Option<Self> {
        let stage = env::var_os(STAGE)?;
        (stage == pid_namespace().ok()?).then_some(Self { _private: () })
    }
}

/// Enters a sandbox with this process's own arguments.
///
/// In the outer process this never returns: it exits with the inner one's code
/// (or dies of the same signal). The inner process runs `main` again up to this
/// call and gets the sandbox. Call it early, before threads and side effects.
///
/// # Errors
/// When the user is not root or the kernel refuses a namespace or mount.
pub fn enter() -> Result<Sandbox> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if let Some(sandbox) = inside(&arguments)? {
        return Ok(sandbox);
    }
    let status = spawn_outer(&arguments)?;
    exit_like(status)
}

/// Runs `body` in a sandbox from inside a libtest test called `test` (its full
/// path as `--exact` wants it). The test passes when the inner run passes.
///
/// # Panics
/// When the sandbox cannot be made or `body` fails.
pub fn run_test(test: &str, body: impl FnOnce(Sandbox) -> Result<()>) {
    let arguments: Vec<OsString> = ["--exact", test, "--nocapture", "--test-threads=1"]
        .map(OsString::from)
        .to_vec();
    match inside(&arguments) {
        Ok(Some(sandbox)) => {
            if let Err(e) = body(sandbox) {
                panic!("{test}: {e:?}");
            }
        }
        Ok(None) => match spawn_outer(&arguments) {
            Ok(status) => assert!(status.success(), "{test} failed in its sandbox: {status}"),
            Err(e) => panic!("{test}: {e:?}"),
        },
        Err(e) => panic!("{test}: {e:?}"),
    }
}

fn inside(arguments: &[OsString]) -> Result<Option<Sandbox>> {
    if env::var_os(STAGE).is_some_and(|s| s == STAGE_INIT) {
        let code = match init(arguments) {
            Ok(code) => code,
            Err(e) => {
                eprintln!("causeway-lab: {e:#}");
                1
            }
        };
        process::exit(code);
    }
    let sandbox = Sandbox::current();
    if sandbox.is_some() {
        role::play_if_asked();
    }
    Ok(sandbox)
}

/// PID of init for the signal handler; 0 while there is none.
static INIT_PID: AtomicI32 = AtomicI32::new(0);
static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn end_init(signal: libc::c_int) {
    CAUGHT.store(signal, Ordering::SeqCst);
    let pid = INIT_PID.load(Ordering::SeqCst);
    if pid > 0 {
        // SAFETY: kill(2) is async-signal-safe; the PID is our unreaped child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

fn spawn_outer(arguments: &[OsString]) -> Result<ExitStatus> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab needs root: it makes network namespaces, mounts and BPF programs");
    }
    cgroup::sweep();
    // `unshare(CLONE_NEWPID)` counts for the calling thread's later children, and
    // the parent-death signal for the death of the forking thread, so one thread
    // of its own does both and stays until the child is gone.
    let status = thread::scope(|scope| {
        scope
            .spawn(|| spawn_init(arguments))
            .join()
            .unwrap_or_else(|_| bail!("sandbox thread panicked"))
    });
    cgroup::sweep();
    let status = status?;
    match CAUGHT.load(Ordering::SeqCst) {
        0 => Ok(status),
        signal => Ok(ExitStatus::from_raw(signal)),
    }
}

fn spawn_init(arguments: &[OsString]) -> Result<ExitStatus> {
    let outer = pidfd_of_self().context("pidfd_open")?;
    unshare(CloneFlags::CLONE_NEWPID).context(
        "cannot make a PID namespace (needs CAP_SYS_ADMIN: run as root, or a privileged container)",
    )?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env(STAGE, STAGE_INIT);
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe { command.pre_exec(move || become_init(&outer)) };
    let mut child = command.spawn().context("cannot start the sandbox")?;
    INIT_PID.store(child.id() as i32, Ordering::SeqCst);
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let action = SigAction::new(
            SigHandler::Handler(end_init),
            SaFlags::SA_RESTART,
            SigSet::empty(),
        );
        // SAFETY: the handler only stores an integer and calls kill(2).
        unsafe { sigaction(signal, &action) }.context("sigaction")?;
    }
    let status = child.wait();
    INIT_PID.store(0, Ordering::SeqCst);
    status.context("waiting for the sandbox")
}

/// Runs in the forked child: dies with the outer process, and leaves its
/// namespaces.
fn become_init(outer: &OwnedFd) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The outer process may have died before the line above: its pidfd then
    // polls readable.
    let mut poll = libc::pollfd {
        fd: outer.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd, no timeout.
    if unsafe { libc::poll(&mut poll, 1, 0) } != 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)?;
    Ok(())
}

fn pidfd_of_self() -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process::id(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn pid_namespace() -> io::Result<OsString> {
    Ok(fs::read_link("/proc/self/ns/pid")?.into_os_string())
}

/// PID 1: prepares the namespaces, starts the inner process, reaps until it
/// ends, and returns its exit code (128 + signal if a signal ended it).
fn init(arguments: &[OsString]) -> Result<i32> {
    private_mounts()?;
    link::up("lo").context("loopback")?;
    let inner = Command::new("/proc/self/exe")
        .args(arguments)
        .env(STAGE, pid_namespace()?)
        .env("TMPDIR", TMP)
        .spawn()
        .context("cannot start the inner process")?;
    let inner = Pid::from_raw(inner.id() as i32);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == inner => return Ok(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == inner => {
                return Ok(128 + signal as i32);
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e).context("wait"),
        }
    }
}

fn private_mounts() -> Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("cannot make mounts private")?;
    let fresh = |kind: &str, at: &str| {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), none)
            .with_context(|| format!("cannot mount {kind} on {at}"))
    };
    fresh("proc", "/proc")?;
    fresh("tmpfs", "/run")?;
    for directory in ["/run/netns", "/run/lock", TMP] {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {directory}"))?;
    }
    let pins = Path::new("/sys/fs/bpf");
    if pins.exists() {
        // The machine's own must not lie below: a scenario unmounts its.
        while umount2(pins, MntFlags::MNT_DETACH).is_ok() {}
        fresh("bpf", "/sys/fs/bpf")?;
    }
    Ok(())
}

/// Ends this process the way `status` ended.
fn exit_like(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal().and_then(|s| Signal::try_from(s).ok()) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: restoring the default disposition runs no code of ours.
        let _ = unsafe { sigaction(signal, &default) };
        let _ = nix::sys::signal::raise(signal);
    }
    process::exit(status.code().unwrap_or(1));
}
