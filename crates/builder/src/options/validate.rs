//! Which options go together, and which values are in range. A build calls [`BuildOptions::check`] before it writes
//! anything; no other module checks options.

use std::iter;

use ferrofs_codec::{Algorithm, Method};
use ferrofs_ondisk::chunk::{ChunkFormat, ChunkTable};
use ferrofs_ondisk::compression::{
    EXTENT_MAX_BYTES, LZMA_MAX_DICTIONARY_BYTES, LZMA_MIN_DICTIONARY_BYTES, PCLUSTER_MAX_BLOCKS,
    PCLUSTER_MAX_BYTES, ZSTD_MAX_WINDOW_LOG, ZSTD_MIN_WINDOW_LOG,
};

use crate::{Algorithms, BuildOptions, Error, ErrorKind, Fragments, Result, SuperblockTime};
use ferrofs_ondisk::xattr::{LongPrefix, prefix_text, split_name};

/// The shortest window of LZ4 that is worth its matches, and that every decoder has.
const LZ4_MIN_DISTANCE: u16 = 4096;
/// Numbers that `e_name_index` has for long prefixes (docs/format.md F22).
const PREFIXES_MAX: usize = 128;
/// The longest unit to which data or the image is aligned, in bytes: more is a mistake.
const ALIGNMENT_MAX_BYTES: u64 = 1 << 30;
/// The most bytes for xattrs of the root: the limit of mkfs.erofs.
const ROOT_XATTR_BYTES_MAX: u32 = 65532;
/// What loop devices and mounts with an offset need.
const OFFSET_UNIT: u64 = 512;

/// All predefined prefixes have numbers up to this.
const PREDEFINED_MAX: u8 = 6;

impl BuildOptions {
    /// Whether an image can be like this.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`] for values out of range, and for options that exclude each other.
    pub fn check(&self) -> Result<()> {
        self.check_sizes()?;
        self.check_alignments()?;
        self.check_compression()?;
        self.check_hints()?;
        self.check_chunks()?;
        self.check_inodes()?;
        self.check_prefixes()?;
        self.check_metabox()?;
        self.check_metadata_first()?;
        self.check_chunk_index()
    }

    fn check_metadata_first(&self) -> Result<()> {
        let excluded = [
            (
                self.metabox_pcluster_bytes.is_some(),
                "a metabox, which is written behind the inodes",
            ),
            (self.compress_directories, "compressed directories, which are data themselves"),
            (self.wide, "48-bit extents, whose length depends on where the data lies"),
            (self.blob.is_some(), "a blob: the image has no data in front of the metadata then"),
        ];
        let found = excluded.iter().find(|(is_asked, _)| self.metadata_first && *is_asked);
        found.map_or(Ok(()), |(_, what)| {
            require(false, || format!("metadata in front of the data cannot be used with {what}"))
        })
    }

    fn check_chunk_index(&self) -> Result<()> {
        require(self.chunk_index.is_none() || self.blob.is_none(), || {
            "a chunk index covers the image and not its blob: use one of them".to_owned()
        })?;
        // Its offsets count from the start of the file, of which it must cover all.
        let offset = self.output_mode.offset();
        require(self.chunk_index.is_none() || offset == 0, || {
            format!("a chunk index covers a whole file: write the image to byte 0, not {offset}")
        })
    }

    fn check_sizes(&self) -> Result<()> {
        let block = self.block_size.bytes();
        let extent = self.extent_bytes_max;
        for pcluster in iter::once(self.pcluster_bytes).chain(self.packed_pcluster_bytes) {
            self.check_pcluster(pcluster)?;
        }
        let is_whole = extent.is_multiple_of(block) && extent >= block;
        require(is_whole && u64::from(extent) <= EXTENT_MAX_BYTES, || {
            format!(
                "extents of {extent} bytes are not whole blocks of {block}, at most {EXTENT_MAX_BYTES}"
            )
        })?;
        let offset = self.output_mode.offset();
        require(offset.is_multiple_of(OFFSET_UNIT), || {
            format!("the image's offset {offset} is not a multiple of {OFFSET_UNIT}")
        })
    }

