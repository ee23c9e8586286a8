// SPDX-License-Identifier: Apache-2.0
//! Reads files, each VIP by itself and what has not changed not again: a file may have a million
//! reals, of which a reload changes one (docs/decisions/171-reading-by-pieces.md).

use std::collections::HashMap;
use std::path::Path;

use causeway_service::config::{ConfigErrors, Faults, Pieces, digest_of, has_key, read_sound};
use toml::de::DeTable;

use super::pools::InCommon;
use super::raw::{RawConfig, RawVips};
use super::vip::Together;
use super::{BalancerConfig, Beside, SharedVip, reports, validate, vip};

/// Reads one file again and again.
#[derive(Debug, Default)]
pub struct ConfigReader {
    /// The VIPs of the text that was read last, by the digest of all that they follow from.
    known: HashMap<[u8; 32], Vec<SharedVip>>,
}

impl ConfigReader {
    /// Reads the text of a file, which may turn out to be of another daemon.
    pub fn of_balancer(&mut self, path: &Path, text: &str) -> Result<BalancerConfig, ConfigErrors> {
        self.read(path, text).map_err(|errors| {
            let other = [("tunnel", "a tunnel's"), ("agent", "an agent's")];
            let mut other = other.iter();
            match other.find(|(kind, _)| has_key(text, kind)) {
                Some((kind, whose)) => ConfigErrors::of_file(
                    path,
                    format!("this is {whose} file; start it with `causeway {kind} -c FILE`"),
                ),
                None => errors,
            }
        })
    }

    /// Reads the text of a file; `path` only names it in messages.
    pub fn read(&mut self, path: &Path, text: &str) -> Result<BalancerConfig, ConfigErrors> {
        match self.by_pieces(text) {
            Some(config) => Ok(config),
            None => BalancerConfig::read_whole(path, text),
        }
    }

    /// What a text says that nothing is wrong with; `None` if it has to be read whole, which also
    /// finds what is wrong.
    pub(super) fn by_pieces(&mut self, text: &str) -> Option<BalancerConfig> {
        let pieces = Pieces::of(text, "vip")?;
        let is_toml = |part: &&str| DeTable::parse(part).is_ok();
        if pieces.parts.len() > 1 && !pieces.parts.iter().all(is_toml) {
            return None;
        }
        let mut common = None;
        let raw: RawConfig = read_sound(&pieces.rest, |document, faults| {
            if document.contains_key("vip") {
                faults.file("there are VIPs in the rest");
            }
            common = Some(InCommon::of(document, faults));
        })?;
        let common = common?;
        let mut faults = Faults::new("");
        let mut known = HashMap::new();
        let config = validate::config_with(
            raw,
            Beside::NOTHING,
            &mut faults,
            |measured, beside, faults| {
                let rest = format!("{measured} {beside:?} {}", pieces.rest);
                let rest = digest_of(&[rest.as_bytes()]);
                let mut vips = Vec::new();
                let mut together = Together::default();
                for piece in &pieces.tables {
                    let digest = digest_of(&[&rest, piece.as_bytes()]);
                    let read = match self.known.get(&digest) {
                        Some(read) => Some((read.clone(), true)),
                        None => vips_of(piece, &common, measured, beside),
                    };
                    let Some((read, holds)) = read else {
                        faults.file("something is wrong with a VIP");
                        break;
                    };
                    for vip in &read {
                        together.add(vip, 0..0, faults);
                        vips.push(vip.clone());
                    }
                    if holds {
                        known.insert(digest, read);
                    }
                }
                vips
            },
        )?;
        reports::check(&config, &mut faults);
        if !faults.is_empty() {
            return None;
        }
        self.known = known;
        Some(config)
    }
}

/// The VIPs of a piece with which nothing is wrong, and whether that holds as long as the piece
/// and what VIPs share stay as they are.
fn vips_of(
    piece: &str,
    common: &InCommon<'_>,
    measured: bool,
    beside: Beside,
) -> Option<(Vec<SharedVip>, bool)> {
    let raw: RawVips = read_sound(piece, |document, faults| common.put_out(document, faults))?;
    let mut faults = Faults::new("");
    let vips = raw.vip.iter().map(|raw| {
        let vip = vip::vip(raw, measured, beside, &mut faults);
        vip.map(SharedVip::from)
    });
    let vips: Vec<SharedVip> = vips.collect::<Option<_>>()?;
    let holds = !raw.vip.iter().any(|raw| raw.as_ref().looks_at_files());
    faults.is_empty().then_some((vips, holds))
}
