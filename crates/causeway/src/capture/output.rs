// SPDX-License-Identifier: Apache-2.0
//! Where packets go: a pcapng file, or lines on standard output.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use causeway_core::capture::write::{
    Entry, PacketDirection, Statistics, interface, packet, section, statistics,
};
use causeway_dataplane::abi::Action;
use causeway_dataplane::{MirrorCounts, MirroredPacket};

use super::line::Line;

/// Numbers of the interfaces in the file.
const BEFORE: u32 = 0;
const AFTER: u32 = 1;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// What and where, a line a packet.
    Lines,
    /// The same, and why.
    Reasons,
    /// An object a line.
    Json,
}

/// Where packets go.
pub(super) struct Output {
    sink: BufWriter<Box<dyn Write>>,
    /// What to call it in messages.
    name: String,
    /// `None`: pcapng.
    style: Option<Style>,
}

impl Output {
    /// Lines on standard output.
    pub(super) fn lines(style: Style) -> Self {
        Self {
            sink: BufWriter::new(Box::new(io::stdout())),
            name: "standard output".to_owned(),
            style: Some(style),
        }
    }

    /// A file with its head; `-` is standard output, if that is not a terminal.
    pub(super) fn pcapng(file: &Path, device: &str, snaplen: u16) -> Result<Self> {
        let sink: Box<dyn Write> = match file == Path::new("-") {
            true if io::stdout().is_terminal() => bail!(
                "binary output does not go to a terminal: name a file with -w, or pipe to a reader (`causeway capture -w - | tcpdump -r -`)"
            ),
            true => Box::new(io::stdout()),
            false => {
                // Other users must not read clients' packets.
                let new = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(file);
                let what = || format!("cannot write {}", file.display());
                let new = new.with_context(what)?;
                // One that was there keeps the mode that it had; what is not ours to close is not emptied.
                if new.metadata().with_context(what)?.is_file() {
                    let own = Permissions::from_mode(0o600);
                    new.set_permissions(own).with_context(what)?;
                    new.set_len(0).with_context(what)?;
                }
                Box::new(new)
            }
        };
        let mut output = Self {
            sink: BufWriter::new(sink),
            name: file.display().to_string(),
            style: None,
        };
        let snaplen = snaplen.into();
        let head = [
            section(concat!("causeway ", env!("CARGO_PKG_VERSION"))),
            interface("before", &format!("{device}, as packets came"), snaplen),
            interface("after", &format!("{device}, as packets left"), snaplen),
        ];
        output.put(&head.concat())?;
        output.flush()?;
        Ok(output)
    }

    /// Writes a packet. `false`: the reader has closed the pipe.
    pub(super) fn packet(
        &mut self,
        line: &Line,
        mirrored: &MirroredPacket,
        time_ns: u64,
        id: u64,
        action: Option<Action>,
    ) -> Result<bool> {
        let text = match self.style {
            Some(Style::Lines) => line.text() + "\n",
            Some(Style::Reasons) => format!("{}\n    {}\n", line.text(), line.reasons()),
            Some(Style::Json) => serde_json::to_string(line)? + "\n",
            None => {
                let comment = line.comment();
                let before = Entry {
                    interface: BEFORE,
                    time_ns,
                    wire_len: mirrored.before.len,
                    data: &mirrored.before.data,
                    comment: &comment,
                    way: PacketDirection::In,
                    id,
                    xdp_action: action.map(|action| action as u64),
                };
                let mut blocks = packet(&before);
                if let Some(after) = &mirrored.after {
                    blocks.extend(packet(&Entry {
                        interface: AFTER,
                        wire_len: after.len,
                        data: &after.data,
                        way: PacketDirection::Out,
                        ..before
                    }));
                }
                return self.put(&blocks);
            }
        };
        self.put(text.as_bytes())
    }

    /// What a file says at its end: what is not in it.
    pub(super) fn end(&mut self, counts: &MirrorCounts, time_ns: u64) -> Result<()> {
        if self.style.is_none() {
            let counts = Statistics {
                time_ns,
                received: counts.seen,
                filtered: counts.matched,
                dropped: counts.lost + counts.over_rate + counts.skipped,
            };
            self.put(&statistics(BEFORE, &counts))?;
        }
        self.flush().map(drop)
    }

    /// Hands on what was written. `false`: the reader has closed the pipe.
    pub(super) fn flush(&mut self) -> Result<bool> {
        let flushed = self.sink.flush();
        self.told(flushed)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<bool> {
        let written = self.sink.write_all(bytes);
        self.told(written)
    }

    fn told(&self, result: io::Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_there_becomes_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.pcapng");
        fs::write(&file, "of another program").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        Output::pcapng(&file, "eth0", 256).unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
