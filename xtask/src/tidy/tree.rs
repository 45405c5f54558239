//! The files that tidy looks at: what git knows or would not ignore, or, where git is missing,
//! what a walk finds; and the report that checks add their findings to. Called by `tidy`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, fs, io};

/// Folders that a walk leaves out, because git would: build output and fuzzing state.
const LEFT_OUT: [&str; 5] = [".git", "target", "corpus", "artifacts", "coverage"];

/// What a text file holds, as far as the checks care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    Markdown,
    Toml,
    Script,
}

impl Kind {
    /// The kind of the file, or none for a file that tidy does not read.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match Path::new(path).extension().and_then(|extension| extension.to_str()) {
            Some("rs") => Some(Self::Rust),
            Some("md") => Some(Self::Markdown),
            Some("toml") => Some(Self::Toml),
            Some("sh" | "py") => Some(Self::Script),
            None if path.starts_with(".ci/") || path.starts_with("scripts/") => Some(Self::Script),
            _ => None,
        }
    }
}

/// One text file with its path below the root, folders parted by `/`.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl SourceFile {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let kind = Kind::of(path).expect("tests name files of a known kind");
        Self { path: path.to_owned(), kind, text: text.to_owned() }
    }

    /// The lines with their numbers, which count from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every path of the workspace and the text of those that are checked.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) paths: Vec<String>,
    pub(crate) files: Vec<SourceFile>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self, Box<dyn Error>> {
        let paths = match git_paths(root) {
            Some(paths) => paths,
            None => walked_paths(root)?,
        };
        let mut files = Vec::new();
        for path in &paths {
            if let Some(kind) = Kind::of(path) {
                let text = fs::read_to_string(root.join(path))
                    .map_err(|error| format!("cannot read {path}: {error}"))?;
                files.push(SourceFile { path: path.clone(), kind, text });
            }
        }
        Ok(Self { root: root.to_owned(), paths, files })
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }
}

/// What git tracks or would not ignore; none where there is no git or no repository.
fn git_paths(root: &Path) -> Option<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    if !listed.status.success() {
        return None;
    }
    let text = String::from_utf8(listed.stdout).ok()?;
    let mut paths: Vec<String> = text.split('\0').map(str::to_owned).collect();
    // A tracked file that was deleted is still listed.
    paths.retain(|path| !path.is_empty() && root.join(path).is_file());
    paths.sort();
    paths.dedup();
    Some(paths)
}

fn walked_paths(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_file() {
                paths.extend(below(root, &entry.path()));
            } else if kind.is_dir() && !is_left_out(&entry.path()) {
                folders.push(entry.path());
            }
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_left_out(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| LEFT_OUT.iter().any(|left_out| name == *left_out))
}

/// The path below the root; none if it is not UTF-8, which no file of a kind we check is.
fn below(root: &Path, path: &Path) -> Option<String> {
    Some(path.strip_prefix(root).ok()?.to_str()?.replace('\\', "/"))
}

/// A rule broken at a line of a file; lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// All findings of a run, in the order in which the checks made them.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn add(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.findings.push(Finding { path: path.to_owned(), line, message: message.into() });
    }

    /// The findings by path and line, each once.
    pub(crate) fn into_sorted(mut self) -> Vec<Finding> {
        self.findings.sort();
        self.findings.dedup();
        self.findings
    }

    /// The lines found, for tests of one check on one file.
    #[cfg(test)]
    pub(crate) fn lines(self) -> Vec<usize> {
        self.into_sorted().into_iter().map(|finding| finding.line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Report, Tree, walked_paths};
    use std::fs;

    #[test]
    fn the_kind_follows_the_name() {
        assert_eq!(Kind::of("src/a.rs"), Some(Kind::Rust));
        assert_eq!(Kind::of(".ci/run"), Some(Kind::Script));
        assert_eq!(Kind::of("tests/data/x.erofs"), None);
        assert_eq!(Kind::of("LICENSE-MIT"), None);
    }

    #[test]
    fn a_walk_leaves_build_output_out() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("target/debug")).expect("folders");
        fs::create_dir_all(folder.path().join("src")).expect("folders");
        fs::write(folder.path().join("target/debug/built.rs"), "").expect("a file");
        fs::write(folder.path().join("src/a.rs"), "//! A.\n").expect("a file");
        assert_eq!(walked_paths(folder.path()).expect("a walk"), ["src/a.rs"]);
    }

    #[test]
    fn a_tree_outside_git_is_walked() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.md"), "# A\n").expect("a file");
        fs::write(folder.path().join("image.erofs"), [0xFF]).expect("a file");
        let tree = Tree::read(folder.path()).expect("a tree");
        assert_eq!(tree.paths, ["a.md", "image.erofs"]);
        assert_eq!(tree.text("a.md"), Some("# A\n"));
        assert_eq!(tree.text("image.erofs"), None);
    }

    #[test]
    fn findings_come_out_by_place_and_once() {
        let mut report = Report::default();
        report.add("b.rs", 1, "late");
        report.add("a.rs", 9, "second");
        report.add("a.rs", 2, "first");
        report.add("a.rs", 2, "first");
        let printed: Vec<String> = report.into_sorted().iter().map(ToString::to_string).collect();
        assert_eq!(printed, ["a.rs:2: first", "a.rs:9: second", "b.rs:1: late"]);
    }
}
