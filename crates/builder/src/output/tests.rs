//! Names that change between the steps of a build: every test puts something in the way by hand,
//! where another process could.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const ALL: [ExistingOutput; 3] =
    [ExistingOutput::Refuse, ExistingOutput::Replace, ExistingOutput::Rewrite];

fn names(directory: &TempDir) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(name).collect();
    names.sort();
    names
}

fn written(target: OutputTarget) -> NewFile {
    let new = target.create().unwrap();
    let mut file = new.file();
    file.write_all(b"new").unwrap();
    new
}

/// As on a file system that cannot make files without names.
fn written_under_a_temporary_name(target: OutputTarget) -> NewFile {
    let OutputPlace::Name(name) = target.place else { panic!("in place") };
    let new = NewFile::create_named(name, target.path).unwrap();
    let mut file = new.file();
    file.write_all(b"new").unwrap();
    new
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_link_made_during_the_build_is_not_followed_and_not_replaced() {
    for existing in [ExistingOutput::Refuse, ExistingOutput::Rewrite] {
        for write in [written, written_under_a_temporary_name] {
            let directory = TempDir::new().unwrap();
            let (victim, path) = (directory.path().join("victim"), directory.path().join("image"));
            fs::write(&victim, "precious").unwrap();
            let target = OutputTarget::open(&path, existing).unwrap();
            symlink(&victim, &path).unwrap();
            let mut new = write(target);
            let error = new.publish().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Exists), "{error}");
            assert_eq!(error.path(), path);
            drop(new);
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
            assert_eq!(names(&directory), ["image", "victim"]);
        }
    }
}

#[test]
fn a_link_made_during_a_forced_build_is_replaced_and_not_followed() {
    for write in [written, written_under_a_temporary_name] {
        let directory = TempDir::new().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("image"));
        fs::write(&victim, "precious").unwrap();
        let target = OutputTarget::open(&path, ExistingOutput::Replace).unwrap();
        symlink(&victim, &path).unwrap();
        write(target).publish().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(&directory), ["image", "victim"]);
    }
}

#[test]
fn a_directory_swapped_during_the_build_changes_nothing() {
    for existing in ALL {
        let directory = TempDir::new().unwrap();
        let [real, moved, other] = ["real", "moved", "other"].map(|it| directory.path().join(it));
        fs::create_dir(&real).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("image"), "precious").unwrap();
        let target = OutputTarget::open(&real.join("image"), existing).unwrap();
        fs::rename(&real, &moved).unwrap();
        symlink(&other, &real).unwrap();
        written(target).publish().unwrap();
        assert_eq!(fs::read(moved.join("image")).unwrap(), b"new");
        assert_eq!(fs::read(other.join("image")).unwrap(), b"precious");
    }
}

#[test]
fn a_file_in_place_that_was_swapped_is_not_the_one_that_is_written() {
    let directory = TempDir::new().unwrap();
    let [path, moved, victim] = ["image", "moved", "victim"].map(|it| directory.path().join(it));
    fs::write(&victim, "precious").unwrap();
    fs::write(&path, "former").unwrap();
    let target = OutputTarget::open(&path, ExistingOutput::Rewrite).unwrap();
    fs::rename(&path, &moved).unwrap();
    symlink(&victim, &path).unwrap();
    target.begin().unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(fs::read(&moved).unwrap(), b"");
}

/// Of the entries of other users in a directory that all share, only those of its owner are used.
#[test]
fn entries_of_other_users_in_a_shared_directory_are_foreign() {
    let folder = TempDir::new().unwrap();
    let caller = rustix::process::geteuid().as_raw();
    let stat = rustix::fs::stat(folder.path()).unwrap();
    let shared = |mode, owner| {
        let mut directory = stat;
        (directory.st_mode, directory.st_uid) = (mode, owner);
        directory
    };
    let entry = |owner| shared(0o100_644, owner);
    assert!(is_foreign(&shared(0o041_777, caller), &entry(caller + 1)));
    assert!(is_foreign(&shared(0o041_777, caller + 2), &entry(caller + 1)));
    assert!(!is_foreign(&shared(0o041_777, caller + 1), &entry(caller + 1)));
    assert!(!is_foreign(&shared(0o041_777, caller + 1), &entry(caller)));
    assert!(!is_foreign(&shared(0o040_777, caller), &entry(caller + 1)));
    assert!(!is_foreign(&shared(0o041_775, caller), &entry(caller + 1)));
}

