//! Merges EROFS images into one tree, as overlayfs merges layers: each later image lies over the
//! images before it. The new image refers to the data in the images, or the data is read from them
//! as from any other source.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrofs_builder::import::adjust::{
    AufsName, OPAQUE_XATTR, OverlayPolicy, is_whiteout, mark_opaque, mark_origin, unmark_origin,
};
use ferrofs_builder::import::{InputLimit, StoredHoles};
use ferrofs_builder::tree::{
    Content, ContentReader, ContentSource, Device, DeviceAddress, Metadata, Node, NodeId, NodeKind,
    SourceExtent, Tree,
};
use ferrofs_builder::{Error, ErrorKind, Result};
use ferrofs_image::{
    DataLayout, ExtentStorage, FileExtent, FileType, Image, Inode, Nid, OpenOptions, WalkEvent,
    WorkMeter,
};
use ferrofs_ondisk::BlockSize;
use ferrofs_workers::CancelToken;

use super::request::{LayerData, LayerOptions};
use crate::resources::Resources;

/// The largest number of file parts in memory: a damaged image can have any number of them.
const PARTS_MAX: usize = 8 << 20;
/// The work of an extent and of an attribute, in bytes as of a [`WorkMeter`]. Inodes that overlap share the bytes that
/// describe them, so that a small image can have any number of them.
const EXTENT_WORK: u64 = 64;
const XATTR_WORK: u64 = 64;
/// The token is read once for so many extents, which take about a millisecond.
const CANCEL_CHECK_EXTENTS: u64 = 1 << 12;

/// The tree of several images.
#[derive(Debug)]
pub(super) struct LayeredTree {
    pub(super) tree: Tree,
    /// The block size of the first image, which all images must have to be referred to.
    pub(super) block_size: BlockSize,
    /// Paths of the devices of the tree; `None` if they are not known.
    pub(super) devices: Option<Vec<PathBuf>>,
}

/// How many bytes of files an image may bring, and which bytes count: a small image can claim files of any size, which would be
/// read and stored, or hashed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentLimit {
    pub(super) input: InputLimit,
    pub(super) holes: StoredHoles,
}

impl ContentLimit {
    /// Images that have no holes are never refused by default.
    fn bytes(self, image: &Image) -> u64 {
        let bytes = self.input.bytes(image.stored_bytes());
        if self.input == InputLimit::Default { bytes.max(image.stored_bytes()) } else { bytes }
    }
}

/// One of the images.
#[derive(Debug)]
pub(super) struct LayerImage {
    image: Image,
    source: Arc<LayerSource>,
    data: LayerData,
    is_aufs: bool,
    /// The device of the tree on which its data lies, and the number that the image has for that.
    device: u16,
    of_image: u16,
    /// What the image makes the import do again and again.
    work: WorkMeter,
}

/// An image as a file of the host, which must not change.
#[derive(Debug)]
struct LayerSource {
    path: PathBuf,
    stat: StatData,
    cancel: CancelToken,
}

/// Size and times, which change when the file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StatData(u64, (i64, i64), (i64, i64));

/// Joins the images at `paths`, the lowest first.
///
/// # Errors
/// An image cannot be read, its files have more bytes than `limit` allows, it shares more of its structures than sound
/// images do, the new image cannot refer to its data as requested, or the import was cancelled.
pub(super) fn join(
    paths: &[PathBuf],
    layering: LayerOptions,
    limit: ContentLimit,
    resources: &Resources,
    cancel: &CancelToken,
) -> Result<LayeredTree> {
    let data = layering.data;
    let mut layers = Vec::new();
    for path in paths {
        let layer = LayerImage::open(path, layering, resources, cancel);
        layers.push(layer.map_err(|error| error.at(path))?);
    }
    let block_size = check_alike(&layers, data)?;
    let uppermost = layers.last().ok_or_else(|| refused("no image"))?;
    let root = uppermost.image.root().map_err(unreadable)?;
    let mut merge = OverlayMerge::new(uppermost.metadata(&root)?, limit);
    let mut devices = Some(Vec::new());
    if data == LayerData::Referred {
        for layer in &mut layers {
            let (device, of_image) = layer.own_device();
            layer.device = merge.tree.add_device(device)?;
            layer.of_image = of_image;
        }
        let is_own = layers.iter().all(|layer| layer.of_image == 0);
        devices = is_own.then(|| paths.to_vec());
    }
    for (number, layer) in layers.iter().enumerate().rev() {
        merge.add(number, layer).map_err(|error| error.at(&layer.source.path))?;
    }
    Ok(LayeredTree { tree: merge.finish(), block_size, devices })
}

