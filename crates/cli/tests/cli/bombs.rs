//! Small images that once took gigabytes of memory, gigabytes of messages, or hours: each verb stays
//! within `--memory`, prints little, and ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::crafted::{CompactInode, CraftedImage, DIRECTORY, FIFO, directory, front_extents, name};
use crate::support::{Dir, data, ferrofs};

/// What the process may take at `--memory 64m`.
const RESIDENT_MAX: u64 = 67 << 20;
/// Far above what these images take, and far below what they took.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Runs a verb with `--json` and `--stats` at 64 MiB, and checks memory, messages and time. Returns
/// the standard error.
fn run(arguments: &[&str], image: &Path, rest: &[&str]) -> String {
    let started_at = Instant::now();
    let image = image.to_str().unwrap();
    let limits = ["--memory", "64m", "--json", "--stats"];
    let ended = ferrofs().args(arguments).arg(image).args(rest).args(limits).run();
    assert!(started_at.elapsed() < TIME_MAX, "{arguments:?}: {:?}", started_at.elapsed());
    // The report of a stream goes to the standard error.
    let stdout = String::from_utf8(ended.stdout).unwrap();
    let is_report = |line: &&str| line.starts_with('{');
    let report = stdout.lines().chain(ended.stderr.lines()).find(is_report);
    match report {
        Some(report) => check_peak(&serde_json::from_str(report).unwrap()),
        // The verb ended with an error, which leaves no report.
        None => assert_ne!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr),
    }
    let messages = ended.stderr.lines().filter(|line| !is_report(line));
    let stderr = messages.collect::<Vec<_>>().join("\n");
    assert!(stderr.len() <= 1_000_000, "{arguments:?}: {} bytes", stderr.len());
    stderr
}

fn check_peak(report: &Value) {
    let peak = report["stats"]["memory"]["process_peak_bytes"].as_u64().unwrap();
    assert!(peak <= RESIDENT_MAX, "{peak} bytes");
}

/// A compact inode, and room behind it.
fn compact_inode(layout: u16, mode: u16, size: usize, payload: usize) -> [u8; 64] {
    let mut inode = [0u8; 64];
    inode[0..2].copy_from_slice(&(layout << 1).to_le_bytes());
    inode[4..6].copy_from_slice(&mode.to_le_bytes());
    inode[6] = 2;
    inode[8..12].copy_from_slice(&u32::try_from(size).unwrap().to_le_bytes());
    inode[16..20].copy_from_slice(&u32::try_from(payload).unwrap().to_le_bytes());
    inode
}

/// Directories in the packed file: overlapping windows of 64 KiB over one array of entries, each of
/// which leads to the next.
fn windows() -> Vec<u8> {
    const BLOCK: usize = 1 << 16;
    const STEP: usize = 6;
    const COUNT: usize = (65_535 - 16) / 32 - 1;
    let root = BLOCK / 32;
    let number = |window: usize| (root + 4 + 2 * window) as u64;
    let packed = |valid: &[usize]| {
        let mut data = Vec::new();
        for entry in 0..STEP * COUNT + 1 + 2 * COUNT + 4 {
            let is_first = entry.is_multiple_of(STEP);
            let window = valid.binary_search(&(entry / STEP)).ok().filter(|_| is_first);
            let next = window.and_then(|window| valid.get(window + 1));
            let nid = next.map_or(0x6161_6161_6161_6161, |next| number(*next));
            data.extend_from_slice(&nid.to_le_bytes());
            let offset = u16::try_from(12 + 4 * entry).unwrap_or(u16::MAX);
            data.extend_from_slice(&offset.to_le_bytes());
            data.extend_from_slice(&[2, 0]);
        }
        data.extend(b"bc\0d".iter().cycle().take(BLOCK));
        data
    };
    let is_valid = |data: &[u8], window: usize| {
        let block = &data[12 * STEP * window..][..BLOCK];
        let offset = |entry: usize| {
            usize::from(u16::from_le_bytes([block[12 * entry + 8], block[12 * entry + 9]]))
        };
        let count = offset(0) / 12;
        if offset(0) % 12 != 0 || count < 2 || offset(0) >= BLOCK {
            return false;
        }
        let names = (1..count).all(|entry| offset(entry) > offset(entry - 1));
        let first = &block[offset(0)..offset(1)];
        let last = block[offset(count - 1)..].split(|byte| *byte == 0).next().unwrap();
        names && !first.contains(&0) && !first.contains(&b'/') && (1..=255).contains(&last.len())
    };
    let mut valid: Vec<usize> = (0..COUNT).collect();
    let data = loop {
        let data = packed(&valid);
        let before = valid.len();
        valid.retain(|window| is_valid(&data, *window));
        if valid.len() == before {
            break data;
        }
    };
    let first_data = 2 + (64 * (4 + COUNT)).div_ceil(BLOCK);
    let mut image = vec![0u8; first_data * BLOCK];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let window_inode = |window: usize| {
        let mut bytes = compact_inode(1, 0o40_755, BLOCK, 0);
        let place = 1u64 << 63 | (12 * STEP * window) as u64;
        bytes[32..40].copy_from_slice(&place.to_le_bytes());
        bytes
    };
    put(BLOCK, &window_inode(valid[0]));
    put(BLOCK + 64, &compact_inode(0, 0o100_644, data.len(), first_data));
    (0..COUNT).for_each(|window| put(BLOCK + 128 + 64 * window, &window_inode(window)));
    put(1024, &0xE0F5_E1E2u32.to_le_bytes());
    put(1036, &[16]);
    put(1038, &u16::try_from(root).unwrap().to_le_bytes());
    put(1024 + 80, &0x21u32.to_le_bytes());
    put(1024 + 96, &((root + 2) as u64).to_le_bytes());
    image.extend_from_slice(&data);
    image.resize(image.len().next_multiple_of(BLOCK), 0);
    image
}

