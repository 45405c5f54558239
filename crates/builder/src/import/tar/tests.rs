//! Whole archives: written_by_others by tars, and written_by_others to be refused.

mod content_modes;
mod corpus;
mod entries;
mod hostile;
mod layers;
mod written_by_others;

use std::collections::HashMap;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;

use super::{TarImportOptions, TarSource, from_tar};
use crate::Result;
use crate::import::SpoolOptions;
use crate::tree::{Content, NodeKind, Tree};

/// The bytes of a file, read in pieces of an odd size.
fn bytes_of(content: &Content) -> Vec<u8> {
    let mut reader = content.source().open().unwrap();
    let mut bytes = vec![0xEE; usize::try_from(content.bytes()).unwrap()];
    for (number, piece) in bytes.chunks_mut(777).enumerate() {
        reader.read_exact_at(number as u64 * 777, piece).unwrap();
    }
    assert!(reader.read_exact_at(content.bytes(), &mut [0]).is_err());
    reader.check_unchanged().unwrap();
    bytes
}

/// One line for each name: everything that an image would keep of it.
fn listing(tree: &Tree) -> Vec<String> {
    let mut names = HashMap::new();
    let mut lines = Vec::new();
    tree.walk(|path, id| {
        let node = tree.node(id);
        let path = path.escape_ascii().to_string();
        let first = names.entry(id).or_insert_with(|| path.clone());
        if *first != path {
            lines.push(format!("{path} is {first}"));
            return Ok::<_, ()>(());
        }
        let what = match &node.kind {
            NodeKind::Directory(_) => "directory".to_owned(),
            NodeKind::File(content) => {
                let ranges = content.source().data_ranges().unwrap();
                let bytes = bytes_of(content);
                // Weighted, so that bytes in other places give another sum.
                let weighted =
                    bytes.iter().enumerate().map(|(at, byte)| (at % 251 + 1) * usize::from(*byte));
                let data: usize = weighted.sum();
                let parts = ranges.iter().all(|range| range.end <= content.bytes());
                assert!(parts, "{path} has data behind its end");
                format!("file of {} bytes, sum {data}", bytes.len())
            }
            NodeKind::Symlink(target) => format!("symlink to {}", target.escape_ascii()),
            NodeKind::CharacterDevice { major, minor } => {
                format!("character device {major}:{minor}")
            }
            NodeKind::BlockDevice { major, minor } => format!("block device {major}:{minor}"),
            NodeKind::Fifo => "fifo".to_owned(),
            NodeKind::Socket => "socket".to_owned(),
        };
        let metadata = &node.metadata;
        let mut line = format!(
            "{path} {what} {:o} {}:{} {}.{:09}",
            metadata.permissions,
            metadata.uid,
            metadata.gid,
            metadata.mtime.seconds,
            metadata.mtime.nanoseconds
        );
        for (name, value) in &metadata.xattrs {
            line += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
        }
        lines.push(line);
        Ok(())
    })
    .unwrap();
    lines
}

/// What comes of an archive, which must not depend on how it comes.
fn import(bytes: &[u8], options: &TarImportOptions) -> Result<Tree> {
    let name = PathBuf::from("a.tar");
    let placed = from_tar(TarSource::Bytes { name: name.clone(), bytes: bytes.into() }, options);
    let reader = Box::new(Cursor::new(bytes.to_vec()));
    let spool = SpoolOptions { memory_bytes_max: 1000, ..SpoolOptions::default() };
    let streaming = TarImportOptions { spool, ..options.clone() };
    let streamed = from_tar(TarSource::Stream { name, reader }, &streaming);
    match (&placed, &streamed) {
        (Ok(placed), Ok(streamed)) => assert_eq!(listing(placed), listing(streamed)),
        (Err(placed), Err(streamed)) => assert_eq!(placed.to_string(), streamed.to_string()),
        _ => panic!("in place {placed:?}, as a stream {streamed:?}"),
    }
    placed
}

fn listed(bytes: &[u8]) -> Vec<String> {
    listing(&import(bytes, &TarImportOptions::default()).unwrap())
}

fn refusal(bytes: &[u8]) -> String {
    let error = import(bytes, &TarImportOptions::default()).unwrap_err();
    assert!(matches!(error.kind(), crate::ErrorKind::Archive(_)), "{error:?}");
    error.to_string()
}

/// An archive in the making.
#[derive(Clone)]
struct ArchiveBuilder {
    bytes: Vec<u8>,
}

/// A header with room for what a test wants to change.
#[derive(Clone)]
struct TestHeader([u8; 512]);

impl TestHeader {
    fn new(kind: u8, path: &[u8], size: u64) -> Self {
        let mut block = Self([0; 512]);
        block.set(0, path).set(100, b"0000644\0").set(108, b"0000000\0").set(116, b"0000000\0");
        block.set(124, format!("{size:011o}\0").as_bytes()).set(136, b"00000000000\0");
        block.set(156, &[kind]).set(257, b"ustar\x0000");
        block
    }

    fn gnu(kind: u8, path: &[u8], size: u64) -> Self {
        let mut block = Self::new(kind, path, size);
        block.set(257, b"ustar  \0");
        block
    }

    fn set(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn link(kind: u8, path: &[u8], target: &[u8]) -> Self {
        let mut block = Self::new(kind, path, 0);
        block.set(157, target);
        block
    }

    fn sealed(&self) -> [u8; 512] {
        let mut block = self.0;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

impl ArchiveBuilder {
    fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    fn block(mut self, block: &TestHeader) -> Self {
        self.bytes.extend_from_slice(&block.sealed());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    fn entry(self, kind: u8, path: &str, contents: &[u8]) -> Self {
        self.block(&TestHeader::new(kind, path.as_bytes(), contents.len() as u64)).raw(contents)
    }

    fn file(self, path: &str, contents: &str) -> Self {
        self.entry(b'0', path, contents.as_bytes())
    }

    fn directory(self, path: &str) -> Self {
        self.entry(b'5', path, b"")
    }

    fn link(self, kind: u8, path: &str, target: &str) -> Self {
        self.block(&TestHeader::link(kind, path.as_bytes(), target.as_bytes()))
    }

    fn pax(self, records: &[(&str, &[u8])]) -> Self {
        self.records(b'x', records)
    }

    fn records(self, kind: u8, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.entry(kind, "extended", &body)
    }

    fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).bytes
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body;
    while length != body + length.to_string().len() {
        length = body + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn layer(bytes: Vec<u8>) -> TarSource {
    TarSource::Bytes { name: PathBuf::from("layer.tar"), bytes: Arc::from(bytes) }
}
