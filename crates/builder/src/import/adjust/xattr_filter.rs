//! Which xattrs of the source go into the image.

use std::collections::BTreeMap;

/// A choice of xattrs by name. Importers ask it before they read a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum XattrFilter {
    /// All that can be read.
    #[default]
    All,
    /// None (`-x-1` of mkfs.erofs).
    None,
    /// By patterns: a full name as in `user.mime_type`, or the beginning of names with a `*` behind it, as
    /// in `security.*`.
    Named {
        /// Only those; empty means all.
        include: Vec<Vec<u8>>,
        /// Not those, whatever `include` says.
        exclude: Vec<Vec<u8>>,
    },
}

impl XattrFilter {
    /// Whether the xattr of this full name stays.
    #[must_use]
    pub fn keeps(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Named { include, exclude } => {
                let has_match = |patterns: &[Vec<u8>]| patterns.iter().any(|one| fits(one, name));
                (include.is_empty() || has_match(include)) && !has_match(exclude)
            }
        }
    }

    pub(super) fn apply(&self, xattrs: &mut BTreeMap<Box<[u8]>, Box<[u8]>>) {
        match self {
            Self::All => {}
            Self::None => xattrs.clear(),
            Self::Named { .. } => xattrs.retain(|name, _| self.keeps(name)),
        }
    }
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.strip_suffix(b"*") {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}
