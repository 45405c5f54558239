//! Compression hints: files that get another compression than the options say, or none, by their paths.

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::import::exclude_patterns::translate_posix_regex;
use crate::{Error, ErrorKind, Result};

/// How files are compressed whose paths match an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionHint {
    /// Bytes of the largest pcluster: whole blocks, 1 MiB at most. 0: the file is not compressed.
    pub pcluster_bytes: u32,
    /// An index into [`Algorithms::methods`](crate::Algorithms::methods).
    pub method: usize,
    /// Where it stands in the file of hints, from 1 on.
    pub line: usize,
}

/// Compression hints in their order: the first that matches a path counts. The default has none.
#[derive(Clone, Debug)]
pub struct CompressionHints {
    hints: Vec<CompressionHint>,
    expressions: RegexSet,
}

impl Default for CompressionHints {
    fn default() -> Self {
        Self { hints: Vec::new(), expressions: RegexSet::empty() }
    }
}

impl CompressionHints {
    /// Reads hints in the format of `--compress-hints` of mkfs.erofs, one a line:
    ///
    /// ```text
    /// # bytes of a pcluster, or 0; the number of an algorithm, from 0 on; an expression
    /// 4096 1 \.so$
    /// 0 \.(jpg|zip)$
    /// ```
    ///
    /// Without a number it is algorithm 0. Expressions are POSIX extended ones, as
    /// [`ExcludePatterns`](crate::import::adjust::ExcludePatterns) reads them, and are looked for anywhere in a path that is
    /// relative to the root and has no slash before it; of a file with several names in the first of them, in the
    /// order of the tree. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`] with the number of the line: a number or the expression is missing or cannot be read.
    /// Whether sizes and algorithms suit an image is checked when it is built.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let (mut hints, mut patterns) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (hint, pattern) = parse_line(number, line).map_err(|why| refused(number, &why))?;
            // One by one first, so that the message says which.
            set_of([&pattern]).map_err(|error| refused(number, &error.to_string()))?;
            hints.push(hint);
            patterns.push(pattern);
        }
        let expressions = set_of(&patterns).map_err(|error| {
            Error::new(ErrorKind::InvalidOptions(format!(
                "all expressions of the hints together: {error}"
            )))
        })?;
        Ok(Self { hints, expressions })
    }

    /// All of them, in their order.
    #[must_use]
    pub fn all(&self) -> &[CompressionHint] {
        &self.hints
    }

    /// The hint for the file at `path`, relative to the root and without a slash before it.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<CompressionHint> {
        let first = self.expressions.matches(path).into_iter().next()?;
        self.hints.get(first).copied()
    }
}

fn parse_line(line: usize, text: &[u8]) -> std::result::Result<(CompressionHint, String), String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
    let is_blank = |letter| letter == ' ' || letter == '\t';
    let (size, rest) = text.trim().split_once(is_blank).ok_or("an expression is missing")?;
    let pcluster_bytes = size.parse().map_err(|_| format!("{size} is not a number of bytes"))?;
    let rest = rest.trim_start();
    let (method, pattern) = match rest.split_once(is_blank) {
        None => (0, rest),
        Some((number, pattern)) => {
            let what = "is not an algorithm number, which must precede an expression with blanks";
            (number.parse().map_err(|_| format!("{number} {what}"))?, pattern.trim_start())
        }
    };
    let pattern = translate_posix_regex(pattern).map_err(|error| error.to_string())?;
    Ok((CompressionHint { pcluster_bytes, method, line }, pattern))
}

fn set_of<S: AsRef<str>>(
    patterns: impl IntoIterator<Item = S>,
) -> std::result::Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).dot_matches_new_line(true).build()
}

fn refused(line: usize, why: &str) -> Error {
    Error::new(ErrorKind::InvalidOptions(format!("line {line} of the hints: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hint_that_fits_a_path_counts() {
        let text =
            b"# a comment\n\n0 \\.jpg$\n65536 2 ^usr/lib/\n4096\t\t1\t usr/.*with blanks\n512 so\n";
        let hints = CompressionHints::parse(text).unwrap();
        let found = |path: &[u8]| hints.find(path).map(|hint| (hint.pcluster_bytes, hint.method));
        assert_eq!(found(b"usr/lib/a.jpg"), Some((0, 0)));
        assert_eq!(found(b"usr/lib/a.so"), Some((65536, 2)));
        assert_eq!(found(b"usr/share/with blanks.so"), Some((4096, 1)));
        assert_eq!(found(b"opt/usr/lib/a.so"), Some((512, 0)));
        assert_eq!(found(b"etc/passwd"), None);
        let lines: Vec<_> = hints.all().iter().map(|hint| hint.line).collect();
        assert_eq!(lines, [3, 4, 5, 6]);
        assert!(CompressionHints::parse(b"").unwrap().all().is_empty());
    }

    #[test]
    fn malformed_lines_are_refused_with_their_number() {
        for (text, part) in [
            (&b"4096\n"[..], "line 1 of the hints: an expression is missing"),
            (b"\n#\n4096 a(\n", "line 3 of the hints: "),
            (b"x a\n", "line 1 of the hints: x is not a number of bytes"),
            (b"-1 a\n", "-1 is not a number of bytes"),
            (b"4k a\n", "4k is not a number of bytes"),
            (b"99999999999 a\n", "not a number of bytes"),
            (b"4096 b c\n", "b is not an algorithm number"),
            (b"4096 -1 c\n", "-1 is not an algorithm number"),
            (b"4096 [[.a.]]\n", "line 1 of the hints: "),
            (b"4096 \xff\n", "not UTF-8"),
        ] {
            let message = CompressionHints::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{}: {message}", text.escape_ascii());
        }
    }
}
