//! Files that are read, and files that change under the reader.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;

use rustix::fs::AtFlags;
use tempfile::TempDir;

use super::root::PathResolution;
use super::*;
use crate::ErrorKind;

const TEXT: &[u8] = b"the quick brown fox";

/// A source with one file, `one/two/file`.
struct HostFixture {
    folder: TempDir,
    root: Arc<SourceRoot>,
}

impl HostFixture {
    fn new(resolution: PathResolution, content: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("source/one/two")).unwrap();
        let source = folder.path().join("source");
        fs::write(source.join("one/two/file"), content).unwrap();
        let root = SourceRoot::open(&source).unwrap().with_resolution(resolution);
        let directory = |parent, name: &[u8]| SourceDirectory { parent, name: name.into() };
        root.set_directories(vec![directory(0, b""), directory(0, b"one"), directory(1, b"two")]);
        Self { folder, root: Arc::new(root) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("source/one/two/file")
    }

    fn file(&self) -> HostFile {
        let status = rustix::fs::stat(self.path()).unwrap();
        let fingerprint = FileFingerprint::of_open(File::open(self.path()).unwrap()).unwrap();
        let spread = match status.st_blocks.cast_unsigned() * 512 < fingerprint.size {
            true => DataRanges::Sparse,
            false => DataRanges::Dense,
        };
        HostFile::new(
            &self.root,
            &HostLocation { directory: 2, name: b"file" },
            fingerprint,
            spread,
        )
    }
}

fn both(check: impl Fn(HostFixture)) {
    for resolution in [PathResolution::Kernel, PathResolution::Parts] {
        check(HostFixture::new(resolution, TEXT));
    }
}

