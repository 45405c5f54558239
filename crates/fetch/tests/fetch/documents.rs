//! Documents of registries that are wrong, and registries that mislead: each is an error with a
//! name, in time, and no request goes where it must not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{CHUNK_INDEX_MEDIA_TYPE, ChunkIndex, ContentDigest};

use crate::wire::{Answer, Wire};
use crate::world::{World, body};

const LENGTH: u64 = 3_000_000;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A manifest with these layers.
fn manifest(layers: &str) -> String {
    format!(r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","layers":[{layers}]}}"#)
}

fn layer(media_type: &str, digest: &str, size: &str, more: &str) -> String {
    format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size}{more}}}"#)
}

fn erofs(digest: &str, size: &str) -> String {
    manifest(&layer("application/vnd.erofs", digest, size, ""))
}

/// A name, a media type and the bytes.
type Document = (&'static str, &'static str, Vec<u8>);

/// Documents under the tag.
fn documents(blob: &str) -> Vec<Document> {
    let mut all = malformed(blob);
    all.extend(misleading(blob));
    all.extend(indexes(blob));
    for (name, bytes) in chunk_indexes() {
        let digest = ContentDigest::of(&bytes).to_string();
        all.push((name, MANIFEST, index_layer(blob, &digest, &bytes.len().to_string())));
    }
    all
}

/// A manifest whose layer has its chunk index in another one.
fn index_layer(blob: &str, digest: &str, size: &str) -> Vec<u8> {
    let image = layer("application/vnd.erofs", blob, &LENGTH.to_string(), "");
    let index = layer(CHUNK_INDEX_MEDIA_TYPE, digest, size, "");
    manifest(&format!("{image},{index}")).into_bytes()
}

