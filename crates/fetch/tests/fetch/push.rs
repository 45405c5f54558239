//! `ferrofs push`, read back by the other verbs.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ferrofs_remote::{ChunkIndex, ContentDigest};
use serde_json::Value;

use crate::command::{Verb, data, ferrofs};
use crate::registry::Registry;
use crate::world::World;

/// A world with an empty registry.
struct Publisher {
    program: PathBuf,
    world: World,
    registry: Registry,
}

impl Publisher {
    /// `None` if the command was not built.
    fn new() -> Option<Self> {
        let registry = Registry::start(b"some other image".to_vec());
        Some(Self { program: ferrofs()?, world: World::new(), registry })
    }

    fn verb(&self) -> Verb<'_> {
        Verb { program: &self.program, world: &self.world }
    }

    fn location(&self, tag: &str) -> String {
        format!("oci://{}/some/image:{tag}", self.registry.host())
    }

    fn insecure(&self) -> String {
        format!("--insecure-registry={}", self.registry.host())
    }

    fn push(&self, image: &str, tag: &str) -> Value {
        let arguments = ["push", "--json", image, &self.location(tag), &self.insecure()];
        serde_json::from_slice(&self.verb().good(&arguments)).unwrap()
    }

    /// Reads every byte with the index, and compares the download.
    fn check(&self, tag: &str, wanted: &[u8]) {
        let (location, insecure) = (self.location(tag), self.insecure());
        self.verb().good(&["check", &location, &insecure, "--verify=require"]);
        let file = self.world.directory.path().join("pulled");
        let name = file.to_str().unwrap();
        self.verb().good(&["pull", "-f", &location, name, &insecure]);
        assert!(fs::read(&file).unwrap() == wanted);
    }

    /// Requests that wrote, by their methods.
    fn written(&self) -> Vec<String> {
        let written = std::mem::take(&mut *self.registry.0.written.lock().unwrap());
        written.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

fn with_index(image: &[u8]) -> Vec<u8> {
    let digests = image.chunks(1 << 20).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(image.len() as u64, 1 << 20, digests).unwrap();
    [image, &index.to_bytes()].concat()
}

#[test]
fn a_published_image_is_verified_chunk_by_chunk() {
    let Some(publisher) = Publisher::new() else { return };
    let path = data("lz4.erofs");
    let image = fs::read(&path).unwrap();
    let report = publisher.push(path.to_str().unwrap(), "new");
    assert_eq!(report["chunk_index"], "appended");
    let blob = with_index(&image);
    assert_eq!(report["layer"], ContentDigest::of(&blob).to_string());
    assert_eq!(report["bytes"], blob.len());
    publisher.check("new", &blob);
    // Blob, configuration, manifest: each is begun and sent.
    assert_eq!(publisher.written(), ["post", "put", "post", "put", "put"]);
    // Again: the registry has the blobs, and the manifest is the same.
    let again = publisher.push(path.to_str().unwrap(), "other");
    assert_eq!(again["digest"], report["digest"]);
    assert_eq!(again["uploaded_bytes"], 0);
    assert_eq!(publisher.written(), ["put"]);
    let by_digest =
        format!("{}@{}", publisher.location("other"), again["digest"].as_str().unwrap());
    let text = publisher.verb().bad(&["push", path.to_str().unwrap(), &by_digest], 2);
    assert!(text.contains("oci://HOST/NAME:TAG"), "{text}");
}

#[test]
fn the_last_line_of_the_progress_of_a_push_reports_all_of_it() {
    let Some(publisher) = Publisher::new() else { return };
    let path = data("lz4.erofs");
    // The second time, the registry has everything, and nothing is sent.
    for tag in ["new", "again"] {
        let (location, insecure) = (publisher.location(tag), publisher.insecure());
        let words = ["push", "--progress=json", path.to_str().unwrap(), &location, &insecure];
        let output = publisher.verb().run(&words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["done"], last["total"], "{text}");
        assert_eq!(last["done"], 2 * fs::metadata(&path).unwrap().len(), "{text}");
    }
}

#[test]
fn an_embedded_chunk_index_is_used_and_must_fit() {
    let Some(publisher) = Publisher::new() else { return };
    let mut blob = with_index(&fs::read(data("lz4.erofs")).unwrap());
    let file = publisher.world.directory.path().join("indexed.erofs");
    fs::write(&file, &blob).unwrap();
    let report = publisher.push(file.to_str().unwrap(), "new");
    assert_eq!(report["chunk_index"], "embedded");
    publisher.check("new", &blob);
    publisher.written();
    let end = blob.len();
    blob[end - 1] ^= 1;
    fs::write(&file, &blob).unwrap();
    let arguments =
        ["push", file.to_str().unwrap(), &publisher.location("x"), &publisher.insecure()];
    let text = publisher.verb().bad(&arguments, 1);
    assert!(text.contains("the image is damaged"), "{text}");
    assert!(publisher.written().is_empty());
}

#[test]
fn uploads_are_repeated_and_cut_into_pieces() {
    let Some(publisher) = Publisher::new() else { return };
    // An image with a lot behind it.
    let mut image = fs::read(data("lz4.erofs")).unwrap();
    image.resize(9 << 20, 7);
    let file = publisher.world.directory.path().join("long.erofs");
    fs::write(&file, &image).unwrap();
    let state = &publisher.registry.0;
    state.failures.store(3, Ordering::SeqCst);
    state.longest.store(5 << 20, Ordering::SeqCst);
    publisher.push(file.to_str().unwrap(), "long");
    publisher.check("long", &with_index(&image));
    let written = publisher.written();
    let count = |method: &str| written.iter().filter(|one| *one == method).count();
    // As a whole, then 16 MiB and 4 MiB at a time; the last piece is empty.
    assert_eq!(count("patch"), 3, "{written:?}");
    state.failures.store(u64::MAX, Ordering::SeqCst);
    let world = World { timeout_seconds: 1, ..World::new() };
    world.client();
    let verb = Verb { program: &publisher.program, world: &world };
    let image = data("plain.erofs");
    let arguments =
        ["push", image.to_str().unwrap(), &publisher.location("x"), &publisher.insecure()];
    let text = verb.bad(&arguments, 1);
    assert!(text.contains("503"), "{text}");
}

#[test]
fn only_images_that_are_files_are_published() {
    let Some(publisher) = Publisher::new() else { return };
    let (location, insecure) = (publisher.location("x"), publisher.insecure());
    let file = publisher.world.directory.path().join("text");
    fs::write(&file, vec![b'x'; 5000]).unwrap();
    for (image, part) in [
        (file.to_str().unwrap(), "magic number"),
        ("http://host/x.erofs", "the image is remote"),
        ("/nowhere/image", "No such file"),
    ] {
        let text = publisher.verb().bad(&["push", image, &location, &insecure], 1);
        assert!(text.contains(part), "{image}: {text}");
    }
    let image = data("plain.erofs");
    let text = publisher.verb().bad(&["push", image.to_str().unwrap(), "s3://bucket/x"], 2);
    assert!(text.contains("not a registry"), "{text}");
    assert!(publisher.written().is_empty());
}

/// The chunk index lies at the end of the blob; such a registry sends all of it.
#[test]
fn an_image_of_a_registry_without_ranges_is_verified() {
    let Some(publisher) = Publisher::new() else { return };
    let mut image = fs::read(data("lz4.erofs")).unwrap();
    image.resize(9 << 20, 7);
    let file = publisher.world.directory.path().join("long.erofs");
    fs::write(&file, &image).unwrap();
    publisher.push(file.to_str().unwrap(), "long");
    publisher.registry.forget_ranges();
    let before = publisher.registry.0.sent.load(Ordering::SeqCst);
    publisher.check("long", &with_index(&image));
    let sent = publisher.registry.0.sent.load(Ordering::SeqCst) - before;
    // For each opening, and once for the data.
    assert!(sent < 40 << 20, "{sent}");
}

/// Of a container image that was converted: its entry point is that of the image which is published.
#[test]
fn the_configuration_of_a_container_image_is_published() {
    let Some(publisher) = Publisher::new() else { return };
    let directory = publisher.world.directory.path();
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let config = r#"{"os":"linux","architecture":"riscv64","config":{"Entrypoint":["/app"]}}"#;
    let (config, bad) = (write("config", config), write("bad", "{}"));
    let (image, location) = (data("lz4.erofs"), publisher.location("new"));
    let image = image.to_str().unwrap();
    let (insecure, size) = (publisher.insecure(), "--cache-size=64m");
    let push = ["push", image, &location, &insecure, size, "--container-config"];
    publisher.verb().good(&[&push[..], &[&config]].concat());
    let parse = |path: &str| -> Value {
        serde_json::from_slice(&publisher.registry.document(path)).unwrap()
    };
    let manifest = parse("manifests/new");
    let published = parse(&format!("blobs/{}", manifest["config"]["digest"].as_str().unwrap()));
    assert_eq!(published["config"]["Entrypoint"][0], "/app");
    assert_eq!(published["architecture"], "riscv64");
    assert_eq!(published["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    publisher.check("new", &with_index(&fs::read(data("lz4.erofs")).unwrap()));
    let text = publisher.verb().bad(&[&push[..], &[&bad]].concat(), 1);
    assert!(text.contains("bad: not the configuration of a container image"), "{text}");
}

/// The token was accepted at first, as that of a long upload is.
#[test]
fn a_token_that_is_refused_in_the_middle_of_a_blob_is_renewed() {
    let Some(publisher) = Publisher::new() else { return };
    let path = data("lz4.erofs");
    let state = &publisher.registry.0;
    state.refusals.store(2, Ordering::SeqCst);
    publisher.push(path.to_str().unwrap(), "new");
    assert_eq!(publisher.registry.tokens(), 3);
    publisher.check("new", &with_index(&fs::read(&path).unwrap()));
    // Not for ever.
    publisher.registry.forget_all();
    state.refusals.store(u64::MAX, Ordering::SeqCst);
    let words = ["push", path.to_str().unwrap(), &publisher.location("x"), &publisher.insecure()];
    let text = publisher.verb().bad(&words, 1);
    assert!(text.contains("401"), "{text}");
    let refused = u64::MAX - state.refusals.load(Ordering::SeqCst);
    assert!((2..10).contains(&refused), "{refused}");
}

#[test]
fn a_push_keeps_to_its_time_limit() {
    let Some(publisher) = Publisher::new() else { return };
    publisher.registry.0.failures.store(u64::MAX, Ordering::SeqCst);
    let (path, location, insecure) =
        (data("plain.erofs"), publisher.location("x"), publisher.insecure());
    let started_at = std::time::Instant::now();
    let words = ["push", path.to_str().unwrap(), &location, &insecure, "--fetch-timeout=2"];
    let text = publisher.verb().bad(&words, 1);
    assert!(text.contains("503"), "{text}");
    // The fetcher has 20 s.
    assert!(started_at.elapsed().as_secs() < 12, "{:?}", started_at.elapsed());
}
