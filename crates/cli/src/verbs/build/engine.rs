//! The calls of the library that builds: what is found at the sources becomes a tree, and the tree an image.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ferrofs_builder::import::{TarSource, from_directory, from_tar_layers};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{Error, ErrorKind, Options, Placement, Report, Watch};

use super::request::{Request, SourceKind};

/// The tree of what the request names.
///
/// # Errors
/// As the library, with the path.
pub(super) fn import(request: &Request, watch: &dyn Watch) -> Result<Tree, Error> {
    let is_directory = match (request.kind, request.sources.as_slice()) {
        (SourceKind::Directory, _) => true,
        (SourceKind::AsFound, [source]) => is_directory(source)?,
        _ => false,
    };
    if let (true, [source]) = (is_directory, request.sources.as_slice()) {
        return from_directory(source, &request.directory, watch);
    }
    let sources = request.sources.iter().map(|source| tar_source(source));
    let mut tree = from_tar_layers(sources.collect::<Result<_, _>>()?, &request.tar)?;
    request.tar_adjustments.apply(&mut tree)?;
    Ok(tree)
}

/// Builds the image under its name.
///
/// # Errors
/// As the library.
pub(super) fn build(request: &Request, tree: &Tree, watch: &dyn Watch) -> Result<Report, Error> {
    ferrofs_builder::build(tree, &request.options, &request.image, watch)
}

/// Builds into a file of memory, to see what comes out.
///
/// # Errors
/// As the library, and if there is no such memory.
pub(super) fn build_in_memory(tree: &Tree, options: &Options) -> Result<Report, Error> {
    let failed = |errno: rustix::io::Errno| {
        Error::new(ErrorKind::Output {
            operation: "cannot make a file in memory",
            source: errno.into(),
        })
    };
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let memory = rustix::fs::memfd_create("ferrofs-sample", flags).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory)));
    let options = Options { placement: Placement::InPlace { offset: 0 }, ..options.clone() };
    ferrofs_builder::build(tree, &options, &path, &ferrofs_builder::NoWatch)
}

fn is_directory(path: &Path) -> Result<bool, Error> {
    if path == Path::new("-") {
        return Ok(false);
    }
    let found = fs::metadata(path).map_err(|source| {
        Error::new(ErrorKind::Input { operation: "cannot look at the source", source }).at(path)
    })?;
    Ok(found.is_dir())
}

fn tar_source(path: &Path) -> Result<TarSource, Error> {
    if path != Path::new("-") {
        return Ok(TarSource::Path(path.to_owned()));
    }
    let name = PathBuf::from("standard input");
    let file = io::stdin().as_fd().try_clone_to_owned().map_err(|source| {
        Error::new(ErrorKind::Input { operation: "cannot read", source }).at(&name)
    })?;
    Ok(TarSource::File { name, file: file.into() })
}

/// What there is under the image's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Nothing,
    File,
    BlockDevice,
}

/// Looks at the image's name.
///
/// # Errors
/// The host refuses to tell.
pub(super) fn existing(image: &Path) -> io::Result<Existing> {
    match fs::metadata(image) {
        Ok(found) if found.file_type().is_block_device() => Ok(Existing::BlockDevice),
        Ok(_) => Ok(Existing::File),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Existing::Nothing),
        Err(error) => Err(error),
    }
}
