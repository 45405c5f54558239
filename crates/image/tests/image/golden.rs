//! Every image gives exactly its manifest.

use std::collections::BTreeMap;

use ferrofs_image::{
    Error, FilePiece, FileType, Image, Inode, VerifyOptions, WalkEntry, WalkEvent,
};
use sha2::{Digest, Sha256};

use crate::manifest::{ExpectedEntry, ImageSet, decoded, hex, unhex};

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "reg",
        FileType::Directory => "dir",
        FileType::Symlink => "lnk",
        FileType::CharDevice => "chr",
        FileType::BlockDevice => "blk",
        FileType::Fifo => "fifo",
        FileType::Socket => "sock",
    }
}

/// The digest of a file that is read piece by piece.
pub(crate) fn digest(image: &Image, inode: &Inode) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let mut expected = 0;
    image.for_each_piece(inode, |piece| {
        let (offset, length) = match piece {
            FilePiece::Data { offset, bytes } => {
                hash.update(bytes);
                (offset, bytes.len() as u64)
            }
            FilePiece::Hole { offset, length } => {
                let zeros = vec![0u8; usize::try_from(length).unwrap()];
                hash.update(&zeros);
                (offset, length)
            }
        };
        assert_eq!(offset, expected, "pieces follow each other");
        assert!(length > 0, "no piece is empty");
        expected += length;
        Ok::<_, Error>(())
    })?;
    assert_eq!(expected, inode.size(), "pieces cover the file");
    Ok(hex(&hash.finalize()))
}

/// The differences between a node and its entry.
fn compare(image: &Image, node: &WalkEntry, entry: &ExpectedEntry) -> Result<Vec<String>, Error> {
    let inode = &node.inode;
    let mut found = Vec::new();
    let mut field = |name: &str, ours: String, theirs: String| {
        if ours != theirs {
            found.push(format!("{name} is {ours}, not {theirs}"));
        }
    };
    field("type", kind(inode.file_type()).into(), entry.kind.clone());
    field("mode", format!("{:04o}", inode.mode() & 0o7777), entry.mode.clone());
    field("uid", inode.uid().to_string(), entry.uid.to_string());
    field("gid", inode.gid().to_string(), entry.gid.to_string());
    field("mtime", inode.mtime().seconds.to_string(), entry.mtime.to_string());
    field("nsec", inode.mtime().nanoseconds.to_string(), entry.mtime_nsec.to_string());
    field("nlink", inode.nlink().to_string(), entry.nlink.to_string());
    field("rdev", format!("{:?}", inode.device()), format!("{:?}", entry.rdev));
    let xattrs: BTreeMap<_, _> =
        image.xattrs(inode)?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
    let expected: BTreeMap<_, _> =
        entry.xattrs.iter().map(|(name, value)| (decoded(name), unhex(value))).collect();
    for (name, value) in &expected {
        assert_eq!(image.xattr(inode, name)?.as_ref(), Some(value), "the filter lets it through");
    }
    assert_eq!(image.xattr(inode, b"user.no such attribute")?, None);
    field("xattrs", format!("{xattrs:?}"), format!("{expected:?}"));
    match inode.file_type() {
        FileType::Regular => {
            field("size", inode.size().to_string(), entry.size.unwrap().to_string());
            field("sha256", digest(image, inode)?, entry.sha256.clone().unwrap());
        }
        FileType::Symlink => {
            let target = decoded(entry.target.as_ref().unwrap());
            field("target", format!("{:?}", image.read_link(inode)?), format!("{target:?}"));
        }
        _ => {}
    }
    Ok(found)
}

/// The differences between an image and its tree.
fn differences(image: &Image, mut tree: BTreeMap<Vec<u8>, ExpectedEntry>) -> Vec<String> {
    let mut found = Vec::new();
    for visit in image.walk(b"/").unwrap() {
        let node = match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) => node,
            WalkEvent::Leave(_) => continue,
            WalkEvent::Problem(problem) => {
                let path = String::from_utf8_lossy(&problem.path).into_owned();
                found.push(format!("{path}: {}", problem.error));
                continue;
            }
        };
        let path = String::from_utf8_lossy(&node.path).into_owned();
        let Some(entry) = tree.remove(&node.path) else {
            found.push(format!("{path}: is not in the manifest"));
            continue;
        };
        let by_path = image.resolve(&node.path).unwrap().expect("what is listed is found");
        assert_eq!(by_path.nid(), node.inode.nid(), "{path}");
        match compare(image, &node, &entry) {
            Ok(fields) => found.extend(fields.into_iter().map(|field| format!("{path}: {field}"))),
            Err(error) => found.push(format!("{path}: {error}")),
        }
    }
    found.extend(tree.keys().map(|path| format!("{}: missing", String::from_utf8_lossy(path))));
    found
}

#[test]
fn every_image_gives_its_manifest() {
    let mut bad = Vec::new();
    let mut good = 0;
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let Some(tree) = set.tree(listed) else { continue };
            let found = differences(&set.open(listed), tree);
            if found.is_empty() {
                good += 1;
            } else {
                bad.push(format!("{}: {} e.g. {}", listed.name, found.len(), found[0]));
            }
        }
    }
    assert!(bad.is_empty(), "{good} good, {} bad:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn every_image_passes_verification() {
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            let mut problems = Vec::new();
            let summary = image
                .verify(&VerifyOptions::new().max_threads(2), &mut |event| {
                    if let ferrofs_image::VerifyEvent::Problem(problem) = event {
                        let path = String::from_utf8_lossy(&problem.path).into_owned();
                        problems.push(format!("{path}: {}", problem.error));
                    }
                })
                .unwrap();
            assert!(problems.is_empty(), "{}: {}", listed.name, problems.join("\n"));
            assert_eq!(summary.problems, 0);
            assert!(summary.inodes > 0);
        }
    }
}
