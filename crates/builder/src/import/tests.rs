//! Imports of real directories.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::fs::{CWD, Timespec, Timestamps, XattrFlags};
use tempfile::TempDir;

use super::*;
use crate::NoopObserver;
use crate::import::adjust::{ORIGIN_XATTR, OverlayPolicy, OwnerOverrides};

/// Reports that the present test is skipped: on standard error, and in the file that
/// `FERROFS_SKIPPED` names.
pub(super) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, line.as_bytes()).unwrap();
    }
}

/// A folder to import.
struct SourceFixture {
    folder: TempDir,
}

impl SourceFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("source")).unwrap();
        Self { folder }
    }

    /// The path of `name` in the folder.
    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    fn write(&self, name: impl AsRef<Path>, content: &[u8]) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Makes a file of that type; `false` if the user may not.
    fn make(&self, name: &str, file_type: FileType, device: (u32, u32)) -> bool {
        let device = rustix::fs::makedev(device.0, device.1);
        let mode = Mode::from_raw_mode(0o640);
        match rustix::fs::mknodat(CWD, self.at(name), file_type, mode, device) {
            Ok(()) => true,
            Err(Errno::PERM) => false,
            Err(errno) => panic!("{name}: {errno}"),
        }
    }

    fn import(&self, options: &DirectoryOptions) -> Result<Tree> {
        from_directory(&self.at(""), options, &NoopObserver, &CancelToken::new())
    }

    fn tree(&self) -> Tree {
        self.import(&DirectoryOptions::default()).unwrap()
    }
}

/// All paths of a tree in its order.
fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    let paths = RefCell::new(Vec::new());
    tree.walk(|path, _| {
        paths.borrow_mut().push(path.to_vec());
        Ok::<(), Error>(())
    })
    .unwrap();
    paths.into_inner().split_off(1)
}

fn node(tree: &Tree, path: &str) -> Node {
    tree.node(node_id(tree, path))
}

fn node_id(tree: &Tree, path: &str) -> NodeId {
    let mut id = Tree::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        id = tree.child(id, name.as_bytes()).unwrap_or_else(|| panic!("{path}"));
    }
    id
}

fn read(node: &Node) -> Vec<u8> {
    let content = node.content().unwrap();
    let mut buffer = vec![0; usize::try_from(content.bytes()).unwrap()];
    let mut reader = content.source().open().unwrap();
    reader.read_exact_at(0, &mut buffer).unwrap();
    reader.check_unchanged().unwrap();
    buffer
}

/// Collects warnings, and does something each time when the walk is about to read a directory.
struct InterferingObserver<F> {
    action: Mutex<F>,
    warnings: Mutex<Vec<String>>,
}

impl<F: FnMut() + Send> InterferingObserver<F> {
    fn new(action: F) -> Self {
        Self { action: Mutex::new(action), warnings: Mutex::new(Vec::new()) }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap().clone()
    }
}

impl<F: FnMut() + Send> BuildObserver for InterferingObserver<F> {
    fn entry_found(&self, is_directory: bool) {
        if is_directory {
            (self.action.lock().unwrap())();
        }
    }

    fn warn(&self, warning: Error) {
        self.warnings.lock().unwrap().push(warning.to_string());
    }
}

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
            "{}: changed while it was read: it was deleted after it was listed",
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

/// Counts entries, and cancels at one of them.
struct CancelsAt {
    entry: usize,
    seen: Mutex<usize>,
    cancel: CancelToken,
}

impl BuildObserver for CancelsAt {
    fn entry_found(&self, _is_directory: bool) {
        let mut seen = self.seen.lock().unwrap();
        *seen += 1;
        if *seen == self.entry {
            self.cancel.cancel();
        }
    }
}

#[test]
fn files_are_told_as_directories_are_and_can_cancel_the_walk() {
    let fixture = SourceFixture::new();
    for number in 0..20 {
        fixture.write(format!("dir/{number}"), b"1");
    }
    for (entry, told) in [(usize::MAX, 21), (7, 7)] {
        let observer = CancelsAt { entry, seen: Mutex::new(0), cancel: CancelToken::new() };
        let options = DirectoryOptions::default();
        let walked = from_directory(&fixture.at(""), &options, &observer, &observer.cancel);
        assert_eq!((*observer.seen.lock().unwrap(), walked.is_ok()), (told, told == 21));
    }
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
    assert!(error.to_string().ends_with("its size was 10 bytes and is now 4"), "{error}");
}

