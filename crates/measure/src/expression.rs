// SPDX-License-Identifier: Apache-2.0
//! The filter expression of the command line, on the packets of a capture.

use causeway_core::capture::CapturedPacket;
use causeway_core::filter::Program;
use causeway_core::wire::LinkType;
use causeway_netio::{FilterError, filter};

/// Longer than any frame: programs for files need no other snapshot length.
const SNAP_LEN: u32 = 262_144;

/// An expression, compiled for each link type that its packets turn out to have.
#[derive(Debug)]
pub struct Expression {
    text: String,
    programs: Vec<(LinkType, Program)>,
    /// Index of the program that the last packet needed.
    latest: usize,
}

impl Expression {
    /// The words of the command line, put together as tcpdump does. `None` where
    /// there are none.
    pub fn new(words: &[String]) -> Option<Self> {
        (!words.is_empty()).then(|| Self {
            text: words.join(" "),
            programs: Vec::new(),
            latest: 0,
        })
    }

    /// Whether a packet of a link type with a parser matches.
    ///
    /// # Errors
    /// When the expression cannot be compiled for that link type.
    #[inline]
    pub fn matches(
        &mut self,
        link: LinkType,
        packet: &CapturedPacket<'_>,
    ) -> Result<bool, FilterError> {
        let link = comparable(link, packet.data);
        let program = match self.programs.get(self.latest) {
            Some((known, program)) if *known == link => program,
            _ => self.program(link)?,
        };
        Ok(program.matches(packet.data, packet.wire_len))
    }

    /// Complains about an expression that no packet has tried.
    ///
    /// # Errors
    /// When it cannot be compiled even for Ethernet.
    pub fn check(&mut self) -> Result<(), FilterError> {
        if self.programs.is_empty() {
            self.program(LinkType::Ethernet)?;
        }
        Ok(())
    }

    #[cold]
    fn program(&mut self, link: LinkType) -> Result<&Program, FilterError> {
        let known = self.programs.iter().position(|(known, _)| *known == link);
        self.latest = match known {
            Some(index) => index,
            None => {
                let program = filter::compile(&self.text, link, SNAP_LEN)?;
                self.programs.push((link, program));
                self.programs.len() - 1
            }
        };
        Ok(&self.programs[self.latest].1)
    }
}

/// A loopback header of a machine with the other byte order: libpcap, which does
/// not see the file, would take it for this machine's. In network byte order it is
/// that of `LINKTYPE_LOOP`.
#[inline]
fn comparable(link: LinkType, data: &[u8]) -> LinkType {
    let foreign = cfg!(target_endian = "little") && data.starts_with(&[0, 0]);
    if link == LinkType::Null && foreign {
        LinkType::Loop
    } else {
        link
    }
}
