//! What the data path wrote is decoded again and compared byte by byte, whatever the options are.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrofs_codec::{
    Algorithm, DecodeMode, Decoder, DecoderSettings as Decoders, LzmaContexts, Method, Padding,
};
use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;
use proptest::prelude::*;

use super::commit::is_representable;
use super::*;
use crate::context::BuildMemory;
use crate::data_map::FileData;
use crate::data_map::{CompressedData, InlineExtent};
use crate::split::{RangeTask, TaskKind};
use crate::test_source::{content, metadata, shrunk_content, sparse_content};
use crate::tree::memory_content;
use crate::tree::{ContentProvider, ContentReader, ContentSource};
use crate::{Algorithms, BuildObserver, BuildOptions};

/// An image in memory, of which the first block is taken.
struct MemorySink {
    block: usize,
    bytes: Vec<u8>,
}

impl MemorySink {
    fn new(block: u32) -> Self {
        Self { block: block as usize, bytes: vec![0; block as usize] }
    }
}

impl BlockSink for MemorySink {
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(self.block), 0);
        Ok(address)
    }
}

fn options(method: Option<Method>, block_bits: u8, pcluster_blocks: u32) -> BuildOptions {
    let block_size = BlockSize::from_bits(block_bits).unwrap();
    BuildOptions {
        block_size,
        algorithms: method.map(|method| Algorithms { default: 0, methods: vec![method] }),
        pcluster_bytes: (block_size.bytes() * pcluster_blocks).min(1 << 20),
        extent_bytes_max: 8 << 20,
        jobs: Some(2),
        memory_bytes: 1 << 30,
        ..BuildOptions::default()
    }
}

/// Pseudorandom bytes of every kind: runs of zeros, text, noise, and what was there before.
fn bytes(initial_state: u64, count: usize) -> Vec<u8> {
    let mut state = initial_state.wrapping_mul(2).wrapping_add(1);
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        let run = (random() % 30_000 + 1).min(count - bytes.len());
        match random() % 4 {
            0 => bytes.resize(bytes.len() + run, 0),
            1 => (0..run).for_each(|_| bytes.push(random().to_le_bytes()[0])),
            2 => (0..run).for_each(|at| {
                bytes.push(b"every word of it "[at % 17] + random().to_le_bytes()[0] % 3);
            }),
            _ => {
                let from = bytes.len() / 2;
                let end = (from + run).min(bytes.len());
                bytes.extend_from_within(from..end);
                bytes.push(7);
            }
        }
    }
    bytes.truncate(count);
    bytes
}

fn decoder() -> Decoder {
    let settings = Decoders::none()
        .lz4_max_distance(Some(u16::MAX))
        .lzma_dictionary_bytes(Some(8 << 20))
        .deflate(true)
        .zstd_window_log(Some(20));
    Decoder::new(&settings).unwrap()
}

fn decode(pcluster: &[u8], algorithm: Option<AlgorithmId>, bytes: u64, partial: bool) -> Vec<u8> {
    let count = usize::try_from(bytes).unwrap();
    let algorithm = match algorithm {
        None => return pcluster[..count].to_vec(),
        Some(AlgorithmId::Lz4) => Algorithm::Lz4,
        Some(AlgorithmId::Lzma) => Algorithm::Lzma,
        Some(AlgorithmId::Deflate) => Algorithm::Deflate,
        Some(AlgorithmId::Zstd) => Algorithm::Zstd,
    };
    let want = if partial { DecodeMode::Prefix } else { DecodeMode::Whole };
    let mut output = vec![0; count];
    decoder().decode(algorithm, Padding::Left, pcluster, &mut output, want).unwrap();
    output
}

/// The data path without a tree.
struct TestPass<'o> {
    options: &'o BuildOptions,
    memory: BuildMemory,
    cancel: CancelToken,
}

impl<'o> TestPass<'o> {
    fn new(options: &'o BuildOptions) -> Result<Self> {
        let memory = BuildMemory::new(options, &Tree::new(metadata()))?;
        Ok(Self { options, memory, cancel: CancelToken::new() })
    }

    fn context<'c>(&'c self, observer: &'c dyn BuildObserver) -> BuildContext<'c> {
        let Self { options, memory, cancel } = self;
        BuildContext { options, memory, observer, cancel }
    }

