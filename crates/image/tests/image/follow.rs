//! Symlinks of an image. The tests of the C library compare with what Linux finds in a directory.

use std::sync::Arc;

use ferrofs_image::{ErrorKind, Image, ImageSource, LastLink, OpenOptions};

use crate::manifest::ImageSet;

/// An image with `target` as the target of `/link`, which has nine bytes.
fn with_link(target: &[u8; 9]) -> Image {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "plain").unwrap();
    let mut bytes = std::fs::read(set.dir.join(&listed.file)).unwrap();
    let at = bytes.windows(9).position(|part| part == b"sub/c.txt").unwrap();
    bytes[at..at + 9].copy_from_slice(target);
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().ignore_checksum(true).open_sources(source, Vec::new()).unwrap()
}

fn real(image: &Image, path: &str, last: LastLink) -> Result<Option<String>, ErrorKind> {
    let found = image.follow(path.as_bytes(), last);
    let found = found.map(|found| found.map(|found| String::from_utf8(found.path).unwrap()));
    found.map_err(|error| match error.kind() {
        ErrorKind::WrongType { wanted, found } => {
            ErrorKind::WrongType { wanted: *wanted, found: *found }
        }
        ErrorKind::SymlinkLoop => ErrorKind::SymlinkLoop,
        ErrorKind::PathTooLong => ErrorKind::PathTooLong,
        other => panic!("{other}"),
    })
}

#[track_caller]
fn leads(image: &Image, path: &str, last: LastLink, to: &str) {
    assert_eq!(real(image, path, last).unwrap().as_deref(), Some(to), "{path}");
}

#[test]
fn a_symlink_is_followed_unless_it_is_last_and_kept() {
    let image = with_link(b"sub/c.txt");
    leads(&image, "/link", LastLink::Follow, "/sub/c.txt");
    leads(&image, "/link", LastLink::Keep, "/link");
    let slash = real(&image, "/link/", LastLink::Keep).unwrap_err();
    assert!(matches!(slash, ErrorKind::WrongType { .. }), "{slash:?}");
    leads(&image, "sub/./more//..", LastLink::Follow, "/sub");
    leads(&image, "../..", LastLink::Follow, "/");
    assert_eq!(real(&image, "/sub/none/x", LastLink::Follow).unwrap(), None);
    let through = real(&image, "/a.txt/x", LastLink::Follow).unwrap_err();
    assert!(matches!(through, ErrorKind::WrongType { .. }), "{through:?}");
}

#[test]
fn what_is_behind_a_symlink_goes_on_from_where_it_leads() {
    let image = with_link(b"/sub/more");
    leads(&image, "link/f1", LastLink::Keep, "/sub/more/f1");
    leads(&image, "link/../c.txt", LastLink::Keep, "/sub/c.txt");
    leads(&image, "link/", LastLink::Keep, "/sub/more");
    let relative = with_link(b"sub/more/");
    leads(&relative, "link", LastLink::Follow, "/sub/more");
    leads(&with_link(b"sub/../.."), "sub/../link", LastLink::Follow, "/");
}

#[test]
fn symlinks_that_lead_in_a_circle_end() {
    let found = real(&with_link(b"/////link"), "link", LastLink::Follow).unwrap_err();
    assert!(matches!(found, ErrorKind::SymlinkLoop), "{found:?}");
    let found = real(&with_link(b"link/././"), "link", LastLink::Keep).unwrap();
    assert_eq!(found.as_deref(), Some("/link"));
}

#[test]
fn the_names_that_are_left_are_bounded() {
    let image = with_link(b"sub/c.txt");
    leads(&image, &"./sub/../".repeat(9000), LastLink::Follow, "/");
    let found = real(&image, &"/sub/..".repeat(10_000), LastLink::Follow).unwrap_err();
    assert!(matches!(found, ErrorKind::PathTooLong), "{found:?}");
    let found = image.resolve(&b"/sub/..".repeat(10_000)).unwrap_err();
    assert!(matches!(found.kind(), ErrorKind::PathTooLong), "{found:?}");
    assert!(image.resolve(&b"/sub/..".repeat(9000)).unwrap().is_some());
    // As long as a path may be, so the walk looks for the directory above it.
    let longest = [b"/sub/..".repeat(9362), b"/".to_vec()].concat();
    assert_eq!(longest.len(), 65_535);
    image.walk(&longest).unwrap();
}
