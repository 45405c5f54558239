//! Links between the files of the project: a relative link in a Markdown file must lead to
//! something that exists. Links to other hosts and to places inside a page are left alone.
//! Called by `tidy` with the whole tree.

use std::path::Path;

use super::finding::Report;
use super::source::{Kind, SourceFile, Tree};

pub(crate) fn check(tree: &Tree, report: &mut Report) {
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
    use super::check;
    use crate::tidy::finding::Report;
    use crate::tidy::source::{SourceFile, Tree};
    use std::fs;

    /// The lines reported in docs/a.md, which lies beside docs/b.md under a root with c.md.
    fn lines_found(text: &str) -> Vec<usize> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("docs")).expect("a folder");
        for path in ["docs/b.md", "c.md"] {
            fs::write(folder.path().join(path), "").expect("a file");
        }
        let files = vec![SourceFile::new("docs/a.md", text)];
        let tree = Tree { root: folder.path().to_owned(), paths: Vec::new(), files };
        let mut report = Report::default();
        check(&tree, &mut report);
        report.lines()
    }

    #[test]
    fn a_link_to_nothing_is_reported() {
        assert_eq!(lines_found("# A\n[gone](gone.md)\n"), [2]);
        assert_eq!(lines_found("[gone]: ../gone.md\n"), [1]);
        assert_eq!(lines_found("[b](b.md), [c](c.md)\n"), [1]);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[b](b.md#part), [c](../c.md \"title\"), [c](/c.md), [here](#part)\n[b]: b.md\n";
        assert_eq!(lines_found(text), Vec::<usize>::new());
    }

    #[test]
    fn other_hosts_and_code_are_left_alone() {
        let text = "[x](https://example.org/x.md) `v[i](gone)`\n```\n[x](gone.md)\n```\n";
        assert_eq!(lines_found(text), Vec::<usize>::new());
    }
}
