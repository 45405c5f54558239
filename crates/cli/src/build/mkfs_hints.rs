//! Hints for compression as mkfs.erofs reads them: lines that make no sense are left out with a
//! warning. What remains is in the form that the library reads. Called by `mkfs`.

use ferrofs_builder::CompressionHints;

use crate::amount::parse_leading_number;
use crate::output::escape;

/// The usable lines of a file of hints; the others are empty, so that the number of each line stays.
///
/// # Errors
/// A line has no expression.
pub(super) fn usable_lines(
    text: &[u8],
    block_bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, String> {
    let mut usable = Vec::with_capacity(text.len());
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        if !line.trim_ascii().is_empty() && !line.starts_with(b"#") {
            let line = String::from_utf8_lossy(line);
            match usable_line(&line, block_bytes) {
                Ok(Ok(line)) => usable.extend(line.bytes()),
                Ok(Err(why)) => {
                    warnings.push(format!("line {number} of the hints has no effect: {why}"));
                }
                Err(why) => return Err(format!("line {number} of the hints: {why}")),
            }
        }
        usable.push(b'\n');
    }
    Ok(usable)
}

/// A line in the form of the library; inside, the reason why it has no effect; outside, the reason
/// why the whole file is refused.
fn usable_line(line: &str, block_bytes: u64) -> Result<Result<String, String>, String> {
    let is_blank = |letter| letter == ' ' || letter == '\t';
    let missing = "an expression is missing";
    let (size, rest) = line.trim().split_once(is_blank).ok_or(missing)?;
    let rest = rest.trim_start();
    let (method, pattern) = match rest.split_once(is_blank) {
        Some((method, pattern)) => (parse_leading_number(method), pattern.trim_start()),
        None => (0, rest),
    };
    let bytes = parse_leading_number(size);
    let is_whole = u64::try_from(bytes).is_ok_and(|bytes| bytes.is_multiple_of(block_bytes.max(1)));
    if !is_whole {
        return Ok(Err(format!("{} bytes are not whole blocks", escape(size.as_bytes()))));
    }
    if method < 0 {
        return Err(format!("no algorithm {method}"));
    }
    let line = format!("{bytes} {method} {pattern}");
    // The number of the line is known here, and there is only one.
    Ok(match CompressionHints::parse(format!("0 0 {pattern}").as_bytes()) {
        Ok(_) => Ok(line),
        Err(error) => Err(error.to_string().trim_start_matches("line 1 of the hints: ").to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(text: &str) -> (String, Vec<String>) {
        let mut warnings = Vec::new();
        let lines = usable_lines(text.as_bytes(), 4096, &mut warnings).unwrap();
        (String::from_utf8(lines).unwrap(), warnings)
    }

    #[test]
    fn a_hint_of_1048577_bytes_is_ignored_with_a_warning() {
        let (lines, warnings) = usable("1048577 a\n65536 1 b c\n");
        assert_eq!(lines, "\n65536 1 b c\n\n");
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("line 1 of the hints has no effect: 1048577 bytes"));
    }

    #[test]
    fn lines_that_make_no_sense_have_no_effect() {
        for line in ["4k a", "-1 a", "4096 (", "4096 0 (", "99999999999999999999 a"] {
            let (lines, warnings) = usable(line);
            assert_eq!((lines.as_str(), warnings.len()), ("\n", 1), "{line}");
        }
        assert_eq!(usable("x a\n# 5 b").0, "0 0 a\n\n");
        assert_eq!(usable("  8192\ta  ").0, "8192 0 a\n");
    }

    #[test]
    fn a_line_without_an_expression_is_refused() {
        for line in ["4096", "4096 ", "4096 -1 a"] {
            let refused = usable_lines(line.as_bytes(), 4096, &mut Vec::new()).unwrap_err();
            assert!(refused.starts_with("line 1 of the hints: "), "{refused}");
        }
    }
}
