//! The target of what servers say to the fetcher.
//!
//! Input: a byte that chooses a kind (modulo 4), then the bytes. Kinds 0 to 2 are answers, as they are sent, with byte
//! 0x1E between them: of a web server, of one whose object has a chunk index, and of a registry and its token server. Kind
//! 3 is a file of logins.

use ferrofs_fetch::fuzzing::{fetch_object, open_image, read_logins};
use ferrofs_remote::{ChunkIndex, ContentDigest};

/// Bytes of an object with a chunk index, and of its pieces.
const OBJECT_BYTES: u64 = 300;
const PIECE_BYTES: u64 = 128;

/// Answers requests of the fetcher with these bytes.
pub fn server(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => drop(fetch_object(bytes, None)),
        1 => drop(fetch_object(bytes, Some(index()))),
        2 => drop(open_image(bytes)),
        _ => read_logins(bytes),
    }
}

/// The chunk index of an object that has the letter `a` throughout.
fn index() -> ChunkIndex {
    let pieces = [PIECE_BYTES, PIECE_BYTES, OBJECT_BYTES % PIECE_BYTES];
    let digest =
        |bytes: u64| ContentDigest::of(&vec![b'a'; usize::try_from(bytes).expect("a short piece")]);
    ChunkIndex::uniform(OBJECT_BYTES, PIECE_BYTES, pieces.map(digest).to_vec())
        .expect("three pieces")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the fuzzer would look at errors only.
    #[test]
    fn right_answers_of_a_web_server_are_accepted() {
        let body = "a".repeat(300);
        let answer = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 300\r\ncontent-range: bytes 0-299/300\r\n\r\n{body}"
        );
        let redirect = "HTTP/1.1 302 Found\r\nlocation: http://other.test/there\r\ncontent-length: 0\r\n\r\n\x1e";
        for index in [None, Some(index())] {
            let outcome = fetch_object(answer.as_bytes(), index.clone());
            assert!(outcome.is_success && outcome.requests == 1, "{outcome:?}");
            let outcome = fetch_object([redirect, &answer].concat().as_bytes(), index);
            assert!(outcome.is_success && outcome.requests == 2, "{outcome:?}");
        }
        let outcome = fetch_object(answer.replace("0-299", "1-299").as_bytes(), None);
        assert!(!outcome.is_success, "{outcome:?}");
    }

    /// Otherwise an input takes the 15 seconds in which a connection has to be made.
    #[test]
    fn a_redirect_to_tls_is_answered_at_once() {
        let begun = std::time::Instant::now();
        let redirect =
            "HTTP/1.1 302 Found\r\nlocation: https://other.test/there\r\ncontent-length: 0\r\n\r\n";
        let outcome = fetch_object(redirect.as_bytes(), None);
        assert!(!outcome.is_success && outcome.requests == 1, "{outcome:?}");
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_registry_with_tokens_is_understood() {
        let document = |extra: &str, body: &str| {
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{extra}\r\n{body}\x1e", body.len())
        };
        let blob = "a".repeat(300);
        let layer = ContentDigest::of(blob.as_bytes());
        let manifest = format!(
            r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.erofs","digest":"{layer}","size":300}}]}}"#
        );
        let refusal = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://images.test/token\",service=\"s\"\r\ncontent-length: 0\r\n\r\n\x1e";
        let answers = [
            refusal.to_owned(),
            document("", r#"{"token":"x","expires_in":300}"#),
            document("content-type: application/vnd.oci.image.manifest.v1+json\r\n", &manifest),
            document("", &blob),
            document("", &blob),
        ];
        let outcome = open_image(answers.concat().as_bytes());
        assert!(outcome.is_success && outcome.requests == 5, "{outcome:?}");
    }
}
