//! Feature bits of the superblock, by name.
//!
//! Compatible bits may be ignored by a reader; an incompatible bit that is unknown makes the image
//! unreadable. Three incompatible bits carry two names each (docs/format.md F3).

use std::fmt;

/// `feature_compat`: what a reader may use and may also ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compat(u32);

/// `feature_incompat`: what a reader must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incompat(u32);

impl Compat {
    /// The superblock carries a CRC-32C.
    pub const SB_CHKSUM: u32 = 0x1;
    /// Extended inodes hold modification times.
    pub const MTIME: u32 = 0x2;
    /// Inline xattr bodies start with a name filter.
    pub const XATTR_FILTER: u32 = 0x4;
    /// Shared xattrs lie inside the metabox file.
    pub const SHARED_EA_IN_METABOX: u32 = 0x8;
    /// The table of long xattr prefixes lies in the image itself.
    pub const PLAIN_XATTR_PFX: u32 = 0x10;
    /// One long prefix marks content digests for page-cache sharing.
    pub const ISHARE_XATTRS: u32 = 0x20;

    const NAMES: [(u32, &'static str); 6] = [
        (Self::SB_CHKSUM, "sb_chksum"),
        (Self::MTIME, "mtime"),
        (Self::XATTR_FILTER, "xattr_filter"),
        (Self::SHARED_EA_IN_METABOX, "shared_ea_in_metabox"),
        (Self::PLAIN_XATTR_PFX, "plain_xattr_pfx"),
        (Self::ISHARE_XATTRS, "ishare_xattrs"),
    ];

    /// The bits as the superblock holds them.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    /// The raw bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `bit` is set.
    #[must_use]
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// The names of the bits that are set; unknown ones as hexadecimal.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names(self.0, &Self::NAMES)
    }
}

impl Incompat {
    /// Compressed data is padded with zeros on its left.
    pub const ZERO_PADDING: u32 = 0x1;
    /// Configuration records follow the superblock; also: pclusters of several blocks.
    pub const COMPR_CFGS: u32 = 0x2;
    /// Chunk-based files.
    pub const CHUNKED_FILE: u32 = 0x4;
    /// A device table; also: two algorithms in one inode.
    pub const DEVICE_TABLE: u32 = 0x8;
    /// Tails of compressed files inside the metadata.
    pub const ZTAILPACKING: u32 = 0x10;
    /// Tails or whole files in the packed inode; also: shared pclusters.
    pub const FRAGMENTS: u32 = 0x20;
    /// Long xattr name prefixes.
    pub const XATTR_PREFIXES: u32 = 0x40;
    /// 48-bit block addresses, encoded extents.
    pub const BIT48: u32 = 0x80;
    /// Inodes inside a (compressed) metabox file.
    pub const METABOX: u32 = 0x100;
    /// All bits that this crate reads.
    pub const KNOWN: u32 = 0x1ff;

    const NAMES: [(u32, &'static str); 9] = [
        (Self::ZERO_PADDING, "0padding"),
        (Self::COMPR_CFGS, "compr_cfgs/big_pcluster"),
        (Self::CHUNKED_FILE, "chunked_file"),
        (Self::DEVICE_TABLE, "device_table/compr_head2"),
        (Self::ZTAILPACKING, "ztailpacking"),
        (Self::FRAGMENTS, "fragments/dedupe"),
        (Self::XATTR_PREFIXES, "xattr_prefixes"),
        (Self::BIT48, "48bit"),
        (Self::METABOX, "metabox"),
    ];

    /// The bits as the superblock holds them.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    /// The raw bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `bit` is set.
    #[must_use]
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// The bits that no known feature has.
    #[must_use]
    pub const fn unknown(self) -> u32 {
        self.0 & !Self::KNOWN
    }

    /// The names of the bits that are set; unknown ones as hexadecimal.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names(self.0, &Self::NAMES)
    }
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

impl fmt::Display for Incompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

fn names(bits: u32, table: &[(u32, &'static str)]) -> Vec<String> {
    let known = table.iter().fold(0, |all, (bit, _)| all | bit);
    let mut names: Vec<String> = table
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    if bits & !known != 0 {
        names.push(format!("{:#x}", bits & !known));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_named_by_value() {
        assert_eq!(Incompat::new(0x201).names(), ["0padding", "0x200"]);
        assert_eq!(Incompat::new(0x201).unknown(), 0x200);
        assert_eq!(Compat::new(0x41).names(), ["sb_chksum", "0x40"]);
    }
}
