//! Circles among the source files of a crate: `a` uses `b` and `b`, over whatever way, uses `a`. A
//! module and its own submodules may use each other; everything else is a finding.
//!
//! The check reads `use` declarations and paths as tokens, follows `pub use` to the file that defines
//! the name, and leaves out whatever is compiled for tests and models only. No linter of the ecosystem
//! reports this offline: `cargo modules --acyclic` would have to be installed and counts re-exports as
//! uses. Called by `tidy`.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::tokens::{after_attribute, is_punct};
use super::tree::{Kind, Report, SourceFile};

/// A module by its names from the crate's root, which is empty.
type Module = Vec<String>;

/// One name that a module re-exports, by the path that it names.
type ReExports = BTreeMap<String, Module>;

/// What one file says of others.
#[derive(Debug, Default)]
struct FileUses {
    path: String,
    /// Paths as they are written, `crate`, `self` and `super` included.
    paths: Vec<Module>,
    re_exports: ReExports,
}

/// The files of one crate by module.
type Crate = BTreeMap<Module, FileUses>;

/// Reports every circle of every crate.
pub(crate) fn check(files: &[SourceFile], report: &mut Report) {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for file in files.iter().filter(|file| file.kind == Kind::Rust) {
        let Some((root, module)) = place(&file.path) else { continue };
        let Ok(tokens) = file.text.parse::<TokenStream>() else { continue };
        let mut uses = FileUses { path: file.path.clone(), ..FileUses::default() };
        read(&tokens.into_iter().collect::<Vec<_>>(), &mut uses);
        crates.entry(root).or_default().insert(module, uses);
    }
    for files in crates.values() {
        let mut found: BTreeSet<Vec<Module>> = BTreeSet::new();
        for left_out in [FamilyUse::OfChild, FamilyUse::OfParent] {
            found.extend(circles(&edges(files, left_out)));
        }
        for circle in found {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            let Some(first) = files.get(&circle[0]) else { continue };
            report.add(
                &first.path,
                1,
                format!("files use each other in a circle: {}", names.join(", ")),
            );
        }
    }
}

/// The crate's folder and the module of a source file; none for tests and what is outside `src`.
fn place(path: &str) -> Option<(String, Module)> {
    let (root, inside) = path.split_once("/src/")?;
    let mut module: Module = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.iter().any(|name| name.contains("test")) {
        return None;
    }
    if matches!(module.last().map(String::as_str), Some("mod")) {
        module.pop();
    }
    if module == ["lib"] || module == ["main"] {
        module.clear();
    }
    Some((root.to_owned(), module))
}

/// Collects the paths of a token stream, groups included.
fn read(tokens: &[TokenTree], uses: &mut FileUses) {
    let mut at = 0;
    let mut is_public = false;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                at = after_attribute(tokens, at);
                continue;
            }
            TokenTree::Ident(word) if word == "pub" => is_public = true,
            TokenTree::Ident(word) if word == "use" => {
                let end = (at..tokens.len())
                    .find(|&index| is_punct(&tokens[index], ';'))
                    .unwrap_or(tokens.len());
                for (path, name) in expand(&tokens[at + 1..end], &[]) {
                    if is_public {
                        uses.re_exports.insert(name, path);
                    } else {
                        uses.paths.push(path);
                    }
                }
                is_public = false;
                at = end;
            }
            TokenTree::Ident(_) => {
                let (path, next) = path_at(tokens, at);
                if path.len() > 1 {
                    uses.paths.push(path);
                }
                is_public = false;
                at = next;
                continue;
            }
            TokenTree::Group(group) => {
                // The group behind `pub` is its scope; `pub(crate) use` is still a re-export.
                if !(is_public && group.delimiter() == Delimiter::Parenthesis) {
                    is_public = false;
                    read(&group.stream().into_iter().collect::<Vec<_>>(), uses);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => is_public = false,
        }
        at += 1;
    }
}

/// The path that begins at `at`, and the index behind it.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Module, usize) {
    let mut path = Module::new();
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        path.push(name.to_string());
        at += 1;
        let goes_on = tokens.get(at).is_some_and(|token| is_punct(token, ':'))
            && tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'));
        if !goes_on {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// The paths of a `use` tree, each with the name that it gets.
fn expand(tree: &[TokenTree], before: &[String]) -> Vec<(Module, String)> {
    let (names, at) = path_at(tree, 0);
    let mut path = before.to_vec();
    path.extend(names);
    match tree.get(at) {
        Some(TokenTree::Group(group)) => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner.split(|token| is_punct(token, ',')).flat_map(|part| expand(part, &path)).collect()
        }
        Some(TokenTree::Ident(word)) if word == "as" => {
            let name = tree.get(at + 1).map(ToString::to_string).unwrap_or_default();
            vec![(path, name)]
        }
        _ if path.len() > before.len() => {
            let name = path.last().cloned().unwrap_or_default();
            vec![(path, name)]
        }
        _ => Vec::new(),
    }
}

/// A use between a module and its submodules. Each kind is left out once: a ring that goes down to a child and comes back over
/// a third file is found without the other kind, and a module and its child alone never are a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FamilyUse {
    OfChild,
    OfParent,
}

