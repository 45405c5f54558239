//! Merges the entries of archives into one tree, as tar would extract them.
//!
//! A later entry replaces an earlier one; a directory gets the later metadata and keeps its
//! entries. Directories without an entry have the metadata of [`LayerMerger::new`]. No entry leads
//! out of the tree or through a symlink.
//!
//! Whiteouts are names by which a layer deletes what lower layers have, in the spelling of aufs and
//! OCI images: `.wh.NAME` deletes NAME, `.wh..wh..opq` everything that lower layers have in its
//! directory. Other names that begin with `.wh..wh.` are internal to aufs.

use ferrofs_ondisk::FileType;

use super::entry_reader::{EntryKind, TarEntry};
use super::{display_name, refused};
use crate::spill::SpillStore;
use crate::spill::paged::PagedArray;
use crate::tree::{Device, Metadata, Node, NodeId, NodeKind, NodeSet, Tree};
use crate::{Error, ErrorKind, Result};

const OPAQUE: &[u8] = b"trusted.overlay.opaque";
const ORIGIN: &[u8] = b"trusted.overlay.origin";

/// The longest name in a directory, in bytes (format.md F6).
const NAME_BYTES_MAX: usize = 255;
/// The longest path of an entry, in bytes: that of Linux. Each component of a path can become a directory, which counts
/// against the limit of the archive.
const PATH_BYTES_MAX: usize = 4096;
/// Entries of a directory that are in memory at once while its lower names are removed.
const BATCH_MAX: usize = 128;

/// A tree to which layers are being added.
pub(super) struct LayerMerger {
    tree: Tree,
    /// The metadata of directories without an entry.
    missing: Metadata,
    whiteouts: WhiteoutPolicy,
    /// The number of the current layer, from 0, with which its names are tagged.
    current_layer: u32,
    /// The directories in which the current layer has removed all lower names; they are not
    /// searched again.
    cleared: NodeSet,
    /// Whiteouts of overlayfs, and opaque directories.
    marked: NodeSet,
    opaque: NodeSet,
    /// Directories that were made since a path lies below them.
    implied_directories: u64,
    /// Whether there are inodes without a name.
    has_orphans: bool,
}

impl LayerMerger {
    /// A tree with only a root.
    pub(super) fn new(missing: Metadata, whiteouts: WhiteoutPolicy, store: &SpillStore) -> Self {
        Self {
            tree: Tree::in_store(missing.clone(), store),
            missing,
            whiteouts,
            current_layer: 0,
            cleared: NodeSet::new(store),
            marked: NodeSet::new(store),
            opaque: NodeSet::new(store),
            implied_directories: 0,
            has_orphans: false,
        }
    }

    /// Where the tree lies.
    pub(super) fn store(&self) -> &SpillStore {
        self.tree.store()
    }

    /// Begins the next layer, above all others.
    pub(super) fn next_layer(&mut self) {
        self.current_layer += 1;
        self.cleared.clear();
    }

    /// The number of the next device.
    pub(super) fn next_device(&self) -> Result<u16> {
        u16::try_from(self.tree.devices().len() + 1)
            .map_err(|_| Error::new(ErrorKind::Unsupported("more than 65,535 devices".to_owned())))
    }

    /// Adds a device with contents.
    pub(super) fn add_device(&mut self, device: Device) -> Result<()> {
        self.tree.add_device(device).map(drop)
    }

    /// Adds an entry, whose path is `path`. Returns how many directories without an entry that took.
    pub(super) fn add(&mut self, entry: TarEntry, path: &[u8]) -> Result<u64> {
        let offset = entry.offset;
        let implied_before = self.implied_directories;
        self.add_named(entry, path).map_err(|error| match error.kind() {
            ErrorKind::Format(why) => refused(format!("{}: {why}", display_name(path)), offset),
            // Its path is that of the temporary file, not of the archive.
            ErrorKind::Output { .. } => error,
            _ => error.at_byte(offset),
        })?;
        Ok(self.implied_directories - implied_before)
    }

