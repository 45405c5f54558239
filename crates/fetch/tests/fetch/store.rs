//! Objects of object stores: signatures, credentials, refusals.

use std::io::ErrorKind;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{ChunkIndex, ContentDigest, StoreSettings};

use crate::store_server::Store;
use crate::world::{World, body, check};

const LENGTH: u64 = (9 << 20) + 1234;
const END: usize = 10 << 20;

/// A store with an object, and the settings of a client that may read it.
fn s3() -> (World, Store) {
    let store = Store::start();
    store.put("/bucket/dir/image%20%2B%C3%A9.erofs", body(LENGTH), "\"one\"");
    store.allow("reader", "hidden", "session");
    let mut world = World::new();
    world.settings = settings(&store, &[("AWS_ACCESS_KEY_ID", "reader")]);
    (world, store)
}

const LOCATION: &str = "s3://bucket/dir/image%20%2Bé.erofs";

/// Settings of S3, with `others` instead of the defaults.
fn settings(store: &Store, others: &[(&str, &str)]) -> StoreSettings {
    let url = store.url();
    let defaults = [
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
        ("AWS_SESSION_TOKEN", "session"),
    ];
    defaults.into_iter().chain(others.iter().copied()).collect()
}

fn of_container(store: &Store, world: &World) -> StoreSettings {
    let file = world.directory.path().join("token");
    std::fs::write(&file, "Bearer x").unwrap();
    let credentials = format!("{}/credentials", store.url());
    [
        ("AWS_ENDPOINT_URL", store.url().as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &credentials),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
    ]
    .into_iter()
    .collect()
}

fn error(world: &World, location: &str) -> (ErrorKind, String) {
    let error = world.try_open(location, &RemoteOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains("hidden") && !text.contains("session"), "{text}");
    (error.kind(), text)
}

#[test]
fn signed_requests_bring_each_byte_once() {
    let (world, store) = s3();
    let source = world.open(LOCATION);
    thread::scope(|scope| {
        for reader in 0..4u64 {
            let source = &source;
            scope.spawn(move || check(source, reader * 1000, END));
        }
    });
    assert_eq!(store.0.sent.load(SeqCst), LENGTH, "no byte twice");
    let requests = store.0.requests.load(SeqCst);
    let mut offline = RemoteOptions::default();
    offline.offline = true;
    check(&world.try_open(LOCATION, &offline).unwrap(), 0, END);
    assert_eq!(store.0.requests.load(SeqCst), requests);
}

#[test]
fn refusals_name_the_place_and_the_remedy() {
    let (mut world, store) = s3();
    let (kind, text) = error(&world, "s3://bucket/absent");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("s3://bucket/absent: the bucket has no such key"), "{text}");
    let (kind, text) = error(&world, "s3://other/absent");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("no such bucket") && text.contains("AWS_REGION"), "{text}");
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[], "AWS_SECRET_ACCESS_KEY"),
        (&[("AWS_ACCESS_KEY_ID", "nobody")], "(AWS_ACCESS_KEY_ID) are wrong"),
        (
            &[("AWS_ACCESS_KEY_ID", "reader"), ("AWS_SECRET_ACCESS_KEY", "hidden2")],
            "SignatureDoesNotMatch",
        ),
        (&[("AWS_SKIP_SIGNATURE", "true")], "s3:GetObject"),
        (&[("AWS_SECRET_ACCESS_KEY", ""), ("AWS_PROFILE", "x")], "export-credentials"),
    ];
    for (others, wanted) in cases {
        world.settings = settings(&store, others);
        let (kind, text) = error(&world, LOCATION);
        assert_eq!(kind, ErrorKind::PermissionDenied, "{text}");
        assert!(text.contains(wanted) && text.contains("s3://bucket"), "{text}");
    }
    world.settings = settings(&store, &[("AWS_ALLOW_HTTP", "")]);
    let (kind, text) = error(&world, LOCATION);
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.contains("AWS_ALLOW_HTTP=true"), "{text}");
}

#[test]
fn a_redirect_gets_no_credentials_and_names_the_region() {
    let (world, store) = s3();
    store.set_fault(|_| {
        Some((
            "301 Moved Permanently",
            "x-amz-bucket-region: eu-west-1\r\nlocation: http://127.0.0.1:1/x\r\n",
            "PermanentRedirect",
        ))
    });
    let (_, text) = error(&world, LOCATION);
    // Who follows finds nobody there, and says so instead.
    assert!(text.contains("set AWS_REGION=eu-west-1"), "{text}");
}

