//! A bare type name has one meaning in the workspace: two crates that define a type of the same name are a
//! finding, since a reader who searches for it finds both. No lint compares crates. Called by `tidy`.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use super::tokens::after_attribute;
use super::tree::{Kind, Report, SourceFile};

/// Each crate has its own of these, as is usual in Rust.
const OF_EACH_CRATE: [&str; 3] = ["Error", "ErrorKind", "Result"];

/// Reports every type name of a crate's sources that another file has defined before.
pub(crate) fn check(files: &[SourceFile], report: &mut Report) {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    for file in files.iter().filter(|file| file.kind == Kind::Rust && is_product(&file.path)) {
        let Ok(tokens) = file.text.parse::<TokenStream>() else { continue };
        let mut names = Vec::new();
        read(&tokens.into_iter().collect::<Vec<_>>(), &mut names);
        for (name, line) in names {
            let before = *first.entry(name.clone()).or_insert(&file.path);
            // One file may define it once for each of two configurations.
            if before != file.path && !OF_EACH_CRATE.contains(&name.as_str()) {
                report.add(&file.path, line, format!("the type name {name} is also in {before}"));
            }
        }
    }
}

/// Sources of the crates without tests, and without modules that stand in for others under a fuzzer.
fn is_product(path: &str) -> bool {
    path.starts_with("crates/")
        && path.split_once("/src/").is_some_and(|(_, inside)| {
            !inside.split('/').any(|name| name.contains("test") || name == "fuzzing")
        })
}

/// Collects the names of types, groups included. Associated types have no visibility, aliases mostly have.
fn read(tokens: &[TokenTree], names: &mut Vec<(String, usize)>) {
    let mut at = 0;
    let mut is_public = false;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                at = after_attribute(tokens, at);
                continue;
            }
            TokenTree::Ident(word) => {
                let defines = match word.to_string().as_str() {
                    "struct" | "enum" | "union" | "trait" => true,
                    "type" => is_public,
                    _ => false,
                };
                if defines && let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                    names.push((name.to_string(), name.span().start().line));
                }
                is_public = word == "pub";
            }
            TokenTree::Group(group) => {
                read(&group.stream().into_iter().collect::<Vec<_>>(), names);
                // The group behind `pub` is its scope.
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => is_public = false,
        }
        at += 1;
    }
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
        report.into_sorted().into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_name_that_two_crates_define_is_reported() {
        let found = messages(&[
            ("crates/x/src/a.rs", "pub(crate) struct Limits;"),
            ("crates/y/src/b/c.rs", "\nmod inner { enum Limits {} }\npub(crate) type Limits = u8;"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/y/src/b/c.rs:2"), "{found:?}");
        assert!(
            found[0].ends_with("the type name Limits is also in crates/x/src/a.rs"),
            "{found:?}"
        );
    }

    #[test]
    fn tests_associated_types_and_second_configurations_may_use_a_name_again() {
        let found = messages(&[
            ("crates/x/src/a.rs", "struct Limits; struct Error; #[cfg(loom)] struct Limits;"),
            ("crates/x/src/tests.rs", "struct Limits;"),
            ("crates/y/tests/limits.rs", "struct Limits;"),
            ("crates/y/src/fuzzing/limits.rs", "struct Limits;"),
            ("crates/y/src/b.rs", "#[cfg(test)] mod tests { struct Limits; }\nenum Error {}"),
            ("crates/y/src/c.rs", "impl Iterator for B { type Limits = u8; }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
