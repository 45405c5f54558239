//! The xattrs of the whole tree: which are stored once for many inodes, which names have long prefixes, and
//! the body of each inode. Bodies that are equal are one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use ferrofs_ondisk::xattr::{
    LongPrefix, NameIndex, XattrEntry, filter_of_names, split_long_name, split_name, write_body,
    write_entry,
};

use xxhash_rust::xxh3::xxh3_128;

use crate::context::BuildMemory;
use crate::metadata::placement::InodeOrder;
use crate::options::validate::{long_prefix, prefix_of_digest};
use crate::spill::paged::{PagedArray, PagedBytes, Sorter};
use crate::tree::{NodeId, Tree, XattrMap};
use crate::{BuildOptions, Error, ErrorKind, Result};

/// Shared entries that a body can name (docs/format.md F20).
const SHARED_MAX: usize = 255;
/// The unit of ids of shared entries.
const ID_UNIT_BYTES: u32 = 4;

/// A full name and a value.
type Attribute = (Box<[u8]>, Box<[u8]>);

/// Two halves of a hash.
type AttributeHash = (u64, u64);

/// While they are sorted, the attributes that are to be shared take one part in so many of the memory at most. Those behind
/// are not shared.
const SHARED_SHARE: u64 = 8;
/// The bytes of all of them at most: ids count in units of 4 bytes, and bodies name bytes of the area.
const SHARED_BYTES_MAX: u64 = 1 << 31;
/// What the sorted set adds to an attribute in memory, in bytes.
const SORTED_BYTES: u64 = 128;
/// Bytes of a place in memory.
const PLACE_BYTES: u64 = 64;

/// The xattrs of a tree, ready to be placed.
#[derive(Debug)]
pub(crate) struct XattrPlan<'t> {
    tree: &'t Tree,
    /// Long prefixes that some name has.
    prefixes: Vec<LongPrefix<'t>>,
    /// The area of shared entries.
    pub(crate) shared: PagedBytes,
    /// By the hash of an attribute: where the shared entry lies, in bytes from the start of the area. Another attribute may
    /// have the same hash, so the entry is compared.
    places: HashMap<AttributeHash, u32>,
    /// By the number of the set: the bytes of its body.
    body_bytes: PagedArray<u32>,
    /// Some inode that has a name has xattrs.
    has_bodies: bool,
    /// The name of the xattr that holds the digest of a file, and the number of its long prefix, which is all of it.
    digest: Option<(&'t [u8], u8)>,
    /// The body of the root takes so many bytes at least.
    root_bytes: u32,
    /// Bodies have filters of names.
    has_filters: bool,
}

/// The body of one inode or of many.
#[derive(Debug, Default)]
struct XattrBody<'x> {
    filter: u32,
    /// In bytes from the start of the area.
    shared: Vec<u32>,
    inline: Vec<XattrEntry<'x>>,
}

/// The shortest body that the format allows: a header and an entry (docs/format.md F12).
const BODY_BYTES_MIN: u32 = 16;

