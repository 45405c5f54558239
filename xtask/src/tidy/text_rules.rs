//! Rules for the text of every file: no marker of unfinished work, no path of one machine, no host of a
//! package registry, no hidden white space, no relative link to nothing. Called by `tidy`.
//!
//! Why here: clippy sees markers in code only, rustfmt white space in Rust only, and a link checker such as
//! lychee would have to be built from some 400 crates for what is a page here and works offline. The words
//! that are searched for are spelt in two parts, so that this file passes its own check.

use std::path::Path;

use super::tree::{Kind, Report, SourceFile, Tree};

/// Checks one file against every rule that needs no other file.
pub(crate) fn check(file: &SourceFile, report: &mut Report) {
    check_markers(file, report);
    check_machine(file, report);
    check_white_space(file, report);
}

/// How a marker is compared with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Shouted words: the quiet form is ordinary English or an ordinary name.
    Exact,
    /// Phrases, which may begin a sentence.
    Any,
}

const MARKERS: [(&str, Case); 11] = [
    (concat!("TO", "DO"), Case::Exact),
    (concat!("FIX", "ME"), Case::Exact),
    (concat!("X", "XX"), Case::Exact),
    (concat!("HA", "CK"), Case::Exact),
    (concat!("to", "do!"), Case::Exact),
    (concat!("unimpl", "emented!"), Case::Exact),
    (concat!("db", "g!"), Case::Exact),
    (concat!("#[ig", "nore"), Case::Exact),
    (concat!("place", "holder"), Case::Any),
    (concat!("not yet ", "implemented"), Case::Any),
    (concat!("for ", "now"), Case::Any),
];

fn check_markers(file: &SourceFile, report: &mut Report) {
    for (number, line) in file.lines() {
        let lowered = line.to_lowercase();
        for (marker, case) in MARKERS {
            let haystack = if case == Case::Any { &lowered } else { line };
            if has_word(haystack, marker) {
                report.add(&file.path, number, format!("stray marker \"{marker}\""));
            }
        }
    }
}

/// Whether the marker stands in the line as words of its own: "wait for nowhere" has none.
fn has_word(line: &str, marker: &str) -> bool {
    line.match_indices(marker).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + marker.len()..].chars().next();
        let begins = !marker.starts_with(is_letter) || !before.is_some_and(is_letter);
        let ends = !marker.ends_with(is_letter) || !after.is_some_and(is_letter);
        begins && ends
    })
}

/// What continues a word: a plural is still the word, so a final `s` does not.
fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() && letter != 's' || letter == '_'
}

const FOLDERS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

const HOSTS: [&str; 7] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npm", "js.org"),
    concat!("npm", "js.com"),
    concat!("proxy.", "golang.org"),
    concat!("arti", "factory"),
];

fn check_machine(file: &SourceFile, report: &mut Report) {
    for (number, line) in file.lines() {
        for folder in FOLDERS.into_iter().filter(|folder| has_absolute(line, folder)) {
            report.add(&file.path, number, format!("path of one machine: {folder}"));
        }
        for host in HOSTS.into_iter().filter(|host| line.contains(host)) {
            report.add(&file.path, number, format!("host of a package registry: {host}"));
        }
    }
}

/// Whether the folder stands at the start of a path: `tests/NAME/` is a folder of our own.
fn has_absolute(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-})/".contains(letter))
    })
}

fn check_white_space(file: &SourceFile, report: &mut Report) {
    for (number, line) in file.lines() {
        let shown = line.strip_suffix('\r').unwrap_or(line);
        if shown.len() < line.len() {
            report.add(&file.path, number, "carriage return at the end of the line");
        }
        if shown.contains('\t') {
            report.add(&file.path, number, "tab");
        }
        if shown.ends_with(' ') {
            report.add(&file.path, number, "space at the end of the line");
        }
    }
}

/// Relative links of Markdown files must lead to something that exists. Links to other hosts and to
/// places inside a page are left alone.
pub(crate) fn check_links(tree: &Tree, report: &mut Report) {
    for file in tree.files.iter().filter(|file| file.kind == Kind::Markdown) {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for (number, target) in targets(file) {
            let place = match target.strip_prefix('/') {
                Some(from_root) => tree.root.join(from_root),
                None => tree.root.join(folder).join(&target),
            };
            if !place.exists() {
                report.add(&file.path, number, format!("link to {target}, which does not exist"));
            }
        }
    }
}

/// The relative targets of the file with their lines, outside code and without anchors.
fn targets(file: &SourceFile) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let prose = without_code(line);
            let relative = raw_targets(&prose).filter_map(relative_target);
            found.extend(relative.map(|target| (number, target)));
        }
    }
    found
}