/// Which module a file uses, but for one kind of use within a family.
fn edges(files: &Crate, left_out: FamilyUse) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let mut edges: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for (from, uses) in files {
        let targets = edges.entry(from).or_default();
        for path in &uses.paths {
            if let Some(target) = resolve(files, from, path, 0) {
                let is_left_out = match left_out {
                    FamilyUse::OfChild => {
                        target.len() == from.len() + 1 && target.starts_with(from)
                    }
                    FamilyUse::OfParent => from.starts_with(target),
                };
                if target != from && !is_left_out {
                    targets.insert(target);
                }
            }
        }
    }
    edges
}

/// Re-exports that lead to re-exports; more steps than any crate has.
const STEPS_MAX: usize = 8;

/// The module that defines what a path names, as far as files show.
fn resolve<'a>(
    files: &'a Crate,
    from: &Module,
    path: &[String],
    steps: usize,
) -> Option<&'a Module> {
    let mut names = path;
    let mut module: Module = match names.first()?.as_str() {
        "crate" => Module::new(),
        "self" => from.clone(),
        "super" => {
            let ups = names.iter().take_while(|name| *name == "super").count();
            names = &names[ups - 1..];
            from[..from.len().checked_sub(ups)?].to_vec()
        }
        first => {
            let mut child = from.clone();
            child.push(first.to_owned());
            files.get_key_value(&child)?;
            names = path;
            return descend(files, from.clone(), names, steps);
        }
    };
    names = &names[1..];
    if names.is_empty() {
        return files.get_key_value(&module).map(|(key, _)| key);
    }
    module.shrink_to_fit();
    descend(files, module, names, steps)
}

fn descend<'a>(
    files: &'a Crate,
    mut module: Module,
    mut names: &[String],
    steps: usize,
) -> Option<&'a Module> {
    while let Some(name) = names.first() {
        module.push(name.clone());
        if !files.contains_key(&module) {
            module.pop();
            break;
        }
        names = &names[1..];
    }
    let (key, uses) = files.get_key_value(&module)?;
    let further = names.first().and_then(|name| uses.re_exports.get(name));
    match further {
        Some(target) if steps < STEPS_MAX => {
            let mut path = target.clone();
            path.extend_from_slice(&names[1..]);
            Some(resolve(files, &module, &path, steps + 1).unwrap_or(key))
        }
        _ => Some(key),
    }
}

/// Groups of modules of which each reaches each, of two or more.
fn circles(edges: &BTreeMap<&Module, BTreeSet<&Module>>) -> Vec<Vec<Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|from| (*from, reachable(edges, from))).collect();
    let mut found: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (from, targets) in &reach {
        if targets.contains(from) {
            let circle = targets.iter().filter(|to| reach[*to].contains(from));
            found.insert(circle.map(|module| (*module).clone()).collect());
        }
    }
    found.into_iter().collect()
}

fn reachable<'a>(
    edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&Module> = edges.get(from).into_iter().flatten().copied().collect();
    while let Some(next) = open.pop() {
        if let Some((key, targets)) = edges.get_key_value(next)
            && seen.insert(*key)
        {
            open.extend(targets.iter().copied());
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::{Report, SourceFile};

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        let mut report = Report::default();
        check(&files, &mut report);
        report.into_sorted().into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_reported() {
        let found = messages(&[
            ("crates/x/src/lib.rs", "mod a; mod b;"),
            ("crates/x/src/a.rs", "use crate::b::{self, B};"),
            ("crates/x/src/b.rs", "fn f() { super::a::g(); }"),
        ]);
        assert_eq!(found, ["files use each other in a circle: a, b"]);
    }

    #[test]
    fn a_parent_and_its_child_may_use_each_other() {
        let found = messages(&[
            ("crates/x/src/a.rs", "mod child; use child::C; struct A;"),
            ("crates/x/src/a/child.rs", "use super::A;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_re_export_counts_as_the_file_that_defines_the_name() {
        let found = messages(&[
            ("crates/x/src/m.rs", "mod a; mod b; pub(crate) use a::A; pub use self::b::B as C;"),
            ("crates/x/src/m/a.rs", "use super::C;"),
            ("crates/x/src/m/b.rs", "use crate::m::A;"),
        ]);
        assert_eq!(found, ["files use each other in a circle: m::a, m::b"]);
    }

    #[test]
    fn what_only_tests_use_is_no_circle() {
        let found = messages(&[
            ("crates/x/src/a.rs", "use crate::b::B; struct A;"),
            ("crates/x/src/b.rs", "#[cfg(test)] mod tests { use crate::a::A; } struct B;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_ring_over_a_parent_and_its_child_is_reported() {
        let found = messages(&[
            ("crates/x/src/a.rs", "mod child; use child::C; struct A;"),
            ("crates/x/src/a/child.rs", "use crate::b::B; use super::A; struct C;"),
            ("crates/x/src/b.rs", "use crate::a::A; struct B;"),
        ]);
        assert_eq!(found, ["files use each other in a circle: a, a::child, b"]);
    }

    #[test]
    fn a_ring_of_three_is_one_finding() {
        let found = messages(&[
            ("crates/x/src/a.rs", "use crate::b::B;"),
            ("crates/x/src/b.rs", "use crate::c::C;"),
            ("crates/x/src/c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["files use each other in a circle: a, b, c"]);
    }
}
