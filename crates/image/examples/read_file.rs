//! Prints one file of an image: `cargo run -p ferrofs-image --example read_file -- IMAGE PATH`.
#![allow(clippy::print_stderr, reason = "an example reports on standard error")]

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use ferrofs_image::Image;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, path] = words.as_slice() else {
        eprintln!("usage: read_file IMAGE PATH");
        return ExitCode::from(2);
    };
    match print_file(image, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{image}: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_file(image: &str, path: &str) -> Result<(), Box<dyn Error>> {
    let image = Image::open(image)?;
    let inode = image.resolve(path.as_bytes())?.ok_or("no such file")?;
    let mut buffer = vec![0; 128 << 10];
    let mut offset = 0;
    loop {
        let count = image.read_at(&inode, offset, &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        std::io::stdout().write_all(&buffer[..count])?;
        offset += u64::try_from(count)?;
    }
}
