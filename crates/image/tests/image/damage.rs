//! Damaged images: a value or an error, soon and in bounds, whatever the bytes are.

use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{Image, OpenOptions, Source, VerifyEvent};
use serde::Deserialize;

use crate::manifest::{Set, beside};

#[derive(Deserialize)]
struct Corrupt {
    images: Vec<CorruptImage>,
}

#[derive(Deserialize)]
struct CorruptImage {
    file: String,
    base: String,
    what: String,
    expect: String,
}

/// Everything that verification says about an image, or why it does not open.
fn problems(image: Result<Image, ferrofs_image::Error>) -> Vec<ferrofs_image::Error> {
    match image {
        Err(error) => vec![error],
        Ok(image) => {
            let mut found = Vec::new();
            image.verify(&mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    found.push(problem.error);
                }
            });
            found
        }
    }
}

fn open_corrupt(dir: &Path, listed: &CorruptImage) -> Result<Image, ferrofs_image::Error> {
    let options = OpenOptions::new();
    let options =
        if listed.base == "blob" { options.device(dir.join("blob.bin")) } else { options };
    options.open(dir.join(&listed.file))
}

#[test]
fn the_corrupt_set_is_judged_as_it_should_be() {
    let dir = beside("FERROFS_CORRUPT", "corrupt");
    let Ok(text) = std::fs::read(dir.join("list.json")) else {
        eprintln!("skipped: no set of corrupt images (FERROFS_CORRUPT)");
        return;
    };
    let list: Corrupt = serde_json::from_slice(&text).unwrap();
    for listed in &list.images {
        let found = problems(open_corrupt(&dir, listed));
        let must_fail = listed.expect != "any";
        assert!(!must_fail || !found.is_empty(), "{}: {}", listed.file, listed.what);
        for error in found {
            assert!(error.offset().is_some(), "{}: {error} names no byte", listed.file);
        }
    }
}

/// A good image with a mutation.
fn mutated(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Result<Image, ferrofs_image::Error> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let source: Arc<dyn Source> = Arc::new(bytes);
    OpenOptions::new().ignore_checksum(true).open_sources(source, Vec::new())
}

fn carried(name: &str) -> Vec<u8> {
    let set = Set::carried();
    let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
    std::fs::read(set.dir.join(&listed.file)).unwrap()
}

#[test]
fn any_truncation_is_noticed() {
    for name in ["plain", "lz4-ztail", "lz4hc-all-fragments"] {
        let bytes = carried(name);
        let step = (bytes.len() / 40).max(1);
        for length in (0..bytes.len()).step_by(step) {
            let found = problems(mutated(&bytes, |bytes| bytes.truncate(length)));
            assert!(!found.is_empty(), "{name} cut to {length} of {}", bytes.len());
        }
    }
}

#[test]
fn no_flipped_byte_of_metadata_does_harm() {
    for name in ["inline", "lz4-full", "48bit-lz4-8k-fragments", "metabox-lz4-prefix", "chunk-map"]
    {
        let bytes = carried(name);
        let mut at = 1024;
        while at < bytes.len() {
            // The result is free; only a panic, an endless loop or a huge buffer would be wrong.
            drop(problems(mutated(&bytes, |bytes| bytes[at] ^= 0xff)));
            at += 211;
        }
    }
}
