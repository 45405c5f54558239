//! Images of a few hundred KiB that lead to hours of work: what inodes share is read once, and what
//! is read again has a limit. Memory does not grow with the depth of a tree.

use std::sync::Arc;
use std::time::Duration;

use ferrofs_image::{
    ErrorKind, Image, ImageSource, MemoryPool, Nid, OpenOptions, VerifyEvent, VerifyOptions,
    WalkEvent, WorkMeter,
};
use rustix::time::{ClockId, clock_gettime};

use crate::crafted::{
    BLOCK, CompactInode, CraftedImage, DIRECTORY, FIFO, FILE, directory, front_extents, name,
};
use crate::manifest::ImageSet;

fn open(bytes: Vec<u8>) -> Image {
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

/// Files that share a block, of which the image has only the first 100 bytes.
#[test]
fn a_file_is_damaged_though_a_shorter_one_in_its_block_is_not() {
    let sizes = [100, 101, 100, 4096];
    let mut image = CraftedImage::new(1 + sizes.len());
    let entry = |at: usize| (name(at), CraftedImage::nid(1 + at), FILE);
    let root = directory(&(0..sizes.len()).map(entry).collect::<Vec<_>>());
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    let block = image.data(&[7; BLOCK]);
    for (at, size) in sizes.into_iter().enumerate() {
        let file = CompactInode { mode: 0o100_644, size, payload: block, ..CompactInode::fifo() };
        image.inode(1 + at, file, &[]);
    }
    let mut bytes = image.finish();
    let problems = |bytes: &[u8]| {
        let mut problems = Vec::new();
        let options = VerifyOptions::new().max_threads(1);
        open(bytes.to_vec())
            .verify(&options, &mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    problems.push(String::from_utf8(problem.path).unwrap());
                }
            })
            .unwrap();
        // The root has no entries for itself and its parent.
        problems.retain(|path| path != "/");
        problems
    };
    assert_eq!(problems(&bytes), [""; 0]);
    // The superblock knows nothing of the block.
    bytes[1024 + 36..1024 + 40].copy_from_slice(&block.to_le_bytes());
    bytes.truncate(usize::try_from(block).unwrap() * BLOCK + 100);
    assert_eq!(problems(&bytes), ["/aaab", "/aaad"]);
}

/// Files of up to 2^63 bytes that are said to be stored, in an image of a few blocks.
#[test]
fn a_file_longer_than_the_image_takes_no_memory_to_check() {
    for size in [1u64 << 40, 1 << 60, (1 << 63) - 1] {
        let mut image = CraftedImage::new(4);
        let root = directory(&[("f", CraftedImage::nid(2), FILE)]);
        let block = image.data(&root);
        image.inode(0, CompactInode::directory(root.len(), block), &[]);
        // An extended inode, whose first 8 bytes are alike.
        let file = CompactInode { mode: 0o100_644, payload: block, ..CompactInode::fifo() };
        image.inode(2, file, &[0; 32]);
        let mut bytes = image.finish();
        let at = BLOCK + 2 * 32;
        bytes[at] |= 1;
        bytes[at + 6..at + 8].fill(0);
        bytes[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
        bytes[at + 44] = 1;
        let mut ends = 0;
        open(bytes)
            .verify(&VerifyOptions::new(), &mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    ends += u64::from(problem.path == b"/f");
                }
            })
            .unwrap();
        assert!(ends > 0, "{size}");
    }
}

/// `count` directories that share the entries of one, which all lead to one FIFO.
fn shared_entries(count: usize, entries: usize) -> Vec<u8> {
    let mut image = CraftedImage::new(2 + count);
    image.inode(1, CompactInode::fifo(), &[]);
    let leaf = CraftedImage::nid(1);
    let shared: Vec<_> = (0..entries).map(|number| (name(number), leaf, FIFO)).collect();
    let shared = directory(&shared);
    let block = image.data(&shared);
    let top: Vec<_> =
        (0..count).map(|number| (name(number), CraftedImage::nid(2 + number), DIRECTORY)).collect();
    for number in 0..count {
        image.inode(2 + number, CompactInode::directory(shared.len(), block), &[]);
    }
    let top = directory(&top);
    let block = image.data(&top);
    image.inode(0, CompactInode::directory(top.len(), block), &[]);
    image.finish()
}

