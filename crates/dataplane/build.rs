// SPDX-License-Identifier: Apache-2.0
//! Compiles `bpf/*.bpf.c`, generates their skeletons, turns the verdict lists of
//! `bpf/shared/abi.h` into Rust enums and takes the numbers that both sides need from
//! its headers, so that words and numbers exist once.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway_bpf_build::{find_clang, flags, skeletons, skeletons_of_made};

/// Each object with its skeleton: `bpf/NAME.bpf.c` becomes `NAME.skel.rs`.
const OBJECTS: &[&str] = &["lb", "meter", "rtt", "server", "probe", "syn"];

/// Each verdict list of abi.h with the Rust enum made of it.
const VERDICTS: &[(&str, &str, &str)] = &[
    (
        "LB_VERDICTS",
        "Verdict",
        "What the balancer did with a packet.",
    ),
    (
        "COOKIE_RESULTS",
        "CookieResult",
        "What the balancer found out about a packet of a VIP with cookies.",
    ),
    (
        "SERVER_VERDICTS",
        "ServerVerdict",
        "What a server's decapsulation did with a packet.",
    ),
    (
        "SERVER_COOKIES",
        "ServerCookie",
        "What a server did with the timestamp of a segment.",
    ),
    (
        "METER_VERDICTS",
        "MeterVerdict",
        "What the meter did with a packet.",
    ),
];

/// Headers of `bpf/shared` whose constants user space needs.
const HEADERS: &[&str] = &["abi.h", "cookie.h", "syn_abi.h", "syn_track.h"];

/// Those constants, macros or members of enums, with the Rust type of each.
const CONSTANTS: &[(&str, &str)] = &[
    ("CONN_RING", "u32"),
    ("CONN_TOKEN_BITS", "u32"),
    ("VIP_FIRST_TCP", "u8"),
    ("VIP_FIRST_UDP", "u8"),
    ("COOKIE_QUIC", "u8"),
    ("FLOW_OPENED", "u8"),
    ("FLOW_HAS_TOKEN", "u8"),
    ("FLOW_CLOSED", "u8"),
    ("FLOW_WAYS", "u32"),
    ("GUE_CHECKSUM_4", "u8"),
    ("GUE_CHECKSUM_6", "u8"),
    ("METER_FIXED_GAP", "u32"),
    ("METER_MODES", "u32"),
    ("METER_WINDOW_CHAIN", "u32"),
    ("PICK_HASH", "u8"),
    ("PICK_TURN", "u8"),
    ("PICK_TWO", "u8"),
    ("PROBE_MARK", "u32"),
    ("PROBE_REAL_MASK", "u32"),
    ("QUIC_CODEPOINTS", "u32"),
    ("REAL_DOWN", "u8"),
    ("REAL_GUE", "u8"),
    ("REAL_L2", "u8"),
    ("REAL_PRESENT", "u8"),
    ("RTT_OUTGOING", "u8"),
    ("RTT_SAMPLED", "u8"),
    ("RTT_TIMESTAMP", "u8"),
    ("SOURCE_GROUPS", "u32"),
    ("AGE_GONE", "u32"),
    ("AGE_LIVE", "u32"),
    ("AGE_MASK", "u32"),
    ("AGE_NEW", "u32"),
    ("AGE_OLD", "u32"),
    ("SYN_DEVICES", "usize"),
    ("SYN_FORMER", "u64"),
    ("SYN_OPEN", "u64"),
    ("SYN_MARK_HEARD", "u32"),
    ("SYN_ORIGINS", "u64"),
    ("SYN_PREFIXES", "usize"),
    ("SYN_RETRY_TIMES", "u64"),
    ("SYN_SERVICES", "usize"),
    ("SYN_STATE_ANSWERED", "u8"),
    ("SYN_STATE_LEFT", "u8"),
    ("SYN_STATE_OFFERED", "u8"),
    ("MIRROR_BY_CLIENT", "u8"),
    ("MIRROR_BY_VIP", "u8"),
    ("MIRROR_NO_VIP", "u32"),
    ("MIRROR_SNAP_MAX", "u16"),
    ("MIRROR_WINDOW_SHIFT", "u32"),
    ("VIP_COUNT_LOAD", "u32"),
    ("VIP_FORGET", "u32"),
    ("VIP_LIMITED", "u32"),
    ("VIP_SECOND_CHANCE", "u32"),
    ("VIP_OF_FRAGMENTS", "u8"),
    ("VIP_PICK_BY_ADDRESS", "u32"),
    ("ADDRESS_TUNNEL_END", "u32"),
    ("ADDRESS_VIP", "u32"),
    ("VIP_SOURCES", "u32"),
    ("VIP_STATEFUL", "u32"),
];