    fn check_pcluster(&self, pcluster: u32) -> Result<()> {
        let block = self.block_size.bytes();
        let is_whole = pcluster.is_multiple_of(block) && pcluster >= block;
        require(is_whole && pcluster <= PCLUSTER_MAX_BYTES, || {
            format!(
                "pclusters of {pcluster} bytes are not whole blocks of {block}, at most \
                 {PCLUSTER_MAX_BYTES}"
            )
        })?;
        let blocks = pcluster / block;
        require(blocks <= PCLUSTER_MAX_BLOCKS, || {
            format!(
                "pclusters of {pcluster} bytes have {blocks} blocks of {block}: an index can \
                 describe at most {PCLUSTER_MAX_BLOCKS}"
            )
        })
    }

    fn check_alignments(&self) -> Result<()> {
        let block = u64::from(self.block_size.bytes());
        let most = ALIGNMENT_MAX_BYTES / block;
        for (blocks, what) in
            [(self.data_alignment_blocks, "data"), (self.image_alignment_blocks, "the image")]
        {
            require((1..=most).contains(&u64::from(blocks)), || {
                format!("{what} aligned to {blocks} blocks of {block}: 1 to {most} are possible")
            })?;
        }
        Ok(())
    }

    fn check_hints(&self) -> Result<()> {
        let count = self.algorithms.as_ref().map_or(0, |algorithms| algorithms.methods.len());
        for hint in self.hints.all() {
            let line = hint.line;
            require(count > 0, || "hints without an algorithm".to_owned())?;
            require(hint.method < count, || {
                format!("line {line} of the hints: no algorithm {}, there are {count}", hint.method)
            })?;
            if hint.pcluster_bytes > 0 {
                let checked = self.check_pcluster(hint.pcluster_bytes);
                checked.map_err(|error| {
                    Error::new(ErrorKind::InvalidOptions(format!(
                        "line {line} of the hints: {error}"
                    )))
                })?;
            }
        }
        Ok(())
    }

    fn check_compression(&self) -> Result<()> {
        if let Some(algorithms) = &self.algorithms {
            return check_algorithms(algorithms);
        }
        let needy = [
            (self.inline_pclusters, "inline pclusters (ztailpacking)"),
            (self.fragments != Fragments::None, "fragments"),
            (self.packed_pcluster_bytes.is_some(), "pclusters of fragments"),
            (self.compress_directories, "compressed directories"),
        ];
        for (is_asked, what) in needy {
            require(!is_asked, || format!("{what} without an algorithm"))?;
        }
        Ok(())
    }

    fn check_chunks(&self) -> Result<()> {
        let Some(bytes) = self.chunk_bytes else {
            return require(self.blob.is_none(), || {
                "a blob without a chunk size: no data would be written to it".to_owned()
            });
        };
        let block_bits = u32::from(self.block_size.bits());
        let shift = bytes.trailing_zeros().checked_sub(block_bits);
        let shift = shift.and_then(|shift| u8::try_from(shift).ok());
        let fits = shift.is_some_and(|shift| ChunkFormat::new(shift, ChunkTable::Indexes).is_ok());
        require(bytes.is_power_of_two() && fits, || {
            format!("chunks of {bytes} bytes: use a power of two of at least a block")
        })
    }

    fn check_inodes(&self) -> Result<()> {
        require(!(self.force_extended_inodes && self.force_compact_inodes), || {
            "inodes cannot be both extended and compact".to_owned()
        })?;
        require(!self.omit_dot || self.wide, || {
            "omitting the entries \".\" of directories needs 48-bit".to_owned()
        })?;
        match self.time {
            SuperblockTime::Fixed(seconds) => require(i64::try_from(seconds).is_ok(), || {
                format!("the time {seconds} is out of range")
            }),
            SuperblockTime::Newest => Ok(()),
        }
    }