#[test]
fn a_directory_that_may_not_be_listed_is_an_error_or_a_warning() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    fixture.write("shut/file", b"1");
    std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read_dir(fixture.at("shut")).is_ok() {
        skip("root lists everything");
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
        skip("root reads everything");
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

/// Root reads everything, so only other users see the difference.
#[test]
fn an_empty_file_that_may_not_be_read_is_compared_with_its_state() {
    let fixture = SourceFixture::new();
    fixture.write("shut", b"");
    std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o000)).unwrap();
    let tree = fixture.tree();
    let source = node(&tree, "shut").content().unwrap().source();
    source.open().map(drop).unwrap();
    // The time of its last change differs a tick of the host's clock later.
    let started_at = std::time::Instant::now();
    let error = loop {
        assert!(started_at.elapsed().as_secs() < 10, "a changed file is not noticed");
        std::fs::set_permissions(fixture.at("shut"), PermissionsExt::from_mode(0o600)).unwrap();
        if let Err(error) = source.open() {
            break error;
        }
    };
    assert_eq!(error.path(), fixture.at("shut"));
}

/// `sysfs` has files that not even root may read.
#[test]
fn a_file_that_nobody_may_read_is_an_error_or_a_warning() {
    let folder = Path::new("/sys/bus/platform");
    if !folder.join("drivers_probe").exists() {
        skip(&format!("no {}", folder.display()));
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

#[test]
fn files_directories_and_symlinks_come_with_their_content() {
    let fixture = SourceFixture::new();
    fixture.write("b/c/file", b"content");
    fixture.write("a", b"");
    symlink("b/c", fixture.at("link")).unwrap();
    symlink("nowhere", fixture.at("dangling")).unwrap();
    let tree = fixture.tree();
    let expected: [&[u8]; 6] = [b"a", b"b", b"b/c", b"b/c/file", b"dangling", b"link"];
    assert_eq!(paths(&tree), expected);
    assert_eq!(read(&node(&tree, "b/c/file")), b"content");
    assert_eq!(read(&node(&tree, "a")), b"");
    let NodeKind::Symlink(target) = &node(&tree, "link").kind else { panic!() };
    assert_eq!(&**target, b"b/c");
    assert_eq!(tree.len(), 7);
}

#[test]
fn an_empty_directory_is_a_tree_of_its_root() {
    let fixture = SourceFixture::new();
    std::fs::set_permissions(fixture.at(""), PermissionsExt::from_mode(0o2751)).unwrap();
    let tree = fixture.tree();
    assert_eq!(tree.len(), 1);
    assert_eq!(tree.node(Tree::ROOT).metadata.permissions, 0o2751);
}

#[test]
fn a_symlink_to_the_source_is_followed() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    let link = fixture.folder.path().join("link");
    symlink("source", &link).unwrap();
    let tree =
        from_directory(&link, &DirectoryOptions::default(), &NoopObserver, &CancelToken::new())
            .unwrap();
    assert_eq!(read(&node(&tree, "file")), b"1");
}

#[test]
fn a_source_that_is_no_directory_is_refused_by_its_path() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    for name in ["file", "missing"] {
        let path = fixture.at(name);
        let error =
            from_directory(&path, &DirectoryOptions::default(), &NoopObserver, &CancelToken::new())
                .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{error}");
        assert_eq!(error.path(), path);
    }
}

#[test]
fn fifos_and_sockets_and_devices_keep_their_numbers() {
    let fixture = SourceFixture::new();
    assert!(fixture.make("fifo", FileType::Fifo, (0, 0)));
    assert!(fixture.make("socket", FileType::Socket, (0, 0)));
    let may_make_devices = fixture.make("char", FileType::CharacterDevice, (0xfff, 0xf_ffff))
        && fixture.make("block", FileType::BlockDevice, (8, 259));
    let tree = fixture.tree();
    assert!(matches!(node(&tree, "fifo").kind, NodeKind::Fifo));
    assert!(matches!(node(&tree, "socket").kind, NodeKind::Socket));
    if !may_make_devices {
        skip("only root makes devices");
        return;
    }
    let NodeKind::CharacterDevice { major, minor } = node(&tree, "char").kind else { panic!() };
    assert_eq!((major, minor), (0xfff, 0xf_ffff));
    let NodeKind::BlockDevice { major, minor } = node(&tree, "block").kind else { panic!() };
    assert_eq!((major, minor), (8, 259));
}

