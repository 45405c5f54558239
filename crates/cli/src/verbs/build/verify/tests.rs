//! An image that differs from its source is message from one that does not.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;

use ferrofs_builder::import::{DirectoryOptions, from_directory};
use ferrofs_builder::tree::{Metadata, NodeId};
use ferrofs_builder::{BuildOptions, NoopObserver};
use tempfile::TempDir;

use super::*;
use crate::arguments::MachineArguments;

/// A directory with something of every kind, and the image of it.
struct Fixture {
    folder: TempDir,
    resources: Resources,
}

impl Fixture {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let source = folder.path().join("tree");
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("a/b/small"), b"some bytes").unwrap();
        fs::write(source.join("a.b"), vec![7; 5000]).unwrap();
        fs::write(source.join("large"), vec![1; 5 << 20]).unwrap();
        fs::File::create(source.join("hole")).unwrap().set_len(6 << 20).unwrap();
        fs::hard_link(source.join("a.b"), source.join("linked")).unwrap();
        symlink("elsewhere", source.join("link")).unwrap();
        fs::set_permissions(source.join("a.b"), fs::Permissions::from_mode(0o640)).unwrap();
        let this = Self {
            folder,
            resources: Resources::of_machine(&MachineArguments::default()).unwrap(),
        };
        ferrofs_builder::build(
            &this.tree(),
            &BuildOptions::default(),
            &this.image(),
            &NoopObserver,
        )
        .unwrap();
        this
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn tree(&self) -> Tree {
        from_directory(
            &self.folder.path().join("tree"),
            &DirectoryOptions::default(),
            &NoopObserver,
        )
        .unwrap()
    }

    /// Compares the image with `tree`.
    fn verify(&self, tree: &Tree) -> Result<VerifyCounters, String> {
        let verifier =
            ImageVerifier { tree, offset: 0, devices: Some(&[]), resources: &self.resources };
        let (image, blob) = (self.image(), None);
        let verified =
            verifier.verify(UnpublishedImage { image: &image, blob }, &|| false, &mut |_| ());
        verified.map_err(|difference| difference.to_string())
    }

    /// What is message if the source had been another one.
    fn message(&self, change: impl FnOnce(&mut Tree)) -> String {
        let mut tree = self.tree();
        change(&mut tree);
        self.verify(&tree).unwrap_err()
    }
}

fn find(tree: &Tree, path: &[u8]) -> NodeId {
    let mut found = None;
    let walked: Result<(), ()> = tree.walk(|at, id| {
        if at == path {
            found = Some(id);
        }
        Ok(())
    });
    walked.unwrap();
    found.unwrap()
}

fn metadata<'t>(tree: &'t mut Tree, path: &[u8]) -> &'t mut Metadata {
    let id = find(tree, path);
    &mut tree.node_mut(id).metadata
}

#[test]
fn an_image_of_its_source_is_accepted() {
    let fixture = Fixture::new();
    let counters = fixture.verify(&fixture.tree()).unwrap();
    // The root, a, b, small, a.b, large, hole, link; a hard link is no inode.
    assert_eq!(counters, VerifyCounters { inodes: 8, bytes: 10 + 5000 + (5 << 20) + (6 << 20) });
}

#[test]
fn metadata_that_differs_is_named() {
    let fixture = Fixture::new();
    let message = |path: &'static [u8], change: fn(&mut Metadata)| {
        fixture.message(|tree| change(metadata(tree, path)))
    };
    let mode = message(b"a.b", |metadata| metadata.permissions = 0o644);
    assert_eq!(mode, "a.b: the mode is 0640 in the image and 0644 in the source");
    assert!(message(b"a/b", |metadata| metadata.uid += 1).starts_with("a/b: the owner is "));
    assert!(message(b"link", |metadata| metadata.gid += 1).starts_with("link: the group is "));
    let time = message(b"a/b/small", |metadata| metadata.mtime.nanoseconds ^= 1);
    assert!(time.starts_with("a/b/small: the time is "), "{time}");
    let xattr = message(b"hole", |metadata| {
        metadata.xattrs.insert(b"user.x".as_slice().into(), b"y".as_slice().into());
    });
    assert_eq!(xattr, "hole: its extended attribute user.x is another");
    let root = message(b"", |metadata| metadata.permissions ^= 0o001);
    assert!(root.starts_with("the mode is "), "{root}");
}

