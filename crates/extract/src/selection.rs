//! Which part of an image to extract: paths and patterns, matched name by name.
//!
//! A path selects itself and everything below it. In a pattern, `*`, `?`, `[…]` and `{…}` match
//! within one name, and the name `**` matches any number of directories. A name that is no valid pattern, such as `[`,
//! stands for itself, as does one that is not UTF-8. Directories that can
//! contain nothing selected are not read. [`Selection::of_paths`] takes every character as it is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_image::{FileType, Image, Inode, InodeSet, WalkEvent};
use ferrofs_workers::CancelToken;
use globset::{GlobBuilder, GlobMatcher};

use crate::event::ExtractProgress;

/// Paths and patterns. Without any, everything is selected.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    patterns: Vec<SelectionPattern>,
}

#[derive(Clone, Debug)]
struct SelectionPattern {
    given: Vec<u8>,
    /// The names as they were given: a name with a bracket in it needs no escape.
    names: Vec<Vec<u8>>,
    parts: Vec<PatternPart>,
}

#[derive(Clone, Debug)]
enum PatternPart {
    Name(Vec<u8>),
    Glob(Box<GlobMatcher>),
    AnyDirectories,
}

/// How a selection matches a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SelectionMatch {
    /// Neither the path nor anything below it is selected.
    Outside,
    /// Something below the path may be selected.
    Ancestor,
    /// The path and everything below it are selected.
    Inside,
}

/// Which patterns have selected something, and the states of all patterns for the directories above
/// the last path: the next one is most likely next to it, and paths can have 32,768 names.
#[derive(Debug)]
pub(crate) struct MatchedPatterns {
    seen: Vec<bool>,
    known: KnownDirectories,
}

/// The states of the patterns for a directory and those above it.
#[derive(Debug, Default)]
struct KnownDirectories {
    path: Vec<u8>,
    /// For each directory below the root, where its path ends.
    ends: Vec<usize>,
    /// The states, one directory after the other.
    states: Vec<bool>,
}

/// The most bytes of known states; what is deeper is matched again.
const KNOWN_MAX_BYTES: usize = 1 << 20;

impl Selection {
    /// Selects paths and patterns. They count from the root, with or without a leading slash. Every path selects itself,
    /// whatever characters are in it.
    ///
    /// ```
    /// use ferrofs_extract::Selection;
    ///
    /// // A program of every Linux system, which is no valid pattern.
    /// let selection = Selection::new(["usr/bin/[", "usr/lib/*.so"]);
    /// ```
    #[must_use]
    pub fn new<P: AsRef<[u8]>>(given: impl IntoIterator<Item = P>) -> Self {
        let patterns = given.into_iter().map(|pattern| SelectionPattern::new(pattern.as_ref()));
        Self { patterns: patterns.collect() }
    }

    /// Selects paths, in which no character is special: `*` is a name of one byte. They count from
    /// the root, with or without a leading slash. This is for names that come from an image.
    ///
    /// ```
    /// use ferrofs_extract::Selection;
    ///
    /// // The directory `a*`, and not `ab`.
    /// let selection = Selection::of_paths(["/a*"]);
    /// ```
    #[must_use]
    pub fn of_paths<P: AsRef<[u8]>>(given: impl IntoIterator<Item = P>) -> Self {
        let patterns = given.into_iter().map(|path| SelectionPattern::of_path(path.as_ref()));
        Self { patterns: patterns.collect() }
    }

    /// A record of the patterns that have matched, for one walk.
    pub(crate) fn matches(&self) -> MatchedPatterns {
        MatchedPatterns {
            seen: vec![false; self.patterns.len()],
            known: KnownDirectories::default(),
        }
    }

    /// Classifies the absolute path of an entry.
    pub(crate) fn classify(&self, path: &[u8], matches: &mut MatchedPatterns) -> SelectionMatch {
        if self.patterns.is_empty() {
            return SelectionMatch::Inside;
        }
        let MatchedPatterns { seen, known } = matches;
        let width = self.patterns.iter().map(SelectionPattern::states).sum();
        let mut depth = known.leave_to(path, width);
        let mut live = known.deepest(width).unwrap_or_else(|| self.first_states(width));
        let rest = &path[known.path.len()..];
        let mut names = names_of(rest).peekable();
        let mut is_known = true;
        while let Some(name) = names.next() {
            live = self.next_states(&live, depth, name);
            depth += 1;
            // The last name may be that of a file.
            is_known &= names.peek().is_some() && known.states.len() + width <= KNOWN_MAX_BYTES;
            if is_known {
                known.enter(name, &live);
            }
        }
        self.best_match(&live, depth, seen)
    }

