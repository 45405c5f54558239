//! Decoders and encoders for the compressed pclusters of an EROFS image: LZ4, MicroLZMA, DEFLATE
//! and ZSTD.
//!
//! A [`Decoder`] allocates all its contexts in [`Decoder::new`], and an [`Encoder`] in
//! [`Encoder::new`]. After that they allocate nothing, start no thread, keep no global state and
//! write only into the `output` slice. Any bytes are safe input.
//!
//! LZ4, DEFLATE, ZSTD and the encoder of MicroLZMA are C libraries. All foreign code of the
//! workspace is called from this crate, and allocates from Rust's global allocator (see `c_heap`).
//! The crate itself decodes MicroLZMA (see `lzma`), and encodes LZ4 blocks whose matches may not
//! reach 64 KiB back (see `lz4::encode`).
//!
//! A pcluster has a fixed size and an extent has not, so an encoder fills its output:
//! [`Encoder::fill`] encodes as much input as fits.
//!
//! ```
//! use ferrofs_codec::{Algorithm, DecodeMode, Decoder, DecoderSettings, Padding};
//!
//! // A literal run of five bytes, behind the zero padding of its pcluster.
//! let pcluster = [0, 0, 0, 0x50, b'e', b'r', b'o', b'f', b's'];
//! let mut decoder = Decoder::new(&DecoderSettings::default())?;
//! let mut output = [0; 5];
//! decoder.decode(Algorithm::Lz4, Padding::Left, &pcluster, &mut output, DecodeMode::Whole)?;
//! assert_eq!(&output, b"erofs");
//!
//! use ferrofs_codec::{Encoder, Method};
//!
//! let method = Method::Lz4 { max_distance: u16::MAX };
//! let mut encoder = Encoder::new(&method, 4096, 1 << 20)?;
//! let mut pcluster = [0; 4096];
//! let filled = encoder.fill(&[b'e'; 9000], &mut pcluster)?.expect("nine thousand equal bytes");
//! assert!(filled.input_bytes == 9000 && filled.output_bytes < 60);
//! # Ok::<(), ferrofs_codec::Error>(())
//! ```

mod c_heap;
mod decoder;
mod deflate;
mod encoder;
mod error;
mod lz4;
mod lzma;
mod stream;
mod zstd;

pub use decoder::{Decoder, DecoderSettings};
pub use encoder::{Encoder, Method};
pub use error::{Error, ErrorKind};
pub use lz4::{LZ4_WINDOW_PAGE_BYTES, lz4_window_pages};
pub use lzma::LzmaContexts;
pub use stream::{Algorithm, DecodeMode, EncodedSizes, Lz4Part, Padding};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
