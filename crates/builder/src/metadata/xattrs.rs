//! The xattrs of the whole tree: which are stored once for many inodes, which names have long prefixes, and
//! the body of each inode. Bodies that are equal are one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ferrofs_ondisk::xattr::{
    LongPrefix, NameIndex, XattrEntry, filter_of_names, split_long_name, split_name, write_body,
    write_entry,
};

use crate::options::validate::{long_prefix, prefix_of_digest};
use crate::tree::{NodeId, Tree};
use crate::{BuildOptions, Error, ErrorKind, Result};

/// Shared entries that a body can name (docs/format.md F20).
const SHARED_MAX: usize = 255;
/// The unit of ids of shared entries.
const ID_UNIT_BYTES: u32 = 4;

type XattrMap = BTreeMap<Box<[u8]>, Box<[u8]>>;
/// A full name and a value.
type Attribute<'t> = (&'t [u8], &'t [u8]);

/// The xattrs of a tree, ready to be placed.
#[derive(Debug, Default)]
pub(crate) struct XattrPlan<'t> {
    /// Long prefixes that some name has.
    prefixes: Vec<LongPrefix<'t>>,
    /// The area of shared entries.
    pub(crate) shared: Vec<u8>,
    bodies: Vec<XattrBody<'t>>,
    /// By the index of the node: which body it has.
    of_node: Vec<Option<u32>>,
    /// The name of the xattr that holds the digest of a file, and the number of its long prefix, which is all of it.
    digest: Option<(&'t [u8], u8)>,
    /// The body of the root takes so many bytes at least.
    root_bytes: u32,
    /// Bodies have filters of names.
    has_filters: bool,
}

