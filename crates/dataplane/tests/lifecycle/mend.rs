// SPDX-License-Identifier: Apache-2.0
//! Interfaces and pins that go away while a balancer runs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use causeway_core::cookie::{CookieKey, CookieLayout, CookieMode, KeyEpoch, Keys};
use causeway_dataplane::abi::ServerCookie;

use super::sandbox::run;
use super::syn_hooks::{attach_last_word, exchange, programs, verdict};
use super::*;

fn mended(lb: &LoadBalancer) -> (Option<String>, usize) {
    let changes = lb.mend().unwrap_or_else(|e| panic!("{e}"));
    (changes.attached.map(|to| to.name), changes.pinned)
}

fn unmended(lb: &LoadBalancer) -> String {
    lb.mend().expect_err("something is wrong").to_string()
}

fn is_attached(lb: &LoadBalancer) -> bool {
    lb.is_attached().expect("the link's state")
}

#[test]
fn an_interface_that_is_made_anew_gets_the_program() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, _) = furnish(&lb);
        assert_eq!(mended(&lb), (None, 0));
        ip("link del lb0");
        drop(peer);
        let said = unmended(&lb);
        assert!(said.contains("interface lb0 is gone"), "{said}");
        assert!(!is_attached(&lb));
        let peer = veth();
        let intruder = attach_pass("lb0", c"intruder");
        let said = unmended(&lb);
        assert!(said.contains("XDP program intruder"), "{said}");
        assert!(!is_attached(&lb));
        drop(intruder);
        // Another test's child may hold a copy of the descriptor until it runs its program.
        wait_for("the end of the intruder", || {
            !run("ip", "link show lb0").contains("xdp")
        });
        assert_eq!(mended(&lb), (Some("lb0".to_owned()), 0));
        assert!(is_attached(&lb));
        assert_eq!(mended(&lb), (None, 0));
        let before = packets(&lb);
        peer.run(|| knock("10.7.0.1", 1));
        wait_for("packets", || packets(&lb) > before);
        drop(lb);
        let (lb, started) = LoadBalancer::start(&options).expect("a takeover");
        assert!(started.took_over);
        assert_eq!(lb.vips()[0].1, vip);
    });
}

/// The program stays with its interface, whatever that is called.
#[test]
fn an_interface_with_another_name_keeps_the_program() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        peer.ip("link set peer0 down");
        wait_for("no carrier", || {
            lb.mend()
                .is_err_and(|e| e.to_string().contains("lb0 has no carrier"))
        });
        peer.ip("link set peer0 up");
        wait_for("the carrier", || lb.mend().is_ok());
        ip("link set lb0 down");
        let said = unmended(&lb);
        assert!(said.contains("`ip link set lb0 up`"), "{said}");
        ip("link set lb0 name other0");
        ip("link set other0 up");
        let said = unmended(&lb);
        assert!(said.contains("lb0 is called other0 now"), "{said}");
        assert!(is_attached(&lb));
        // One that has the name now is another.
        ip("link add lb0 type veth peer name peer1");
        assert_eq!(unmended(&lb), said);
        ip("link del lb0");
        ip("link set other0 down");
        ip("link set other0 name lb0");
        ip("link set lb0 up");
        wait_for("the interface", || lb.mend().is_ok());
    });
}

#[test]
fn an_interface_that_has_left_the_namespace_is_followed_by_one_of_its_name() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        let elsewhere = Netns::new();
        ip(&format!("link set lb0 netns {}", elsewhere.path()));
        let said = unmended(&lb);
        assert!(said.contains("interface lb0 is gone"), "{said}");
        assert!(!is_attached(&lb));
        ip("link add lb0 type veth peer name peer1");
        assert_eq!(mended(&lb), (Some("lb0".to_owned()), 0));
        let there = elsewhere.run(|| run("ip", "-d link show lb0"));
        assert!(!there.contains("prog/xdp"), "{there}");
    });
}

