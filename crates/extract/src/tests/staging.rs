//! Names that appear when what they name is whole. What a process would leave if it was killed is
//! looked at during each read of the image.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ferrofs_image::{Image, ImageSource, OpenOptions};
use ferrofs_workers::CancelToken;

use super::faults::HookedSource;
use super::fixture::{ImageFixture, snapshot_tree};
use super::{ExtractRun, bytes, extract_with_options, extract_with_watchdog, new_folder};
use crate::temporary_name::is_temporary;
use crate::{ErrorKind, ExistingFiles, ExtractOptions};

/// Calls a hook at every read.
pub(super) struct WatchedSource<F> {
    pub(super) bytes: Vec<u8>,
    pub(super) hook: F,
}

impl<F> std::fmt::Debug for WatchedSource<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WatchedSource")
    }
}

impl<F: Fn() + Send + Sync> ImageSource for WatchedSource<F> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (self.hook)();
        // Few bytes at a time, so that there are many reads.
        let count = buffer.len().min(4 << 10);
        self.bytes.read_at(offset, &mut buffer[..count])
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

/// Small files, large ones, and hard links, at the top and in directories on several levels.
fn image_bytes() -> Vec<u8> {
    let mut made = ImageFixture::new();
    let first = made.file(0, "first", &bytes(1, 30_000));
    for number in 0..6 {
        let outer = made.directory(0, &format!("d{number}"));
        let inner = made.directory(outer, "inner");
        let own = made.file(inner, "own", &bytes(number, 9_000));
        made.file(inner, "small", &bytes(number, 3_000));
        made.file(outer, "large", &bytes(number + 9, 50_000));
        made.link(outer, "link-of-first", first);
        made.link(outer, "own-again", own);
        made.link(0, &format!("own-{number}"), own);
        made.file(0, &format!("top-{number}"), &bytes(number, 12_000));
    }
    made.bytes()
}

fn open_with(bytes: Vec<u8>, hook: impl Fn() + Send + Sync + 'static) -> Image {
    let source = Arc::new(WatchedSource { bytes, hook });
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

fn is_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    is_temporary(name.as_bytes()) || (name.starts_with('.') && name.ends_with(".part"))
}

/// The regular files under final names, while others may be renamed.
fn published_files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                _ if is_staged(&path) => {}
                Ok(kind) if kind.is_dir() => left.push(path),
                Ok(kind) if kind.is_file() => {
                    let contents = match fs::read(&path) {
                        // A directory has replaced it since it was listed.
                        Err(error) if error.kind() == io::ErrorKind::IsADirectory => continue,
                        read => read.unwrap(),
                    };
                    files.insert(path.strip_prefix(root).unwrap().to_path_buf(), contents);
                }
                _ => {}
            }
        }
    }
    files
}

/// What is there under temporary names.
fn staged_names(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| is_staged(path)).collect()
}

/// Extracts, and compares the files with final names at every read with what they are to be, or
/// were. Returns the most of them that were seen before the end.
fn observe(target: &Path, workers: usize, existing: ExistingFiles) -> usize {
    let sound = new_folder();
    let image = open_with(image_bytes(), || ());
    extract_with_watchdog(&image, sound.path(), 0).result.unwrap();
    let (new, old) = (published_files(sound.path()), published_files(target));
    let state = Arc::new(Mutex::new((0, Vec::new())));
    let (in_hook, root, wanted) = (Arc::clone(&state), target.to_path_buf(), new.clone());
    let hook = move || {
        let found = published_files(&root);
        let mut state = in_hook.lock().unwrap();
        let is_right = |path: &PathBuf, contents: &Vec<u8>| {
            [&wanted, &old].iter().any(|files| files.get(path) == Some(contents))
        };
        let wrong = found.iter().filter(|(path, contents)| !is_right(path, contents));
        let wrong: Vec<PathBuf> = wrong.map(|(path, _)| path.clone()).collect();
        state.1.extend(wrong);
        if found.len() < wanted.len() {
            state.0 = found.len().max(state.0);
        }
    };
    let options = ExtractOptions::new().existing(existing);
    let run = extract_with_options(&open_with(image_bytes(), hook), target, workers, options);
    run.result.unwrap();
    assert!(run.failures.is_empty(), "{:?}", run.failures);
    let (seen, wrong) = std::mem::take(&mut *state.lock().unwrap());
    assert!(wrong.is_empty(), "{workers}, {existing:?}: {wrong:?}");
    assert_eq!(published_files(target), new);
    let (ours, theirs) = (snapshot_tree(target), snapshot_tree(sound.path()));
    for (path, entry) in &theirs {
        assert!(ours[path] == *entry, "{path:?}: {:?} is not {entry:?}", ours[path]);
    }
    assert_eq!(ours.len(), theirs.len());
    seen
}

#[test]
fn a_missing_destination_gets_its_name_when_all_of_it_is_whole() {
    for workers in [0, 1, 3] {
        let folder = new_folder();
        let target = folder.path().join("above/tree");
        assert_eq!(observe(&target, workers, ExistingFiles::Refuse), 0);
        assert_eq!(fs::read_dir(folder.path().join("above")).unwrap().count(), 1);
    }
}

