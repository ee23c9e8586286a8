// SPDX-License-Identifier: Apache-2.0
//! Private namespaces for tests. Each test runs on a thread with mounts and a
//! network of its own; the kernel removes both when the thread is gone.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::ffi::CStr;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// A private BPF file system.
pub(crate) struct Sandbox {
    bpffs: tempfile::TempDir,
}

impl Sandbox {
    /// Runs `test` in namespaces of its own. Without root this fails: a test that
    /// cannot run has not passed.
    pub(crate) fn run(test: impl FnOnce(&Sandbox) + Send + 'static) {
        let thread = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
                .expect("these tests need root: they make namespaces and load BPF programs");
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).expect("make mounts private");
            let bpffs = tempfile::tempdir().expect("a directory for the BPF file system");
            mount(none, bpffs.path(), Some("bpf"), MsFlags::empty(), none).expect("mount bpffs");
            ip("link set lo up");
            test(&Sandbox { bpffs });
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    /// A pin directory that does not exist yet.
    pub(crate) fn pin_dir(&self, name: &str) -> PathBuf {
        self.bpffs.path().join(name)
    }

    /// The BPF file system.
    pub(crate) fn bpffs(&self) -> &Path {
        self.bpffs.path()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Without this the temporary directory cannot be removed.
        let _ = nix::mount::umount2(self.bpffs.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

/// From now on this thread, and those that it starts, run as soon as they can, before
/// all ordinary ones: for tests that compare times, whatever else the machine does.
/// Where that is not allowed they run as they did.
pub(crate) fn run_first() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: a valid thread and a parameter that outlives the call.
    unsafe { libc::pthread_setschedparam(libc::pthread_self(), libc::SCHED_FIFO, &first) };
}

/// A network namespace beside that of the test.
pub(crate) struct Netns(File);

impl Netns {
    pub(crate) fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            let ns = File::open("/proc/thread-self/ns/net").expect("the new namespace");
            ip("link set lo up");
            ns
        };
        Self(thread::spawn(make).join().expect("a network namespace"))
    }

    /// That of the calling thread.
    pub(crate) fn current() -> Self {
        Self(File::open("/proc/thread-self/ns/net").expect("the own namespace"))
    }

    /// That of the first process.
    pub(crate) fn of_init() -> Self {
        Self(File::open("/proc/1/ns/net").expect("the first namespace"))
    }

    /// Runs `job` in this namespace and waits for it.
    pub(crate) fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            self.enter();
            job()
        };
        thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// The same namespace, for another thread.
    pub(crate) fn another(&self) -> Self {
        Self(self.0.try_clone().expect("a copy of a descriptor"))
    }

    /// Has the calling thread live in this namespace from now on.
    pub(crate) fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
    }

    /// What `ip link set IF netns` takes for this namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` with these arguments here.
    pub(crate) fn ip(&self, arguments: &str) {
        self.run(|| ip(arguments));
    }
}

/// Runs `ip` with these arguments in the namespace of the calling thread.
pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a command; fails the test with what it said if it fails.
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|e| panic!("cannot run {program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sets a variable under /proc/sys/net in the namespace of the calling thread.
pub(crate) fn sysctl(name: &str, value: &str) {
    let path = Path::new("/proc/sys/net").join(name);
    std::fs::write(&path, value).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Also where another test starts a program, which has a copy of the last listener until its `exec`.
pub(crate) fn listen(to: SocketAddr) -> TcpListener {
    let mut listener = None;
    wait_for("a port that is free again", || {
        listener = TcpListener::bind(to).ok();
        listener.is_some()
    });
    listener.expect("a listener")
}

/// Waits for `condition`, a minute at most: a busy machine may be twenty times slower than a
/// quiet one.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition() {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Waits until the kernel sends by an interface that is up: it learns of the carrier up to a second
/// later, and drops what is sent until then.
pub(crate) fn wait_for_carrier(interface: &str) {
    wait_for("the carrier", || {
        run("ip", &format!("link show {interface}")).contains("state UP")
    });
}

/// CAP_SYS_ADMIN of linux/capability.h.
pub(crate) const SYS_ADMIN: u32 = 21;

/// Takes a capability from this thread.
pub(crate) fn give_up(capability: u32) {
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: as long as this version of the calls has them.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()),
            0
        );
        sets[0][0] &= !(1 << capability);
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr()),
            0
        );
    }
}

/// Puts a program of this name, which passes everything, on an interface. It stays
/// as long as what is returned.
pub(crate) fn attach_pass(interface: &str, name: &CStr) -> OwnedFd {
    let index = nix::net::if_::if_nametoindex(interface).expect("the interface");
    // r0 = XDP_PASS; exit
    let code = [0x0000_0002_0000_00b7_u64, 0x95];
    // Frames of several buffers, too: else a long MTU refuses it.
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        prog_flags: libbpf_sys::BPF_F_XDP_HAS_FRAGS,
        ..Default::default()
    };
    // SAFETY: name, licence and code live through the call; the descriptor is new.
    let program = unsafe {
        let fd = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            &mut options,
        );
        assert!(fd >= 0, "load a program: {fd}");
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: no options; the descriptor is new.
    unsafe {
        let fd = libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            index as i32,
            libbpf_sys::BPF_XDP,
            std::ptr::null(),
        );
        assert!(fd >= 0, "attach a program: {fd}");
        OwnedFd::from_raw_fd(fd)
    }
}

/// Turns off the offload of checksums of sent packets (`ethtool -K IF tx off`).
pub(crate) fn tx_checksums_off(interface: &str) {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct EthtoolValue {
        cmd: u32,
        data: u32,
    }
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut value = EthtoolValue {
        cmd: ETHTOOL_STXCSUM,
        data: 0,
    };
    // SAFETY: zeros are a value of ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    // SAFETY: the request is an ifreq whose data is the value that the command wants.
    let ret = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    assert_eq!(
        ret,
        0,
        "turn checksums off: {}",
        std::io::Error::last_os_error()
    );
}
