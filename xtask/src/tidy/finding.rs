//! One broken rule at one place, and the list of them that a run collects. It knows no rule;
//! every check adds to a `Report` and `tidy` prints it.

use std::fmt;

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
    use super::Report;

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
