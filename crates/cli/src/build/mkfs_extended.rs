//! The words of `-E` of mkfs.erofs, and the bits of `--zfeature-bits`. Called by `mkfs`.

use ferrofs_builder::{BuildOptions, Deduplication, FragmentSharing, Fragments, IndexForm};

use crate::amount::parse_size;
use crate::applets::mkfs::MkfsArguments;

/// The features of `--zfeature-bits`, from bit 0 on.
const ZFEATURES: [&str; 8] = [
    "legacy-compress",
    "ztailpacking",
    "fragments",
    "all-fragments",
    "dedupe",
    "fragdedupe",
    "48bit",
    "dot-omitted",
];

/// The words of `-E`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtendedOptions {
    fragments: Fragments,
    fragment_sharing: FragmentSharing,
    /// Whether that was given.
    asks_sharing: bool,
    plain_prefixes: bool,
    /// Bytes of the packed inode's pclusters, where they are given.
    packed_pcluster: Option<u64>,
    dedupe: bool,
    ztailpacking: bool,
    inline_data: bool,
    full_indexes: bool,
    compact_inodes: bool,
    extended_inodes: bool,
    chunk_indexes: bool,
    block_maps: bool,
    checksum: bool,
    xattr_filter: bool,
    wide: bool,
    omit_dot: bool,
}

impl ExtendedOptions {
    /// Reads the bits of `--zfeature-bits` and the words of `-E`.
    ///
    /// # Errors
    /// A word is unknown, or has a value that it cannot have.
    pub(super) fn read(typed: &MkfsArguments) -> Result<Self, String> {
        let mut this = Self {
            fragments: Fragments::None,
            fragment_sharing: FragmentSharing::Parts,
            asks_sharing: false,
            plain_prefixes: false,
            packed_pcluster: None,
            dedupe: false,
            ztailpacking: false,
            inline_data: true,
            full_indexes: false,
            compact_inodes: false,
            extended_inodes: false,
            chunk_indexes: false,
            block_maps: false,
            checksum: true,
            xattr_filter: true,
            wide: false,
            omit_dot: false,
        };
        this.take_bits(typed.zfeature_bits.unwrap_or(0))?;
        for list in &typed.extended {
            // A comma may end the list, but no item may be empty.
            let list = list.strip_suffix(',').filter(|list| !list.is_empty()).unwrap_or(list);
            for word in list.split(',').filter(|_| !list.is_empty()) {
                this.take(word).map_err(|why| format!("-E: {why}"))?;
            }
        }
        Ok(this)
    }

    /// Sets each feature up to the highest bit, as mkfs.erofs does: a bit that is 0 switches its
    /// feature off.
    fn take_bits(&mut self, bits: u64) -> Result<(), String> {
        let count = bits.checked_ilog2().map_or(0, |highest| highest as usize + 1);
        for (bit, name) in ZFEATURES.iter().enumerate().take(count) {
            let word = if bits >> bit & 1 == 1 { (*name).to_owned() } else { format!("^{name}") };
            self.take(&word).map_err(|why| format!("--zfeature-bits: {why}"))?;
        }
        Ok(())
    }

    /// Whether the image is 48-bit.
    pub(super) fn is_wide(self) -> bool {
        self.wide
    }

    /// Bytes of the packed inode's pclusters, where they are given.
    pub(super) fn packed_pcluster(self) -> Option<u64> {
        self.packed_pcluster
    }

