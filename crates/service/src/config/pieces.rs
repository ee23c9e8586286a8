// SPDX-License-Identifier: Apache-2.0
//! A file with many tables of one name, to be read one by one: as a document they take fifty times
//! the memory of the text, and one that has not changed need not be read again.

use ring::digest::{Context, SHA256};

use super::json;

/// A text of TOML, taken apart at its headers. If each of the tables, each part of the rest and the
/// whole rest can be read alone, and the tables alone have that name, they say what the text says.
/// If not, the text has to be read as it is.
pub struct Pieces<'t> {
    /// What is between the tables.
    pub parts: Vec<&'t str>,
    /// The same in one.
    pub rest: String,
    /// Each `[[NAME]]` with all that is its own.
    pub tables: Vec<&'t str>,
}

impl<'t> Pieces<'t> {
    /// Those of a text that has several `[[NAME]]` at beginnings of lines.
    pub fn of(text: &'t str, name: &str) -> Option<Self> {
        if json::is_json(text) {
            return None;
        }
        let header = format!("[[{name}]]");
        // Headers of what is in such a table begin alike, too.
        let inside = [format!("[{name}"), format!("[[{name}")];
        let is_begun = |line: &str| {
            line.starts_with(&header) || !inside.iter().any(|begin| line.starts_with(begin))
        };
        let lines = text.match_indices("\n[").map(|(end, _)| end + 1);
        let mut begins: Vec<usize> = lines.filter(|at| is_begun(&text[*at..])).collect();
        begins.insert(0, 0);
        begins.push(text.len());
        let pieces = begins.windows(2).map(|ends| &text[ends[0]..ends[1]]);
        let (tables, parts): (Vec<&str>, Vec<&str>) =
            pieces.partition(|piece| piece.starts_with(&header));
        (tables.len() > 1).then(|| Self {
            rest: parts.concat(),
            parts,
            tables,
        })
    }
}

/// The SHA-256 of some texts together.
pub fn digest_of(texts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for text in texts {
        context.update(&text.len().to_ne_bytes());
        context.update(text);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_at_its_headers() {
        let text = "a = 1\n# [[vip]]\n[[vip]]\nb = 2\n[vip.x]\n[[vip.real]]\nc = 3\n[[vip]]\n[z]\nd = 4\n[y]\n[[vip]]\ne = 5";
        let pieces = Pieces::of(text, "vip").unwrap();
        let tables = [
            "[[vip]]\nb = 2\n[vip.x]\n[[vip.real]]\nc = 3\n",
            "[[vip]]\n",
            "[[vip]]\ne = 5",
        ];
        assert_eq!(pieces.tables, tables);
        assert_eq!(
            pieces.parts,
            ["a = 1\n# [[vip]]\n", "[z]\nd = 4\n", "[y]\n"]
        );
        assert_eq!(pieces.rest, "a = 1\n# [[vip]]\n[z]\nd = 4\n[y]\n");
        for text in ["", "[[vip]]\n", "{ \"vip\": [\n[[vip]]\n[[vip]]\n] }"] {
            assert!(Pieces::of(text, "vip").is_none(), "{text}");
        }
    }
}
