//! `tidy`: the rules of the house that neither the compiler nor clippy can see. This file runs
//! the checks over the tree and prints what they found; each check lives in its own file, gets
//! text, and reports into a `Report`. It never changes a file. Called by `main`.

mod arrow;
mod circle;
mod dependency;
mod finding;
mod length;
mod link;
mod machine;
mod manifest;
mod marker;
mod name;
mod opening;
mod source;
mod trust;
mod whitespace;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use proc_macro2::TokenStream;

use self::finding::Report;
use self::source::{Kind, SourceFile, Tree};

/// Checks the whole workspace and prints one line for each finding.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match inspect(root) {
        Ok(outcome) => outcome.print(),
        Err(error) => {
            eprintln!("xtask tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Outcome {
    report: Report,
    files: usize,
}

impl Outcome {
    fn print(self) -> ExitCode {
        let findings = self.report.into_sorted();
        for finding in &findings {
            println!("{finding}");
        }
        println!("tidy: {} files checked, {} findings", self.files, findings.len());
        if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn inspect(root: &Path) -> Result<Outcome, Box<dyn Error>> {
    let tree = Tree::read(root)?;
    let manifests = manifest::read_all(root)?;
    let mut report = Report::default();
    name::check(&tree.paths, &mut report);
    for file in &tree.files {
        check_file(file, &mut report);
    }
    link::check(&tree, &mut report);
    trust::check(&tree.files, &mut report);
    circle::check(&tree.files, &mut report);
    arrow::check(&manifests, &mut report);
    dependency::check(&manifests, tree.text("docs/dependencies.md"), &mut report);
    Ok(Outcome { report, files: tree.files.len() })
}

fn check_file(file: &SourceFile, report: &mut Report) {
    marker::check(file, report);
    machine::check(file, report);
    whitespace::check(file, report);
    if file.kind == Kind::Rust {
        opening::check(file, report);
        length::check_file(file, report);
        match file.text.parse::<TokenStream>() {
            Ok(tokens) => length::check_functions(file, tokens, report),
            Err(error) => report.add(&file.path, 1, format!("cannot be read as Rust: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_file;
    use super::finding::Report;
    use super::source::SourceFile;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut report = Report::default();
        check_file(&SourceFile::new(path, text), &mut report);
        report.into_sorted().into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_file_that_is_not_rust_is_reported() {
        let found = messages("src/a.rs", "//! A noun.\nfn a( {}\n");
        assert!(found.iter().any(|message| message.starts_with("cannot be read as Rust")));
    }

    #[test]
    fn a_clean_file_is_silent() {
        assert_eq!(messages("src/a.rs", "//! A noun.\nfn a() {}\n"), Vec::<String>::new());
    }
}