/// The marks of overlayfs that a tree has.
#[derive(Debug, Default)]
struct OverlayMarks {
    /// By directory.
    whiteouts: Vec<(NodeId, Box<[u8]>)>,
    /// What has the opaque xattr, whatever its value is.
    opaque: Vec<NodeId>,
}

impl OverlayMarks {
    fn of(tree: &Tree) -> Self {
        let is_marked = |id: &NodeId| tree.node(*id).metadata.xattrs.contains_key(OPAQUE_XATTR);
        let opaque = tree.ids().filter(is_marked).collect();
        let mut whiteouts = Vec::new();
        for parent in tree.ids().filter(|id| tree.is_directory(*id)) {
            let names = tree.entries(parent).filter(|(_, child)| is_whiteout(&tree.node(*child)));
            whiteouts.extend(names.map(|(name, _)| (parent, name)));
        }
        Self { whiteouts, opaque }
    }

    fn strip(self, tree: &mut Tree) {
        for (parent, name) in &self.whiteouts {
            tree.unlink(*parent, name);
        }
        // The whiteouts of a directory are behind one another.
        for whiteouts in self.whiteouts.chunk_by(|one, other| one.0 == other.0) {
            whiteouts.first().inspect(|(parent, _)| unmark_origin(tree, *parent));
        }
        for id in self.opaque {
            tree.node_mut(id).metadata.xattrs.remove(OPAQUE_XATTR);
        }
    }
}

/// References need images of one block size. The images must all contain their own data, or must
/// all have exactly one device with their data.
fn check_alike(layers: &[LayerImage], data: LayerData) -> Result<BlockSize> {
    let sizes = || layers.iter().map(|layer| layer.image.superblock().block_size);
    let block_size = sizes().next().ok_or_else(|| refused("no image"))?;
    if data == LayerData::Taken {
        return Ok(block_size);
    }
    for layer in layers {
        let size = layer.image.superblock().block_size;
        if size != block_size {
            let what = format!(
                "it has blocks of {} bytes, but the first image has {}; to copy the data, use --clean=data",
                size.bytes(),
                block_size.bytes()
            );
            return Err(refused(&what).at(&layer.source.path));
        }
        let (devices, first) =
            (layer.image.device_slots().len(), layers[0].image.device_slots().len());
        if devices > 1 || devices != first {
            let what = format!(
                "it has {devices} devices; give only images without a device, or only images with one device"
            );
            return Err(refused(&what).at(&layer.source.path));
        }
    }
    Ok(block_size)
}

impl LayerImage {
    /// Opens an image whose files are to lie under those of a tree.
    pub(super) fn open_base(
        path: &Path,
        resources: &Resources,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let layering =
            LayerOptions { data: LayerData::Taken, has_block_size: false, is_aufs: false };
        Self::open(path, layering, resources, cancel).map_err(|error| error.at(path))
    }

    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// Lays a tree over the files of the image, whose data is read from it. Directories that get a
    /// whiteout of the image are marked if `policy` says so. Whiteouts and opaque marks of the tree take effect before
    /// they are stripped; those of the image stay.
    ///
    /// # Errors
    /// The image cannot be read, or its files have more bytes than `limit` allows.
    pub(super) fn lay_under(
        &self,
        tree: Tree,
        policy: OverlayPolicy,
        limit: ContentLimit,
    ) -> Result<Tree> {
        let is_opaque = |id: &NodeId| {
            let is_marked = |node: Node| {
                let xattrs = &node.metadata.xattrs;
                xattrs.iter().any(|(name, value)| **name == *OPAQUE_XATTR && **value == *b"y")
            };
            tree.is_directory(*id) && is_marked(tree.node(*id))
        };
        let opaque: HashSet<_> = tree.ids().filter(is_opaque).collect();
        let marks = match policy {
            OverlayPolicy::Strip => OverlayMarks::of(&tree),
            _ => OverlayMarks::default(),
        };
        let (linked, read) = (HashMap::new(), ReadBytes { limit, left: 0 });
        let covering = HashSet::new();
        let mut merge = OverlayMerge { tree, opaque, covering, linked, parts: 0, read, policy };
        merge.add(0, self).map_err(|error| error.at(&self.source.path))?;
        let mut tree = merge.finish();
        marks.strip(&mut tree);
        Ok(tree)
    }