fn main() {
    if let Err(error) = build() {
        // One sentence instead of a panic's backtrace.
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let bpf = Path::new("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    skeletons(bpf, OBJECTS, &out)?;
    // What the packet tests need besides.
    skeletons(Path::new("tests/dataplane"), &["no_headroom"], &out)?;
    other_layout(bpf, &out)?;
    let clang = find_clang()?;
    let flags = flags()?;
    let abi = bpf.join("shared/abi.h");
    let mut rust = String::new();
    for (list, name, doc) in VERDICTS {
        rust += &verdict_enum(name, doc, &expand(&clang, &abi, list)?);
    }
    std::fs::write(out.join("verdicts.rs"), rust).map_err(|e| e.to_string())?;
    let rust = constants(&clang, &flags, &bpf.join("shared"), &out)?;
    std::fs::write(out.join("constants.rs"), rust).map_err(|e| e.to_string())
}

/// Lines of the headers that trade places for a balancer of another layout, which the tests of
/// takeover upgrade to and roll back from.
const TRADED: &[(&str, &str, &str, &str)] = &[
    ("abi.h", "struct flow {", "\tu32 real; ", "\tu32 isn; "),
    ("abi.h", "struct vip {", "\tu32 id; ", "\tu32 ring_size; "),
    ("abi.h", "struct real {", "\tu16 gen;", "\tu16 vip; "),
    (
        "abi.h",
        "struct ctl {",
        "\tu64 hash_key[2];",
        "\tu64 table_seed; ",
    ),
    (
        "abi.h",
        "struct real_stats {",
        "\tu64 packets;",
        "\tu64 bytes;",
    ),
    (
        "window_chain_state.h",
        "struct wc_state {",
        "\tu32 cur_off; ",
        "\tu32 latency; ",
    ),
];

/// Compiles the balancer with another layout.
fn other_layout(bpf: &Path, out: &Path) -> Result<(), String> {
    let other = out.join("other");
    for dir in ["", "lb", "packet", "shared"] {
        let to = other.join(dir);
        let failed = |e: std::io::Error| format!("{}: {e}", to.display());
        std::fs::create_dir_all(&to).map_err(failed)?;
        for entry in std::fs::read_dir(bpf.join(dir)).map_err(failed)? {
            let from = entry.map_err(failed)?.path();
            let Some(name) = from.file_name().filter(|_| from.is_file()) else {
                continue;
            };
            let text = std::fs::read_to_string(&from).map_err(failed)?;
            let mut of_file = TRADED.iter().filter(|(file, ..)| name == *file);
            let text = of_file.try_fold(text, |text, (_, head, one, two)| {
                trade(&text, head, one, two).ok_or_else(|| format!("{head} has no {one}, {two}"))
            })?;
            std::fs::write(to.join(name), text).map_err(failed)?;
        }
    }
    let made = out.join("other_layout");
    std::fs::create_dir_all(&made).map_err(|e| e.to_string())?;
    skeletons_of_made(&other, &["lb"], &made)
}

/// The text with two lines of a struct in each other's place.
fn trade(text: &str, head: &str, one: &str, two: &str) -> Option<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let from = lines.iter().position(|line| *line == head)?;
    let line = |start: &str| {
        let found = lines
            .iter()
            .skip(from)
            .position(|line| line.starts_with(start));
        found.map(|at| at + from)
    };
    let (one, two) = (line(one)?, line(two)?);
    lines.swap(one, two);
    Some(lines.join("\n") + "\n")
}

/// The constants as Rust. The compiler evaluates them: each initialises a global variable,
/// whose value stands in the assembly behind its label.
fn constants(clang: &str, flags: &[String], shared: &Path, out: &Path) -> Result<String, String> {
    let shared = shared
        .canonicalize()
        .map_err(|e| format!("{}: {e}", shared.display()))?;
    let mut source = String::new();
    for header in HEADERS {
        let _ = writeln!(source, "#include \"{}\"", shared.join(header).display());
    }
    for (name, _) in CONSTANTS {
        let _ = writeln!(source, "const unsigned long long value_{name} = {name};");
    }
    let probe = out.join("constants.c");
    std::fs::write(&probe, source).map_err(|e| e.to_string())?;
    let run = Command::new(clang)
        .args(["-target", "bpf", "-S", "-o", "-"])
        .args(flags)
        .arg(&probe)
        .output()
        .map_err(|e| e.to_string())?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).replace('\n', " | "));
    }
    let assembly = String::from_utf8_lossy(&run.stdout);
    let mut rust = String::new();
    for (name, ty) in CONSTANTS {
        let value = assembly
            .split_once(&format!("\nvalue_{name}:\n"))
            .and_then(|(_, behind)| behind.trim_start().strip_prefix(".quad"))
            .and_then(|behind| behind.split_whitespace().next()?.parse::<u64>().ok())
            .ok_or_else(|| format!("clang does not give the value of {name}"))?;
        let _ = writeln!(rust, "pub(crate) const {name}: {ty} = {value};");
    }
    Ok(rust)
}

