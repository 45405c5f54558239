//! Where an image's bytes go: a sink of blocks, as the data path sees it.

use crate::Result;

/// Takes data, in order, and says where in the image it came to lie.
pub trait BlockSink {
    /// Appends `bytes`, from a block's start on; zeros fill up the last block. Returns the address of the
    /// first byte in the image.
    ///
    /// # Errors
    /// The host refuses to write, as with a full file system.
    fn append(&mut self, bytes: &[u8]) -> Result<u64>;
}
