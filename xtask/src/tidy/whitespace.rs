//! White space that differs without showing: tabs, blanks at line ends, carriage returns.
//! Called by `tidy` for every text file.

use super::finding::Report;
use super::source::SourceFile;

pub(crate) fn check(file: &SourceFile, report: &mut Report) {
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

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::finding::Report;
    use crate::tidy::source::SourceFile;

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
}
