//! How the memory of a build is shared out before the library builds, and where its temporary files
//! lie.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ferrofs_builder::import::SpoolOptions;

use ferrofs_builder::{SpillOptions, SpillStore};

use super::request::BuildRequest;
use crate::resources::Resources;

/// While the tree is imported it takes one part in so many of the memory. The build gives it less.
const TREE_SHARE: u64 = 2;
/// The spool of archives takes one part in so many of the memory.
const SPOOL_SHARE: u64 = 16;
/// The map of one sparse file takes one part in so many of the memory.
const SPARSE_MAP_SHARE: u64 = 4;
/// The window of the decoder of an archive takes so many parts of [`WINDOW_SHARE`] of the memory, and the tree then has an
/// eighth of what it had. With the spool and the map of a sparse file that is all of it.
const WINDOW_PARTS: u64 = 5;
const WINDOW_SHARE: u64 = 8;
/// Bytes of a data range of a sparse file while an archive is imported.
const SPARSE_EXTENT_BYTES: u64 = 48;

/// Sets the options of the import and of the build that depend on the threads and their memory. `temporary` is `TMPDIR`.
pub(super) fn limit(
    request: &mut BuildRequest,
    resources: &Resources,
    temporary: Option<OsString>,
) {
    request.options.jobs = Some(resources.threads);
    request.options.memory_bytes = resources.build_bytes();
    let bytes = resources.memory.budget().limit_bytes();
    let directory = temporary_directory(&request.image, temporary);
    let options = SpillOptions::default()
        .memory_bytes_max(bytes / TREE_SHARE)
        .directory(Some(directory.clone()));
    let store = SpillStore::new(options);
    request.directory.store = Some(store.clone());
    let tar = &mut request.tar;
    tar.store = Some(store);
    tar.spool =
        SpoolOptions::default().memory_bytes_max(bytes / SPOOL_SHARE).directory(Some(directory));
    // The threads of the build start after the import. With their memory, `zstd --long=27` fits on any number of CPUs.
    tar.window_bytes_max = (bytes + resources.threads_bytes()) / WINDOW_SHARE * WINDOW_PARTS;
    let extents = bytes / SPARSE_MAP_SHARE / SPARSE_EXTENT_BYTES;
    let extents = usize::try_from(extents).unwrap_or(usize::MAX);
    tar.sparse_extents_max = tar.sparse_extents_max.min(extents);
}

/// The directory of temporary files: `TMPDIR`, else that of the image, which has room for as many
/// bytes as the image has. A device has no such directory.
fn temporary_directory(image: &Path, temporary: Option<OsString>) -> PathBuf {
    if let Some(directory) = temporary.filter(|directory| !directory.is_empty()) {
        return directory.into();
    }
    let is_device = std::fs::metadata(image).is_ok_and(|found| found.file_type().is_block_device());
    match image.parent() {
        _ if is_device => PathBuf::from("/var/tmp"),
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, MachineArguments, Verb};
    use crate::build::arguments::request;
    use crate::build::request::tests::test_environment;

    #[test]
    fn a_build_without_an_option_has_the_memory_that_help_names() {
        let limited = |memory: Option<u64>| {
            let words = ["ferrofs", "build", "image", "tree"];
            let Verb::Build(typed) = Arguments::parse_from(words).verb else { unreachable!() };
            let machine = MachineArguments { memory, ..MachineArguments::default() };
            let mut request = request(&typed, &test_environment()).unwrap();
            limit(&mut request, &Resources::of_machine(&machine).unwrap(), None);
            request.options.memory_bytes
        };
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kib: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
        if kib / 8 >= 256 << 10 {
            assert_eq!(limited(None), limited(Some(256 << 20)));
        }
        assert!(limited(Some(256 << 20)) < 256 << 20, "the process has memory of its own");
    }

    #[test]
    fn temporary_files_lie_beside_the_image_unless_tmpdir_is_set() {
        let place = |image: &str, temporary: Option<&str>| {
            temporary_directory(Path::new(image), temporary.map(Into::into))
        };
        assert_eq!(place("a/image", Some("/t")), Path::new("/t"));
        assert_eq!(place("a/image", Some("")), Path::new("a"));
        assert_eq!(place("a/image", None), Path::new("a"));
        assert_eq!(place("image", None), Path::new("."));
    }
}
