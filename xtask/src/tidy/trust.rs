//! Where unsafe code is allowed: the files that say so and the table in docs/trust.md must be
//! the same list, so that a reader of the page has read of every place. A module inherits what its parent
//! allows, so the children of such a file say themselves what they allow. Whether a block is explained is
//! clippy's question, not this one's. Called by `tidy` with every text file.

use proc_macro2::{TokenStream, TokenTree};

use super::tree::{Kind, Report, SourceFile};

const PAGE: &str = "docs/trust.md";

/// Levels of the lint; the first two let unsafe code in.
const LEVELS: [&str; 4] = ["allow", "expect", "deny", "forbid"];

pub(crate) fn check(files: &[SourceFile], report: &mut Report) {
    let page = files.iter().find(|file| file.path == PAGE);
    let words = page.map_or("", |page| page.text.as_str());
    let allowing: Vec<&str> = files
        .iter()
        .filter(|file| file.kind == Kind::Rust && allows_unsafe(&file.text))
        .map(|file| file.path.as_str())
        .collect();
    for path in allowing.iter().filter(|path| !words.contains(&format!("`{path}`"))) {
        report.add(path, 1, format!("allows unsafe code but is not named in {PAGE}"));
    }
    let inherits = |file: &&SourceFile| {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        // A program beside a library is a crate of its own.
        let parents: &[&str] = match name {
            "lib.rs" | "main.rs" => &[".rs"],
            _ => &[".rs", "/lib.rs", "/main.rs"],
        };
        let allows = |end: &&str| allowing.contains(&format!("{folder}{end}").as_str());
        file.kind == Kind::Rust && parents.iter().any(allows)
    };
    for file in files.iter().filter(inherits).filter(|file| !sets_unsafe(&file.text, &LEVELS)) {
        let message = "inherits unsafe code from its parent: write #![forbid(unsafe_code)]";
        report.add(&file.path, 1, message);
    }
    for (number, path) in page.into_iter().flat_map(listed) {
        if !allowing.contains(&path) {
            report.add(PAGE, number, format!("lists {path}, which allows no unsafe code"));
        }
    }
}

/// The Rust files that head a row of a table on the page, with their lines.
fn listed(page: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    page.lines().filter_map(|(number, line)| {
        let cell = line.strip_prefix('|')?.split('|').next()?.trim();
        let path = cell.strip_prefix('`')?.strip_suffix('`')?;
        path.ends_with(".rs").then_some((number, path))
    })
}

/// Whether an attribute lets unsafe code in.
fn allows_unsafe(text: &str) -> bool {
    sets_unsafe(text, &LEVELS[..2])
}

/// Whether an attribute sets the lint to one of these levels; text that cannot be read is reported elsewhere.
fn sets_unsafe(text: &str, levels: &[&str]) -> bool {
    text.parse::<TokenStream>().is_ok_and(|tokens| attribute_sets(tokens, levels))
}

fn attribute_sets(tokens: TokenStream, levels: &[&str]) -> bool {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    trees.iter().enumerate().any(|(index, tree)| match tree {
        TokenTree::Ident(word) if levels.iter().any(|level| word == level) => {
            matches!(trees.get(index + 1), Some(TokenTree::Group(lints)) if names_unsafe(lints.stream()))
        }
        TokenTree::Group(group) => attribute_sets(group.stream(), levels),
        _ => false,
    })
}

fn names_unsafe(lints: TokenStream) -> bool {
    lints.into_iter().any(|tree| matches!(tree, TokenTree::Ident(lint) if lint == "unsafe_code"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::{Report, SourceFile};

    const ALLOWING: &str = "//! Calls C.\n#![allow(\n    unsafe_code,\n    reason = \"C\"\n)]\n";

    fn messages(rust: &str, page: Option<&str>) -> Vec<String> {
        let mut files = vec![SourceFile::new("crates/codec/src/lz4.rs", rust)];
        files.extend(page.map(|page| SourceFile::new("docs/trust.md", page)));
        let mut report = Report::default();
        check(&files, &mut report);
        report.into_sorted().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_the_page_does_not_name_is_reported() {
        let expected =
            ["crates/codec/src/lz4.rs:1: allows unsafe code but is not named in docs/trust.md"];
        assert_eq!(messages(ALLOWING, Some("# Trust\n")), expected);
        assert_eq!(messages(ALLOWING, None), expected);
    }

    #[test]
    fn a_file_that_the_page_names_passes() {
        let page = "| file | why |\n|---|---|\n| `crates/codec/src/lz4.rs` | calls C |\n";
        assert!(messages(ALLOWING, Some(page)).is_empty());
    }

    #[test]
    fn a_row_without_its_unsafe_code_is_reported() {
        let page = "| `crates/codec/src/lz4.rs` | calls C |\n";
        assert_eq!(
            messages("//! Plain.\n", Some(page)),
            ["docs/trust.md:1: lists crates/codec/src/lz4.rs, which allows no unsafe code"]
        );
    }

    #[test]
    fn words_about_the_lint_are_not_the_lint() {
        let rust =
            "//! Look for `allow(unsafe_code`.\nconst A: &str = \"#![allow(unsafe_code)]\";\n";
        assert!(messages(rust, None).is_empty());
    }

    #[test]
    fn a_child_of_a_file_with_unsafe_code_says_what_it_allows() {
        let page = "| `crates/codec/src/lz4.rs` | calls C |\n";
        let with_child = |child: &str| {
            let mut files = vec![SourceFile::new("crates/codec/src/lz4.rs", ALLOWING)];
            files.push(SourceFile::new("crates/codec/src/lz4/window.rs", child));
            files.push(SourceFile::new("docs/trust.md", page));
            let mut report = Report::default();
            check(&files, &mut report);
            report.into_sorted().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(with_child("#![forbid(unsafe_code)]\n").is_empty());
        let finding = "crates/codec/src/lz4/window.rs:1: inherits unsafe code from its parent: write #![forbid(unsafe_code)]";
        assert_eq!(with_child("//! Plain.\n"), [finding]);
    }

    #[test]
    fn a_module_of_a_crate_with_unsafe_code_says_what_it_allows() {
        for [root, other] in [["lib", "main"], ["main", "lib"]] {
            let [root, other] = [root, other].map(|name| format!("crates/codec/src/{name}.rs"));
            let page = format!("| `{root}` | calls C |\n");
            let files = [
                SourceFile::new(&root, ALLOWING),
                SourceFile::new(&other, "//! Plain.\n"),
                SourceFile::new("crates/codec/src/lz4.rs", "//! Plain.\n"),
                SourceFile::new("docs/trust.md", &page),
            ];
            let mut report = Report::default();
            check(&files, &mut report);
            let findings: Vec<_> = report.into_sorted().iter().map(ToString::to_string).collect();
            let finding = "crates/codec/src/lz4.rs:1: inherits unsafe code from its parent: write #![forbid(unsafe_code)]";
            assert_eq!(findings, [finding]);
        }
    }
}
