//! fsck.erofs: turns its command line into a request to `check` or to `extract`, and prints the
//! compression ratio.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use ferrofs_extract::{ExistingFiles, OwnerPolicy};
use ferrofs_image::{ErrorKind, FilePiece, FileType, Image, Inode, InodeSet, WalkEvent, WorkMeter};
use rustix::fs::Mode;
use sha2::{Digest, Sha256};

use super::check::{self, CheckRequest};
use super::extract::{
    self, ExtractRequest, ExtractTarget, LeftOut, OpenedExtraction, SelectedParts,
};
use super::metadata_files::MetadataRequest;
use super::staging_directory::StagingDirectory;
use crate::applets::fsck::FsckArguments;
use crate::arguments::{ProgressStyle, ReadArguments, WorkArguments, WorkLimitArguments};
use crate::exit_status::{CommandStatus, usage_error};
use crate::metadata_text::{FoundInode, format_percent, stored_bytes};
use crate::output::{self, escape};
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest, Stopped};
use crate::source;

/// What stands before the 32 bytes of a digest.
const DIGEST_PREFIX: &[u8] = b"sha256:";

/// So many bytes of data or holes count as one of work: dense images of many files hold up to 8,192 bytes of data
/// for each of their own.
const DATA_SHARE: u64 = 16;

/// Work for holes that any image may be: sparse disks of 256 GiB in all, which are minutes.
const MIN_HOLES_WORK: u64 = (256 << 30) / DATA_SHARE;

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
    let stop = signals.later_stop_request();
    let part = part(arguments, &read)?;
    let mut status = match arguments.directory() {
        Some(directory) => extract_part(arguments, directory, part, signals)?,
        None => check_part(arguments, &read, part, signals)?,
    };
    if status == CommandStatus::Success && arguments.xattr_inode_digest {
        status = check_digests(&source::open(&arguments.image, &read)?, &stop)?;
    }
    report(arguments, &read, status, &stop)?;
    Ok(status)
}

/// Prints the last lines of fsck.erofs.
fn report(
    arguments: &FsckArguments,
    read: &ReadArguments,
    status: CommandStatus,
    stop: &StopRequest,
) -> anyhow::Result<()> {
    let is_check = arguments.directory().is_none();
    match (status, is_check) {
        (CommandStatus::Success, _) if !arguments.is_verbose() => {}
        (CommandStatus::Success, true) => output::print_line("<I> erofs: No errors found"),
        (CommandStatus::Success, false) => {
            output::print_line("<I> erofs: Extracted filesystem successfully");
        }
        (_, true) => output::print_line("<E> erofs: Found some filesystem corruption"),
        (_, false) => output::print_line("<E> erofs: Failed to extract filesystem"),
    }
    if status == CommandStatus::Success && arguments.ratio && arguments.is_verbose() {
        let ratio = stored_percent(&source::open(&arguments.image, read)?, stop)?;
        output::print_line(format_args!("<I> erofs: Compression ratio: {ratio}(%)"));
    }
    Ok(())
}

fn read(arguments: &FsckArguments) -> ReadArguments {
    ReadArguments {
        partition: None,
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum: arguments.no_sbcrc,
        quiet: true,
        ..ReadArguments::default()
    }
}

/// The selected part of the image, with its path in normal form; `None` for all of it.
fn part(arguments: &FsckArguments, read: &ReadArguments) -> anyhow::Result<Option<FoundInode>> {
    let open = || source::open(&arguments.image, read);
    match (&arguments.path, arguments.nid) {
        (Some(path), _) => {
            let FoundInode { inode, .. } = FoundInode::at(&open()?, path.as_bytes())?;
            Ok(Some(FoundInode { path: Some(normal_path(path.as_bytes())), inode }))
        }
        (None, Some(0) | None) => Ok(None),
        (None, Some(nid)) => FoundInode::numbered(&open()?, nid).map(Some),
    }
}

