//! A file with readahead reads like the image, in any order. Prefetched clusters are used, a jump
//! cancels prefetches, and one that fails fails no read.

use std::sync::Arc;

use ferrofs_image::{Image, ImageSource, OpenFile, OpenOptions, SyncDecompress};

use crate::lz4_image::{Lz4Image, XorshiftRng};
use crate::sources::{
    BlockingSource, CorpusImage, FaultySource, SourceFault, Watchdog, own_workers, wait_until,
};

#[test]
fn a_file_reads_like_its_image_in_any_order() {
    let _watchdog = Watchdog::new("reading files in any order");
    let mut numbers = XorshiftRng(17);
    let workers = own_workers();
    for name in ["lz4hc-64k", "lzma-64k-ztail", "zstd-64k-fragments", "deflate-fragments", "inline"]
    {
        let corpus = CorpusImage::new(name);
        let image = corpus.open(&OpenOptions::new().workers(&workers));
        for (nid, expected) in &corpus.files {
            let file = image.open_file(&image.inode(*nid).unwrap()).unwrap();
            let mut at = 0;
            for _ in 0..12 {
                if numbers.below(3) == 0 {
                    at = numbers.index(expected.len() + 2);
                }
                let mut buffer = vec![0u8; numbers.index(40_000)];
                let count = file.read_at(at as u64, &mut buffer).unwrap();
                let part = &expected[expected.len().min(at)..expected.len().min(at + buffer.len())];
                assert!(buffer[..count] == *part, "{name}, nid {nid} at {at}");
                at += count;
            }
        }
    }
}

#[test]
fn what_is_read_ahead_of_a_sequential_reader_is_used() {
    let _watchdog = Watchdog::new("reading ahead of a sequential reader");
    let written = Lz4Image::of_extents(65_535, &[40], 64 << 10);
    let image = written.open(&OpenOptions::new().workers(&own_workers()));
    let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
    let text = &written.texts[0];
    assert!(text.len() > 2 << 20);
    let mut buffer = vec![0u8; 64 << 10];
    for (number, part) in text.chunks(64 << 10).enumerate() {
        let before = image.stats().cache;
        let count = file.read_at((number as u64) << 16, &mut buffer).unwrap();
        assert!(buffer[..count] == *part, "read {number}");
        if number == 0 {
            // The machine may be so busy that a reader that does not wait is always first.
            let came = || image.stats().cache;
            wait_until("something is fetched", || came().prefetched > before.prefetched);
        }
    }
    let stats = image.stats();
    assert!(stats.cache.prefetch_used > 0, "{:?}", stats.cache);
    assert!(stats.clusters_on_workers > 0);
    // What is prefetched is not decoded again.
    assert!(stats.clusters_decoded <= 42, "{} decoded", stats.clusters_decoded);
}

/// Reads a file whose clusters follow each other, in parts. Returns how many clusters workers
/// decoded.
fn on_workers(file: &OpenFile, image: &Image, text: &[u8]) -> u64 {
    let mut buffer = vec![0u8; 512 << 10];
    for (number, part) in text.chunks(512 << 10).enumerate() {
        let count = file.read_at((number as u64) << 19, &mut buffer).unwrap();
        assert!(buffer[..count] == *part, "read {number}");
    }
    image.stats().clusters_on_workers
}

#[test]
fn lz4_is_left_to_readers_that_keep_what_they_read() {
    let _watchdog = Watchdog::new("reading LZ4 that is not offloaded");
    let written = Lz4Image::of_extents(65_535, &[80], 64 << 10);
    let (text, kept) = (&written.texts[0], OpenOptions::new().caller_caches(true));
    let read = |options: OpenOptions| {
        let image = written.open(&options.workers(&own_workers()));
        let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
        (on_workers(&file, &image, text), image.stats().cache.prefetched)
    };
    assert_eq!(read(kept.clone()), (0, 0));
    // With ForceOff everything is offloaded.
    let (forced, _) = read(kept.sync_decompress(SyncDecompress::ForceOff));
    assert!(forced > 0);
    // For other callers workers help, unless they come too late each time.
    wait_until("workers help", || read(OpenOptions::new()).0 > 0);
}

/// A byte of the fifth extent of the file of `gated`.
const HELD_UP: usize = 180_000;

/// A file of extents of a little more than 40 KiB, in which reads of the fifth extent and all
/// behind it block. Its second read dispatches three of those in one batch, and a worker blocks in
/// the source.
fn gated() -> (Lz4Image, Arc<BlockingSource>, Image, OpenFile) {
    let written = Lz4Image::of_extents(65_535, &[20], 40 << 10);
    // Readahead is best effort: a batch that finds no free slot or memory is dropped, and what the
    // next read dispatches is then another batch.
    let (gate, image, file) =
        std::iter::repeat_with(|| try_gated(&written)).flatten().next().unwrap();
    (written, gate, image, file)
}

