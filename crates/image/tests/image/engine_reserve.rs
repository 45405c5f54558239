//! Reading with a reserve: once it is resident, nothing more is taken from the system.

use ferrofs_image::{Image, MemoryPool, OpenOptions, SyncDecompress};

use crate::lz4_image::Lz4Image;
use crate::sources::{Watchdog, own_workers};

const PAGES: u32 = 256;
const RESERVED_BYTES: u64 = 1 << 20;

fn reserve() -> MemoryPool {
    MemoryPool::with_reserve(64 << 20, PAGES, 2).unwrap()
}

fn read_through(image: &Image, written: &Lz4Image, number: usize) {
    let inode = Lz4Image::file(image, number);
    for (step, part) in written.texts[number].chunks(64 << 10).enumerate() {
        let mut buffer = image.demand_buffer(64 << 10).unwrap();
        let count = image.read_at(&inode, (step as u64) << 16, &mut buffer).unwrap();
        assert!(buffer[..count] == *part, "piece {step}");
    }
}

// A cache that only grew would keep all extents, in up to half of the budget.
#[test]
fn what_was_kept_longest_makes_room_before_anything_is_mapped() {
    let _watchdog = Watchdog::new("a reserve that goes round");
    let written = Lz4Image::of_extents(65_535, &[100, 100], 90_000);
    let memory = reserve();
    let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
    read_through(&image, &written, 0);
    let counts = memory.buffer_stats();
    let resident = memory.budget().used_bytes();
    read_through(&image, &written, 1);
    assert_eq!(memory.buffer_stats().mapped, counts.mapped, "{:?}", memory.buffer_stats());
    assert!(memory.buffer_stats().from_idle > counts.from_idle + 100);
    assert_eq!(memory.budget().used_bytes(), resident);
    let stats = image.stats();
    assert!(stats.cached_bytes > RESERVED_BYTES / 2, "it is filled and used: {stats:?}");
    assert!(stats.cached_bytes <= 2 * RESERVED_BYTES, "{stats:?}");
}

#[test]
fn without_a_reserve_the_cache_takes_what_the_budget_has() {
    let written = Lz4Image::of_extents(65_535, &[100, 100], 90_000);
    let memory = MemoryPool::new(64 << 20).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
    read_through(&image, &written, 0);
    read_through(&image, &written, 1);
    assert!(image.stats().cached_bytes > 16 << 20, "{:?}", image.stats());
}

#[test]
fn best_effort_maps_no_more_than_the_reserve_and_leaves_a_share() {
    let written = Lz4Image::of_extents(65_535, &[1], 90_000);
    let memory = reserve();
    let image = written.open(&OpenOptions::new().memory(&memory));
    assert_eq!(memory.prefault(1).unwrap(), RESERVED_BYTES);
    let mapped = memory.buffer_stats().mapped;
    let spare: Vec<_> = std::iter::from_fn(|| image.best_effort_buffer(4096)).collect();
    assert!(!spare.is_empty());
    let left = memory.idle_bytes();
    let share = memory.reserve_share().unwrap();
    assert_eq!(share, RESERVED_BYTES / 4);
    assert!((share..share + (64 << 10)).contains(&left), "{left}");
    drop(image.demand_buffer(4096).unwrap());
    assert_eq!(
        memory.buffer_stats().mapped,
        mapped,
        "the rest served the request that must not fail"
    );
    // Without a reserve free bytes of the budget are used.
    let free = MemoryPool::new(64 << 20).unwrap();
    let image = written.open(&OpenOptions::new().memory(&free));
    assert!(image.best_effort_buffer(4096).is_some());
}

#[test]
fn best_effort_takes_what_the_cache_kept() {
    let written = Lz4Image::of_extents(65_535, &[100], 90_000);
    let memory = reserve();
    let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
    read_through(&image, &written, 0);
    let (mapped, cached) = (memory.buffer_stats().mapped, image.stats().cached_bytes);
    assert!(memory.idle_bytes() < RESERVED_BYTES / 4, "the cache has it");
    assert!(image.best_effort_buffer(4096).is_some());
    assert_eq!(memory.buffer_stats().mapped, mapped);
    assert!(image.stats().cached_bytes < cached);
}

#[test]
fn an_extent_of_more_than_a_share_of_the_reserve_goes_through_a_window() {
    for (bytes, pages, readers, is_windowed) in [
        (200_000, PAGES, 2, false),
        (300_000, PAGES, 2, true),
        (300_000, PAGES, 1, false),
        (200_000, PAGES, 4, true),
        // A share of 64 KiB.
        (60_000, PAGES / 4, 2, false),
        (80_000, PAGES / 4, 2, true),
        // One of 16 KiB: a window takes more than the shorter extent.
        (60_000, PAGES / 16, 2, false),
        (80_000, PAGES / 16, 2, true),
    ] {
        let written = Lz4Image::of_extents(65_535, &[2], bytes);
        let memory = MemoryPool::with_reserve(64 << 20, pages, readers).unwrap();
        let options = OpenOptions::new().memory(&memory).workers(&own_workers());
        let image = written.open(&options);
        read_through(&image, &written, 0);
        assert_eq!(image.stats().clusters_windowed > 0, is_windowed, "{bytes} of {pages}");
        assert_eq!(memory.frame_stats().leases() > 0, is_windowed, "{bytes} of {pages}");
    }
}

// The blocks that were faulted in are shorter than the extents.
#[test]
fn a_reserve_that_was_faulted_in_serves_long_extents() {
    let _watchdog = Watchdog::new("long extents from short blocks");
    let written = Lz4Image::of_extents(65_535, &[60], 120_000);
    let memory = MemoryPool::with_reserve(64 << 20, 4 * PAGES, 2).unwrap();
    let image = written.open(&OpenOptions::new().memory(&memory).retain_memory(true));
    let before = memory.budget().used_bytes();
    assert_eq!(memory.prefault(1).unwrap(), 4 * RESERVED_BYTES);
    read_through(&image, &written, 0);
    let stats = image.stats();
    assert!(stats.cached_bytes > 2 * RESERVED_BYTES, "most of it is used: {stats:?}");
    let resident = memory.budget().used_bytes() - before;
    assert!(
        resident <= 5 * RESERVED_BYTES,
        "{resident}: more than the reserve and the window of a decode slot"
    );
}

#[test]
fn what_was_decoded_ahead_is_not_pushed_out_before_it_is_read() {
    let _watchdog = Watchdog::new("readahead from a reserve");
    let written = Lz4Image::of_extents(65_535, &[100], 60_000);
    let decoded = |memory: &MemoryPool| {
        let options = OpenOptions::new().memory(memory).workers(&own_workers());
        let options = options.caller_caches(true).sync_decompress(SyncDecompress::ForceOff);
        let image = written.open(&options);
        let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
        let mut buffer = vec![0; 64 << 10];
        for (step, part) in written.texts[0].chunks(64 << 10).enumerate() {
            assert_eq!(file.read_at((step as u64) << 16, &mut buffer).unwrap(), part.len());
            assert!(buffer[..part.len()] == *part, "piece {step}");
        }
        (image.stats().clusters_decoded, image.stats().cache)
    };
    let (free, free_cache) = decoded(&MemoryPool::new(64 << 20).unwrap());
    let (bounded, cache) = decoded(&reserve());
    assert!(
        bounded <= free + free / 20,
        "{bounded} extents instead of {free}: {cache:?} {free_cache:?}"
    );
}
