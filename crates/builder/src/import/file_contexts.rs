//! SELinux labels from a `file_contexts` file: which label a path gets. Lines are untrusted: their
//! expressions are compiled once, within one budget of memory, and only when a path could match them.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;

use ferrofs_ondisk::FileType;
use ferrofs_workers::CancelToken;
use regex::bytes::{Regex, RegexBuilder};

/// Lines with a label: several times the largest policies known, which have some ten thousand.
const SPECS_MAX: usize = 1 << 20;
/// The longest expression: some times the length of the longest path.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// The sizes that a compiled expression may have, in bytes, ascending. It counts as the first of them that it fits into:
/// most expressions of policies need less than the first.
const COMPILED_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// An expression of at most this size is small.
const SMALL_BYTES: usize = 16 << 10;
/// Memory of all small compiled expressions of a policy: more than 30,000 of the least size, several times the largest
/// policies known.
const SMALL_BUDGET_BYTES: usize = 128 << 20;
/// Memory of all others. A few bytes of text can make one of a mebibyte.
const LARGE_BUDGET_BYTES: usize = 16 << 20;
/// Memory of the automaton that an expression builds while it searches: less makes searches slow.
const SEARCH_BYTES_MIN: usize = 64 << 10;
/// The label for "no label".
const NONE: &[u8] = b"<<none>>";

/// A line: the paths that it applies to, and their label.
#[derive(Debug)]
struct ContextSpec {
    /// The name of the file and the number of the line, for messages.
    place: String,
    pattern: PathPattern,
    file_type: Option<FileType>,
    label: Box<[u8]>,
}

/// The paths of a line.
#[derive(Debug)]
enum PathPattern {
    /// One path.
    Literal(Box<[u8]>),
    /// The paths that an expression matches; all of them begin with `prefix`.
    Expression { prefix: Box<[u8]>, text: Box<str>, compiled: OnceCell<Regex> },
}

/// The lines of one or several files. A path gets the label of the last line that matches it; lines
/// without an expression count as the last ones, as in libselinux.
#[derive(Debug, Default)]
pub struct FileContexts {
    specs: Vec<ContextSpec>,
    /// Numbers of lines with one path, by that path.
    literals: HashMap<Box<[u8]>, Vec<usize>>,
    /// Numbers of other lines, by the first name in all paths that they match.
    by_first_name: HashMap<Box<[u8]>, Vec<usize>>,
    /// Numbers of lines that match paths with any first name.
    any_first_name: Vec<usize>,
    substitutions: Vec<PathSubstitution>,
    budget: CompileBudget,
    cancel: Option<CancelToken>,
}

/// Memory for compiled expressions that is left, in bytes.
#[derive(Debug)]
struct CompileBudget {
    small: Cell<usize>,
    large: Cell<usize>,
}

impl Default for CompileBudget {
    fn default() -> Self {
        Self { small: Cell::new(SMALL_BUDGET_BYTES), large: Cell::new(LARGE_BUDGET_BYTES) }
    }
}

impl CompileBudget {
    /// Compiles an expression, which takes a part of the memory for good.
    ///
    /// # Errors
    /// It is malformed, or larger than it may be or than what is left.
    fn compile(&self, text: &str) -> Result<Regex, String> {
        let mut refused = "it is too large".to_owned();
        for bytes in COMPILED_BYTES {
            let (left, most) = match bytes <= SMALL_BYTES {
                true => (&self.small, SMALL_BUDGET_BYTES),
                false => (&self.large, LARGE_BUDGET_BYTES),
            };
            if bytes > left.get() {
                let kind = if bytes <= SMALL_BYTES { "small" } else { "large" };
                return Err(format!(
                    "with this expression, the compiled {kind} ones have more than {most} bytes; use simpler ones"
                ));
            }
            match compile(text, bytes) {
                Ok(expression) => {
                    left.set(left.get() - bytes);
                    return Ok(expression);
                }
                Err(error @ regex::Error::CompiledTooBig(_)) => refused = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(refused)
    }
}

/// A prefix of paths, and what it stands for when labels are looked up.
#[derive(Debug)]
struct PathSubstitution {
    from: Box<[u8]>,
    to: Box<[u8]>,
}

impl FileContexts {
    /// Adds the lines of a file.
    ///
    /// # Errors
    /// A line is malformed; the error names it.
    pub fn add(&mut self, name: &str, text: &[u8]) -> Result<(), String> {
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let place = format!("{name}:{number}");
            let spec = ContextSpec::read(line, place.clone());
            self.specs.push(spec.map_err(|why| format!("{place}: {why}"))?);
            if self.specs.len() > SPECS_MAX {
                return Err(format!("{place}: more than {SPECS_MAX} lines"));
            }
        }
        Ok(())
    }

    /// Adds the prefixes of a `.subs` file, of which each line has a prefix and what it stands for.
    pub fn add_substitutions(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let (Some(from), Some(to)) = (words.next(), words.next()) else { continue };
            if !line.starts_with(b"#") && self.substitutions.len() < SPECS_MAX {
                self.substitutions.push(PathSubstitution { from: from.into(), to: to.into() });
            }
        }
    }