struct Row {
    word: String,
    action: String,
    meaning: String,
}

/// The rows of an X-macro, expanded by the C preprocessor.
fn expand(clang: &str, header: &Path, list: &str) -> Result<Vec<Row>, String> {
    let probe = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?).join("expand.c");
    let header = header
        .canonicalize()
        .map_err(|e| format!("{}: {e}", header.display()))?;
    let source = format!(
        "#include \"{}\"\n#define ROW(name, word, action, meaning) \
         ROW #word \"|\" #action \"|\" meaning ;\n{list}(ROW)\n",
        header.display()
    );
    std::fs::write(&probe, source).map_err(|e| e.to_string())?;
    let run = Command::new(clang)
        .args(["-E", "-P"])
        .arg(&probe)
        .output()
        .map_err(|e| e.to_string())?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).replace('\n', " | "));
    }
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    // The string literals of one row, joined: word|action|meaning.
    let rows: Vec<Row> = text
        .split(';')
        .filter_map(|part| part.split_once("ROW ").map(|(_, row)| row))
        .filter_map(|row| {
            let joined: String = row.split('"').skip(1).step_by(2).collect();
            let mut fields = joined.splitn(3, '|').map(str::to_owned);
            Some(Row {
                word: fields.next()?,
                action: fields.next()?,
                meaning: fields.next()?,
            })
        })
        .collect();
    if rows.is_empty() {
        Err(format!("{list} has no rows"))
    } else {
        Ok(rows)
    }
}

fn camel(word: &str) -> String {
    word.split('_')
        .flat_map(|part| {
            let (head, tail) = part.split_at(1);
            [head.to_uppercase(), tail.to_owned()]
        })
        .collect()
}

fn verdict_enum(name: &str, doc: &str, rows: &[Row]) -> String {
    let mut variants = String::new();
    let mut all = String::new();
    let mut words = String::new();
    let mut meanings = String::new();
    let mut actions = String::new();
    for (index, row) in rows.iter().enumerate() {
        let variant = camel(&row.word);
        let Row {
            word,
            action,
            meaning,
        } = row;
        let _ = writeln!(variants, "    /// {meaning}\n    {variant} = {index},");
        let _ = write!(all, "Self::{variant}, ");
        let _ = writeln!(words, "            Self::{variant} => \"{word}\",");
        let _ = writeln!(meanings, "            Self::{variant} => \"{meaning}\",");
        let _ = writeln!(
            actions,
            "            Self::{variant} => Action::{},",
            camel(&action[4..].to_lowercase())
        );
    }
    format!(
        "/// {doc} Made from `bpf/shared/abi.h`.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\n\
         #[repr(u32)]\npub enum {name} {{\n{variants}}}\n\n\
         impl {name} {{\n    /// Every verdict, in the order of the counters.\n    \
         pub const ALL: [Self; {count}] = [{all}];\n\n    \
         /// The word of the metric's label and of the CLI.\n    \
         pub fn as_str(self) -> &'static str {{\n        match self {{\n{words}        }}\n    }}\n\n    \
         /// One line for people.\n    \
         pub fn meaning(self) -> &'static str {{\n        match self {{\n{meanings}        }}\n    }}\n\n    \
         /// What XDP does with the packet.\n    \
         pub fn action(self) -> Action {{\n        match self {{\n{actions}        }}\n    }}\n}}\n\n",
        count = rows.len(),
    )
}
