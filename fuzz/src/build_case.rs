//! A tree and the options of a build, from the bytes of an input. Most inputs are a tree that can be built: what has to be
//! in range is brought there, and contents come from few patterns, so that there are duplicates, holes and bytes that
//! compress.
//!
//! Input: 24 bytes of options, then entries: kind, directory, name, owner and time, contents.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ferrofs_builder::tree::{
    Content, ContentReader, ContentSource, Metadata, Node, NodeId, NodeKind, Timestamp, Tree,
};
use ferrofs_builder::{
    Algorithms, BuildOptions, CompressionHints, Deduplication, FragmentSharing, Fragments,
    IndexForm, Result, SuperblockTime,
};
use ferrofs_codec::{LzmaContexts, Method};
use ferrofs_ondisk::BlockSize;

use crate::input::Input;

/// Entries of a tree.
const ENTRIES_MAX: usize = 48;
/// Bytes of the contents of a tree.
const CONTENTS_MAX_BYTES: usize = 160 << 10;
/// Memory of a build.
const MEMORY_BYTES: u64 = 96 << 20;

/// What is to be built.
#[derive(Debug)]
pub(crate) struct BuildCase {
    pub(crate) tree: Tree,
    pub(crate) options: BuildOptions,
    /// A second build, by several threads, must give the same bytes.
    pub(crate) is_repeated: bool,
}

impl BuildCase {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let switches = input.u32();
        let options = options(switches, &mut input);
        let tree = tree(&mut input);
        Self { tree, options, is_repeated: switches & 0xF000_0000 == 0xF000_0000 }
    }
}

/// The options; bits of the switches are taken from the lowest on.
fn options(switches: u32, input: &mut Input<'_>) -> BuildOptions {
    let mut bits = switches;
    let mut is = || {
        let bit = bits & 1 != 0;
        bits >>= 1;
        bit
    };
    let [size, pcluster, extent, chunk, packed, metabox, share, align, hints, ..]: [u8; 20] =
        input.array();
    let block_size = BlockSize::from_bits(9 + size % 8).expect("9 to 16");
    let block = block_size.bytes();
    let blocks = |count: u8| block * (1 << (count % 5));
    let algorithms = is().then(|| algorithms(size, pcluster));
    let has_methods = algorithms.is_some();
    let mut options = BuildOptions::default()
        .block_size(block_size)
        .algorithms(algorithms)
        .pcluster_bytes(blocks(pcluster).min(1 << 20))
        .extent_bytes_max(block * (1 + u32::from(extent)))
        .index(if is() { IndexForm::Full } else { IndexForm::Compact })
        .wide(is())
        .inline_pclusters(is() && has_methods)
        .inline_data(is())
        .deduplication(if is() { Deduplication::On } else { Deduplication::Off })
        .force_chunk_indexes(is())
        .compress_directories(is() && has_methods)
        .xattr_filter(is())
        .superblock_checksum(is())
        .plain_xattr_prefixes(is())
        .force_extended_inodes(is())
        .time(if is() { SuperblockTime::Fixed(u64::from(share)) } else { SuperblockTime::Newest })
        .xattr_share_above((share & 3 != 3).then_some(u32::from(share & 3)))
        .data_alignment_blocks(1 + u32::from(align & 3))
        .image_alignment_blocks(1 + u32::from(align >> 2 & 3))
        .uuid([size; 16])
        .jobs(Some(1))
        .memory_bytes(MEMORY_BYTES);
    if is() {
        options = options.chunk_bytes(Some(u64::from(blocks(chunk))));
    }
    if is() && has_methods {
        options =
            options.fragments(if chunk & 0x80 == 0 { Fragments::Tails } else { Fragments::All });
        options = options.fragment_sharing(match chunk >> 5 & 3 {
            0 | 1 => FragmentSharing::Parts,
            2 => FragmentSharing::Files,
            _ => FragmentSharing::Off,
        });
        options = options
            .packed_pcluster_bytes((packed & 1 != 0).then(|| blocks(packed >> 1).min(1 << 20)));
    }
    if is() {
        options = options.metabox_pcluster_bytes(Some(blocks(metabox).min(1 << 20)));
    }
    if is() {
        options = options.xattr_prefixes(vec![b"user.app.".to_vec(), b"trusted.overlay.".to_vec()]);
    }
    if is() && has_methods {
        let text =
            format!("{} 0 {}\n0 f\n", blocks(hints).min(1 << 20), char::from(b'a' + hints % 26));
        options = options.hints(CompressionHints::parse(text.as_bytes()).expect("two hints"));
    }
    let is_wide = options.wide;
    options.omit_dot(is() && is_wide)
}

/// One to three methods, all of them fast.
fn algorithms(choice: u8, more: u8) -> Algorithms {
    let all = [
        Method::Lz4 { max_distance: u16::MAX },
        Method::Deflate { level: 1 },
        Method::Zstd { level: 1, window_log: 10 + choice % 8 },
        Method::Lzma {
            level: 0,
            dictionary_bytes: 4096 << (choice % 4),
            contexts: LzmaContexts::default(),
        },
        Method::Lz4Hc { level: 3, max_distance: 4096 },
    ];
    let first = usize::from(choice >> 3) % all.len();
    let count = 1 + usize::from(more >> 6) % 3;
    let methods: Vec<_> = (0..count).map(|number| all[(first + number) % all.len()]).collect();
    Algorithms { default: usize::from(more >> 4 & 3) % methods.len(), methods }
}