#[test]
fn a_store_that_asks_for_less_is_asked_later() {
    let (world, store) = s3();
    store.set_fault(|number| match number % 4 {
        1 => Some(("503 Slow Down", "retry-after: 1\r\n", "SlowDown")),
        2 => Some(("400 Bad Request", "", "RequestTimeout")),
        _ => None,
    });
    check(&world.open(LOCATION), 0, END);
}

#[test]
fn an_object_that_changes_is_an_error_and_no_mixture() {
    let (world, store) = s3();
    let source = world.open(LOCATION);
    check(&source, 0, 1 << 20);
    store.put("/bucket/dir/image%20%2B%C3%A9.erofs", vec![7; body(LENGTH).len()], "\"two\"");
    let error = source.read_at(3 << 20, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
    check(&source, 100, 1000);
    let mut byte = [0];
    world.open(LOCATION).read_at(3 << 20, &mut byte).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn expired_credentials_are_renewed_once_for_all_readers() {
    let (mut world, store) = s3();
    world.settings = of_container(&store, &world);
    let source = world.open(LOCATION);
    check(&source, 0, 10);
    assert_eq!(store.0.given.load(SeqCst), 1);
    store.expire();
    thread::scope(|scope| {
        for reader in 1..9u64 {
            let source = &source;
            scope.spawn(move || check(source, reader << 20, 1000));
        }
    });
    assert_eq!(store.0.given.load(SeqCst), 2);
}

#[test]
fn newer_credentials_of_one_client_serve_the_others() {
    let (world, store) = s3();
    let source = world.open(LOCATION);
    check(&source, 0, 10);
    store.expire();
    store.allow("newer", "hidden2", "");
    let error = source.read_at(3 << 20, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let newer = [
        ("AWS_ACCESS_KEY_ID", "newer"),
        ("AWS_SECRET_ACCESS_KEY", "hidden2"),
        ("AWS_SESSION_TOKEN", ""),
    ];
    let world = World { settings: settings(&store, &newer), ..world };
    check(&world.open(LOCATION), 0, 10);
    check(&source, 3 << 20, 10);
}

#[test]
fn another_client_opens_with_its_own_credentials() {
    let (world, store) = s3();
    let source = world.open(LOCATION);
    let nobody = settings(&store, &[("AWS_ACCESS_KEY_ID", "nobody")]);
    let world = World { settings: nobody, ..world };
    assert_eq!(error(&world, LOCATION).0, ErrorKind::PermissionDenied);
    check(&source, 0, END);
}

#[test]
fn a_chunk_index_beside_an_object_is_found() {
    let (world, store) = s3();
    let whole = body(LENGTH);
    let digests = whole.chunks(1 << 20).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(LENGTH, 1 << 20, digests).unwrap().to_bytes();
    let digest = ContentDigest::of(&index);
    store.put("/bucket/dir/image%20%2B%C3%A9.erofs.chunk-index", index, "\"i\"");
    check(&world.open(&format!("{LOCATION}#index={digest}")), 0, END);
    let mut damaged = whole;
    damaged[5 << 20] ^= 1;
    store.put("/bucket/dir/image%20%2B%C3%A9.erofs", damaged, "\"two\"");
    let source = world.open(&format!("{LOCATION}#index={digest}"));
    source.read_at(5 << 20, &mut [0; 10]).unwrap_err();
}

#[test]
fn google_and_azure_have_their_urls_and_signatures() {
    let (mut world, store) = (World::new(), Store::start());
    store.put("/public/a%20b", body(LENGTH), "\"g\"");
    world.settings = [("STORAGE_EMULATOR_HOST", &*store.0.address)].into_iter().collect();
    check(&world.open("gs://public/a b"), 0, END);
    let secret = "aGlkZGVuIGtleSBvZiBhbiBhY2NvdW50";
    store.allow("account", secret, "");
    store.put("/bucket/a%20b", body(LENGTH), "\"a\"");
    let azure = |key: &str| -> StoreSettings {
        [
            ("AZURE_STORAGE_ENDPOINT", &*store.url()),
            ("AZURE_ALLOW_HTTP", "true"),
            ("AZURE_STORAGE_KEY", key),
        ]
        .into_iter()
        .collect()
    };
    world.settings = azure(secret);
    check(&world.open("az://account/bucket/a b"), 0, END);
    world.settings = azure("d3Jvbmc=");
    let (kind, text) = error(&world, "az://account/bucket/a b");
    assert_eq!(kind, ErrorKind::PermissionDenied);
    assert!(text.contains("(AZURE_STORAGE_KEY) are wrong"), "{text}");
}
