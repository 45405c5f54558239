//! Lists every path of an image with its size: `cargo run -p ferrofs-image --example list -- IMAGE`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::process::ExitCode;

use ferrofs_image::{Error, Image, WalkEvent};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image] = words.as_slice() else {
        eprintln!("usage: list IMAGE");
        return ExitCode::from(2);
    };
    match list(image) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{image}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(image: &str) -> Result<(), Error> {
    let image = Image::open(image)?;
    for event in image.walk(b"/")? {
        match event {
            WalkEvent::Enter(entry) | WalkEvent::Leaf(entry) => {
                println!("{:>12} {}", entry.inode.size(), String::from_utf8_lossy(&entry.path));
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Problem(problem) => return Err(problem.error),
        }
    }
    Ok(())
}