    fn open(
        path: &Path,
        layering: LayerOptions,
        resources: &Resources,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let stat = StatData::of(path)?;
        let image = OpenOptions::new().memory(&resources.memory).open(path).map_err(unreadable)?;
        let cancel = cancel.clone();
        let source = Arc::new(LayerSource { path: path.to_owned(), stat, cancel });
        let LayerOptions { data, is_aufs, .. } = layering;
        let work = WorkMeter::new(WorkMeter::default_limit(image.stored_bytes()));
        Ok(Self { image, source, data, is_aufs, device: 0, of_image: 0, work })
    }

    /// The place of its data, as a device of the new image and as a device of this image: the image
    /// itself, or its one device. The tag identifies the image, as in mkfs.erofs: it is the tag of
    /// its device, or its UUID.
    fn own_device(&self) -> (Device, u16) {
        let sb = self.image.superblock();
        let mut tag = [0; 64];
        let uuid: String = sb.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        for (place, byte) in tag.iter_mut().zip(uuid.bytes()) {
            *place = byte;
        }
        match self.image.device_slots() {
            [slot, ..] => {
                let tag = if slot.tag_text().is_empty() { tag } else { slot.tag };
                (Device { tag, bytes: sb.block_size.offset_of(slot.blocks).unwrap_or(u64::MAX) }, 1)
            }
            [] => {
                let bytes = sb.block_size.offset_of(sb.blocks).unwrap_or(u64::MAX);
                (Device { tag, bytes }, 0)
            }
        }
    }

    fn metadata(&self, inode: &Inode) -> Result<Metadata> {
        let xattrs = if inode.has_xattrs() {
            self.image.xattrs(inode).map_err(unreadable)?
        } else {
            Vec::new()
        };
        for xattr in &xattrs {
            let bytes = xattr.name.len().saturating_add(xattr.value.len()) as u64;
            let work = XATTR_WORK.saturating_add(bytes);
            self.work.add(work, "attributes of files").map_err(unreadable)?;
        }
        Ok(Metadata {
            permissions: inode.mode() & 0o7777,
            uid: inode.uid(),
            gid: inode.gid(),
            mtime: inode.mtime(),
            xattrs: xattrs
                .into_iter()
                .map(|xattr| (xattr.name.into(), xattr.value.into()))
                .collect(),
        })
    }

    fn node(&self, inode: &Inode) -> Result<Node> {
        let kind = match inode.file_type() {
            FileType::Regular => NodeKind::File(self.content(inode)?),
            FileType::Symlink => {
                NodeKind::Symlink(self.image.read_link(inode).map_err(unreadable)?.into())
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = inode.device().unwrap_or_default();
                match inode.file_type() {
                    FileType::CharDevice => NodeKind::CharacterDevice { major, minor },
                    _ => NodeKind::BlockDevice { major, minor },
                }
            }
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            _ => return Err(refused("an inode of unknown type")),
        };
        Ok(Node { metadata: self.metadata(inode)?, kind })
    }

    fn content(&self, inode: &Inode) -> Result<Content> {
        let file = LayerFile {
            image: self.image.clone(),
            inode: inode.clone(),
            source: Arc::clone(&self.source),
        };
        let content = Content::new(Arc::new(file), inode.size());
        match self.data {
            LayerData::Taken => Ok(content),
            LayerData::Referred => {
                let parts = self.parts(inode)?;
                // Inline data stays inline.
                let is_copied = !parts.is_empty() && parts.iter().all(|part| part.place.is_none());
                Ok(if is_copied { content } else { content.on_devices(parts) })
            }
        }
    }

