//! Serves an image on a directory until it is unmounted: `cargo run -p ferrofs-mount --example serve -- IMAGE DIR`.
#![allow(clippy::print_stderr, reason = "an example reports on standard error")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use ferrofs_fuse::attach::{AttachOptions, attach};
use ferrofs_image::Image;
use ferrofs_mount::{MountSettings, NegotiatedMount};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, directory] = words.as_slice() else {
        eprintln!("usage: serve IMAGE DIR");
        return ExitCode::from(2);
    };
    match serve(image, Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{image}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(image: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    let source = image.to_owned();
    let image = Image::open(image)?;
    let attachment = attach(directory, &AttachOptions::new(source, "ferrofs"))?;
    let device = attachment.device().try_clone()?;
    let mount = NegotiatedMount::new(device, &MountSettings::default())?;
    mount.serve(image, |event| eprintln!("{event:?}"))?.join();
    Ok(())
}