#[test]
fn in_a_destination_that_exists_names_appear_one_by_one_and_always_whole() {
    for workers in [0, 1, 3] {
        let folder = new_folder();
        let seen = observe(folder.path(), workers, ExistingFiles::Refuse);
        // Threads may be done with all before one of them reads again.
        assert!(workers > 0 || seen > 4, "only {seen} appeared before the end");
    }
}

#[test]
fn files_that_are_replaced_are_the_old_ones_until_the_new_ones_are_whole() {
    for workers in [0, 1, 3] {
        let folder = new_folder();
        for name in ["d0/inner", "d3"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        // d4 has to be a directory, and the last ones are in directories that existed.
        for name in ["first", "top-3", "d4", "d0/large", "d0/inner/own", "d3/large"] {
            fs::write(folder.path().join(name), format!("the old {name}")).unwrap();
        }
        let seen = observe(folder.path(), workers, ExistingFiles::Replace);
        // Threads may be done with all before one of them reads again.
        assert!(workers > 0 || seen > 4, "only {seen} appeared before the end");
    }
}

/// A tree whose only directory is filled while the hook is called in the middle of its large file.
fn extract_with_hook(
    target: &Path,
    existing: ExistingFiles,
    hook: impl Fn(&CancelToken) + Send + Sync + 'static,
) -> ExtractRun {
    let mut made = ImageFixture::new();
    let directory = made.directory(0, "d");
    made.file(directory, "a", &bytes(1, 100));
    made.file(directory, "long", &bytes(2, 4 << 20));
    made.file(0, "z", &bytes(3, 100));
    let image_bytes = made.bytes();
    let token = CancelToken::new();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let counting = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let image = open_with(image_bytes.clone(), counting);
    extract_with_watchdog(&image, new_folder().path(), 0).result.unwrap();
    let at_read = count.load(Ordering::Relaxed) / 2;
    let in_hook = token.clone();
    let hook = move || hook(&in_hook);
    let reads = AtomicU64::new(0);
    let inner = HookedSource { bytes: image_bytes, reads, at_read, hook };
    let source = ShortReads(inner);
    let image = OpenOptions::new().open_sources(Arc::new(source), Vec::new()).unwrap();
    let options = ExtractOptions::new().cancel(&token).existing(existing);
    extract_with_options(&image, target, 0, options)
}

/// The same reads as of a `WatchedSource`.
#[derive(Debug)]
struct ShortReads<S>(S);

impl<S: ImageSource> ImageSource for ShortReads<S> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(4 << 10);
        self.0.read_at(offset, &mut buffer[..count])
    }

    fn length(&self) -> u64 {
        self.0.length()
    }
}

#[test]
fn a_name_that_appears_meanwhile_stays_and_the_error_says_where_the_directory_is() {
    for existing in [ExistingFiles::Refuse, ExistingFiles::Keep] {
        let folder = new_folder();
        let name = folder.path().join("d");
        let appear = name.clone();
        let hook = move |_: &CancelToken| fs::write(&appear, "theirs").unwrap();
        let run = extract_with_hook(folder.path(), existing, hook);
        assert_eq!(run.result.unwrap().failures, 1);
        let [error] = &*run.failures else { panic!("{:?}", run.failures) };
        let ErrorKind::NotPublished { source, temporary } = error.kind() else { panic!("{error}") };
        assert!(matches!(**source, ErrorKind::Exists), "{error}");
        assert_eq!(error.path(), b"/d");
        assert_eq!(fs::read(&name).unwrap(), b"theirs");
        let staged = folder.path().join(String::from_utf8(temporary.clone()).unwrap());
        assert_eq!(fs::read(staged.join("long")).unwrap(), bytes(2, 4 << 20));
        assert_eq!(fs::read(folder.path().join("z")).unwrap(), bytes(3, 100));
    }
}

#[test]
fn a_file_that_appears_meanwhile_is_replaced_if_that_is_allowed_but_no_directory() {
    let folder = new_folder();
    let name = folder.path().join("d");
    let appear = name.clone();
    let hook = move |_: &CancelToken| fs::write(&appear, "theirs").unwrap();
    let run = extract_with_hook(folder.path(), ExistingFiles::Replace, hook);
    assert!(run.failures.is_empty(), "{:?}", run.failures);
    assert_eq!(fs::read(name.join("a")).unwrap(), bytes(1, 100));

    let folder = new_folder();
    let name = folder.path().join("d");
    let appear = name.clone();
    let hook = move |_: &CancelToken| {
        fs::create_dir(&appear).unwrap();
        fs::write(appear.join("theirs"), "theirs").unwrap();
    };
    let run = extract_with_hook(folder.path(), ExistingFiles::Replace, hook);
    assert!(matches!(run.failures[0].kind(), ErrorKind::NotPublished { .. }));
    assert_eq!(fs::read_dir(&name).unwrap().count(), 1);
}

