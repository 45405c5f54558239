//! The inode target.
//!
//! Input: epoch and nanoseconds of the superblock (12 bytes), then an inode.

use ferrofs_ondisk::{DataLayout, DiskInode, ErrorKind, FileType, Payload, TimeBase};

use crate::input::Input;

/// Reads an inode, whole and cut short.
pub fn inode(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let epoch = i64::from_le_bytes(input.array());
    let base = TimeBase { epoch, fixed_nsec: input.u32() % 1_000_000_000 };
    let bytes = input.rest();
    let inode = match DiskInode::parse(bytes, base) {
        Ok(inode) => inode,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return assert!(error.offset() <= 64, "the place lies in an inode: {error}");
        }
    };
    let size = usize::from(inode.bytes);
    assert_eq!(DiskInode::size_of(bytes), Ok(size));
    check_fields(&inode);
    assert_eq!(DiskInode::parse(&bytes[..size], base), Ok(inode), "bytes behind it do not count");
    let cut = DiskInode::parse(&bytes[..size - 1], base);
    let cut = cut.expect_err("an inode without its last byte is none");
    assert!(matches!(cut.kind(), ErrorKind::Truncated { .. }));
}

fn check_fields(inode: &DiskInode) {
    assert!(inode.bytes == 32 || inode.bytes == 64);
    assert_eq!(FileType::from_mode(inode.mode), Ok(inode.file_type));
    assert!(inode.mtime.nanoseconds < 1_000_000_000);
    assert!(matches!(inode.xattr_bytes, 0 | 16..=262_148) && inode.xattr_bytes.is_multiple_of(4));
    assert!(!inode.has_no_dot || inode.file_type == FileType::Directory);
    let has_data =
        matches!(inode.file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
    let fits = match inode.payload {
        Payload::Device { major, minor } => major < 1 << 12 && minor < 1 << 20 && !has_data,
        Payload::Nothing => !has_data,
        Payload::StartBlock(block) => {
            let is_flat = matches!(inode.layout, DataLayout::FlatPlain | DataLayout::FlatInline);
            has_data && is_flat && block.is_none_or(|block| block < 1 << 48)
        }
        Payload::CompressedBlocks(_) => has_data && inode.layout.is_compressed(),
        Payload::Chunks(format) => {
            has_data && inode.layout == DataLayout::Chunk && matches!(format.entry_bytes(), 4 | 8)
        }
    };
    assert!(fits, "{inode:?}");
}