impl<'t> XattrPlan<'t> {
    /// Plans the xattrs of the inodes `order`, each of which comes once.
    ///
    /// # Errors
    /// A name whose prefix the format does not know, and more xattrs than an inode can have; the path is
    /// the caller's to add, the node comes with the error.
    pub(crate) fn new(
        tree: &'t Tree,
        order: &InodeOrder,
        options: &'t BuildOptions,
        memory: &BuildMemory,
    ) -> Result<Self, (NodeId, Error)> {
        let root_bytes = match options.root_xattr_bytes {
            0 => 0,
            bytes => bytes.max(BODY_BYTES_MIN).next_multiple_of(ID_UNIT_BYTES),
        };
        let mut plan = Self {
            tree,
            prefixes: Vec::new(),
            shared: PagedBytes::new(tree.store()),
            places: HashMap::new(),
            body_bytes: PagedArray::zeros(tree.store(), tree.xattr_sets()),
            has_bodies: false,
            digest: None,
            root_bytes,
            has_filters: options.xattr_filter,
        };
        let users = SetUsers::count(tree, order);
        plan.prefixes = used_prefixes(tree, &users, options);
        plan.add_digest(options);
        plan.place_shared(&users, options, memory).map_err(|error| (Tree::ROOT, error))?;
        for id in order.iter() {
            let number = tree.record(id).xattrs;
            if number == 0 || plan.body_bytes.get(number as usize) != Some(0) {
                continue;
            }
            let xattrs = tree.xattr_set(number);
            // Whatever the format refuses is found here, before anything is written.
            let written = plan.body(&xattrs).and_then(|body| body.write(0));
            let bytes = written.map_err(|error| (id, error))?.len();
            plan.body_bytes.set(number as usize, u32::try_from(bytes).unwrap_or(u32::MAX));
            plan.has_bodies = true;
        }
        tree.store().check().map_err(|error| (Tree::ROOT, error))?;
        Ok(plan)
    }

    /// Bytes of the body behind the inode of `id`; 0 for none.
    pub(crate) fn body_bytes(&self, id: NodeId) -> u32 {
        let set = self.tree.record(id).xattrs as usize;
        self.body_bytes.get(set).unwrap_or(0).max(self.min_bytes(id))
    }

    /// Bytes that the body of `id` is filled up to.
    fn min_bytes(&self, id: NodeId) -> u32 {
        if id == Tree::ROOT { self.root_bytes } else { 0 }
    }

    /// The number of the long prefix that marks digests of files.
    pub(crate) fn digest_prefix(&self) -> Option<u8> {
        self.digest.map(|(_, number)| number)
    }

    /// Whether any inode has an xattr.
    pub(crate) fn has_any(&self) -> bool {
        self.has_bodies || self.root_bytes > 0
    }

    /// How many long prefixes there are.
    pub(crate) fn prefix_count(&self) -> u8 {
        // The options are checked: at most 128.
        u8::try_from(self.prefixes.len()).unwrap_or(u8::MAX)
    }

    /// The table of long prefixes.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for one that is too long.
    pub(crate) fn prefix_table(&self) -> Result<Vec<u8>> {
        let mut table = Vec::new();
        for prefix in &self.prefixes {
            table.extend_from_slice(&prefix.to_bytes().map_err(format)?);
        }
        Ok(table)
    }

    /// The body of `id`, with the area of shared entries `shared_at` bytes behind the block from which
    /// ids count.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for a body that is too large.
    pub(crate) fn body_of_node(&self, id: NodeId, shared_at: u32) -> Result<Vec<u8>> {
        let mut bytes = match self.tree.record(id).xattrs {
            0 => Vec::new(),
            number => self.body(&self.tree.xattr_set(number))?.write(shared_at)?,
        };
        let min = self.min_bytes(id) as usize;
        if bytes.is_empty() && min > 0 {
            // The header of a body of nothing: filter, and no shared ones.
            let filter = if self.has_filters { filter_of_names([]) } else { 0 };
            bytes.extend_from_slice(&filter.to_le_bytes());
        }
        // Entries of zeros are none (docs/format.md F12).
        bytes.resize(bytes.len().max(min), 0);
        Ok(bytes)
    }

    /// Adds the prefix of digests, behind all others.
    fn add_digest(&mut self, options: &'t BuildOptions) {
        let Some(name) = options.digest_xattr.as_deref() else { return };
        // The options are checked: it makes a prefix, and there is room for it.
        if let (Some(prefix), Ok(number)) =
            (prefix_of_digest(name), u8::try_from(self.prefixes.len()))
        {
            self.prefixes.push(prefix);
            self.digest = Some((name, number));
        }
    }