/// The absolute path without empty names, `.` and `..`: no symlink is followed, so `..` takes the
/// name before it away, as in [`Image::resolve`].
fn normal_path(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len().saturating_add(1));
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => normal.truncate(parent_length(&normal)),
            _ => {
                normal.push(b'/');
                normal.extend_from_slice(name);
            }
        }
    }
    if normal.is_empty() { b"/".to_vec() } else { normal }
}

/// How many bytes of a path are that of the directory, without the slash behind it.
fn parent_length(path: &[u8]) -> usize {
    path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)
}

fn check_part(
    arguments: &FsckArguments,
    read: &ReadArguments,
    part: Option<FoundInode>,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    if let Some(FoundInode { path: None, inode }) = part {
        if inode.file_type() == FileType::Directory {
            // Sound images have no such directory, and the check follows names.
            output::print_message(format_args!(
                "{}, so the entries below this directory cannot be checked; leave out --nid to check the image",
                without_path(&inode)
            ));
            return Ok(CommandStatus::from_failures(1));
        }
        let image = source::open(&arguments.image, read)?;
        image
            .for_each_piece(&inode, |_| Ok::<_, ferrofs_image::Error>(()))
            .map_err(|error| anyhow!("{error}"))?;
        return Ok(CommandStatus::Success);
    }
    let mut request = check_request(arguments, part.and_then(|found| found.path));
    if read.devices.is_empty() && !arguments.decodes() {
        request.metadata_only = source::lacks_devices(&source::open(&arguments.image, read)?);
    }
    if request.metadata_only && arguments.has_warnings() {
        let what =
            "without --device=FILE for each of its devices, the data of the image is not checked";
        output::print_message(format_args!("warning: {what}"));
    }
    check::run(&request, signals)
}

/// What is wrong with an inode that has no path.
fn without_path(inode: &Inode) -> String {
    format!("nid {}: no path in the image leads to it", inode.nid())
}

/// Compares each file that has a digest with it; a file with several names, once.
///
/// # Errors
/// The image has no digests, it is too much work, or a signal arrived.
fn check_digests(image: &Image, stop: &StopRequest) -> anyhow::Result<CommandStatus> {
    if image.superblock().digest_prefix.is_none() {
        bail!("the image has no digests; mkfs.erofs --xattr-inode-digest stores them");
    }
    let mut digester = FileDigester::new(image, stop);
    let mut known = InodeSet::new(image.memory().budget());
    let mut problems = 0u64;
    let walk = image.walk(b"/").map_err(|error| anyhow!("/: {error}"))?;
    for event in walk.work_meter(&digester.work) {
        stop.check()?;
        let node = match event {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) => node,
            WalkEvent::Leave(_) => continue,
            WalkEvent::Problem(failure) => {
                problems += 1;
                output::print_path_message(&failure.path, &failure.error);
                continue;
            }
        };
        if node.inode.file_type() != FileType::Regular || !known.insert(node.inode.nid())? {
            continue;
        }
        let path = escape(&node.path);
        let stored =
            image.content_digest(&node.inode).map_err(|error| anyhow!("{path}: {error}"))?;
        let Some(stored) = stored else { continue };
        let found = digester.digest(&node.inode).map_err(|error| match error {
            FileDigestError::Stopped(stopped) => stopped.into(),
            FileDigestError::Image(error)
                if matches!(error.kind(), ErrorKind::WorkLimit { .. }) =>
            {
                anyhow!("{path}: {error}; without --xattr-inode-digest, files have no such limit")
            }
            FileDigestError::Image(error) => anyhow!("{path}: {error}"),
        })?;
        if stored.strip_prefix(DIGEST_PREFIX) != Some(&found[..]) {
            problems += 1;
            output::print_message(format_args!("{path}: the digest of its content differs"));
        }
    }
    Ok(CommandStatus::from_failures(problems))
}

/// Computes digests of files. Holes without end, and files that share their data, would be years of work.
struct FileDigester<'a> {
    image: &'a Image,
    stop: &'a StopRequest,
    work: WorkMeter,
    holes: WorkMeter,
    /// The work of decoding before the first digest.
    decoded_before: u64,
    /// Bytes of data so far.
    data_bytes: u64,
}

