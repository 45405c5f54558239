//! Which decoders to make, and how large their windows are. Checked by `Decoder::new`.

/// Which decoders [`Decoder::new`](crate::Decoder::new) makes.
///
/// The numbers come from the compression configurations of an image. The default is LZ4 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Make an LZ4 decoder; it needs no memory.
    pub lz4: bool,
    /// Make a MicroLZMA decoder for streams with a dictionary of this many bytes: at most 8 MiB, and
    /// values under 4 KiB count as 4 KiB. It costs no memory, as the output is the dictionary; a
    /// match that reaches back farther than this is an error.
    pub lzma_dictionary_bytes: Option<u32>,
    /// Make a DEFLATE decoder.
    pub deflate: bool,
    /// Make a ZSTD decoder for frames with a window of up to two to this power bytes, 10 to 20.
    pub zstd_window_log: Option<u8>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lz4: true, lzma_dictionary_bytes: None, deflate: false, zstd_window_log: None }
    }
}