    /// Gives each shared entry its place, in the order of names and values, as far as the memory has room.
    fn place_shared(
        &mut self,
        users: &SetUsers,
        options: &BuildOptions,
        memory: &BuildMemory,
    ) -> Result<()> {
        let Some(above) = options.xattr_share_above else { return Ok(()) };
        // Linux (seen in 6.18) reads the ids of shared entries from a page of the metabox that it keeps after it has
        // gone on to the shared area of the image, and so loses shared entries of some inodes without an error.
        if options.metabox_pcluster_bytes.is_some() {
            return Ok(());
        }
        let sorted_max = memory.limit_bytes() / SHARED_SHARE;
        let sorting = memory.charge_up_to(sorted_max)?;
        let sorted = users.shared(self.tree, above, sorting.bytes().min(SHARED_BYTES_MAX));
        for (name, value) in &sorted {
            // A name without a known prefix is reported with the inode that has it.
            let Some(entry) = self.entry(name, value)? else { continue };
            let hash = attribute_hash(name, value);
            if let (Ok(at), Entry::Vacant(place)) =
                (u32::try_from(self.shared.len()), self.places.entry(hash))
            {
                place.insert(at);
                self.shared.append(&entry);
            }
        }
        drop((sorted, sorting));
        memory.keep(memory.charge_up_to((self.places.len() as u64).saturating_mul(PLACE_BYTES))?);
        Ok(())
    }

    /// The shared entry of an attribute; none for a name whose prefix the format does not know.
    fn entry(&self, name: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok((index, suffix)) = self.split(name) else { return Ok(None) };
        let Some(index) = index.to_raw() else { return Ok(None) };
        write_entry(index, suffix, value).map(Some).map_err(format)
    }

    /// Where the shared entry of an attribute lies, if it has one.
    fn place(&self, name: &[u8], value: &[u8]) -> Result<Option<u32>> {
        if self.places.is_empty() {
            return Ok(None);
        }
        let Some(at) = self.places.get(&attribute_hash(name, value)).copied() else {
            return Ok(None);
        };
        let entry = self.entry(name, value)?;
        let is_it =
            entry.is_some_and(|entry| self.shared.read_vec(at.into(), entry.len()) == entry);
        Ok(is_it.then_some(at))
    }

    fn body<'x>(&self, xattrs: &'x XattrMap) -> Result<XattrBody<'x>>
    where
        't: 'x,
    {
        let mut body = XattrBody::default();
        for (name, value) in xattrs {
            let place = self.place(name, value)?;
            if let Some(at) = place.filter(|_| body.shared.len() < SHARED_MAX) {
                body.shared.push(at);
                continue;
            }
            let (index, suffix) = self.split(name)?;
            body.inline.push(XattrEntry { index, suffix, value });
        }
        if self.has_filters {
            let names = xattrs.keys();
            // What has no predefined prefix is looked for by its whole name, and number 0.
            body.filter = filter_of_names(names.map(|name| split_name(name).unwrap_or((0, name))));
        }
        Ok(body)
    }

    fn split<'n>(&self, name: &'n [u8]) -> Result<(NameIndex, &'n [u8])> {
        if let Some((_, number)) = self.digest.filter(|(digest, _)| *digest == name) {
            return Ok((NameIndex::Long(number), &[]));
        }
        split_long_name(name, &self.prefixes).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported(format!(
                "the xattr {} has a prefix that EROFS does not support",
                name.escape_ascii()
            )))
        })
    }
}

impl XattrBody<'_> {
    /// Its bytes, with the area of shared entries `shared_at` bytes behind the block from which ids count.
    fn write(&self, shared_at: u32) -> Result<Vec<u8>> {
        let id = |at: &u32| Some(at.checked_add(shared_at)? / ID_UNIT_BYTES);
        let ids: Option<Vec<u32>> = self.shared.iter().map(id).collect();
        let ids = ids.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported("4 GiB of shared xattrs: share fewer".to_owned()))
        })?;
        write_body(self.filter, &ids, &self.inline).map_err(format)
    }
}

/// How many inodes have each set of xattrs, by the number of the set.
struct SetUsers(PagedArray<u32>);