fn tree(input: &mut Input<'_>) -> Tree {
    let mut tree = Tree::new(metadata(input));
    let mut directories = vec![Tree::ROOT];
    let mut others: Vec<NodeId> = Vec::new();
    let mut bytes_left = CONTENTS_MAX_BYTES;
    for _ in 0..ENTRIES_MAX {
        if input.is_empty() {
            break;
        }
        let [kind, parent, name, name_bytes] = input.array();
        let parent = directories[usize::from(parent) % directories.len()];
        let name = entry_name(name, name_bytes);
        // One in eight is a further name of what is there.
        if kind & 7 == 7 && !others.is_empty() {
            let target = others[usize::from(kind >> 3) % others.len()];
            link(&mut tree, parent, &name, target);
            continue;
        }
        let metadata = metadata(input);
        let kind = node_kind(kind, input, &mut bytes_left);
        let is_directory = matches!(kind, NodeKind::Directory);
        let Ok(id) = tree.add(Node { metadata, kind }) else { break };
        if link(&mut tree, parent, &name, id) {
            if is_directory { directories.push(id) } else { others.push(id) }
        }
    }
    tree
}

/// Gives an inode a name that is free.
fn link(tree: &mut Tree, parent: NodeId, name: &[u8], id: NodeId) -> bool {
    tree.child(parent, name).is_none() && tree.link(parent, name, id).is_ok()
}

fn entry_name(letter: u8, bytes: u8) -> Vec<u8> {
    let letter = if matches!(letter, 0 | b'/' | b'.') { b'_' } else { letter };
    // Mostly short ones.
    let count =
        if bytes & 0xE0 == 0xE0 { usize::from(bytes) } else { 1 + usize::from(bytes & 0x1F) };
    let mut name = vec![letter; count];
    name[count / 2] = b'a' + bytes % 26;
    name
}

fn metadata(input: &mut Input<'_>) -> Metadata {
    let [mode, more, seconds, xattrs] = input.array();
    let is_large = more & 0x40 != 0;
    let owner = |bits: u8| if is_large { 70_000 * u32::from(bits) } else { u32::from(bits) };
    let seconds = match seconds & 3 {
        0 => 1_700_000_000,
        1 => i64::from(seconds) - 100,
        2 => i64::from(seconds) << 30,
        _ => 1_700_000_000 + i64::from(seconds),
    };
    let nanoseconds = if more & 0x80 != 0 { u32::from(more) * 3_000_000 } else { 0 };
    let names: [&[u8]; 8] = [
        b"user.a",
        b"user.app.one",
        b"user.app.two",
        b"trusted.overlay.opaque",
        b"security.capability",
        b"user.app.",
        b"trusted.t",
        b"user.long.name.of.an.attribute",
    ];
    let chosen = names.iter().enumerate().filter(|(bit, _)| xattrs >> bit & 1 != 0);
    let xattrs: BTreeMap<Box<[u8]>, Box<[u8]>> = chosen
        .map(|(bit, name)| ((*name).into(), vec![more & 3; (usize::from(mode) * bit) % 90].into()))
        .collect();
    Metadata {
        permissions: u16::from(mode) << 4 | 0o4,
        uid: owner(more & 7),
        gid: owner(more >> 3 & 7),
        mtime: Timestamp { seconds, nanoseconds },
        xattrs,
    }
}

fn node_kind(kind: u8, input: &mut Input<'_>, bytes_left: &mut usize) -> NodeKind {
    match kind & 0x3F {
        0..=9 => NodeKind::Directory,
        10 => NodeKind::Fifo,
        11 => NodeKind::Socket,
        12 => NodeKind::CharacterDevice {
            major: u32::from(input.u8()) << 4,
            minor: u32::from(input.u16()) << 4,
        },
        13 => NodeKind::BlockDevice { major: 8, minor: u32::from(input.u8()) },
        14..=18 => {
            let count = 1 + usize::from(input.u16()) % 4095;
            NodeKind::Symlink(pattern(kind, count).iter().map(|byte| byte | 1).collect())
        }
        _ => NodeKind::File(contents(input, bytes_left)),
    }
}

/// Parts of data with holes between them.
fn contents(input: &mut Input<'_>, bytes_left: &mut usize) -> Content {
    let mut bytes = Vec::new();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let parts = input.u8() % 4;
    for _ in 0..parts {
        let [choice, hole] = input.array();
        let count = usize::from(input.u16()).min(*bytes_left);
        *bytes_left -= count;
        if hole & 0xC0 == 0xC0 {
            bytes.resize(bytes.len() + (usize::from(hole & 0x3F) << 9), 0);
        }
        let start = bytes.len() as u64;
        bytes.extend_from_slice(&pattern(choice, count));
        let end = bytes.len() as u64;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ if start < end => ranges.push(start..end),
            _ => {}
        }
    }
    let length = bytes.len() as u64;
    Content::new(Arc::new(Memory { bytes: bytes.into(), ranges }), length)
}

/// Bytes of a kind: the same ones for the same choice.
fn pattern(choice: u8, count: usize) -> Vec<u8> {
    let mut state = u32::from(choice) | 0x100;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from(state >> 24).expect("eight bits")
    };
    match choice & 3 {
        0 => vec![choice; count],
        1 => (0..count).map(|_| next()).collect(),
        2 => b"one line of a text, and then the same again\n"
            .iter()
            .copied()
            .cycle()
            .take(count)
            .collect(),
        _ => (0..count).map(|at| if at % 64 < 8 { next() } else { choice }).collect(),
    }
}

#[derive(Clone, Debug)]
struct Memory {
    bytes: Arc<[u8]>,
    ranges: Vec<Range<u64>>,
}

impl ContentSource for Memory {
    fn name(&self) -> String {
        "input".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(self.ranges.clone())
    }
}

impl ContentReader for Memory {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).expect("an offset in memory");
        buffer.copy_from_slice(&self.bytes[start..start + buffer.len()]);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}