#[test]
fn names_are_any_bytes() {
    let fixture = SourceFixture::new();
    let long = [b'n'; 255];
    let names: [&[u8]; 7] = [b"\x01", b" ", b"\n", b"-", b"\xc3\xa9", b"\xff\xfe", &long];
    for name in names {
        fixture.write(OsStr::from_bytes(name), name);
    }
    let tree = fixture.tree();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(paths(&tree), sorted);
    for name in names {
        let id = tree.child(Tree::ROOT, name).unwrap();
        assert_eq!(read(&tree.node(id)), name);
    }
}

#[test]
fn inodes_are_numbered_by_name_and_not_by_the_order_of_the_listing() {
    let numbers = |names: &[&str]| {
        let fixture = SourceFixture::new();
        for name in names {
            fixture.write(name, b"1");
        }
        let tree = fixture.tree();
        let mut numbers = Vec::new();
        tree.walk(|path, id| {
            numbers.push((path.to_vec(), id.index()));
            Ok::<(), Error>(())
        })
        .unwrap();
        numbers
    };
    let names = ["z", "a", "d/2", "d/1", "e/f/g", "m", "b", "c/x"];
    let reversed: Vec<_> = names.iter().rev().copied().collect();
    assert_eq!(numbers(&names), numbers(&reversed));
}

#[test]
fn permissions_and_times_are_kept_to_the_bit_and_the_nanosecond() {
    let fixture = SourceFixture::new();
    for (name, permissions, seconds, nanoseconds) in [
        ("old", 0o4711, -2_147_483_648, 1),
        ("before", 0o1777, -1, 999_999_999),
        ("epoch", 0o000, 0, 0),
        ("far", 0o2640, 8_589_934_592, 123_456_789),
    ] {
        fixture.write(name, b"1");
        std::fs::set_permissions(fixture.at(name), PermissionsExt::from_mode(permissions)).unwrap();
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, fixture.at(name), &times, AtFlags::empty()).unwrap();
        let tree = fixture.tree();
        let found = &node(&tree, name).metadata;
        // What the file system stored: not all keep such times.
        let stored =
            rustix::fs::statx(CWD, fixture.at(name), AtFlags::empty(), StatxFlags::BASIC_STATS)
                .unwrap();
        assert_eq!(u32::from(found.permissions), permissions);
        assert_eq!(found.mtime.seconds, stored.stx_mtime.tv_sec);
        assert_eq!(found.mtime.nanoseconds, stored.stx_mtime.tv_nsec);
        if stored.stx_mtime.tv_sec != seconds {
            skip(&format!("the file system does not keep the time {seconds}"));
        }
    }
}

#[test]
fn owners_are_kept_by_root() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    symlink("file", fixture.at("link")).unwrap();
    let uid = rustix::fs::Uid::from_raw(4_294_967_294);
    let gid = rustix::fs::Gid::from_raw(65_536);
    for name in ["file", "link"] {
        let changed = rustix::fs::chownat(
            CWD,
            fixture.at(name),
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        if changed.is_err() {
            skip("only root gives files away");
            return;
        }
    }
    let tree = fixture.tree();
    for name in ["file", "link"] {
        let found = &node(&tree, name).metadata;
        assert_eq!((found.uid, found.gid), (4_294_967_294, 65_536), "{name}");
    }
}

/// Sets an xattr; `false` if the file system or the user may not have it.
fn set_xattr(fixture: &SourceFixture, name: &str, xattr: &str, value: &[u8]) -> bool {
    match rustix::fs::lsetxattr(fixture.at(name), xattr, value, XattrFlags::empty()) {
        Ok(()) => true,
        Err(Errno::PERM | Errno::OPNOTSUPP) => false,
        Err(errno) => panic!("{name} {xattr}: {errno}"),
    }
}