    /// Look-ups end with an error when this token is cancelled.
    #[must_use]
    pub fn cancel_token(mut self, cancel: &CancelToken) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Ends the reading.
    #[must_use]
    pub fn finish(mut self) -> Self {
        // Stable: the order of the lines stays the same otherwise.
        self.specs.sort_by_key(|spec| matches!(spec.pattern, PathPattern::Literal(_)));
        for (number, spec) in self.specs.iter().enumerate() {
            match (&spec.pattern, spec.pattern.first_name()) {
                (PathPattern::Literal(path), _) => {
                    self.literals.entry(path.clone()).or_default().push(number);
                }
                (_, Some(name)) => {
                    self.by_first_name.entry(name.into()).or_default().push(number);
                }
                (_, None) => self.any_first_name.push(number),
            }
        }
        self
    }

    /// The label of the file at an absolute path without slashes at its end; `None` if it has none.
    ///
    /// # Errors
    /// The expression of a line is malformed, or too large alone or with those before it; the error names the line. Or the
    /// look-up was cancelled.
    pub fn label(&self, path: &[u8], file_type: FileType) -> Result<Option<&[u8]>, String> {
        let replaced = self.substituted(path);
        let path = replaced.as_deref().unwrap_or(path);
        let literals = self.literals.get(path).into_iter().flatten().rev();
        for spec in literals.filter_map(|number| self.specs.get(*number)) {
            if spec.file_type.is_none_or(|wanted| wanted == file_type) {
                return Ok(Some(&*spec.label).filter(|label| *label != NONE));
            }
        }
        let with_name = first_name(path).and_then(|name| self.by_first_name.get(name));
        let with_name = with_name.map(Vec::as_slice).unwrap_or_default();
        let mut lists = (with_name, self.any_first_name.as_slice());
        loop {
            // The last one of both lists.
            let number = match lists {
                ([rest @ .., last], [.., other]) if last > other => {
                    lists.0 = rest;
                    *last
                }
                (_, [rest @ .., last]) => {
                    lists.1 = rest;
                    *last
                }
                ([rest @ .., last], []) => {
                    lists.0 = rest;
                    *last
                }
                ([], []) => return Ok(None),
            };
            if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err("cancelled".to_owned());
            }
            let Some(spec) = self.specs.get(number) else { return Ok(None) };
            let fits = spec.file_type.is_none_or(|wanted| wanted == file_type);
            if fits && spec.matches(path, &self.budget)? {
                return Ok(Some(&*spec.label).filter(|label| *label != NONE));
            }
        }
    }

    /// The path with another prefix, if a `.subs` file says so. The last line that fits counts, as in
    /// libselinux.
    fn substituted(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.substitutions.iter().rev().find_map(|PathSubstitution { from, to }| {
            let rest = path.strip_prefix(&**from)?;
            let to = if **to == *b"/" && !rest.is_empty() { b"" } else { &**to };
            (rest.is_empty() || rest.starts_with(b"/")).then(|| [to, rest].concat())
        })
    }
}

impl ContextSpec {
    fn read(line: &[u8], place: String) -> Result<Self, String> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let pattern = words.next().ok_or("an expression is missing")?;
        let second = words.next().ok_or("a label is missing")?;
        let (file_type, label) = match words.next() {
            None => (None, second),
            Some(label) => {
                let file_type = file_type_of(second).ok_or_else(|| {
                    format!(
                        "{} is not a type; there are --, -d, -l, -c, -b, -p and -s",
                        second.escape_ascii()
                    )
                })?;
                (Some(file_type), label)
            }
        };
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("the expression has more than {PATTERN_BYTES_MAX} bytes"));
        }
        Ok(Self { place, pattern: PathPattern::read(pattern), file_type, label: label.into() })
    }

    fn matches(&self, path: &[u8], budget: &CompileBudget) -> Result<bool, String> {
        let (prefix, text, compiled) = match &self.pattern {
            PathPattern::Literal(literal) => return Ok(path == &**literal),
            PathPattern::Expression { prefix, text, compiled } => (prefix, text, compiled),
        };
        if !path.starts_with(prefix) {
            return Ok(false);
        }
        let expression = match compiled.get() {
            Some(expression) => expression,
            None => {
                let new = budget.compile(text);
                let new = new.map_err(|why| format!("{}: {why}", self.place))?;
                compiled.get_or_init(|| new)
            }
        };
        Ok(expression.is_match(path))
    }
}