    fn write(
        &self,
        files: FileSet<'_>,
        observer: &dyn BuildObserver,
        sink: &mut MemorySink,
    ) -> Result<(Vec<FileData>, PackedFile)> {
        let packed = PackedFile::new(&[], self.options.fragment_sharing, self.memory.store());
        let sinks = DataSinks::of_image(sink);
        let (data, packed) = write_files(files, packed, &self.context(observer), sinks)?;
        Ok((data.files().into_iter().flatten().collect(), packed))
    }

    fn write_packed(&self, content: &Content, sink: &mut MemorySink) -> Result<InternalFile> {
        write_packed(content, &self.context(&NoopObserver), sink)
    }
}

/// What was written, and the options it was written by.
struct WrittenFiles {
    options: BuildOptions,
    image: Vec<u8>,
    files: Vec<FileData>,
    packed: Option<InternalFile>,
}

impl WrittenFiles {
    fn of(
        files: &[Content],
        pieces: Option<&dyn FilePieces>,
        options: BuildOptions,
    ) -> Result<Self> {
        let mut sink = MemorySink::new(options.block_size.bytes());
        let files = FileSet { contents: FileList::Contents(files), compressions: &[], pieces };
        let pass = TestPass::new(&options)?;
        let (files, packed) = pass.write(files, &NoopObserver, &mut sink)?;
        let packed = packed.into_content().map(|packed| pass.write_packed(&packed, &mut sink));
        let packed = packed.transpose()?;
        Ok(Self { options, image: sink.bytes, files, packed })
    }

    fn at(&self, address: u64, bytes: u64) -> &[u8] {
        let start = usize::try_from(address).unwrap();
        &self.image[start..][..usize::try_from(bytes).unwrap()]
    }

    fn packed_bytes(&self) -> Vec<u8> {
        let packed = self.packed.as_ref().unwrap();
        if let FileData::Compressed(data) = &packed.data {
            assert_eq!(data.fragment, None);
        }
        self.read(&packed.data, packed.bytes)
    }

    fn read(&self, data: &FileData, bytes: u64) -> Vec<u8> {
        let block = u64::from(self.options.block_size.bytes());
        match data {
            FileData::Flat { start_block, tail } => {
                let whole = bytes - tail.len() as u64;
                let front = start_block.map(|start| self.at(start * block, whole));
                [front.unwrap_or_default(), tail].concat()
            }
            FileData::Hole => vec![0; usize::try_from(bytes).unwrap()],
            FileData::Chunks { format, places } => {
                let chunk = format.chunk_bytes(self.options.block_size);
                let mut read = Vec::new();
                for place in places {
                    let count = chunk.min(bytes - read.len() as u64);
                    match place {
                        Some(place) => read.extend_from_slice(self.at(place.block * block, count)),
                        None => read.resize(read.len() + usize::try_from(count).unwrap(), 0),
                    }
                }
                read
            }
            FileData::Compressed(data) => self.read_compressed(data),
        }
    }

    fn read_compressed(&self, data: &CompressedData) -> Vec<u8> {
        let block = u64::from(self.options.block_size.bytes());
        let mut read = Vec::new();
        let has_end = data.inline.is_some() || data.fragment.is_some();
        for (index, extent) in data.extents.iter().enumerate() {
            let pcluster = u64::from(extent.pcluster_bytes);
            assert!(extent.bytes > 0 && extent.address % block == 0 && pcluster % block == 0);
            assert!(extent.pcluster_bytes <= self.options.pcluster_bytes);
            let is_last = index + 1 == data.extents.len() && !has_end;
            let lengths = (extent.bytes, pcluster);
            assert!(is_representable(read.len() as u64, lengths, block, is_last));
            assert!(extent.algorithm.is_some() || extent.bytes <= block && pcluster == block);
            let bytes = self.at(extent.address, pcluster);
            read.extend(decode(bytes, extent.algorithm, extent.bytes, extent.partial));
        }
        if let Some(InlineExtent { bytes, algorithm, pcluster }) = &data.inline {
            assert!(pcluster.len() as u64 <= block - 64);
            read.extend(decode(pcluster, *algorithm, *bytes, false));
        }
        if let Some(fragment) = data.fragment {
            let start = usize::try_from(fragment.offset).unwrap();
            let end = start + usize::try_from(fragment.bytes).unwrap();
            read.extend_from_slice(&self.packed_bytes()[start..end]);
        }
        read
    }

