//! The target of compression hints and exclude patterns.
//!
//! Input: a text of hints up to a NUL byte, then a path. Each of its expressions is also an exclude pattern, which must
//! match the same paths.

use ferrofs_builder::import::adjust::ExcludePatterns;
use ferrofs_builder::{CompressionHints, ErrorKind};

/// Expressions of a text that are compared one by one.
const LINES_MAX: usize = 16;
/// A longer text says nothing that a shorter one does not.
const TEXT_MAX_BYTES: usize = 1024;

/// Reads hints and patterns, and matches a path.
pub fn hints(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(TEXT_MAX_BYTES)];
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, path) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let hints = match CompressionHints::parse(text) {
        Ok(hints) => hints,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{error:?}");
            return check_lines(text, path);
        }
    };
    let first = hints.find(path);
    let mut lines = hints.all().iter().map(|hint| hint.line);
    let mut last = 0;
    assert!(lines.all(|line| std::mem::replace(&mut last, line) < line), "lines are not in order");
    if let Some(first) = first {
        assert!(hints.all().contains(&first));
        // Two sets of expressions take twice the memory.
        drop(hints);
        let earlier = text.split(|byte| *byte == b'\n').take(first.line - 1);
        let earlier = earlier.collect::<Vec<_>>().join(&b'\n');
        let earlier = CompressionHints::parse(&earlier).expect("lines that were read before");
        assert_eq!(earlier.find(path), None, "line {} is not the first", first.line);
    }
    check_lines(text, path);
}

/// An expression matches a path alike as a hint and as a pattern.
fn check_lines(text: &[u8], path: &[u8]) {
    for line in text.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let Ok(expression) = std::str::from_utf8(line) else { continue };
        let pattern = ExcludePatterns::new([&b""[..]; 0], [expression]);
        // Leading and trailing blanks are no part of an expression in a hint.
        let is_plain = !expression.is_empty() && expression.trim() == expression;
        let hint = CompressionHints::parse(&[b"0 0 ", line].concat());
        match (&pattern, &hint) {
            (Ok(pattern), Ok(hint)) if is_plain => {
                let is_hinted = hint.find(path).is_some();
                assert_eq!(pattern.excludes(path), is_hinted, "{expression}");
            }
            (Err(error), Ok(_)) if is_plain => panic!("only a pattern is refused: {error}"),
            (Ok(_), Err(error)) if is_plain => panic!("only a hint is refused: {error}"),
            _ => {}
        }
    }
}
