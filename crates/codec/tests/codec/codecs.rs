//! The four algorithms: encoders in C and in Rust, and the second decoder that judges ours.
#![allow(unsafe_code, reason = "the C encoders are reached from nowhere else yet")]

use std::ffi::{c_char, c_int, c_uint};
use std::io::Read;

use ferrofs_codec::{Algorithm, Decoder, DecoderSettings};

pub(crate) type Encode = fn(&[u8]) -> Vec<u8>;

/// What the suite needs to know of an algorithm.
pub(crate) struct Codec {
    pub(crate) algorithm: Algorithm,
    pub(crate) encoders: &'static [(&'static str, Encode)],
    /// Decodes with the second implementation; panics when it fails.
    pub(crate) second_decode: fn(&[u8], usize) -> Vec<u8>,
}

pub(crate) const DICTIONARY_BYTES: u32 = 64 << 10;
pub(crate) const WINDOW_LOG: u8 = 17;

pub(crate) const SETTINGS: DecoderSettings = DecoderSettings::none()
    .lz4_max_distance(Some(u16::MAX))
    .lzma_dictionary_bytes(Some(DICTIONARY_BYTES))
    .deflate(true)
    .zstd_window_log(Some(WINDOW_LOG));

pub(crate) fn decoder() -> Decoder {
    Decoder::new(&SETTINGS).unwrap()
}

pub(crate) const LZ4: Codec = Codec {
    algorithm: Algorithm::Lz4,
    encoders: &[
        ("liblz4", |data| lz4_fast(data)),
        ("liblz4 HC 12", |data| lz4_high(data, 12)),
        ("lz4_flex", |data| lz4_flex::block::compress(data)),
    ],
    second_decode: |stream, length| lz4_flex::block::decompress(stream, length).unwrap(),
};

pub(crate) const DEFLATE: Codec = Codec {
    algorithm: Algorithm::Deflate,
    encoders: &[
        ("libdeflate 1", |data| deflate(data, 1)),
        ("libdeflate 12", |data| deflate(data, 12)),
        ("miniz_oxide", |data| miniz_oxide::deflate::compress_to_vec(data, 6)),
    ],
    second_decode: |stream, _| miniz_oxide::inflate::decompress_to_vec(stream).unwrap(),
};

pub(crate) const LZMA: Codec = Codec {
    algorithm: Algorithm::Lzma,
    encoders: &[
        ("liblzma 0", |data| microlzma(data, 0, [3, 0, 2])),
        ("liblzma 6, lc 0, lp 2, pb 0", |data| microlzma(data, 6, [0, 2, 0])),
        ("lzma-rust2", microlzma_in_rust),
    ],
    second_decode: |stream, length| {
        // The properties byte is inverted and stands where LZMA has a zero.
        let lzma = [&[0], &stream[1..]].concat();
        let mut data = vec![0; length];
        let properties = !stream[0];
        let dictionary = DICTIONARY_BYTES;
        lzma_rust2::LzmaReader::new_with_props(
            &lzma[..],
            length as u64,
            properties,
            dictionary,
            None,
        )
        .unwrap()
        .read_exact(&mut data)
        .unwrap();
        data
    },
};

pub(crate) const ZSTD: Codec = Codec {
    algorithm: Algorithm::Zstd,
    encoders: &[
        ("libzstd 1", |data| zstd(data, 1, Frame::default())),
        ("libzstd 19", |data| zstd(data, 19, Frame::default())),
        ("libzstd without size, with checksum", |data| {
            zstd(data, 3, Frame { size: false, checksum: true, ..Frame::default() })
        }),
        ("ruzstd", |data| {
            ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
        }),
    ],
    second_decode: |stream, length| {
        let mut data = Vec::with_capacity(length);
        let mut reader = ruzstd::decoding::StreamingDecoder::new(stream).unwrap();
        reader.read_to_end(&mut data).unwrap();
        data
    },
};