#[test]
fn pins_that_are_removed_are_made_again() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let pin_dir = sandbox.pin_dir("lb");
        let options = options("lb0", &pin_dir);
        let lb = start(&options);
        furnish(&lb);
        let all = fs::read_dir(&pin_dir).expect("pins").count();
        for name in ["vips", "link_lb", "layout"] {
            fs::remove_file(pin_dir.join(name)).expect("a pin");
        }
        assert_eq!(mended(&lb), (None, 2), "and the layout");
        // The directory goes, too.
        fs::remove_dir_all(&pin_dir).expect("the pins");
        assert_eq!(mended(&lb), (None, all - 1));
        assert_eq!(fs::read_dir(&pin_dir).expect("pins").count(), all);
        let refused = LoadBalancer::start(&options).map(drop).expect_err("locked");
        assert!(matches!(refused, DataPlaneError::Busy(_)), "{refused}");
        // Another's pins are left alone.
        fs::remove_dir_all(&pin_dir).expect("the pins");
        fs::create_dir_all(pin_dir.join("other")).expect("a directory");
        let said = unmended(&lb);
        assert!(said.contains("not of this process"), "{said}");
        fs::remove_dir_all(&pin_dir).expect("the pins");
        assert_eq!(mended(&lb), (None, all - 1));
        drop(lb);
        let (lb, started) = LoadBalancer::start(&options).expect("a takeover");
        assert!(started.took_over && lb.vips().len() == 1);
    });
}

/// Both hooks of an interface: as `tc` calls them, as links do, and as filters do.
const HOOKS: [(
    &str,
    libbpf_sys::bpf_attach_type,
    libbpf_sys::bpf_tc_attach_point,
); 2] = [
    (
        "egress",
        libbpf_sys::BPF_TCX_EGRESS,
        libbpf_sys::BPF_TC_EGRESS,
    ),
    (
        "ingress",
        libbpf_sys::BPF_TCX_INGRESS,
        libbpf_sys::BPF_TC_INGRESS,
    ),
];

/// On each hook of lb0: programs by links, and whether there is a filter of ours, which kernels
/// before 6.6 have alone.
fn on_hooks() -> [(u32, bool); 2] {
    HOOKS.map(|(way, hook, _)| {
        let filters = run("tc", &format!("filter show dev lb0 {way}"));
        (programs("lb0", hook), filters.contains("0xca5e"))
    })
}

/// Takes the cookie programs of lb0 off.
pub(super) fn take_off_by_hand(pins: &Path) {
    if !pins.join("hook_causeway_cookie_in").exists() {
        run("tc", "qdisc del dev lb0 clsact");
        return;
    }
    for way in ["out", "in"] {
        let pin = pins.join(format!("hook_causeway_cookie_{way}"));
        let pin = std::ffi::CString::new(pin.to_str().expect("a path")).expect("a path");
        // SAFETY: the path lives through the call; the descriptor is new.
        let link = unsafe {
            let link = libbpf_sys::bpf_obj_get(pin.as_ptr());
            assert!(link >= 0, "open a link: {link}");
            OwnedFd::from_raw_fd(link)
        };
        // SAFETY: a descriptor.
        let ret = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
        assert_eq!(ret, 0, "detach a link");
    }
}

/// Segments with cookies, on the way out and on the way in, of handshakes.
fn with_cookies(server: &Decapsulator) -> [u64; 2] {
    let events = server.cookie_events().expect("events");
    [ServerCookie::SynAck, ServerCookie::RestoredOpening].map(|of| {
        let found = events.iter().find(|(event, _)| *event == of);
        found.expect("an event").1
    })
}

#[test]
fn cookies_are_written_in_front_of_programs_that_end_with_a_verdict() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let last_word = HOOKS.map(|(_, hook, _)| attach_last_word("lb0", hook));
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        let key = CookieKey::from_words([1, 2]);
        let keys = Keys::new(KeyEpoch::Zero, key, None);
        server.set_cookie_keys(Some(&keys)).expect("keys");
        let vip = Vip {
            address: addr("10.7.0.1"),
            port: 8080,
            protocol: Protocol::Tcp,
        };
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let vips = BTreeMap::from([(vip, (1, layout))]);
        server.set_cookie_vips(&vips).expect("a VIP");
        exchange(&peer);
        wait_for("cookies", || with_cookies(&server).iter().all(|&n| n > 0));
        // Of one that comes later, too, and in the hands of the next agent, once.
        drop(last_word);
        let _last_word = HOOKS.map(|(_, hook, _)| attach_last_word("lb0", hook));
        drop(server);
        let (server, started) = Decapsulator::start(&options).expect("a takeover");
        assert!(started.took_over);
        let before = with_cookies(&server);
        exchange(&peer);
        wait_for("more cookies", || {
            let now = with_cookies(&server);
            now[0] > before[0] && now[1] > before[1]
        });
        drop(server);
        Decapsulator::detach(&options.pin_dir).expect("a detach");
        assert_eq!(on_hooks(), [(1, false); 2], "the others'");
    });
}

