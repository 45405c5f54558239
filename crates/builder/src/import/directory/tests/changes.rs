//! What cannot be read, and what changes while the walk is under way.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn leave_out() -> DirectoryOptions {
    DirectoryOptions { unreadable: UnreadablePolicy::LeaveOut, ..Default::default() }
}

#[test]
fn a_symlink_in_place_of_a_listed_directory_is_not_followed() {
    let fixture = SourceFixture::new();
    fixture.write("dir/file", b"1");
    fixture.write("other", b"2");
    std::fs::create_dir(fixture.folder.path().join("secret")).unwrap();
    std::fs::write(fixture.folder.path().join("secret/key"), b"3").unwrap();
    let swap = || {
        if fixture.at("dir").is_symlink() {
            return;
        }
        std::fs::rename(fixture.at("dir"), fixture.folder.path().join("moved")).unwrap();
        symlink("../secret", fixture.at("dir")).unwrap();
    };
    let observer = InterferingObserver::new(swap);
    let error = from_directory(
        &fixture.at(""),
        &DirectoryOptions::default(),
        &observer,
        &CancelToken::new(),
    )
    .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
    assert_eq!(error.path(), fixture.at("dir"));
    std::fs::remove_file(fixture.at("dir")).unwrap();
    std::fs::rename(fixture.folder.path().join("moved"), fixture.at("dir")).unwrap();
    let tree =
        from_directory(&fixture.at(""), &leave_out(), &observer, &CancelToken::new()).unwrap();
    assert_eq!(paths(&tree), [b"other"]);
    assert_eq!(observer.warnings().len(), 1);
    assert!(observer.warnings()[0].contains("was a directory"), "{:?}", observer.warnings());
}

#[test]
fn a_directory_that_vanishes_is_an_error_or_a_warning() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    for options in [DirectoryOptions::default(), leave_out()] {
        std::fs::create_dir_all(fixture.at("dir")).unwrap();
        let observer = InterferingObserver::new(|| {
            std::fs::remove_dir(fixture.at("dir")).unwrap();
        });
        let result = from_directory(&fixture.at(""), &options, &observer, &CancelToken::new());
        let message = format!(
            "{}: changed while it was read: it was listed and is gone",
            fixture.at("dir").display()
        );
        match options.unreadable {
            UnreadablePolicy::Fail => assert_eq!(result.unwrap_err().to_string(), message),
            UnreadablePolicy::LeaveOut => {
                assert_eq!(paths(&result.unwrap()), [b"file"]);
                assert_eq!(observer.warnings(), [message]);
            }
        }
    }
}

#[test]
fn a_cancelled_walk_stops() {
    let fixture = SourceFixture::new();
    fixture.write("dir/file", b"1");
    let cancel = CancelToken::new();
    let observer = InterferingObserver::new(|| cancel.cancel());
    let error = from_directory(&fixture.at(""), &leave_out(), &observer, &cancel).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
}

#[test]
fn a_file_that_changes_after_the_import_is_told_when_it_is_read() {
    let fixture = SourceFixture::new();
    fixture.write("dir/file", b"0123456789");
    let tree = fixture.tree();
    let store = node(&tree, "dir/file").content().unwrap().source();
    fixture.write("dir/file", b"0123");
    let error = store.open().map(drop).unwrap_err();
    assert_eq!(error.path(), fixture.at("dir/file"));
    assert!(error.to_string().ends_with("its size was 10 bytes and is 4"), "{error}");
}

#[test]
fn a_directory_that_may_not_be_listed_is_an_error_or_a_warning() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    fixture.write("shut/file", b"1");
    std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read_dir(fixture.at("shut")).is_ok() {
        println!("skipped: root lists everything");
        return;
    }
    let error = fixture.import(&DirectoryOptions::default()).unwrap_err();
    assert_eq!(error.path(), fixture.at("shut"));
    assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{error}");
    let observer = InterferingObserver::new(|| ());
    let tree =
        from_directory(&fixture.at(""), &leave_out(), &observer, &CancelToken::new()).unwrap();
    assert_eq!(paths(&tree), [b"file"]);
    assert_eq!(observer.warnings().len(), 1);
    std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_file_that_may_not_be_read_is_an_error_or_a_warning() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    fixture.write("shut", b"1");
    std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read(fixture.at("shut")).is_ok() {
        println!("skipped: root reads everything");
        return;
    }
    let tree = fixture.tree();
    let error = node(&tree, "shut").content().unwrap().source().open().map(drop).unwrap_err();
    assert_eq!(error.path(), fixture.at("shut"));
    let observer = InterferingObserver::new(|| ());
    let tree =
        from_directory(&fixture.at(""), &leave_out(), &observer, &CancelToken::new()).unwrap();
    assert_eq!(paths(&tree), [b"file"]);
    assert_eq!(observer.warnings().len(), 1);
}

/// `sysfs` has files that not even root may read.
#[test]
fn a_file_that_nobody_may_read_is_an_error_or_a_warning() {
    let folder = Path::new("/sys/bus/platform");
    if !folder.join("drivers_probe").exists() {
        println!("skipped: no {}", folder.display());
        return;
    }
    let tree =
        from_directory(folder, &DirectoryOptions::default(), &NoopObserver, &CancelToken::new())
            .unwrap();
    let store = node(&tree, "drivers_probe").content().unwrap().source();
    let error = store.open().map(drop).unwrap_err();
    assert_eq!(error.path(), folder.join("drivers_probe"));
    assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{error}");
    let observer = InterferingObserver::new(|| ());
    let tree = from_directory(folder, &leave_out(), &observer, &CancelToken::new()).unwrap();
    assert_eq!(tree.child(Tree::ROOT, b"drivers_probe"), None);
    assert!(tree.child(Tree::ROOT, b"drivers").is_some());
    assert!(observer.warnings().iter().any(|one| one.contains("drivers_probe: cannot open")));
}
