// SPDX-License-Identifier: Apache-2.0
//! The pages of the documentation: their links, the files and options that they name.

use std::fs;
use std::path::{Path, PathBuf};

/// A page: where it lies, and its text.
pub(crate) struct Page {
    /// Path of the file.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// Every Markdown file of the repository's documentation.
pub(crate) fn all(root: &Path) -> Vec<Page> {
    let mut pages: Vec<Page> = ["README.md", "CONTRIBUTING.md"]
        .map(|name| read(root.join(name)))
        .into();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(read(path));
            }
        }
    }
    pages
}

fn read(path: PathBuf) -> Page {
    let text = fs::read_to_string(&path).expect("a page");
    Page { path, text }
}

impl Page {
    /// Text outside of code blocks, and the lines of code blocks.
    fn split(&self) -> (String, Vec<&str>) {
        let (mut prose, mut code, mut fenced) = (String::new(), Vec::new(), false);
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                code.push(line);
            } else {
                prose.push_str(line);
                prose.push('\n');
            }
        }
        (prose, code)
    }

    /// Links that lead nowhere: to no file, or to no heading of it.
    pub(crate) fn dead_links(&self) -> Vec<String> {
        let (prose, _) = self.split();
        let links = prose.split("](").skip(1);
        let links = links.filter_map(|rest| rest.split(')').next());
        links
            .filter(|link| !link.contains("://") && !self.leads_somewhere(link))
            .map(str::to_owned)
            .collect()
    }

    fn leads_somewhere(&self, link: &str) -> bool {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => self.path.clone(),
            _ => self.path.parent().expect("a folder").join(file),
        };
        if heading.is_empty() {
            return target.exists();
        }
        let text = fs::read_to_string(&target).unwrap_or_default();
        let headings = text.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .any(|anchor| anchor == heading)
    }

    /// Files of the repository that are named and do not exist.
    pub(crate) fn missing_files(&self, root: &Path) -> Vec<String> {
        const ROOTS: [&str; 7] = [
            "bpf/",
            "crates/",
            "dev/",
            "docs/",
            "packaging/",
            "scripts/",
            "testdata/",
        ];
        let breaks = |c: char| c.is_whitespace() || "`()[]{}|,;\"'*".contains(c);
        self.text
            .split(breaks)
            .map(|word| word.trim_end_matches(['.', ':', '/']))
            .filter(|word| ROOTS.iter().any(|root| word.starts_with(root)))
            .filter(|word| !root.join(word).exists())
            .map(str::to_owned)
            .collect()
    }

    /// Lines of code blocks that call `causeway`, by their words.
    pub(crate) fn calls(&self) -> Vec<Vec<&str>> {
        let (_, code) = self.split();
        let lines = code.into_iter().flat_map(|line| line.split(['|', '&']));
        lines
            .filter_map(|line| line.split('#').next())
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter_map(|words| {
                let at = words.iter().position(|word| *word == "causeway")?;
                Some(words[at + 1..].to_vec())
            })
            .collect()
    }
}

/// The anchor that a heading gets in a rendered page.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' | '-' => Some('-'),
        '_' => Some('_'),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}
