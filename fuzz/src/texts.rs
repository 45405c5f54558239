//! The target of texts that change the metadata of a tree: `fs_config` and `file_contexts` of Android, and sidecars.
//!
//! Input: a number (which text it is, modulo 3), the text up to a NUL byte, then a path.

use ferrofs_builder::import::adjust::XattrFilter;
use ferrofs_builder::import::android_text::FsConfig;
use ferrofs_builder::import::file_contexts::FileContexts;
use ferrofs_builder::import::sidecar;
use ferrofs_builder::tree::{Metadata, Node, NodeKind, Timestamp, Tree};
use ferrofs_image::FileType;

/// Some dozen lines, each of which may compile to a mebibyte.
const TEXT_MAX_BYTES: usize = 512;
/// Permissions that a mode can have.
const PERMISSIONS_MAX: u16 = 0o7777;

/// Reads a text, and applies it.
pub fn texts(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let bytes = &bytes[..bytes.len().min(TEXT_MAX_BYTES)];
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, path) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    match kind % 3 {
        0 => fs_config(text, path),
        1 => file_contexts(text, path),
        _ => sidecar(text),
    }
}

fn metadata() -> Metadata {
    let mtime = Timestamp { seconds: 0, nanoseconds: 0 };
    Metadata { permissions: 0o755, uid: 9, gid: 9, mtime, xattrs: [].into() }
}

fn fs_config(text: &[u8], path: &[u8]) {
    let config = match FsConfig::read("t", text) {
        Ok(config) => config,
        Err(error) => return assert_names_a_line(&error),
    };
    let mut applied = metadata();
    if !config.apply(path, &mut applied) {
        assert_eq!(applied, metadata(), "a line about another path");
    }
    assert!(applied.permissions <= PERMISSIONS_MAX);
    // The last line about a path counts, so that a repeated text means the same.
    let again = FsConfig::read("t", &[text, b"\n", text].concat()).expect("the same lines");
    let mut repeated = metadata();
    again.apply(path, &mut repeated);
    assert_eq!(applied, repeated);
}

fn file_contexts(text: &[u8], path: &[u8]) {
    let mut contexts = FileContexts::default();
    if let Err(error) = contexts.add("t", text) {
        return assert_names_a_line(&error);
    }
    let mut repeated = FileContexts::default();
    repeated.add("t", text).expect("the same lines");
    repeated.add("t", text).expect("the same lines");
    let (contexts, repeated) = (contexts.finish(), repeated.finish());
    let path = [b"/", path].concat();
    for file_type in [FileType::Regular, FileType::Directory] {
        match contexts.label(&path, file_type) {
            Ok(label) => {
                let words = || text.split(u8::is_ascii_whitespace);
                assert!(label.is_none_or(|label| words().any(|word| word == label)));
                assert_eq!(repeated.label(&path, file_type), Ok(label));
            }
            Err(error) => assert_names_a_line(&error),
        }
    }
}

fn sidecar(text: &[u8]) {
    let mut tree = Tree::new(metadata());
    let kinds = [(&b"dir"[..], NodeKind::Directory), (b"fifo", NodeKind::Fifo)];
    for (name, kind) in kinds {
        let id = tree.add(Node { metadata: metadata(), kind }).expect("a small tree");
        tree.link(Tree::ROOT, name, id).expect("a name");
    }
    let lines = text.split(|byte| *byte == b'\n').count();
    match sidecar::apply("t", text, &mut tree, &XattrFilter::All) {
        Ok(mismatch) => {
            assert!(mismatch.unused_lines <= lines as u64 && mismatch.unnamed_paths <= 3);
            assert!(tree.len() <= 3 + lines);
        }
        Err(error) => assert_names_a_line(&error),
    }
    for (_, node) in tree.nodes() {
        assert!(node.metadata.permissions <= PERMISSIONS_MAX);
        assert!(node.metadata.mtime.nanoseconds < 1_000_000_000);
    }
}

/// A message begins with the name of the text and the number of a line.
fn assert_names_a_line(error: &str) {
    let number = error.strip_prefix("t:").and_then(|rest| rest.split(':').next());
    assert!(number.is_some_and(|number| number.parse::<u32>().is_ok()), "{error}");
}
