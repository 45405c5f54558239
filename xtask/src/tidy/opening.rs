//! Every Rust file opens with a `//!` paragraph that says what it owns. Only its presence is
//! judged, not its worth. Called by `tidy` for Rust files.

use super::finding::Report;
use super::source::SourceFile;

pub(crate) fn check(file: &SourceFile, report: &mut Report) {
    if !opens_with_a_paragraph(&file.text) {
        report.add(&file.path, 1, "file does not open with a //! paragraph");
    }
}

fn opens_with_a_paragraph(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("//!").is_some_and(|words| !words.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::finding::Report;
    use crate::tidy::source::SourceFile;

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
}
