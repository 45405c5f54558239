//! Reading when memory is short: best effort is refused without a trace, demands succeed, and long
//! LZ4 extents are decoded through a window of frames.

use ferrofs_codec as codec;
use ferrofs_image::{Error, ErrorKind, Image, MemoryPool, OpenOptions, SyncDecompress};
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use crate::lz4_image::{Lz4Block, Lz4Image, XorshiftRng};
use crate::sources::{CorpusImage, Watchdog, files_of, own_workers, wait_until};

// A-R1.
#[test]
fn bytes_are_right_where_every_request_of_best_effort_is_refused() {
    let _watchdog = Watchdog::new("reading without best effort");
    let written = Lz4Image::of_extents(65_535, &[40], 60_000);
    let memory = MemoryPool::new(64 << 20).unwrap();
    memory.budget().refuse_best_effort(true);
    let image = written.open(&OpenOptions::new().memory(&memory).workers(&own_workers()));
    let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
    let text = &written.texts[0];
    let mut buffer = vec![0u8; 50_000];
    for (number, part) in text.chunks(50_000).enumerate() {
        let count = file.read_at(number as u64 * 50_000, &mut buffer).unwrap();
        assert!(buffer[..count] == *part, "read {number}");
        if number == 0 {
            // The reader waits, so that it does not take everything back before a worker runs.
            wait_until("a prefetch is refused", || image.stats().cache.prefetch_dropped > 0);
        }
    }
    let stats = image.stats();
    assert_eq!(stats.cache.prefetched, stats.cache.prefetch_used, "{:?}", stats.cache);
    assert!(stats.budget.refused > 0, "{:?}", stats.budget);
    assert_eq!(stats.budget.gave_up, 0);
}

/// An image with one file of 200 LZ4 extents of 10,000 bytes, open for a caller that caches; its
/// memory, and the bytes of the file.
fn short_extents() -> (Image, MemoryPool, Vec<u8>) {
    let mut written = Lz4Image::of_extents(65_535, &[200], 10_000);
    let memory = MemoryPool::new(64 << 20).unwrap();
    let options = OpenOptions::new().memory(&memory).caller_caches(true);
    (written.open(&options), memory, written.texts.remove(0))
}

// A buffer for each of them would be three calls of the system, and longer than decoding.
#[test]
fn parts_of_short_extents_map_no_buffers() {
    let (image, memory, text) = short_extents();
    let inode = Lz4Image::file(&image, 0);
    let mut buffer = [0u8; 100];
    for start in (50..text.len() - 100).step_by(5_000) {
        let count = image.read_at(&inode, start as u64, &mut buffer).unwrap();
        assert!(buffer[..count] == text[start..start + count], "bytes from {start} on");
    }
    let mapped = memory.buffer_stats().mapped;
    assert!(mapped < 20, "{mapped} buffers for 400 reads");
}

#[test]
fn readers_of_different_parts_of_a_short_extent_get_their_bytes() {
    let _watchdog = Watchdog::new("parts of short extents");
    let (image, _memory, text) = short_extents();
    let inode = Lz4Image::file(&image, 0);
    std::thread::scope(|scope| {
        for initial_state in 1..=8 {
            let (image, inode, text) = (&image, &inode, &text);
            scope.spawn(move || {
                let mut numbers = XorshiftRng(initial_state);
                let mut buffer = [0u8; 3_000];
                for _ in 0..3_000 {
                    // Few extents, so that readers meet.
                    let start = numbers.index(30_000);
                    let count = image.read_at(inode, start as u64, &mut buffer).unwrap();
                    assert!(buffer[..count] == text[start..start + count], "from {start} on");
                }
            });
        }
    });
}

/// Charges everything but `rest` bytes and the `fixed` ones that an open image takes. Memory that
/// is only kept for speed is freed for it.
fn all_but(memory: &MemoryPool, fixed: u64, rest: u64) -> Charge {
    let budget = memory.budget();
    budget.charge(budget.limit_bytes() - fixed - rest, AllocPolicy::MustSucceed).unwrap()
}