/// The line without its `code` parts, in which brackets mean something else.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// What stands in `[words](target)` and after `[words]:` on a line.
fn raw_targets(prose: &str) -> impl Iterator<Item = &str> {
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let reference = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(reference.map(|(_, target)| target))
}

/// The file that a target names; none for other hosts and for anchors in the same page.
fn relative_target(raw: &str) -> Option<String> {
    let target = raw.split_whitespace().next()?.trim_matches(['<', '>']);
    let file = target.split('#').next()?;
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!is_elsewhere && !file.is_empty()).then(|| file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Case, FOLDERS, HOSTS, MARKERS, check, check_links};
    use crate::tidy::tree::{Report, SourceFile, Tree};
    use std::fs;

    fn lines_found(text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(&SourceFile::new("a.md", text), &mut report);
        report.lines()
    }

    #[test]
    fn every_marker_is_found_on_its_line() {
        for (marker, _) in MARKERS {
            assert_eq!(lines_found(&format!("first\n// {marker} more\n")), [2], "{marker}");
        }
    }

    #[test]
    fn a_phrase_is_found_at_the_start_of_a_sentence() {
        for (marker, _) in MARKERS.into_iter().filter(|(_, case)| *case == Case::Any) {
            let capital = marker[..1].to_uppercase();
            assert_eq!(lines_found(&format!("{capital}{} it stays.\n", &marker[1..])), [1]);
        }
    }

    #[test]
    fn a_plural_is_found_too() {
        assert_eq!(lines_found(&format!("no {}s here\n", MARKERS[8].0)), [1]);
    }

    #[test]
    fn a_marker_inside_a_longer_word_is_no_marker() {
        let template = "X".repeat(6);
        let text = format!("mktemp a.{template}\nwait {}here\ntodo_list = 1\n", MARKERS[10].0);
        assert_eq!(lines_found(&text), Vec::<usize>::new());
    }

    #[test]
    fn an_absolute_folder_is_reported() {
        for folder in FOLDERS {
            assert_eq!(lines_found(&format!("run it in {folder}main\n")), [1]);
            assert_eq!(lines_found(&format!("# Title\n(`{folder}main`)\n")), [2]);
        }
    }

    #[test]
    fn a_registry_host_is_reported() {
        for host in HOSTS {
            assert_eq!(lines_found(&format!("see https://{host}/x\n")), [1]);
        }
    }

    #[test]
    fn relative_paths_and_other_hosts_pass() {
        let text = format!("tests{}a\n${{HOME}}{}\nhttps://example.org/\n", FOLDERS[0], FOLDERS[1]);
        assert_eq!(lines_found(&text), Vec::<usize>::new());
    }

    fn messages(text: &str) -> Vec<String> {
        let mut report = Report::default();
        check(&SourceFile::new("a.toml", text), &mut report);
        report.into_sorted().into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn each_kind_of_hidden_white_space_is_reported() {
        assert_eq!(messages("a\tb\n"), ["tab"]);
        assert_eq!(messages("a \n"), ["space at the end of the line"]);
        assert_eq!(messages("a\r\n"), ["carriage return at the end of the line"]);
    }

    #[test]
    fn plain_lines_pass() {
        assert!(messages("a = 1\n\n    b = \"\\t\"\n").is_empty());
    }

    /// The lines reported in docs/a.md, which lies beside docs/b.md under a root with c.md.
    fn dead_links(text: &str) -> Vec<usize> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("docs")).expect("a folder");
        for path in ["docs/b.md", "c.md"] {
            fs::write(folder.path().join(path), "").expect("a file");
        }
        let files = vec![SourceFile::new("docs/a.md", text)];
        let tree = Tree { root: folder.path().to_owned(), paths: Vec::new(), files };
        let mut report = Report::default();
        check_links(&tree, &mut report);
        report.lines()
    }

    #[test]
    fn a_link_to_nothing_is_reported() {
        assert_eq!(dead_links("# A\n[gone](gone.md)\n"), [2]);
        assert_eq!(dead_links("[gone]: ../gone.md\n"), [1]);
        assert_eq!(dead_links("[b](b.md), [c](c.md)\n"), [1]);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[b](b.md#part), [c](../c.md \"title\"), [c](/c.md), [here](#part)\n[b]: b.md\n";
        assert_eq!(dead_links(text), Vec::<usize>::new());
    }

    #[test]
    fn other_hosts_and_code_are_left_alone() {
        let text = "[x](https://example.org/x.md) `v[i](gone)`\n```\n[x](gone.md)\n```\n";
        assert_eq!(dead_links(text), Vec::<usize>::new());
    }
}