impl SetUsers {
    fn count(tree: &Tree, order: &InodeOrder) -> Self {
        let mut users = PagedArray::<u32>::zeros(tree.store(), tree.xattr_sets());
        for set in order.iter().map(|id| tree.record(id).xattrs as usize).filter(|set| *set > 0) {
            users.set(set, users.get(set).unwrap_or(0).saturating_add(1));
        }
        Self(users)
    }

    /// The sets that some inode has, each with the number of these.
    fn sets<'t>(&'t self, tree: &'t Tree) -> impl Iterator<Item = (XattrMap, u32)> {
        let used = (0_u32..).zip(self.0.iter()).filter(|(_, count)| *count > 0);
        used.map(|(number, count)| (tree.xattr_set(number), count))
    }

    /// The attributes that more than `above` inodes have, in the order of names and values: the first ones that fit into
    /// `bytes_max` bytes of memory.
    ///
    /// They are counted by hashes. Two attributes with the same hash would be shared although fewer inodes have each.
    fn shared(&self, tree: &Tree, above: u32, bytes_max: u64) -> BTreeSet<Attribute> {
        let mut sorter = Sorter::new(tree.store());
        for (xattrs, count) in self.sets(tree) {
            for (name, value) in &xattrs {
                sorter.push((attribute_hash(name, value), count));
            }
        }
        // Ascending, once each.
        let mut hashes = PagedArray::<AttributeHash>::new(tree.store());
        let mut run = (None, 0_u64);
        for (hash, count) in sorter.finish() {
            if run.0 != Some(hash) {
                run = (Some(hash), 0);
            }
            let before = run.1;
            run.1 += u64::from(count);
            if before <= u64::from(above) && run.1 > u64::from(above) {
                hashes.push(hash);
            }
        }
        let mut shared = FirstAttributes::new(bytes_max);
        if hashes.len() == 0 {
            return shared.attributes;
        }
        for (xattrs, _) in self.sets(tree) {
            for attribute in xattrs {
                let hash = attribute_hash(&attribute.0, &attribute.1);
                if hashes.get(hashes.partition_point(|other| other < hash)) == Some(hash) {
                    shared.add(attribute);
                }
            }
        }
        shared.attributes
    }
}

/// The first attributes of those that are added, as many as fit. Which these are does not depend on the order in which they
/// come.
struct FirstAttributes {
    attributes: BTreeSet<Attribute>,
    bytes: u64,
    bytes_max: u64,
    /// The first one without room. Neither it nor any behind it is kept.
    end: Option<Attribute>,
}

impl FirstAttributes {
    fn new(bytes_max: u64) -> Self {
        Self { attributes: BTreeSet::new(), bytes: 0, bytes_max, end: None }
    }

    fn add(&mut self, attribute: Attribute) {
        let bytes = |(name, value): &Attribute| (name.len() + value.len()) as u64 + SORTED_BYTES;
        if self.end.as_ref().is_some_and(|end| attribute >= *end) {
            return;
        }
        let more = bytes(&attribute);
        if self.attributes.insert(attribute) {
            self.bytes += more;
        }
        while self.bytes > self.bytes_max
            && let Some(last) = self.attributes.pop_last()
        {
            self.bytes -= bytes(&last);
            self.end = Some(last);
        }
    }
}

fn attribute_hash(name: &[u8], value: &[u8]) -> AttributeHash {
    // A name has no NUL.
    let hash = xxh3_128(&[name, b"\0", value].concat());
    let half = |half: u128| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0);
    (half(hash >> 64), half(hash))
}