#[test]
fn a_walk_of_shared_entries_ends_at_the_work_limit() {
    let image = open(shared_entries(400, 2000));
    let meter = WorkMeter::new(100 << 20);
    let (mut leaves, mut depth, mut limits) = (0u64, 0i64, 0);
    for event in image.walk(b"/").unwrap().work_meter(&meter) {
        match event {
            WalkEvent::Enter(_) => depth += 1,
            WalkEvent::Leave(_) => depth -= 1,
            WalkEvent::Leaf(_) => leaves += 1,
            WalkEvent::Problem(problem) => {
                limits += u64::from(matches!(problem.error.kind(), ErrorKind::WorkLimit { .. }));
            }
        }
    }
    // The entries of the first directory are free, and about 102,000 more cost 100 MiB.
    assert_eq!((depth, limits), (0, 1));
    assert!((100_000..104_500).contains(&leaves), "{leaves}");
    let whole = image.walk(b"/").unwrap().work_meter(&WorkMeter::new(u64::MAX));
    let whole = whole.filter(|event| matches!(event, WalkEvent::Leaf(_))).count();
    assert_eq!(whole, 800_000);
}

#[test]
fn names_beyond_the_links_of_a_file_are_repeated_work() {
    let leaves = |nlink| {
        let mut image = CraftedImage::new(2);
        image.inode(1, CompactInode { nlink, ..CompactInode::fifo() }, &[]);
        let names: Vec<_> =
            (0..5000).map(|number| (name(number), CraftedImage::nid(1), FIFO)).collect();
        let names = directory(&names);
        let block = image.data(&names);
        image.inode(0, CompactInode::directory(names.len(), block), &[]);
        let image = open(image.finish());
        let walk = image.walk(b"/").unwrap().work_meter(&WorkMeter::new(1 << 20));
        walk.filter(|event| matches!(event, WalkEvent::Leaf(_))).count()
    };
    // The first name of a file with one link is free, and others cost 1,024 and the 5 bytes of their path.
    assert_eq!(leaves(1), 1 + (1 << 20) / (1024 + 5));
    assert_eq!(leaves(5000), 5000);
}

#[test]
fn long_paths_of_repeated_entries_are_work() {
    // Directories 3,500 bytes below the root, where an entry copies four times as many bytes as elsewhere.
    const DEPTH: usize = 14;
    const NAME_BYTES: usize = 250;
    let mut image = CraftedImage::new(4 + DEPTH);
    image.inode(1 + DEPTH, CompactInode::fifo(), &[]);
    let leaf = CraftedImage::nid(1 + DEPTH);
    for number in 0..DEPTH {
        let below = ("p".repeat(NAME_BYTES), CraftedImage::nid(number + 1), DIRECTORY);
        let names = directory(&[below]);
        let block = image.data(&names);
        image.inode(number, CompactInode::directory(names.len(), block), &[]);
    }
    // The deepest one has two directories that share their entries.
    let pair = [2, 3].map(|number| (name(number), CraftedImage::nid(DEPTH + number), DIRECTORY));
    let pair = directory(&pair);
    let block = image.data(&pair);
    image.inode(DEPTH, CompactInode::directory(pair.len(), block), &[]);
    let shared: Vec<_> = (0..2000).map(|number| (name(number), leaf, FIFO)).collect();
    let shared = directory(&shared);
    let block = image.data(&shared);
    for number in [2, 3] {
        image.inode(DEPTH + number, CompactInode::directory(shared.len(), block), &[]);
    }
    let image = open(image.finish());
    let meter = WorkMeter::new(u64::MAX);
    let leaves = image.walk(b"/").unwrap().work_meter(&meter);
    assert_eq!(leaves.filter(|event| matches!(event, WalkEvent::Leaf(_))).count(), 4000);
    // The first directory's entries lead to one file; those of the second are counted by block, without their names.
    let path = u64::try_from(DEPTH * (NAME_BYTES + 1) + 5).unwrap();
    let min = 1999 * (1024 + path + 5) + 2000 * (1024 + path);
    assert!((min..min + (64 << 10)).contains(&meter.spent()), "{} {min}", meter.spent());
}

#[test]
fn verification_of_shared_entries_ends_at_a_limit_that_can_be_raised() {
    let image = open(shared_entries(60, 2000));
    let verify = |options: &VerifyOptions| {
        let mut limits = 0;
        image
            .verify(options, &mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    let kind = problem.error.kind();
                    limits += u64::from(matches!(kind, ErrorKind::WorkLimit { .. }));
                }
            })
            .unwrap();
        limits
    };
    assert_eq!(verify(&VerifyOptions::new().max_work(32 << 20)), 1);
    assert_eq!(verify(&VerifyOptions::new()), 0);
}