    /// How many bytes of a file the build reads, to store them or for its digest. Holes count if they are stored or hashed.
    fn read_bytes(&self, inode: &Inode, holes: StoredHoles) -> Result<u64> {
        if inode.file_type() != FileType::Regular {
            return Ok(0);
        }
        match (self.data, holes) {
            (_, StoredHoles::All) => Ok(inode.size()),
            (LayerData::Referred, _) => Ok(0),
            (LayerData::Taken, _) => {
                let mut data = 0u64;
                self.for_each_extent(inode, |extent| {
                    if extent.storage != ExtentStorage::Hole {
                        data = data.saturating_add(extent.end - extent.start);
                    }
                    Ok(())
                })?;
                let has_holes_stored = holes == StoredHoles::WithData && data > 0;
                Ok(if has_holes_stored { inode.size() } else { data })
            }
        }
    }

    fn parts(&self, inode: &Inode) -> Result<Vec<SourceExtent>> {
        let block = self.image.superblock().block_size;
        // The end of such a file lies in metadata.
        let inline_from = match inode.layout() {
            DataLayout::FlatInline => inode.size() - u64::from(block.within(inode.size())),
            _ => u64::MAX,
        };
        let mut parts: Vec<SourceExtent> = Vec::new();
        self.for_each_extent(inode, |FileExtent { start, end, storage, location }| {
            let place = match storage {
                ExtentStorage::Hole => return Ok(()),
                ExtentStorage::Cluster | ExtentStorage::Fragment => {
                    return Err(refused(
                        "it is compressed, so the new image cannot refer to it; to copy the data, use --clean=data",
                    ));
                }
                ExtentStorage::Plain => {
                    location.filter(|place| start < inline_from && place.device == self.of_image)
                }
            };
            let place =
                place.map(|place| DeviceAddress { device: self.device, offset: place.offset });
            let part = SourceExtent { start, bytes: end - start, place };
            match parts.last_mut() {
                Some(last) if is_contiguous(last, &part) => last.bytes += part.bytes,
                _ => parts.push(part),
            }
            Ok(())
        })?;
        Ok(parts)
    }

    /// Calls `visit` with each extent of a file, and counts them as work.
    fn for_each_extent(
        &self,
        inode: &Inode,
        mut visit: impl FnMut(FileExtent) -> Result<()>,
    ) -> Result<()> {
        let extents = self.image.file_extents(inode, 0).map_err(unreadable)?;
        for (number, extent) in (0..).zip(extents) {
            self.source.check_cancelled(number)?;
            self.work.add(EXTENT_WORK, "extents of files").map_err(unreadable)?;
            visit(extent.map_err(unreadable)?)?;
        }
        Ok(())
    }
}

/// Whether a part begins where the one before it ends, in the file and on its device.
fn is_contiguous(before: &SourceExtent, part: &SourceExtent) -> bool {
    let (Some(one), Some(other)) = (before.place, part.place) else { return false };
    before.start + before.bytes == part.start
        && one.device == other.device
        && one.offset.checked_add(before.bytes) == Some(other.offset)
}

/// A tree under construction, from the uppermost image down.
struct OverlayMerge {
    tree: Tree,
    /// Directories that hide the images below.
    opaque: HashSet<NodeId>,
    /// Directories in place of which an image has a file: overlayfs does not look below the file. They get no xattr.
    covering: HashSet<NodeId>,
    /// Regular files and inodes with several links, by image and nid. A file may have more names than it says, all of
    /// which are links of one file in the tree: its extents are read once.
    linked: HashMap<(usize, Nid), NodeId>,
    /// Of all files so far.
    parts: usize,
    read: ReadBytes,
    /// Whether directories with whiteouts are marked.
    policy: OverlayPolicy,
}

/// The bytes of files that the build reads from one image.
struct ReadBytes {
    limit: ContentLimit,
    /// How many more it may be.
    left: u64,
}

impl ReadBytes {
    fn begin(&mut self, layer: &LayerImage) {
        self.left = self.limit.bytes(&layer.image);
    }

