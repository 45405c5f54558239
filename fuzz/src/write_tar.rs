//! The target of the tar writer: writes an image as an archive, imports the archive, and compares what came of it.
//!
//! Input: as [`crate::image_input`] reads it.

use std::io::{self, Write};
use std::sync::Arc;

use ferrofs_builder::import::{StoredHoles, TarImportOptions, TarSource, from_tar};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{CancelToken, NoopObserver};
use ferrofs_extract::{ErrorKind, ExtractEvent, HolePolicy, WriteTarOptions, write_tar as write};
use ferrofs_image::{FileType, Image};

use crate::image_input::{decode, open, problems};
use crate::listing::{self, Entry, ListedImage};

/// The longest archive; a file of exabytes is written as its map.
const ARCHIVE_MAX_BYTES: usize = 8 << 20;
/// Paths that an importer has to accept.
const PATH_MAX_BYTES: usize = 4000;

/// An output that is full at some time.
#[derive(Debug, Default)]
struct Archive(Vec<u8>);

impl Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > ARCHIVE_MAX_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes an image as an archive and reads it back.
pub fn write_tar(bytes: &[u8]) {
    let Some(image) = open(&(Arc::new(decode(bytes)) as _), 0) else { return };
    let Some(listed) = listing::of_image(&image) else { return };
    let mut failures = 0;
    let mut is_disordered = false;
    let mut archive = Archive::default();
    let options = WriteTarOptions::new().max_threads(Some(1)).holes(HolePolicy::Sparse);
    let written = write(&image, &mut archive, &options, &mut |event| {
        if let ExtractEvent::Failed(error) = event {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(error.kind(), ErrorKind::Panicked), "{error}");
            is_disordered |= matches!(error.kind(), ErrorKind::Image(error)
                if matches!(error.kind(), ferrofs_image::ErrorKind::DirectoryOrder));
            failures += 1;
        }
    });
    match written {
        Ok(summary) => assert_eq!(summary.failures, failures),
        Err(error) => {
            let is_full = matches!(error.kind(), ErrorKind::Output { .. });
            // A check looks at shared attributes once, but an archive has those of each file.
            let is_work = matches!(error.kind(), ErrorKind::Image(error)
                if matches!(error.kind(), ferrofs_image::ErrorKind::WorkLimit { .. }));
            assert!(is_full || is_work || listed.listing.is_empty(), "{error}");
            return;
        }
    }
    let is_sound = !listed.has_problems && problems(&image) == 0;
    assert!(!is_sound || failures == 0, "{failures} failures of a sound image");
    let archive = TarSource::Bytes { name: "a.tar".into(), bytes: archive.0.into() };
    // Nothing is built of it, so that holes may be as long as the image says.
    let mut options = TarImportOptions::default();
    options.stored_holes = StoredHoles::None;
    match from_tar(archive, &options, &NoopObserver, &CancelToken::new()) {
        Ok(tree) => compare(&image, &tree, &listed, is_sound && failures == 0),
        Err(error) => {
            let is_long = listed.listing.keys().any(|path| path.len() > PATH_MAX_BYTES);
            // A disordered directory may have a name twice, for a directory and for a file.
            assert!(is_long || is_disordered, "our own archive cannot be imported: {error}");
        }
    }
}

fn compare(image: &Image, tree: &Tree, listed: &ListedImage, is_sound: bool) {
    let mut wanted = listed.listing.clone();
    let mut found = listing::of_tree(tree);
    // An archive has no line for the root.
    found.remove(&[][..]);
    wanted.remove(&[][..]);
    if is_sound {
        // Names of sockets are left out, and with them maybe the first of an inode.
        let has_socket = |entry: &Entry| entry.kind == FileType::Socket;
        listing::compare(&wanted, &found, has_socket);
    } else {
        for path in found.keys() {
            let is_listed = wanted.contains_key(path) || listed.damaged.contains_key(path);
            assert!(is_listed || image.resolve(path).is_ok(), "a name from nowhere");
        }
    }
}