    fn check_prefixes(&self) -> Result<()> {
        let digests = usize::from(self.digest_xattr.is_some());
        require(self.xattr_prefixes.len() + digests <= PREFIXES_MAX, || {
            format!("more than {PREFIXES_MAX} xattr prefixes")
        })?;
        if let Some(name) = &self.digest_xattr {
            let is_one = prefix_of_digest(name).is_some_and(|prefix| prefix.to_bytes().is_ok());
            require(is_one, || {
                format!("{} is not a valid name for the digest xattr", name.escape_ascii())
            })?;
        }
        require(self.root_xattr_bytes <= ROOT_XATTR_BYTES_MAX, || {
            format!(
                "{} bytes for xattrs of the root: {ROOT_XATTR_BYTES_MAX} at most",
                self.root_xattr_bytes
            )
        })?;
        for (number, text) in self.xattr_prefixes.iter().enumerate() {
            let escaped = || text.escape_ascii();
            let is_long = long_prefix(text).is_some_and(|prefix| prefix.to_bytes().is_ok());
            require(is_long, || format!("{} is not a valid prefix of xattr names", escaped()))?;
            let is_first = !self.xattr_prefixes[..number].contains(text);
            require(is_first, || format!("the xattr prefix {} is given twice", escaped()))?;
        }
        Ok(())
    }

    fn check_metabox(&self) -> Result<()> {
        if let Some(bytes) = self.metabox_pcluster_bytes {
            self.check_pcluster(bytes)?;
        }
        let Some(number) = self.metabox_method else { return Ok(()) };
        let methods = self.algorithms.iter().map(|algorithms| algorithms.methods.len()).sum();
        require(number < methods, || {
            format!("no method {number} for the metabox: there are {methods}")
        })
    }
}

fn check_algorithms(algorithms: &Algorithms) -> Result<()> {
    let methods = &algorithms.methods;
    require(algorithms.default < methods.len(), || {
        format!("no default method {}: there are {}", algorithms.default, methods.len())
    })?;
    methods.iter().try_for_each(|method| check_method(*method, method.algorithm()))
}

fn check_method(method: Method, algorithm: Algorithm) -> Result<()> {
    let (level, levels) = match method {
        Method::Lz4 { .. } => (0, 0..=0),
        Method::Lz4Hc { level, .. } | Method::Deflate { level } => (i32::from(level), 0..=12),
        Method::Lzma { level, .. } => (i32::from(level % 100), 0..=9),
        Method::Zstd { level, .. } => (level, 0..=22),
    };
    let is_lzma_known = !matches!(method, Method::Lzma { level: 110.., .. });
    let has_contexts = match method {
        Method::Lzma { contexts, .. } => contexts.is_valid(),
        _ => true,
    };
    require(has_contexts, || "no such lc, lp or pb of LZMA".to_owned())?;
    require(levels.contains(&level) && is_lzma_known, || format!("no such level of {algorithm}"))?;
    let (window, windows) = match method {
        Method::Lz4 { max_distance } | Method::Lz4Hc { max_distance, .. } => {
            (u32::from(max_distance), u32::from(LZ4_MIN_DISTANCE)..=u32::from(u16::MAX))
        }
        Method::Lzma { dictionary_bytes, .. } => {
            (dictionary_bytes, LZMA_MIN_DICTIONARY_BYTES..=LZMA_MAX_DICTIONARY_BYTES)
        }
        Method::Deflate { .. } => (0, 0..=0),
        Method::Zstd { window_log, .. } => {
            (u32::from(window_log), u32::from(ZSTD_MIN_WINDOW_LOG)..=u32::from(ZSTD_MAX_WINDOW_LOG))
        }
    };
    require(windows.contains(&window), || {
        let (min, max) = windows.clone().into_inner();
        format!("the window of {algorithm} is {window}, not in {min}..={max}")
    })
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::InvalidOptions(message()))) }
}

/// The long prefix that stands for all of `name`, which may begin with no predefined prefix; `None` if it is nothing
/// but one.
pub(crate) fn prefix_of_digest(name: &[u8]) -> Option<LongPrefix<'_>> {
    match long_prefix(name) {
        Some(prefix) => Some(prefix).filter(|prefix| !prefix.infix.is_empty()),
        // An ACL has a name without anything behind it.
        None if split_name(name).is_some() || name.is_empty() => None,
        None => Some(LongPrefix { base: 0, infix: name }),
    }
}

