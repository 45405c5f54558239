//! Names of registries in any case, and the logins of their repositories.

use std::fs;
use std::sync::{Arc, Mutex};

use ferrofs_remote::ContentDigest;
use ferrofs_remote::protocol::RemoteOptions;

use crate::command::{Verb, data, ferrofs};
use crate::wire::{Answer, Wire};
use crate::world::{World, body, check};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// In lower case, as the server sees it.
const TOKEN: &str = "bearer abc";

/// A registry with an image in the repository `team/image`, for whoever sends `authorization`.
/// Others get `challenge`, in which `HOST` is the registry under its name.
pub(crate) fn registry(
    image: Vec<u8>,
    authorization: &'static str,
    challenge: &'static str,
) -> Wire {
    let manifest = manifest(&image);
    let blob = format!("/v2/team/image/blobs/{}", ContentDigest::of(&image));
    Wire::start(move |request| {
        if request.path.starts_with("/token?") {
            return Answer::new("200 OK", &[], br#"{"token":"abc"}"#);
        }
        if request.authorization.as_deref() != Some(authorization) {
            let challenge = challenge.replace("HOST", &named(&request.host));
            return Answer::new("401 Unauthorized", &[("www-authenticate", &challenge)], b"");
        }
        match &*request.path {
            "/v2/team/image/manifests/v1" => {
                Answer::new("200 OK", &[("content-type", MANIFEST)], manifest.as_bytes())
            }
            path if path == blob => Answer::part(request, &image),
            _ => Answer::new("404 Not Found", &[], b""),
        }
    })
}

fn manifest(image: &[u8]) -> String {
    let (digest, size) = (ContentDigest::of(image), image.len());
    let layer =
        format!(r#"{{"mediaType":"application/vnd.erofs","digest":"{digest}","size":{size}}}"#);
    format!(r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","layers":[{layer}]}}"#)
}

/// An address on loopback with a name for the host.
fn named(address: &str) -> String {
    address.replace("127.0.0.1", "localhost")
}

#[test]
fn the_host_of_a_registry_may_have_capital_letters() {
    let wire = registry(body(3_000_000), TOKEN, "Bearer realm=\"http://HOST/token\"");
    let host = named(&wire.host);
    let world = World::new();
    for (named, insecure) in [
        (host.to_uppercase(), host.to_uppercase()),
        (host.to_uppercase(), host.clone()),
        (host.clone(), host.to_uppercase()),
    ] {
        let mut options = RemoteOptions::default();
        options.insecure_registries = vec![insecure];
        let source = world.try_open(&format!("oci://{named}/team/image:v1"), &options).unwrap();
        check(&source, 0, 3_000_000);
    }
}

#[test]
fn the_login_of_a_namespace_counts_more_than_that_of_its_host() {
    let Some(program) = ferrofs() else { return };
    let image = fs::read(data("plain.erofs")).unwrap();
    // me:two, in lower case.
    let wire = registry(image.clone(), "basic bwu6dhdv", "Basic realm=\"x\"");
    let host = named(&wire.host);
    let mut world = World::new();
    let file = world.directory.path().join("auth.json");
    world.environment.push(("REGISTRY_AUTH_FILE", file.clone()));
    let verb = Verb { program: &program, world: &world };
    let pulled = world.directory.path().join("pulled");
    let location = format!("oci://{host}/team/image:v1");
    let insecure = format!("--insecure-registry={host}");
    let arguments = ["pull", "-f", &insecure, &location, pulled.to_str().unwrap()];
    let auth = |name: &str, auth: &str| format!(r#""{host}{name}":{{"auth":"{auth}"}}"#);
    // me:one for the host and for another namespace.
    let others = [auth("", "bWU6b25l"), auth("/teams", "bWU6b25l")].join(",");
    fs::write(&file, format!(r#"{{"auths":{{{others}}}}}"#)).unwrap();
    verb.bad(&arguments, 1);
    for name in ["/team", "/team/image"] {
        let login = auth(name, "bWU6dHdv");
        fs::write(&file, format!(r#"{{"auths":{{{others},{login}}}}}"#)).unwrap();
        verb.good(&arguments);
        assert!(fs::read(&pulled).unwrap() == image);
    }
}

/// Its token server got the login.
#[test]
fn a_server_to_which_a_registry_redirects_gets_no_login() {
    let Some(program) = ferrofs() else { return };
    let image = fs::read(data("plain.erofs")).unwrap();
    for (what, challenge) in [
        ("blobs", "Bearer realm=\"http://HOST/token\""),
        ("blobs", "Basic realm=\"x\""),
        ("manifests", "Bearer realm=\"http://HOST/token\""),
        ("manifests", "Basic realm=\"x\""),
    ] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&seen);
        let other = Wire::start(move |request| {
            asked.lock().unwrap().push((request.path.clone(), request.authorization.clone()));
            let challenge = challenge.replace("HOST", &request.host);
            Answer::new("401 Unauthorized", &[("www-authenticate", &challenge)], b"")
        });
        let (target, manifest) = (other.host.clone(), manifest(&image));
        let front = Wire::start(move |request| {
            if request.path.contains(what) {
                let place = format!("http://{target}{}", request.path);
                return Answer::new("307 Temporary Redirect", &[("location", &place)], b"");
            }
            Answer::new("200 OK", &[("content-type", MANIFEST)], manifest.as_bytes())
        });
        let mut world = World::new();
        let file = world.directory.path().join("auth.json");
        fs::write(&file, format!(r#"{{"auths":{{"{}":{{"auth":"bWU6dHdv"}}}}}}"#, front.host))
            .unwrap();
        world.environment.push(("REGISTRY_AUTH_FILE", file));
        let verb = Verb { program: &program, world: &world };
        let location = format!("oci://{}/team/image:v1", front.host);
        let insecure = format!("--insecure-registry={}", front.host);
        let text = verb.bad(&["info", &insecure, &location], 1);
        let seen = seen.lock().unwrap();
        assert!(!seen.is_empty(), "{text}");
        let is_bare = |(path, login): &(String, Option<String>)| {
            login.is_none() && !path.starts_with("/token")
        };
        assert!(seen.iter().all(is_bare), "{what} {challenge}: {seen:?}");
        assert!(text.contains("only the registry itself gets a login"), "{text}");
        assert!(text.contains(&format!("leads to http://{},", other.host)), "{text}");
    }
}