    fn add_named(&mut self, entry: TarEntry, path: &[u8]) -> Result<()> {
        let names = components(path)?;
        let marked = match self.whiteouts {
            WhiteoutPolicy::Keep => WhiteoutMarker::None,
            WhiteoutPolicy::ToOverlay | WhiteoutPolicy::Apply => {
                whiteout_marker(&names).map_err(|why| archive(path, why))?
            }
        };
        match (marked, names.split_last()) {
            (WhiteoutMarker::Bookkeeping, _) => Ok(()),
            (WhiteoutMarker::None, None) => self.update_root(entry),
            (WhiteoutMarker::None, Some((name, parents))) => self.place(entry, parents, name),
            (_, None) => Ok(()),
            (whiteout_marker, Some((_, parents))) if self.whiteouts == WhiteoutPolicy::Apply => {
                self.apply(whiteout_marker, parents);
                Ok(())
            }
            (WhiteoutMarker::Opaque, Some((_, parents))) => {
                let directory = self.directory(parents, path)?;
                self.make_opaque(directory);
                Ok(())
            }
            (WhiteoutMarker::Name(name), Some((_, parents))) => {
                self.apply_whiteout(entry, parents, name)
            }
        }
    }

    fn update_root(&mut self, entry: TarEntry) -> Result<()> {
        if !matches!(entry.kind, EntryKind::Directory) {
            return Err(archive(&entry.path, "is the root, but not a directory"));
        }
        self.tree.node_mut(Tree::ROOT).metadata = entry.metadata;
        Ok(())
    }

    /// Adds an entry at its place.
    fn place(&mut self, entry: TarEntry, parents: &[&[u8]], name: &[u8]) -> Result<()> {
        let TarEntry { path, kind, metadata, .. } = entry;
        let parent = self.directory(parents, &path)?;
        let before = self.tree.child(parent, name);
        let id = match kind {
            EntryKind::Directory => return self.place_directory(parent, name, metadata),
            EntryKind::HardLink(target) => {
                let id = self.target(&path, &target)?;
                if before == Some(id) {
                    // An archive may repeat a link, as `tar -r` does; a link to itself is none.
                    let is_itself = components(&target)? == components(&path)?;
                    return if is_itself {
                        let target = display_name(&target);
                        let why = format!("is a hard link to {target}, which is the same file");
                        Err(archive(&path, &why))
                    } else {
                        // The name is one of this layer now, whose opaque marks leave it alone.
                        self.mark_current_layer(parent, name);
                        Ok(())
                    };
                }
                self.check_replaceable(parent, name, before, &path)?;
                id
            }
            EntryKind::Inode(kind) => {
                self.check_replaceable(parent, name, before, &path)?;
                self.tree.add(Node { metadata, kind })?
            }
        };
        self.link(parent, name, id)
    }

    fn place_directory(&mut self, parent: NodeId, name: &[u8], metadata: Metadata) -> Result<()> {
        let before = self.tree.child(parent, name);
        if let Some(before) = before
            && self.tree.is_directory(before)
        {
            self.tree.node_mut(before).metadata = metadata;
            self.mark_current_layer(parent, name);
            return Ok(());
        }
        let id = self.tree.add(Node::directory(metadata))?;
        // In any order of the entries, a directory with a whiteout of its name shows no lower
        // entries.
        if before.is_some_and(|before| self.marked.contains(before)) {
            self.opaque.insert(id);
        }
        self.link(parent, name, id)
    }

