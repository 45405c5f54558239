//! Paths that stay out of the image, by name or by regular expression.

use std::collections::HashSet;

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::posix_regex;
use crate::{Error, ErrorKind, Result};

/// Which paths an importer leaves out, with all that lies below them. The default leaves out none.
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
    /// Leaves out `paths`, and what any of `expressions` is found in.
    ///
    /// Paths are relative to the root, without a slash before or behind them, and are compared byte by
    /// byte (`--exclude-path`). Expressions are looked for anywhere in such a path, which `^` and `$`
    /// narrow (`--exclude-regex`). They are POSIX extended ones in the C locale, where a character is a
    /// byte, with these differences from the GNU library:
    ///
    /// * no references back (`\1`), no collating symbols and no equivalence classes (`[[.a.]]`,
    ///   `[[=a=]]`): refused;
    /// * a bracket expression holds ASCII only: others are refused;
    /// * what POSIX leaves undefined is read as the `regex` crate does: `(?i)` sets a flag, `\d` is a digit, a
    ///   `*` with nothing before it is refused.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`]: an expression cannot be read, or is too large.
    pub fn new<P, E>(
        paths: impl IntoIterator<Item = P>,
        expressions: impl IntoIterator<Item = E>,
    ) -> Result<Self>
    where
        P: Into<Vec<u8>>,
        E: AsRef<str>,
    {
        let mut patterns = Vec::new();
        for expression in expressions {
            let pattern = posix_regex::translated(expression.as_ref())?;
            // One by one first, so that the message says which.
            set_of([&pattern]).map_err(|error| refused(expression.as_ref(), &error))?;
            patterns.push(pattern);
        }
        let expressions = set_of(&patterns).map_err(|error| refused("all together", &error))?;
        let paths = paths.into_iter().map(|path| path.into().into_boxed_slice()).collect();
        Ok(Self { paths, expressions })
    }

    /// Whether it leaves out nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.expressions.is_empty()
    }

    /// Whether to leave out `path`, relative to the root and without a slash before it. Nothing is asked
    /// about what lies below a path that is left out.
    #[must_use]
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.paths.contains(path) || self.expressions.is_match(path)
    }
}

fn set_of<S: AsRef<str>>(
    patterns: impl IntoIterator<Item = S>,
) -> std::result::Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).dot_matches_new_line(true).build()
}

fn refused(expression: &str, error: &regex::Error) -> Error {
    Error::new(ErrorKind::InvalidOptions(format!("regular expression {expression}: {error}")))
}
