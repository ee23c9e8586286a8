// SPDX-License-Identifier: Apache-2.0
//! Interfaces and pins that go away while a balancer runs.

use std::fs;

use super::sandbox::run;
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

#[test]
fn a_servers_interface_that_is_made_anew_gets_all_programs() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        let mend = || server.mend().map_err(|error| error.to_string());
        let filters = || {
            ["egress", "ingress"].map(|way| {
                // The kernel keeps fifteen letters of a name.
                run("tc", &format!("filter show dev lb0 {way}")).contains("causeway_cookie")
            })
        };
        assert_eq!(mend(), Ok(HoldChanges::default()));
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
        run("tc", "qdisc del dev lb0 clsact");
        assert_eq!(mend().map(|changes| changes.filters), Ok(2));
        let pins = sandbox.pin_dir("server");
        let all = fs::read_dir(&pins).expect("pins").count();
        assert!(!server.sees_opening() || pins.join("link_cookie_open").exists());
        fs::remove_dir_all(&pins).expect("the pins");
        assert_eq!(mend().map(|changes| changes.pinned), Ok(all - 1));
        assert_eq!(
            fs::read_dir(&pins).expect("pins").count(),
            all,
            "and the layout"
        );
        assert_eq!(mend(), Ok(HoldChanges::default()));
    });
}