/// The long prefix that `text` says; `None` if it does not start with a predefined one.
pub(crate) fn long_prefix(text: &[u8]) -> Option<LongPrefix<'_>> {
    (1..=PREDEFINED_MAX).find_map(|base| {
        // The two ACL names are complete; nothing follows them.
        let predefined = prefix_text(base).ok()??;
        let infix = text.strip_prefix(predefined.as_bytes())?;
        predefined.ends_with('.').then_some(LongPrefix { base, infix })
    })
}

#[cfg(test)]
mod tests {
    use ferrofs_codec::LzmaContexts;
    use ferrofs_ondisk::BlockSize;

    use super::*;
    use crate::{CompressionHints, IndexForm, OutputMode};

    fn refusal(change: impl FnOnce(&mut BuildOptions)) -> Option<String> {
        let mut options = BuildOptions::default();
        change(&mut options);
        options.check().err().map(|error| error.to_string())
    }

    fn lz4() -> Algorithms {
        Algorithms { default: 0, methods: vec![Method::Lz4 { max_distance: 65535 }] }
    }

    #[test]
    fn the_defaults_are_in_order() {
        assert_eq!(refusal(|_| ()), None);
        assert_eq!(refusal(|options| options.index = IndexForm::Full), None);
        assert_eq!(refusal(|options| options.algorithms = Some(lz4())), None);
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let message = refusal(|options| options.pcluster_bytes = 6000).unwrap();
        assert_eq!(
            message,
            "pclusters of 6000 bytes are not whole blocks of 4096, at most 1048576"
        );
        assert!(refusal(|options| options.pcluster_bytes = 2 << 20).is_some());
        let of_512 = |pcluster_bytes| {
            refusal(|options| {
                options.block_size = BlockSize::from_bits(9).unwrap();
                options.pcluster_bytes = pcluster_bytes;
            })
        };
        // The build failed only when a pcluster had them.
        let message = of_512(1 << 20).unwrap();
        assert!(message.contains("2048 blocks of 512") && message.ends_with("2047"), "{message}");
        assert_eq!(of_512((1 << 20) - 512), None);
        assert!(refusal(|options| options.pcluster_bytes = 0).is_some());
        assert!(refusal(|options| options.extent_bytes_max = 16 << 20).is_some());
        assert!(refusal(|options| options.chunk_bytes = Some(2048)).is_some());
        assert!(refusal(|options| options.chunk_bytes = Some(12288)).is_some());
        assert!(refusal(|options| options.chunk_bytes = Some(0)).is_some());
        assert_eq!(refusal(|options| options.chunk_bytes = Some(1 << 20)), None);
        let output_mode = OutputMode::NewFile { offset: 100 };
        assert!(refusal(|options| options.output_mode = output_mode).is_some());
    }

    #[test]
    fn what_needs_an_algorithm_does_not_go_without() {
        let message = refusal(|options| options.fragments = Fragments::All).unwrap();
        assert_eq!(message, "fragments without an algorithm");
        assert!(refusal(|options| options.inline_pclusters = true).is_some());
        assert!(refusal(|options| options.compress_directories = true).is_some());
    }

    #[test]
    fn a_metabox_has_pclusters_and_an_algorithm_as_files_do() {
        assert_eq!(refusal(|options| options.metabox_pcluster_bytes = Some(8192)), None);
        assert!(refusal(|options| options.metabox_pcluster_bytes = Some(6000)).is_some());
        let of = |number| {
            refusal(|options| {
                options.algorithms = Some(lz4());
                options.metabox_pcluster_bytes = Some(4096);
                options.metabox_method = Some(number);
            })
        };
        assert_eq!(of(0), None);
        assert_eq!(of(1).unwrap(), "no method 1 for the metabox: there are 1");
    }

    #[test]
    fn the_default_is_one_of_the_methods() {
        let past = Algorithms { default: 1, methods: lz4().methods };
        assert!(refusal(|options| options.algorithms = Some(past)).is_some());
    }