    /// Whether the node of a name may be replaced by something that is not a directory.
    fn check_replaceable(
        &self,
        parent: NodeId,
        name: &[u8],
        before: Option<NodeId>,
        path: &[u8],
    ) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let is_filled = self.tree.entries(before).next().is_some();
        if is_filled && self.is_from_current_layer(parent, name) {
            return Err(archive(path, "would replace a directory that is not empty"));
        }
        Ok(())
    }

    /// Adds a whiteout for overlayfs.
    fn apply_whiteout(&mut self, entry: TarEntry, parents: &[&[u8]], name: &[u8]) -> Result<()> {
        let parent = self.directory(parents, &entry.path)?;
        let before =
            self.tree.child(parent, name).filter(|_| self.is_from_current_layer(parent, name));
        if let Some(before) = before {
            // This layer has the name, too, which hides the lower one itself, or all but its
            // entries.
            if self.tree.is_directory(before) {
                self.make_opaque(before);
            }
            return Ok(());
        }
        let kind = NodeKind::CharacterDevice { major: 0, minor: 0 };
        let id = self.tree.add(Node { metadata: entry.metadata, kind })?;
        self.marked.insert(id);
        self.link(parent, name, id)
    }

    /// Marks a directory as opaque for overlayfs. What lower archives have in it is in the same tree, where the attribute
    /// does not hide it, so it is removed.
    fn make_opaque(&mut self, directory: NodeId) {
        self.opaque.insert(directory);
        if self.current_layer > 0 {
            self.remove_all_lower(Some(directory));
        }
    }

    /// Removes names of lower layers.
    fn apply(&mut self, whiteout_marker: WhiteoutMarker<'_>, parents: &[&[u8]]) {
        let Some(directory) = self.find(parents) else { return };
        if self.current_layer == 0 {
            return;
        }
        match whiteout_marker {
            WhiteoutMarker::Name(name) => {
                if self.remove_lower(directory, name) {
                    self.remove_all_lower(self.tree.child(directory, name));
                }
            }
            WhiteoutMarker::Opaque => self.remove_all_lower(Some(directory)),
            WhiteoutMarker::None | WhiteoutMarker::Bookkeeping => {}
        }
    }

    /// Removes a name unless it is of the current layer. Returns whether it is still there.
    fn remove_lower(&mut self, parent: NodeId, name: &[u8]) -> bool {
        if self.is_from_current_layer(parent, name) {
            return self.tree.child(parent, name).is_some();
        }
        self.has_orphans |= self.tree.unlink(parent, name).is_some();
        false
    }

    /// Removes, in a directory and everything below it, the names that are not of the current
    /// layer.
    fn remove_all_lower(&mut self, directory: Option<NodeId>) {
        let mut open: Vec<_> = directory.into_iter().collect();
        while let Some(directory) = open.pop() {
            if !self.cleared.insert(directory) {
                continue;
            }
            let mut batch: Vec<_> = self.tree.entries(directory).take(BATCH_MAX).collect();
            while let Some((last, _)) = batch.last().cloned() {
                for (name, id) in batch {
                    if self.remove_lower(directory, &name) && self.tree.is_directory(id) {
                        open.push(id);
                    }
                }
                batch = self.tree.entries_behind(directory, &last).take(BATCH_MAX).collect();
            }
        }
    }

    /// Whether a name is of the current layer; with one layer all are.
    fn is_from_current_layer(&self, parent: NodeId, name: &[u8]) -> bool {
        let tagged = || self.tree.tagged_child(parent, name);
        self.current_layer == 0 || tagged().is_some_and(|(_, tag)| tag == self.current_layer)
    }

    fn mark_current_layer(&mut self, parent: NodeId, name: &[u8]) {
        if self.current_layer > 0 {
            self.tree.set_tag(parent, name, self.current_layer);
        }
    }

    fn link(&mut self, parent: NodeId, name: &[u8], id: NodeId) -> Result<()> {
        let child = (id, self.current_layer);
        self.has_orphans |= self.tree.link_tagged(parent, name, child)?.is_some();
        Ok(())
    }

    /// The directory with these components, created if it is missing.
    fn directory(&mut self, names: &[&[u8]], path: &[u8]) -> Result<NodeId> {
        let mut at = Tree::ROOT;
        for name in names {
            at = match self.tree.child(at, name) {
                Some(child) if self.marked.contains(child) => {
                    let id = self.add_implied_directory()?;
                    self.opaque.insert(id);
                    self.link(at, name, id)?;
                    id
                }
                Some(child) => {
                    if let Some(what) = obstacle(self.tree.file_type(child)) {
                        let why = format!("lies below {}, which is {what}", display_name(name));
                        return Err(archive(path, &why));
                    }
                    self.mark_current_layer(at, name);
                    child
                }
                None => {
                    let id = self.add_implied_directory()?;
                    self.link(at, name, id)?;
                    id
                }
            };
        }
        Ok(at)
    }

    fn add_implied_directory(&mut self) -> Result<NodeId> {
        self.implied_directories += 1;
        self.tree.add(Node::directory(self.missing.clone()))
    }

    /// The node with these components.
    fn find(&self, names: &[&[u8]]) -> Option<NodeId> {
        names.iter().try_fold(Tree::ROOT, |at, name| self.tree.child(at, name))
    }

    /// The target of a hard link.
    fn target(&self, path: &[u8], target: &[u8]) -> Result<NodeId> {
        let names = components(target)?;
        let why = if names.is_empty() {
            "is the root"
        } else {
            match self.find(&names) {
                None => "is not an earlier entry",
                Some(id) if self.tree.is_directory(id) => "is a directory",
                Some(id) => return Ok(id),
            }
        };
        Err(archive(path, &format!("is a hard link to {}, which {why}", display_name(target))))
    }

    /// The complete tree.
    pub(super) fn finish(mut self) -> Result<Tree> {
        for id in self.opaque.iter() {
            self.tree.set_xattr(id, OPAQUE, b"y");
        }
        if !self.marked.is_empty() {
            for id in self.tree.ids() {
                let has_mark = self.tree.is_directory(id)
                    && self.tree.entries(id).any(|(_, child)| self.marked.contains(child));
                if has_mark && !self.tree.node(id).metadata.xattrs.contains_key(ORIGIN) {
                    self.tree.set_xattr(id, ORIGIN, b"");
                }
            }
        }
        if self.has_orphans { remove_orphans(&self.tree) } else { Ok(self.tree) }
    }
}

