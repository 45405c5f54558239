//! Rules for Rust files as a whole: a name that says what is inside, the module style, an opening
//! paragraph, and a length. Called by `tidy`. Lengths of functions are clippy's (`too_many_lines`).

use super::tree::{Kind, Report, SourceFile};

/// More lines hold more than one concept.
const FILE_LINES_MAX: usize = 900;

/// Names that say nothing of the content.
const DRAWERS: [&str; 6] = ["utils", "common", "helpers", "misc", "types", "manager"];

pub(crate) fn check_paths(paths: &[String], report: &mut Report) {
    for path in paths.iter().filter(|path| Kind::of(path) == Some(Kind::Rust)) {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        for part in stem.split('/').filter(|part| DRAWERS.contains(part)) {
            report.add(path, 1, format!("{part} says nothing of what the file holds"));
        }
        if path.ends_with("/mod.rs") {
            report.add(path, 1, "a module is a.rs beside a/, not a/mod.rs");
        }
        if path.split_once("/src/").is_some_and(|(_, inside)| inside.matches('/').count() > 1) {
            report.add(path, 1, "no folder lies deeper than src/a");
        }
    }
}

/// Checks the opening and the length of one file.
pub(crate) fn check(file: &SourceFile, report: &mut Report) {
    if !opens_with_a_paragraph(&file.text) {
        report.add(&file.path, 1, "file does not open with a //! paragraph");
    }
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let message = format!("file has {lines} lines, more than {FILE_LINES_MAX}");
        report.add(&file.path, lines, message);
    }
}

fn opens_with_a_paragraph(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("//!").is_some_and(|words| !words.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::{FILE_LINES_MAX, check, check_paths};
    use crate::tidy::tree::{Report, SourceFile};

    fn path_findings(path: &str) -> usize {
        let mut report = Report::default();
        check_paths(&[path.to_owned()], &mut report);
        report.lines().len()
    }

    #[test]
    fn a_name_that_says_nothing_is_reported_as_a_file_and_as_a_folder() {
        assert_eq!(path_findings("crates/image/src/utils.rs"), 1);
        assert_eq!(path_findings("crates/cli/tests/common/a.rs"), 1);
    }

    #[test]
    fn a_noun_passes_and_so_does_a_file_that_is_not_rust() {
        assert_eq!(path_findings("crates/image/src/page_pool.rs"), 0);
        assert_eq!(path_findings("crates/ondisk/src/types_of_file.rs"), 0);
        assert_eq!(path_findings("docs/common.md"), 0);
    }
    #[test]
    fn another_module_style_and_a_deep_folder_are_reported() {
        assert_eq!(path_findings("crates/cli/src/build/mod.rs"), 1);
        assert_eq!(path_findings("crates/cli/src/build/a/b.rs"), 1);
        assert_eq!(path_findings("crates/cli/src/build/a.rs"), 0);
        assert_eq!(path_findings("crates/cli/src/build.rs"), 0);
    }

    fn findings(text: &str) -> usize {
        let mut report = Report::default();
        check(&SourceFile::new("build.rs", text), &mut report);
        report.lines().len()
    }

    #[test]
    fn a_paragraph_at_the_top_passes() {
        assert_eq!(findings("//! Owns the superblock.\nfn main() {}\n"), 0);
    }

    #[test]
    fn code_an_empty_paragraph_or_nothing_is_reported() {
        for text in ["fn main() {}\n", "//!\nfn main() {}\n", "// Owns it.\n", "\n//! Late.\n", ""]
        {
            assert_eq!(findings(text), 1, "{text:?}");
        }
    }

    #[test]
    fn only_a_file_over_the_limit_is_reported() {
        for (lines, expected) in [(FILE_LINES_MAX, 0), (FILE_LINES_MAX + 1, 1)] {
            assert_eq!(findings(&"//! A.\n".repeat(lines)), expected);
        }
    }
}
