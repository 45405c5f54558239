//! The files that keep the metadata of an extracted image for a later build: `fs_config` and
//! `file_contexts` of Android's build system, and the sidecar. They have the limits of an extraction, as inodes can share
//! attributes of 16 MiB. Called by `extract`.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::import::android_text::{
    CAPABILITY_XATTR, LABEL_XATTR, capability_set, escape_expression, escape_path,
};
use ferrofs_builder::import::sidecar::{SidecarEntry, SidecarXattr, type_letter};
use ferrofs_builder::output::OutputTarget;
use ferrofs_extract::default_output_limit;
use ferrofs_image::{FileType, Image, WalkEntry, WalkEvent, WorkMeter, Xattr};

use crate::arguments::ExtractArguments;
use crate::diagnostics;
use crate::output::{JsonBytes, escape, hex, write_json};
use crate::signals::StopRequest;
use crate::text_file::{InputFiles, TextFile};

/// The work of a byte of an attribute: to write it as two digits takes about so much longer than to decode it.
const XATTR_BYTE_WORK: u64 = 16;

/// Which files are wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct MetadataRequest {
    /// The directory of `fs_config` and `file_contexts`.
    android_config: Option<PathBuf>,
    /// Begins the paths in them, without slashes at its ends.
    mount_point: Vec<u8>,
    sidecar: Option<PathBuf>,
    /// Limits of all files together; `None` for those that depend on the size of the image.
    max_work: Option<u64>,
    max_output: Option<u64>,
}

impl From<&ExtractArguments> for MetadataRequest {
    fn from(typed: &ExtractArguments) -> Self {
        let given = typed.mount_point.as_ref().map(|path| path.as_bytes()).unwrap_or_default();
        let names = given.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        Self {
            android_config: typed.android_config.clone(),
            mount_point: names.collect::<Vec<_>>().join(&b'/'),
            sidecar: typed.sidecar.clone(),
            max_work: typed.limit.max_work,
            max_output: typed.max_output,
        }
    }
}

/// The places of the files.
#[derive(Debug)]
pub(super) struct MetadataTargets {
    android: Option<AndroidTargets>,
    sidecar: Option<OutputTarget>,
}

#[derive(Debug)]
struct AndroidTargets {
    config: OutputTarget,
    contexts: OutputTarget,
}

impl MetadataTargets {
    /// Opens the places; the directory is created if it is missing.
    ///
    /// # Errors
    /// A place cannot be used, or is that of an input.
    pub(super) fn open(request: &MetadataRequest, inputs: &InputFiles<'_>) -> anyhow::Result<Self> {
        let android = request.android_config.as_ref().map(|directory| {
            let terminal_form = escape(directory.as_os_str().as_bytes());
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {terminal_form}"))?;
            let open = |name: &str| TextFile::target_beside(&directory.join(name), inputs);
            anyhow::Ok(AndroidTargets {
                config: open("fs_config")?,
                contexts: open("file_contexts")?,
            })
        });
        let sidecar = request.sidecar.as_ref();
        Ok(Self {
            android: android.transpose()?,
            sidecar: sidecar.map(|path| TextFile::target_beside(path, inputs)).transpose()?,
        })
    }

    /// Each place with what it is.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &OutputTarget)> {
        let android = self.android.iter().flat_map(|android| {
            [("the file fs_config", &android.config), ("the file file_contexts", &android.contexts)]
        });
        android.chain(self.sidecar.iter().map(|sidecar| ("the sidecar", sidecar)))
    }
}

/// Writes the files of `targets`, which belong to the request.
///
/// # Errors
/// The image cannot be read, a file cannot be written, a label cannot stand in a line, or a stop was requested.
pub(super) fn write(
    image: &Image,
    request: &MetadataRequest,
    targets: MetadataTargets,
    stop: &StopRequest,
) -> anyhow::Result<()> {
    let bytes = image.stored_bytes();
    let source = MetadataSource {
        image,
        stop,
        work: WorkMeter::new(request.max_work.unwrap_or_else(|| WorkMeter::default_limit(bytes))),
        written: Cell::new(0),
        output_limit: request.max_output.unwrap_or_else(|| default_output_limit(bytes)),
    };
    if let Some(android) = targets.android {
        write_android(&source, android, &request.mount_point)?;
    }
    if let Some(sidecar) = targets.sidecar {
        write_sidecar(&source, sidecar)?;
    }
    Ok(())
}

/// The image, and what its metadata may cost: for all files together.
struct MetadataSource<'a> {
    image: &'a Image,
    stop: &'a StopRequest,
    work: WorkMeter,
    written: Cell<u64>,
    output_limit: u64,
}

/// A file that counts what is written to it.
struct LimitedFile<'a> {
    file: TextFile,
    source: &'a MetadataSource<'a>,
}