fn compile(text: &str, bytes_max: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(bytes_max)
        .dfa_size_limit(bytes_max.max(SEARCH_BYTES_MIN))
        .build()
}

impl PathPattern {
    /// Reads an expression. It matches whole paths; as in libselinux, the anchors are put before and
    /// behind it without a group.
    fn read(pattern: &[u8]) -> Self {
        let (literal, is_whole) = literal_prefix(pattern);
        if is_whole {
            return Self::Literal(literal.into());
        }
        // With an alternative, nothing is common to all matches.
        let prefix = if pattern.contains(&b'|') { Vec::new() } else { literal };
        let mut text = String::with_capacity(pattern.len() + 2);
        text.push('^');
        for &byte in pattern {
            match byte {
                // A character is a byte, as in the C locale.
                0x80.. => text.push_str(&format!("\\x{byte:02x}")),
                _ => text.push(char::from(byte)),
            }
        }
        text.push('$');
        Self::Expression { prefix: prefix.into(), text: text.into(), compiled: OnceCell::new() }
    }

    /// The first name of all paths that can match, if there is only one.
    fn first_name(&self) -> Option<&[u8]> {
        match self {
            Self::Literal(literal) => first_name(literal),
            // The name is whole only if a slash ends it.
            Self::Expression { prefix, .. } => {
                let name = first_name(prefix)?;
                (prefix.len() > name.len() + 1).then_some(name)
            }
        }
    }
}

/// The type that a flag selects.
fn file_type_of(flag: &[u8]) -> Option<FileType> {
    Some(match flag {
        b"--" => FileType::Regular,
        b"-d" => FileType::Directory,
        b"-l" => FileType::Symlink,
        b"-c" => FileType::CharDevice,
        b"-b" => FileType::BlockDevice,
        b"-p" => FileType::Fifo,
        b"-s" => FileType::Socket,
        _ => return None,
    })
}

/// What a path has between its first and second slash.
fn first_name(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/")?;
    rest.split(|byte| *byte == b'/').next()
}