    fn check(&self, wanted: &[Vec<u8>]) {
        assert_eq!(self.files.len(), wanted.len());
        for (data, wanted) in self.files.iter().zip(wanted) {
            let read = self.read(data, wanted.len() as u64);
            assert!(read == *wanted, "{} bytes, {data:?}", wanted.len());
        }
    }
}

fn contents(files: &[Vec<u8>]) -> Vec<Content> {
    files
        .iter()
        .enumerate()
        .map(|(index, bytes)| content(&format!("file {index}"), bytes))
        .collect()
}

fn methods() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::Lz4 { max_distance: 65535 }),
        Just(Method::Lz4Hc { level: 9, max_distance: 16384 }),
        Just(Method::Lzma { level: 1, dictionary_bytes: 65536, contexts: LzmaContexts::default() }),
        Just(Method::Deflate { level: 1 }),
        Just(Method::Zstd { level: 3, window_log: 17 }),
    ]
}

fn all_fragments() -> impl Strategy<Value = Fragments> {
    prop_oneof![Just(Fragments::None), Just(Fragments::Tails), Just(Fragments::All)]
}

/// FilePieces by file, as a plan would have them.
struct FixedPieces(Vec<Vec<DedupePiece>>);

impl FilePieces for FixedPieces {
    fn pieces(&self, file: usize) -> &[DedupePiece] {
        &self.0[file]
    }

    fn cut_files(&self) -> Vec<usize> {
        (0..self.0.len()).collect()
    }
}

/// Files of which the second and third hold parts of the first, with pieces that say so.
fn with_copies(initial_state: u64, cuts: [usize; 4]) -> (Vec<Vec<u8>>, FixedPieces) {
    let first = bytes(initial_state, 200_000);
    let [start, own, between, end] = cuts;
    let copied = &first[start..][..own];
    let gap = bytes(initial_state + 1, between);
    let second = [&bytes(initial_state + 2, end)[..], copied, &gap, copied].concat();
    let whole = [&first[..start], copied].concat();
    let mut pieces = vec![Vec::new(); 3];
    let add = |to: &mut Vec<DedupePiece>, piece: DedupePiece| {
        let (DedupePiece::Own { bytes } | DedupePiece::Copy { bytes, .. }) = piece;
        if bytes > 0 {
            to.push(piece);
        }
    };
    let long = |bytes: usize| bytes as u64;
    add(&mut pieces[0], DedupePiece::Own { bytes: long(start) });
    add(&mut pieces[0], DedupePiece::Own { bytes: long(first.len() - start) });
    let copy = DedupePiece::Copy { of: 0, offset: long(start), bytes: long(own) };
    add(&mut pieces[1], DedupePiece::Own { bytes: long(end) });
    add(&mut pieces[1], copy);
    add(&mut pieces[1], DedupePiece::Own { bytes: long(between) });
    add(&mut pieces[1], copy);
    add(&mut pieces[2], DedupePiece::Copy { of: 0, offset: 0, bytes: long(start) });
    add(&mut pieces[2], copy);
    (vec![first, second, whole], FixedPieces(pieces))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_byte_comes_back(
        initial_state in any::<u64>(),
        sizes in prop::collection::vec(prop_oneof![0_usize..9000, 0_usize..400_000], 1..8),
        method in methods(),
        (block_bits, pcluster_blocks) in (9_u8..=16, prop_oneof![Just(1_u32), Just(4), Just(16), Just(256)]),
        inline in any::<bool>(),
        fragments in all_fragments(),
    ) {
        let mut files: Vec<_> = sizes.iter().zip(initial_state..).map(|(&size, state)| bytes(state, size)).collect();
        files.extend_from_within(..1);
        let tail = files[0].len() / 2;
        files.push(files[0][tail..].to_vec());
        let options = BuildOptions {
            inline_pclusters: inline,
            fragments,
            ..options(Some(method), block_bits, pcluster_blocks)
        };
        WrittenFiles::of(&contents(&files), None, options).unwrap().check(&files);
    }

    #[test]
    fn every_byte_of_a_copy_comes_back(
        initial_state in any::<u64>(),
        (start, own, between, end) in (0_usize..90_000, 1_usize..100_000, 0_usize..9000, 0_usize..20_000),
        method in methods(),
        pcluster_blocks in prop_oneof![Just(1_u32), Just(16)],
        inline in any::<bool>(),
        tails in any::<bool>(),
    ) {
        let (files, pieces) = with_copies(initial_state, [start, own, between, end]);
        let fragments = if tails { Fragments::Tails } else { Fragments::None };
        let options = BuildOptions { inline_pclusters: inline, fragments, ..options(Some(method), 12, pcluster_blocks) };
        WrittenFiles::of(&contents(&files), Some(&pieces), options).unwrap().check(&files);
    }

    #[test]
    fn every_byte_comes_back_uncompressed(
        initial_state in any::<u64>(),
        sizes in prop::collection::vec(prop_oneof![0_usize..9000, 0_usize..400_000], 1..8),
        block_bits in 9_u8..=16,
        chunk_blocks in prop::option::of(prop_oneof![Just(1_u64), Just(8), Just(1 << 20)]),
        (inline_data, force_chunk_indexes) in any::<(bool, bool)>(),
    ) {
        let mut files: Vec<_> = sizes.iter().zip(initial_state..).map(|(&size, state)| bytes(state, size)).collect();
        files.extend_from_within(..1);
        let options = options(None, block_bits, 1);
        let chunk_bytes = chunk_blocks.map(|blocks| blocks << block_bits);
        let options = BuildOptions { chunk_bytes, inline_data, force_chunk_indexes, ..options };
        WrittenFiles::of(&contents(&files), None, options).unwrap().check(&files);
    }
}

