// SPDX-License-Identifier: Apache-2.0
//! A file that is read by pieces, and again after each change, says what it says as a whole.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// What stands somewhere in a file by mistake, or in a way that few write.
const ODD: [&str; 28] = [
    "",
    "# [[vip]]",
    "[[vip]]",
    "[[ vip ]]",
    "  [[vip]]",
    "[[\"vip\"]]",
    "[vip]",
    "[vip.health]",
    "[[vip]] # one more",
    "[[vip.real]]",
    "[[vip.source]]",
    "[defaults]",
    "[pool.a]",
    "[pool.c]",
    "[measure]",
    "[vipers]",
    "vip = []",
    "]",
    "x = [",
    "names = \"\"\"",
    "\"\"\"",
    "'''",
    "real = [",
    "port = [80, 443]",
    "pool = \"b\"",
    "adress = \"192.0.2.9\"",
    "weight = 70000",
    "stateful = true",
];

/// A file with nothing wrong.
fn file(random: &mut StdRng) -> String {
    let mut text = String::from("interface = \"eth0\"\nhttp = false\n");
    let shared = [
        "[defaults]\nscheduler = \"hash\"\n",
        "[pool.a]\nmin_healthy = 1\nreal = [{ address = \"10.1.0.1\" }, { address = \"10.1.0.2\" }]\n",
        "[pool.b]\n[[pool.b.real]]\naddress = \"10.2.0.1\"\n",
        "[control]\nstep = 0.1\n",
        "[limits]\nvips = 20\n",
    ];
    let mut shared: Vec<&str> = shared.to_vec();
    for n in 0..random.random_range(2..7) {
        // What VIPs share may stand between them.
        while random.random_bool(0.4) && !shared.is_empty() {
            text += shared.swap_remove(random.random_range(0..shared.len()));
        }
        write!(text, "[[vip]]\naddress = \"192.0.2.{n}\"\n").unwrap();
        text += ["port = 80\n", "port = [80, 443]\n"]
            .choose(random)
            .unwrap();
        if random.random_bool(0.5) {
            writeln!(text, "name = \"v{n}\"").unwrap();
        }
        if random.random_bool(0.3) {
            text += "[vip.health]\nprobe = \"http\"\n";
        }
        for real in 0..random.random_range(1..3) {
            write!(
                text,
                "[[vip.real]]\naddress = \"10.0.{n}.{real}\"\nweight = 7\n"
            )
            .unwrap();
        }
    }
    for rest in shared {
        text += rest;
    }
    text
}

/// The same with one line that is another.
fn edited(text: &str, random: &mut StdRng) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let at = random.random_range(0..lines.len());
    let odd = format!("{}\n", ODD.choose(random).unwrap());
    let other = lines[random.random_range(0..lines.len())].to_owned();
    let digit = random.random_range(b'0'..=b'9') as char;
    let changed = lines[at].replace(|c: char| c.is_ascii_digit(), &digit.to_string());
    match random.random_range(0..6) {
        0 => _ = lines.remove(at),
        1 => lines.insert(at, &odd),
        2 => lines.insert(at, &other),
        3 => lines[at] = lines[at].trim_end(),
        _ => lines[at] = &changed,
    }
    lines.concat()
}

#[test]
fn what_is_read_by_pieces_is_what_the_whole_says() {
    let path = Path::new("lb.toml");
    let (mut by_pieces, mut refused) = (0, 0);
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut reader = ConfigReader::default();
        let good = file(&mut random);
        assert!(reader.by_pieces(&good).is_some(), "{good}");
        let mut text = good.clone();
        for _ in 0..20 {
            text = edited(&text, &mut random);
            let expected = BalancerConfig::read_whole(path, &text);
            if let Some(config) = reader.by_pieces(&text) {
                by_pieces += 1;
                assert_eq!(Ok(&config), expected.as_ref(), "{text}");
            }
            assert_eq!(reader.read(path, &text), expected, "{text}");
            // Most edits leave nothing that could be read.
            if expected.is_err() {
                refused += 1;
                text.clone_from(&good);
            }
        }
    }
    assert!(by_pieces > 300 && refused > 300, "{by_pieces} {refused}");
}

#[test]
fn a_vip_whose_text_is_known_is_not_read_again() {
    let file = |weight: u32, rest: &str| {
        let vip = |n: u32, weight: u32| {
            format!(
                "[[vip]]\naddress = \"192.0.2.{n}\"\nport = 80\nreal = [{{ address = \"10.0.0.{n}\", weight = {weight} }}]\n"
            )
        };
        format!(
            "interface = \"eth0\"\n{}{}{rest}",
            vip(1, 1),
            vip(2, weight)
        )
    };
    let mut reader = ConfigReader::default();
    let mut read = |text: &str| reader.read(Path::new("lb.toml"), text).unwrap().vips;
    let is_one = |a: &SharedVip, b: &SharedVip| std::ptr::eq(&**a, &**b);
    let before = read(&file(1, ""));
    let after = read(&file(5, ""));
    assert!(is_one(&before[0], &after[0]));
    assert_eq!(after[1].reals[0].weight, 5);
    // A VIP follows from what VIPs share, too.
    let after = read(&file(5, "[defaults]\nscheduler = \"hash\"\n"));
    assert_eq!(after[0].scheduler, Scheduler::Hash);
}

#[test]
fn what_a_vip_names_is_looked_at_again() {
    let key = tempfile::NamedTempFile::new().unwrap();
    let mut text = "interface = \"eth0\"\n".to_owned();
    for n in 1..3 {
        write!(
            text,
            "[[vip]]\naddress = \"192.0.2.{n}\"\nport = 443\nprotocol = \"udp\"\nreal = [{{ address = \"10.0.0.{n}\" }}]\nquic_cid = [{{ config = 0, algorithm = \"aes\", key = \"{}\" }}]\n",
            key.path().display()
        )
        .unwrap();
    }
    let mut reader = ConfigReader::default();
    let mut read = |digit: &str| {
        fs::write(key.path(), digit.repeat(32)).unwrap();
        reader.by_pieces(&text).unwrap().vips
    };
    let before = read("1");
    assert!(before[0].quic != read("2")[0].quic);
}
