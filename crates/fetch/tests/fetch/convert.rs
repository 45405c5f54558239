//! `ferrofs build OUT oci://…`: ordinary container images of a registry.

use std::fs;

use crate::command::{Verb, ferrofs};
use crate::container_image::{MERGED, TestLayer, documents, hex, tar, two_layers};
use crate::registry::Registry;
use crate::world::World;

/// A registry with an image of these layers under the tag `v1`.
fn registry(layers: &[TestLayer]) -> Registry {
    let (config, manifest) = documents(layers);
    let mut contents = vec![
        (
            "manifests/v1".to_owned(),
            "application/vnd.oci.image.manifest.v1+json",
            manifest.into_bytes(),
        ),
        (format!("blobs/sha256:{}", hex(config.as_bytes())), "application/x", config.into_bytes()),
    ];
    for layer in layers {
        let path = format!("blobs/sha256:{}", layer.digest);
        contents.push((path, "application/octet-stream", layer.blob.clone()));
    }
    Registry::start_with(contents)
}

#[test]
fn an_image_of_a_registry_is_converted_with_one_token() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let mut layers = two_layers();
    // Longer than a chunk, and many of them.
    let long = "0123456789abcdef".repeat(200_000);
    for number in 0..5 {
        layers.push(TestLayer::gzipped(&tar(&[(&format!("long{number}"), &long)])));
    }
    let registry = registry(&layers);
    let insecure = format!("--insecure-registry={}", registry.host());
    let image = world.directory.path().join("out.erofs");
    let name = image.to_str().unwrap();
    verb.good(&["build", "-q", name, &registry.location(), &insecure]);
    assert_eq!(registry.tokens(), 1);
    let paths = String::from_utf8(verb.good(&["ls", "-R", name])).unwrap();
    assert_eq!(paths.lines().filter(|path| !path.contains("long")).count(), 5, "{paths}");
    assert!(MERGED.lines().all(|path| paths.contains(path)), "{paths}");
    assert!(verb.good(&["cat", name, "/long4"]) == long.as_bytes());
    // The layers are in the cache: without the manifest's registry there is no new image.
    fs::remove_file(&image).unwrap();
    let text = verb.bad(&["build", "-q", name, &format!("{}x", registry.location()), &insecure], 1);
    assert!(text.contains("404") && !image.exists(), "{text}");
}

#[test]
fn a_layer_with_other_bytes_makes_no_image() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let mut layers = two_layers();
    layers[1].blob[2048] ^= 1;
    let registry = registry(&layers);
    let insecure = format!("--insecure-registry={}", registry.host());
    let image = world.directory.path().join("out.erofs");
    let name = image.to_str().unwrap();
    let text = verb.bad(&["build", "-q", name, &registry.location(), &insecure], 1);
    assert!(text.contains("digest") && !image.exists(), "{text}");
}

/// What is in the cache stays there: a build that fails because of it would fail for ever.
#[test]
fn blobs_that_are_cached_with_other_bytes_are_fetched_once_more() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    // The configuration comes first, then a layer.
    for spared in 0..3 {
        let registry = registry(&two_layers());
        let insecure = format!("--insecure-registry={}", registry.host());
        let verb = Verb { program: &program, world: &world };
        registry.damage_after(spared, 1);
        let image = world.directory.path().join(format!("out{spared}.erofs"));
        let name = image.to_str().unwrap();
        verb.good(&["build", "-q", name, &registry.location(), &insecure]);
        let paths = String::from_utf8(verb.good(&["ls", "-R", name])).unwrap();
        assert!(MERGED.lines().all(|path| paths.contains(path)), "{paths}");
    }
}
