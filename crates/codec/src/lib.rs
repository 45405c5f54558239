//! Decoders for the compressed pclusters of an EROFS image: LZ4, MicroLZMA, DEFLATE and ZSTD.
//!
//! Slices in, slices out. A [`Decoder`] owns every context it needs from [`Decoder::new`] on: after
//! that it allocates nothing, starts no thread, keeps no global state and writes nowhere but into
//! the `output` it is given. Any bytes are safe input. LZ4, DEFLATE and ZSTD are C libraries, and all
//! foreign code of the workspace is reached from here; what they allocate comes from Rust's global
//! allocator (see `c_heap`). MicroLZMA is decoded by this crate itself (see `lzma`).
//!
//! ```
//! use ferrofs_codec::{Algorithm, Decoder, Padding, Settings, Want};
//!
//! // A literal run of five bytes, behind the zeros that fill up its pcluster.
//! let pcluster = [0, 0, 0, 0x50, b'e', b'r', b'o', b'f', b's'];
//! let mut decoder = Decoder::new(&Settings::default())?;
//! let mut output = [0; 5];
//! decoder.decode(Algorithm::Lz4, Padding::Left, &pcluster, &mut output, Want::Whole)?;
//! assert_eq!(&output, b"erofs");
//! # Ok::<(), ferrofs_codec::Error>(())
//! ```

mod algorithm;
mod c_heap;
mod decoder;
mod deflate;
mod error;
mod lz4;
mod lzma;
mod padding;
mod settings;
mod want;
mod zstd;

pub use algorithm::Algorithm;
pub use decoder::Decoder;
pub use error::{Error, ErrorKind};
pub use lz4::{LZ4_WINDOW_PAGE_BYTES, Lz4Part, lz4_window_pages};
pub use padding::Padding;
pub use settings::Settings;
pub use want::Want;