const LZ4: Method = Method::Lz4 { max_distance: 65535 };
const ZSTD: Method = Method::Zstd { level: 3, window_log: 17 };

/// Files of many sizes, one of them of several segments.
fn many_files() -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        (0..300).map(|number| bytes(number, (number * 97 % 30_000) as usize)).collect();
    files.insert(20, bytes(999, 9 << 20));
    files
}

#[test]
fn the_bytes_do_not_depend_on_the_workers_or_the_memory() {
    let files = many_files();
    for fragments in [Fragments::None, Fragments::Tails] {
        let write = |jobs, memory_bytes| {
            let options = options(Some(ZSTD), 12, 16);
            let options = BuildOptions { jobs: Some(jobs), memory_bytes, fragments, ..options };
            WrittenFiles::of(&contents(&files), None, options).unwrap()
        };
        let one = write(1, 1 << 30);
        one.check(&files);
        for (jobs, memory_bytes) in [(2, 1 << 30), (3, 64 << 20), (8, 1 << 30)] {
            let other = write(jobs, memory_bytes);
            assert!(other.image == one.image && other.files == one.files, "{jobs} workers");
            assert_eq!(other.packed, one.packed);
        }
    }
}

#[test]
fn what_gains_nothing_is_stored_flat() {
    let mut state = 1_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..(9 << 20) + 100).map(|_| random()).collect();
    let files = vec![noise[..100_000].to_vec(), noise];
    for method in [LZ4, ZSTD] {
        let written =
            WrittenFiles::of(&contents(&files), None, options(Some(method), 12, 16)).unwrap();
        written.check(&files);
        assert!(
            matches!(&written.files[0], FileData::Flat { tail, .. } if tail.len() == 100_000 % 4096)
        );
        assert!(matches!(&written.files[1], FileData::Flat { .. }));
    }
}

#[test]
fn equal_files_are_stored_once_with_fragments() {
    let files = vec![bytes(5, 300_000), bytes(5, 300_000), bytes(6, 10)];
    let options = BuildOptions { fragments: Fragments::Tails, ..options(Some(LZ4), 12, 1) };
    let written = WrittenFiles::of(&contents(&files), None, options).unwrap();
    written.check(&files);
    assert_eq!(written.files[0], written.files[1]);
}