#[test]
fn xattrs_of_files_and_directories_are_read_and_chosen() {
    let fixture = SourceFixture::new();
    fixture.write("dir/file", b"1");
    let long = vec![b'v'; 3000];
    for name in ["", "dir", "dir/file"] {
        if !set_xattr(&fixture, name, "user.empty", b"") {
            skip("no user xattrs here");
            return;
        }
        assert!(set_xattr(&fixture, name, "user.long", &long));
    }
    let tree = fixture.tree();
    for name in ["", "dir", "dir/file"] {
        let xattrs = &node(&tree, name).metadata.xattrs;
        assert_eq!(xattrs.get(b"user.empty".as_slice()).map(|value| value.len()), Some(0));
        assert_eq!(xattrs.get(b"user.long".as_slice()).map(|value| &**value), Some(&*long));
    }
    let chosen = |xattrs| {
        let adjustments = Adjustments { xattrs, ..Adjustments::default() };
        let tree = fixture.import(&DirectoryOptions { adjustments, ..Default::default() }).unwrap();
        node(&tree, "dir/file").metadata.xattrs.keys().cloned().collect::<Vec<_>>()
    };
    assert!(chosen(XattrFilter::None).is_empty());
    let named = XattrFilter::Named { include: Vec::new(), exclude: vec![b"user.l*".to_vec()] };
    assert_eq!(chosen(named), [Box::from(b"user.empty".as_slice())]);
}

#[test]
fn xattrs_of_symlinks_and_special_files_and_acls_and_capabilities_are_read_by_root() {
    let fixture = SourceFixture::new();
    fixture.write("file", b"1");
    std::fs::create_dir(fixture.at("dir")).unwrap();
    symlink("dir", fixture.at("link")).unwrap();
    assert!(fixture.make("fifo", FileType::Fifo, (0, 0)));
    // Version 2 of the Linux form: owner, user 5, group, mask, others.
    let acl =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x05\0\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let wanted: [(&str, &str, &[u8]); 5] = [
        ("file", "security.capability", capability),
        ("file", "system.posix_acl_access", acl),
        ("dir", "system.posix_acl_default", acl),
        ("link", "trusted.link", b"l"),
        ("fifo", "trusted.fifo", b"f"),
    ];
    for (name, xattr, value) in wanted {
        if !set_xattr(&fixture, name, xattr, value) {
            skip(&format!("{xattr} cannot be set here"));
            continue;
        }
        let tree = fixture.tree();
        let found = node(&tree, name).metadata.xattrs.get(xattr.as_bytes()).cloned();
        assert_eq!(found.as_deref(), Some(value), "{name} {xattr}");
    }
}

#[test]
fn hard_links_are_one_inode_unless_separated() {
    let fixture = SourceFixture::new();
    fixture.write("a/file", b"1");
    std::fs::create_dir(fixture.at("b")).unwrap();
    std::fs::hard_link(fixture.at("a/file"), fixture.at("b/file")).unwrap();
    symlink("x", fixture.at("a/link")).unwrap();
    std::fs::hard_link(fixture.at("a/link"), fixture.at("b/link")).unwrap();
    let tree = fixture.tree();
    assert_eq!(tree.len(), 5);
    for name in ["file", "link"] {
        let one = node_id(&tree, &format!("a/{name}"));
        assert_eq!(one, node_id(&tree, &format!("b/{name}")));
    }
    let options = DirectoryOptions { hard_links: HardLinkPolicy::Separate, ..Default::default() };
    let tree = fixture.import(&options).unwrap();
    assert_eq!(tree.len(), 7);
    assert_eq!(read(&node(&tree, "b/file")), b"1");
}

#[test]
fn excluded_paths_are_left_out_with_all_below_them() {
    let fixture = SourceFixture::new();
    for name in ["keep/a.o", "keep/b", "drop/c", "keep/drop/d", "x.o"] {
        fixture.write(name, b"1");
    }
    let exclude_patterns = ExcludePatterns::new(["drop"], [r"\.o$"]).unwrap();
    let tree =
        fixture.import(&DirectoryOptions { exclude_patterns, ..Default::default() }).unwrap();
    let expected: [&[u8]; 4] = [b"keep", b"keep/b", b"keep/drop", b"keep/drop/d"];
    assert_eq!(paths(&tree), expected);
    assert_eq!(tree.len(), 5);
}

#[test]
fn adjustments_are_applied_once() {
    let fixture = SourceFixture::new();
    fixture.write("dir/file", b"1");
    let may_make_devices = fixture.make("dir/gone", FileType::CharacterDevice, (0, 0));
    let owners = OwnerOverrides { uid_offset: 7, ..OwnerOverrides::all_root() };
    let overlay = OverlayPolicy::MarkOrigins;
    let adjustments = Adjustments { owners, overlay, ..Adjustments::default() };
    let tree = fixture.import(&DirectoryOptions { adjustments, ..Default::default() }).unwrap();
    assert_eq!(node(&tree, "dir/file").metadata.uid, 7);
    let has_origin = node(&tree, "dir").metadata.xattrs.contains_key(ORIGIN_XATTR);
    assert_eq!(has_origin, may_make_devices);
}

