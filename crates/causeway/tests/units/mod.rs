// SPDX-License-Identifier: Apache-2.0
//! systemd's units of packaging/systemd/, and how they start the binary, without systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

/// The values of a key of a unit, in their order.
#[allow(dead_code, reason = "not every test that uses this module asks for it")]
pub(crate) fn values(unit: &str, key: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../packaging/systemd/{unit}.service"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

/// A command that ends in `binary`, with no other capabilities than the unit's, and killed by any
/// system call that the unit's filter would refuse.
#[allow(dead_code, reason = "as above")]
pub(crate) fn confined(unit: &str, binary: &str) -> Command {
    let sets = values(unit, "CapabilityBoundingSet");
    let [set] = &sets[..] else {
        panic!("{unit} has {} bounding sets", sets.len());
    };
    let kept = set
        .split_whitespace()
        .map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = kept.map(|name| format!(",+{name}")).collect();
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--bounding-set=-all{kept}"))
        .args(["--inh-caps=-all", "--no-new-privs", "--"])
        .arg(binary);
    let filter = filter(unit);
    // SAFETY: two system calls between fork and exec; the filter is made before.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut(),
            };
            let filters = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, filters, &raw const program) == 0;
            if set {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
    command
}

#[cfg(target_arch = "x86_64")]
const CALLS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
#[cfg(target_arch = "aarch64")]
const CALLS: &str = "/usr/include/asm-generic/unistd.h";

/// The unit's filter for seccomp(2), which kills where systemd's refuses.
fn filter(unit: &str) -> Vec<libc::sock_filter> {
    let text = fs::read_to_string(CALLS).expect("the kernel's headers: linux-libc-dev");
    let numbers: BTreeMap<&str, u32> = text
        .lines()
        .filter_map(|line| {
            let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
            Some((name, number.trim().parse().ok()?))
        })
        .collect();
    let mut names = BTreeSet::new();
    let sets = values(unit, "SystemCallFilter");
    assert!(!sets.is_empty(), "{unit} has no SystemCallFilter");
    sets.iter()
        .flat_map(|set| set.split_whitespace())
        .for_each(|name| expand(name, &mut names));
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let (load, equal) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
    );
    let back = |action| step(libc::BPF_RET | libc::BPF_K, 0, action);
    // struct seccomp_data begins with the call's number.
    let mut filter = vec![step(load, 0, 0)];
    for number in names.iter().filter_map(|name| numbers.get(name.as_str())) {
        filter.push(step(equal, 1, *number));
        filter.push(back(libc::SECCOMP_RET_ALLOW));
    }
    assert!(filter.len() > 200, "{names:?}");
    filter.push(back(libc::SECCOMP_RET_KILL_PROCESS));
    filter
}

/// A call, or all of one of systemd's groups.
fn expand(name: &str, names: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        names.insert(name.to_owned());
        return;
    }
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", name])
        .output()
        .expect("run systemd-analyze");
    assert!(output.status.success(), "{name}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let members = text.lines().skip(1).map(str::trim);
    members
        .filter(|member| !member.is_empty() && !member.starts_with('#'))
        .for_each(|member| expand(member, names));
}