#[test]
fn an_output_that_exists_is_refused_whatever_it_is() {
    let directory = TempDir::new().unwrap();
    let path = |name| directory.path().join(name);
    fs::write(path("file"), "former").unwrap();
    symlink(path("file"), path("link")).unwrap();
    symlink(path("nothing"), path("dangling")).unwrap();
    for name in ["file", "link", "dangling"] {
        let error = OutputTarget::open(&path(name), ExistingOutput::Refuse).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Exists), "{name}: {error}");
    }
}

#[test]
fn links_are_followed_one_after_the_other_from_their_own_directories() {
    let directory = TempDir::new().unwrap();
    let path = |name| directory.path().join(name);
    fs::create_dir(path("d")).unwrap();
    symlink("d/second", path("first")).unwrap();
    symlink("../real", path("d/second")).unwrap();
    for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
        written(OutputTarget::open(&path("first"), existing).unwrap()).publish().unwrap();
        assert_eq!(fs::read(path("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(path("first")).unwrap().is_symlink());
        fs::remove_file(path("real")).unwrap();
    }
    symlink("loop", path("loop")).unwrap();
    let error = OutputTarget::open(&path("loop"), ExistingOutput::Replace).unwrap_err();
    assert!(error.to_string().contains("cannot follow the symlinks"), "{error}");
}

#[test]
fn a_file_that_is_replaced_passes_on_its_mode_and_its_other_names_stay() {
    for write in [written, written_under_a_temporary_name] {
        let directory = TempDir::new().unwrap();
        let [path, other] = ["image", "other"].map(|it| directory.path().join(it));
        fs::write(&path, "former").unwrap();
        fs::hard_link(&path, &other).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4610)).unwrap();
        let mut new = write(OutputTarget::open(&path, ExistingOutput::Replace).unwrap());
        assert_eq!(new.file().metadata().unwrap().permissions().mode() & 0o7777, 0o610);
        new.publish().unwrap();
        assert_eq!(mode_of(&path), 0o610);
        assert_eq!(fs::read(&other).unwrap(), b"former");
    }
}

#[test]
fn a_file_that_is_rewritten_is_emptied_and_stays_the_same() {
    let directory = TempDir::new().unwrap();
    let [path, other] = ["image", "other"].map(|it| directory.path().join(it));
    fs::write(&path, "former").unwrap();
    fs::hard_link(&path, &other).unwrap();
    let target = OutputTarget::open(&path, ExistingOutput::Rewrite).unwrap();
    assert!(target.is_in_place() && !target.is_block_device() && target.is_file(&other));
    assert_eq!(fs::read(&path).unwrap(), b"former");
    target.begin().unwrap();
    assert_eq!(fs::metadata(&other).unwrap().len(), 0);
    assert_eq!(fs::metadata(&path).unwrap().ino(), fs::metadata(&other).unwrap().ino());
}

#[test]
fn outputs_have_the_same_place_by_their_name_or_by_their_file() {
    let directory = TempDir::new().unwrap();
    let path = |name| directory.path().join(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("file"), "").unwrap();
    fs::hard_link(path("file"), path("other")).unwrap();
    symlink("file", path("link")).unwrap();
    symlink("d", path("e")).unwrap();
    for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
        let open = |name| OutputTarget::open(&path(name), existing).unwrap();
        for (one, other, is_same) in [
            ("new", "new", true),
            ("new", "d/../new", true),
            ("d/new", "e/new", true),
            ("new", "d/new", false),
            ("new", "file", false),
            ("new", "newer", false),
            ("file", "link", true),
            ("file", "other", true),
        ] {
            assert_eq!(open(one).is_same_place(&open(other)), is_same, "{one} {other}");
        }
    }
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let directory = TempDir::new().unwrap();
    let path = |name| directory.path().join(name);
    let fifo = path("fifo");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
        for path in [fifo.clone(), directory.path().to_owned(), "/dev/null".into(), "/".into()] {
            let error = OutputTarget::open(&path, existing).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{error}");
        }
    }
}

#[test]
fn a_log_is_appended_to_and_neither_a_link_nor_a_fifo() {
    let directory = TempDir::new().unwrap();
    let [log, link, fifo] = ["log", "link", "fifo"].map(|it| directory.path().join(it));
    for line in ["one\n", "two\n"] {
        open_log(&log).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert_eq!(fs::read(&log).unwrap(), b"one\ntwo\n");
    symlink(&log, &link).unwrap();
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (path, part) in [(&link, "is a symlink"), (&fifo, "a FIFO")] {
        let error = open_log(path).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.path(), path);
    }
    // With a reader the FIFO could be opened.
    let reader = OFlags::RDONLY | OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&fifo, reader, Mode::empty()).unwrap();
    let error = open_log(&fifo).unwrap_err();
    assert!(error.to_string().contains("neither a file"), "{error}");
}
