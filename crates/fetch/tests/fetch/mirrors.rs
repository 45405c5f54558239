//! Mirrors and registries without TLS, by `registries.conf`.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::Ordering;

use ferrofs_remote::{ChunkIndex, ContentDigest};

use crate::command::{Verb, data, ferrofs};
use crate::mount::{mount, mount_with_output};
use crate::registry::Registry;
use crate::world::World;

/// What all of them are called; there is no such host.
const LOCATION: &str = "oci://images.invalid/team/image:v1";

fn indexed(image: Vec<u8>) -> Registry {
    let digests = image.chunks(1 << 20).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(image.len() as u64, 1 << 20, digests).unwrap();
    Registry::start_indexed(image, &index)
}

/// An image of several chunks.
fn image() -> Vec<u8> {
    let mut image = fs::read(data("lz4.erofs")).unwrap();
    image.resize(9 << 20, 7);
    image
}

/// A world whose `registries.conf` has the registry at `origin`, and these mirrors.
fn world(origin: &str, mirrors: &[&str]) -> World {
    let mut text = format!(
        "[[registry]]\nprefix = \"images.invalid/team\"\nlocation = \"{origin}/some\"\ninsecure = true\n"
    );
    for mirror in mirrors {
        let table = "[[registry.mirror]]";
        write!(text, "{table}\nlocation = \"{mirror}/some\"\ninsecure = true\n").unwrap();
    }
    configured(&text)
}

fn configured(text: &str) -> World {
    let mut world = World::new();
    let path = world.directory.path().join("registries.conf");
    fs::write(&path, text).unwrap();
    world.environment.push(("CONTAINERS_REGISTRIES_CONF", path));
    world
}

/// Downloads the image, and compares it.
fn pull(world: &World, wanted: &[u8]) {
    let Some(program) = ferrofs() else { return };
    let file = world.directory.path().join("pulled");
    let verb = Verb { program: &program, world };
    verb.good(&["pull", "-f", LOCATION, file.to_str().unwrap()]);
    assert!(fs::read(file).unwrap() == wanted);
}

fn sent(registry: &Registry) -> u64 {
    registry.0.sent.load(Ordering::SeqCst)
}

#[test]
fn a_mirror_serves_an_image_and_the_origin_nothing() {
    let (origin, mirror) = (indexed(image()), indexed(image()));
    let world = world(origin.host(), &[mirror.host()]);
    if ferrofs().is_none() {
        return;
    }
    pull(&world, &image());
    assert!(sent(&mirror) >= 9 << 20);
    assert_eq!((sent(&origin), origin.tokens()), (0, 0));
}

#[test]
fn what_a_mirror_does_not_have_comes_from_the_next_one_and_from_the_origin() {
    if ferrofs().is_none() {
        return;
    }
    // One that is not there, and one that has nothing.
    let empty = indexed(image());
    empty.forget_all();
    let (second, origin) = (indexed(image()), indexed(image()));
    let all = world(origin.host(), &["127.0.0.1:1", empty.host(), second.host()]);
    pull(&all, &image());
    assert_eq!(sent(&origin), 0);
    let none = world(origin.host(), &["127.0.0.1:1", empty.host()]);
    pull(&none, &image());
    assert!(sent(&origin) >= 9 << 20);
    // The origin is away, and the mirror has all.
    pull(&world("127.0.0.1:1", &[second.host()]), &image());
}