#[test]
fn equal_chunks_are_stored_once_and_zeros_are_holes() {
    let chunk = bytes(3, 65536);
    let file = [&chunk[..], &vec![0; 65536], &chunk, &chunk[..100]].concat();
    let options = BuildOptions { chunk_bytes: Some(65536), ..options(None, 12, 1) };
    let written = WrittenFiles::of(&contents(std::slice::from_ref(&file)), None, options).unwrap();
    written.check(&[file]);
    let FileData::Chunks { places, format } = &written.files[0] else { panic!("not in chunks") };
    assert_eq!((places.len(), format.entry_bytes()), (4, 4));
    assert_eq!((places[0], places[1]), (places[2], None));
    assert_eq!(written.image.len(), 4096 + 65536 + 4096);
}

#[test]
fn holes_of_the_source_are_not_read() {
    let mut file = vec![0; 20 << 20];
    file[9 << 20..][..5000].fill(1);
    // The data that lies outside of the range shows whether it was read.
    let mut unseen = file.clone();
    unseen[0] = 1;
    let range = 9 << 20..(9 << 20) + 5000;
    let sparse = sparse_content("sparse", &unseen, std::iter::once(range).collect());
    let options = BuildOptions { chunk_bytes: Some(1 << 20), ..options(None, 12, 1) };
    WrittenFiles::of(&[sparse], None, options).unwrap().check(&[file]);
}

#[test]
fn a_source_that_became_shorter_is_named_and_the_first_error_wins() {
    let files = many_files();
    let mut contents = contents(&files);
    contents.insert(250, shrunk_content("second", &[1; 10], 100));
    contents.insert(30, shrunk_content("first", &[1; 10], 5000));
    for jobs in [1, 3] {
        let options = BuildOptions { jobs: Some(jobs), ..options(Some(ZSTD), 12, 16) };
        let error = WrittenFiles::of(&contents, None, options).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
        assert_eq!(error.path().to_str(), Some("first"));
    }
}

#[test]
fn an_index_that_memory_has_no_room_for_is_refused_at_the_first_bytes() {
    let huge = memory_content("huge", 0, vec![0; 8 << 20], 1 << 40);
    let options = BuildOptions { memory_bytes: 64 << 20, ..options(Some(ZSTD), 12, 16) };
    let error = WrittenFiles::of(&[huge], None, options).err().unwrap();
    assert!(error.to_string().contains("have no room for its index"), "{error}");
}

#[test]
fn too_little_memory_is_refused_with_what_is_needed() {
    let options = BuildOptions { memory_bytes: 1 << 20, ..options(Some(ZSTD), 12, 16) };
    let error = WrittenFiles::of(&contents(&[vec![1; 10]]), None, options).err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)));
    assert!(error.to_string().contains("are needed"), "{error}");
}

/// Counts the bytes that are done, and cancels after some.
struct ByteCounter(AtomicUsize, CancelToken);

impl BuildObserver for ByteCounter {
    fn bytes_done(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap();
        if self.0.fetch_add(bytes, Ordering::Relaxed) + bytes > 1_000_000 {
            self.1.cancel();
        }
    }
}

#[test]
fn a_cancelled_pass_ends_early() {
    let files = many_files();
    let options = options(Some(LZ4), 12, 16);
    let pass = TestPass::new(&options).unwrap();
    let observer = ByteCounter(AtomicUsize::new(0), pass.cancel.clone());
    let contents = contents(&files);
    let files_to_write =
        FileSet { contents: FileList::Contents(&contents), compressions: &[], pieces: None };
    let error = pass.write(files_to_write, &observer, &mut MemorySink::new(4096)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled));
    let total: usize = files.iter().map(Vec::len).sum();
    assert!(observer.0.load(Ordering::Relaxed) < total);
}

/// A file that does not say where its holes are.
struct UnlistableFile;

impl ContentSource for UnlistableFile {
    fn name(&self) -> String {
        "later".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Err(Error::new(ErrorKind::Internal("it is never read")))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let source = std::io::ErrorKind::Other.into();
        let error = Error::new(ErrorKind::Input { operation: "cannot find holes", source });
        Err(error.at(self.name()))
    }
}