    fn first_states(&self, width: usize) -> Vec<bool> {
        let mut live = vec![false; width];
        for (pattern, live) in self.with_states(&mut live) {
            pattern.begin(live);
        }
        live
    }

    fn next_states(&self, live: &[bool], depth: usize, name: &[u8]) -> Vec<bool> {
        let mut next = vec![false; live.len()];
        let mut at = 0;
        for (pattern, next) in self.with_states(&mut next) {
            let live = &live[at..at + next.len()];
            at += next.len();
            pattern.step(live, depth, name, next);
        }
        next
    }

    fn best_match(&self, live: &[bool], depth: usize, seen: &mut [bool]) -> SelectionMatch {
        let (mut best, mut at) = (SelectionMatch::Outside, 0);
        for (pattern, seen) in self.patterns.iter().zip(seen) {
            let end = at + pattern.states();
            let selection_match = pattern.matched(&live[at..end], depth);
            at = end;
            *seen |= selection_match == SelectionMatch::Inside;
            best = best.max(selection_match);
        }
        best
    }

    /// Each pattern with its part of the states.
    fn with_states<'a>(
        &'a self,
        mut states: &'a mut [bool],
    ) -> impl Iterator<Item = (&'a SelectionPattern, &'a mut [bool])> {
        self.patterns.iter().map(move |pattern| {
            let (own, rest) = std::mem::take(&mut states).split_at_mut(pattern.states());
            states = rest;
            (pattern, own)
        })
    }

    /// The patterns that have selected nothing.
    pub(crate) fn unmatched<'a>(
        &'a self,
        matches: &'a MatchedPatterns,
    ) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self.patterns.iter().zip(&matches.seen);
        pairs.filter(|(_, seen)| !**seen).map(|(pattern, _)| pattern.given.as_slice())
    }
}

impl SelectionPattern {
    fn new(given: &[u8]) -> Self {
        let names: Vec<Vec<u8>> = names_of(given).map(<[u8]>::to_vec).collect();
        let parts = names.iter().map(|name| PatternPart::new(name)).collect();
        Self { given: given.to_vec(), names, parts }
    }

    fn of_path(given: &[u8]) -> Self {
        let names: Vec<Vec<u8>> = names_of(given).map(<[u8]>::to_vec).collect();
        let parts = names.iter().cloned().map(PatternPart::Name).collect();
        Self { given: given.to_vec(), names, parts }
    }

    /// How many states it has: one for its names as they are, one for each part of the pattern, and
    /// one for its end. A nondeterministic automaton follows all of them at once: state `i` of the
    /// pattern is live if its first `i` parts can match the names so far.
    fn states(&self) -> usize {
        self.parts.len() + 2
    }

    fn begin(&self, live: &mut [bool]) {
        live[0] = true;
        live[1] = true;
        self.skip_any_directories(&mut live[1..]);
    }

    /// Goes from the states after `depth` names to those after one more.
    fn step(&self, live: &[bool], depth: usize, name: &[u8], next: &mut [bool]) {
        next[0] = live[0] && self.names.get(depth).is_none_or(|mine| mine == name);
        let (live, next) = (&live[1..], &mut next[1..]);
        let end = self.parts.len();
        if live[end] {
            next[end] = true;
            return;
        }
        for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| live[*at]) {
            match part {
                PatternPart::AnyDirectories => next[at] = true,
                part => next[at + 1] |= part.fits(name),
            }
        }
        self.skip_any_directories(next);
    }

    fn matched(&self, live: &[bool], depth: usize) -> SelectionMatch {
        let is_inside = (live[0] && depth >= self.names.len()) || live[self.parts.len() + 1];
        match is_inside {
            true => SelectionMatch::Inside,
            false if live.contains(&true) => SelectionMatch::Ancestor,
            false => SelectionMatch::Outside,
        }
    }

    fn skip_any_directories(&self, live: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            if matches!(part, PatternPart::AnyDirectories) && live[at] {
                live[at + 1] = true;
            }
        }
    }
}