// Two readers that held their output while they waited for input would wait for each other.
#[test]
fn readers_that_need_more_than_there_is_take_turns() {
    let _watchdog = Watchdog::new("taking turns");
    let bytes = 3 << 20;
    let written = Lz4Image::of_extents(65_535, &[1, 1], bytes);
    for round in 0..10 {
        let stall = std::time::Duration::from_millis(500);
        let memory = MemoryPool::with_budget(Budget::with_stall(64 << 20, stall)).unwrap();
        let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
        // Memory for two outputs, and for the input of none.
        let _rest = all_but(&memory, memory.budget().used_bytes(), 2 * bytes as u64 + 4096);
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for number in 0..2 {
                let (image, begin) = (&image, &begin);
                scope.spawn(move || {
                    let inode = Lz4Image::file(image, number);
                    begin.wait();
                    image.for_each_piece::<Error>(&inode, |_| Ok(())).unwrap();
                });
            }
        });
        assert_eq!(image.stats().budget.gave_up, 0, "round {round}");
    }
}

/// Reads the end of an extent of more than 1 MiB with little memory. Returns how many frames that
/// took.
fn frames_for_the_tail(distance: u16) -> u64 {
    let reach = if distance == 0 { u16::MAX } else { distance };
    let mut written = Lz4Image::of_extents(reach, &[1], 3 << 20);
    declare(&mut written.bytes, distance);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory));
    let fixed = memory.budget().used_bytes();
    let inode = Lz4Image::file(&image, 0);
    let text = &written.texts[0];
    let mut buffer = vec![0u8; 4096];
    let _rest = all_but(&memory, fixed, 700 << 10);
    let at = text.len() - 4096;
    assert_eq!(image.read_at(&inode, at as u64, &mut buffer).unwrap(), 4096);
    assert!(buffer == text[at..]);
    let stats = image.stats();
    assert_eq!((stats.clusters_windowed, stats.budget.gave_up), (1, 0));
    stats.frames.leases()
}

// A-P5, at the level of an image.
#[test]
fn a_long_extent_goes_through_a_window_of_17_frames_at_most() {
    let frames = frames_for_the_tail(65_535);
    assert!((1..=17).contains(&frames), "{frames}");
    let frames = frames_for_the_tail(0);
    assert!((1..=17).contains(&frames), "{frames}");
}

// A-P5.
#[test]
fn a_window_of_16k_takes_5_frames_at_most() {
    for distance in [16_383, 16_384] {
        let frames = frames_for_the_tail(distance);
        assert!((1..=5).contains(&frames), "{frames}");
    }
}

#[test]
fn any_part_of_a_long_extent_is_the_same_through_a_window() {
    let written = Lz4Image::of_extents(40_000, &[2], 600_000);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory).cache_limit_bytes(0));
    let fixed = memory.budget().used_bytes();
    let (inode, text) = (Lz4Image::file(&image, 0), &written.texts[0]);
    let _rest = all_but(&memory, fixed, 400 << 10);
    let mut numbers = XorshiftRng(7);
    for _ in 0..60 {
        let at = numbers.index(text.len());
        let mut buffer = vec![0u8; 1 + numbers.index(60_000)];
        let count = image.read_at(&inode, at as u64, &mut buffer).unwrap();
        assert!(buffer[..count] == text[at..text.len().min(at + buffer.len())], "at {at}");
    }
    assert!(image.stats().clusters_windowed >= 60);
    assert_eq!(image.stats().budget.gave_up, 0);
}

fn is_too_far(error: &Error) -> bool {
    let ErrorKind::Decode(error) = error.kind() else { return false };
    matches!(error.kind(), codec::ErrorKind::DistanceTooFar { .. })
}

/// Makes an image declare that LZ4 reaches back `distance` bytes.
fn declare(bytes: &mut [u8], distance: u16) {
    let has_records = bytes[1024 + 80] & 2 != 0;
    let extension = 16 * usize::from(bytes[1024 + 13]);
    let at = if has_records { 1024 + 128 + extension + 2 } else { 1024 + 84 };
    bytes[at..at + 2].copy_from_slice(&distance.to_le_bytes());
}

fn open_unchecked(bytes: Vec<u8>, options: OpenOptions) -> Image {
    options.ignore_checksum(true).open_sources(std::sync::Arc::new(bytes), Vec::new()).unwrap()
}