#[test]
fn names_types_and_links_that_differ_are_named() {
    let fixture = Fixture::new();
    let missing = fixture.message(|tree| {
        let metadata = tree.node(Tree::ROOT).metadata.clone();
        let added = tree.add(Node { metadata, kind: NodeKind::Fifo }).unwrap();
        let inside = find(tree, b"a");
        tree.link(inside, b"c", added).unwrap();
    });
    assert!(missing.starts_with("a/c: it is not in the image"), "{missing}");
    let unexpected = fixture.message(|tree| {
        let NodeKind::Directory(entries) = &mut tree.node_mut(Tree::ROOT).kind else { panic!() };
        entries.remove(b"hole".as_slice());
    });
    assert!(unexpected.starts_with("hole: it is in the image"), "{unexpected}");
    let kind = fixture.message(|tree| {
        let link = find(tree, b"link");
        tree.node_mut(link).kind = NodeKind::Fifo;
    });
    assert!(kind.starts_with("link: the type is symlink"), "{kind}");
    let target = fixture.message(|tree| {
        let link = find(tree, b"link");
        tree.node_mut(link).kind = NodeKind::Symlink(b"elsewherf".as_slice().into());
    });
    assert_eq!(target, "link: it leads elsewhere in the image");
    let separate = fixture.message(|tree| {
        let linked = find(tree, b"linked");
        let content = tree.node(linked).content().unwrap().clone();
        let node =
            Node { metadata: tree.node(linked).metadata.clone(), kind: NodeKind::File(content) };
        let copy = tree.add(node).unwrap();
        tree.link(Tree::ROOT, b"linked", copy).unwrap();
    });
    assert!(separate.contains("the link count is 2 in the image and 1"), "{separate}");
}

#[test]
fn a_byte_that_differs_is_named_with_its_place() {
    let fixture = Fixture::new();
    for (path, offset) in
        [("large", 3 << 20), ("hole", (6 << 20) - 1), ("a.b", 4095), ("a/b/small", 9)]
    {
        let source = fixture.folder.path().join("tree").join(path);
        let times = fs::metadata(&source).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
        let mut before = [0];
        fs::File::open(&source).unwrap().read_exact_at(&mut before, offset).unwrap();
        file.write_all_at(&[before[0] ^ 0x55], offset).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
        let message = fixture.verify(&fixture.tree()).unwrap_err();
        assert_eq!(
            message,
            format!("{path}: byte {offset}: the image has other bytes than the source")
        );
        file.write_all_at(&before, offset).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
    }
    fixture.verify(&fixture.tree()).unwrap();
}

#[test]
fn damage_of_the_image_is_named() {
    let fixture = Fixture::new();
    let image = fs::read(fixture.image()).unwrap();
    fs::write(fixture.image(), &image[..image.len() - 4096]).unwrap();
    assert!(!fixture.verify(&fixture.tree()).unwrap_err().is_empty());
    fs::write(fixture.image(), vec![0; image.len()]).unwrap();
    let message = fixture.verify(&fixture.tree()).unwrap_err();
    assert!(message.starts_with("the image cannot be opened: "), "{message}");
}

#[test]
fn whoever_wants_an_end_gets_it() {
    let fixture = Fixture::new();
    let tree = fixture.tree();
    let (devices, resources) = (Some(&[][..]), &fixture.resources);
    let verifier = ImageVerifier { tree: &tree, offset: 0, devices, resources };
    let place = UnpublishedImage { image: &fixture.image(), blob: None };
    let ended = verifier.verify(place, &|| true, &mut |_| ());
    assert_eq!(ended.unwrap_err().to_string(), "stopped");
}
