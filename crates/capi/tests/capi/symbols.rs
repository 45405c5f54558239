//! The list of symbols: the header, the linker's map, the sources and the shared library name the same
//! functions.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::support::{Installation, here, succeed};

/// The words of `text` that begin as a function of the library does and stand before `end`.
fn functions(text: &str, end: &str) -> BTreeSet<String> {
    text.split(|letter: char| letter.is_whitespace() || letter == '*')
        .filter_map(|word| word.split_once(end).map(|(name, _)| name))
        .filter(|name| name.starts_with("ferrofs_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn header_map_sources_and_library_have_the_same_functions() {
    let map = functions(&fs::read_to_string(here("ferrofs.map")).unwrap(), ";");
    let header = fs::read_to_string(here("include/ferrofs.h")).unwrap();
    // Declarations begin in the first column; a template is no symbol.
    let lines =
        header.lines().filter(|line| line.starts_with(|letter: char| letter.is_lowercase()));
    let lines = lines.filter(|line| !line.starts_with("typedef")).collect::<Vec<_>>().join("\n");
    assert_eq!(functions(&lines, "("), map);
    let mut sources = BTreeSet::new();
    let files = ["src", "src/error"].map(|folder| fs::read_dir(here(folder)).unwrap());
    for path in files.into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for function in text.split("#[unsafe(no_mangle)]").skip(1) {
            sources.extend(functions(function.split('{').next().unwrap(), "("));
        }
    }
    assert_eq!(sources, map);

    let shared = Installation::new().link_shared_symbols();
    let expected: BTreeSet<_> = map.iter().map(|name| format!("{name}@@FERROFS_0.1")).collect();
    assert_eq!(shared, expected);
}

#[test]
fn the_test_in_c_calls_every_function() {
    let map = functions(&fs::read_to_string(here("ferrofs.map")).unwrap(), ";");
    let program = fs::read_to_string(here("tests/c/api.c")).unwrap();
    let called = functions(&program.replace(" (", "( ").replace('!', " "), "(");
    let missing: Vec<_> = map.difference(&called).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

impl Installation {
    /// What the shared library exports.
    fn link_shared_symbols(&self) -> BTreeSet<String> {
        let shared = self.link_shared();
        let listed = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(shared));
        let listed = String::from_utf8(listed.stdout).unwrap();
        let names = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
        // The name of the version is a symbol, too.
        names.filter(|name| *name != "FERROFS_0.1").map(str::to_owned).collect()
    }
}
