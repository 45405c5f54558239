//! `--offline`: what is in the cache is served without a server, with the chunk index that was used
//! when it was fetched.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrofs_image::ImageSource;
use ferrofs_remote::cache::CacheDirectory;
use ferrofs_remote::protocol::{RemoteOptions, Verification, VerifyMode};
use ferrofs_remote::{ChunkIndex, ContentDigest, FetchClient, RemoteSource};

use crate::command::{Verb, data, ferrofs};
use crate::mount::{local_tree, mount};
use crate::registry::Registry;
use crate::wire::{Answer, Wire};
use crate::world::{World, body, check};

const LENGTH: u64 = 5 << 20;

fn offline() -> RemoteOptions {
    let mut options = RemoteOptions::default();
    options.offline = true;
    options
}

fn open(client: &Arc<FetchClient>, url: &str, options: &RemoteOptions) -> RemoteSource {
    let timeout = Duration::from_secs(60);
    RemoteSource::open(client, &url.parse().unwrap(), options, timeout).unwrap()
}

/// An object with a chunk index beside it, whose server sends a wrong byte once it is told to.
fn indexed() -> (String, Arc<AtomicBool>) {
    let object = body(LENGTH);
    let digests = object.chunks(1 << 20).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(LENGTH, 1 << 20, digests).unwrap().to_bytes();
    let digest = ContentDigest::of(&index);
    let is_wrong = Arc::new(AtomicBool::new(false));
    let wrong = Arc::clone(&is_wrong);
    let wire = Wire::start(move |request| {
        if request.path.ends_with(".chunk-index") {
            return Answer::part(request, &index);
        }
        let mut answer = Answer::part(request, &object);
        if wrong.load(Ordering::SeqCst) {
            answer.body[0] ^= 1;
        }
        answer
    });
    (format!("http://{}/image.erofs#index={digest}", wire.host), is_wrong)
}

#[test]
fn an_object_that_was_opened_offline_first_is_verified_for_those_who_open_it_later() {
    let (url, is_wrong) = indexed();
    let world = World::new();
    check(&world.open(&url), 0, 100);
    let client = world.client();
    let first = open(&client, &url, &offline());
    assert_eq!(first.state().verification, Verification::ChunkIndex);
    check(&first, 0, 100);
    let other = world.client();
    let later = open(&other, &url, &RemoteOptions::default());
    assert_eq!(later.state().verification, Verification::ChunkIndex);
    is_wrong.store(true, Ordering::SeqCst);
    let error = later.read_at(3 << 20, &mut [0; 100]).unwrap_err();
    assert!(error.to_string().contains("do not match the digest"), "{error}");
    is_wrong.store(false, Ordering::SeqCst);
    check(&later, 0, 6 << 20);
    check(&first, 0, 6 << 20);
}

#[test]
fn a_chunk_index_that_is_missing_or_damaged_in_the_cache_opens_nothing_offline() {
    let (url, _) = indexed();
    let world = World::new();
    check(&world.open(&url), 0, 6 << 20);
    let cache = CacheDirectory::open(&world.cache()).unwrap();
    let entry = cache.list().unwrap().remove(0);
    let path = world.cache().join("v1").join(entry.key_text()).join("chunk-index");
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = world.try_open(&url, &offline()).unwrap_err().to_string();
    assert!(error.contains("the chunk index of") && error.contains("in the cache"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = world.try_open(&url, &offline()).unwrap_err().to_string();
    assert!(error.contains("it is not in the cache"), "{error}");
    // Opening it with the server mends that.
    check(&world.open(&url), 0, 100);
    check(&world.try_open(&url, &offline()).unwrap(), 0, 6 << 20);
}

#[test]
fn a_chunk_index_that_is_ignored_is_not_used_offline_either() {
    let (url, _) = indexed();
    let world = World::new();
    let mut options = RemoteOptions::default();
    options.verify = VerifyMode::Off;
    let source = world.try_open(&url, &options).unwrap();
    assert_eq!(source.state().verification, Verification::None);
    check(&source, 0, 6 << 20);
    options.offline = true;
    let source = world.try_open(&url, &options).unwrap();
    assert_eq!(source.state().verification, Verification::None);
    check(&source, 0, 6 << 20);
    // Chunks that were verified are others.
    world.try_open(&url, &offline()).unwrap_err();
}

#[test]
fn a_layer_of_a_registry_is_read_without_a_socket_to_it() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let local = data("lz4.erofs");
    let image = fs::read(&local).unwrap();
    let digests = image.chunks(4096).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(image.len() as u64, 4096, digests).unwrap();
    let local = local.to_str().unwrap();
    let listed = verb.good(&["ls", "-R", local]);
    for (registry, is_indexed) in
        [(Registry::start_indexed(image.clone(), &index), true), (Registry::start(image), false)]
    {
        let (location, insecure) =
            (registry.location(), format!("--insecure-registry={}", registry.host()));
        let text = verb.bad(&["ls", &location, "--offline"], 1);
        assert!(text.contains(&location) && text.contains("it is not in the cache"), "{text}");
        verb.good(&["check", &location, &insecure]);
        let connections = registry.connections();
        assert!(connections > 0);
        assert!(verb.good(&["ls", "-R", &location, "--offline"]) == listed);
        verb.good(&["check", &location, "--offline"]);
        if is_indexed {
            verb.good(&["check", &location, "--offline", "--verify=require"]);
        } else {
            let text = verb.bad(&["check", &location, "--offline", "--verify=require"], 1);
            assert!(text.contains("chunk index"), "{text}");
        }
        if let Some(mounted) = mount(&world, &location, &["-o", "offline"]) {
            assert!(mounted.tree() == local_tree(&world, "lz4.erofs").unwrap());
        }
        assert_eq!(registry.connections(), connections);
    }
}