#[test]
fn levels_above_the_deepest_ones_are_read_again_on_the_way_up() {
    // 200 levels of 4 KiB are more than the walk keeps; behind the way down each has two names.
    const DEPTH: usize = 200;
    let mut image = CraftedImage::new(1 + DEPTH);
    // It has as many links as names, so that nothing is repeated.
    image.inode(DEPTH, CompactInode { nlink: 43_801, ..CompactInode::fifo() }, &[]);
    let leaf = CraftedImage::nid(DEPTH);
    for number in 0..DEPTH {
        let mut names: Vec<_> = (0..220).map(|at| (name(at), leaf, FIFO)).collect();
        if number + 1 < DEPTH {
            names[100] = (name(100), CraftedImage::nid(number + 1), DIRECTORY);
        }
        let data = directory(&names);
        let block = image.data(&data);
        image.inode(number, CompactInode::directory(data.len(), block), &[]);
    }
    let image = open(image.finish());
    let meter = WorkMeter::new(0);
    let paths = |event| match event {
        WalkEvent::Leaf(node) => Some(node.path),
        _ => None,
    };
    let found: Vec<_> = image.walk(b"/").unwrap().work_meter(&meter).filter_map(paths).collect();
    assert_eq!(found.len(), 219 * DEPTH + 1);
    // Out of order they would be, were a level continued in the wrong place.
    let parts = |path: &Vec<u8>| path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
    let parts: Vec<Vec<Vec<u8>>> = found.iter().map(parts).collect();
    assert!(parts.is_sorted());
}

#[test]
fn a_walk_without_memory_reports_it_and_leaves_all_directories() {
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let source: Arc<dyn ImageSource> = Arc::new(shared_entries(3, 10));
    let image = OpenOptions::new().memory(&memory).open_sources(source, Vec::new()).unwrap();
    let before = memory.budget().used_bytes();
    let walk = image.walk(b"/").unwrap();
    assert!(memory.budget().used_bytes() >= before + (256 << 10));
    drop(walk);
    assert_eq!(memory.budget().used_bytes(), before);
}

#[test]
fn the_error_after_a_truncation_states_the_length_that_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.erofs");
    std::fs::write(&path, shared_entries(3, 2000)).unwrap();
    let image = Image::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let far = Nid::new(100_000);
    let errors = [image.inode(far).unwrap_err(), {
        let root = image.root().unwrap();
        image.read_dir(&root).unwrap().find_map(Result::err).unwrap()
    }];
    assert!(errors.iter().any(|error| error.to_string().contains("has 5000 bytes")), "{errors:?}");
}

/// `count` inodes that have one attribute of 64 KiB, 255 times each.
fn shared_attribute(count: usize) -> Vec<u8> {
    const STEP: usize = 34;
    let body = [&[0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0][..], &[0; 4 * 255]].concat();
    let mut image = CraftedImage::new(1 + count * STEP);
    let mut names = Vec::new();
    for number in 0..count {
        let slot = 1 + number * STEP;
        image.inode(slot, CompactInode { xattr_count: 256, ..CompactInode::fifo() }, &body);
        names.push((name(number), CraftedImage::nid(slot), FIFO));
    }
    let entry = [vec![1, 1, 0xff, 0xff, b'a'], vec![b'v'; 65_535]].concat();
    image.xattr_block = image.data(&entry);
    let data = directory(&names);
    let block = image.data(&data);
    image.inode(0, CompactInode::directory(data.len(), block), &[]);
    image.finish()
}

#[test]
fn a_shared_attribute_is_verified_once() {
    let image = open(shared_attribute(50));
    let mut limits = 0;
    // 50 × 255 × 64 KiB would be 800 MiB.
    image
        .verify(&VerifyOptions::new().max_work(1 << 20), &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                limits += u64::from(matches!(problem.error.kind(), ErrorKind::WorkLimit { .. }));
            }
        })
        .unwrap();
    assert_eq!(limits, 0);
}