/// Else a segment would meet both.
#[test]
fn filters_of_an_earlier_build_make_room() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let index = nix::net::if_::if_nametoindex("lb0").expect("the interface");
        // TC_ACT_UNSPEC
        let earlier = verdict(-1);
        let hook = |point| libbpf_sys::bpf_tc_hook {
            sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
            ifindex: index as i32,
            attach_point: point,
            ..Default::default()
        };
        run("tc", "qdisc add dev lb0 clsact");
        for (_, _, point) in HOOKS {
            let mut filter = libbpf_sys::bpf_tc_opts {
                sz: size_of::<libbpf_sys::bpf_tc_opts>() as _,
                prog_fd: earlier.as_raw_fd(),
                handle: 0xca5e,
                priority: 42,
                ..Default::default()
            };
            // SAFETY: structs of the sizes that they say; the program lives through the call.
            let ret = unsafe { libbpf_sys::bpf_tc_attach(&hook(point), &mut filter) };
            assert_eq!(ret, 0, "set a filter");
        }
        assert_eq!(on_hooks(), [(0, true); 2]);
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        for (links, is_filter) in on_hooks() {
            assert_eq!(links + u32::from(is_filter), 1, "one way or the other");
        }
        drop(server);
        Decapsulator::detach(&options.pin_dir).expect("a detach");
        assert_eq!(on_hooks(), [(0, false); 2]);
    });
}

#[test]
fn a_control_group_that_comes_and_goes_with_its_service_is_followed() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let groups = causeway_dataplane::root_cgroup().expect("control groups of version 2");
        let group = groups.join(format!("causeway-{}", std::process::id()));
        let pins = sandbox.pin_dir("server");
        let options = in_group(&pins, &group);
        let (server, _) = Decapsulator::start(&options).expect("the service may be down");
        let mend = || server.mend().map_err(|error| error.to_string());
        let set = || mend().map(|changes| (changes.filters, changes.pinned));
        let said = mend().expect_err("no group");
        assert!(said.contains("there is no control group"), "{said}");
        fs::create_dir(&group).expect("a group");
        assert_eq!(set(), Ok((1, 0)));
        assert_eq!(mend(), Ok(Repairs::default()));
        // The service starts anew.
        fs::remove_dir(&group).expect("no group");
        fs::create_dir(&group).expect("another group");
        wait_for("its program", || set() == Ok((1, 0)));
        assert_eq!(mend(), Ok(Repairs::default()));
        assert!(pins.join("link_cookie_open").exists());
        drop(server);
        let (server, _) = Decapsulator::start(&options).expect("a takeover");
        assert_eq!(server.mend().expect("a look"), Repairs::default());
        drop(server);
        Decapsulator::detach(&pins).expect("a detach");
        fs::remove_dir(&group).expect("no group");
    });
}

/// How many sockops programs a control group has of its own.
fn sockops_of(group: &Path) -> u32 {
    let directory = fs::File::open(group).expect("a control group");
    let mut count = 0;
    // SAFETY: a descriptor and a number to write to; no list is asked for.
    let ret = unsafe {
        libbpf_sys::bpf_prog_query(
            directory.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &mut count,
        )
    };
    assert_eq!(ret, 0, "ask for programs");
    count
}

fn in_group(pins: &Path, cgroup: &Path) -> DecapsulatorOptions {
    DecapsulatorOptions {
        cookies: Some(CookieHooks {
            cgroup: Some(cgroup.to_owned()),
        }),
        ..server_options(pins)
    }
}

