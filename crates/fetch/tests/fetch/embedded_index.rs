//! Where a chunk index comes from: behind its image, in a blob of its own, beside the image.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::{RemoteOptions, VerifyMode};
use ferrofs_remote::{CHUNK_INDEX_MEDIA_TYPE, ChunkIndex, ContentDigest};

use crate::wire::{Answer, Wire};
use crate::world::{World, body, check};

const MIB: u64 = 1 << 20;
const LENGTH: u64 = 8 * MIB;

/// For the chunk with the index, all of the image was requested again.
#[test]
fn the_chunk_of_the_index_is_requested_alone_and_only_if_it_is_read() {
    let image = body(LENGTH);
    let digests = image.chunks(300_000).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(LENGTH, 300_000, digests).unwrap().to_bytes();
    let digest = ContentDigest::of(&index);
    let object = [image, index.clone()].concat();
    let length = object.len();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (ranges, behind) = (Arc::clone(&asked), index.clone());
    let wire = Wire::start(move |request| {
        if request.path.ends_with(".chunk-index") {
            return Answer::part(request, &index);
        }
        ranges.lock().unwrap().push(request.range.unwrap());
        Answer::part(request, &object)
    });
    let world = World::new();
    let source = world.open(&format!("http://{}/image#index={digest}", wire.host));
    for start in (0..LENGTH).step_by(1 << 18) {
        check(&source, start, 1 << 18);
    }
    // What was prefetched has come.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let image_end = usize::try_from(LENGTH).unwrap();
    let read = std::mem::take(&mut *asked.lock().unwrap());
    assert!(read.iter().all(|(_, end)| *end <= image_end), "{read:?}");
    let mut bytes = vec![0; behind.len()];
    assert_eq!(source.read_at(LENGTH, &mut bytes).unwrap(), bytes.len());
    assert!(bytes == behind);
    assert_eq!(*asked.lock().unwrap(), [(image_end, length)]);
}

/// A server may send less than was requested (RFC 9110, 15.3.7): the part was taken for all of it.
#[test]
fn a_chunk_index_that_comes_in_parts_is_complete() {
    let image = body(LENGTH);
    let digests = image.chunks(300_000).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(LENGTH, 300_000, digests).unwrap().to_bytes();
    let object = [&*image, &*index].concat();
    let digest = |bytes: &[u8]| ContentDigest::of(bytes).to_string();
    let (index_digest, object_digest) = (digest(&index), digest(&object));
    let layer = |digest: &str, size: usize, media_type: &str, annotations: &str| {
        format!(
            r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size},"annotations":{{{annotations}}}}}"#
        )
    };
    let embedded = format!(
        r#""org.erofs.chunk-index.range":"{LENGTH}","org.erofs.chunk-index.digest":"{index_digest}""#
    );
    let erofs = "application/vnd.erofs";
    let embedded = layer(&object_digest, object.len(), erofs, &embedded);
    let alone = [
        layer(&digest(&image), image.len(), erofs, ""),
        layer(&index_digest, index.len(), CHUNK_INDEX_MEDIA_TYPE, ""),
    ];
    let manifests = [("/embedded", embedded), ("/alone", alone.join(","))];
    let named = [(index_digest.clone(), index), (object_digest, object), (digest(&image), image)];
    let in_parts = Arc::new(Mutex::new(0));
    let parts = Arc::clone(&in_parts);
    let wire = Wire::start(move |request| {
        if let Some((_, layers)) = manifests.iter().find(|(name, _)| request.path.ends_with(name)) {
            let manifest = format!(r#"{{"schemaVersion":2,"layers":[{layers}]}}"#);
            return Answer::new("200 OK", &[], manifest.as_bytes());
        }
        let is_beside = request.path.ends_with(".chunk-index");
        let is_it = |(digest, _): &&(String, Vec<u8>)| request.path.ends_with(digest);
        let found = if is_beside { Some(&named[0]) } else { named.iter().find(is_it) };
        let bytes = &found.unwrap_or(&named[2]).1;
        let mut part = request.clone();
        let (start, end) = part.range.as_mut().unwrap();
        let is_index = bytes.len() == named[0].1.len() || *start >= named[2].1.len();
        if is_index && *end > *start + 500 {
            *end = *start + 500;
            *parts.lock().unwrap() += 1;
        }
        Answer::part(&part, bytes)
    });
    let mut options = RemoteOptions::default();
    options.insecure_registries.push(wire.host.clone());
    options.verify = VerifyMode::Require;
    for location in [
        format!("http://{}/image#index={index_digest}", wire.host),
        format!("oci://{}/a/b:embedded", wire.host),
        format!("oci://{}/a/b:alone", wire.host),
    ] {
        *in_parts.lock().unwrap() = 0;
        let source = World::new().try_open(&location, &options).unwrap();
        check(&source, 5 * MIB, 1000);
        assert!(*in_parts.lock().unwrap() >= 2, "{location}");
    }
}

/// It was repeated until the time limit, which the error did not explain.
#[test]
fn a_server_that_sends_single_bytes_is_not_asked_again() {
    let image = body(LENGTH);
    let digests = image.chunks(100_000).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(LENGTH, 100_000, digests).unwrap().to_bytes();
    let digest = ContentDigest::of(&index);
    let wire = Wire::start(move |request| {
        let mut part = request.clone();
        if !request.path.ends_with(".chunk-index") {
            return Answer::part(request, &image);
        }
        let (start, end) = part.range.as_mut().unwrap();
        *end = *start + 1;
        Answer::part(&part, &index)
    });
    let (world, started_at) = (World::new(), Instant::now());
    let location = format!("http://{}/image#index={digest}", wire.host);
    let error = world.try_open(&location, &RemoteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("parts that are too small"), "{error}");
    let elapsed = started_at.elapsed();
    assert!(elapsed.as_secs() < u64::from(world.timeout_seconds), "{elapsed:?}");
}