impl KnownDirectories {
    /// Forgets the directories that are not above `path`; returns how many are left.
    fn leave_to(&mut self, path: &[u8], width: usize) -> usize {
        let common = if path.starts_with(&self.path) {
            self.path.len()
        } else {
            let pairs = self.path.iter().zip(path);
            pairs.take_while(|(known, new)| known == new).count()
        };
        let is_above = |end: usize| end <= common && path.get(end).is_none_or(|next| *next == b'/');
        while self.ends.last().is_some_and(|end| !is_above(*end)) {
            self.ends.pop();
        }
        self.path.truncate(self.ends.last().copied().unwrap_or(0));
        self.states.truncate(self.ends.len() * width);
        self.ends.len()
    }

    fn enter(&mut self, name: &[u8], states: &[bool]) {
        self.path.push(b'/');
        self.path.extend_from_slice(name);
        self.ends.push(self.path.len());
        self.states.extend_from_slice(states);
    }

    fn deepest(&self, width: usize) -> Option<Vec<bool>> {
        let start = (self.ends.len().checked_sub(1)?) * width;
        Some(self.states[start..start + width].to_vec())
    }
}

impl PatternPart {
    fn new(name: &[u8]) -> Self {
        if name == b"**" {
            return Self::AnyDirectories;
        }
        if let Some(plain) = unescaped(name) {
            return Self::Name(plain);
        }
        match glob(name) {
            Some(glob) => Self::Glob(Box::new(glob)),
            None => Self::Name(name.to_vec()),
        }
    }

    fn fits(&self, name: &[u8]) -> bool {
        match self {
            Self::Name(mine) => mine == name,
            Self::Glob(glob) => glob.is_match(Path::new(OsStr::from_bytes(name))),
            Self::AnyDirectories => true,
        }
    }
}

/// A pattern with wildcards; `None` if it is malformed, or not text as the crate needs it.
fn glob(name: &[u8]) -> Option<GlobMatcher> {
    let mut builder = GlobBuilder::new(std::str::from_utf8(name).ok()?);
    let glob = builder.literal_separator(true).backslash_escape(true).build().ok()?;
    Some(glob.compile_matcher())
}

/// The only name that a pattern without wildcards matches: a backslash stands for the byte after it.
fn unescaped(pattern: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'\\' => bytes.next()?,
            b'*' | b'?' | b'[' | b']' | b'{' | b'}' => return None,
            byte => byte,
        });
    }
    Some(name)
}

fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Counts what [`extract`](crate::extract) would write, for a progress display. It reads metadata
/// only.
///
/// Damaged names and directories that cannot be read are not counted, so the result is an estimate
/// for damaged images. When `cancel` is cancelled, the result is what has been counted until then.
#[must_use]
pub fn measure(image: &Image, selection: &Selection, cancel: &CancelToken) -> ExtractProgress {
    let mut total = ExtractProgress::default();
    let mut linked = InodeSet::new(image.memory().budget());
    let mut matches = selection.matches();
    let Ok(mut walk) = image.walk(b"/") else { return total };
    while !cancel.is_cancelled()
        && let Some(visit) = walk.next()
    {
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = &visit else { continue };
        match selection.classify(&node.path, &mut matches) {
            SelectionMatch::Outside if matches!(visit, WalkEvent::Enter(_)) => walk.skip_children(),
            SelectionMatch::Inside => {
                total.entries += 1;
                total.bytes = total.bytes.saturating_add(new_bytes(&node.inode, &mut linked));
            }
            _ => {}
        }
    }
    total
}

/// The size of a regular file; 0 for anything else.
pub(crate) fn data_bytes(inode: &Inode) -> u64 {
    if inode.file_type() == FileType::Regular { inode.size() } else { 0 }
}