    #[test]
    fn hints_suit_the_image() {
        let of = |text: &[u8]| {
            refusal(|options| {
                options.algorithms = Some(lz4());
                options.hints = CompressionHints::parse(text).unwrap();
            })
        };
        assert_eq!(of(b"0 a\n65536 0 b"), None);
        assert_eq!(of(b"\n4096 1 b").unwrap(), "line 2 of the hints: no algorithm 1, there are 1");
        let message = of(b"6000 a").unwrap();
        assert!(message.starts_with("line 1 of the hints: pclusters of 6000 bytes"), "{message}");
        assert!(of(b"2097152 a").is_some());
        let hints = CompressionHints::parse(b"4096 a").unwrap();
        assert_eq!(refusal(|options| options.hints = hints).unwrap(), "hints without an algorithm");
    }

    #[test]
    fn alignments_are_blocks_up_to_a_gigabyte() {
        assert_eq!(refusal(|options| options.data_alignment_blocks = 1 << 18), None);
        let message = refusal(|options| options.data_alignment_blocks = (1 << 18) + 1).unwrap();
        assert!(message.starts_with("data aligned to 262145 blocks of 4096"), "{message}");
        assert!(refusal(|options| options.image_alignment_blocks = 0).is_some());
    }

    #[test]
    fn digests_have_names_of_their_own() {
        let of = |name: &str| refusal(|options| options.digest_xattr = Some(name.into()));
        assert_eq!((of("erofs.fingerprint.v1"), of("trusted.erofs.fp")), (None, None));
        for wrong in ["", "user.", "system.posix_acl_access", &"x".repeat(256)] {
            assert!(
                of(wrong).unwrap().contains("not a valid name for the digest xattr"),
                "{wrong}"
            );
        }
        assert!(refusal(|options| options.root_xattr_bytes = 65533).is_some());
    }

    #[test]
    fn parameters_of_methods_are_checked() {
        let of = |method| {
            let algorithms = Algorithms { default: 0, methods: vec![method] };
            refusal(|options| options.algorithms = Some(algorithms))
        };
        assert_eq!(
            of(Method::Lzma {
                level: 109,
                dictionary_bytes: 1 << 20,
                contexts: LzmaContexts::default()
            }),
            None
        );
        assert!(
            of(Method::Lzma {
                level: 110,
                dictionary_bytes: 1 << 20,
                contexts: LzmaContexts::default()
            })
            .is_some()
        );
        assert!(
            of(Method::Lzma {
                level: 10,
                dictionary_bytes: 1 << 20,
                contexts: LzmaContexts::default()
            })
            .is_some()
        );
        assert!(
            of(Method::Lzma {
                level: 6,
                dictionary_bytes: 9 << 20,
                contexts: LzmaContexts::default()
            })
            .is_some()
        );
        assert!(of(Method::Lz4 { max_distance: 4095 }).is_some());
        assert!(of(Method::Zstd { level: 23, window_log: 17 }).is_some());
        assert!(of(Method::Zstd { level: 3, window_log: 21 }).is_some());
        assert!(of(Method::Deflate { level: 13 }).is_some());
    }

    #[test]
    fn xattr_prefixes_begin_with_a_predefined_one() {
        let of = |texts: &[&str]| {
            let prefixes = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            refusal(|options| options.xattr_prefixes = prefixes)
        };
        assert_eq!(of(&["user.app.", "trusted.overlay."]), None);
        assert_eq!(of(&["app."]).unwrap(), "app. is not a valid prefix of xattr names");
        assert_eq!(of(&["user.a", "user.a"]).unwrap(), "the xattr prefix user.a is given twice");
    }

    #[test]
    fn what_is_not_written_is_said() {
        assert!(refusal(|options| options.omit_dot = true).is_some());
        let both = |options: &mut BuildOptions| {
            options.force_compact_inodes = true;
            options.force_extended_inodes = true;
        };
        assert_eq!(refusal(both).unwrap(), "inodes cannot be both extended and compact");
    }
}