#[test]
fn an_access_control_list_that_linux_rejects_is_a_problem() {
    let list = |version: u8| {
        let mut image = CraftedImage::new(4);
        // One inline entry: no name behind the prefix, 28 bytes of value.
        let entries = [
            [1u8, 0, 7, 0, 255, 255, 255, 255],
            [4, 0, 7, 0, 255, 255, 255, 255],
            [32, 0, 7, 0, 255, 255, 255, 255],
        ];
        let body = [&[0; 12][..], &[0, 2, 28, 0, version, 0, 0, 0], &entries.concat()].concat();
        let count = u16::try_from(body.len() / 4 - 2).unwrap();
        image.inode(1, CompactInode { xattr_count: count, ..CompactInode::fifo() }, &body);
        let data = directory(&[
            (".", CraftedImage::nid(0), DIRECTORY),
            ("..", CraftedImage::nid(0), DIRECTORY),
            ("a", CraftedImage::nid(1), FIFO),
        ]);
        let block = image.data(&data);
        image.inode(0, CompactInode::directory(data.len(), block), &[]);
        let mut problems = Vec::new();
        open(image.finish())
            .verify(&VerifyOptions::new(), &mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    problems.push(format!("{}", problem.error));
                }
            })
            .unwrap();
        problems
    };
    assert_eq!(list(2), Vec::<String>::new());
    let problems = list(3);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("its version is not 2"), "{problems:?}");
}

/// How many problems are that repeated work has reached `max_work`, and what the others are.
fn work_limits(image: &Image, max_work: u64) -> (usize, Vec<String>) {
    let (mut limits, mut others) = (0, Vec::new());
    image
        .verify(&VerifyOptions::new().max_work(max_work), &mut |event| {
            let VerifyEvent::Problem(problem) = event else { return };
            match problem.error.kind() {
                ErrorKind::WorkLimit { .. } => limits += 1,
                _ => others.push(problem.error.to_string()),
            }
        })
        .unwrap();
    (limits, others)
}

/// The size of an lcluster was taken for a count of 2^42 records, so that each file cost 16 times the image.
#[test]
fn files_with_a_record_for_each_lcluster_are_little_work() {
    let set = ImageSet::corpus();
    for name in ["48bit-lz4", "48bit-zstd-short-records"] {
        let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
        assert_eq!(work_limits(&set.open(listed), 256 << 10), (0, Vec::new()), "{name}");
    }
}

/// Files of 4 GiB whose tables of `1 << record_bits` bytes a record overlap each other, and go on past the image.
fn overlapping_tables(files: usize, record_bits: u8) -> Vec<u8> {
    let mut image = CraftedImage::new(2 + 2 * files);
    let mut behind = vec![0; 4];
    behind.extend_from_slice(&[(record_bits - 2) << 1 | 1, 0, 0, 0]);
    let mut names = Vec::new();
    for number in 0..files {
        let size = (1 << 32) - 1;
        let file = CompactInode { layout: 1, mode: 0o100_644, size, ..CompactInode::fifo() };
        image.inode(2 + 2 * number, file, &behind);
        names.push((name(number), CraftedImage::nid(2 + 2 * number), FILE));
    }
    let names = directory(&names);
    let block = image.data(&names);
    image.inode(0, CompactInode::directory(names.len(), block), &[]);
    image.finish()
}

#[test]
fn tables_without_a_count_that_overlap_end_at_the_work_limit() {
    for record_bits in [2, 3] {
        let image = open(overlapping_tables(100, record_bits));
        // 16 bytes of work for each byte of the image, again for each file.
        assert_eq!(work_limits(&image, 200 * 16 * (16 << 10)).0, 0, "{record_bits}");
        assert!(work_limits(&image, 50 * 16 * (16 << 10)).0 > 0, "{record_bits}");
    }
}

/// A file of 1 GiB of holes, with a record of `1 << record_bits` bytes for each block.
fn long_table(record_bits: u8) -> Vec<u8> {
    let mut image = CraftedImage::new(4 + (1 << 21) / 32);
    let file = CompactInode { layout: 1, mode: 0o100_644, size: 1 << 30, ..CompactInode::fifo() };
    image.inode(2, file, &[0, 0, 0, 0, (record_bits - 2) << 1 | 1, 0, 0, 0]);
    let names = directory(&[(name(0), CraftedImage::nid(2), FILE)]);
    let block = image.data(&names);
    image.inode(0, CompactInode::directory(names.len(), block), &[]);
    image.finish()
}

/// CPU time of a verification by this thread.
fn verification_time(image: &Image) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let started_at = now();
    image.verify(&VerifyOptions::new().max_threads(1), &mut |_| ()).unwrap();
    now() - started_at
}

/// Records of 4 bytes do not say where their data is. Each part of a file was found by counting all records before it, which
/// took 50 times as long as with records of 8 bytes.
#[test]
fn records_of_a_long_table_are_counted_once() {
    let [short, long] = [2, 3].map(|record_bits| verification_time(&open(long_table(record_bits))));
    assert!(short < 5 * long, "{short:?} and {long:?}");
}

