// SPDX-License-Identifier: Apache-2.0

//! Capture files, decoded from bytes as they arrive: pcap and pcapng. [`write`] makes
//! pcapng.
//!
//! [`Reader`] does no I/O. Put bytes in with [`Reader::feed`], or read straight
//! into [`Reader::space`] and say how many with [`Reader::filled`]; take packets
//! out with [`Reader::poll`] until it answers [`Poll::NeedBytes`]; after the last
//! byte call [`Reader::finish`] and poll until [`Poll::End`]. [`Reader::each`] and
//! [`Reader::give`] do the same for all packets at hand, in less time. Packets borrow from
//! the reader's buffer, which never grows beyond one block of the file (at most
//! 16 MiB), so that endless input needs bounded memory.
//!
//! Formats: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html> and
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>.

mod buffer;
mod pcap;
mod pcapng;
pub mod write;

use std::hint::cold_path;
use std::ops::ControlFlow;

use crate::wire::LinkType;
use buffer::Buffer;

/// The largest record or block that is taken for one. A longer one is damage:
/// libpcap itself never writes more than 256 KiB of a packet.
const MAX_BLOCK: u32 = 16 << 20;

/// One captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// When it was captured, in nanoseconds since the Unix epoch. `None` in
    /// pcapng's simple packet blocks, which carry no time.
    pub time_ns: Option<u64>,
    /// How to read it; `None` when its interface has a link type without parser.
    pub link: Option<LinkType>,
    /// How many bytes it had on the wire.
    pub wire_len: u32,
    /// The bytes that were captured.
    pub data: &'a [u8],
}

/// What [`Reader::poll`] has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll<'a> {
    /// The next packet.
    Packet(CapturedPacket<'a>),
    /// Feed more bytes, or finish.
    NeedBytes,
    /// All packets were given out.
    End,
}

/// Takes packets, in a method that is compiled into the loop that decodes them if it asks
/// for that; a closure cannot ask.
pub trait Visit<B> {
    /// Takes the next packet, or breaks off.
    fn visit(&mut self, packet: &CapturedPacket<'_>) -> ControlFlow<B>;
}

/// A closure that visits.
struct Call<F>(F);

impl<B, F: FnMut(&CapturedPacket<'_>) -> ControlFlow<B>> Visit<B> for Call<F> {
    fn visit(&mut self, packet: &CapturedPacket<'_>) -> ControlFlow<B> {
        self.0(packet)
    }
}

/// Why [`Reader::each`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest<B> {
    /// The visitor broke off; there may be more packets at hand.
    Stopped(B),
    /// Feed more bytes, or finish.
    NeedBytes,
    /// All packets were given out.
    End,
}

/// Why a file cannot be read (on).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureFileError {
    /// There is not a single byte.
    #[error("the input is empty")]
    Empty,
    /// The first bytes belong to no capture format.
    #[error("not a capture file: it starts neither like pcap nor like pcapng")]
    NotCapture,
    /// The file ends within its header.
    #[error("the capture file is cut within its header")]
    ShortHeader,
    /// A format version from the future.
    #[error("capture format version {0}.{1} is not known")]
    Version(u16, u16),
    /// A pcap file, all of whose packets have a link type without parser.
    #[error(
        "link type {0} is not supported (tcpdump.org/linktypes.html names it; Ethernet, Linux cooked, raw IP, loopback, PPP and some more are)"
    )]
    LinkType(u32),
    /// The file contradicts itself.
    #[error("the capture file is damaged at byte {offset}: {what}")]
    Damaged {
        /// Offset in the (uncompressed) file.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
}

/// Counts of a whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets given out.
    pub packets: u64,
    /// Packets earlier than the one before them.
    pub backwards: u64,
    /// Whether the file ends within a record, which was left out.
    pub cut: bool,
}

/// A packet's place in the buffer, before it is borrowed.
struct Found {
    time_ns: Option<u64>,
    link: Option<LinkType>,
    wire_len: u32,
    /// Bytes from the start of the window to the packet's data.
    offset: usize,
    captured: usize,
    /// Bytes of the whole record.
    record: usize,
}

/// What a decoder makes of the bytes at hand.
enum Step {
    /// At least this many bytes are needed from the start of the window.
    Need(usize),
    /// Nothing of interest in this many bytes, which may exceed the window.
    Skip(u64),
    Packet(Found),
}