#[test]
fn wrong_bytes_of_a_mirror_are_fetched_from_the_origin() {
    if ferrofs().is_none() {
        return;
    }
    let (origin, mirror) = (indexed(image()), indexed(image()));
    mirror.damage(u64::MAX);
    pull(&world(origin.host(), &[mirror.host()]), &image());
    assert!(sent(&mirror) > 0 && sent(&origin) > 0, "{} {}", sent(&mirror), sent(&origin));
    // Without a chunk index the digest of the layer tells it.
    let (origin, mirror) = (Registry::start(image()), Registry::start(image()));
    mirror.damage(3);
    pull(&world(origin.host(), &[mirror.host()]), &image());
    // Damage of the origin remains an error.
    let (origin, mirror) = (indexed(image()), indexed(image()));
    origin.damage(u64::MAX);
    mirror.damage(u64::MAX);
    let world = world(origin.host(), &[mirror.host()]);
    let program = ferrofs().unwrap();
    let verb = Verb { program: &program, world: &world };
    let file = world.directory.path().join("pulled");
    let text = verb.bad(&["pull", LOCATION, file.to_str().unwrap()], 1);
    assert!(text.contains("digest") && !file.exists(), "{text}");
}

/// What a registry says about the manifest of a tag was not read.
#[test]
fn a_manifest_without_the_digest_that_its_server_states_is_not_used() {
    let Some(program) = ferrofs() else { return };
    let (origin, mirror) = (indexed(image()), indexed(image()));
    mirror.0.misstates_digests.store(true, Ordering::SeqCst);
    // Without the origin, nobody has the image.
    let alone = world("127.0.0.1:1", &[mirror.host()]);
    let words = ["info", LOCATION, "--fetch-timeout=3"];
    Verb { program: &program, world: &alone }.bad(&words, 1);
    pull(&world(origin.host(), &[mirror.host()]), &image());
    assert!(sent(&mirror) < 1 << 20 && sent(&origin) >= 9 << 20);
    origin.0.misstates_digests.store(true, Ordering::SeqCst);
    let world = world(origin.host(), &[]);
    let text = Verb { program: &program, world: &world }.bad(&words, 1);
    assert!(text.contains("the registry sent bytes with the digest"), "{text}");
}

#[test]
fn a_blocked_registry_and_a_malformed_file_are_errors() {
    let Some(program) = ferrofs() else { return };
    for (text, part) in [
        ("[[registry]]\nlocation = \"images.invalid\"\nblocked = true\n", "registries.conf blocks"),
        ("[[registry]]\nlocation = 1\n", "registries.conf: line 2"),
    ] {
        let world = configured(text);
        let verb = Verb { program: &program, world: &world };
        let error = verb.bad(&["info", LOCATION], 1);
        assert!(error.contains(part), "{error}");
        let image = data("lz4.erofs");
        let error = verb.bad(&["push", image.to_str().unwrap(), LOCATION], 1);
        assert!(error.contains(part), "{error}");
        // Other locations need no such file.
        verb.good(&["info", image.to_str().unwrap()]);
    }
}

#[test]
fn images_are_published_at_the_origin() {
    let Some(program) = ferrofs() else { return };
    let (origin, mirror) = (Registry::start(image()), Registry::start(image()));
    let world = world(origin.host(), &[mirror.host()]);
    let verb = Verb { program: &program, world: &world };
    let file = data("plain.erofs");
    verb.good(&["push", file.to_str().unwrap(), "oci://images.invalid/team/image:new"]);
    assert!(mirror.0.written.lock().unwrap().is_empty());
    verb.good(&["check", "oci://images.invalid/team/image:new", "--verify=require"]);
}

#[test]
fn explain_and_stats_name_the_mirror() {
    let (origin, mirror) = (indexed(image()), indexed(image()));
    let world = world(origin.host(), &[mirror.host()]);
    let Some(mounted) = mount(&world, LOCATION, &[]) else { return };
    let program = ferrofs().unwrap();
    let stats = std::process::Command::new(&program)
        .args(["stats", "--json"])
        .arg(mounted.path())
        .output()
        .unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    let count = stats["remote"]["fetcher"]["mirror_requests"].as_u64();
    assert!(count.is_some_and(|count| count >= 2), "{stats}");
    let (_mounted, explained) = mount_with_output(&world, LOCATION, &["--explain"]).unwrap();
    let named = explained.lines().find(|line| line.starts_with("named by:")).unwrap();
    assert!(named.ends_with(mirror.host()), "{explained}");
    assert_eq!(sent(&origin), 0);
}
