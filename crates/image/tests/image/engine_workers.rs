//! Which thread decodes, and what happens when CPUs come and go, or an image is dropped first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrofs_image::{DecodeWorkers, Image, ImageSource, OpenOptions, SyncDecompress};
use ferrofs_workers::cpus::CpuSet;

use crate::lz4_image::Lz4Image;
use crate::sources::{
    BlockingSource, CorpusImage, RecordingSource, Watchdog, own_workers, wait_until,
};

/// An image of a file with 32 extents of 4,096 bytes and more, opened with workers of its own.
fn recording_image(mode: SyncDecompress) -> (Lz4Image, Arc<RecordingSource>, Image) {
    let written = Lz4Image::of_extents(65_535, &[32], 4096);
    let recording = Arc::new(RecordingSource::new(written.bytes.clone(), written.clusters[0][0]));
    let options = OpenOptions::new().workers(&own_workers()).sync_decompress(mode);
    let source: Arc<dyn ImageSource> = recording.clone();
    let image = written.open_as(&options, source);
    (written, recording, image)
}

/// Reads `count` bytes from the start. Returns for each read of data whether a worker did it.
fn readers(mode: SyncDecompress, count: usize) -> Vec<bool> {
    let (written, recording, image) = recording_image(mode);
    let inode = Lz4Image::file(&image, 0);
    assert_eq!(recording.take(), [false; 0], "finding a file reads no data");
    let mut buffer = vec![0u8; count];
    assert_eq!(image.read_at(&inode, 0, &mut buffer).unwrap(), count);
    assert!(buffer == written.texts[0][..count]);
    let readers = recording.take();
    let stats = image.stats();
    assert!(stats.clusters_decoded > 0 && stats.clusters_on_workers <= stats.clusters_decoded);
    let on_workers = stats.clusters_on_workers > 0;
    assert_eq!(readers.contains(&true), on_workers, "{mode:?}, {count} bytes");
    let on_caller = stats.clusters_on_workers < stats.clusters_decoded;
    assert_eq!(readers.contains(&false), on_caller, "{mode:?}, {count} bytes");
    readers
}

// A-W5.
#[test]
fn a_read_of_12_288_bytes_is_decoded_on_the_caller_when_forced_on() {
    for count in [1, 4096, 12_287, 12_288] {
        assert!(!readers(SyncDecompress::ForceOn, count).contains(&true), "{count} bytes");
    }
}

// A-W5.
#[test]
fn a_read_of_12_289_bytes_goes_to_workers_when_forced_on() {
    for count in [12_289, 100_000] {
        assert!(!readers(SyncDecompress::ForceOn, count).contains(&false), "{count} bytes");
    }
}

#[test]
fn without_workers_everything_is_decoded_on_the_thread_that_reads() {
    for mode in [SyncDecompress::Auto, SyncDecompress::ForceOn, SyncDecompress::ForceOff] {
        let written = Lz4Image::of_extents(65_535, &[32], 64 << 10);
        let none = DecodeWorkers::none();
        let options = OpenOptions::new().workers(&none).sync_decompress(mode);
        let image = written.open(&options);
        let inode = Lz4Image::file(&image, 0);
        let file = image.open_file(&inode).unwrap();
        let mut buffer = vec![0u8; 128 << 10];
        for at in [0, 128 << 10, 256 << 10, 384 << 10] {
            assert_eq!(file.read_at(at, &mut buffer).unwrap(), buffer.len());
        }
        let stats = none.stats();
        assert!(stats.workers.iter().all(|one| one.thread_id.is_none()), "{mode:?}");
        assert_eq!((image.stats().clusters_on_workers, stats.items()), (0, 0), "{mode:?}");
    }
}

// A-W5.
#[test]
fn the_caller_decodes_nothing_when_forced_off() {
    for count in [1, 12_288, 12_289, 100_000] {
        assert!(!readers(SyncDecompress::ForceOff, count).contains(&false), "{count} bytes");
    }
}

// A-W5. Workers help if there are several clusters, so this reads one.
#[test]
fn the_caller_decodes_what_it_reads_when_nothing_is_forced() {
    for count in [1, 4096] {
        assert!(!readers(SyncDecompress::Auto, count).contains(&true), "{count} bytes");
    }
    assert!(readers(SyncDecompress::Auto, 100_000).contains(&false));
}

// A-W5, with every codec: clusters among the metadata are decoded where the metadata is read.
#[test]
fn workers_decode_the_clusters_of_every_codec_when_forced_off() {
    let _watchdog = Watchdog::new("reading on workers");
    for name in ["lz4hc-64k", "deflate-fragments", "lzma", "zstd-64k-fragments", "48bit-lz4"] {
        let corpus = CorpusImage::new(name);
        let options = OpenOptions::new().workers(&own_workers());
        let image = corpus.open(&options.sync_decompress(SyncDecompress::ForceOff));
        corpus.read_all(&image, 20_000).unwrap();
        let stats = image.stats();
        assert!(stats.clusters_decoded > 0, "{name}");
        assert_eq!(stats.clusters_on_workers, stats.clusters_decoded, "{name}");
    }
}