// A-P6, with the streams of another builder.
#[test]
fn a_stream_that_reaches_farther_than_declared_is_refused() {
    for name in ["lz4", "lz4hc-64k", "lz4-dedupe", "48bit-lz4", "lz4hc-all-fragments"] {
        let mut corpus = CorpusImage::new(name);
        declare(&mut corpus.bytes, 100);
        let image = open_unchecked(corpus.bytes, OpenOptions::new());
        assert_eq!(image.compression().lz4_max_distance, Some(100), "{name}");
        let (mut refused, mut right) = (0, 0);
        for (nid, expected) in &corpus.files {
            let inode = image.inode(*nid).unwrap();
            for (step, part) in expected.chunks(3000).enumerate() {
                let mut buffer = vec![0u8; 3000];
                match image.read_at(&inode, step as u64 * 3000, &mut buffer) {
                    Ok(count) => {
                        assert!(buffer[..count] == *part, "{name}, nid {nid}, step {step}");
                        right += 1;
                    }
                    Err(error) => {
                        assert!(is_too_far(&error), "{name}: {error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0 && right > 0, "{name}: {refused} refused, {right} right");
    }
}

// A-P6, through a window: a frame that is used again is never read for its old bytes.
#[test]
fn a_window_refuses_a_stream_that_reaches_out_of_it() {
    let mut numbers = XorshiftRng(3);
    let mut block = Lz4Block::new(&mut numbers, 300_000, 1000);
    // A match that reaches back to bytes that have left the window.
    block.encoded.truncate(block.encoded.len() - 14);
    block.text.truncate(block.text.len() - 13);
    block.sequence(b"far", 30_000, 5000);
    block.end();
    let far_at = block.text.len() - 5013;
    let written = Lz4Image::new(1000, &[vec![block]]);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory).cache_limit_bytes(0));
    let fixed = memory.budget().used_bytes();
    let (inode, text) = (Lz4Image::file(&image, 0), &written.texts[0]);
    let mut buffer = vec![0u8; 4096];
    let mut both = |context: &str| {
        let error = image.read_at(&inode, far_at as u64, &mut buffer).unwrap_err();
        assert!(is_too_far(&error), "{context}: {error}");
        assert_eq!(error.nid(), Some(inode.nid()));
    };
    both("whole");
    let rest = all_but(&memory, fixed, 250 << 10);
    both("through a window");
    drop(rest);
    both("whole again");
    // A prefix that ends before that match is valid, in a window, too.
    let _rest = all_but(&memory, fixed, 250 << 10);
    let mut buffer = vec![0u8; 4096];
    assert_eq!(image.read_at(&inode, 200_000, &mut buffer).unwrap(), 4096);
    assert!(buffer == text[200_000..204_096]);
    assert_eq!(image.stats().clusters_windowed, 1);
}

/// Text that shrinks to about a tenth.
fn text(numbers: &mut XorshiftRng, bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 2_000);
    while text.len() < bytes {
        text.extend((0..200).map(|_| numbers.byte()));
        text.resize(text.len() + 1_800, numbers.byte());
    }
    text.truncate(bytes);
    text
}

// As the listeners of a mount do. Each had a buffer for its reply while it waited for memory for an extent, so that the
// oldest of them never got it.
#[test]
fn readers_with_buffers_of_the_budget_never_wait_for_each_other() {
    let _watchdog = Watchdog::new("readers with buffers of the budget");
    let mut numbers = XorshiftRng(5);
    let bytes = 8 << 20;
    let texts = [(); 3].map(|()| vec![text(&mut numbers, bytes), text(&mut numbers, bytes)]);
    let written = Lz4Image::of_zstd(&texts);
    let budget = Budget::with_stall(MemoryPool::MIN_BYTES, std::time::Duration::from_secs(2));
    let memory = MemoryPool::with_budget(budget).unwrap();
    let options = OpenOptions::new().memory(&memory).workers(&own_workers()).caller_caches(true);
    let image = written.open(&options);
    std::thread::scope(|scope| {
        for initial_state in 1..=16 {
            let (image, written) = (&image, &written);
            scope.spawn(move || {
                let mut numbers = XorshiftRng(initial_state);
                for _ in 0..6 {
                    let number = numbers.index(3);
                    let at = numbers.index(15) << 20;
                    let mut buffer = image.demand_buffer(1 << 20).unwrap();
                    let inode = Lz4Image::file(image, number);
                    assert_eq!(image.read_at(&inode, at as u64, &mut buffer).unwrap(), 1 << 20);
                    assert!(
                        buffer[..] == written.texts[number][at..at + (1 << 20)],
                        "{number} {at}"
                    );
                }
            });
        }
    });
    let stats = image.stats();
    assert_eq!(stats.budget.gave_up, 0);
    assert!(stats.memory_peak_bytes <= MemoryPool::MIN_BYTES);
}

// A reader that waits for one cluster kept the next one, which the worker of the first one needed the memory of.
#[test]
fn a_reader_that_waits_for_workers_keeps_no_memory_that_they_need() {
    let _watchdog = Watchdog::new("workers of readers");
    let mut numbers = XorshiftRng(5);
    let texts = [(); 4].map(|()| [(); 2].map(|()| text(&mut numbers, 8 << 20)).to_vec());
    let written = Lz4Image::of_zstd(&texts);
    let budget = Budget::with_stall(MemoryPool::MIN_BYTES, std::time::Duration::from_secs(2));
    let memory = MemoryPool::with_budget(budget).unwrap();
    let options = OpenOptions::new().memory(&memory).workers(&own_workers());
    let image = written.open(&options.sync_decompress(SyncDecompress::ForceOff));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (image, written) = (&image, &written);
            scope.spawn(move || {
                let mut buffer = vec![0u8; 4 << 20];
                for number in (reader..reader + 8).map(|number| number % 4) {
                    let inode = Lz4Image::file(image, number);
                    assert_eq!(image.read_at(&inode, 6 << 20, &mut buffer).unwrap(), 4 << 20);
                    assert!(buffer[..] == written.texts[number][6 << 20..10 << 20], "{number}");
                }
            });
        }
    });
    assert_eq!(image.stats().budget.gave_up, 0);
}