/// The long prefixes that a name of the tree has, in the order of the options.
fn used_prefixes<'t>(
    tree: &Tree,
    users: &SetUsers,
    options: &'t BuildOptions,
) -> Vec<LongPrefix<'t>> {
    let all: Vec<_> = options.xattr_prefixes.iter().filter_map(|text| long_prefix(text)).collect();
    let mut used = BTreeSet::new();
    if all.is_empty() {
        return Vec::new();
    }
    for (xattrs, _) in users.sets(tree) {
        for name in xattrs.keys() {
            if let Some((NameIndex::Long(number), _)) = split_long_name(name, &all) {
                used.insert(usize::from(number));
            }
        }
    }
    used.into_iter().filter_map(|number| all.get(number).copied()).collect()
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{file, metadata};

    /// Three files with the same attribute.
    fn tree_with_one_attribute() -> Tree {
        let mut tree = Tree::new(metadata());
        for name in [b"a", b"b", b"c"] {
            let mut node = file(b"");
            node.metadata.xattrs.insert((*b"user.a").into(), (*b"same").into());
            let id = tree.add(node).unwrap();
            tree.link(Tree::ROOT, name, id).unwrap();
        }
        tree
    }

    #[test]
    fn no_xattr_is_shared_with_a_metabox() {
        let tree = tree_with_one_attribute();
        let order = InodeOrder::new(&tree).unwrap();
        for (metabox_pcluster_bytes, is_shared) in [(None, true), (Some(4096), false)] {
            let options = BuildOptions {
                xattr_share_above: Some(2),
                metabox_pcluster_bytes,
                ..BuildOptions::default()
            };
            let memory = BuildMemory::new(&options, &tree).unwrap();
            let plan = XattrPlan::new(&tree, &order, &options, &memory).unwrap();
            assert_eq!(plan.shared.len() > 0, is_shared);
            assert!(plan.has_any());
        }
    }

    #[test]
    fn attributes_are_shared_in_their_order_until_their_memory_is_used_up() {
        let mut tree = Tree::new(metadata());
        for file_number in 0..3 {
            // Neither in their order, nor in the opposite one.
            for number in (0..90_u8).map(|number| number % 9 * 10 + number / 9) {
                let mut node = file(b"");
                let value = vec![number; 60_000];
                node.metadata.xattrs.insert((*b"user.a").into(), value.into());
                let id = tree.add(node).unwrap();
                tree.link(Tree::ROOT, &[b'a' + file_number, b'0' + number], id).unwrap();
            }
        }
        let order = InodeOrder::new(&tree).unwrap();
        let options = BuildOptions {
            xattr_share_above: Some(2),
            memory_bytes: 32 << 20,
            ..BuildOptions::default()
        };
        let memory = BuildMemory::new(&options, &tree).unwrap();
        let before = memory.available_bytes();
        let plan = XattrPlan::new(&tree, &order, &options, &memory).unwrap();
        let count = u8::try_from((4 << 20) / (60_000 + 6 + SORTED_BYTES)).unwrap();
        assert_eq!(plan.places.len(), usize::from(count));
        assert_eq!(before - memory.available_bytes(), u64::from(count) * PLACE_BYTES);
        for number in 0..90 {
            let place = plan.place(b"user.a", &vec![number; 60_000]).unwrap();
            assert_eq!(place.is_some(), number < count, "{number}");
        }
    }

    #[test]
    fn an_attribute_with_the_hash_of_another_is_not_taken_for_it() {
        let tree = tree_with_one_attribute();
        let order = InodeOrder::new(&tree).unwrap();
        let options = BuildOptions { xattr_share_above: Some(2), ..BuildOptions::default() };
        let memory = BuildMemory::new(&options, &tree).unwrap();
        let mut plan = XattrPlan::new(&tree, &order, &options, &memory).unwrap();
        let at = plan.place(b"user.a", b"same").unwrap().unwrap();
        plan.places.insert(attribute_hash(b"user.a", b"like"), at);
        assert_eq!(plan.place(b"user.a", b"like").unwrap(), None);
        let body = XattrBody { shared: vec![u32::MAX - 3], ..XattrBody::default() };
        assert!(matches!(body.write(4).unwrap_err().kind(), ErrorKind::Unsupported(_)));
    }
}