/// The bytes that every match of an expression begins with, and whether they are all of it.
fn literal_prefix(pattern: &[u8]) -> (Vec<u8>, bool) {
    let mut literal = Vec::new();
    let mut rest = pattern;
    loop {
        // A repeated byte may be missing.
        let is_repeated = |rest: &[u8]| matches!(rest.first(), Some(b'*' | b'?' | b'{'));
        let byte;
        (byte, rest) = match rest {
            [] => return (literal, true),
            [b'\\', escaped, rest @ ..] if !escaped.is_ascii_alphanumeric() => (*escaped, rest),
            [b'\\' | b'.' | b'^' | b'$' | b'?' | b'*' | b'+' | b'|' | b'[' | b'(' | b'{', ..] => {
                return (literal, false);
            }
            [byte, rest @ ..] => (*byte, rest),
        };
        if is_repeated(rest) {
            return (literal, false);
        }
        literal.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts(text: &str) -> FileContexts {
        let mut contexts = FileContexts::default();
        contexts.add("fc", text.as_bytes()).unwrap();
        contexts.finish()
    }

    #[track_caller]
    fn label(contexts: &FileContexts, path: &str) -> Option<String> {
        let found = contexts.label(path.as_bytes(), FileType::Regular).unwrap();
        found.map(|label| String::from_utf8(label.to_vec()).unwrap())
    }

    #[test]
    fn the_last_line_that_matches_counts_and_whole_paths_count_last() {
        let found = contexts(
            "# all\n/.*  all\n/usr/bin/su  su\n/usr(/.*)?  usr\n/usr/bin(/.*)? bin\n/usr/.*\\.so(\\.[0-9]+)* -- lib\n",
        );
        for (path, expected) in [
            ("/etc", "all"),
            ("/usr", "usr"),
            ("/usr/bin/ls", "bin"),
            ("/usr/bin/su", "su"),
            ("/usr/lib/x.so.6", "lib"),
            ("/usrx", "all"),
        ] {
            assert_eq!(label(&found, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(found.label(b"/usr/a.so", FileType::Directory).unwrap(), Some(&b"usr"[..]));
    }

    #[test]
    fn no_label_and_no_line_are_the_same() {
        let found = contexts("/a(/.*)? x\n/a/b <<none>>\n");
        assert_eq!(label(&found, "/a/c").as_deref(), Some("x"));
        assert_eq!((label(&found, "/a/b"), label(&found, "/b")), (None, None));
    }

    #[test]
    fn escapes_make_bytes_literal() {
        let found = contexts("/a\\.b\\+c x\n/h\\x20\\xff(/.*)? y\n/ab?c z\n/q{2} w\n");
        assert_eq!(label(&found, "/a.b+c").as_deref(), Some("x"));
        assert_eq!(label(&found, "/aXb+c"), None);
        let found_raw = found.label(b"/h \xff/d", FileType::Regular).unwrap();
        assert_eq!(found_raw, Some(&b"y"[..]));
        assert_eq!(label(&found, "/ac").as_deref(), Some("z"));
        assert_eq!(label(&found, "/qq").as_deref(), Some("w"));
    }

    /// They were compiled twice for each path: a hundred lines kept a CPU busy for minutes.
    #[test]
    fn expressions_are_compiled_once_however_large_they_are() {
        let found = contexts("/x/(a{200}){20} large\n/y(/.*)? small\n");
        let left = || found.budget.small.get() + found.budget.large.get();
        let path = format!("/x/{}", "a".repeat(4000));
        assert_eq!(label(&found, &path).as_deref(), Some("large"));
        let once = left();
        assert!(found.budget.large.get() < LARGE_BUDGET_BYTES);
        for _ in 0..3 {
            assert_eq!(label(&found, &path).as_deref(), Some("large"));
            assert_eq!(label(&found, &path[1..]), None);
            assert_eq!(left(), once);
        }
        assert_eq!(label(&found, "/y/z").as_deref(), Some("small"));
        assert_eq!(left(), once - COMPILED_BYTES[0]);
    }

    /// A list of a million such lines took a tebibyte.
    #[test]
    fn expressions_that_are_too_large_together_are_refused_by_line() {
        let found = contexts(&"/x/(a{200}){20} large\n".repeat(500));
        let error = found.label(b"/x/b", FileType::Regular).unwrap_err();
        let (line, why) = error.strip_prefix("fc:").unwrap().split_once(": ").unwrap();
        assert!((2..490).contains(&line.parse::<usize>().unwrap()), "{error}");
        assert!(why.contains("the compiled large ones have more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn a_look_up_ends_when_it_is_cancelled() {
        let cancel = CancelToken::new();
        let found = contexts("/.* all\n").cancel_token(&cancel);
        assert_eq!(label(&found, "/x").as_deref(), Some("all"));
        cancel.cancel();
        assert_eq!(found.label(b"/x", FileType::Regular), Err("cancelled".to_owned()));
    }

    #[test]
    fn alternatives_have_no_common_beginning() {
        let found = contexts("/(bin|sbin)/x a\n/one/y|/two/y b\n");
        for (path, expected) in [("/sbin/x", "a"), ("/one/y", "b"), ("/two/y", "b")] {
            assert_eq!(label(&found, path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn substitutions_change_the_beginning_of_a_path() {
        let mut found = FileContexts::default();
        found.add("fc", b"/usr/lib(/.*)? lib\n").unwrap();
        found.add_substitutions(b"# x\n/lib /nowhere\n/lib /usr/lib\n");
        let found = found.finish();
        assert_eq!(label(&found, "/lib/x").as_deref(), Some("lib"));
        assert_eq!(label(&found, "/library"), None);
    }

    #[test]
    fn malformed_lines_are_refused_by_number() {
        for (text, part) in
            [("\n/a\n", "fc:2: a label is missing"), ("/a -x l\n", "fc:1: -x is not a type")]
        {
            let error = FileContexts::default().add("fc", text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let long = format!("/{} x", "a".repeat(PATTERN_BYTES_MAX));
        assert!(FileContexts::default().add("fc", long.as_bytes()).is_err());
    }

    #[test]
    fn an_expression_that_is_a_bomb_is_refused_when_a_path_needs_it() {
        let found = contexts("/x/((a{1000}){1000}){1000} bomb\n/y/(a*)*b c\n/x/( d\n");
        let error = found.label(b"/x/aaa", FileType::Regular).unwrap_err();
        assert!(error.starts_with("fc:3: "), "{error}");
        let found = contexts("/x/((a{1000}){1000}){1000} bomb\n");
        let error = found.label(b"/x/aaa", FileType::Regular).unwrap_err();
        assert!(error.starts_with("fc:1: "), "{error}");
        let found = contexts("/y/(a*)*b c\n");
        let path = format!("/y/{}", "a".repeat(100_000));
        assert_eq!(label(&found, &path), None);
    }
}