#[test]
fn an_error_while_files_are_split_waits_for_those_of_earlier_files() {
    let later = Content::new(Arc::new(UnlistableFile), 4 << 20);
    let contents = [shrunk_content("earlier", &[1; 10], 5000), later];
    for jobs in [1, 2, 3] {
        let options = options(None, 12, 1);
        let options = BuildOptions { jobs: Some(jobs), chunk_bytes: Some(4096), ..options };
        let error = WrittenFiles::of(&contents, None, options).err().unwrap();
        assert_eq!(error.path().to_str(), Some("earlier"), "{jobs} jobs: {error}");
    }
}

#[test]
fn a_copy_of_everything_takes_no_blocks() {
    let first = bytes(11, 500_000);
    let files = vec![first.clone(), first];
    let own = vec![DedupePiece::Own { bytes: 500_000 }];
    let copy = vec![DedupePiece::Copy { of: 0, offset: 0, bytes: 500_000 }];
    for inline_pclusters in [false, true] {
        let options = BuildOptions { inline_pclusters, ..options(Some(ZSTD), 12, 16) };
        let alone = WrittenFiles::of(&contents(&files[..1]), None, options.clone()).unwrap();
        let pieces = FixedPieces(vec![own.clone(), copy.clone()]);
        let both = WrittenFiles::of(&contents(&files), Some(&pieces), options).unwrap();
        both.check(&files);
        assert_eq!(both.image.len(), alone.image.len());
    }
}

/// Through a mount, a program can map the last block of a flat file, and read what lies behind the end.
#[test]
fn the_last_block_of_a_flat_file_holds_no_bytes_of_another_file() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    // Of several segments, so that it has extents.
    let noise: Vec<u8> = (0..9 << 20).map(|_| random()).collect();
    let own = vec![DedupePiece::Own { bytes: noise.len() as u64 }];
    for (bytes, is_flat) in [(10 * 4096, true), (10 * 4096 + 2000, false)] {
        let copy = vec![DedupePiece::Copy { of: 0, offset: 0, bytes: bytes as u64 }];
        let files = vec![noise.clone(), noise[..bytes].to_vec()];
        let pieces = FixedPieces(vec![own.clone(), copy]);
        let written =
            WrittenFiles::of(&contents(&files), Some(&pieces), options(Some(LZ4), 12, 1)).unwrap();
        written.check(&files);
        assert_eq!(matches!(written.files[1], FileData::Flat { .. }), is_flat, "{bytes}");
        // The first block is not used: the copy takes none.
        assert_eq!(written.image.len(), noise.len() + 4096);
    }
}

/// Counts how often the one file that it has is opened.
struct CountingProvider {
    file: Content,
    opened: AtomicUsize,
}

impl ContentProvider for CountingProvider {
    fn content_source(self: Arc<Self>, _: &[u8]) -> Arc<dyn ContentSource> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.file.source()
    }
}

/// To open a sparse file of an archive takes as long as its map, which has as many ranges as there are tasks.
#[test]
fn a_file_of_many_ranges_is_opened_once_by_each_thread() {
    let (range, count) = (8192, 1000);
    let mut bytes = vec![0; range * count];
    bytes.iter_mut().step_by(range).for_each(|byte| *byte = 7);
    let starts = (0..bytes.len() as u64).step_by(range);
    let sparse = sparse_content("sparse", &bytes, starts.map(|start| start..start + 1).collect());
    let provider = Arc::new(CountingProvider { file: sparse, opened: AtomicUsize::new(0) });
    let file =
        Content::of_provider(Arc::<CountingProvider>::clone(&provider), b"", bytes.len() as u64);
    let options = BuildOptions { chunk_bytes: Some(4096), ..options(None, 12, 1) };
    let threads = options.jobs.unwrap();
    WrittenFiles::of(&[file], None, options).unwrap().check(&[bytes]);
    // Once more for its holes, and for its name.
    let opened = provider.opened.load(Ordering::Relaxed);
    assert!(opened <= threads + 2, "{opened} times");
}

#[test]
fn small_files_in_flight_count_with_what_is_kept_for_each() {
    let content = content("a file", &[7; 100]);
    let task =
        RangeTask { file: 0, content, start: 0, bytes: 100, profile: 0, kind: TaskKind::Pack };
    let batch = TaskBatch { bytes: 25_600, tasks: vec![task; 256], ..TaskBatch::default() };
    assert_eq!(in_flight_cost(&batch), 25_600 + 256 * TASK_BYTES);
}
