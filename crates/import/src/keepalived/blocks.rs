// SPDX-License-Identifier: Apache-2.0
//! The grammar of keepalived.conf: words to the end of the line, and blocks of lines in braces.

use std::collections::HashMap;

use crate::Unreadable;
use crate::words::words;

/// A line, with the block behind it if it has one.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) line: usize,
    pub(super) words: Vec<String>,
    pub(super) children: Vec<Block>,
}

impl Block {
    /// A word, or nothing.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The first line of the block that begins with `word`.
    pub(super) fn child(&self, word: &str) -> Option<&Block> {
        self.children.iter().find(|child| child.word(0) == word)
    }
}

pub(super) fn parse(text: &str) -> Result<Vec<Block>, Unreadable> {
    let mut definitions = HashMap::new();
    // Blocks that are open, the file's own first.
    let mut open = vec![Block::default()];
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let mut block = Block {
            line: line_number,
            ..Block::default()
        };
        for word in words(line, &['#', '!']) {
            for part in parts(&word) {
                match part {
                    "{" => {
                        if block.words.is_empty() {
                            // The brace of the line before.
                            let parent = open.last_mut().expect("the file's own is never closed");
                            block = parent.children.pop().ok_or_else(|| Unreadable {
                                line: line_number,
                                message: "a `{` without a word before it".to_owned(),
                            })?;
                        }
                        open.push(std::mem::take(&mut block));
                        block.line = line_number;
                    }
                    "}" => {
                        let mut closed = open.pop().expect("the file's own is never closed");
                        let Some(parent) = open.last_mut() else {
                            return Err(Unreadable {
                                line: line_number,
                                message: "a `}` that closes nothing".to_owned(),
                            });
                        };
                        if !block.words.is_empty() {
                            closed.children.push(std::mem::take(&mut block));
                            block.line = line_number;
                        }
                        parent.children.push(closed);
                    }
                    word => block.words.push(defined(word, &definitions)),
                }
            }
        }
        if block.words.is_empty() {
            continue;
        }
        let definition = block.words[0].strip_prefix('$');
        if let Some((name, value)) = definition.and_then(|text| text.split_once('=')) {
            let rest = block.words[1..].iter();
            let value = std::iter::once(value).chain(rest.map(String::as_str));
            let value: Vec<&str> = value.collect();
            definitions.insert(name.to_owned(), value.join(" "));
            continue;
        }
        let parent = open.last_mut().expect("the file's own is never closed");
        parent.children.push(block);
    }
    match open.as_mut_slice() {
        [file] => Ok(std::mem::take(&mut file.children)),
        [.., unclosed] => Err(Unreadable {
            line: unclosed.line,
            message: format!("the block of `{}` is not closed", unclosed.word(0)),
        }),
        [] => Ok(Vec::new()),
    }
}

/// A word, with the braces that stand beside it without a blank. `${NAME}` is one.
fn parts(word: &str) -> Vec<&str> {
    if word.contains("${") {
        return vec![word];
    }
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(at);
        let (brace, after) = brace.split_at(1);
        parts.extend((!before.is_empty()).then_some(before));
        parts.push(brace);
        rest = after;
    }
    parts.extend((!rest.is_empty()).then_some(rest));
    parts
}

/// A word in which definitions are put in the place of their names.
fn defined(word: &str, definitions: &HashMap<String, String>) -> String {
    if !word.contains('$') {
        return word.to_owned();
    }
    // The longest name first, so that $VIP does not stand for $VIP_PORT.
    let mut names: Vec<(&String, &String)> = definitions.iter().collect();
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let mut word = word.to_owned();
    for (name, value) in names {
        word = word.replace(&format!("${{{name}}}"), value);
        // What defines a name begins with it.
        if !word.starts_with(&format!("${name}=")) {
            word = word.replace(&format!("${name}"), value);
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_where_they_like() {
        let text = "$V=192.0.2.1\nvirtual_server $V 80 { # one\n  TCP_CHECK{}\n  url\n  {\n path / }\n}\n! gone {";
        let blocks = parse(text).unwrap();
        let server = &blocks[0];
        assert_eq!(server.words, ["virtual_server", "192.0.2.1", "80"]);
        assert_eq!(server.line, 2);
        assert_eq!(server.children.len(), 2);
        assert_eq!(
            server.child("url").unwrap().children[0].words,
            ["path", "/"]
        );
    }

    #[test]
    fn what_is_not_closed_is_told_with_its_line() {
        assert_eq!(parse("\na {\n b {\n}\n").unwrap_err().line, 2);
        assert_eq!(parse("a {\n}\n}\n").unwrap_err().line, 3);
        assert!(parse("{ }").is_err());
    }
}