/// The tree without inodes that have no name.
fn remove_orphans(tree: &Tree) -> Result<Tree> {
    let mut kept = Tree::in_store(tree.node(Tree::ROOT).metadata, tree.store());
    for device in tree.devices() {
        kept.add_device(device.clone())?;
    }
    // By the index of the node: its number in the new tree, where only the root has number 0.
    let mut places = PagedArray::<u32>::zeros(tree.store(), tree.len());
    let mut open = vec![(Tree::ROOT, Tree::ROOT)];
    while let Some((directory, new_directory)) = open.pop() {
        for (name, id) in tree.entries(directory) {
            let place = match places.get(id.index()) {
                Some(place @ 1..) => NodeId::from_index(place),
                _ => {
                    let place = kept.add(tree.node(id))?;
                    if tree.is_directory(id) {
                        open.push((id, place));
                    }
                    places.set(id.index(), place.number());
                    place
                }
            };
            kept.link(new_directory, &name, place)?;
        }
    }
    Ok(kept)
}

/// Why an inode cannot have entries below it.
fn obstacle(file_type: FileType) -> Option<&'static str> {
    match file_type {
        FileType::Directory => None,
        FileType::Symlink => Some("a symlink"),
        FileType::CharDevice | FileType::BlockDevice => Some("a device"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a regular file"),
    }
}

/// The components of a path, without `.` and without slashes at its start and end.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.is_empty() {
        return Err(Error::new(ErrorKind::Archive("an entry or a link without a name".to_owned())));
    }
    if path.len() > PATH_BYTES_MAX {
        let why = format!("has a path of {} bytes, more than {PATH_BYTES_MAX}", path.len());
        return Err(archive(path, &why));
    }
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<_> = names.collect();
    for name in &names {
        if *name == b".." {
            return Err(archive(path, "contains \"..\""));
        }
        if name.len() > NAME_BYTES_MAX {
            let why =
                format!("has a component of {} bytes, more than {NAME_BYTES_MAX}", name.len());
            return Err(archive(path, &why));
        }
    }
    Ok(names)
}

/// An error with the name of an entry; [`LayerMerger::add`] adds its offset.
fn archive(path: &[u8], why: &str) -> Error {
    Error::new(ErrorKind::Archive(format!("{} {why}", display_name(path))))
}

/// How whiteouts are imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhiteoutPolicy {
    /// As ordinary files.
    #[default]
    Keep,
    /// As whiteouts of overlayfs (`--aufs`): a character device 0:0 in place of NAME, and the xattr
    /// `trusted.overlay.opaque` on an opaque directory. A directory with such devices gets an empty
    /// `trusted.overlay.origin`, unless it has one, so that overlayfs hides them. What the archives before this one have
    /// there is removed, too.
    ToOverlay,
    /// They delete names of the archives before this one, and are not in the tree themselves.
    Apply,
}

/// The meaning of the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhiteoutMarker<'a> {
    /// An ordinary name.
    None,
    /// A whiteout of this name.
    Name(&'a [u8]),
    /// An opaque directory.
    Opaque,
    /// A name that is internal to aufs.
    Bookkeeping,
}

