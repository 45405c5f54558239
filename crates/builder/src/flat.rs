//! Uncompressed files: whole blocks as they are, and what is left behind the inode or in a block of its
//! own; or chunks.

use crate::compress::digest::Sha256Digest;
use crate::compress::output::{BatchOutput, StoredForm};

/// An inline tail lies in one block with the end of its inode, for which at least so much stays free.
pub(crate) const INODE_BYTES_MIN: usize = 64;

/// Whether so many bytes can lie behind an inode.
pub(crate) fn fits_inline(bytes: usize, block: usize) -> bool {
    bytes <= block.saturating_sub(INODE_BYTES_MIN)
}

/// Appends the bytes to `output`: all of them, or without a tail that goes inline.
pub(crate) fn store_flat(
    bytes: &[u8],
    block: usize,
    may_inline: bool,
    output: &mut BatchOutput,
) -> StoredForm {
    let tail = bytes.len() % block;
    let is_inline = may_inline && tail > 0 && fits_inline(tail, block);
    let inline = if is_inline { tail } else { 0 };
    let (whole, tail) = bytes.split_at(bytes.len() - inline);
    output.bytes.extend_from_slice(whole);
    output.fill_block(block);
    StoredForm::Flat { tail: tail.into() }
}

/// Appends the chunks that are not all zeros, each from a block's start on.
pub(crate) fn store_chunks(
    bytes: &[u8],
    (chunk, block): (usize, usize),
    output: &mut BatchOutput,
) -> StoredForm {
    let lay = |chunk: &[u8]| {
        if chunk.iter().all(|&byte| byte == 0) {
            return None;
        }
        output.bytes.extend_from_slice(chunk);
        output.fill_block(block);
        Some(Sha256Digest::of(chunk))
    };
    StoredForm::Chunks(bytes.chunks(chunk).map(lay).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lay(bytes: usize, may_inline: bool) -> (usize, usize) {
        let mut output = BatchOutput::default();
        let StoredForm::Flat { tail } = store_flat(&vec![7; bytes], 512, may_inline, &mut output)
        else {
            panic!("not flat");
        };
        (output.bytes.len(), tail.len())
    }

    #[test]
    fn the_tail_goes_inline_where_the_inode_leaves_room() {
        assert_eq!(lay(512 + 448, true), (512, 448));
        assert_eq!(lay(512 + 449, true), (1024, 0));
        assert_eq!(lay(512 + 448, false), (1024, 0));
    }

    #[test]
    fn whole_blocks_have_no_tail() {
        assert_eq!(lay(1024, true), (1024, 0));
        assert_eq!(lay(0, true), (0, 0));
    }
}