/// A chain of directories, whose entries lie behind their inodes, and what the last one has.
fn chain(
    depth: usize,
    name_bytes: usize,
    slots: usize,
    last: &[(String, u64, u8)],
    more: usize,
) -> CraftedImage {
    let mut image = CraftedImage::new(depth * slots + 2 + more);
    let nid = |number: usize| CraftedImage::nid(number * slots);
    let inline = |size| CompactInode { layout: 2, ..CompactInode::directory(size, 0) };
    for number in 0..depth - 1 {
        let data = directory(&[("p".repeat(name_bytes), nid(number + 1), DIRECTORY)]);
        image.inode(number * slots, inline(data.len()), &data);
    }
    let data = directory(last);
    let block = image.data(&data);
    image.inode((depth - 1) * slots, CompactInode::directory(data.len(), block), &[]);
    image
}

const DEPTH: usize = 255;
const SLOTS: usize = 16;
const LEAVES: usize = 3000;

#[test]
fn overlapping_directories_stay_within_memory_and_time() {
    let dir = Dir::new();
    let image = dir.write("windows.erofs", &windows());
    let stderr = run(&["check"], &image, &[]);
    assert!(stderr.contains("--max-work allows more"), "{stderr}");
    run(&["extract", "--tar", "/dev/null"], &image, &[]);
    let out = dir.join("out");
    run(&["extract"], &image, &[out.to_str().unwrap()]);
}

#[test]
fn problems_under_long_paths_are_shortened_and_not_kept() {
    let dir = Dir::new();
    let leaf = CraftedImage::nid(DEPTH * SLOTS);
    let last: Vec<_> = (0..LEAVES).map(|number| (name(number), leaf, 1)).collect();
    let mut image = chain(DEPTH, 254, SLOTS, &last, 0);
    image.inode(DEPTH * SLOTS, CompactInode::fifo(), &[]);
    let image = dir.write("hint.erofs", &image.finish());
    run(&["check"], &image, &[]);
    run(&["extract", "--tar", "/dev/null"], &image, &[]);
}

#[test]
fn late_modes_under_long_paths_take_little_memory() {
    let dir = Dir::new();
    let first = DEPTH * SLOTS + 1;
    let last: Vec<_> =
        (0..LEAVES).map(|at| (name(at), CraftedImage::nid(first + at), DIRECTORY)).collect();
    let mut image = chain(DEPTH, 254, SLOTS, &last, LEAVES);
    for number in 0..LEAVES {
        let closed = CompactInode { mode: 0o40_000, ..CompactInode::directory(0, 0) };
        image.inode(first + number, closed, &[]);
    }
    let image = dir.write("modes.erofs", &image.finish());
    let report = dir
        .ordinary_ferrofs()
        .args(["extract", "--memory", "64m", "--json", "--stats"])
        .args([&image, &dir.join("out")])
        .run()
        .json();
    check_peak(&report);
    assert_eq!(report["directories"], (DEPTH + LEAVES) as u64);
}

#[test]
fn a_tar_of_a_deep_selection_takes_little_memory() {
    const DEEP: usize = 10_000;
    let dir = Dir::new();
    let leaf = CraftedImage::nid(DEEP * 2);
    let mut image = chain(DEEP, 1, 2, &[("x".to_owned(), leaf, FIFO)], 0);
    image.inode(DEEP * 2, CompactInode::fifo(), &[]);
    let image = dir.write("deep.erofs", &image.finish());
    run(&["extract", "--tar", "/dev/null"], &image, &["**/x"]);
}

