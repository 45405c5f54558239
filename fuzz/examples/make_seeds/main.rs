//! Remakes `fuzz/seeds` from the images of `tests/data`: one input for each kind of structure that
//! is found, the smallest one. Run it as
//! `cargo run --manifest-path fuzz/Cargo.toml --example make_seeds`.

mod cut;
mod index;
mod seed_set;
mod server;
mod tar;
mod whole;

use std::error::Error;
use std::fs;
use std::path::Path;

use cut::Cutter;
use ferrofs_image::{Image, OpenOptions, WalkEvent};
use seed_set::SeedSet;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> = fs::read_dir(here.join("../tests/data"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "erofs"));
    paths.sort();
    let mut seed_set = SeedSet::default();
    for path in &paths {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("image");
        // The demo has nothing but ordinary files, and an image at an offset is one of the others.
        if matches!(name, "demo" | "offset-64k") {
            continue;
        }
        let bytes = fs::read(path)?;
        let image = OpenOptions::new().open_sources(std::sync::Arc::new(bytes.clone()), vec![])?;
        cut(name, &image, bytes, &mut seed_set)?;
    }
    for number in 0..ferrofs_fuzz::PATCHED_IMAGES {
        // The image as it is, and one with its first byte changed to what it was.
        seed_set.put("patched", format!("{number:02}"), vec![number, 0, 0, 1, 0]);
    }
    whole::put(&mut seed_set);
    server::put(&mut seed_set);
    tar::put(&here.join("../tests/data/tar"), &mut seed_set)?;
    let (files, total) = seed_set.write(&here.join("seeds"))?;
    println!("{files} seeds, {total} bytes");
    Ok(())
}

fn cut(
    name: &str,
    image: &Image,
    bytes: Vec<u8>,
    seed_set: &mut SeedSet,
) -> Result<(), Box<dyn Error>> {
    let cutter = Cutter::new(name, image, bytes)?;
    cutter.superblock(seed_set);
    for visit in image.walk(b"/")? {
        if let WalkEvent::Enter(node) | WalkEvent::Leaf(node) = visit {
            cutter.inode(&node.inode, seed_set)?;
        }
    }
    Ok(())
}