#[test]
fn a_tree_of_five_thousand_levels_is_walked_and_read() {
    const LEVELS: usize = 5_000;
    let fixture = SourceFixture::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut fd = rustix::fs::open(fixture.at(""), flags, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&fd, "d", Mode::from_raw_mode(0o755)).unwrap();
        fd = rustix::fs::openat(&fd, "d", flags, Mode::empty()).unwrap();
    }
    let file = rustix::fs::openat(&fd, "f", OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    let tree = fixture.tree();
    assert_eq!(tree.len(), LEVELS + 2);
    let (_, file) = tree.nodes().find(|(_, node)| node.content().is_some()).unwrap();
    assert_eq!(read(&file), b"deep");
    let name = file.content().unwrap().source().name();
    assert_eq!(name.split('/').filter(|part| *part == "d").count(), LEVELS);
    // From below: what removes temporary folders holds a descriptor for each level.
    rustix::fs::unlinkat(&fd, "f", AtFlags::empty()).unwrap();
    for _ in 0..LEVELS {
        fd = rustix::fs::openat(&fd, "..", flags, Mode::empty()).unwrap();
        rustix::fs::unlinkat(&fd, "d", AtFlags::REMOVEDIR).unwrap();
    }
}

#[test]
fn a_deep_tree_with_branches_holds_few_directories_open() {
    const LEVELS: usize = 200;
    let fixture = SourceFixture::new();
    let mut path = fixture.at("");
    for _ in 0..LEVELS {
        path.push("a");
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(path.with_file_name("b")).unwrap();
        std::fs::write(path.with_file_name("b").join("file"), b"1").unwrap();
    }
    let mut most_open = 0;
    let source = fixture.at("");
    let observer = InterferingObserver::new(|| {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let of_source = open.filter(|entry| {
            let target = std::fs::read_link(entry.as_ref().unwrap().path());
            target.is_ok_and(|target| target.starts_with(&source))
        });
        most_open = most_open.max(of_source.count());
    });
    let tree = from_directory(
        &fixture.at(""),
        &DirectoryOptions::default(),
        &observer,
        &CancelToken::new(),
    )
    .unwrap();
    assert_eq!(tree.len(), 1 + 3 * LEVELS);
    let files = tree.nodes().filter(|(_, node)| node.content().is_some());
    assert_eq!(
        files.map(|(_, node)| read(&node)).filter(|content| content == b"1").count(),
        LEVELS
    );
    drop(observer);
    assert!((60..=70).contains(&most_open), "{most_open}");
}

#[test]
fn an_entry_that_vanished_after_the_listing_is_told_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let options = DirectoryOptions::default();
    let cancel = CancelToken::new();
    let mut walk = DirectoryWalk::new(folder.path(), &options, &NoopObserver, &cancel).unwrap();
    let root = Arc::clone(&walk.root);
    let place = DirectoryPosition { node: Tree::ROOT, number: 0 };
    push_part(&mut walk.path, b"ghost");
    let error = walk.add_entry(root.fd(), place, b"ghost").map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
    assert_eq!(error.path(), folder.path().join("ghost"));
    assert_eq!(walk.tree.len(), 1);
}

#[test]
fn a_directory_that_was_replaced_is_not_opened_again_as_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dir")).unwrap();
    std::fs::create_dir(folder.path().join("other")).unwrap();
    let options = DirectoryOptions::default();
    let cancel = CancelToken::new();
    let mut walk = DirectoryWalk::new(folder.path(), &options, &NoopObserver, &cancel).unwrap();
    push_part(&mut walk.path, b"dir");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = walk.root.open_below(b"dir", flags).unwrap();
    walk.pending.append(b"\x03sub");
    walk.frames.push(WalkFrame {
        place: DirectoryPosition { node: Tree::ROOT, number: 0 },
        fingerprint: FileFingerprint::of(&open_status(fd.as_fd()).unwrap()),
        fd: None,
        path_bytes: walk.path.len(),
        pending: 0..4,
    });
    walk.closed_frames = 1;
    std::fs::rename(folder.path().join("other"), folder.path().join("dir")).unwrap();
    let error = walk.descend(b"sub").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
    assert_eq!(error.path(), folder.path().join("dir/sub"));
}