/// What is wrong with the bytes at the start of the window.
struct Fault(&'static str);

/// A format.
trait Decode {
    /// Looks at the bytes at the start of the window.
    fn step(&mut self, window: &[u8]) -> Result<Step, Fault>;
}

#[derive(Debug)]
enum Format {
    Unknown,
    Pcap(pcap::Decoder),
    Pcapng(pcapng::Decoder),
}

/// Decodes a capture. See the module for the order of calls.
#[derive(Debug)]
pub struct Reader {
    buffer: Buffer,
    format: Format,
    /// Bytes still to pass over without keeping them.
    to_skip: u64,
    finished: bool,
    failed: Option<CaptureFileError>,
    tally: PacketTally,
    cut: bool,
}

/// Counts of packets given out.
#[derive(Clone, Copy, Debug, Default)]
struct PacketTally {
    packets: u64,
    backwards: u64,
    last_ns: u64,
}

impl PacketTally {
    #[inline]
    fn count(&mut self, time_ns: Option<u64>) {
        self.packets += 1;
        if let Some(time_ns) = time_ns {
            if time_ns < self.last_ns {
                cold_path();
                self.backwards += 1;
            }
            self.last_ns = time_ns;
        }
    }
}

impl Found {
    #[inline]
    fn packet<'a>(&self, record: &'a [u8]) -> CapturedPacket<'a> {
        CapturedPacket {
            time_ns: self.time_ns,
            link: self.link,
            wire_len: self.wire_len,
            data: &record[self.offset..self.offset + self.captured],
        }
    }
}

