//! Builds an image from a directory: `cargo run -p ferrofs-builder --example build_directory -- DIR IMAGE`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::path::Path;
use std::process::ExitCode;

use ferrofs_builder::import::{DirectoryOptions, from_directory};
use ferrofs_builder::{BuildOptions, BuildReport, CancelToken, NoopObserver, Result, build};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, image] = words.as_slice() else {
        eprintln!("usage: build_directory DIR IMAGE");
        return ExitCode::from(2);
    };
    match build_directory(Path::new(directory), Path::new(image)) {
        Ok(report) => {
            println!("{image}: {report:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build_directory(directory: &Path, image: &Path) -> Result<BuildReport> {
    // A thread that waits for signals could keep a clone, and cancel it.
    let cancel = CancelToken::new();
    let tree = from_directory(directory, &DirectoryOptions::default(), &NoopObserver, &cancel)?;
    build(&tree, &BuildOptions::default(), image, &NoopObserver, &cancel)
}