#[test]
fn a_prefetch_takes_no_memory_from_the_cache_and_does_not_wait() {
    let mut numbers = XorshiftRng(5);
    let texts = [(); 2].map(|()| vec![text(&mut numbers, 8 << 20)]);
    let written = Lz4Image::of_zstd(&texts);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let options = OpenOptions::new().memory(&memory).caller_caches(true).retain_memory(true);
    let image = written.open(&options);
    let [first, second] = [0, 1].map(|number| Lz4Image::file(&image, number));
    let mut buffer = image.best_effort_buffer(128 << 10).unwrap();
    assert_eq!(image.read_at(&first, 0, &mut buffer).unwrap(), 128 << 10);
    let before = image.stats();
    assert!(before.cached_bytes >= 8 << 20, "{before:?}");
    assert_eq!(image.read_best_effort(&second, 0, &mut buffer).unwrap(), None);
    let after = image.stats();
    assert_eq!(
        (after.cached_bytes, after.budget.waited),
        (before.cached_bytes, before.budget.waited)
    );
    // What is cached is read, and what there is memory for.
    assert_eq!(image.read_best_effort(&first, 1 << 20, &mut buffer).unwrap(), Some(128 << 10));
    assert!(buffer[..] == texts[0][0][1 << 20..(1 << 20) + (128 << 10)]);
    let image = written.open(&OpenOptions::new().memory(&MemoryPool::new(64 << 20).unwrap()));
    let second = Lz4Image::file(&image, 1);
    assert_eq!(image.read_best_effort(&second, 4096, &mut buffer).unwrap(), Some(128 << 10));
    assert!(buffer[..] == texts[1][0][4096..4096 + (128 << 10)]);
}

#[test]
fn a_prefetch_has_a_buffer_only_where_reads_have_room() {
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let written = Lz4Image::of_extents(65_535, &[1], 10_000);
    let image = written.open(&OpenOptions::new().memory(&memory));
    let buffers: Vec<_> =
        std::iter::from_fn(|| image.best_effort_buffer(64 << 10)).take(300).collect();
    assert!((16..100).contains(&buffers.len()), "{} buffers", buffers.len());
    assert!(memory.budget().used_bytes() + (12 << 20) <= MemoryPool::MIN_BYTES);
}