/// Why there is no digest.
enum FileDigestError {
    Image(ferrofs_image::Error),
    Stopped(Stopped),
}

impl<'a> FileDigester<'a> {
    fn new(image: &'a Image, stop: &'a StopRequest) -> Self {
        let limit = WorkMeter::default_limit(image.stored_bytes());
        Self {
            image,
            stop,
            work: WorkMeter::new(limit),
            holes: WorkMeter::new(limit.max(MIN_HOLES_WORK)),
            decoded_before: image.decoding_work(),
            data_bytes: 0,
        }
    }

    /// The SHA-256 of a file.
    fn digest(&mut self, inode: &Inode) -> Result<[u8; 32], FileDigestError> {
        let mut hasher = Sha256::new();
        let image = self.image;
        image.for_each_piece::<FileDigestError>(inode, |piece| {
            match piece {
                FilePiece::Data { bytes, .. } => {
                    self.count_data(bytes.len() as u64)?;
                    hasher.update(bytes);
                }
                FilePiece::Hole { length, .. } => {
                    self.holes.add(length / DATA_SHARE, "holes of files that have a digest")?;
                    self.hash_zeros(&mut hasher, length)?;
                }
            }
            Ok(self.stop.check()?)
        })?;
        Ok(hasher.finalize().into())
    }

    /// Counts data. Files share it, and clusters overlap, so that it is not in proportion to the image.
    fn count_data(&mut self, bytes: u64) -> Result<(), FileDigestError> {
        self.work.add(bytes / DATA_SHARE, "data of files that have a digest")?;
        self.data_bytes = self.data_bytes.saturating_add(bytes);
        let decoded = self.image.decoding_work().saturating_sub(self.decoded_before);
        if decoded.saturating_sub(self.data_bytes) > self.work.limit() {
            self.work.add(u64::MAX, "clusters that are decoded again for other files")?;
        }
        Ok(())
    }

    fn hash_zeros(&self, hasher: &mut Sha256, mut length: u64) -> Result<(), FileDigestError> {
        let zeros = [0; 4096];
        while length > 0 {
            self.stop.check()?;
            let count = usize::try_from(length).map_or(zeros.len(), |left| left.min(zeros.len()));
            hasher.update(&zeros[..count]);
            length -= count as u64;
        }
        Ok(())
    }
}

impl From<ferrofs_image::Error> for FileDigestError {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl From<Stopped> for FileDigestError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// Extracts a directory as `directory`, or another inode under that name.
fn extract_part(
    arguments: &FsckArguments,
    directory: &Path,
    part: Option<FoundInode>,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    if !arguments.force && directory.canonicalize().is_ok_and(|path| path == Path::new("/")) {
        bail!("extracting into / needs --force");
    }
    let terminal_form = escape(directory.as_os_str().as_bytes());
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    if !parent.is_none_or(Path::is_dir) {
        bail!("{terminal_form}: its parent directory does not exist; create that first");
    }
    match part {
        None => extract::run(&extract_request(arguments, directory, Vec::new()), signals),
        Some(FoundInode { path: None, inode }) => {
            bail!(without_path(&inode))
        }
        Some(FoundInode { path: Some(path), inode })
            if inode.file_type() == FileType::Directory =>
        {
            extract::run(&extract_request(arguments, directory, path), signals)
        }
        Some(FoundInode { path: Some(path), .. }) => {
            extract_file(arguments, directory, &path, signals)
        }
    }
}

/// Extracts what is not a directory: below a new directory, from which it is moved. `path` is in normal
/// form: joined to a directory of the host, an absolute path would replace it.
fn extract_file(
    arguments: &FsckArguments,
    target: &Path,
    path: &[u8],
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let terminal_form = escape(target.as_os_str().as_bytes());
    let exists = || anyhow!("{terminal_form}: exists already; --overwrite replaces it");
    if target.symlink_metadata().is_ok() && !arguments.overwrite {
        return Err(exists());
    }
    // Only the file itself comes into the directory, under a single name.
    let (parent, name) = path.split_at(parent_length(path));
    let name = name.strip_prefix(b"/").unwrap_or(name);
    let mut request = extract_request(arguments, target, parent.to_vec());
    request.selected = SelectedParts::Path(name.to_vec());
    let opened = OpenedExtraction::new(&request)?;
    // From here on there is something to remove.
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    let folder = StagingDirectory::beside(target)
        .with_context(|| format!("cannot create a directory beside {terminal_form}"))?;
    if let ExtractTarget::Directory { path, left_out, .. } = &mut request.target {
        *path = folder.path();
        // It stays closed to others, and open for the caller, until the file has its name.
        left_out.of_target = true;
    }
    let moved = match opened.run(&request, &stop) {
        Ok(CommandStatus::Success) => match folder.move_out(name, target, arguments.overwrite) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            moved => moved
                .with_context(|| format!("{terminal_form}: cannot be created"))
                .map(|()| CommandStatus::Success),
        },
        other => other,
    };
    let removed = folder.remove();
    let status = moved?;
    removed?;
    Ok(status)
}