unsafe extern "C" {
    fn LZ4_compressBound(source_bytes: c_int) -> c_int;
    fn LZ4_compress_default(
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        capacity: c_int,
    ) -> c_int;
    fn LZ4_compress_HC(
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        capacity: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_compress_destSize(
        source: *const c_char,
        target: *mut c_char,
        source_bytes: *mut c_int,
        capacity: c_int,
    ) -> c_int;
}

fn c_int_of(length: usize) -> c_int {
    c_int::try_from(length).unwrap()
}

fn usize_of(length: c_int) -> usize {
    usize::try_from(length).unwrap()
}

fn lz4_room(data: &[u8]) -> Vec<u8> {
    // SAFETY: a calculation without pointers.
    vec![0; usize_of(unsafe { LZ4_compressBound(c_int_of(data.len())) })]
}

fn lz4_fast(data: &[u8]) -> Vec<u8> {
    let mut out = lz4_room(data);
    let (source_bytes, capacity) = (c_int_of(data.len()), c_int_of(out.len()));
    let (source, target) = (data.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: both pointers are given with the lengths of their buffers.
    let length = unsafe { LZ4_compress_default(source, target, source_bytes, capacity) };
    assert!(length > 0);
    out.truncate(usize_of(length));
    out
}

fn lz4_high(data: &[u8], level: c_int) -> Vec<u8> {
    let mut out = lz4_room(data);
    let (source_bytes, capacity) = (c_int_of(data.len()), c_int_of(out.len()));
    let (source, target) = (data.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: both pointers are given with the lengths of their buffers.
    let length = unsafe { LZ4_compress_HC(source, target, source_bytes, capacity, level) };
    assert!(length > 0);
    out.truncate(usize_of(length));
    out
}

/// Fills `capacity` bytes from the start of `data`: the block, and how much went into it.
pub(crate) fn lz4_to_size(data: &[u8], capacity: usize) -> (Vec<u8>, usize) {
    let mut out = vec![0; capacity];
    let mut taken = c_int_of(data.len());
    let (source, target) = (data.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: both pointers are given with the lengths of their buffers, and `taken` outlives the
    // call.
    let length =
        unsafe { LZ4_compress_destSize(source, target, &raw mut taken, c_int_of(capacity)) };
    out.truncate(usize_of(length));
    (out, usize_of(taken))
}

fn deflate(data: &[u8], level: c_int) -> Vec<u8> {
    use libdeflate_sys as c;
    let mut out = vec![0; data.len() + data.len() / 100 + 100];
    // SAFETY: the compressor is made and freed here, and both pointers are given with their lengths.
    let length = unsafe {
        let compressor = c::libdeflate_alloc_compressor(level);
        assert!(!compressor.is_null());
        let (source, target) = (data.as_ptr().cast(), out.as_mut_ptr().cast());
        let room = out.len();
        let length = c::libdeflate_deflate_compress(compressor, source, data.len(), target, room);
        c::libdeflate_free_compressor(compressor);
        length
    };
    assert!(length > 0);
    out.truncate(length);
    out
}

pub(crate) fn microlzma(data: &[u8], preset: u32, [lc, lp, pb]: [u32; 3]) -> Vec<u8> {
    use liblzma_sys as c;
    let mut out = vec![0; data.len() + data.len() / 8 + 100];
    // SAFETY: zero is a value for both structures and how liblzma wants a new stream; the pointers
    // are given with their lengths; the stream is ended here.
    let (taken, length) = unsafe {
        let mut options: c::lzma_options_lzma = std::mem::zeroed();
        assert_eq!(c::lzma_lzma_preset(&raw mut options, preset), 0);
        options.dict_size = DICTIONARY_BYTES;
        (options.lc, options.lp, options.pb) = (lc, lp, pb);
        let mut stream: c::lzma_stream = std::mem::zeroed();
        let ready = c::lzma_microlzma_encoder(&raw mut stream, &raw const options);
        assert_eq!(ready, c::lzma_ret_LZMA_OK);
        (stream.next_in, stream.avail_in) = (data.as_ptr(), data.len());
        (stream.next_out, stream.avail_out) = (out.as_mut_ptr(), out.len());
        let result = c::lzma_code(&raw mut stream, c::lzma_action_LZMA_FINISH);
        assert_eq!(result, c::lzma_ret_LZMA_STREAM_END);
        let left = stream.avail_out;
        c::lzma_end(&raw mut stream);
        (stream.total_in, out.len() - left)
    };
    assert_eq!(taken, data.len() as u64);
    out.truncate(length);
    out
}

fn microlzma_in_rust(data: &[u8]) -> Vec<u8> {
    let mut options = lzma_rust2::LzmaOptions::with_preset(1);
    options.dict_size = DICTIONARY_BYTES;
    let mut out = vec![0; data.len() + data.len() / 8 + 100];
    let mut encoder = lzma_rust2::MicroLzmaEncoder::new(&options).unwrap();
    let (taken, length) = encoder.compress_prefix(data, &mut out).unwrap();
    assert_eq!(taken, data.len());
    out.truncate(length);
    out
}

/// The choices of a ZSTD frame.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) size: bool,
    pub(crate) checksum: bool,
    pub(crate) window_log: u8,
}

impl Default for Frame {
    fn default() -> Self {
        Self { size: true, checksum: false, window_log: WINDOW_LOG }
    }
}

pub(crate) fn zstd(data: &[u8], level: c_int, frame: Frame) -> Vec<u8> {
    use zstd_sys as c;
    // SAFETY: the context is made and freed here, and both pointers are given with their lengths.
    unsafe {
        let mut out = vec![0; c::ZSTD_compressBound(data.len())];
        let context = c::ZSTD_createCCtx();
        let set = |parameter, value| {
            let result = c::ZSTD_CCtx_setParameter(context, parameter, value);
            assert_eq!(c::ZSTD_isError(result), c_uint::from(false));
        };
        set(c::ZSTD_cParameter::ZSTD_c_compressionLevel, level);
        set(c::ZSTD_cParameter::ZSTD_c_contentSizeFlag, c_int::from(frame.size));
        set(c::ZSTD_cParameter::ZSTD_c_checksumFlag, c_int::from(frame.checksum));
        set(c::ZSTD_cParameter::ZSTD_c_windowLog, c_int::from(frame.window_log));
        let (source, target) = (data.as_ptr().cast(), out.as_mut_ptr().cast());
        let length = c::ZSTD_compress2(context, target, out.len(), source, data.len());
        assert_eq!(c::ZSTD_isError(length), 0);
        assert_eq!(c::ZSTD_freeCCtx(context), 0);
        out.truncate(length);
        out
    }
}