    fn add(&mut self, layer: &LayerImage, inode: &Inode) -> Result<()> {
        let bytes = layer.read_bytes(inode, self.limit.holes)?;
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let most = self.limit.bytes(&layer.image);
            let why = match self.limit.input {
                InputLimit::Default => "the default limit for an image of its length",
                InputLimit::Bytes(_) => "the limit for an image",
            };
            refused(&format!(
                "with this file, the files of the image have more than {most} bytes, {why}; --max-input allows more"
            ))
        })?;
        Ok(())
    }
}

impl OverlayMerge {
    fn new(root: Metadata, limit: ContentLimit) -> Self {
        let (opaque, covering, linked) = (HashSet::new(), HashSet::new(), HashMap::new());
        let (policy, read) = (OverlayPolicy::Keep, ReadBytes { limit, left: 0 });
        Self { tree: Tree::new(root), opaque, covering, linked, parts: 0, read, policy }
    }

    /// Adds the visible part of an image that lies below the images added before.
    fn add(&mut self, number: usize, layer: &LayerImage) -> Result<()> {
        self.read.begin(layer);
        let mut walk = layer.image.walk(b"/").map_err(unreadable)?.work_meter(&layer.work);
        // A directory that is skipped has no directory in the tree.
        let mut open: Vec<Option<NodeId>> = Vec::new();
        while let Some(visit) = walk.next() {
            layer.source.check_cancelled(0)?;
            match visit {
                WalkEvent::Enter(node) => {
                    let directory = match open.last() {
                        None => Some(Tree::ROOT).filter(|root| !self.opaque.contains(root)),
                        Some(parent) => self.directory(*parent, name(&node.path), &node, layer)?,
                    };
                    if directory.is_none() {
                        walk.skip_children();
                    }
                    if let Some(directory) = directory
                        && is_opaque(&node, layer)?
                    {
                        self.opaque.insert(directory);
                    }
                    open.push(directory);
                }
                WalkEvent::Leaf(node) => {
                    if let Some(Some(parent)) = open.last() {
                        let added = self.leaf(*parent, &node, layer, number);
                        added.map_err(|error| with_path(&error, &node.path))?;
                    }
                }
                WalkEvent::Leave(_) => drop(open.pop()),
                WalkEvent::Problem(problem) => {
                    let error = unreadable(problem.error);
                    return Err(with_path(&error, &problem.path));
                }
            }
        }
        Ok(())
    }

    /// The directory of the tree for this directory of an image; `None` if it is hidden.
    fn directory(
        &mut self,
        parent: Option<NodeId>,
        name: &[u8],
        node: &ferrofs_image::WalkEntry,
        layer: &LayerImage,
    ) -> Result<Option<NodeId>> {
        let Some(parent) = parent else { return Ok(None) };
        if let Some(above) = self.tree.child(parent, name) {
            let hides = self.opaque.contains(&above) || self.covering.contains(&above);
            return Ok(Some(above).filter(|above| self.tree.is_directory(*above) && !hides));
        }
        let id = self.tree.add(Node::directory(layer.metadata(&node.inode)?))?;
        self.tree.link(parent, name, id)?;
        Ok(Some(id))
    }

    fn leaf(
        &mut self,
        parent: NodeId,
        node: &ferrofs_image::WalkEntry,
        layer: &LayerImage,
        number: usize,
    ) -> Result<()> {
        let (name, inode) = (name(&node.path), &node.inode);
        if layer.is_aufs && AufsName::of(name) != AufsName::Plain {
            return Err(refused(
                "it is a whiteout of aufs; build the image of its layer with --aufs",
            ));
        }
        let hides = inode.file_type() == FileType::CharDevice && inode.device() == Some((0, 0));
        if let Some(above) = self.tree.child(parent, name) {
            if self.tree.is_directory(above) {
                let hiding = if hides { &mut self.opaque } else { &mut self.covering };
                hiding.insert(above);
            }
            return Ok(());
        }
        if hides && self.policy == OverlayPolicy::MarkOrigins {
            mark_origin(&mut self.tree.node_mut(parent).metadata);
        }
        let key = (number, inode.nid());
        let id = match self.linked.get(&key) {
            Some(id) => *id,
            None => {
                self.read.add(layer, inode)?;
                let node = layer.node(inode)?;
                let parts =
                    node.content().and_then(Content::extents).map_or(0, <[SourceExtent]>::len);
                self.parts += parts;
                if self.parts > PARTS_MAX {
                    return Err(refused(
                        "data is in too many pieces to refer to; to copy it, use --clean=data",
                    ));
                }
                let id = self.tree.add(node)?;
                if inode.nlink() > 1 || inode.file_type() == FileType::Regular {
                    self.linked.insert(key, id);
                }
                id
            }
        };
        self.tree.link(parent, name, id).map(drop)
    }

