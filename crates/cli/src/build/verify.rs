//! Compares an image with the tree that it was built from, before it gets its name: names,
//! metadata, attributes and bytes. Threads read the image and read the source again. The result is
//! the first difference in the order of the tree.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrofs_builder::tree::{Content, Node, NodeKind, Tree};
use ferrofs_image::{FilePiece, Image, MemoryPool, OpenOptions};
use ferrofs_ondisk::xattr::split_name;
use ferrofs_workers::jobs::OrderedPipeline;
use ferrofs_workers::memory::{AllocPolicy, Charge, trim_heap};

use super::buffered_source::BufferedSource;
use super::inode_pairs::{Difference, InodePair, InodePairs, Item};
use crate::resources::Resources;

/// Bytes of the source that are read at a time. They fit into a second-level cache together with
/// the bytes of the image.
const BUFFER_BYTES: usize = 128 << 10;
const ZEROS: [u8; 4096] = [0; 4096];
/// The tree takes one part in so many of the memory while it is compared.
const TREE_SHARE: u64 = 8;
/// Bytes of the expected link count of an inode.
const LINK_COUNT_BYTES: u64 = 4;

/// Compares an image with its source.
#[derive(Clone, Debug)]
pub(super) struct ImageVerifier<'a> {
    pub(super) tree: &'a Tree,
    /// The byte of the file where the image begins.
    pub(super) offset: u64,
    /// Where the devices of the tree are; `None` where contents cannot be read again.
    pub(super) devices: Option<&'a [PathBuf]>,
    pub(super) resources: &'a Resources,
}

/// The place of an image that has no name yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnpublishedImage<'a> {
    pub(super) image: &'a Path,
    pub(super) blob: Option<&'a Path>,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VerifyCounters {
    pub(super) inodes: u64,
    pub(super) bytes: u64,
}

/// The result for an item.
struct ComparedItem {
    counters: VerifyCounters,
    /// The part of a large file that was compared, and whether it was meant to be the first.
    part: Option<ComparedPart>,
}

struct ComparedPart {
    path: Vec<u8>,
    covered: Range<u64>,
    is_first: bool,
    /// The size of the file, if the part was meant to be the last.
    end: Option<u64>,
}

impl ImageVerifier<'_> {
    /// Compares the image at `place`; `on_progress` is called on this thread.
    ///
    /// # Errors
    /// The first difference, or the error that ended the comparison.
    pub(super) fn verify(
        &self,
        place: UnpublishedImage<'_>,
        should_stop: &(dyn Fn() -> bool + Sync),
        on_progress: &mut dyn FnMut(VerifyCounters),
    ) -> Result<VerifyCounters, Difference> {
        let _charge = self.charge_tree()?;
        let devices = self.devices.unwrap_or_default().iter().map(PathBuf::as_path);
        let devices = devices.chain(place.blob);
        let has_contents = self.devices.is_some();
        let image = devices
            .fold(OpenOptions::new(), OpenOptions::device)
            .memory(&self.resources.memory)
            .retain_memory(true)
            .cache_limit_bytes(self.resources.shared_bytes())
            .offset(self.offset)
            .open(place.image)
            .map_err(|error| {
                Difference::new(b"", format!("the image cannot be opened: {error}"))
            })?;
        // Data of a device may be appended to the image later, so an image that ends too early is
        // an error only if contents are compared.
        if let Some(error) = image.truncation().filter(|_| has_contents) {
            return Err(Difference::new(b"", error.to_string()));
        }
        let threads = self.resources.threads.min(image.decode_slots());
        let (mut total, mut next) = (VerifyCounters::default(), 0);
        let pairs = InodePairs::new(&image, self.tree)?;
        OrderedPipeline::new().max_threads(threads).run(
            pairs,
            || vec![0; BUFFER_BYTES],
            |buffer, item| {
                if should_stop() {
                    return Err(Difference::new(b"", "stopped".to_owned()));
                }
                ItemComparer { image: &image, tree: self.tree, has_contents, buffer }.compare(item?)
            },
            |compared| {
                total.inodes += compared.counters.inodes;
                total.bytes = total.bytes.saturating_add(compared.counters.bytes);
                on_progress(total);
                compared.part.map_or(Ok(()), |part| part.join(&mut next))
            },
        )?;
        Ok(total)
    }

    /// Charges the memory of the image with the tree that it is compared with. The tree gets less
    /// than it had in the build: it is read once, in its order.
    fn charge_tree(&self) -> Result<Charge, Difference> {
        let budget = self.resources.memory.budget();
        let store_bytes = budget.limit_bytes() / TREE_SHARE;
        self.tree.store().set_memory_max(store_bytes);
        trim_heap();
        let links_bytes = (self.tree.len() as u64).saturating_mul(LINK_COUNT_BYTES);
        let bytes = store_bytes.saturating_add(links_bytes);
        // The image needs its least, however many inodes there are.
        let bytes = bytes.min(budget.limit_bytes().saturating_sub(MemoryPool::MIN_BYTES));
        budget
            .charge(bytes, AllocPolicy::MustSucceed)
            .map_err(|error| Difference::new(b"", format!("no memory for the comparison: {error}")))
    }
}

