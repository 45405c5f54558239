//! From POSIX extended regular expressions to what the `regex` crate reads: the two differ in bracket
//! expressions, where POSIX knows neither escapes nor operators, and in the anchors of the GNU library.

use crate::{Error, ErrorKind, Result};

/// All that POSIX knows. The `regex` crate takes others for plain characters.
const CLASSES: [&str; 12] = [
    "[:alnum:]",
    "[:alpha:]",
    "[:blank:]",
    "[:cntrl:]",
    "[:digit:]",
    "[:graph:]",
    "[:lower:]",
    "[:print:]",
    "[:punct:]",
    "[:space:]",
    "[:upper:]",
    "[:xdigit:]",
];

/// The same expression, as the `regex` crate spells it.
///
/// # Errors
/// A bracket expression is left open, or names a collating symbol or an equivalence class.
pub(crate) fn translated(expression: &str) -> Result<String> {
    let mut output = String::with_capacity(expression.len());
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '[' => bracket(rest, &mut output).map_err(|why| refused(expression, why))?,
            '\\' => escape(rest, &mut output),
            _ => {
                output.push(first);
                &rest[first.len_utf8()..]
            }
        };
    }
    Ok(output)
}

/// Takes an escape: `` \` `` and `\'` are the ends of the text, all others are the same.
fn escape<'a>(text: &'a str, output: &mut String) -> &'a str {
    let bytes = text.chars().take(2).map(char::len_utf8).sum();
    let (escape, rest) = text.split_at(bytes);
    output.push_str(match escape {
        "\\`" => r"\A",
        r"\'" => r"\z",
        other => other,
    });
    rest
}

/// Takes a bracket expression from its `[` on, and returns what follows its `]`.
fn bracket<'a>(text: &'a str, output: &mut String) -> std::result::Result<&'a str, &'static str> {
    let inner = text.strip_prefix('[').unwrap_or(text);
    output.push('[');
    let mut rest = inner.strip_prefix('^').inspect(|_| output.push('^')).unwrap_or(inner);
    // A `]` that comes first stands for itself.
    let mut is_first = true;
    while let Some(next) = rest.chars().next() {
        let after = &rest[next.len_utf8()..];
        rest = match next {
            ']' if !is_first => {
                output.push(']');
                return Ok(after);
            }
            '[' if after.starts_with(['.', '=']) => {
                return Err("collating symbols and equivalence classes are not known");
            }
            '[' if after.starts_with(':') => class(rest, output)?,
            '-' => {
                // Between two characters a range, and itself at either end.
                output.push_str(if is_first || after.starts_with(']') { r"\-" } else { "-" });
                after
            }
            _ => {
                if next.is_ascii_punctuation() {
                    output.push('\\');
                }
                output.push(next);
                after
            }
        };
        is_first = false;
    }
    Err("a bracket expression is left open")
}

/// Takes a character class, as in `[:alpha:]`.
fn class<'a>(text: &'a str, output: &mut String) -> std::result::Result<&'a str, &'static str> {
    let end = text.find(":]").ok_or("a character class is left open")?;
    let (class, rest) = text.split_at(end + ":]".len());
    if !CLASSES.contains(&class) {
        return Err("a character class of that name is not known");
    }
    output.push_str(class);
    Ok(rest)
}

fn refused(expression: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidOptions(format!("regular expression {expression}: {why}")))
}
