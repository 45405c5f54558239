//! What cannot be read, and what changes while the walk is under way.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn leave_out() -> DirectoryOptions {
    DirectoryOptions { unreadable: Unreadable::LeaveOut, ..Default::default() }
}

#[test]
fn a_symlink_in_place_of_a_listed_directory_is_not_followed() {
    let bed = Bed::new();
    bed.write("dir/file", b"1");
    bed.write("other", b"2");
    std::fs::create_dir(bed.folder.path().join("secret")).unwrap();
    std::fs::write(bed.folder.path().join("secret/key"), b"3").unwrap();
    let swap = || {
        if bed.at("dir").is_symlink() {
            return false;
        }
        std::fs::rename(bed.at("dir"), bed.folder.path().join("moved")).unwrap();
        symlink("../secret", bed.at("dir")).unwrap();
        false
    };
    let watch = Meddler::new(swap);
    let error = from_directory(&bed.at(""), &DirectoryOptions::default(), &watch).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
    assert_eq!(error.path(), bed.at("dir"));
    std::fs::remove_file(bed.at("dir")).unwrap();
    std::fs::rename(bed.folder.path().join("moved"), bed.at("dir")).unwrap();
    let tree = from_directory(&bed.at(""), &leave_out(), &watch).unwrap();
    assert_eq!(paths(&tree), [b"other"]);
    assert_eq!(watch.warnings().len(), 1);
    assert!(watch.warnings()[0].contains("was a directory"), "{:?}", watch.warnings());
}

#[test]
fn a_directory_that_vanishes_is_an_error_or_a_warning() {
    let bed = Bed::new();
    bed.write("file", b"1");
    for options in [DirectoryOptions::default(), leave_out()] {
        std::fs::create_dir_all(bed.at("dir")).unwrap();
        let watch = Meddler::new(|| {
            std::fs::remove_dir(bed.at("dir")).unwrap();
            false
        });
        let result = from_directory(&bed.at(""), &options, &watch);
        let message = format!(
            "{}: changed while it was read: it was listed and is gone",
            bed.at("dir").display()
        );
        match options.unreadable {
            Unreadable::Fail => assert_eq!(result.unwrap_err().to_string(), message),
            Unreadable::LeaveOut => {
                assert_eq!(paths(&result.unwrap()), [b"file"]);
                assert_eq!(watch.warnings(), [message]);
            }
        }
    }
}

#[test]
fn a_walk_that_is_asked_to_stop_stops() {
    let bed = Bed::new();
    bed.write("dir/file", b"1");
    let watch = Meddler::new(|| true);
    let error = from_directory(&bed.at(""), &leave_out(), &watch).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stopped), "{error}");
}

#[test]
fn a_file_that_changes_after_the_import_is_told_when_it_is_read() {
    let bed = Bed::new();
    bed.write("dir/file", b"0123456789");
    let tree = bed.tree();
    let store = node(&tree, "dir/file").content().unwrap().store();
    bed.write("dir/file", b"0123");
    let error = store.open().map(drop).unwrap_err();
    assert_eq!(error.path(), bed.at("dir/file"));
    assert!(error.to_string().ends_with("its size was 10 bytes and is 4"), "{error}");
}

#[test]
fn a_directory_that_may_not_be_listed_is_an_error_or_a_warning() {
    let bed = Bed::new();
    bed.write("file", b"1");
    bed.write("shut/file", b"1");
    std::fs::set_permissions(bed.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read_dir(bed.at("shut")).is_ok() {
        println!("skipped: root lists everything");
        return;
    }
    let error = bed.import(&DirectoryOptions::default()).unwrap_err();
    assert_eq!(error.path(), bed.at("shut"));
    assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{error}");
    let watch = Meddler::new(|| false);
    let tree = from_directory(&bed.at(""), &leave_out(), &watch).unwrap();
    assert_eq!(paths(&tree), [b"file"]);
    assert_eq!(watch.warnings().len(), 1);
    std::fs::set_permissions(bed.at("shut"), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_file_that_may_not_be_read_is_an_error_or_a_warning() {
    let bed = Bed::new();
    bed.write("file", b"1");
    bed.write("shut", b"1");
    std::fs::set_permissions(bed.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read(bed.at("shut")).is_ok() {
        println!("skipped: root reads everything");
        return;
    }
    let tree = bed.tree();
    let error = node(&tree, "shut").content().unwrap().store().open().map(drop).unwrap_err();
    assert_eq!(error.path(), bed.at("shut"));
    let watch = Meddler::new(|| false);
    let tree = from_directory(&bed.at(""), &leave_out(), &watch).unwrap();
    assert_eq!(paths(&tree), [b"file"]);
    assert_eq!(watch.warnings().len(), 1);
}

/// `sysfs` has files that not even root may read.
#[test]
fn a_file_that_nobody_may_read_is_an_error_or_a_warning() {
    let folder = Path::new("/sys/bus/platform");
    if !folder.join("drivers_probe").exists() {
        println!("skipped: no {}", folder.display());
        return;
    }
    let tree = from_directory(folder, &DirectoryOptions::default(), &NoWatch).unwrap();
    let store = node(&tree, "drivers_probe").content().unwrap().store();
    let error = store.open().map(drop).unwrap_err();
    assert_eq!(error.path(), folder.join("drivers_probe"));
    assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{error}");
    let watch = Meddler::new(|| false);
    let tree = from_directory(folder, &leave_out(), &watch).unwrap();
    assert_eq!(tree.child(Tree::ROOT, b"drivers_probe"), None);
    assert!(tree.child(Tree::ROOT, b"drivers").is_some());
    assert!(watch.warnings().iter().any(|one| one.contains("drivers_probe: cannot open")));
}