fn how(error: &Error) -> &str {
    match error.kind() {
        ErrorKind::SourceChanged { how } => how,
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_is_read_where_asked_and_named_by_its_path() {
    both(|fixture| {
        let file = fixture.file();
        assert_eq!(file.name(), fixture.path().display().to_string());
        let mut reader = file.open().unwrap();
        let mut buffer = [0; 5];
        reader.read_exact_at(4, &mut buffer).unwrap();
        assert_eq!(&buffer, b"quick");
        reader.read_exact_at(TEXT.len() as u64, &mut []).unwrap();
        reader.check_unchanged().unwrap();
    });
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_told_with_the_byte() {
    both(|fixture| {
        let mut reader = fixture.file().open().unwrap();
        File::options().write(true).open(fixture.path()).unwrap().set_len(7).unwrap();
        let error = reader.read_exact_at(4, &mut [0; 10]).unwrap_err();
        assert_eq!(how(&error), "it ends here, and it had 19 bytes when it was imported");
        assert_eq!((error.path(), error.offset()), (fixture.path().as_path(), Some(7)));
        let error = reader.check_unchanged().unwrap_err();
        assert_eq!(how(&error), "its size was 19 bytes and is 7");
    });
}

#[test]
fn a_file_that_was_written_to_is_told_by_its_time() {
    both(|fixture| {
        let file = fixture.file();
        let mut reader = file.open().unwrap();
        File::options().write(true).open(fixture.path()).unwrap().write_all_at(b"X", 0).unwrap();
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
            last_modification: rustix::fs::Timespec { tv_sec: 2, tv_nsec: 5 },
        };
        rustix::fs::utimensat(rustix::fs::CWD, fixture.path(), &times, AtFlags::empty()).unwrap();
        for error in [reader.check_unchanged().unwrap_err(), file.open().map(drop).unwrap_err()] {
            assert!(how(&error).starts_with("its modification time was "), "{error}");
            assert!(how(&error).ends_with(" and is 2.000000005"), "{error}");
        }
    });
}

#[test]
fn a_file_whose_time_was_set_back_is_told_by_its_change_time() {
    both(|fixture| {
        let file = fixture.file();
        let before = fs::metadata(fixture.path()).unwrap().modified().unwrap();
        let writable = File::options().write(true).open(fixture.path()).unwrap();
        // The clock of the file system has ticks: write until one has passed.
        let reader = loop {
            writable.write_all_at(b"X", 0).unwrap();
            writable.set_modified(before).unwrap();
            if let Err(error) = file.open() {
                break error;
            }
        };
        assert!(how(&reader).starts_with("its change time was "), "{reader}");
    });
}

#[test]
fn another_file_in_its_place_is_told() {
    both(|fixture| {
        let file = fixture.file();
        fs::write(fixture.folder.path().join("other"), TEXT).unwrap();
        fs::rename(fixture.folder.path().join("other"), fixture.path()).unwrap();
        let error = file.open().map(drop).unwrap_err();
        assert!(how(&error).starts_with("another file took its place"), "{error}");
    });
}

#[test]
fn a_file_that_is_gone_is_told() {
    both(|fixture| {
        let file = fixture.file();
        fs::remove_file(fixture.path()).unwrap();
        let error = file.open().map(drop).unwrap_err();
        assert_eq!(how(&error), "it is gone");
        assert_eq!(error.path(), fixture.path());
    });
}

#[test]
fn a_symlink_in_place_of_the_file_is_not_followed() {
    both(|fixture| {
        let file = fixture.file();
        fs::rename(fixture.path(), fixture.folder.path().join("moved")).unwrap();
        symlink(fixture.folder.path().join("moved"), fixture.path()).unwrap();
        let error = file.open().map(drop).unwrap_err();
        assert_eq!(how(&error), "it, or a directory above it, is a symlink now");
    });
}

#[test]
fn a_symlink_in_place_of_a_directory_is_not_followed() {
    both(|fixture| {
        let file = fixture.file();
        let one = fixture.folder.path().join("source/one");
        fs::rename(&one, fixture.folder.path().join("moved")).unwrap();
        symlink("../moved", &one).unwrap();
        let error = file.open().map(drop).unwrap_err();
        assert!(how(&error).contains("a directory above it"), "{error}");
    });
}

#[test]
fn a_fifo_in_place_of_the_file_holds_up_nobody() {
    both(|fixture| {
        let file = fixture.file();
        fs::remove_file(fixture.path()).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fixture.path(), fifo, mode, 0).unwrap();
        let error = file.open().map(drop).unwrap_err();
        assert!(how(&error).contains("took its place") || how(&error).contains("size"), "{error}");
    });
}

#[test]
fn holes_are_told_where_the_file_system_tells_them() {
    let fixture = HostFixture::new(PathResolution::Kernel, b"");
    assert!(fixture.file().data_ranges().unwrap().is_empty());
    let sparse = File::options().write(true).open(fixture.path()).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(TEXT, 4 << 20).unwrap();
    let file = fixture.file();
    let ranges = file.data_ranges().unwrap();
    // Every byte that is no zero lies in a range, and ranges ascend and stay within the file.
    assert!(
        ranges
            .iter()
            .any(|range| range.start <= 4 << 20 && range.end >= (4 << 20) + TEXT.len() as u64)
    );
    assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= 8 << 20));
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    if file.spread == DataRanges::Dense || bytes == 8 << 20 {
        println!("skipped: {} tells no holes", fixture.folder.path().display());
        return;
    }
    assert!(bytes <= 1 << 20, "{ranges:?}");
    sparse.set_len(9 << 20).unwrap();
    let error = file.data_ranges().unwrap_err();
    assert_eq!(how(&error), "its size was 8388608 bytes and is 9437184");
}

#[test]
fn a_file_of_nothing_but_a_hole_has_no_ranges() {
    let fixture = HostFixture::new(PathResolution::Kernel, b"");
    File::options().write(true).open(fixture.path()).unwrap().set_len(1 << 40).unwrap();
    let ranges = fixture.file().data_ranges().unwrap();
    assert!(ranges.is_empty() || ranges == std::iter::once(0..1 << 40).collect::<Vec<_>>());
}

#[test]
fn a_dense_file_is_one_range() {
    both(|fixture| {
        let mut file = fixture.file();
        file.spread = DataRanges::Dense;
        let all: Vec<_> = std::iter::once(0..TEXT.len() as u64).collect();
        assert_eq!(file.data_ranges().unwrap(), all);
        file.spread = DataRanges::Sparse;
        assert_eq!(file.data_ranges().unwrap(), all);
    });
}

#[test]
fn what_is_kept_of_a_file_is_small() {
    // A million of them are kept at once; the two counts of an Arc come on top.
    assert!(size_of::<HostFile>() <= 80, "{}", size_of::<HostFile>());
}