/// The body of one inode or of many.
#[derive(Debug, Default)]
struct XattrBody<'t> {
    filter: u32,
    /// In bytes from the start of the area.
    shared: Vec<u32>,
    inline: Vec<XattrEntry<'t>>,
    bytes: u32,
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
        order: &[NodeId],
        options: &'t BuildOptions,
    ) -> Result<Self, (NodeId, Error)> {
        let mut plan = Self { of_node: vec![None; tree.len()], ..Self::default() };
        let users = count_users(tree, order);
        plan.prefixes = used_prefixes(&users, options);
        plan.add_digest(options);
        plan.has_filters = options.xattr_filter;
        plan.root_bytes = match options.root_xattr_bytes {
            0 => 0,
            bytes => bytes.max(BODY_BYTES_MIN).next_multiple_of(ID_UNIT_BYTES),
        };
        let places = plan.place_shared(&users, options).map_err(|error| (Tree::ROOT, error))?;
        let mut known: HashMap<&XattrMap, u32> = HashMap::new();
        for &id in order {
            let xattrs = &tree.node(id).metadata.xattrs;
            if xattrs.is_empty() {
                continue;
            }
            let number = match known.get(xattrs) {
                Some(number) => *number,
                None => {
                    let body = plan.body(xattrs, &places, options);
                    // Not more than inodes, of which there are at most 2^32 - 1.
                    let number = u32::try_from(plan.bodies.len()).unwrap_or(u32::MAX);
                    plan.bodies.push(body.map_err(|error| (id, error))?);
                    known.insert(xattrs, number);
                    number
                }
            };
            if let Some(place) = plan.of_node.get_mut(id.index()) {
                *place = Some(number);
            }
        }
        Ok(plan)
    }

    /// Bytes of the body behind the inode of `id`; 0 for none.
    pub(crate) fn body_bytes(&self, id: NodeId) -> u32 {
        self.body_of(id).map_or(0, |body| body.bytes).max(self.least_bytes(id))
    }

    /// Bytes that the body of `id` is filled up to.
    fn least_bytes(&self, id: NodeId) -> u32 {
        if id == Tree::ROOT { self.root_bytes } else { 0 }
    }

    /// The number of the long prefix that marks digests of files.
    pub(crate) fn digest_prefix(&self) -> Option<u8> {
        self.digest.map(|(_, number)| number)
    }

    /// Whether any inode has an xattr.
    pub(crate) fn has_any(&self) -> bool {
        !self.bodies.is_empty() || self.root_bytes > 0
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
        let mut bytes = match self.body_of(id) {
            Some(body) => {
                let ids = body.shared.iter().map(|at| (at + shared_at) / ID_UNIT_BYTES);
                let ids: Vec<u32> = ids.collect();
                write_body(body.filter, &ids, &body.inline).map_err(format)?
            }
            None => Vec::new(),
        };
        let least = self.least_bytes(id) as usize;
        if bytes.is_empty() && least > 0 {
            // The header of a body of nothing: filter, and no shared ones.
            let filter = if self.has_filters { filter_of_names([]) } else { 0 };
            bytes.extend_from_slice(&filter.to_le_bytes());
        }
        // Entries of zeros are none (docs/format.md F12).
        bytes.resize(bytes.len().max(least), 0);
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

    fn body_of(&self, id: NodeId) -> Option<&XattrBody<'t>> {
        let number = (*self.of_node.get(id.index())?)?;
        self.bodies.get(number as usize)
    }

    /// Gives each shared entry its place, in the order of names and values.
    fn place_shared(
        &mut self,
        users: &BTreeMap<Attribute<'t>, u32>,
        options: &BuildOptions,
    ) -> Result<HashMap<Attribute<'t>, u32>> {
        let mut places = HashMap::new();
        let Some(above) = options.xattr_share_above else { return Ok(places) };
        for (&(name, value), _) in users.iter().filter(|(_, count)| **count > above) {
            // A name without a known prefix is reported with the inode that has it.
            let Ok((index, suffix)) = self.split(name) else { continue };
            let Some(index) = index.to_raw() else { continue };
            let at = u32::try_from(self.shared.len()).map_err(|_| {
                Error::new(ErrorKind::Unsupported("more than 4 GiB of shared xattrs".to_owned()))
            })?;
            self.shared.extend_from_slice(&write_entry(index, suffix, value).map_err(format)?);
            places.insert((name, value), at);
        }
        Ok(places)
    }

    fn body(
        &self,
        xattrs: &'t XattrMap,
        places: &HashMap<Attribute<'t>, u32>,
        options: &BuildOptions,
    ) -> Result<XattrBody<'t>> {
        let mut body = XattrBody::default();
        for (name, value) in xattrs {
            let place = places.get(&(&**name, &**value));
            if let Some(at) = place.filter(|_| body.shared.len() < SHARED_MAX) {
                body.shared.push(*at);
                continue;
            }
            let (index, suffix) = self.split(name)?;
            body.inline.push(XattrEntry { index, suffix, value });
        }
        if options.xattr_filter {
            let names = xattrs.keys();
            // What has no predefined prefix is looked for by its whole name, and number 0.
            body.filter = filter_of_names(names.map(|name| split_name(name).unwrap_or((0, name))));
        }
        // Whatever the format refuses is found here, before anything is written.
        let written = write_body(body.filter, &body.shared, &body.inline).map_err(format)?;
        body.bytes = u32::try_from(written.len()).unwrap_or(u32::MAX);
        Ok(body)
    }

    fn split(&self, name: &'t [u8]) -> Result<(NameIndex, &'t [u8])> {
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

/// How many inodes have each attribute.
fn count_users<'t>(tree: &'t Tree, order: &[NodeId]) -> BTreeMap<Attribute<'t>, u32> {
    let mut users = BTreeMap::new();
    for node in order.iter().map(|id| tree.node(*id)) {
        for (name, value) in &node.metadata.xattrs {
            *users.entry((&**name, &**value)).or_insert(0u32) += 1;
        }
    }
    users
}

/// The long prefixes that a name of the tree has, in the order of the options.
fn used_prefixes<'t>(
    users: &BTreeMap<Attribute<'_>, u32>,
    options: &'t BuildOptions,
) -> Vec<LongPrefix<'t>> {
    let all: Vec<_> = options.xattr_prefixes.iter().filter_map(|text| long_prefix(text)).collect();
    let mut used = BTreeSet::new();
    for (name, _) in users.keys() {
        if let Some((NameIndex::Long(number), _)) = split_long_name(name, &all) {
            used.insert(usize::from(number));
        }
    }
    used.into_iter().filter_map(|number| all.get(number).copied()).collect()
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}