    /// The whole tree. Directories that hide lower layers get the opaque attribute of overlayfs.
    fn finish(mut self) -> Tree {
        for id in self.opaque {
            mark_opaque(&mut self.tree.node_mut(id).metadata);
        }
        self.tree
    }
}

/// Whether a directory hides the same directory of the images below.
fn is_opaque(node: &ferrofs_image::WalkEntry, layer: &LayerImage) -> Result<bool> {
    if !node.inode.has_xattrs() {
        return Ok(false);
    }
    let value = layer.image.xattr(&node.inode, OPAQUE_XATTR).map_err(unreadable)?;
    Ok(value.as_deref() == Some(b"y"))
}

fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A regular file of an image.
struct LayerFile {
    image: Image,
    inode: Inode,
    source: Arc<LayerSource>,
}

impl ContentSource for LayerFile {
    fn name(&self) -> String {
        format!("{}: nid {}", self.source.path.display(), self.inode.nid())
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        self.source.check_unchanged()?;
        let (image, inode) = (self.image.clone(), self.inode.clone());
        Ok(Box::new(Self { image, inode, source: Arc::clone(&self.source) }))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let mut data: Vec<Range<u64>> = Vec::new();
        let extents = self.image.file_extents(&self.inode, 0).map_err(unreadable)?;
        for (number, range) in (0..).zip(extents) {
            self.source.check_cancelled(number)?;
            let range = range.map_err(unreadable)?;
            match data.last_mut() {
                _ if range.storage == ExtentStorage::Hole => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => data.push(range.start..range.end),
            }
        }
        Ok(data)
    }
}

impl ContentReader for LayerFile {
    fn read_exact_at(&mut self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let read = self.image.read_at(&self.inode, offset, buffer).map_err(unreadable);
            let count =
                read.map_err(|error| error.at(ContentSource::name(self)).at_byte(offset))?;
            if count == 0 {
                let why = refused("its contents are shorter than its size");
                return Err(why.at(ContentSource::name(self)).at_byte(offset));
            }
            buffer = buffer.split_at_mut(count).1;
            offset += count as u64;
        }
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.source.check_unchanged()
    }
}

impl LayerSource {
    /// Reads the token before the extent of this number, once for [`CANCEL_CHECK_EXTENTS`].
    fn check_cancelled(&self, number: u64) -> Result<()> {
        if number.is_multiple_of(CANCEL_CHECK_EXTENTS) && self.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        if StatData::of(&self.path)? == self.stat {
            return Ok(());
        }
        let how = "its size or its times have changed".to_owned();
        Err(Error::new(ErrorKind::SourceChanged { how }).at(&self.path))
    }
}

impl StatData {
    fn of(path: &Path) -> Result<Self> {
        let found = fs::metadata(path).map_err(|source| {
            Error::new(ErrorKind::Input { operation: "cannot examine", source }).at(path)
        })?;
        let (modified, changed) =
            ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
        Ok(Self(found.len(), modified, changed))
    }
}

fn unreadable(error: ferrofs_image::Error) -> Error {
    let source = std::io::Error::other(error);
    Error::new(ErrorKind::Input { operation: "cannot read the image", source })
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported(what.to_owned()))
}

/// The same error, about a path in an image.
fn with_path(error: &Error, path: &[u8]) -> Error {
    if matches!(error.kind(), ErrorKind::Cancelled) {
        return Error::new(ErrorKind::Cancelled);
    }
    refused(&format!("{}: {error}", path.escape_ascii()))
}