    fn take(&mut self, word: &str) -> Result<(), String> {
        let (is_wanted, word) = word.strip_prefix('^').map_or((true, word), |word| (false, word));
        let (name, value) = match word.split_once('=') {
            Some((name, "")) => return Err(format!("{name}= has no value")),
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let kept_value = match name {
            "fragments" | "all-fragments" => {
                self.take_fragments(name, is_wanted, value)?;
                return Ok(());
            }
            "fragdedupe" => {
                self.fragment_sharing = fragment_sharing(is_wanted, value)?;
                self.asks_sharing = is_wanted;
                return Ok(());
            }
            _ => value,
        };
        if let Some(value) = kept_value {
            return Err(format!("{name} does not accept the value {value}"));
        }
        match name {
            "dedupe" => self.dedupe = is_wanted,
            "ztailpacking" => self.ztailpacking = is_wanted,
            "inline_data" => self.inline_data = is_wanted,
            "noinline_data" => self.inline_data = !is_wanted,
            "legacy-compress" => self.full_indexes = is_wanted,
            "force-inode-compact" => {
                (self.compact_inodes, self.extended_inodes) = (is_wanted, false);
            }
            "force-inode-extended" => {
                (self.extended_inodes, self.compact_inodes) = (is_wanted, false);
            }
            "force-inode-blockmap" => (self.chunk_indexes, self.block_maps) = (false, true),
            "force-chunk-indexes" => (self.chunk_indexes, self.block_maps) = (is_wanted, false),
            "nosbcrc" => self.checksum = !is_wanted,
            "xattr-name-filter" => self.xattr_filter = is_wanted,
            "48bit" => self.wide = is_wanted,
            "dot-omitted" => self.omit_dot = is_wanted,
            "plain-xattr-prefixes" => self.plain_prefixes = is_wanted,
            _ => return Err(format!("{name} is unknown")),
        }
        Ok(())
    }

    fn take_fragments(
        &mut self,
        name: &str,
        is_wanted: bool,
        value: Option<&str>,
    ) -> Result<(), String> {
        self.packed_pcluster = match (is_wanted, value) {
            (true, Some(value)) => {
                Some(parse_size(value).map_err(|why| format!("{name}={value}: {why}"))?)
            }
            (true, None) => self.packed_pcluster,
            (false, Some(value)) => {
                return Err(format!("^{name} does not accept the value {value}"));
            }
            (false, None) => None,
        };
        self.fragments = match (is_wanted, name) {
            (false, _) => Fragments::None,
            (true, "fragments") => Fragments::Tails,
            (true, _) => Fragments::All,
        };
        Ok(())
    }

    /// Sets the options. What needs compression has no effect without it.
    ///
    /// # Errors
    /// Options contradict each other.
    pub(super) fn apply(
        self,
        options: &mut BuildOptions,
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        let is_compressed = options.algorithms.is_some();
        if self.block_maps && options.blob.is_some() {
            let what = "a block map cannot refer to a device, as --blobdev needs";
            return Err(format!("-E: force-inode-blockmap: {what}"));
        }
        self.apply_compression(options, is_compressed, warnings);
        options.plain_xattr_prefixes = self.plain_prefixes;
        // The name of a digest is stored as a prefix, too.
        let has_prefixes = !options.xattr_prefixes.is_empty() || options.digest_xattr.is_some();
        if self.plain_prefixes && !has_prefixes {
            warnings.push("-Eplain-xattr-prefixes has no effect without --xattr-prefix".to_owned());
        }
        options.inline_data = self.inline_data;
        options.force_compact_inodes = self.compact_inodes;
        options.force_extended_inodes = self.extended_inodes;
        options.force_chunk_indexes = self.chunk_indexes;
        options.superblock_checksum = self.checksum;
        options.xattr_filter = self.xattr_filter;
        options.wide = self.wide || self.omit_dot;
        options.omit_dot = self.omit_dot;
        if self.dedupe {
            options.deduplication = Deduplication::On;
            if !is_compressed && options.chunk_bytes.is_none() {
                // Equal blocks are found as equal chunks, as mkfs.erofs has it.
                options.chunk_bytes = Some(options.block_size.bytes().into());
            }
        }
        Ok(())
    }

    fn apply_compression(
        self,
        options: &mut BuildOptions,
        is_compressed: bool,
        warnings: &mut Vec<String>,
    ) {
        if !is_compressed {
            for (_, name) in [
                (self.ztailpacking, "ztailpacking"),
                (self.fragments == Fragments::Tails, "fragments"),
                (self.fragments == Fragments::All, "all-fragments"),
                (self.asks_sharing, "fragdedupe"),
                (self.full_indexes, "legacy-compress"),
            ]
            .iter()
            .filter(|(is_asked, _)| *is_asked)
            {
                warnings.push(format!("-E{name} has no effect without -z"));
            }
            return;
        }
        if self.asks_sharing && self.fragments == Fragments::None {
            warnings.push("-Efragdedupe has no effect without fragments".to_owned());
        }
        options.fragments = self.fragments;
        options.fragment_sharing = self.fragment_sharing;
        options.inline_pclusters = self.ztailpacking;
        options.index = if self.full_indexes { IndexForm::Full } else { IndexForm::Compact };
    }
}

/// Which fragments are stored once. Every word but `inode` is `full`, as for mkfs.erofs, and `off`
/// is ours.
fn fragment_sharing(is_wanted: bool, value: Option<&str>) -> Result<FragmentSharing, String> {
    match (is_wanted, value) {
        (true, Some("inode")) => Ok(FragmentSharing::Files),
        (true, Some("off")) | (false, None) => Ok(FragmentSharing::Off),
        (true, _) => Ok(FragmentSharing::Parts),
        (false, Some(value)) => Err(format!("^fragdedupe does not accept the value {value}")),
    }
}