// A-W3, end to end.
#[test]
fn readers_get_their_bytes_while_cpus_come_and_go() {
    let _watchdog = Watchdog::new("reading while CPUs come and go");
    let workers = own_workers();
    let written = Lz4Image::of_extents(65_535, &[40, 40], 6000);
    let options = OpenOptions::new().workers(&workers).cache_limit_bytes(0);
    let image = written.open(&options.sync_decompress(SyncDecompress::ForceOff));
    let cpus: Vec<usize> = CpuSet::of_process().iter().collect();
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (written, image, is_over, reads) = (&written, &image, &is_over, &reads);
            scope.spawn(move || {
                let number = thread % 2;
                let (inode, text) = (Lz4Image::file(image, number), &written.texts[number]);
                let mut buffer = vec![0u8; 17_000];
                for at in (0..text.len()).step_by(9_001).cycle() {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let count = image.read_at(&inode, at as u64, &mut buffer).unwrap();
                    assert!(buffer[..count] == text[at..text.len().min(at + 17_000)]);
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 0..200 {
            // All of them now and then, so that no worker is left.
            let gone = if round % 4 == 0 { &cpus[..] } else { &cpus[round % cpus.len()..][..1] };
            let before = reads.load(Ordering::SeqCst);
            gone.iter().for_each(|cpu| workers.pool().take_offline(*cpu));
            wait_until("a read without a worker", || reads.load(Ordering::SeqCst) > before + 1);
            gone.iter().for_each(|cpu| workers.pool().bring_online(*cpu));
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let stats = image.stats();
    assert!(stats.workers.fallback > 0, "{:?}", stats.workers);
    assert_eq!(stats.workers.panics(), 0);
    assert_eq!(stats.clusters_on_workers, stats.clusters_decoded);
    drop(image);
    wait_until("every item has run", || {
        let done = workers.stats();
        done.items() + done.inline() >= stats.clusters_on_workers
    });
}

// A-W7, and catalogue 1: a batch that outlives its image owns what it uses.
#[test]
fn an_image_may_go_while_workers_read_ahead_for_it() {
    let _watchdog = Watchdog::new("dropping an image with prefetches on their way");
    let written = Lz4Image::of_extents(65_535, &[30], 20_000);
    let source: Arc<dyn ImageSource> = Arc::new(written.bytes.clone());
    let shared = own_workers();
    let mut asked = 0;
    for round in 0..200 {
        // The workers of every other image end with it.
        let options = OpenOptions::new();
        let options =
            if round % 2 == 0 { options.workers(&shared) } else { options.workers(&own_workers()) };
        let image = written.open_as(&options, source.clone());
        let file = image.open_file(&Lz4Image::file(&image, 0)).unwrap();
        let mut buffer = vec![0u8; 4096];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4096);
        assert!(buffer == written.texts[0][..4096]);
        let cache = image.stats().cache;
        asked += cache.prefetched + cache.prefetch_dropped;
        // The file is dropped first, or the image; neither ends the batch.
        if round % 4 < 2 {
            drop(image);
            drop(file);
        } else {
            drop(file);
            drop(image);
        }
    }
    wait_until("everything is dropped", || Arc::strong_count(&source) == 1);
    // The other batches were queued when the image was dropped.
    assert!(asked < 200 * 30);
    assert_eq!(shared.stats().panics(), 0);
    assert!(shared.stats().items() >= 100, "a batch for each image");
}

// Catalogue 12: a worker never reads through the image itself. A batch owns the engine, which knows
// no inode and no metadata, so it cannot. A file whose map lies in the metabox shows it, since
// reading its map would need the metabox.
#[test]
fn a_worker_reads_the_source_alone() {
    let _watchdog = Watchdog::new("reading what lies in the metabox on workers");
    for name in ["metabox-zstd-zd-fragments", "metabox-lz4-lzma-16k", "metabox-lz4-prefix"] {
        let corpus = CorpusImage::new(name);
        let options = OpenOptions::new().workers(&own_workers());
        let image = corpus.open(&options.sync_decompress(SyncDecompress::ForceOff));
        corpus.read_all(&image, 1000).unwrap();
        let stats = image.stats().workers;
        assert_eq!(stats.inline(), 0, "{name}: a batch that dispatches another one runs it itself");
        assert_eq!(stats.panics(), 0, "{name}");
    }
}

// Slow storage: as many reads of it at a time as there are readers, and not as there are CPUs.
#[test]
fn readers_that_wait_for_storage_do_not_keep_others_from_it() {
    const READERS: usize = 12;
    let _watchdog = Watchdog::new("readers of slow storage");
    let written = Lz4Image::of_extents(65_535, &[1; READERS], 30_000);
    let end = written.bytes.len() as u64;
    let source = Arc::new(BlockingSource::new(written.bytes.clone(), written.clusters[0][0]..end));
    let image =
        written.open_as(&OpenOptions::new().workers(&DecodeWorkers::none()), source.clone());
    assert!(image.decode_slots() < READERS, "the test needs more readers than may decode");
    std::thread::scope(|scope| {
        for (number, text) in written.texts.iter().enumerate() {
            let image = &image;
            scope.spawn(move || {
                let inode = Lz4Image::file(image, number);
                let mut buffer = vec![0u8; text.len()];
                assert_eq!(image.read_at(&inode, 0, &mut buffer).unwrap(), text.len());
                assert!(buffer == *text);
            });
        }
        // The watchdog ends the test if some of them wait for the others.
        source.wait_for(READERS);
        source.open();
    });
}