#[test]
fn an_image_of_endless_work_ends_with_the_name_of_the_option() {
    let dir = Dir::new();
    let count = 400;
    let mut image = CraftedImage::new(2 + count);
    image.inode(1, CompactInode::fifo(), &[]);
    let leaf = CraftedImage::nid(1);
    let shared: Vec<_> = (0..2000).map(|number| (name(number), leaf, FIFO)).collect();
    let shared = directory(&shared);
    let block = image.data(&shared);
    let below = |number| (name(number), CraftedImage::nid(2 + number), DIRECTORY);
    let top: Vec<_> = (0..count).map(below).collect();
    for number in 0..count {
        image.inode(2 + number, CompactInode::directory(shared.len(), block), &[]);
    }
    let top = directory(&top);
    let block = image.data(&top);
    image.inode(0, CompactInode::directory(top.len(), block), &[]);
    let image = dir.write("endless.erofs", &image.finish());
    let out = dir.join("out");
    let out = out.to_str().unwrap();
    let limit = ["--max-work", "64m"];
    for (verb, rest) in [
        (&["check"][..], &limit[..]),
        (&["extract", "--tar", "/dev/null"], &limit),
        (&["extract"], &[out, limit[0], limit[1]]),
    ] {
        let stderr = run(verb, &image, rest);
        assert!(stderr.contains("the limit of 67108864 bytes of repeated work"), "{stderr}");
        assert!(stderr.contains("--max-work allows more"), "{stderr}");
    }
}

#[test]
fn cat_of_clusters_that_overlap_ends_at_a_limit() {
    let dir = Dir::new();
    let image = dir.write("overlap.erofs", &front_extents(512, 256, 1 << 20));
    let ended = ferrofs().arg("cat").arg(&image).arg("/f").ends_with(1);
    assert!(ended.stdout.is_empty());
    let message = "/f: compressed clusters that overlap: more than the limit of 4";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

#[test]
fn output_beyond_the_limit_ends_an_extraction() {
    let dir = Dir::new();
    let image = data("plain.erofs");
    let out = dir.join("out");
    let stderr = run(&["extract", "--max-output", "1k"], &image, &[out.to_str().unwrap()]);
    assert!(stderr.contains("the limit of 1024 bytes"), "{stderr}");
    assert!(stderr.contains("--max-output allows more"), "{stderr}");
    let tar = dir.join("out.tar");
    let stderr =
        run(&["extract", "--max-output", "1k", "--tar", tar.to_str().unwrap()], &image, &[]);
    assert!(stderr.contains("--max-output allows more"), "{stderr}");
    assert!(!tar.exists());
}

/// `count` inodes that share 255 attributes of 64 KiB, whose values overlap: 16 MiB for each inode.
pub(crate) fn shared_attribute(count: usize) -> Vec<u8> {
    const STEP: usize = 34;
    // An entry begins every 8 bytes, which are two units of an identifier.
    let identifiers = (0..255u32).flat_map(|number| (2 * number).to_le_bytes());
    let body =
        [0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(identifiers).collect::<Vec<_>>();
    let mut image = CraftedImage::new(1 + count * STEP);
    let dots = [".", ".."].map(|dot| (dot.to_owned(), CraftedImage::nid(0), DIRECTORY));
    let mut names = Vec::from(dots);
    for number in 0..count {
        let slot = 1 + number * STEP;
        image.inode(slot, CompactInode { xattr_count: 256, ..CompactInode::fifo() }, &body);
        names.push((name(number), CraftedImage::nid(slot), FIFO));
    }
    let mut entries =
        (1..=255).flat_map(|name| [1, 1, 0xff, 0xff, name, 0, 0, 0]).collect::<Vec<_>>();
    entries.resize(entries.len() + 65_535, b'v');
    image.xattr_block = image.data(&entries);
    let data = directory(&names);
    let block = image.data(&data);
    image.inode(0, CompactInode::directory(data.len(), block), &[]);
    image.finish()
}

#[test]
fn a_tar_of_endless_attributes_takes_the_memory_of_one_entry() {
    let dir = Dir::new();
    let image = dir.write("image.erofs", &shared_attribute(60));
    // All threads would hold 16 MiB each twice, and wait for each other.
    let stderr = run(&["extract", "--tar", "/dev/null"], &image, &[]);
    assert!(stderr.contains("--max-work allows more"), "{stderr}");
    let image = dir.write("image.erofs", &shared_attribute(6));
    let tar = dir.join("tar");
    let limits = ["--max-work", "1g", "--tar", tar.to_str().unwrap()];
    assert_eq!(run(&["extract"], &image, &limits), "");
    assert!(fs::metadata(tar).unwrap().len() > 6 * 255 * 65_535);
}

#[test]
fn endless_attributes_end_the_files_of_metadata_at_the_limits_of_an_extraction() {
    let dir = Dir::new();
    let image = dir.write("image.erofs", &shared_attribute(40));
    let (out, sidecar, config) = (dir.join("out"), dir.join("sidecar"), dir.join("config"));
    let [out, file, config] = [&out, &sidecar, &config].map(|path| path.to_str().unwrap());
    for option in [["--sidecar", file], ["--android-config", config]] {
        let words = [&["extract", "--no-xattrs"][..], &option].concat();
        let stderr = run(&words, &image, &[out]);
        assert!(stderr.contains("extended attributes that inodes share"), "{stderr}");
        assert!(stderr.contains("--max-work allows more"), "{stderr}");
    }
    let words = ["extract", "--no-xattrs", "--max-work=1g", "--max-output=1m", "--sidecar", file];
    let stderr = run(&words, &image, &[out]);
    assert!(stderr.contains("the output is larger than the limit of 1048576 bytes"), "{stderr}");
    assert!(stderr.contains("--max-output allows more"), "{stderr}");
    let left = fs::read_dir(config).unwrap().count();
    assert!(!Path::new(out).exists() && !sidecar.exists() && left == 0, "{left}");
    let image = dir.write("image.erofs", &shared_attribute(2));
    run(&["extract", "--no-xattrs", "--max-work=1g", "--sidecar", file], &image, &[out]);
    assert!(fs::metadata(sidecar).unwrap().len() > 2 * 2 * 255 * 65_535);
}

/// A tar of a file of zeros, in a frame of zstd with a window of `1 << window_log` bytes.
fn zstd_of_zeros(window_log: u8, blocks: usize) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let mut header = vec![0u8; 512];
    header[0] = b'z';
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..135].copy_from_slice(format!("{:011o}", blocks * BLOCK).as_bytes());
    header[148..156].copy_from_slice(b"        ");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum = header.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0, (window_log - 10) << 3];
    // Bit 0 is set in the last block; bits 1 and 2 are 0 for bytes as they are, and 1 for one byte, repeated.
    let mut block = |flags: usize, bytes: usize| {
        frame.extend_from_slice(&(bytes << 3 | flags).to_le_bytes()[..3]);
        frame.extend_from_slice(if flags == 0 { &header } else { &[0] });
    };
    block(0, header.len());
    (0..blocks).for_each(|_| block(2, BLOCK));
    block(3, 1024);
    frame
}

