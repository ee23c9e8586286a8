// SPDX-License-Identifier: Apache-2.0
//! Rights that only a start needs, and that are given up behind it.

use std::io;

/// CAP_SYS_ADMIN of linux/capability.h.
const SYS_ADMIN: u32 = 21;
/// _LINUX_CAPABILITY_VERSION_3
const VERSION: u32 = 0x2008_0522;

/// Gives CAP_SYS_ADMIN up for good, on the calling thread and those that it starts from now on.
/// Without the right there is nothing to do.
///
/// # Errors
/// Those of capset(2), as where a filter refuses it.
pub fn give_up_sys_admin() -> io::Result<()> {
    // struct __user_cap_header_struct, then two of __user_cap_data_struct: effective, permitted
    // and inheritable, 32 capabilities each.
    let mut header = [VERSION, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both are as long as this version has them, and live through the calls.
    let mut call = |number: libc::c_long, sets: &mut [[u32; 3]; 2]| unsafe {
        match libc::syscall(number, header.as_mut_ptr(), sets.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    call(libc::SYS_capget, &mut sets)?;
    for set in &mut sets[0] {
        *set &= !(1 << SYS_ADMIN);
    }
    call(libc::SYS_capset, &mut sets)
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    /// The effective and the permitted capabilities of this thread.
    fn held() -> Vec<u64> {
        let status = fs::read_to_string("/proc/thread-self/status").expect("a status");
        let sets = status.lines().filter_map(|line| {
            let (name, set) = line.split_once(":\t")?;
            let set = u64::from_str_radix(set, 16);
            ["CapEff", "CapPrm"]
                .contains(&name)
                .then(|| set.expect("a set"))
        });
        sets.collect()
    }

    #[test]
    fn one_right_goes_and_the_others_stay_here_and_in_threads_to_come() {
        let test = || {
            let before = held();
            give_up_sys_admin().expect("root may");
            let wanted: Vec<u64> = before.iter().map(|set| set & !(1 << SYS_ADMIN)).collect();
            assert_ne!(before, wanted, "these tests need root");
            assert_eq!(held(), wanted);
            assert_eq!(thread::spawn(held).join().expect("a thread"), wanted);
        };
        thread::spawn(test).join().expect("a thread");
    }
}
