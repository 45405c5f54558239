//! Credentials that are given to a machine or a workload: of instances, web identities, directories and
//! service accounts. All services are on loopback.

use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use ferrofs_remote::protocol::RemoteOptions;

use crate::command::skip;
use crate::store_server::Store;
use crate::world::{World, body, check};

const LENGTH: u64 = (2 << 20) + 77;

/// Opens an object with these settings and reads it; the credentials that were given meanwhile.
fn given(location: &str, settings: impl Fn(&Store, &World) -> Vec<(&'static str, String)>) -> u64 {
    let store = Store::start();
    store.put("/bucket/image.erofs", body(LENGTH), "\"one\"");
    let mut world = World::new();
    let settings = settings(&store, &world);
    world.settings = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let source = world.open(location);
    check(&source, 0, 3 << 20);
    assert_eq!(store.0.sent.load(SeqCst), LENGTH, "no byte twice");
    store.0.given.load(SeqCst)
}

/// A file of the world with this text; its path.
fn file(world: &World, name: &str, text: &str) -> String {
    let path = world.directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn s3(store: &Store) -> Vec<(&'static str, String)> {
    vec![("AWS_ENDPOINT_URL", store.url()), ("AWS_ALLOW_HTTP", "true".to_owned())]
}

fn azure(store: &Store) -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("AZURE_STORAGE_ENDPOINT", store.url()),
        ("AZURE_AUTHORITY_HOST", store.url()),
        ("AZURE_ALLOW_HTTP", text("true")),
        ("AZURE_TENANT_ID", text("tenant")),
        ("AZURE_CLIENT_ID", text("client")),
    ]
}

#[test]
fn an_instance_of_ec2_has_its_role() {
    let given = given("s3://bucket/image.erofs", |store, _| {
        [s3(store), vec![("AWS_METADATA_ENDPOINT", store.url())]].concat()
    });
    assert_eq!(given, 1);
}

/// The token of a web identity must not travel without TLS, even if objects may.
#[test]
fn a_web_identity_is_sent_to_no_server_without_tls() {
    let store = Store::start();
    store.put("/bucket/image.erofs", body(LENGTH), "\"one\"");
    let mut world = World::new();
    let identity = vec![
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file(&world, "token", "federated")),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader".to_owned()),
        ("AWS_ENDPOINT_URL_STS", format!("{}/sts", store.url())),
    ];
    let settings = [s3(&store), identity].concat();
    world.settings = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let error = world.try_open("s3://bucket/image.erofs", &RemoteOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("AWS_WEB_IDENTITY_TOKEN_FILE") && text.contains("must use TLS"),
        "{text}"
    );
    assert!(!text.contains("federated"), "{text}");
    assert_eq!(store.0.requests.load(SeqCst), 0);
}

#[test]
fn a_directory_of_azure_gives_a_token_for_a_secret() {
    let given = given("az://account/bucket/image.erofs", |store, _| {
        [azure(store), vec![("AZURE_CLIENT_SECRET", "hidden".to_owned())]].concat()
    });
    assert_eq!(given, 1);
}

#[test]
fn a_directory_of_azure_gives_a_token_for_a_federated_one() {
    let given = given("az://account/bucket/image.erofs", |store, world| {
        let federated = file(world, "token", "federated");
        [azure(store), vec![("AZURE_FEDERATED_TOKEN_FILE", federated)]].concat()
    });
    assert_eq!(given, 1);
}

/// It signs its tokens by itself.
#[test]
fn a_service_account_of_google_needs_no_token_server() {
    let made = Command::new("openssl").args(["genrsa", "-traditional", "2048"]).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return skip("needs openssl");
    };
    let key = String::from_utf8(made.stdout).unwrap().replace('\n', "\\n");
    let given = given("gs://bucket/image.erofs", |store, world| {
        let account = format!(
            r#"{{"type":"service_account","private_key":"{key}","private_key_id":"1","client_email":"a@b.test"}}"#
        );
        vec![
            ("GOOGLE_BASE_URL", store.url()),
            ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
            ("GOOGLE_APPLICATION_CREDENTIALS", file(world, "account.json", &account)),
        ]
    });
    assert_eq!(given, 0);
}