fn malformed(blob: &str) -> Vec<Document> {
    let right = erofs(blob, &LENGTH.to_string());
    vec![
        ("nothing", MANIFEST, Vec::new()),
        ("no JSON", MANIFEST, b"<html>".to_vec()),
        ("null", MANIFEST, b"null".to_vec()),
        ("a list", MANIFEST, b"[]".to_vec()),
        ("a number", MANIFEST, b"1e999".to_vec()),
        ("no UTF-8", MANIFEST, b"{\"layers\":\"\xff\xfe\"}".to_vec()),
        ("cut", MANIFEST, right.as_bytes()[..right.len() - 2].to_vec()),
        ("deep", MANIFEST, [vec![b'['; 100_000], vec![b']'; 100_000]].concat()),
        ("5 MiB", MANIFEST, [vec![b' '; 5 << 20], right.clone().into_bytes()].concat()),
        ("no layers", MANIFEST, br#"{"schemaVersion":2}"#.to_vec()),
        ("an empty list of layers", MANIFEST, manifest("").into_bytes()),
        ("layers of text", MANIFEST, br#"{"schemaVersion":2,"layers":"all"}"#.to_vec()),
    ]
}

fn misleading(blob: &str) -> Vec<Document> {
    let size = LENGTH.to_string();
    let none = ContentDigest::of(b"none").to_string();
    let erofs_layer = layer("application/vnd.erofs", blob, &size, "");
    vec![
        (
            "another kind of layer",
            MANIFEST,
            manifest(&layer("application/x", blob, &size, "")).into_bytes(),
        ),
        (
            "no size",
            MANIFEST,
            manifest(&format!(r#"{{"mediaType":"application/vnd.erofs","digest":"{blob}"}}"#))
                .into_bytes(),
        ),
        (
            "no digest",
            MANIFEST,
            manifest(r#"{"mediaType":"application/vnd.erofs","size":5}"#).into_bytes(),
        ),
        ("a negative size", MANIFEST, erofs(blob, "-1").into_bytes()),
        ("a size of text", MANIFEST, erofs(blob, "\"5\"").into_bytes()),
        ("a fractional size", MANIFEST, erofs(blob, "5.5").into_bytes()),
        ("the largest size", MANIFEST, erofs(blob, &u64::MAX.to_string()).into_bytes()),
        ("a size beyond 64 bits", MANIFEST, erofs(blob, "99999999999999999999").into_bytes()),
        ("more than 16 TiB", MANIFEST, erofs(blob, "17592186044417").into_bytes()),
        ("a size that is too small", MANIFEST, erofs(blob, "2000000").into_bytes()),
        ("a size that is too large", MANIFEST, erofs(blob, "4000000").into_bytes()),
        (
            "a digest of another kind",
            MANIFEST,
            erofs(&format!("sha512:{}", "0".repeat(128)), &size).into_bytes(),
        ),
        ("a short digest", MANIFEST, erofs("sha256:00", &size).into_bytes()),
        (
            "a digest that is a path",
            MANIFEST,
            erofs("sha256:../../../manifests/v1", &size).into_bytes(),
        ),
        ("a blob that is missing", MANIFEST, erofs(&none, &size).into_bytes()),
        ("two images", MANIFEST, manifest(&format!("{erofs_layer},{erofs_layer}")).into_bytes()),
        (
            "10,000 layers",
            MANIFEST,
            manifest(&vec![erofs_layer.clone(); 10_000].join(",")).into_bytes(),
        ),
    ]
}

fn indexes(blob: &str) -> Vec<Document> {
    let size = LENGTH.to_string();
    let entry = |digest: &str| {
        let text = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{MANIFEST}","digest":"{digest}","size":5,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
        );
        text.into_bytes()
    };
    let none = ContentDigest::of(b"none").to_string();
    let range = |text: &str| {
        let more = format!(
            r#","annotations":{{"org.erofs.chunk-index.range":"{text}","org.erofs.chunk-index.digest":"{none}"}}"#
        );
        manifest(&layer("application/vnd.erofs", blob, &size, &more)).into_bytes()
    };
    vec![
        ("no entries", INDEX, br#"{"schemaVersion":2,"manifests":[]}"#.to_vec()),
        ("an entry that is missing", INDEX, entry(&none)),
        ("an entry with other bytes", INDEX, entry(&ContentDigest::of(b"lie").to_string())),
        ("an index in an index", INDEX, entry(&ContentDigest::of(&entry(&none)).to_string())),
        ("no chunk index there", MANIFEST, range("0:9")),
        ("a chunk index without bytes", MANIFEST, range("9:9")),
        ("a chunk index backwards", MANIFEST, range("2000000:9")),
        ("a chunk index behind the end", MANIFEST, range("3000001:3000009")),
        ("a chunk index that is too long", MANIFEST, range("0:99999999999")),
        ("a chunk index at a word", MANIFEST, range("somewhere")),
        ("a chunk index that overflows", MANIFEST, range("18446744073709551616:5")),
        ("a chunk index that is missing", MANIFEST, index_layer(blob, &none, "5")),
        (
            "a chunk index with another digest",
            MANIFEST,
            index_layer(blob, &ContentDigest::of(b"lie").to_string(), "5"),
        ),
    ]
}

/// Chunk indexes that are wrong; the layout is in docs/remote.md.
fn chunk_indexes() -> Vec<(&'static str, Vec<u8>)> {
    let object = body(LENGTH);
    let digests = object.chunks(1 << 20).map(ContentDigest::of).collect();
    let right = ChunkIndex::uniform(LENGTH, 1 << 20, digests).unwrap().to_bytes();
    let changed = |at: usize, value: u8| {
        let mut bytes = right.clone();
        bytes[at] ^= value;
        bytes
    };
    let longer = [&right[..], &[0; 5]].concat();
    let mut swapped = right.clone();
    swapped[32..].rotate_left(48);
    vec![
        ("an empty chunk index", Vec::new()),
        ("the magic number", changed(0, 1)),
        ("the version", changed(4, 2)),
        ("the compression", changed(5, 1)),
        ("the flags", changed(6, 0x80)),
        ("the size", changed(12, 0xff)),
        ("the number of chunks", changed(19, 0xff)),
        ("the hash", changed(20, 7)),
        ("the size of a hash", changed(21, 1)),
        ("the reserved bytes", changed(31, 1)),
        ("the first offset", changed(32, 1)),
        ("the second offset", changed(32 + 48 + 7, 0x80)),
        ("a hash of the first chunk", changed(32 + 20, 1)),
        ("entries in another order", swapped),
        ("a byte less", right[..right.len() - 1].to_vec()),
        ("the header only", right[..32].to_vec()),
        ("more behind it", longer),
    ]
}

/// Opens and reads; the error, which must come in time.
fn error(world: &World, name: &str, wire: &Wire) -> String {
    let mut options = RemoteOptions::default();
    options.insecure_registries = vec![wire.host.clone()];
    let started_at = Instant::now();
    let result = world.try_open(&format!("oci://{}/a/b:v1", wire.host), &options);
    let result = result.and_then(|source| source.read_at(0, &mut vec![0; 3_000_000]));
    let elapsed = started_at.elapsed();
    let text = result.map_or_else(|error| error.to_string(), |_| String::new());
    assert!(elapsed < Duration::from_secs(20), "{name}: {elapsed:?}");
    assert!(text.contains(&wire.host), "{name}: {text:?}");
    text
}

#[test]
fn documents_that_are_wrong_are_errors() {
    let object = body(LENGTH);
    let blob = ContentDigest::of(&object).to_string();
    let mut world = World::new();
    world.timeout_seconds = 2;
    let client = world.client();
    let mut count = 0;
    for (name, media_type, document) in documents(&blob) {
        let mut blobs = HashMap::from([(blob.clone(), object.clone())]);
        for (_, bytes) in chunk_indexes() {
            blobs.insert(ContentDigest::of(&bytes).to_string(), bytes);
        }
        blobs.insert(ContentDigest::of(b"lie").to_string(), b"lye".to_vec());
        let nested = ContentDigest::of(b"none").to_string();
        let nested = documents(&nested).into_iter().find(|one| one.0 == "an entry that is missing");
        let nested = nested.unwrap().2;
        let wire = Wire::start(move |request| {
            let last = request.path.rsplit('/').next().unwrap();
            if request.path == "/v2/a/b/manifests/v1" {
                return Answer::new("200 OK", &[("content-type", media_type)], &document);
            }
            if last == ContentDigest::of(&nested).to_string() {
                return Answer::new("200 OK", &[("content-type", INDEX)], &nested);
            }
            match blobs.get(last) {
                Some(bytes) => Answer::part(request, bytes),
                None => Answer::new("404 Not Found", &[], b""),
            }
        });
        let text = error(&world, name, &wire);
        eprintln!("{name}: {text}");
        count += 1;
    }
    assert!(count > 55, "{count} documents");
    assert_eq!(client.reconnects(), 0, "the fetcher has not ended");
}

/// Challenges, and what the token server answers. `HOST` is the registry itself.
const TOKENS: &[(&str, &str, &str, &[u8])] = &[
    ("a metadata server", "Bearer realm=\"http://169.254.169.254/t\"", "200 OK", b""),
    ("a metadata server with TLS", "Bearer realm=\"https://169.254.169.254/t\"", "200 OK", b""),
    ("a private address", "Bearer realm=\"https://10.0.0.1/t\"", "200 OK", b""),
    ("the loopback of IPv6", "Bearer realm=\"https://[::1]/t\"", "200 OK", b""),
    ("an address in another form", "Bearer realm=\"https://2130706433/t\"", "200 OK", b""),
    ("a file", "Bearer realm=\"file:///etc/passwd\"", "200 OK", b""),
    ("no URL", "Bearer realm=\"token\"", "200 OK", b""),
    ("no realm", "Bearer service=\"x\"", "200 OK", b""),
    ("an open quote", "Bearer realm=\"http://HOST/t", "200 OK", b""),
    ("another scheme", "Digest realm=\"x\"", "200 OK", b""),
    ("no scheme", "", "200 OK", b""),
    ("a login that nobody has", "Basic realm=\"x\"", "200 OK", b""),
    ("no token", "Bearer realm=\"http://HOST/t\"", "200 OK", b"{}"),
    ("no document", "Bearer realm=\"http://HOST/t\"", "200 OK", b"token"),
    (
        "a token with a line",
        "Bearer realm=\"http://HOST/t\"",
        "200 OK",
        br#"{"token":"a\r\nb: c"}"#,
    ),
    (
        "a time of text",
        "Bearer realm=\"http://HOST/t\"",
        "200 OK",
        br#"{"token":"a","expires_in":"x"}"#,
    ),
    (
        "a token that is refused",
        "Bearer realm=\"http://HOST/t\"",
        "200 OK",
        br#"{"token":"a","expires_in":0}"#,
    ),
    ("a refusal", "Bearer realm=\"http://HOST/t\"", "403 Forbidden", b""),
    ("a server that fails", "Bearer realm=\"http://HOST/t\"", "500 Error", b""),
];

#[test]
fn token_servers_that_mislead_are_errors() {
    let mut world = World::new();
    world.timeout_seconds = 2;
    let _client = world.client();
    for (name, challenge, status, token) in TOKENS {
        let wire = Wire::start(move |request| {
            if request.path.starts_with("/t?") {
                return Answer::new(status, &[], token);
            }
            let challenge = challenge.replace("HOST", &request.host);
            Answer::new("401 Unauthorized", &[("www-authenticate", &challenge)], b"")
        });
        let text = error(&world, name, &wire);
        eprintln!("{name}: {text} ({} requests)", wire.requests());
        assert!(wire.requests() <= 40, "{name}: {} requests", wire.requests());
    }
}