/// The meaning of `path`, a list of components.
pub(super) fn whiteout_marker<'a>(path: &[&'a [u8]]) -> Result<WhiteoutMarker<'a>, &'static str> {
    let Some((last, parents)) = path.split_last() else { return Ok(WhiteoutMarker::None) };
    if parents.iter().any(|name| name.starts_with(b".wh..wh.")) {
        return Ok(WhiteoutMarker::Bookkeeping);
    }
    if parents.iter().any(|name| name.starts_with(b".wh.")) {
        return Err("lies below a whiteout");
    }
    match last.strip_prefix(b".wh.") {
        None => Ok(WhiteoutMarker::None),
        Some(b".wh..opq") => Ok(WhiteoutMarker::Opaque),
        Some(name) if name.starts_with(b".wh.") => Ok(WhiteoutMarker::Bookkeeping),
        Some(b"" | b"." | b"..") => Err("is a whiteout without a name"),
        Some(name) => Ok(WhiteoutMarker::Name(name)),
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_workers::CancelToken;

    use super::super::from_tar_layers;
    use super::super::tests::{ArchiveBuilder, ROOT, import, layer, listing, names, options};
    use super::*;
    use crate::NoopObserver;

    #[test]
    fn marks_are_told_from_names() {
        for (path, wanted) in [
            (&[][..], Ok(WhiteoutMarker::None)),
            (&[&b"a"[..], b"b"], Ok(WhiteoutMarker::None)),
            (&[b"a", b".wh.b"], Ok(WhiteoutMarker::Name(b"b"))),
            (&[b".wh..b"], Ok(WhiteoutMarker::Name(b".b"))),
            (&[b"a", b".wh..wh..opq"], Ok(WhiteoutMarker::Opaque)),
            (&[b".wh..wh.plnk"], Ok(WhiteoutMarker::Bookkeeping)),
            (&[b".wh..wh.plnk", b"12.34"], Ok(WhiteoutMarker::Bookkeeping)),
            (&[b".wh.a", b"b"], Err("lies below a whiteout")),
            (&[b".wh."], Err("is a whiteout without a name")),
            (&[b".wh..."], Err("is a whiteout without a name")),
        ] {
            assert_eq!(whiteout_marker(path), wanted);
        }
    }

    fn applied(layers: Vec<Vec<u8>>) -> Vec<String> {
        let layers = layers.into_iter().map(layer).collect();
        names(
            &from_tar_layers(
                layers,
                &options(WhiteoutPolicy::Apply),
                &NoopObserver,
                &CancelToken::new(),
            )
            .unwrap(),
        )
    }

    #[test]
    fn whiteouts_become_those_of_overlayfs() {
        let archive = ArchiveBuilder::new()
            .directory("a/")
            .file("a/.wh.gone", "")
            .file("b/.wh..wh..opq", "")
            .directory("b")
            .end();
        let tree = import(&archive, &options(WhiteoutPolicy::ToOverlay)).unwrap();
        let wanted = [
            ROOT,
            "a directory 644 0:0 0.000000000 trusted.overlay.origin=",
            "a/gone character device 0:0 644 0:0 0.000000000",
            "b directory 644 0:0 0.000000000 trusted.overlay.opaque=y",
        ];
        assert_eq!(listing(&tree), wanted);
    }

    #[test]
    fn marks_of_whiteouts_stay_where_xattrs_of_entries_are_left_out() {
        use crate::import::adjust::XattrFilter;

        let records: [(&str, &[u8]); 2] =
            [("SCHILY.xattr.user.a", b"1"), ("SCHILY.xattr.trusted.overlay.opaque", b"x")];
        let archive = ArchiveBuilder::new().pax(&records).directory("a").file("a/.wh..wh..opq", "");
        let archive = archive.pax(&records).directory("b").file("b/.wh.gone", "").end();
        let named = XattrFilter::Named { include: vec![b"user.*".to_vec()], exclude: Vec::new() };
        for (xattrs, kept) in [(XattrFilter::None, ""), (named, " user.a=1")] {
            let options = options(WhiteoutPolicy::ToOverlay).xattrs(xattrs);
            let wanted = [
                ROOT.to_owned(),
                format!("a directory 644 0:0 0.000000000 trusted.overlay.opaque=y{kept}"),
                format!("b directory 644 0:0 0.000000000 trusted.overlay.origin={kept}"),
                "b/gone character device 0:0 644 0:0 0.000000000".to_owned(),
            ];
            assert_eq!(listing(&import(&archive, &options).unwrap()), wanted);
        }
    }

    #[test]
    fn an_origin_of_the_archive_stays_on_a_directory_with_whiteouts() {
        let records: [(&str, &[u8]); 1] = [("SCHILY.xattr.trusted.overlay.origin", b"id")];
        let archive =
            ArchiveBuilder::new().pax(&records).directory("a").file("a/.wh.gone", "").end();
        let listing = listing(&import(&archive, &options(WhiteoutPolicy::ToOverlay)).unwrap());
        assert_eq!(listing[1], "a directory 644 0:0 0.000000000 trusted.overlay.origin=id");
    }

    #[test]
    fn whiteouts_are_kept_as_files_unless_told_otherwise() {
        let archive = ArchiveBuilder::new().file("a/.wh.gone", "").file(".wh..wh..opq", "").end();
        let tree = import(&archive, &options(WhiteoutPolicy::Keep)).unwrap();
        assert_eq!(names(&tree), [".wh..wh..opq", "a", "a/.wh.gone"]);
    }

    #[test]
    fn the_order_of_a_whiteout_and_a_new_directory_does_not_matter() {
        let whiteout = |archive: ArchiveBuilder| archive.file(".wh.a", "");
        let wanted = [
            ROOT,
            "a directory 644 0:0 0.000000000 trusted.overlay.opaque=y",
            "a/new file of 1 bytes, sum 120 644 0:0 0.000000000",
        ];
        let new = |archive: ArchiveBuilder| archive.directory("a").file("a/new", "x");
        for archive in [new(whiteout(ArchiveBuilder::new())), whiteout(new(ArchiveBuilder::new()))]
        {
            let tree = import(&archive.end(), &options(WhiteoutPolicy::ToOverlay)).unwrap();
            assert_eq!(listing(&tree), wanted);
        }
    }

    #[test]
    fn an_opaque_directory_of_many_names_loses_all_lower_ones() {
        let file =
            |archive: ArchiveBuilder, number: u32| archive.file(&format!("d/{number:03}"), "");
        let lower = (0..400).fold(ArchiveBuilder::new(), file).end();
        let upper = ArchiveBuilder::new().file("d/new", "").file("d/.wh..wh..opq", "").end();
        assert_eq!(applied(vec![lower, upper]), ["d", "d/new"]);
    }

    #[test]
    fn an_applied_whiteout_takes_away_what_lower_layers_have() {
        let lower = ArchiveBuilder::new()
            .file("a/x", "1")
            .file("a/y", "2")
            .file("b/z", "3")
            .file("c", "4")
            .end();
        let upper = ArchiveBuilder::new()
            .file("a/.wh.x", "")
            .file(".wh.b", "")
            .file(".wh.not-there", "")
            .end();
        assert_eq!(applied(vec![lower, upper]), ["a", "a/y", "c"]);
    }

    #[test]
    fn an_applied_whiteout_leaves_what_its_own_layer_has() {
        let lower = ArchiveBuilder::new().file("a/x", "1").file("a/deep/y", "2").end();
        for is_first in [true, false] {
            for whiteout in [".wh.a", "a/.wh..wh..opq"] {
                let mut upper = ArchiveBuilder::new();
                if is_first {
                    upper = upper.file(whiteout, "");
                }
                upper = upper.file("a/deep/new", "3");
                if !is_first {
                    upper = upper.file(whiteout, "");
                }
                let found = applied(vec![lower.clone(), upper.end()]);
                assert_eq!(found, ["a", "a/deep", "a/deep/new"], "{whiteout} {is_first}");
            }
        }
    }

    #[test]
    fn an_opaque_mark_leaves_hard_links_of_its_own_layer() {
        let lower = ArchiveBuilder::new().file("file", "").directory("d");
        let lower = lower.link(b'1', "d/link", "file").file("d/gone", "");
        let upper = ArchiveBuilder::new().link(b'1', "d/link", "file").file("d/.wh..wh..opq", "");
        assert_eq!(applied(vec![lower.end(), upper.end()]), ["d", "d/link", "file"]);
    }

    #[test]
    fn an_upper_layer_replaces_a_directory_by_a_file_and_back() {
        let directory = ArchiveBuilder::new().file("a/x", "1").end();
        let file = ArchiveBuilder::new().file("a", "1").end();
        let empty = ArchiveBuilder::new().directory("a").end();
        assert_eq!(applied(vec![directory.clone(), file.clone()]), ["a"]);
        assert_eq!(applied(vec![file, empty, directory]), ["a", "a/x"]);
    }

    #[test]
    fn a_hard_link_may_lead_to_a_lower_layer_and_outlive_its_name() {
        let lower = ArchiveBuilder::new().file("a", "1").end();
        let upper = ArchiveBuilder::new().link(b'1', "b", "a").file(".wh.a", "").end();
        assert_eq!(applied(vec![lower, upper]), ["b"]);
    }

    #[test]
    fn bookkeeping_of_aufs_is_left_out() {
        let archive = ArchiveBuilder::new()
            .directory(".wh..wh.plnk")
            .file(".wh..wh.plnk/1.2", "x")
            .file("a", "")
            .end();
        for whiteouts in [WhiteoutPolicy::ToOverlay, WhiteoutPolicy::Apply] {
            assert_eq!(names(&import(&archive, &options(whiteouts)).unwrap()), ["a"]);
        }
    }

    #[test]
    fn strange_whiteouts_are_refused() {
        for (path, wanted) in [
            ("a/.wh.", "\"a/.wh.\" is a whiteout without a name"),
            (".wh.a/b", "\".wh.a/b\" lies below a whiteout"),
            ("x/.wh...", "\"x/.wh...\" is a whiteout without a name"),
        ] {
            let archive = ArchiveBuilder::new().file(path, "").end();
            let error = import(&archive, &options(WhiteoutPolicy::ToOverlay)).unwrap_err();
            assert_eq!(error.to_string(), format!("a.tar: byte 0: {wanted}"));
        }
    }

    /// Paths and xattrs of the tree of some archives, the root left out; for another name of a file, which it is.
    fn merged(layers: &[Vec<u8>]) -> Vec<String> {
        let layers = layers.iter().cloned().map(layer).collect();
        let options = options(WhiteoutPolicy::ToOverlay);
        let lines = listing(
            &from_tar_layers(layers, &options, &NoopObserver, &CancelToken::new()).unwrap(),
        );
        assert_eq!(lines[0], ROOT);
        let shortened = |line: &String| match line.split_once(" 0:0 0.000000000") {
            Some((kind, xattrs)) => format!("{}{xattrs}", kind.split(' ').next().unwrap()),
            None => line.clone(),
        };
        lines[1..].iter().map(shortened).collect()
    }

    #[test]
    fn whiteouts_for_overlayfs_delete_what_lower_layers_have_in_any_order() {
        let lower = ArchiveBuilder::new().file("a/old", "1").file("a/deep/x", "2");
        let lower = lower.file("a/.wh.gone", "").file("b", "3").end();
        for whiteout in [".wh.a", "a/.wh..wh..opq"] {
            for position in 0..3 {
                let mut upper = ArchiveBuilder::new();
                for step in 0..3 {
                    upper = if step == position { upper.file(whiteout, "") } else { upper };
                    upper = match step {
                        0 => upper.directory("a"),
                        1 => upper.file("a/deep/new", "4"),
                        _ => upper,
                    };
                }
                let found = merged(&[lower.clone(), upper.end()]);
                let wanted = ["a trusted.overlay.opaque=y", "a/deep", "a/deep/new", "b"];
                assert_eq!(found, wanted, "{whiteout} {position}");
            }
        }
    }

    #[test]
    fn an_opaque_mark_of_a_lower_layer_deletes_nothing_of_an_upper_one() {
        let lowest = ArchiveBuilder::new().file("a/old", "1").end();
        let middle = ArchiveBuilder::new().file("a/.wh..wh..opq", "").file("a/middle", "2").end();
        let upper = ArchiveBuilder::new().file("a/new", "3").end();
        let wanted = ["a trusted.overlay.opaque=y", "a/middle", "a/new"];
        assert_eq!(merged(&[lowest, middle, upper]), wanted);
    }

    #[test]
    fn an_opaque_mark_for_overlayfs_leaves_hard_links_of_its_own_layer() {
        let lower = ArchiveBuilder::new().file("file", "").directory("d");
        let lower = lower.link(b'1', "d/link", "file").file("d/gone", "");
        let upper = ArchiveBuilder::new().link(b'1', "d/link", "file").file("d/.wh..wh..opq", "");
        let wanted = ["d trusted.overlay.opaque=y", "d/link", "file is d/link"];
        assert_eq!(merged(&[lower.end(), upper.end()]), wanted);
    }
}