fn check_request(arguments: &FsckArguments, path: Option<Vec<u8>>) -> CheckRequest {
    CheckRequest {
        image: arguments.image.clone(),
        read: read(arguments),
        path: path.unwrap_or_else(|| b"/".to_vec()),
        metadata_only: false,
        json: false,
        limit: WorkLimitArguments::default(),
        progress: ProgressStyle::None,
        work: WorkArguments::default(),
    }
}

fn extract_request(
    arguments: &FsckArguments,
    directory: &Path,
    source_directory: Vec<u8>,
) -> ExtractRequest {
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
        left_out: LeftOut {
            xattrs: !arguments.has_xattrs(),
            set_id: false,
            devices: false,
            of_target: false,
        },
    };
    ExtractRequest {
        image: arguments.image.clone(),
        read: read(arguments),
        selected: SelectedParts::default(),
        target,
        metadata: MetadataRequest::default(),
        json: false,
        limit: WorkLimitArguments::default(),
        max_output: None,
        progress: ProgressStyle::None,
        work: WorkArguments::default(),
    }
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

/// The stored size of all data, including the packed inode, in percent of all file sizes.
///
/// # Errors
/// The root cannot be read, there is no memory, or a signal arrived.
fn stored_percent(image: &Image, stop: &StopRequest) -> anyhow::Result<String> {
    let packed = image.superblock().packed.and_then(|nid| image.inode(nid).ok());
    let mut stored = packed.map_or(0, |inode| stored_bytes(image, &inode));
    let mut total = 0u64;
    let mut linked = InodeSet::new(image.memory().budget());
    for visit in image.walk(b"/").map_err(|error| anyhow!("/: {error}"))? {
        stop.check()?;
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = visit else { continue };
        let is_counted = node.inode.nlink() > 1 && !linked.insert(node.inode.nid())?;
        if !is_counted {
            stored = stored.saturating_add(stored_bytes(image, &node.inode));
            total = total.saturating_add(node.inode.size());
        }
    }
    Ok(format_percent(stored, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_computation_of_the_ratio() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/plain.erofs");
        let (image, stop) = (Image::open(data).unwrap(), StopRequest::default());
        stored_percent(&image, &stop).unwrap();
        stop.token().cancel();
        assert!(stored_percent(&image, &stop).unwrap_err().is::<Stopped>());
    }

    #[test]
    fn a_normal_path_has_single_names_only() {
        let cases = [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("a", "/a"),
            ("//a//b/", "/a/b"),
            ("/./a/.", "/a"),
            ("/a/../b", "/b"),
            ("/../../b", "/b"),
            ("/a/b/../..", "/"),
            ("/a/...", "/a/..."),
        ];
        for (given, normal) in cases {
            assert_eq!(normal_path(given.as_bytes()), normal.as_bytes(), "{given}");
        }
    }
}