fn read_file(image: &Image) -> Result<usize, ferrofs_image::Error> {
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    let mut buffer = vec![0; usize::try_from(inode.size()).unwrap()];
    image.read_at(&inode, 0, &mut buffer)
}

/// Reading 4 KiB could take 4,096 clusters of a mebibyte, and checking 2 MiB of image took minutes.
#[test]
fn more_than_16_extents_in_4096_bytes_are_refused() {
    for (count, bytes, is_refused) in
        [(16, 1, false), (17, 1, true), (17, 256, false), (64, 255, true)]
    {
        let image = open(front_extents(count, bytes, 4096));
        match read_file(&image) {
            Ok(read) => assert!(!is_refused && read == count * bytes, "{count}, {bytes}"),
            Err(error) => {
                let is_found = matches!(error.kind(), ErrorKind::ExtentDensity { .. });
                assert!(is_refused && is_found, "{count}, {bytes}: {error}");
            }
        }
        let mut found = Vec::new();
        let problems = &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                found.push(matches!(problem.error.kind(), ErrorKind::ExtentDensity { .. }));
            }
        };
        image.verify(&VerifyOptions::new(), problems).unwrap();
        assert_eq!(found.contains(&true), is_refused, "{count}, {bytes}");
    }
}

#[test]
fn clusters_that_are_read_for_a_few_bytes_are_work() {
    let image = open(front_extents(1000, 256, 1 << 20));
    let mut limits = 0;
    let options = VerifyOptions::new().max_work(64 << 20);
    image
        .verify(&options, &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                limits += u64::from(matches!(problem.error.kind(), ErrorKind::WorkLimit { .. }));
            }
        })
        .unwrap();
    assert_eq!(limits, 1);
    // Few at a time: more in one read are refused.
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    let mut buffer = [0; 1024];
    for at in (0..256_000).step_by(buffer.len()) {
        assert_eq!(image.read_at(&inode, at, &mut buffer).unwrap(), buffer.len());
        assert!(buffer.iter().all(|byte| *byte == 0xF1));
    }
    assert!(image.decoding_work() >= 250_000_000, "{}", image.decoding_work());
}

/// One read of 128 KiB fetched 512 MiB, from an image of less than two.
#[test]
fn a_read_of_clusters_that_overlap_ends_at_a_limit() {
    let is_limit = |error: &ferrofs_image::Error| {
        matches!(error.kind(), ErrorKind::WorkLimit { .. }) && error.nid().is_some()
    };
    let image = open(front_extents(512, 256, 1 << 20));
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    let file = image.open_file(&inode).unwrap();
    for bytes in [4 << 10, 128 << 10] {
        let mut buffer = vec![0; bytes];
        assert!(is_limit(&image.read_at(&inode, 0, &mut buffer).unwrap_err()), "{bytes}");
        assert!(is_limit(&file.read_at(0, &mut buffer).unwrap_err()), "{bytes}");
    }
    // Nothing was fetched for it, by readahead neither.
    assert_eq!(image.decoding_work(), 0);
    assert_eq!(image.read_at(&inode, 0, &mut [0; 1024]).unwrap(), 1024);
    // Clusters that overlap by less than the limit are read, however wrong they are.
    let image = open(front_extents(600, 256, 4096));
    assert_eq!(read_file(&image).unwrap(), 153_600);
}

#[test]
fn verifying_metadata_only_is_work_too_and_reads_no_data() {
    // The data of these files is outside the image.
    let mut image = CraftedImage::new(4);
    let nid = CraftedImage::nid(0);
    let dots = [(".", nid, DIRECTORY), ("..", nid, DIRECTORY)];
    let names = [("a", CraftedImage::nid(1), FILE), ("b", CraftedImage::nid(2), FILE)];
    let root = directory(&[&dots[..], &names].concat());
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    let file =
        CompactInode { mode: 0o100_644, size: 100, payload: 1 << 20, ..CompactInode::fifo() };
    image.inode(1, file, &[]);
    image.inode(2, file, &[]);
    let image = open(image.finish());
    let problems = |options: &VerifyOptions| {
        let mut problems = Vec::new();
        let mut add = |event| {
            if let VerifyEvent::Problem(problem) = event {
                problems.push(problem.error);
            }
        };
        image.verify(options, &mut add).unwrap();
        problems
    };
    assert_eq!(problems(&VerifyOptions::new()).len(), 2);
    let options = VerifyOptions::new().metadata_only();
    assert!(problems(&options).is_empty());
    let found = problems(&options.max_work(64));
    assert!(matches!(found[..], [ref one] if matches!(one.kind(), ErrorKind::WorkLimit { .. })));
}