#[test]
fn a_destination_that_appears_meanwhile_is_not_touched() {
    let folder = new_folder();
    let target = folder.path().join("tree");
    let appear = target.clone();
    let hook = move |_: &CancelToken| fs::create_dir(&appear).unwrap();
    let run = extract_with_hook(&target, ExistingFiles::Refuse, hook);
    assert_eq!(run.result.unwrap().failures, 1);
    assert!(matches!(run.failures[0].kind(), ErrorKind::NotPublished { .. }));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    assert_eq!(fs::read(folder.path().join(".tree.part/z")).unwrap(), bytes(3, 100));
}

#[test]
fn a_directory_that_is_swapped_before_it_gets_its_name_is_noticed() {
    let folder = new_folder();
    let root = folder.path().to_path_buf();
    let hook = move |_: &CancelToken| {
        let [staged] = &*staged_names(&root) else { panic!("nothing is staged") };
        fs::rename(staged, root.join("moved")).unwrap();
        fs::create_dir(staged).unwrap();
    };
    let run = extract_with_hook(folder.path(), ExistingFiles::Refuse, hook);
    let ErrorKind::NotPublished { source, .. } = run.failures[0].kind() else {
        panic!("{:?}", run.failures)
    };
    assert!(matches!(**source, ErrorKind::Replaced), "{source}");
}

#[test]
fn a_cancelled_extraction_gives_whole_files_their_names() {
    for is_missing in [false, true] {
        let folder = new_folder();
        let target = if is_missing { folder.path().join("tree") } else { folder.path().into() };
        let run = extract_with_hook(&target, ExistingFiles::Refuse, CancelToken::cancel);
        assert!(matches!(run.result.unwrap_err().kind(), ErrorKind::Cancelled));
        assert!(run.failures.is_empty(), "{:?}", run.failures);
        assert!(staged_names(folder.path()).is_empty());
        let files = published_files(&target);
        assert_eq!(files, [("d/a".into(), bytes(1, 100))].into());
    }
}

#[test]
fn a_file_that_cannot_be_read_keeps_no_directory_from_its_name() {
    let mut made = ImageFixture::new();
    for number in 0..40 {
        let directory = made.directory(0, &format!("d{number:02}"));
        made.file(directory, "right", b"right");
        made.unreadable(directory, "wrong", 20_000);
    }
    for workers in [0, 3] {
        let folder = new_folder();
        let run = extract_with_watchdog(&made.open(), folder.path(), workers);
        assert_eq!((run.result.unwrap().failures, run.failures.len()), (40, 40));
        assert_eq!(published_files(folder.path()).len(), 40);
        assert!(staged_names(folder.path()).is_empty());
    }
}

/// Below a directory that existed, deeper than descriptors reach.
#[test]
fn a_deep_new_tree_below_directories_that_exist_is_whole_and_linked() {
    let mut made = ImageFixture::new();
    let mut parent = 0;
    for level in 0..300 {
        let file = made.file(parent, "file", &bytes(level, 100));
        let again = made.directory(parent, "again");
        made.link(again, "link", file);
        parent = made.directory(parent, "d");
    }
    let image = made.open();
    for (existing_levels, workers) in [(1, 0), (3, 0), (3, 3), (150, 0)] {
        let folder = new_folder();
        fs::create_dir_all(folder.path().join("d/".repeat(existing_levels))).unwrap();
        let options = ExtractOptions::new().existing(ExistingFiles::Keep);
        let run = extract_with_options(&image, folder.path(), workers, options);
        assert!(run.failures.is_empty(), "{:?}", run.failures);
        assert_eq!(run.result.unwrap().hard_links, 300);
        let single = new_folder();
        extract_with_watchdog(&image, single.path(), 0).result.unwrap();
        super::fixture::assert_same(folder.path(), single.path(), "below existing directories");
    }
}

#[test]
fn what_a_killed_extraction_has_left_is_named() {
    let image = open_with(image_bytes(), || ());
    let folder = new_folder();
    let name = ".ferrofs-0123456789abcdef.0.part";
    fs::create_dir(folder.path().join(name)).unwrap();
    let error = extract_with_watchdog(&image, folder.path(), 0).result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Leftover { .. }), "{error}");
    assert!(error.to_string().contains(name), "{error}");
    fs::write(folder.path().join("other"), "").unwrap();
    let error = extract_with_watchdog(&image, folder.path(), 0).result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotEmpty), "{error}");

    let leftover = folder.path().join(".tree.part");
    fs::create_dir(&leftover).unwrap();
    let mut reported = Vec::new();
    let target = folder.path().join("tree");
    crate::extract(&image, &target, &ExtractOptions::new(), &mut |event| {
        if let crate::ExtractEvent::Leftover(path) = event {
            reported.push(path);
        }
    })
    .unwrap();
    assert_eq!(reported, std::slice::from_ref(&leftover));
    assert_eq!(fs::read_dir(leftover).unwrap().count(), 0);
    assert!(target.join("d0/inner/own").metadata().unwrap().nlink() == 3);
}
