//! What fsck.erofs is asked for: `check` and `extract` do it. Here a part of the image is found, and what its options
//! mean is said in theirs.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{anyhow, bail};
use ferrofs_image::{FileType, Image, WalkEvent};
use rustix::fs::Mode;

use super::{check, extract};
use crate::applets::fsck::FsckArguments;
use crate::arguments::{
    CheckArguments, ExtractArguments, ExtractedPart, ProgressArguments, ProgressStyle,
    ReadArguments, WorkArguments,
};
use crate::exit_status::CommandStatus;
use crate::metadata_text::{FoundInode, format_percent, stored_bytes};
use crate::output::{self, Output};
use crate::source;

/// Checks or unpacks.
pub(crate) fn run(arguments: &FsckArguments) -> anyhow::Result<CommandStatus> {
    if let Some(option) = arguments.extract_only_option() {
        output::print_message(format_args!("{option} needs --extract=DIR"));
        return Ok(CommandStatus::Failure);
    }
    let read = read(arguments);
    let part = part(arguments, &read)?;
    let outcome = match (arguments.directory(), part) {
        (Some(directory), part) => unpack(arguments, directory, part)?,
        (None, Some(FoundInode { path: None, inode })) => {
            // Nothing is below what no directory names.
            let image = source::open(&arguments.image, &read)?;
            image
                .for_each_piece(&inode, |_| Ok::<_, ferrofs_image::Error>(()))
                .map_err(|error| anyhow!("{error}"))?;
            CommandStatus::Success
        }
        (None, part) => check_below(arguments, part.and_then(|found| found.path))?,
    };
    if arguments.ratio {
        show_ratio(&source::open(&arguments.image, &read)?)?;
    }
    Ok(outcome)
}

fn read(arguments: &FsckArguments) -> ReadArguments {
    ReadArguments {
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum: arguments.no_sbcrc,
        quiet: !arguments.is_verbose(),
    }
}

/// The part of the image that is asked for, if it is not all of it.
fn part(arguments: &FsckArguments, read: &ReadArguments) -> anyhow::Result<Option<FoundInode>> {
    let open = || source::open(&arguments.image, read);
    match (&arguments.path, arguments.nid) {
        (Some(path), _) => FoundInode::at(&open()?, path.as_bytes()).map(Some),
        (None, Some(nid)) => FoundInode::numbered(&open()?, nid).map(Some),
        (None, None) => Ok(None),
    }
}

fn check_below(arguments: &FsckArguments, below: Option<Vec<u8>>) -> anyhow::Result<CommandStatus> {
    check::run(&CheckArguments {
        image: arguments.image.clone(),
        below,
        json: false,
        progress: silent(),
        work: WorkArguments::default(),
        read: read(arguments),
    })
}

fn unpack(
    arguments: &FsckArguments,
    directory: &Path,
    part: Option<FoundInode>,
) -> anyhow::Result<CommandStatus> {
    if !arguments.force && directory.canonicalize().is_ok_and(|path| path == Path::new("/")) {
        bail!("/ is not unpacked into without --force");
    }
    let from = match part {
        None => Vec::new(),
        Some(FoundInode { path: None, inode }) => bail!("nid {}: nothing names it", inode.nid()),
        Some(FoundInode { path: Some(_), inode }) if inode.file_type() != FileType::Directory => {
            let kind = inode.file_type().name();
            bail!("a {kind} is no tree to unpack; `ferrofs cat` writes out a file")
        }
        Some(FoundInode { path: Some(path), .. }) => path,
    };
    let owners = arguments.preserves_owner;
    extract::run(&ExtractArguments {
        image: arguments.image.clone(),
        destination: Some(directory.to_owned()),
        paths: Vec::new(),
        tar: None,
        no_sparse: false,
        overwrite: arguments.overwrite,
        preserve_owner: owners == Some(true),
        no_preserve_owner: owners == Some(false),
        json: false,
        progress: silent(),
        work: WorkArguments::default(),
        read: read(arguments),
        part: ExtractedPart {
            from,
            masked_permissions: masked_permissions(arguments),
            omits_xattrs: !arguments.has_xattrs(),
            keeps_existing: true,
        },
    })
}

fn masked_permissions(arguments: &FsckArguments) -> u32 {
    let is_root = rustix::process::geteuid().is_root();
    if arguments.preserves_permissions.unwrap_or(is_root) {
        return 0;
    }
    // It can only be read by setting it; no other thread is there yet.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

fn silent() -> ProgressArguments {
    ProgressArguments { progress: ProgressStyle::None }
}

/// Tells what all data takes, the packed inode's too, in percent of the sizes of all files.
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
