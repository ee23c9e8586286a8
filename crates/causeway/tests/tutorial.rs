// SPDX-License-Identifier: Apache-2.0
//! The tutorials that need one machine, as a reader types them: every command in its order, in
//! namespaces of its own, and what they print compared with what the page says. Needs root, BPF, and
//! the packages that the pages name.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

const BINARY: &str = env!("CARGO_BIN_EXE_causeway");
const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial");

/// Something of the page that does something.
#[derive(Debug, PartialEq)]
enum Block {
    /// Commands of a shell.
    Commands(String),
    /// A file that the reader saves.
    File(String, String),
    /// What the commands before it print.
    Output(String),
}

/// The blocks of a page between fences. A file's name is the last word in code before it.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    let mut before = String::new();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            before = if line.is_empty() {
                before
            } else {
                line.to_owned()
            };
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let body = body.join("\n") + "\n";
        blocks.push(match kind {
            "" => Block::Commands(body),
            "output" => Block::Output(body),
            _ => {
                let name = before.split('`').nth_back(1).expect("a name of a file");
                Block::File(name.to_owned(), body)
            }
        });
    }
    blocks
}

/// One script of all. What each block of commands prints stands behind a line with its number.
fn script(blocks: &[Block]) -> String {
    // The binary may be in what is hidden.
    let mut script = format!(
        "set -e\nmount -t tmpfs none /run\nmkdir -p /run/netns /run/bin\ntouch /run/bin/causeway\n\
         mount --bind {BINARY} /run/bin/causeway\nmount -t tmpfs none /tmp\n\
         mount -t bpf none /sys/fs/bpf\nip link set lo up\n",
    );
    for (number, block) in blocks.iter().enumerate() {
        match block {
            Block::Commands(commands) => {
                writeln!(script, "echo '=== {number}'\n{commands}").expect("a text");
            }
            Block::File(name, body) => {
                writeln!(script, "cat > {name} <<'TUTORIAL'\n{body}TUTORIAL").expect("a text");
            }
            Block::Output(_) => {}
        }
    }
    script + "echo '=== end'\n"
}

/// Words alone count; `...` in one stands for what is left out there, and alone for a line.
fn is_as_told(printed: &str, told: &str) -> bool {
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    let (printed, told) = (words(printed), words(told));
    let same = |(own, told): (&String, &String)| match told.split_once("...") {
        Some((begin, end)) => own.starts_with(begin) && own.ends_with(end),
        None => own == told,
    };
    printed.len() == told.len()
        && printed.iter().zip(&told).all(|(own, told)| {
            let same_words = || own.len() == told.len() && own.iter().zip(told).all(same);
            *told == ["..."] || same_words()
        })
}

#[test]
fn what_is_printed_is_told_from_what_is_not() {
    assert!(is_as_told("a  b 0.17,\n\n c\n", "a b 0...,\nc\n"));
    assert!(!is_as_told("a b 1.17,", "a b 0...,"));
    assert!(!is_as_told("a b", "a b\nc"));
    assert!(!is_as_told("a b", "a"));
    assert!(is_as_told("a\nb c\nd\n", "a\n...\nd\n"));
    assert!(!is_as_told("a\nd\n", "a\n...\nd\n"));
    let page = "Save as `x.py`:\n\n```python\none\n```\n```\nrun\n```\n```output\nran\n```\n";
    let expected = [
        Block::File("x.py".to_owned(), "one\n".to_owned()),
        Block::Commands("run\n".to_owned()),
        Block::Output("ran\n".to_owned()),
    ];
    assert_eq!(blocks(page), expected);
}

#[test]
fn two_balancers_at_home_do_what_the_page_says() {
    let outputs = type_page("two-balancers.md", "# Two balancers");
    assert!(outputs >= 6, "{outputs} outputs are compared");
}

/// But `make demo`, which compiles, and what installs the binary.
#[test]
fn a_balancer_on_one_machine_does_what_the_page_says() {
    let outputs = type_page("one-machine.md", "## Build one by hand");
    assert!(outputs >= 7, "{outputs} outputs are compared");
}

/// Types a page from a heading on, and says how many outputs it has compared.
fn type_page(name: &str, from: &str) -> usize {
    let page = std::fs::read_to_string(format!("{PAGES}/{name}")).expect("the page");
    let (_, page) = page.split_once(from).expect("the heading");
    let blocks = blocks(page);
    let path = std::env::var("PATH").unwrap_or_default();
    let begun = Instant::now();
    let mut shell = Command::new("timeout")
        .args(["--kill-after=5", "900"])
        .args([
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
        ])
        .args(["--mount-proc", "bash", "-s"])
        .env("PATH", format!("/run/bin:/usr/sbin:/usr/bin:{path}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run unshare");
    let mut input = shell.stdin.take().expect("its input");
    input
        .write_all(script(&blocks).as_bytes())
        .expect("write the script");
    drop(input);
    let output = shell.wait_with_output().expect("its end");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && printed.ends_with("=== end\n"),
        "{}:\n{printed}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut outputs = 0;
    for (number, told) in blocks.iter().enumerate() {
        let Block::Output(told) = told else { continue };
        let from = format!("=== {}\n", number - 1);
        let own = printed.split(&from).nth(1).expect("its commands");
        let own = own.split("=== ").next().unwrap_or_default();
        assert!(
            is_as_told(own, told),
            "the page says\n{told}and it is\n{own}"
        );
        outputs += 1;
    }
    println!("{name} took {:.0} s", begun.elapsed().as_secs_f64());
    outputs
}
