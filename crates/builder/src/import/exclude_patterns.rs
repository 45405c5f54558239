//! Paths that importers leave out, by name or by POSIX regular expression.

use std::collections::HashSet;
use std::fmt;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::{Error, ErrorKind, Result};

/// Paths that an importer leaves out, with everything below them. The default leaves out none.
#[derive(Clone, Debug)]
pub struct ExcludePatterns {
    paths: HashSet<Box<[u8]>>,
    expressions: RegexSet,
}

impl Default for ExcludePatterns {
    fn default() -> Self {
        Self { paths: HashSet::new(), expressions: RegexSet::empty() }
    }
}

impl ExcludePatterns {
    /// Excludes `paths`, and all paths that one of `expressions` matches.
    ///
    /// Paths are relative to the root, without slashes at their start and end, and are compared
    /// byte by byte (`--exclude-path`). An expression matches anywhere in such a path, unless `^`
    /// and `$` anchor it (`--exclude-regex`). Expressions are POSIX extended ones in the C locale,
    /// where a character is a byte, with these differences from the GNU library:
    ///
    /// * back references (`\1`), collating symbols and equivalence classes (`[[.a.]]`, `[[=a=]]`)
    ///   are refused;
    /// * bracket expressions with other characters than ASCII are refused;
    /// * what POSIX leaves undefined follows the `regex` crate: `(?i)` sets a flag, `\d` is a
    ///   digit, and a `*` with nothing before it is refused.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`]: an expression is malformed or too large.
    pub fn new<P, E>(
        paths: impl IntoIterator<Item = P>,
        expressions: impl IntoIterator<Item = E>,
    ) -> Result<Self>
    where
        P: Into<Vec<u8>>,
        E: AsRef<str>,
    {
        let (mut patterns, mut typed) = (Vec::new(), Vec::new());
        for expression in expressions {
            patterns.push(translate_posix_regex(expression.as_ref())?);
            typed.push(expression);
        }
        let expressions = regex_set(&patterns).map_err(|failure| {
            let culprit = typed.get(failure.index).filter(|_| failure.is_alone);
            let shown = culprit.map_or("of all options together", AsRef::as_ref);
            refused(shown, failure.error)
        })?;
        let paths = paths.into_iter().map(|path| path.into().into_boxed_slice()).collect();
        Ok(Self { paths, expressions })
    }

    /// Whether nothing is excluded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.expressions.is_empty()
    }

    /// Whether `path`, relative to the root and without a slash at its start, is excluded. Callers
    /// do not check the paths below an excluded path.
    #[must_use]
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.paths.contains(path) || self.expressions.is_match(path)
    }
}

/// The expression that cannot be compiled.
#[derive(Debug)]
pub(crate) struct RefusedExpression {
    /// Its place among the others, the first one of them that is refused.
    pub(crate) index: usize,
    /// Whether it is refused alone, too, and not only together with those before it.
    pub(crate) is_alone: bool,
    pub(crate) error: regex::Error,
}

/// The set of translated expressions, whose letters are bytes. They are compiled together, within one limit of memory;
/// only if that fails, a binary search finds the expression. So the time does not grow with their number times the
/// limit.
///
/// # Errors
/// An expression is malformed, or they are too large.
pub(crate) fn regex_set<S: AsRef<str>>(
    patterns: &[S],
) -> std::result::Result<RegexSet, RefusedExpression> {
    let mut error = match compile(patterns) {
        Ok(set) => return Ok(set),
        Err(error) => error,
    };
    // The first `accepted` are fine; with one more expression than `index`, they are not.
    let (mut accepted, mut index) = (0, patterns.len().saturating_sub(1));
    while accepted < index {
        let middle = accepted + (index - accepted) / 2;
        match compile(&patterns[..=middle]) {
            Ok(_) => accepted = middle + 1,
            Err(earlier) => (error, index) = (earlier, middle),
        }
    }
    let alone = patterns.get(index..=index).map(compile);
    match alone {
        Some(Err(error)) => Err(RefusedExpression { index, is_alone: true, error }),
        _ => Err(RefusedExpression { index, is_alone: false, error }),
    }
}

fn compile<S: AsRef<str>>(patterns: &[S]) -> std::result::Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).dot_matches_new_line(true).build()
}

/// The character classes of POSIX. The `regex` crate reads others as plain characters.
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

/// Translates a POSIX extended regular expression for the `regex` crate. The two differ in bracket
/// expressions, where POSIX has neither escapes nor operators, and in the anchors of the GNU
/// library.
///
/// # Errors
/// A bracket expression is not closed, or has a collating symbol or an equivalence class.
pub(crate) fn translate_posix_regex(expression: &str) -> Result<String> {
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

/// Translates an escape: `` \` `` and `\'` are the ends of the text, all others stay the same.
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

/// Translates a bracket expression, and returns the text after its `]`.
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
                return Err("collating symbols and equivalence classes are not supported");
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
    Err("a bracket expression is not closed")
}

/// Takes a character class, as in `[:alpha:]`.
fn class<'a>(text: &'a str, output: &mut String) -> std::result::Result<&'a str, &'static str> {
    let end = text.find(":]").ok_or("a character class is not closed")?;
    let (class, rest) = text.split_at(end + ":]".len());
    if !CLASSES.contains(&class) {
        return Err("there is no character class of this name");
    }
    output.push_str(class);
    Ok(rest)
}

fn refused(expression: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOptions(format!("regular expression {expression}: {why}")))
}