/// `gated`, unless a prefetch is dropped on the way.
fn try_gated(written: &Lz4Image) -> Option<(Arc<BlockingSource>, Image, OpenFile)> {
    let range = written.clusters[0][4]..u64::MAX;
    let gate = Arc::new(BlockingSource::new(written.bytes.clone(), range));
    let source: Arc<dyn ImageSource> = gate.clone();
    let image = written.open_as(&OpenOptions::new().workers(&own_workers()), source);
    let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
    let cache = || image.stats().cache;
    let mut buffer = vec![0u8; 8192];
    assert_eq!(file.read_at(0, &mut buffer[..4096]).unwrap(), 4096);
    wait_until("the first four are cached, being read or dropped", || {
        cache().prefetched + cache().taken_over >= 4 || cache().prefetch_dropped > 0
    });
    if cache().prefetch_dropped == 0 {
        assert_eq!(file.read_at(4096, &mut buffer[4096..]).unwrap(), 4096);
        assert!(buffer == written.texts[0][..8192]);
        let blocked = || gate.blocked() > 0 || cache().prefetch_dropped > 0;
        wait_until("a worker blocks, or the batch is dropped", blocked);
    }
    if cache().prefetch_dropped > 0 {
        gate.open();
        return None;
    }
    Some((gate, image, file))
}

fn assert_all_is_read(image: &Image, text: &[u8]) {
    let mut buffer = vec![0u8; text.len()];
    let inode = Lz4Image::file(image, 0);
    assert_eq!(image.read_at(&inode, 0, &mut buffer).unwrap(), buffer.len());
    assert!(buffer == text);
}

#[test]
fn a_jump_cancels_what_no_worker_has_begun() {
    let _watchdog = Watchdog::new("jumping while workers read ahead");
    let (written, gate, image, file) = gated();
    let before = image.stats().cache.prefetch_dropped;
    // A jump to the end, where there is nothing to read.
    let text = &written.texts[0];
    assert_eq!(file.read_at(text.len() as u64, &mut [0; 10]).unwrap(), 0);
    gate.open();
    wait_until("the rest is cancelled", || image.stats().cache.prefetch_dropped >= before + 2);
    assert_all_is_read(&image, text);
}

#[test]
fn dropping_a_file_cancels_what_no_worker_has_begun() {
    let _watchdog = Watchdog::new("dropping a file while workers read ahead");
    let (written, gate, image, file) = gated();
    let before = image.stats().cache.prefetch_dropped;
    drop(file);
    gate.open();
    wait_until("the rest is cancelled", || image.stats().cache.prefetch_dropped >= before + 2);
    assert_all_is_read(&image, &written.texts[0]);
}

// A-R3, end to end: a demand joins a prefetch that runs, and gets its bytes from it.
#[test]
fn a_reader_joins_a_prefetch_that_runs() {
    let _watchdog = Watchdog::new("joining a prefetch");
    let (written, gate, image, _file) = gated();
    let text = &written.texts[0];
    let before = image.stats();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let inode = Lz4Image::file(&image, 0);
            let mut buffer = vec![0u8; 5000];
            let count = image.read_at(&inode, HELD_UP as u64, &mut buffer).unwrap();
            assert!(buffer[..count] == text[HELD_UP..HELD_UP + 5000]);
        });
        let joined = || image.stats().cache.upgraded > before.cache.upgraded;
        wait_until("the reader waits", joined);
        gate.open();
        reader.join().unwrap();
    });
    let stats = image.stats();
    assert!(stats.cache.prefetch_used > before.cache.prefetch_used, "{:?}", stats.cache);
    assert_eq!(stats.cache.abandoned, before.cache.abandoned);
}

// A-R3, end to end: a demand takes a cluster back that waits behind another one in a batch.
#[test]
fn a_reader_takes_over_what_a_worker_has_not_begun() {
    let _watchdog = Watchdog::new("taking over a prefetch");
    let (written, gate, image, _file) = gated();
    let (text, before) = (&written.texts[0], image.stats());
    let at = HELD_UP + (43 << 10);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let inode = Lz4Image::file(&image, 0);
            let mut buffer = vec![0u8; 5000];
            let count = image.read_at(&inode, at as u64, &mut buffer).unwrap();
            assert!(buffer[..count] == text[at..at + 5000]);
        });
        // It reads the source itself, and does not wait for the worker.
        gate.wait_for(2);
        assert!(image.stats().cache.taken_over > before.cache.taken_over);
        gate.open();
        reader.join().unwrap();
    });
    assert_all_is_read(&image, text);
}

// A prefetch that fails fails no read.
#[test]
fn a_medium_that_fails_ahead_of_the_reader_fails_no_read() {
    let _watchdog = Watchdog::new("a medium that fails ahead of the reader");
    let written = Lz4Image::of_extents(65_535, &[40], 64 << 10);
    for fault in [SourceFault::Error, SourceFault::Panic] {
        let source = Arc::new(FaultySource::new(&written.bytes, fault));
        let shared: Arc<dyn ImageSource> = source.clone();
        let image = written.open_as(&OpenOptions::new().workers(&own_workers()), shared);
        let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
        let mut buffer = vec![0u8; 4096];
        file.read_at(0, &mut buffer).unwrap();
        let cache = || image.stats().cache;
        wait_until("the first three are cached or being read", || {
            cache().prefetched + cache().prefetch_dropped + cache().taken_over >= 3
        });
        // The bytes of this read are cached; the next read of the medium is a prefetch of a worker.
        let dropped = cache().prefetch_dropped;
        source.plan(0);
        assert_eq!(file.read_at(4096, &mut buffer).unwrap(), 4096);
        assert!(buffer == written.texts[0][4096..8192]);
        wait_until("the medium fails", || source.has_come());
        wait_until("a prefetch is dropped", || cache().prefetch_dropped > dropped);
        source.plan(i64::MAX - 1);
        let mut whole = vec![0u8; written.texts[0].len()];
        assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
        assert!(whole == written.texts[0]);
    }
}
