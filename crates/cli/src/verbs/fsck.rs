//! fsck.erofs: turns its command line into a request to `check` or to `extract`, and prints the
//! compression ratio.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{anyhow, bail};
use ferrofs_extract::{ExistingFiles, OwnerPolicy};
use ferrofs_image::{FileType, Image, WalkEvent};
use rustix::fs::Mode;

use super::check::{self, CheckRequest};
use super::extract::{self, ExtractRequest, ExtractTarget};
use crate::applets::fsck::FsckArguments;
use crate::arguments::{ProgressStyle, ReadArguments, WorkArguments};
use crate::exit_status::{CommandStatus, usage_error};
use crate::metadata_text::{FoundInode, format_percent, stored_bytes};
use crate::output::Output;
use crate::signals::ExitOnSignals;
use crate::source;

/// Checks or extracts.
///
/// # Errors
/// As `check` and `extract`, and if the selected part does not exist.
pub(super) fn run(
    arguments: &FsckArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    if let Some(option) = arguments.extract_only_option() {
        return Err(usage_error(format_args!("{option} needs --extract=DIR")));
    }
    let read = read(arguments);
    let part = part(arguments, &read)?;
    let status = match (arguments.directory(), part) {
        (Some(directory), part) => {
            extract::run(&extract_request(arguments, directory, part)?, signals)?
        }
        (None, Some(FoundInode { path: None, inode })) => {
            // An inode without a name has nothing below it.
            let image = source::open(&arguments.image, &read)?;
            image
                .for_each_piece(&inode, |_| Ok::<_, ferrofs_image::Error>(()))
                .map_err(|error| anyhow!("{error}"))?;
            CommandStatus::Success
        }
        (None, part) => {
            let path = part.and_then(|found| found.path);
            check::run(&check_request(arguments, path), signals)?
        }
    };
    if arguments.ratio {
        show_ratio(&source::open(&arguments.image, &read)?)?;
    }
    Ok(status)
}

fn read(arguments: &FsckArguments) -> ReadArguments {
    ReadArguments {
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum: arguments.no_sbcrc,
        quiet: !arguments.is_verbose(),
    }
}

/// The selected part of the image; `None` for all of it.
fn part(arguments: &FsckArguments, read: &ReadArguments) -> anyhow::Result<Option<FoundInode>> {
    let open = || source::open(&arguments.image, read);
    match (&arguments.path, arguments.nid) {
        (Some(path), _) => FoundInode::at(&open()?, path.as_bytes()).map(Some),
        (None, Some(nid)) => FoundInode::numbered(&open()?, nid).map(Some),
        (None, None) => Ok(None),
    }
}

fn check_request(arguments: &FsckArguments, path: Option<Vec<u8>>) -> CheckRequest {
    CheckRequest {
        image: arguments.image.clone(),
        read: read(arguments),
        path: path.unwrap_or_else(|| b"/".to_vec()),
        json: false,
        progress: ProgressStyle::None,
        work: WorkArguments::default(),
    }
}

fn extract_request(
    arguments: &FsckArguments,
    directory: &Path,
    part: Option<FoundInode>,
) -> anyhow::Result<ExtractRequest> {
    if !arguments.force && directory.canonicalize().is_ok_and(|path| path == Path::new("/")) {
        bail!("extracting into / needs --force");
    }
    let source_directory = match part {
        None => Vec::new(),
        Some(FoundInode { path: None, inode }) => {
            bail!("nid {}: no path in the image leads to it", inode.nid())
        }
        Some(FoundInode { path: Some(_), inode }) if inode.file_type() != FileType::Directory => {
            let kind = inode.file_type().name();
            bail!("cannot extract a {kind}, only a directory; `ferrofs cat` writes out a file")
        }
        Some(FoundInode { path: Some(path), .. }) => path,
    };
    let target = ExtractTarget::Directory {
        path: directory.to_owned(),
        existing: match arguments.overwrite {
            true => ExistingFiles::Replace,
            false => ExistingFiles::Keep,
        },
        owners: match arguments.preserves_owner {
            Some(true) => OwnerPolicy::Image,
            Some(false) => OwnerPolicy::Caller,
            None => OwnerPolicy::IfRoot,
        },
        source_directory,
        umask: umask(arguments),
        skip_xattrs: !arguments.has_xattrs(),
    };
    Ok(ExtractRequest {
        image: arguments.image.clone(),
        read: read(arguments),
        paths: Vec::new(),
        target,
        json: false,
        progress: ProgressStyle::None,
        work: WorkArguments::default(),
    })
}

/// The permission bits that extracted entries do not get.
fn umask(arguments: &FsckArguments) -> u32 {
    let is_root = rustix::process::geteuid().is_root();
    if arguments.preserves_permissions.unwrap_or(is_root) {
        return 0;
    }
    // It can only be read by setting it; there is no other thread yet.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// Prints the stored size of all data, including the packed inode, in percent of all file sizes.
fn show_ratio(image: &Image) -> anyhow::Result<()> {
    let packed = image.superblock().packed.and_then(|nid| image.inode(nid).ok());
    let mut stored = packed.map_or(0, |inode| stored_bytes(image, &inode));
    let mut total = 0u64;
    let mut linked = std::collections::HashSet::new();
    for visit in image.walk(b"/").map_err(|error| anyhow!("/: {error}"))? {
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = visit else { continue };
        if node.inode.nlink() < 2 || linked.insert(node.inode.nid()) {
            stored = stored.saturating_add(stored_bytes(image, &node.inode));
            total = total.saturating_add(node.inode.size());
        }
    }
    let mut output = Output::new();
    writeln!(output, "Compression ratio: {}(%)", format_percent(stored, total))?;
    output.flush()?;
    Ok(())
}
