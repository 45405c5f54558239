//! Feature bits of the superblock, by name.
//!
//! Compatible bits may be ignored by a reader; an incompatible bit that is unknown makes the image
//! unreadable. Three incompatible bits carry two names each (docs/format.md F3).

use std::fmt;

/// Defines a word of feature bits: its type, a constant for each bit, and the bits' names.
macro_rules! feature_word {
    (
        $(#[$doc:meta])*
        $word:ident {
            $($(#[$bit_doc:meta])* $bit:ident = $value:literal named $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $word(u32);

        impl $word {
            $($(#[$bit_doc])* pub const $bit: u32 = $value;)*

            /// All bits that this crate knows.
            pub const KNOWN: u32 = $($value)|*;

            const NAMES: &'static [(u32, &'static str)] = &[$(($value, $name)),*];

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
                names(self.0, Self::NAMES)
            }
        }

        impl fmt::Display for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.names().join(" "))
            }
        }
    };
}

feature_word! {
    /// `feature_compat`: what a reader may use and may also ignore.
    Compat {
        /// The superblock carries a CRC-32C.
        SB_CHKSUM = 0x1 named "sb_chksum",
        /// Extended inodes hold modification times.
        MTIME = 0x2 named "mtime",
        /// Inline xattr bodies start with a name filter.
        XATTR_FILTER = 0x4 named "xattr_filter",
        /// Shared xattrs are inside the metabox file.
        SHARED_EA_IN_METABOX = 0x8 named "shared_ea_in_metabox",
        /// The table of long xattr prefixes is in the image itself.
        PLAIN_XATTR_PFX = 0x10 named "plain_xattr_pfx",
        /// One long prefix marks content digests for page-cache sharing.
        ISHARE_XATTRS = 0x20 named "ishare_xattrs",
    }
}

feature_word! {
    /// `feature_incompat`: what a reader must know.
    Incompat {
        /// Compressed data is padded with zeros on its left.
        ZERO_PADDING = 0x1 named "0padding",
        /// Configuration records follow the superblock; also: pclusters of several blocks.
        COMPR_CFGS = 0x2 named "compr_cfgs/big_pcluster",
        /// Chunk-based files.
        CHUNKED_FILE = 0x4 named "chunked_file",
        /// A device table; also: two algorithms in one inode.
        DEVICE_TABLE = 0x8 named "device_table/compr_head2",
        /// Tails of compressed files inside the metadata.
        ZTAILPACKING = 0x10 named "ztailpacking",
        /// Tails or whole files in the packed inode; also: shared pclusters.
        FRAGMENTS = 0x20 named "fragments/dedupe",
        /// Long xattr name prefixes.
        XATTR_PREFIXES = 0x40 named "xattr_prefixes",
        /// 48-bit block addresses, encoded extents.
        BIT48 = 0x80 named "48bit",
        /// Inodes inside a (compressed) metabox file.
        METABOX = 0x100 named "metabox",
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
