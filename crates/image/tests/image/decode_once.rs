//! Each cluster is decoded once, however many readers need it and in whatever parts they read it.

use std::sync::Arc;

use ferrofs_image::{Image, MemoryPool, OpenOptions, VerifyOptions};

use crate::lz4_image::{Lz4Block, Lz4Image, XorshiftRng};
use crate::sources::{CorpusImage, Watchdog};

/// The limit for decoded clusters, in percent of the distinct ones.
const MOST: u64 = 105;

/// Images whose files lie in clusters that they share with others.
const SHARED: [&str; 3] = ["lzma-64k-all", "lz4hc-all-fragments", "zstd-64k-fragments"];

/// Images with clusters much longer than a small read.
const LARGE: [&str; 5] = [
    "lz4hc-64k",
    "zstd-16k-ztail",
    "lzma-64k-ztail",
    "libdeflate-16k-ztail",
    "48bit-zstd-short-records",
];

/// How many clusters one reader decodes that reads each file as a whole.
fn distinct(corpus: &CorpusImage) -> u64 {
    let image = corpus.open(&OpenOptions::new());
    corpus.read_all(&image, 1 << 20).unwrap();
    image.stats().clusters_decoded
}

fn assert_once(name: &str, image: &Image, distinct: u64) {
    let decoded = image.stats().clusters_decoded;
    assert!(decoded * 100 <= distinct * MOST, "{name}: {decoded} decoded, {distinct} are there");
    assert!(decoded >= distinct, "{name}: {decoded} decoded, {distinct} are there");
}

/// 64 threads, each of which reads everything, in an order of its own.
fn read_by_many(corpus: &CorpusImage, image: &Image, step: usize) {
    std::thread::scope(|scope| {
        for initial_state in 1..=64 {
            scope.spawn(move || {
                let mut numbers = XorshiftRng(initial_state);
                let mut order: Vec<usize> = (0..corpus.files.len()).collect();
                let mut buffer = vec![0u8; step];
                while !order.is_empty() {
                    let (nid, expected) =
                        &corpus.files[order.swap_remove(numbers.index(order.len()))];
                    let inode = image.inode(*nid).unwrap();
                    for (number, part) in expected.chunks(step).enumerate() {
                        let at = (number * step) as u64;
                        let count = image.read_at(&inode, at, &mut buffer).unwrap();
                        assert!(buffer[..count] == *part, "nid {nid} at {at}");
                    }
                }
            });
        }
    });
}

#[test]
fn sequential_reads_of_128_kib_decode_shared_clusters_once() {
    for name in SHARED {
        let corpus = CorpusImage::new(name);
        let image = corpus.open(&OpenOptions::new());
        corpus.read_all(&image, 128 << 10).unwrap();
        assert_once(name, &image, distinct(&corpus));
    }
}

#[test]
fn small_sequential_reads_decode_large_clusters_once() {
    for name in LARGE {
        let corpus = CorpusImage::new(name);
        let image = corpus.open(&OpenOptions::new());
        corpus.read_all(&image, 3000).unwrap();
        assert_once(name, &image, distinct(&corpus));
    }
}

#[test]
fn sixty_four_readers_decode_shared_clusters_once() {
    let _watchdog = Watchdog::new("sixty-four readers of shared clusters");
    for name in SHARED {
        let corpus = CorpusImage::new(name);
        let image = corpus.open(&OpenOptions::new());
        read_by_many(&corpus, &image, 128 << 10);
        assert_once(name, &image, distinct(&corpus));
    }
}

#[test]
fn sixty_four_readers_decode_clusters_longer_than_their_reads_once() {
    let _watchdog = Watchdog::new("sixty-four readers of long clusters");
    let written = Lz4Image::of_extents(65_535, &[4, 3], 1 << 20);
    let image = written.open(&OpenOptions::new());
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (written, image) = (&written, &image);
            scope.spawn(move || {
                let number = thread % 2;
                let inode = Lz4Image::file(image, number);
                let mut buffer = vec![0u8; 128 << 10];
                for (step, part) in written.texts[number].chunks(128 << 10).enumerate() {
                    let count = image.read_at(&inode, (step as u64) << 17, &mut buffer).unwrap();
                    assert!(buffer[..count] == *part);
                }
            });
        }
    });
    assert_once("written", &image, 7);
}

// The cache is evicted before a window is used: a window would decode the same cluster again and
// again.
#[test]
fn sequential_reads_decode_long_extents_once_in_the_smallest_memory() {
    let mut numbers = XorshiftRng(5);
    let lengths = [3 << 20, 1 << 20, 2 << 20, 300_000, 5 << 20, 700_000];
    let mut block = |length: &usize| Lz4Block::new(&mut numbers, *length, 65_535);
    let blocks: Vec<Lz4Block> = lengths.iter().cycle().take(18).map(&mut block).collect();
    let written = Lz4Image::new(65_535, &[blocks]);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory));
    let inode = Lz4Image::file(&image, 0);
    let mut buffer = vec![0u8; 128 << 10];
    for (step, part) in written.texts[0].chunks(128 << 10).enumerate() {
        let count = image.read_at(&inode, (step as u64) << 17, &mut buffer).unwrap();
        assert!(buffer[..count] == *part);
    }
    assert_once("written", &image, 18);
}

#[test]
fn readers_in_every_way_get_a_cluster_of_many_files_from_one_decoder() {
    let corpus = CorpusImage::new("lzma-64k-all");
    let image = corpus.open(&OpenOptions::new());
    corpus.read_all(&image, 5000).unwrap();
    for (nid, expected) in &corpus.files {
        let inode = image.inode(*nid).unwrap();
        let bytes = crate::sources::whole(&image, &inode).unwrap();
        assert!(bytes == *expected, "nid {nid}");
        let file = Arc::new(image.open_file(&inode).unwrap());
        let mut buffer = vec![0u8; expected.len()];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), expected.len());
        assert!(buffer == *expected, "nid {nid}");
    }
    assert_eq!(
        image.verify(&VerifyOptions::new().max_threads(2), &mut |_| {}).unwrap().problems,
        0
    );
    // Clusters among the metadata do not count as shared: each belongs to one file.
    let decoded = image.stats().clusters_decoded;
    let distinct = distinct(&corpus);
    assert!(decoded * 100 <= distinct * MOST, "{decoded} decoded, {distinct} are there");
}

/// The extents of a read show a caller what it can have without decoding more.
#[test]
fn the_outcome_of_a_read_names_its_extents() {
    let written = Lz4Image::of_extents(65_535, &[3], 100_000);
    let image = written.open(&OpenOptions::new().caller_caches(true));
    let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
    let mut buffer = [0u8; 4096];
    let first = file.read_with_outcome(40_960, &mut buffer).unwrap();
    assert_eq!((first.bytes, first.extents_start), (4096, 0));
    assert!((100_000..200_000).contains(&first.extents_end), "{}", first.extents_end);
    assert_eq!(first.extent_bytes, first.extents_end);
    // After the first extent, and at its end: both of them.
    let second = file.read_with_outcome(first.extents_end + 20_000, &mut buffer).unwrap();
    assert_eq!(second.extents_start, first.extents_end);
    let both = file.read_with_outcome(first.extents_end - 5, &mut buffer).unwrap();
    assert_eq!((both.extents_start, both.extents_end), (0, second.extents_end));
    assert_eq!(both.extent_bytes, both.extents_end);
}