#[test]
fn another_control_group_gets_the_program_in_the_place_of_the_former() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let groups = causeway_dataplane::root_cgroup().expect("control groups of version 2");
        let group = |name| groups.join(format!("causeway-{name}-{}", std::process::id()));
        let [former, wanted] = ["former", "wanted"].map(group);
        fs::create_dir(&former).expect("a group");
        let pins = sandbox.pin_dir("server");
        let start = |group| {
            let (server, _) = Decapsulator::start(&in_group(&pins, group)).expect("a server");
            server
        };
        drop(start(&former));
        assert_eq!(sockops_of(&former), 1);
        // While the service of the new one is down the old one stays.
        let server = start(&wanted);
        let said = server.mend().expect_err("no group").to_string();
        assert!(said.contains("there is no control group"), "{said}");
        assert_eq!(sockops_of(&former), 1);
        fs::create_dir(&wanted).expect("another group");
        let changes = server.mend().expect("a group");
        assert_eq!((changes.filters, changes.pinned), (1, 0));
        assert_eq!([&former, &wanted].map(|of| sockops_of(of)), [0, 1]);
        drop(server);
        let server = start(&former);
        assert_eq!([&former, &wanted].map(|of| sockops_of(of)), [1, 0]);
        assert_eq!(server.mend().expect("a look"), Repairs::default());
        drop(server);
        assert_eq!(sockops_of(&former), 1, "its link is pinned");
        Decapsulator::detach(&pins).expect("a detach");
        assert_eq!(sockops_of(&former), 0);
        for group in [former, wanted] {
            fs::remove_dir(&group).expect("no group");
        }
    });
}

#[test]
fn a_control_group_that_is_made_anew_gets_the_program_while_sockets_keep_the_former() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let groups = causeway_dataplane::root_cgroup().expect("control groups of version 2");
        let group = groups.join(format!("causeway-kept-{}", std::process::id()));
        fs::create_dir(&group).expect("a group");
        let pins = sandbox.pin_dir("server");
        let (server, _) = Decapsulator::start(&in_group(&pins, &group)).expect("a server");
        // Opens a socket in the group and leaves it.
        let script = format!(
            "echo $$ >{0}/cgroup.procs; exec 3<>/dev/udp/10.7.0.2/9; \
             echo $$ >{1}/cgroup.procs; echo; read -r",
            group.display(),
            groups.display()
        );
        let mut keeper = Command::new("bash")
            .args(["-ec", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let out = keeper.stdout.as_mut().expect("its output");
        out.read_exact(&mut [0]).expect("a socket");
        fs::remove_dir(&group).expect("no group");
        fs::create_dir(&group).expect("another group");
        wait_for("its program", || {
            server.mend().is_ok_and(|changes| changes.filters == 1)
        });
        assert_eq!(sockops_of(&group), 1);
        assert_eq!(server.mend().expect("a look"), Repairs::default());
        drop(keeper.stdin.take());
        keeper.wait().expect("the end of bash");
        drop(server);
        Decapsulator::detach(&pins).expect("a detach");
        fs::remove_dir(&group).expect("no group");
    });
}

#[test]
fn a_servers_interface_that_is_made_anew_gets_all_programs() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        let mend = || server.mend().map_err(|error| error.to_string());
        let filters = || on_hooks().map(|(links, is_filter)| links > 0 || is_filter);
        assert_eq!(mend(), Ok(Repairs::default()));
        ip("link del lb0");
        let said = mend().expect_err("no interface");
        assert!(said.contains("interface lb0 is gone"), "{said}");
        let _peer = veth();
        assert_eq!(filters(), [false, false]);
        let changes = mend().expect("an interface");
        assert_eq!(changes.attached.map(|to| to.name).as_deref(), Some("lb0"));
        assert_eq!((changes.filters, changes.pinned), (2, 0));
        assert_eq!(filters(), [true, true]);
        assert!(run("ip", "link show lb0").contains("xdp"));
        // By hand.
        let pins = sandbox.pin_dir("server");
        take_off_by_hand(&pins);
        assert_eq!(filters(), [false, false]);
        assert_eq!(mend().map(|changes| changes.filters), Ok(2));
        assert_eq!(filters(), [true, true]);
        let all = fs::read_dir(&pins).expect("pins").count();
        assert!(!server.sees_opening() || pins.join("link_cookie_open").exists());
        fs::remove_dir_all(&pins).expect("the pins");
        assert_eq!(mend().map(|changes| changes.pinned), Ok(all - 1));
        assert_eq!(
            fs::read_dir(&pins).expect("pins").count(),
            all,
            "and the layout"
        );
        assert_eq!(mend(), Ok(Repairs::default()));
    });
}
