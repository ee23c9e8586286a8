// SPDX-License-Identifier: Apache-2.0
//! Starts that are refused, each with what is wrong.

use causeway_dataplane::{Attach, KernelMeter, MeterHook, MeterOptions};

use super::*;

#[test]
fn pins_that_do_not_say_what_they_are_are_refused() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        drop(start(&options));
        std::fs::remove_file(options.pin_dir.join("layout")).expect("remove the layout");
        let error = refusal(&options);
        assert!(
            matches!(error, DataPlaneError::OtherKind { .. }),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("something unknown") && text.contains("unload --yes"),
            "{text}"
        );
        LoadBalancer::detach(&options.pin_dir).expect("the way out");
        start(&options);
    });
}

#[test]
fn one_process_at_a_time() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        assert!(matches!(refusal(&options), DataPlaneError::Busy(_)));
        let error = LoadBalancer::detach(&options.pin_dir).expect_err("it is in use");
        assert!(matches!(error, DataPlaneError::Busy(_)), "{error:?}");
        drop(lb);
        LoadBalancer::detach(&options.pin_dir).expect("a detach");
    });
}

#[test]
fn pins_stay_with_their_interface() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let pin_dir = sandbox.pin_dir("lb");
        let lb = start(&options("lb0", &pin_dir));
        furnish(&lb);
        assert_eq!(lb.hash_key().expect("no key yet"), [0; 2]);
        lb.set_hash_key([1, 2]).expect("a key");
        drop(lb);
        let error = refusal(&options("lo", &pin_dir));
        assert!(
            matches!(&error, DataPlaneError::OtherInterface { pinned, wanted, .. } if pinned == "lb0" && wanted == "lo"),
            "{error:?}"
        );
        // Once the interface is gone its link is dead; the tables are not.
        ip("link del lb0");
        let (lb, started) = LoadBalancer::start(&options("lo", &pin_dir)).expect("a new home");
        assert!(!started.took_over);
        assert_eq!(lb.vips().len(), 1);
        assert_eq!(lb.hash_key().expect("the key"), [1, 2]);
    });
}

#[test]
fn impossible_places_and_sizes_are_refused() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        let error = refusal(&options("nowhere0", &pin_dir));
        assert!(
            matches!(&error, DataPlaneError::NoInterface(name) if name == "nowhere0"),
            "{error:?}"
        );
        let disk = tempfile::tempdir().expect("a directory");
        let error = refusal(&options("lo", &disk.path().join("pins")));
        assert!(matches!(error, DataPlaneError::NotBpffs(_)), "{error:?}");
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
        let none = LoadBalancerOptions {
            flows_v6: 0,
            ..options("lo", &pin_dir)
        };
        assert!(matches!(
            refusal(&none),
            DataPlaneError::OutOfRange {
                what: "flow_table.ipv6",
                value: 0,
                ..
            }
        ));
        assert!(!pin_dir.exists(), "a refusal leaves nothing");
    });
}

#[test]
fn without_rights_it_is_one_clear_sentence() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        // The system call, unlike the C library's function, changes this thread alone.
        // SAFETY: a plain system call.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(dropped, 0);
        let error = refusal(&options("lo", &pin_dir));
        assert!(matches!(error, DataPlaneError::NotPermitted), "{error:?}");
        assert!(error.to_string().contains("run as root"), "{error}");
        let error = LoadBalancer::detach(&pin_dir).expect_err("no rights");
        assert!(matches!(error, DataPlaneError::NotPermitted), "{error:?}");
    });
}

#[test]
fn a_foreign_program_is_refused_by_name() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let intruder = attach_pass("lb0", c"intruder");
        let wanted = options("lb0", &sandbox.pin_dir("lb"));
        let error = refusal(&wanted);
        assert!(
            matches!(&error, DataPlaneError::Foreign { program, .. } if program == "intruder"),
            "{error:?}"
        );
        drop(intruder);
        // Another test's child may hold a copy of the descriptor until it runs its program.
        wait_for("the end of the intruder", || {
            !sandbox::run("ip", "link show lb0").contains("xdp")
        });
        let lb = start(&wanted);
        // A balancer of another pin directory is foreign, too.
        let other = sandbox.pin_dir("other");
        let error = refusal(&options("lb0", &other));
        assert!(
            matches!(&error, DataPlaneError::Foreign { program, .. } if program == "causeway_lb")
                && error
                    .to_string()
                    .contains("`causeway lb unload -c FILE --yes`"),
            "{error:?}"
        );
        assert!(!other.exists(), "a refused start leaves nothing");
        drop(lb);
    });
}

#[test]
fn a_driver_that_refuses_is_named_and_not_worked_around() {
    Sandbox::run(|sandbox| {
        // With fewer receiving queues than its peer sends on, veth refuses native XDP; generic
        // would do.
        ip(
            "link add big0 numtxqueues 1 numrxqueues 1 type veth peer name big1 numtxqueues 2 numrxqueues 2",
        );
        ip("link set big0 up");
        ip("link set big1 up");
        let mut wanted = options("big0", &sandbox.pin_dir("lb"));
        let error = refusal(&wanted);
        assert!(
            matches!(error, DataPlaneError::NativeRefused { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("MTU"), "{error}");
        // What only measures does so elsewhere.
        let meter = KernelMeter::start(&MeterOptions::new("big0")).expect("a meter");
        assert_eq!(meter.hook(), MeterHook::Tc);
        assert!(meter.refused().is_some());
        drop(meter);
        let error = KernelMeter::start(&MeterOptions {
            attach: Attach::Xdp,
            ..MeterOptions::new("big0")
        });
        let error = error.expect_err("a refusal");
        assert!(error.to_string().contains("--attach tc"), "{error}");
        wanted.xdp_mode = XdpMode::Generic;
        let (_lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, AttachedMode::Generic);
    });
}