/// The size of a regular file that has not been counted under another name.
fn new_bytes(inode: &Inode, linked: &mut InodeSet) -> u64 {
    // Without memory for the set, the estimate counts every name.
    let is_new = inode.nlink() < 2 || linked.insert(inode.nid()).unwrap_or(true);
    if is_new { data_bytes(inode) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(pattern: &str, path: &str) -> SelectionMatch {
        let selection = Selection::new([pattern]);
        selection.classify(path.as_bytes(), &mut selection.matches())
    }

    #[test]
    fn a_path_selects_itself_what_is_below_and_the_way_to_it() {
        for pattern in ["usr/bin", "/usr/bin/", "./usr//bin"] {
            assert_eq!(classify(pattern, "/"), SelectionMatch::Ancestor);
            assert_eq!(classify(pattern, "/usr"), SelectionMatch::Ancestor);
            assert_eq!(classify(pattern, "/usr/bin"), SelectionMatch::Inside);
            assert_eq!(classify(pattern, "/usr/bin/a/b"), SelectionMatch::Inside);
            assert_eq!(classify(pattern, "/usr/lib"), SelectionMatch::Outside);
            assert_eq!(classify(pattern, "/usr/binary"), SelectionMatch::Outside);
        }
        assert_eq!(classify("/", "/anything"), SelectionMatch::Inside);
    }

    #[test]
    fn wildcards_stay_within_a_name() {
        assert_eq!(classify("usr/*/x", "/usr/lib"), SelectionMatch::Ancestor);
        assert_eq!(classify("usr/*/x", "/usr/lib/x"), SelectionMatch::Inside);
        assert_eq!(classify("usr/*", "/usr/lib/deep"), SelectionMatch::Inside);
        assert_eq!(classify("*.so", "/lib/a.so"), SelectionMatch::Outside);
        assert_eq!(classify("lib?.[a-c]", "/lib1.b"), SelectionMatch::Inside);
        assert_eq!(classify("lib?.[!a-c]", "/lib1.b"), SelectionMatch::Outside);
        assert_eq!(classify("{a,b}c", "/bc"), SelectionMatch::Inside);
    }

    #[test]
    fn two_stars_are_any_number_of_directories() {
        assert_eq!(classify("**/a.so", "/a.so"), SelectionMatch::Inside);
        assert_eq!(classify("**/a.so", "/x/y"), SelectionMatch::Ancestor);
        assert_eq!(classify("**/a.so", "/x/y/a.so"), SelectionMatch::Inside);
        assert_eq!(classify("x/**/y/**/z", "/x/1/y/y/2/z"), SelectionMatch::Inside);
        assert_eq!(classify("x/**/y", "/z"), SelectionMatch::Outside);
    }

    #[test]
    fn a_name_with_special_characters_can_be_given_as_it_is() {
        assert_eq!(classify("a[1].txt", "/a[1].txt"), SelectionMatch::Inside);
        assert_eq!(classify(r"a\*", "/a*"), SelectionMatch::Inside);
        assert_eq!(classify(r"a\*", "/ab"), SelectionMatch::Outside);
        let selection = Selection::new([b"caf\xe9".as_slice()]);
        assert_eq!(
            selection.classify(b"/caf\xe9", &mut selection.matches()),
            SelectionMatch::Inside
        );
    }

    #[test]
    fn paths_as_they_are_have_no_wildcards() {
        let special = ["*", "**", "a?", "[ab]", "{a,b}", r"\a", "a[", "d/*/x"];
        for given in special {
            let selection = Selection::of_paths([given]);
            let classify =
                |path: &str| selection.classify(path.as_bytes(), &mut selection.matches());
            assert_eq!(classify(&format!("/{given}")), SelectionMatch::Inside, "{given}");
            assert_eq!(classify(&format!("/{given}/below")), SelectionMatch::Inside, "{given}");
            for other in ["/a", "/b", "/ab", "/abc", "/d/y/x", "/x/y/z"] {
                assert_eq!(classify(other), SelectionMatch::Outside, "{given} {other}");
            }
            let unmatched = selection.matches();
            assert_eq!(selection.unmatched(&unmatched).collect::<Vec<_>>(), [given.as_bytes()]);
        }
        let selection = Selection::of_paths(["/d/*/"]);
        let mut matches = selection.matches();
        assert_eq!(selection.classify(b"/d", &mut matches), SelectionMatch::Ancestor);
        assert_eq!(selection.classify(b"/d/y", &mut matches), SelectionMatch::Outside);
        assert_eq!(selection.classify(b"/d/*", &mut matches), SelectionMatch::Inside);
        let everything = Selection::of_paths(["/"]);
        let found = everything.classify(b"/a/b", &mut everything.matches());
        assert_eq!(found, SelectionMatch::Inside);
    }

    #[test]
    fn names_that_are_not_utf_8_fit_wildcards() {
        let selection = Selection::new(["caf*"]);
        assert_eq!(
            selection.classify(b"/caf\xe9", &mut selection.matches()),
            SelectionMatch::Inside
        );
    }

    #[test]
    fn a_name_that_is_no_valid_pattern_stands_for_itself() {
        for name in [
            "[",
            "[a",
            "a]",
            "{a",
            "a}",
            "a\\",
            "[]",
            "[!]",
            "{[}",
            "*[",
            "[z-a]",
            "{a,{b}",
            "[[:alpha:",
        ] {
            for (pattern, path) in [
                (format!("usr/bin/{name}"), format!("/usr/bin/{name}")),
                (format!("usr/*/{name}"), format!("/usr/bin/{name}")),
                (format!("**/{name}/x"), format!("/usr/bin/{name}/x")),
                (format!("{name}/*"), format!("/{name}/x")),
            ] {
                assert_eq!(classify(&pattern, &path), SelectionMatch::Inside, "{pattern} {path}");
            }
            assert_eq!(
                classify(&format!("usr/*/{name}"), "/usr/bin/other"),
                SelectionMatch::Outside
            );
            let selection = Selection::new([name]);
            let unmatched = selection.matches();
            assert_eq!(selection.unmatched(&unmatched).collect::<Vec<_>>(), [name.as_bytes()]);
        }
    }

    #[test]
    fn every_name_selects_itself() {
        let special = br"*?[]{},\!-^a";
        for number in 0..special.len().pow(3) {
            let digit = |place: u32| special[number / special.len().pow(place) % special.len()];
            for after in ["", "\u{e9}"] {
                let path = [b"/d/", &[digit(0), digit(1), digit(2)][..], after.as_bytes()].concat();
                let selection = Selection::new([&path]);
                let found = selection.classify(&path, &mut selection.matches());
                assert_eq!(found, SelectionMatch::Inside, "{}", path.escape_ascii());
            }
        }
    }

    #[test]
    fn a_wildcard_in_a_name_that_is_not_utf_8_stands_for_itself() {
        let literal: [&[u8]; 5] = [b"d/caf\xe9*", b"\xff?", b"[\xe0-\xef]", b"{\xe9,a}", b"\xe9\\"];
        for pattern in literal {
            let selection = Selection::new([pattern]);
            let path = [b"/", pattern].concat();
            let found = selection.classify(&path, &mut selection.matches());
            assert_eq!(found, SelectionMatch::Inside);
        }
        // The other names of the pattern may have some, and these characters stand for themselves.
        let matched: [(&[u8], &[u8]); 4] = [
            (b"*/caf\xe9", b"/d/caf\xe9"),
            (b"*/caf\xe9*", b"/d/caf\xe9*"),
            (b"caf\xe9\\*\\\\", b"/caf\xe9*\\"),
            (b"**/\xff", b"/a/b/\xff"),
        ];
        for (pattern, path) in matched {
            let selection = Selection::new([pattern]);
            let found = selection.classify(path, &mut selection.matches());
            assert_eq!(found, SelectionMatch::Inside);
        }
    }

    #[test]
    fn a_pattern_that_selects_nothing_is_known() {
        let selection = Selection::new(["a", "b*"]);
        let mut matches = selection.matches();
        selection.classify(b"/bc", &mut matches);
        assert_eq!(selection.unmatched(&matches).collect::<Vec<_>>(), [b"a"]);
    }

    #[test]
    fn a_path_is_classified_alike_whatever_came_before() {
        let patterns = ["usr/*/x", "**/deep/**/z", "a[1]", "/lib/mod", "b/c/d"];
        let selection = Selection::new(patterns);
        let names = ["usr", "lib", "x", "deep", "z", "a[1]", "mod", "b", "c", "d", "usrx"];
        let (mut number, mut matches) = (1u64, selection.matches());
        let mut path = String::new();
        for step in 0..20_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let choice = number >> 33;
            for _ in 0..choice % 3 {
                path.truncate(path.rfind('/').unwrap_or(0));
            }
            if path.len() < 40 {
                path.push('/');
                path.push_str(names[usize::try_from(choice / 3).unwrap() % names.len()]);
            }
            let path = if path.is_empty() { "/" } else { &path };
            let alone = selection.classify(path.as_bytes(), &mut selection.matches());
            assert_eq!(selection.classify(path.as_bytes(), &mut matches), alone, "{path}");
        }
        assert_eq!(selection.unmatched(&matches).count(), 0);
    }

    #[test]
    fn deep_paths_are_classified_name_by_name() {
        let selection = Selection::new(["**/x"]);
        let mut matches = selection.matches();
        // Quadratic, this would be 500 million names.
        let mut path = Vec::new();
        for _ in 0..32_768 {
            path.extend_from_slice(b"/d");
            assert_eq!(selection.classify(&path, &mut matches), SelectionMatch::Ancestor);
        }
        path.extend_from_slice(b"/x");
        assert_eq!(selection.classify(&path, &mut matches), SelectionMatch::Inside);
        assert!(matches.known.states.len() <= KNOWN_MAX_BYTES);
    }
}