impl ComparedPart {
    /// Checks that the parts of a file follow each other up to its end.
    fn join(self, next: &mut u64) -> Result<(), Difference> {
        let expected = if self.is_first { 0 } else { *next };
        let is_short = self.end.is_some_and(|end| self.covered.end != end);
        if self.covered.start != expected || is_short {
            let what = "the image does not contain all of the file".to_owned();
            return Err(Difference::new(&self.path, what).at(self.covered.start.min(expected)));
        }
        *next = self.covered.end;
        Ok(())
    }
}

/// The state of a thread.
struct ItemComparer<'a> {
    image: &'a Image,
    tree: &'a Tree,
    /// Whether contents are compared, too.
    has_contents: bool,
    buffer: &'a mut Vec<u8>,
}

impl ItemComparer<'_> {
    fn compare(&mut self, item: Item) -> Result<ComparedItem, Difference> {
        let mut counters = VerifyCounters::default();
        match item {
            Item::Inodes(pairs) => {
                for pair in pairs {
                    counters.inodes += 1;
                    counters.bytes = counters.bytes.saturating_add(self.pair(&pair)?);
                }
                Ok(ComparedItem { counters, part: None })
            }
            Item::Part { pair, range } => {
                let is_first = range.start == 0;
                let end = Some(pair.inode.size()).filter(|size| range.end >= *size);
                if is_first {
                    counters.inodes = 1;
                    self.metadata(&pair)?;
                }
                let node = self.tree.node(pair.node);
                let Some(content) = node.content() else {
                    return Ok(ComparedItem { counters, part: None });
                };
                let covered = self.contents(&pair, content, range)?;
                counters.bytes = covered.end.saturating_sub(covered.start);
                let part = ComparedPart { path: pair.path.clone(), covered, is_first, end };
                Ok(ComparedItem { counters, part: Some(part) })
            }
        }
    }

    /// Compares one inode with its data and attributes; returns the number of bytes of the file.
    fn pair(&mut self, pair: &InodePair) -> Result<u64, Difference> {
        self.metadata(pair)?;
        let node = self.tree.node(pair.node);
        let Some(content) = node.content() else { return Ok(0) };
        let covered = self.contents(pair, content, 0..pair.inode.size())?;
        if covered != (0..content.bytes()) {
            let what = "the image does not contain all of the file".to_owned();
            return Err(Difference::new(&pair.path, what).at(covered.end));
        }
        Ok(content.bytes())
    }

    fn metadata(&self, pair: &InodePair) -> Result<(), Difference> {
        let (node, inode) = (self.tree.node(pair.node), &pair.inode);
        let differ = |what: &str, image: String, source: String| {
            Difference::new(
                &pair.path,
                format!("the {what} is {image} in the image, but {source} in the source"),
            )
        };
        let metadata = &node.metadata;
        let (kind, expected) = (inode.file_type(), node.kind.file_type());
        if kind != expected {
            return Err(differ("type", kind.name().to_owned(), expected.name().to_owned()));
        }
        let octal = |mode: u16| format!("{:04o}", mode & 0o7777);
        if inode.mode() & 0o7777 != metadata.permissions {
            return Err(differ("mode", octal(inode.mode()), octal(metadata.permissions)));
        }
        let numbers = [
            ("owner", u64::from(inode.uid()), u64::from(metadata.uid)),
            ("group", inode.gid().into(), metadata.gid.into()),
            ("link count", inode.nlink().into(), pair.names.into()),
        ];
        for (what, image, source) in numbers {
            if image != source {
                return Err(differ(what, image.to_string(), source.to_string()));
            }
        }
        let exact = |time: ferrofs_image::Timestamp| crate::metadata_text::format_exact(time);
        if inode.mtime() != metadata.mtime {
            return Err(differ("time", exact(inode.mtime()), exact(metadata.mtime)));
        }
        self.special(pair, &node)?;
        self.xattrs(pair, &node)
    }

    /// Sizes, device numbers, targets of symlinks.
    fn special(&self, pair: &InodePair, node: &Node) -> Result<(), Difference> {
        let inode = &pair.inode;
        match &node.kind {
            NodeKind::File(content) if inode.size() != content.bytes() => {
                let (image, source) = (inode.size(), content.bytes());
                let what = format!("it has {image} bytes in the image, but {source} in the source");
                Err(Difference::new(&pair.path, what))
            }
            NodeKind::CharacterDevice { major, minor } | NodeKind::BlockDevice { major, minor }
                if inode.device() != Some((*major, *minor)) =>
            {
                Err(Difference::new(
                    &pair.path,
                    "its device number differs in the image".to_owned(),
                ))
            }
            NodeKind::Symlink(target) => {
                let found =
                    self.image.read_link(inode).map_err(|error| unreadable(pair, &error))?;
                if found != **target {
                    let what = "its symlink target differs in the image".to_owned();
                    return Err(Difference::new(&pair.path, what));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn xattrs(&self, pair: &InodePair, node: &Node) -> Result<(), Difference> {
        // An attribute without a predefined prefix is never listed.
        let xattrs = node.metadata.xattrs.iter();
        let expected: BTreeMap<_, _> =
            xattrs.filter(|(name, _)| split_name(name).is_some()).collect();
        if !pair.inode.has_xattrs() && expected.is_empty() {
            return Ok(());
        }
        let found = self.image.xattrs(&pair.inode).map_err(|error| unreadable(pair, &error))?;
        let count = found.len();
        let found: BTreeMap<Box<[u8]>, Box<[u8]>> =
            found.into_iter().map(|xattr| (xattr.name.into(), xattr.value.into())).collect();
        let odd = found.iter().find(|(name, value)| expected.get(name) != Some(value));
        let missing = expected.keys().find(|name| !found.contains_key(**name)).copied();
        let name = odd.map(|(name, _)| name).or(missing);
        if let Some(name) = name {
            let what = format!("its extended attribute {} differs", name.escape_ascii());
            return Err(Difference::new(&pair.path, what));
        }
        if count != expected.len() {
            let what = "the image has one of its extended attributes twice".to_owned();
            return Err(Difference::new(&pair.path, what));
        }
        Ok(())
    }

    /// Compares a range of a file; returns the range that the image has for it.
    fn contents(
        &mut self,
        pair: &InodePair,
        content: &Content,
        range: Range<u64>,
    ) -> Result<Range<u64>, Difference> {
        let is_unread = range.is_empty() && content.bytes() > 0;
        if is_unread || !self.has_contents {
            return Ok(range);
        }
        let of_source = |error: ferrofs_builder::Error| {
            let what = format!("the source cannot be read again: {error}");
            CompareError::Difference(Difference::new(&pair.path, what))
        };
        let opened = BufferedSource::open(content, range.end, self.buffer);
        let mut source = opened.map_err(of_source).map_err(|failure| failure.at(pair))?;
        if range.is_empty() {
            // Opened, the source of an empty file was found unchanged.
            return Ok(range);
        }
        let mut known = None;
        let covered = self.image.for_each_piece_in(&pair.inode, range, |piece| match piece {
            FilePiece::Data { offset, bytes } => {
                compare_bytes(&mut source, offset, bytes, &of_source, pair)
            }
            FilePiece::Hole { offset, length } => {
                let ranges = match &known {
                    Some(ranges) => ranges,
                    None => known.insert(pair.ranges.of(content).map_err(of_source)?),
                };
                for part in within(ranges, offset..offset.saturating_add(length)) {
                    compare_zeros(&mut source, part, &of_source, pair)?;
                }
                Ok(())
            }
        });
        covered.map_err(|failure| failure.at(pair))
    }
}

/// The parts of ranges, which ascend, that lie within a hole. Only these are visited: a file may have as many ranges as
/// holes.
fn within(ranges: &[Range<u64>], hole: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = ranges.partition_point(|data| data.end <= hole.start);
    let behind = ranges.get(first..).unwrap_or_default().iter();
    let (start, end) = (hole.start, hole.end);
    behind
        .take_while(move |data| data.start < end)
        .map(move |data| data.start.max(start)..data.end.min(end))
}

/// Why a comparison ended.
enum CompareError {
    Difference(Difference),
    Image(ferrofs_image::Error),
}

impl From<ferrofs_image::Error> for CompareError {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl CompareError {
    fn at(self, pair: &InodePair) -> Difference {
        match self {
            Self::Difference(difference) => difference,
            Self::Image(error) => unreadable(pair, &error),
        }
    }
}

fn unreadable(pair: &InodePair, error: &ferrofs_image::Error) -> Difference {
    Difference::new(&pair.path, format!("the image cannot be read: {error}"))
}

fn compare_bytes(
    source: &mut BufferedSource<'_>,
    offset: u64,
    bytes: &[u8],
    of_source: &dyn Fn(ferrofs_builder::Error) -> CompareError,
    pair: &InodePair,
) -> Result<(), CompareError> {
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let expected = source.get(at, rest.len()).map_err(of_source)?;
        let (part, behind) = rest.split_at(expected.len());
        if expected != part {
            let within = first_difference(expected, part);
            return Err(CompareError::Difference(other_bytes(pair, at, within)));
        }
        at = at.saturating_add(part.len() as u64);
        rest = behind;
    }
    Ok(())
}

fn compare_zeros(
    source: &mut BufferedSource<'_>,
    range: Range<u64>,
    of_source: &dyn Fn(ferrofs_builder::Error) -> CompareError,
    pair: &InodePair,
) -> Result<(), CompareError> {
    let mut at = range.start;
    while at < range.end {
        let count =
            usize::try_from(range.end - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        compare_bytes(source, at, &ZEROS[..count], of_source, pair)?;
        at = at.saturating_add(count as u64);
    }
    Ok(())
}

fn first_difference(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).position(|(one, other)| one != other).unwrap_or(0)
}

fn other_bytes(pair: &InodePair, offset: u64, within: usize) -> Difference {
    let what = "the bytes in the image differ from the source".to_owned();
    Difference::new(&pair.path, what).at(offset.saturating_add(within as u64))
}

#[cfg(test)]
mod tests {

    use std::fs;
    use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ferrofs_builder::import::{DirectoryOptions, from_directory};
    use ferrofs_builder::tree::{ContentReader, ContentSource, Metadata, NodeId};
    use ferrofs_builder::{BuildOptions, NoopObserver};
    use ferrofs_workers::CancelToken;
    use tempfile::TempDir;

    use super::*;
    use crate::arguments::MachineArguments;

    /// A directory with something of every kind, and the image of it.
    struct Fixture {
        folder: TempDir,
        resources: Resources,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = TempDir::new().unwrap();
            let source = folder.path().join("tree");
            fs::create_dir_all(source.join("a/b")).unwrap();
            fs::write(source.join("a/b/small"), b"some bytes").unwrap();
            fs::write(source.join("a.b"), vec![7; 5000]).unwrap();
            fs::write(source.join("large"), vec![1; 5 << 20]).unwrap();
            fs::File::create(source.join("hole")).unwrap().set_len(6 << 20).unwrap();
            fs::hard_link(source.join("a.b"), source.join("linked")).unwrap();
            symlink("elsewhere", source.join("link")).unwrap();
            fs::set_permissions(source.join("a.b"), fs::Permissions::from_mode(0o640)).unwrap();
            let this = Self {
                folder,
                resources: Resources::of_machine(&MachineArguments::default()).unwrap(),
            };
            ferrofs_builder::build(
                &this.tree(),
                &BuildOptions::default(),
                &this.image(),
                &NoopObserver,
                &CancelToken::new(),
            )
            .unwrap();
            this
        }

        fn image(&self) -> PathBuf {
            self.folder.path().join("image")
        }

        fn tree(&self) -> Tree {
            from_directory(
                &self.folder.path().join("tree"),
                &DirectoryOptions::default(),
                &NoopObserver,
                &CancelToken::new(),
            )
            .unwrap()
        }

        /// Compares the image with `tree`.
        fn verify(&self, tree: &Tree) -> Result<VerifyCounters, String> {
            let verifier =
                ImageVerifier { tree, offset: 0, devices: Some(&[]), resources: &self.resources };
            let (image, blob) = (self.image(), None);
            let verified =
                verifier.verify(UnpublishedImage { image: &image, blob }, &|| false, &mut |_| ());
            verified.map_err(|difference| difference.to_string())
        }

        /// The message for a comparison with a changed source.
        fn message(&self, change: impl FnOnce(&mut Tree)) -> String {
            let mut tree = self.tree();
            change(&mut tree);
            self.verify(&tree).unwrap_err()
        }
    }

    fn find(tree: &Tree, path: &[u8]) -> NodeId {
        let mut found = None;
        let walked: Result<(), ()> = tree.walk(|at, id| {
            if at == path {
                found = Some(id);
            }
            Ok(())
        });
        walked.unwrap();
        found.unwrap()
    }

    #[test]
    fn an_image_of_its_source_is_accepted() {
        let fixture = Fixture::new();
        let counters = fixture.verify(&fixture.tree()).unwrap();
        // The root, a, b, small, a.b, large, hole, link; a hard link is no inode.
        assert_eq!(
            counters,
            VerifyCounters { inodes: 8, bytes: 10 + 5000 + (5 << 20) + (6 << 20) }
        );
    }

    #[test]
    fn metadata_that_differs_is_named() {
        let fixture = Fixture::new();
        let message = |path: &'static [u8], change: fn(&mut Metadata)| {
            fixture.message(|tree| {
                let id = find(tree, path);
                change(&mut tree.node_mut(id).metadata);
            })
        };
        let mode = message(b"a.b", |metadata| metadata.permissions = 0o644);
        assert_eq!(mode, "a.b: the mode is 0640 in the image, but 0644 in the source");
        assert!(message(b"a/b", |metadata| metadata.uid += 1).starts_with("a/b: the owner is "));
        assert!(message(b"link", |metadata| metadata.gid += 1).starts_with("link: the group is "));
        let time = message(b"a/b/small", |metadata| metadata.mtime.nanoseconds ^= 1);
        assert!(time.starts_with("a/b/small: the time is "), "{time}");
        let xattr = message(b"hole", |metadata| {
            metadata.xattrs.insert(b"user.x".as_slice().into(), b"y".as_slice().into());
        });
        assert_eq!(xattr, "hole: its extended attribute user.x differs");
        let root = message(b"", |metadata| metadata.permissions ^= 0o001);
        assert!(root.starts_with("the mode is "), "{root}");
    }

    #[test]
    fn names_types_and_links_that_differ_are_named() {
        let fixture = Fixture::new();
        let missing = fixture.message(|tree| {
            let metadata = tree.node(Tree::ROOT).metadata.clone();
            let added = tree.add(Node { metadata, kind: NodeKind::Fifo }).unwrap();
            let inside = find(tree, b"a");
            tree.link(inside, b"c", added).unwrap();
        });
        assert!(missing.starts_with("a/c: it is not in the image"), "{missing}");
        let unexpected = fixture.message(|tree| {
            tree.unlink(Tree::ROOT, b"hole").unwrap();
        });
        assert!(unexpected.starts_with("hole: it is in the image"), "{unexpected}");
        let kind = fixture.message(|tree| {
            let link = find(tree, b"link");
            tree.node_mut(link).kind = NodeKind::Fifo;
        });
        assert!(kind.starts_with("link: the type is symlink"), "{kind}");
        let target = fixture.message(|tree| {
            let link = find(tree, b"link");
            tree.node_mut(link).kind = NodeKind::Symlink(b"elsewherf".as_slice().into());
        });
        assert_eq!(target, "link: its symlink target differs in the image");
        let separate = fixture.message(|tree| {
            let linked = find(tree, b"linked");
            let content = tree.node(linked).content().unwrap().clone();
            let node = Node {
                metadata: tree.node(linked).metadata.clone(),
                kind: NodeKind::File(content),
            };
            let copy = tree.add(node).unwrap();
            tree.link(Tree::ROOT, b"linked", copy).unwrap();
        });
        assert!(separate.contains("the link count is 2 in the image, but 1"), "{separate}");
    }

    #[test]
    fn a_byte_that_differs_is_named_with_its_place() {
        let fixture = Fixture::new();
        for (path, offset) in
            [("large", 3 << 20), ("hole", (6 << 20) - 1), ("a.b", 4095), ("a/b/small", 9)]
        {
            let source = fixture.folder.path().join("tree").join(path);
            let times = fs::metadata(&source).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
            let mut before = [0];
            fs::File::open(&source).unwrap().read_exact_at(&mut before, offset).unwrap();
            file.write_all_at(&[before[0] ^ 0x55], offset).unwrap();
            file.set_modified(times.modified().unwrap()).unwrap();
            let message = fixture.verify(&fixture.tree()).unwrap_err();
            assert_eq!(
                message,
                format!("{path}: byte {offset}: the bytes in the image differ from the source")
            );
            file.write_all_at(&before, offset).unwrap();
            file.set_modified(times.modified().unwrap()).unwrap();
        }
        fixture.verify(&fixture.tree()).unwrap();
    }

    #[test]
    fn an_empty_file_that_grew_after_it_was_imported_is_named() {
        let fixture = Fixture::new();
        let source = fixture.folder.path().join("tree/empty");
        fs::write(&source, b"").unwrap();
        let tree = fixture.tree();
        let (image, cancel) = (fixture.image(), CancelToken::new());
        fs::remove_file(&image).unwrap();
        let options = BuildOptions::default();
        ferrofs_builder::build(&tree, &options, &image, &NoopObserver, &cancel).unwrap();
        fixture.verify(&tree).unwrap();
        fs::write(&source, b"x").unwrap();
        let message = fixture.verify(&tree).unwrap_err();
        assert!(message.contains("its size was 0 bytes and is now 1"), "{message}");
    }

    /// A source that counts how often it is asked where it has data.
    struct CountedRanges(Content, AtomicUsize);

    impl ContentSource for CountedRanges {
        fn name(&self) -> String {
            self.0.source().name()
        }

        fn open(&self) -> ferrofs_builder::Result<Box<dyn ContentReader>> {
            self.0.source().open()
        }

        fn data_ranges(&self) -> ferrofs_builder::Result<Vec<Range<u64>>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.source().data_ranges()
        }
    }

    /// Each part of 2 MiB asked again: a file with many holes took time with the square of its size.
    #[test]
    fn the_holes_of_a_large_file_are_looked_up_once() {
        let fixture = Fixture::new();
        let mut tree = fixture.tree();
        let options = BuildOptions::default().chunk_bytes(Some(1 << 20));
        let (image, cancel) = (fixture.image(), CancelToken::new());
        fs::remove_file(&image).unwrap();
        ferrofs_builder::build(&tree, &options, &image, &NoopObserver, &cancel).unwrap();
        let hole = find(&tree, b"hole");
        let content = tree.content(hole).unwrap();
        let bytes = content.bytes();
        let counted = Arc::new(CountedRanges(content, AtomicUsize::new(0)));
        tree.node_mut(hole).kind = NodeKind::File(Content::new(counted.clone(), bytes));
        fixture.verify(&tree).unwrap();
        assert_eq!(counted.1.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_ranges_within_a_hole_are_compared() {
        let ranges: Vec<_> = (0..100).map(|number| number * 10..number * 10 + 4).collect();
        let parts = |hole| within(&ranges, hole).collect::<Vec<_>>();
        assert_eq!(parts(32..51), [32..34, 40..44, 50..51]);
        assert_eq!((parts(34..40), parts(4..5), parts(994..2000)), (vec![], vec![], vec![]));
        assert_eq!([parts(0..1), parts(990..2000)].concat(), [0..1, 990..994]);
        assert_eq!(within(&[], 0..u64::MAX).count(), 0);
    }

    #[test]
    fn damage_of_the_image_is_named() {
        let fixture = Fixture::new();
        let image = fs::read(fixture.image()).unwrap();
        fs::write(fixture.image(), &image[..image.len() - 4096]).unwrap();
        assert!(!fixture.verify(&fixture.tree()).unwrap_err().is_empty());
        fs::write(fixture.image(), vec![0; image.len()]).unwrap();
        let message = fixture.verify(&fixture.tree()).unwrap_err();
        assert!(message.starts_with("the image cannot be opened: "), "{message}");
    }

    #[test]
    fn whoever_wants_an_end_gets_it() {
        let fixture = Fixture::new();
        let tree = fixture.tree();
        let (devices, resources) = (Some(&[][..]), &fixture.resources);
        let verifier = ImageVerifier { tree: &tree, offset: 0, devices, resources };
        let place = UnpublishedImage { image: &fixture.image(), blob: None };
        let ended = verifier.verify(place, &|| true, &mut |_| ());
        assert_eq!(ended.unwrap_err().to_string(), "stopped");
    }
}
