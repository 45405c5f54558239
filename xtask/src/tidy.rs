//! `tidy`: the project's rules that neither the compiler, clippy, rustfmt nor cargo-deny checks. This file
//! runs the checks over the tree and prints what they found. It never changes a file. Called by `main`.

mod circle;
mod dependencies;
mod file_rules;
mod text_rules;
mod tokens;
mod tree;
mod trust;
mod type_names;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use self::tree::{Kind, Report, SourceFile, Tree};

/// Checks the whole workspace and prints one line for each finding.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match inspect(root) {
        Ok(result) => result.print(),
        Err(error) => {
            eprintln!("xtask tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

struct TidyResult {
    report: Report,
    files: usize,
}

impl TidyResult {
    fn print(self) -> ExitCode {
        let findings = self.report.into_sorted();
        for finding in &findings {
            println!("{finding}");
        }
        println!("tidy: {} files checked, {} findings", self.files, findings.len());
        if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn inspect(root: &Path) -> Result<TidyResult, Box<dyn Error>> {
    let tree = Tree::read(root)?;
    let manifests = dependencies::read_all(root)?;
    let mut report = Report::default();
    file_rules::check_paths(&tree.paths, &mut report);
    for file in &tree.files {
        check_file(file, &mut report);
    }
    text_rules::check_links(&tree, &mut report);
    trust::check(&tree.files, &mut report);
    circle::check(&tree.files, &mut report);
    type_names::check(&tree.files, &mut report);
    dependencies::check(&manifests, tree.text("docs/dependencies.md"), &mut report);
    Ok(TidyResult { report, files: tree.files.len() })
}

fn check_file(file: &SourceFile, report: &mut Report) {
    text_rules::check(file, report);
    if file.kind == Kind::Rust {
        file_rules::check(file, report);
    }
}
