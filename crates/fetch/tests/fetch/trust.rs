//! Servers that lie about bytes: what one of them sends is never taken for what another one has, and
//! nothing counts as verified that no digest proves.

use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::{RemoteOptions, Verification, VerifyMode};
use ferrofs_remote::{ChunkIndex, ContentDigest, RemoteSource};

use crate::registry::Registry;
use crate::wire::{Answer, Wire};
use crate::world::{World, body, check};

const LENGTH: u64 = (2 << 20) + 77;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn options(registries: &[&Registry]) -> RemoteOptions {
    let mut options = RemoteOptions::default();
    options.insecure_registries = registries.iter().map(|one| one.host().to_owned()).collect();
    options
}

fn index_of(image: &[u8]) -> ChunkIndex {
    let digests = image.chunks(1 << 20).map(ContentDigest::of).collect();
    ChunkIndex::uniform(image.len() as u64, 1 << 20, digests).unwrap()
}

fn read_all(source: &RemoteSource) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(source.length()).unwrap()];
    assert_eq!(source.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A registry that names the blob of another one, and sends other bytes for it.
fn hostile(right: &Registry, digest: ContentDigest, bytes: Vec<u8>) -> Registry {
    Registry::start_with(vec![
        ("manifests/v1".to_owned(), MANIFEST, right.document("manifests/v1")),
        (format!("blobs/{digest}"), "application/octet-stream", bytes),
    ])
}

/// The bytes of a layer without a chunk index were cached under its digest alone.
#[test]
fn what_a_registry_sends_is_not_taken_for_what_another_one_has() {
    let good = body(LENGTH);
    let mut evil = good.clone();
    evil[100] ^= 1;
    let right = Registry::start(good.clone());
    let wrong = hostile(&right, ContentDigest::of(&good), evil.clone());
    let (world, mut options) = (World::new(), options(&[&right, &wrong]));
    let first = world.try_open(&wrong.location(), &options).unwrap();
    assert!(read_all(&first) == evil);
    // While it is open, and afterwards.
    check(&world.try_open(&right.location(), &options).unwrap(), 0, 3 << 20);
    drop(first);
    check(&world.try_open(&right.location(), &options).unwrap(), 0, 3 << 20);
    options.offline = true;
    check(&world.try_open(&right.location(), &options).unwrap(), 0, 3 << 20);
    assert!(read_all(&world.try_open(&wrong.location(), &options).unwrap()) == evil);
}

#[test]
fn a_registry_that_states_a_shorter_layer_cuts_that_of_nobody_else() {
    let good = body(LENGTH);
    let right = Registry::start_indexed(good.clone(), &index_of(&good));
    let manifest = String::from_utf8(right.document("manifests/v1")).unwrap();
    let truncated = manifest.replace(&format!("\"size\":{LENGTH}"), "\"size\":5000");
    let index = index_of(&good).to_bytes();
    let wrong = Registry::start_with(vec![
        ("manifests/v1".to_owned(), MANIFEST, truncated.into_bytes()),
        (format!("blobs/{}", ContentDigest::of(&good)), "application/x", good[..5000].to_vec()),
        (format!("blobs/{}", ContentDigest::of(&index)), "application/x", index),
    ]);
    let (world, options) = (World::new(), options(&[&right, &wrong]));
    let error = world.try_open(&wrong.location(), &options).unwrap_err().to_string();
    assert!(error.contains("the object has 5000"), "{error}");
    check(&world.try_open(&right.location(), &options).unwrap(), 0, 3 << 20);
}

#[test]
fn chunks_that_an_index_proves_are_shared_by_registries() {
    let good = body(LENGTH);
    let [one, other] = [(); 2].map(|()| Registry::start_indexed(good.clone(), &index_of(&good)));
    let (world, options) = (World::new(), options(&[&one, &other]));
    check(&world.try_open(&one.location(), &options).unwrap(), 0, 3 << 20);
    check(&world.try_open(&other.location(), &options).unwrap(), 0, 3 << 20);
    let sent = other.0.sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(sent < 1 << 20, "{sent}");
}

/// A hostile registry can write such an index for its own bytes.
#[test]
fn an_embedded_chunk_index_without_a_digest_verifies_nothing() {
    let image = body(LENGTH);
    let blob = [&image[..], &index_of(&image).to_bytes()].concat();
    let (digest, size) = (ContentDigest::of(&blob), blob.len());
    let layer = format!(
        r#"{{"mediaType":"application/vnd.erofs","digest":"{digest}","size":{size},"annotations":{{"org.erofs.chunk-index.range":"{LENGTH}"}}}}"#
    );
    let manifest = format!(r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","layers":[{layer}]}}"#);
    let registry = Registry::start_with(vec![
        ("manifests/v1".to_owned(), MANIFEST, manifest.into_bytes()),
        (format!("blobs/{digest}"), "application/octet-stream", blob),
    ]);
    let (world, mut options) = (World::new(), options(&[&registry]));
    let source = world.try_open(&registry.location(), &options).unwrap();
    assert_eq!(source.state().verification, Verification::WholeDigestLater);
    options.verify = VerifyMode::Require;
    let error = world.try_open(&registry.location(), &options).unwrap_err().to_string();
    assert!(error.contains("needs a chunk index"), "{error}");
}

/// An object with an index of its first [`LENGTH`] bytes beside it; its location.
fn beside(tail: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let image = body(LENGTH);
    let index = index_of(&image).to_bytes();
    let object = [&image[..], &tail(&index)].concat();
    let digest = ContentDigest::of(&index);
    let wire = Wire::start(move |request| match request.path.ends_with(".chunk-index") {
        true => Answer::part(request, &index),
        false => Answer::part(request, &object),
    });
    format!("http://{}/image.erofs#index={digest}", wire.host)
}

/// Bytes behind the image were taken as they came, and reported as verified.
#[test]
fn what_lies_behind_a_verified_image_is_its_index_or_refused() {
    let mut options = RemoteOptions::default();
    options.verify = VerifyMode::Require;
    let world = World::new();
    for tail in [&b"x"[..], &[0; 4096]] {
        let url = beside(|_| tail.to_vec());
        let error = world.try_open(&url, &options).unwrap_err().to_string();
        assert!(error.contains(&format!("describes {LENGTH} bytes")), "{error}");
    }
    let source = world.try_open(&beside(<[u8]>::to_vec), &options).unwrap();
    let bytes = read_all(&source);
    let image = body(LENGTH);
    assert!(bytes == [&image[..], &index_of(&image).to_bytes()].concat());
    let url = beside(|index| index.iter().map(|byte| byte ^ 1).collect());
    let source = world.try_open(&url, &options).unwrap();
    check(&source, 0, 2 << 20);
    let error = source.read_at(LENGTH, &mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("digest"), "{error}");
}

/// Such an error did not fit into a message: the client lost the connection, and asked again, and again.
#[test]
fn a_long_text_of_a_server_is_an_error_of_one_request() {
    let wire = Wire::start(|_| {
        let long = "x".repeat(70_000);
        Answer::new("206 Partial Content", &[("content-range", &long)], b"x")
    });
    let world = World::new();
    let client = world.client();
    let url = format!("http://{}/image.erofs", wire.host).parse().unwrap();
    let options = RemoteOptions::default();
    let timeout = std::time::Duration::from_secs(20);
    let error = RemoteSource::open(&client, &url, &options, timeout).unwrap_err().to_string();
    assert!(error.contains("has the range") && error.len() < 5000, "{error}");
    assert_eq!((wire.requests(), client.reconnects()), (1, 0));
}