impl<'a> MetadataSource<'a> {
    fn create(&'a self, target: OutputTarget) -> anyhow::Result<LimitedFile<'a>> {
        Ok(LimitedFile { file: TextFile::at(target)?, source: self })
    }

    /// Calls `visit` with every entry of the image, and its xattrs.
    fn for_each(
        &self,
        mut visit: impl FnMut(&WalkEntry, Vec<Xattr>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let failed = |path: &[u8], error: &ferrofs_image::Error| {
            let suggestion = diagnostics::for_image_error(error);
            anyhow!("{}: {error}{suggestion}", escape(path))
        };
        let walk = self.image.walk(b"/").map_err(|error| failed(b"/", &error))?;
        for event in walk.work_meter(&self.work) {
            self.stop.check()?;
            let entry = match event {
                WalkEvent::Enter(entry) | WalkEvent::Leaf(entry) => entry,
                WalkEvent::Leave(_) => continue,
                WalkEvent::Problem(problem) => return Err(failed(&problem.path, &problem.error)),
            };
            let xattrs = self.xattrs(&entry).map_err(|error| failed(&entry.path, &error))?;
            visit(&entry, xattrs)?;
        }
        Ok(())
    }

    /// The attributes of an entry. They count as work before they are read.
    fn xattrs(&self, entry: &WalkEntry) -> Result<Vec<Xattr>, ferrofs_image::Error> {
        if !entry.inode.has_xattrs() {
            return Ok(Vec::new());
        }
        let bytes = self.image.xattrs_bytes(&entry.inode)?;
        let work = bytes.saturating_mul(XATTR_BYTE_WORK);
        self.work.add(work, "extended attributes that inodes share")?;
        self.image.xattrs(&entry.inode)
    }
}

impl LimitedFile<'_> {
    fn publish(self) -> anyhow::Result<()> {
        self.file.publish()
    }
}

impl Write for LimitedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let MetadataSource { written, output_limit: limit, .. } = self.source;
        if written.get().saturating_add(bytes.len() as u64) > *limit {
            let reason = ferrofs_extract::ErrorKind::OutputLimit { limit: *limit };
            let suggestion = diagnostics::for_extract_kind(&reason);
            let path = escape(self.file.path().as_os_str().as_bytes());
            return Err(io::Error::other(format!("{path}: {reason}{suggestion}")));
        }
        let count = self.file.write(bytes)?;
        written.set(written.get().saturating_add(count as u64));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `fs_config` and `file_contexts`.
fn write_android(
    source: &MetadataSource<'_>,
    targets: AndroidTargets,
    mount_point: &[u8],
) -> anyhow::Result<()> {
    let mut config = source.create(targets.config)?;
    let mut contexts = source.create(targets.contexts)?;
    source.for_each(|entry, xattrs| {
        let path = below(mount_point, &entry.path);
        let value =
            |name: &[u8]| xattrs.iter().find(|xattr| xattr.name == name).map(|xattr| &*xattr.value);
        write_owner(&mut config, &path, entry, value(CAPABILITY_XATTR))?;
        let label = value(LABEL_XATTR).unwrap_or(b"<<none>>");
        if label.is_empty() || label.iter().any(|byte| matches!(byte, 0..=0x20 | 0x7f)) {
            let path = escape(&entry.path);
            bail!(
                "{path}: the label {} cannot stand in file_contexts; use --sidecar",
                escape(label)
            );
        }
        contexts.write_all(&escape_expression(&path))?;
        contexts.write_all(b" ")?;
        contexts.write_all(type_flag(entry.inode.file_type()))?;
        contexts.write_all(b" ")?;
        contexts.write_all(label)?;
        contexts.write_all(b"\n")?;
        Ok(())
    })?;
    config.publish()?;
    contexts.publish()
}

/// The path of an entry below the mount point.
fn below(mount_point: &[u8], path: &[u8]) -> Vec<u8> {
    match (mount_point, path) {
        ([], path) => path.to_vec(),
        (mount_point, b"/") => [b"/", mount_point].concat(),
        (mount_point, path) => [b"/", mount_point, path].concat(),
    }
}

fn write_owner(
    config: &mut impl Write,
    path: &[u8],
    entry: &WalkEntry,
    capabilities: Option<&[u8]>,
) -> io::Result<()> {
    let inode = &entry.inode;
    let path = match &*entry.path {
        b"/" => b"/",
        _ => path.strip_prefix(b"/").unwrap_or(path),
    };
    config.write_all(&escape_path(path))?;
    write!(config, " {} {} {:04o}", inode.uid(), inode.gid(), inode.mode() & 0o7777)?;
    match capabilities.map(|value| (value, capability_set(value))) {
        None => {}
        Some((_, Some(set))) => write!(config, " capabilities=0x{set:x}")?,
        Some((value, None)) => write!(config, " capabilities-xattr={}", hex(value))?,
    }
    writeln!(config)
}

fn type_flag(file_type: FileType) -> &'static [u8] {
    match file_type {
        FileType::Regular => b"--",
        FileType::Directory => b"-d",
        FileType::Symlink => b"-l",
        FileType::CharDevice => b"-c",
        FileType::BlockDevice => b"-b",
        FileType::Fifo => b"-p",
        FileType::Socket => b"-s",
    }
}

fn write_sidecar(source: &MetadataSource<'_>, target: OutputTarget) -> anyhow::Result<()> {
    let mut output = source.create(target)?;
    source.for_each(|entry, xattrs| {
        let inode = &entry.inode;
        let mtime = inode.mtime();
        let line = SidecarEntry {
            path: JsonBytes(entry.path.clone()),
            file_type: type_letter(inode.file_type()).to_owned(),
            mode: format!("{:04o}", inode.mode() & 0o7777),
            uid: inode.uid(),
            gid: inode.gid(),
            mtime: mtime.seconds,
            nanoseconds: mtime.nanoseconds,
            xattrs: xattrs
                .into_iter()
                .map(|xattr| SidecarXattr { name: JsonBytes(xattr.name), value: hex(&xattr.value) })
                .collect(),
            device: inode.device(),
            target: symlink_target(source.image, entry)?,
        };
        write_json(&mut output, &line)?;
        output.write_all(b"\n")?;
        Ok(())
    })?;
    output.publish()
}

/// The target of a symlink; none for other files.
fn symlink_target(image: &Image, entry: &WalkEntry) -> anyhow::Result<Option<JsonBytes>> {
    if entry.inode.file_type() != FileType::Symlink {
        return Ok(None);
    }
    let target = image.read_link(&entry.inode);
    target
        .map(|target| Some(JsonBytes(target)))
        .map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))
}
