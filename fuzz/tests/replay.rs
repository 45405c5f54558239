//! Every input that is kept, through its body, on a stable compiler: seeds, regressions, what a
//! corpus has gathered, and the seeds cut short or with one byte changed.

use std::fs;
use std::path::{Path, PathBuf};

use ferrofs_fuzz::{TARGETS, Target, mutate_image};
use ferrofs_image::OpenOptions;

/// Inputs made from the seeds of a target; each costs up to some milliseconds.
const VARIANTS_MAX: usize = 12_000;
/// The same for whole images and builds.
const IMAGE_VARIANTS_MAX: usize = 1500;
/// Targets of which each input costs milliseconds.
const SLOW: [&str; 5] = ["build_image", "check", "extract", "fuse", "write_tar"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a folder in the order of their names; none if there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn images() -> Vec<PathBuf> {
    let mut images = files(&here().join("../tests/data"));
    images.retain(|path| path.extension().is_some_and(|extension| extension == "erofs"));
    images
}

/// Names the input before it runs, so that a failure says which it was.
fn run(target: Target, name: &str, input: &[u8]) {
    let outcome = std::panic::catch_unwind(|| target.run(input));
    assert!(outcome.is_ok(), "{} fails on {name}", target.name);
}

fn run_file(target: Target, path: &Path) -> Vec<u8> {
    let input = fs::read(path).expect("a readable input");
    run(target, &path.display().to_string(), &input);
    input
}

/// Places in an input, at most `most`, spread over its length: the first byte and, if there is more than one, the last.
fn places(length: usize, most: usize) -> impl Iterator<Item = usize> {
    let steps = most.min(length);
    (0..steps).map(move |step| (length - 1) * step / (steps - 1).max(1))
}

/// Runs each input cut short and with single bytes changed: as many variants of each as there is
/// time for, spread over its length. Always the same ones.
fn run_variants(target: Target, inputs: &[Vec<u8>], variants_max: usize) {
    let each = (variants_max / inputs.len().max(1) / 2).max(1);
    for (number, input) in inputs.iter().enumerate() {
        for (step, at) in places(input.len(), each).enumerate() {
            let place = format!("input {number}, byte {at}");
            run(target, &format!("{place}, cut"), &input[..at]);
            let mut changed = input.clone();
            changed[at] = match (number + step) % 4 {
                0 => 0xFF,
                1 => changed[at].wrapping_add(1),
                2 => changed[at] ^ 0x80,
                _ => changed[at] ^ 1 << (step % 8),
            };
            run(target, &format!("{place}, changed"), &changed);
        }
    }
}

fn replay(name: &str) {
    let target = Target::named(name);
    let seeds = files(&here().join("seeds").join(name));
    assert!(!seeds.is_empty(), "{name} has no seeds");
    let seeds: Vec<_> = seeds.iter().map(|path| run_file(target, path)).collect();
    let variants_max = if SLOW.contains(&name) { IMAGE_VARIANTS_MAX } else { VARIANTS_MAX };
    run_variants(target, &seeds, variants_max);
    replay_kept(target);
}

fn replay_kept(target: Target) {
    for path in files(&here().join("regressions").join(target.name)) {
        run_file(target, &path);
    }
    for path in files(&here().join("corpus").join(target.name)) {
        // A fuzzer that is running takes files away.
        if let Ok(input) = fs::read(&path) {
            run(target, &path.display().to_string(), &input);
        }
    }
    for input in [&[][..], &[0], &[0xFF; 16], &[0; 64], &[0xFF; 4096]] {
        run(target, "a constant input", input);
    }
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_file_and_a_replay() {
            let mut replayed = vec!["check", $(stringify!($name)),*];
            replayed.sort_unstable();
            let mut named: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            named.sort_unstable();
            assert_eq!(replayed, named);
            let targets = files(&here().join("fuzz_targets"));
            let stems: Vec<_> = targets.iter().filter_map(|path| path.file_stem()).collect();
            assert_eq!(stems, named);
        }
    };
}

replays! {
    superblock inode dirent xattr stats android remote server lz4 lz4_window lzma deflate zstd zmap_full zmap_compact
    zmap_extents chunk hints texts patched write_tar extract fuse tar layers build_image
}

#[test]
fn check() {
    replay("check");
    let target = Target::named("check");
    let images: Vec<_> = images().iter().map(|path| run_file(target, path)).collect();
    assert!(!images.is_empty(), "there are no test images");
    if let Some(folder) = std::env::var_os("FERROFS_CORRUPT") {
        let corrupt = files(Path::new(&folder));
        assert!(!corrupt.is_empty(), "FERROFS_CORRUPT: no files in {}", folder.display());
        for path in corrupt {
            run_file(target, &path);
        }
    }
}

#[test]
fn variants_are_spread_over_the_whole_input() {
    assert_eq!(places(5, 100).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(places(101, 3).collect::<Vec<_>>(), [0, 50, 100]);
    assert_eq!(places(1, 3).chain(places(0, 3)).chain(places(7, 1)).collect::<Vec<_>>(), [0, 0]);
}

/// A fuzzer cuts a longer input, which then is no longer what it was made for.
#[test]
fn no_seed_is_longer_than_the_inputs_of_its_target() {
    let table = fs::read_to_string(here().join("lengths.tsv")).expect("a table");
    let rows = table.lines().map(|row| row.split_once('\t').expect("a target and a length"));
    let mut names = Vec::new();
    for (name, length) in rows {
        names.push(name);
        let length: u64 = length.parse().expect("bytes");
        for path in files(&here().join("seeds").join(name)) {
            let bytes = fs::metadata(&path).expect("an input").len();
            assert!(bytes <= length, "{} has {bytes} bytes", path.display());
        }
    }
    let mut targets: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    targets.sort_unstable();
    assert_eq!(names, targets);
}

#[test]
fn whole_images_come_out_of_extraction_and_archives_as_they_are() {
    let built = files(&here().join("seeds/check"));
    for path in built.into_iter().chain(images()) {
        let image = fs::read(&path).expect("a readable input");
        let input = [&[0xFF], &image[..]].concat();
        for target in ["write_tar", "extract"] {
            run(Target::named(target), &path.display().to_string(), &input);
        }
    }
}

/// The mutator of a fuzzer, without one.
fn flip_a_bit(data: &mut [u8], size: usize, _: usize) -> usize {
    if let Some(byte) = data[..size].last_mut() {
        *byte ^= 1;
    }
    size
}

#[test]
fn most_mutated_images_still_open() {
    let mut opened = 0;
    let mut tried = 0;
    for path in files(&here().join("seeds/check")) {
        let input = fs::read(path).expect("an input");
        for number in 0..24 {
            let mut data = input.clone();
            data.resize(64 << 10, 0);
            let size = mutate_image(&mut data, input.len(), number * 7 + 3, flip_a_bit);
            run(Target::named("check"), "a mutated image", &data[..size]);
            let source = std::sync::Arc::new(data[..size].to_vec());
            tried += 1;
            opened += usize::from(OpenOptions::new().open_sources(source, Vec::new()).is_ok());
        }
    }
    assert!(opened * 10 > tried * 8, "{opened} of {tried} mutated images open");
}