/// Gives out packets as long as one follows the other, and says how many bytes are
/// to be passed over next.
fn run<D: Decode, B>(
    decoder: &mut D,
    buffer: &mut Buffer,
    tally: &mut PacketTally,
    visitor: &mut impl Visit<B>,
) -> ControlFlow<B, u64> {
    let window = buffer.window();
    let mut counts = *tally;
    let mut at = 0;
    let result = loop {
        let rest = &window[at..];
        match decoder.step(rest) {
            Ok(Step::Packet(found)) => {
                counts.count(found.time_ns);
                at += found.record;
                if let ControlFlow::Break(reason) = visitor.visit(&found.packet(rest)) {
                    break ControlFlow::Break(reason);
                }
            }
            Ok(Step::Skip(count)) => break ControlFlow::Continue(count),
            // A second look at the same bytes will say the same.
            Ok(Step::Need(_)) | Err(_) => break ControlFlow::Continue(0),
        }
    };
    *tally = counts;
    buffer.take(at);
    result
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader that has seen nothing.
    pub fn new() -> Self {
        Self {
            buffer: Buffer::new(),
            format: Format::Unknown,
            to_skip: 0,
            finished: false,
            failed: None,
            tally: PacketTally::default(),
            cut: false,
        }
    }

    /// Takes a copy of more bytes of the file.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.feed(bytes);
    }

    /// Room for more bytes of the file, never empty. Say with
    /// [`Reader::filled`] how many were written.
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.space()
    }

    /// The first `count` bytes of [`Reader::space`] are now bytes of the file.
    pub fn filled(&mut self, count: usize) {
        self.buffer.filled(count);
    }

    /// There are no more bytes.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        Totals {
            packets: self.tally.packets,
            backwards: self.tally.backwards,
            cut: self.cut,
        }
    }

    /// The next packet, a wish for bytes, or the end.
    ///
    /// # Errors
    /// When the file cannot be read on; every later call says the same. A
    /// last record cut short is not an error: see [`Totals::cut`].
    #[inline]
    pub fn poll(&mut self) -> Result<Poll<'_>, CaptureFileError> {
        match self.advance()? {
            Some(found) => {
                self.tally.count(found.time_ns);
                let record = self.buffer.take(found.record);
                Ok(Poll::Packet(found.packet(record)))
            }
            None if self.finished => Ok(Poll::End),
            None => Ok(Poll::NeedBytes),
        }
    }

    /// Gives every packet at hand to `visit`, until that breaks off.
    ///
    /// # Errors
    /// As [`Reader::poll`], after the packets before the damage.
    pub fn each<B>(
        &mut self,
        visit: impl FnMut(&CapturedPacket<'_>) -> ControlFlow<B>,
    ) -> Result<Rest<B>, CaptureFileError> {
        self.give(&mut Call(visit))
    }

    /// Gives every packet at hand to `visitor`, until that breaks off.
    ///
    /// # Errors
    /// As [`Reader::each`].
    pub fn give<B>(&mut self, visitor: &mut impl Visit<B>) -> Result<Rest<B>, CaptureFileError> {
        loop {
            let Self { buffer, tally, .. } = self;
            let run = match &mut self.format {
                _ if self.to_skip > 0 || self.failed.is_some() => ControlFlow::Continue(0),
                Format::Pcap(decoder) => match decoder.common() {
                    Some(mut common) => run(&mut common, buffer, tally, visitor),
                    None => run(decoder, buffer, tally, visitor),
                },
                Format::Pcapng(decoder) => run(decoder, buffer, tally, visitor),
                Format::Unknown => ControlFlow::Continue(0),
            };
            match run {
                ControlFlow::Break(reason) => return Ok(Rest::Stopped(reason)),
                ControlFlow::Continue(skip) => self.to_skip += skip,
            }
            // Anything but a whole packet in sight is left to poll.
            match self.poll()? {
                Poll::Packet(packet) => {
                    if let ControlFlow::Break(reason) = visitor.visit(&packet) {
                        return Ok(Rest::Stopped(reason));
                    }
                }
                Poll::NeedBytes => return Ok(Rest::NeedBytes),
                Poll::End => return Ok(Rest::End),
            }
        }
    }

    /// Moves to the next packet. `None` when the bytes at hand hold no whole one.
    #[inline]
    fn advance(&mut self) -> Result<Option<Found>, CaptureFileError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            if self.to_skip > 0 {
                self.to_skip -= self.buffer.discard(self.to_skip);
                if self.to_skip > 0 {
                    self.cut = self.finished;
                    return Ok(None);
                }
            }
            let window = self.buffer.window();
            let step = match &mut self.format {
                Format::Pcap(decoder) => decoder.step(window),
                Format::Pcapng(decoder) => decoder.step(window),
                Format::Unknown => {
                    if !self.recognise()? {
                        return Ok(None);
                    }
                    continue;
                }
            };
            match step {
                Ok(Step::Packet(found)) => return Ok(Some(found)),
                Ok(Step::Skip(count)) => self.to_skip = count,
                Ok(Step::Need(count)) => {
                    self.cut = self.finished && !window.is_empty();
                    self.buffer.want(count);
                    return Ok(None);
                }
                Err(Fault(what)) => {
                    let offset = self.buffer.offset();
                    return self.fail(CaptureFileError::Damaged { offset, what });
                }
            }
        }
    }

    fn fail<T>(&mut self, error: CaptureFileError) -> Result<T, CaptureFileError> {
        self.failed = Some(error.clone());
        Err(error)
    }

    /// Recognises the format by its first bytes. `false`: more bytes are needed.
    fn recognise(&mut self) -> Result<bool, CaptureFileError> {
        let window = self.buffer.window();
        let Some(magic) = window.first_chunk::<4>() else {
            return match (self.finished, window.is_empty()) {
                (false, _) => Ok(false),
                (true, true) => self.fail(CaptureFileError::Empty),
                (true, false) => self.fail(CaptureFileError::NotCapture),
            };
        };
        if *magic == pcapng::SECTION_MAGIC {
            self.format = Format::Pcapng(pcapng::Decoder::new());
            return Ok(true);
        }
        match pcap::Decoder::new(window) {
            Ok(Some(decoder)) => {
                self.format = Format::Pcap(decoder);
                self.to_skip = pcap::FILE_HEADER_LEN as u64;
                Ok(true)
            }
            Ok(None) if self.finished => self.fail(CaptureFileError::ShortHeader),
            Ok(None) => Ok(false),
            Err(error) => self.fail(error),
        }
    }
}

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    #[inline]
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    #[inline]
    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The first four 32-bit words of a header; the order is asked for once.
    #[inline]
    fn words<const N: usize>(self, header: &[u8; N]) -> [u32; 4] {
        let words = std::array::from_fn(|index| Order::Little.word(header, index));
        match self {
            Order::Little => words,
            Order::Big => words.map(u32::swap_bytes),
        }
    }

    /// The `index`th 32-bit word of a header.
    #[inline]
    fn word<const N: usize>(self, header: &[u8; N], index: usize) -> u32 {
        let at = index * 4;
        self.u32([header[at], header[at + 1], header[at + 2], header[at + 3]])
    }
}

#[cfg(test)]
mod tests;
