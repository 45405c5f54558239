//! Extracts an image: `cargo run -p ferrofs-extract --example extract -- IMAGE DIR`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use ferrofs_extract::{ExtractEvent, ExtractOptions, extract};
use ferrofs_image::Image;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, directory] = words.as_slice() else {
        eprintln!("usage: extract IMAGE DIR");
        return ExitCode::from(2);
    };
    match extract_all(image, Path::new(directory)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{image}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Extracts everything and prints each failure; the number of failures.
fn extract_all(image: &str, directory: &Path) -> Result<u64, Box<dyn Error>> {
    let image = Image::open(image)?;
    let mut failures = 0;
    let summary = extract(&image, directory, &ExtractOptions::default(), &mut |event| {
        if let ExtractEvent::Failed(error) = event {
            eprintln!("{error}");
            failures += 1;
        }
    })?;
    println!("{} bytes", summary.bytes);
    Ok(failures)
}
