//! Names that say nothing: a file or folder of Rust is one noun, never a drawer. Called by
//! `tidy` with every path of the workspace.

use super::finding::Report;
use super::source::Kind;

const DRAWERS: [&str; 6] = ["utils", "common", "helpers", "misc", "types", "manager"];

pub(crate) fn check(paths: &[String], report: &mut Report) {
    for path in paths.iter().filter(|path| Kind::of(path) == Some(Kind::Rust)) {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        for part in stem.split('/').filter(|part| DRAWERS.contains(part)) {
            report.add(path, 1, format!("{part} names a drawer, not what it holds"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::finding::Report;

    fn findings(path: &str) -> usize {
        let mut report = Report::default();
        check(&[path.to_owned()], &mut report);
        report.lines().len()
    }

    #[test]
    fn a_drawer_is_reported_as_a_file_and_as_a_folder() {
        assert_eq!(findings("crates/image/src/utils.rs"), 1);
        assert_eq!(findings("crates/cli/tests/common/mod.rs"), 1);
    }

    #[test]
    fn a_noun_passes_and_so_does_a_file_that_is_not_rust() {
        assert_eq!(findings("crates/image/src/page_pool.rs"), 0);
        assert_eq!(findings("crates/ondisk/src/types_of_file.rs"), 0);
        assert_eq!(findings("docs/common.md"), 0);
    }
}