/// The window of a decoder was no part of `--memory`: 136 MiB were resident at 64.
#[test]
fn an_archive_whose_window_does_not_fit_into_the_memory_is_refused() {
    let dir = Dir::new();
    let image = dir.join("image");
    let build = |archive: &Path, memory: &str| {
        ferrofs().args(["build", "--json", memory]).args([&image, archive])
    };
    let long = dir.write("long.tar.zst", &zstd_of_zeros(27, 1500));
    let stderr = build(&long, "--memory=64m").ends_with(1).stderr;
    assert!(
        stderr.contains("long.tar.zst: byte 0: the zstd data has a window of 134217728 bytes"),
        "{stderr}"
    );
    assert!(stderr.contains("a larger --memory allows more"), "{stderr}");
    assert!(!image.exists());
    for (archive, memory, peak) in [
        (long, "--memory=212m", 212 << 20),
        (dir.write("short.tar.zst", &zstd_of_zeros(25, 1500)), "--memory=64m", RESIDENT_MAX),
    ] {
        let report = build(&archive, memory).succeeds().stdout;
        let report: Value = serde_json::from_slice(&report).unwrap();
        let found = report["peak_memory_bytes"].as_u64().unwrap();
        assert!(found <= peak, "{found} bytes");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_sparse_file_of_terabytes_in_a_small_archive_is_refused_unless_its_holes_are_not_stored() {
    let dir = Dir::new();
    let (archive, image) = (dir.join("a.tar"), dir.join("image"));
    let huge = fs::File::create(dir.join("huge")).unwrap();
    huge.set_len(8000 << 30).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-S", "--format=posix", "-cf"]).arg(&archive).arg("-C").arg(dir.path()).arg("huge");
    assert!(tar.status().unwrap().success());
    assert!(fs::metadata(&archive).unwrap().len() <= 10 << 10);
    for options in [&[][..], &["-zlz4"], &["--max-input=1m"], &["--max-input=1m", "-zlz4"]] {
        let build = ferrofs().args(["build", "-q"]).args(options);
        let stderr = build.args([&image, &archive]).ends_with(1).stderr;
        assert!(stderr.contains("\"huge\": with its holes the archive has more than"), "{stderr}");
        assert!(stderr.contains("--max-input allows more"), "{stderr}");
    }
    for options in [&["--chunk-size=1g", "--memory=1g"][..], &["--48bit"]] {
        let build = ferrofs().args(["build", "-q", "--max-input=1m"]).args(options);
        build.args([&image, &archive]).succeeds();
        assert!(fs::metadata(&image).unwrap().len() < 1 << 20, "{options:?}");
        fs::remove_file(&image).unwrap();
    }
}