/// 64 threads read everything at the smallest limit.
fn read_by_many(name: &str, image: &Image, texts: &[(ferrofs_image::Nid, Vec<u8>)]) {
    std::thread::scope(|scope| {
        for initial_state in 1..=64 {
            scope.spawn(move || {
                let mut numbers = XorshiftRng(initial_state);
                for _ in 0..6 {
                    let (nid, text) = &texts[numbers.index(texts.len())];
                    let inode = image.inode(*nid).unwrap();
                    let at = numbers.index(text.len() + 1);
                    let mut buffer = vec![0u8; 1 + numbers.index(150_000)];
                    let count = image.read_at(&inode, at as u64, &mut buffer).unwrap();
                    let expected = &text[at..text.len().min(at + buffer.len())];
                    assert!(buffer[..count] == *expected, "{name}, nid {nid} at {at}");
                }
            });
        }
    });
    let stats = image.stats();
    assert_eq!(stats.budget.gave_up, 0, "{name}");
    assert!(stats.memory_peak_bytes <= MemoryPool::MIN_BYTES, "{name}");
}

#[test]
fn sixty_four_threads_read_every_codec_in_the_smallest_memory() {
    let _watchdog = Watchdog::new("sixty-four threads in the smallest memory");
    for name in ["lz4hc-64k", "deflate-fragments", "lzma-64k-all", "zstd-64k-fragments", "lzma"] {
        let corpus = CorpusImage::new(name);
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = corpus.open(&OpenOptions::new().memory(&memory));
        read_by_many(name, &image, &corpus.files);
    }
}

#[test]
fn sixty_four_threads_read_extents_as_long_as_they_can_be_in_the_smallest_memory() {
    let _watchdog = Watchdog::new("sixty-four threads at long extents");
    let mut numbers = XorshiftRng(11);
    let block = Lz4Block::new(&mut numbers, (12 << 20) - 4000, 65_535);
    assert!(block.text.len() <= 12 << 20 && block.encoded.len() <= 1 << 20);
    let written = Lz4Image::new(65_535, &[vec![block.clone()], vec![block]]);
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory));
    let nids = files_of(&image).into_iter().map(|inode| inode.nid());
    let texts: Vec<_> = nids.zip(written.texts.iter().cloned()).collect();
    read_by_many("12 MiB", &image, &texts);
}

#[test]
fn a_thread_keeps_its_buffer_until_somebody_must_have_the_memory() {
    let written = Lz4Image::of_extents(65_535, &[1], 4096);
    let memory = MemoryPool::new(256 << 20).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
    let fixed = memory.budget().used_bytes();
    drop(image.demand_buffer(128 << 10).unwrap());
    let counts = memory.buffer_stats();
    for bytes in [128 << 10, 4096, 100_000] {
        assert_eq!(image.demand_buffer(bytes).unwrap().len(), bytes);
    }
    assert_eq!(memory.buffer_stats(), counts, "the pool was not needed");
    assert_eq!((memory.budget().used_bytes(), memory.idle_bytes()), (fixed + (128 << 10), 0));
    drop(all_but(&memory, fixed, 0));
    assert_eq!(memory.budget().used_bytes(), fixed);
}

#[test]
fn a_buffer_outlives_its_image_and_is_freed_when_it_is_dropped() {
    let written = Lz4Image::of_extents(65_535, &[1], 4096);
    let memory = MemoryPool::new(64 << 20).unwrap();
    let held = || memory.budget().used_bytes() - memory.idle_bytes();
    let before = held();
    let image = written.open(&OpenOptions::new().memory(&memory));
    drop(image.demand_buffer(4096).unwrap());
    let mut buffer = image.demand_buffer(4096).unwrap();
    drop(image);
    buffer.fill(7);
    assert_eq!(held(), before + 4096, "nothing else is left of the image");
    drop(buffer);
    assert_eq!(held(), before);
}
