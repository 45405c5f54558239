//! Marks of unfinished work: none may be committed, since nobody comes back to them. Every
//! mark is spelt in two parts below, so that this file passes its own check. Called by `tidy`
//! for every text file.

use super::finding::Report;
use super::source::SourceFile;

/// How a mark is compared with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Shouted words: the quiet form is ordinary English or an ordinary name.
    Exact,
    /// Phrases, which may begin a sentence.
    Any,
}

const MARKS: [(&str, Case); 11] = [
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

pub(crate) fn check(file: &SourceFile, report: &mut Report) {
    for (number, line) in file.lines() {
        let lowered = line.to_lowercase();
        for (mark, case) in MARKS {
            let haystack = if case == Case::Any { &lowered } else { line };
            if has_word(haystack, mark) {
                report.add(&file.path, number, format!("stray marker \"{mark}\""));
            }
        }
    }
}

/// Whether the mark stands in the line as words of its own: "wait for nowhere" has none.
fn has_word(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + mark.len()..].chars().next();
        let begins = !mark.starts_with(is_letter) || !before.is_some_and(is_letter);
        let ends = !mark.ends_with(is_letter) || !after.is_some_and(is_letter);
        begins && ends
    })
}

/// What continues a word: a plural is still the word, so a final `s` does not.
fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() && letter != 's' || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::{Case, MARKS, check};
    use crate::tidy::finding::Report;
    use crate::tidy::source::SourceFile;

    fn lines_found(text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(&SourceFile::new("a.md", text), &mut report);
        report.lines()
    }

    #[test]
    fn every_mark_is_found_on_its_line() {
        for (mark, _) in MARKS {
            assert_eq!(lines_found(&format!("first\n// {mark} more\n")), [2], "{mark}");
        }
    }

    #[test]
    fn a_phrase_is_found_at_the_start_of_a_sentence() {
        for (mark, _) in MARKS.into_iter().filter(|(_, case)| *case == Case::Any) {
            let capital = mark[..1].to_uppercase();
            assert_eq!(lines_found(&format!("{capital}{} it stays.\n", &mark[1..])), [1]);
        }
    }

    #[test]
    fn a_plural_is_found_too() {
        assert_eq!(lines_found(&format!("no {}s here\n", MARKS[8].0)), [1]);
    }

    #[test]
    fn a_mark_inside_a_longer_word_is_no_mark() {
        let template = "X".repeat(6);
        let text = format!("mktemp a.{template}\nwait {}here\ntodo_list = 1\n", MARKS[10].0);
        assert_eq!(lines_found(&text), Vec::<usize>::new());
    }
}
