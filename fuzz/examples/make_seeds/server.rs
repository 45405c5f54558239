//! Answers of servers, right ones and wrong ones, for the target `server`.

use ferrofs_remote::ContentDigest;

use crate::seed_set::SeedSet;

/// Between two answers.
const SEPARATOR: &str = "\x1e";
/// The kinds of the target.
const OBJECT: u8 = 0;
const INDEXED: u8 = 1;
const REGISTRY: u8 = 2;
const LOGINS: u8 = 3;

/// An answer with this status line, these headers and this body.
fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}{SEPARATOR}", body.len())
}

/// Puts all seeds.
pub(crate) fn put(seed_set: &mut SeedSet) {
    let mut put = |kind: u8, name: &str, text: &str| {
        seed_set.put("server", name.to_owned(), [&[kind][..], text.as_bytes()].concat());
    };
    let body = "a".repeat(300);
    let range = "content-range: bytes 0-299/300\r\netag: \"5f\"\r\n";
    let part = answer("206 Partial Content", range, &body);
    let whole = answer("200 OK", "last-modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n", &body);
    let redirect = answer("302 Found", "location: //other.test:81/there?x\r\n", "");
    put(OBJECT, "part", &part);
    put(OBJECT, "whole", &whole);
    put(OBJECT, "redirected", &[&*redirect, &part].concat());
    put(OBJECT, "busy", &answer("503 Busy", "retry-after: 7\r\n", "later"));
    let chunked = "HTTP/1.1 206 Partial Content\r\ntransfer-encoding: chunked\r\n";
    let pieces = format!(
        "{chunked}{range}\r\n80\r\n{}\r\nac\r\n{}\r\n0\r\n\r\n",
        &body[..128],
        &body[128..]
    );
    put(INDEXED, "chunked", &pieces);
    put(INDEXED, "indexed", &part);
    put(INDEXED, "indexed-whole", &whole);
    // The first answer tells only the length; the object has more chunks.
    let long = "content-range: bytes 0-299/3145728\r\n";
    put(OBJECT, "long", &[answer("206 Partial Content", long, &body), part].concat());
    registry(&mut put, &body);
    let logins =
        r#"{"auths":{"images.test":{"auth":"dTpw"},"localhost:5000":{"identitytoken":"x"}}}"#;
    put(LOGINS, "logins", logins);
}

fn registry(put: &mut impl FnMut(u8, &str, &str), blob: &str) {
    let layer = ContentDigest::of(blob.as_bytes());
    let manifest = format!(
        r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.erofs","digest":"{layer}","size":300}}]}}"#
    );
    let digest = ContentDigest::of(manifest.as_bytes());
    let index = format!(
        r#"{{"manifests":[{{"digest":"{digest}","size":9,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
    );
    let manifest =
        answer("200 OK", "content-type: application/vnd.oci.image.manifest.v1+json\r\n", &manifest);
    let index =
        answer("200 OK", "content-type: application/vnd.oci.image.index.v1+json\r\n", &index);
    let blob = answer("200 OK", "", blob);
    let refused = |challenge: &str| {
        answer("401 Unauthorized", &format!("www-authenticate: {challenge}\r\n"), "")
    };
    let bearer = refused(
        r#"Bearer realm="http://images.test/token",service="s",scope="repository:a/b:pull""#,
    );
    let token = answer("200 OK", "", r#"{"token":"x","expires_in":300}"#);
    put(REGISTRY, "anonymous", &[&*manifest, &blob, &blob].concat());
    put(REGISTRY, "token", &[&*bearer, &token, &index, &manifest, &blob, &blob].concat());
    put(REGISTRY, "basic", &[&*refused("Basic realm=\"x\""), &manifest, &blob, &blob].concat());
    let elsewhere = answer("307 Temporary Redirect", "location: http://store.test/blob\r\n", "");
    put(REGISTRY, "blob-elsewhere", &[&*manifest, &elsewhere, &blob, &elsewhere, &blob].concat());
    put(REGISTRY, "private-realm", &refused(r#"Bearer realm="http://169.254.169.254/token""#));
}
