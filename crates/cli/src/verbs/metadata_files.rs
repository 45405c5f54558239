//! The files that keep the metadata of an extracted image for a later build: `fs_config` and
//! `file_contexts` of Android's build system, and the sidecar. They have the limits of an extraction, as inodes can share
//! attributes of 16 MiB. Called by `extract`'s caller.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::import::android_text::{
    CAPABILITY_XATTR, LABEL_XATTR, capability_set, escape_expression, escape_path,
};
use ferrofs_builder::import::sidecar::{SidecarEntry, SidecarXattr, type_letter};
use ferrofs_extract::default_output_limit;
use ferrofs_image::{FileType, Image, WalkEntry, WalkEvent, WorkMeter, Xattr};

use crate::arguments::ExtractArguments;
use crate::diagnostics;
use crate::output::{JsonBytes, escape, hex};
use crate::source;
use crate::text_file::{InputFiles, TextFile};

/// The work of a byte of an attribute: to write it as two digits takes about so much longer than to decode it.
const XATTR_BYTE_WORK: u64 = 16;

/// Writes the files that the arguments name.
///
/// # Errors
/// The image cannot be read, a file cannot be written, or a label cannot stand in a line.
pub(super) fn write(arguments: &ExtractArguments) -> anyhow::Result<()> {
    if arguments.android_config.is_none() && arguments.sidecar.is_none() {
        return Ok(());
    }
    let image = source::open(&arguments.image, &arguments.read)?;
    let bytes = image.stored_bytes();
    let max_work = arguments.limit.max_work;
    let source = MetadataSource {
        image,
        inputs: InputFiles::new(&arguments.image, &arguments.read.devices),
        work: WorkMeter::new(max_work.unwrap_or_else(|| WorkMeter::default_limit(bytes))),
        written: Cell::new(0),
        output_limit: arguments.max_output.unwrap_or_else(|| default_output_limit(bytes)),
    };
    if let Some(directory) = &arguments.android_config {
        let given = arguments.mount_point.as_ref().map(|path| path.as_bytes()).unwrap_or_default();
        let names: Vec<&[u8]> =
            given.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        write_android(&source, directory, &names.join(&b'/'))?;
    }
    if let Some(path) = &arguments.sidecar {
        write_sidecar(&source, path)?;
    }
    Ok(())
}

/// The image, and what its metadata may cost: for all files together.
struct MetadataSource<'a> {
    image: Image,
    inputs: InputFiles<'a>,
    work: WorkMeter,
    written: Cell<u64>,
    output_limit: u64,
}

/// A file that counts what is written to it.
struct LimitedFile<'a> {
    file: TextFile,
    path: &'a Path,
    source: &'a MetadataSource<'a>,
}

impl<'a> MetadataSource<'a> {
    fn create(&'a self, path: &'a Path) -> anyhow::Result<LimitedFile<'a>> {
        let file = TextFile::create(path, self.inputs)?;
        Ok(LimitedFile { file, path, source: self })
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
            let path = escape(self.path.as_os_str().as_bytes());
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
    directory: &Path,
    mount_point: &[u8],
) -> anyhow::Result<()> {
    let shown = escape(directory.as_os_str().as_bytes());
    fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    let paths = ["fs_config", "file_contexts"].map(|name| directory.join(name));
    let mut config = source.create(&paths[0])?;
    let mut contexts = source.create(&paths[1])?;
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

fn write_sidecar(source: &MetadataSource<'_>, path: &Path) -> anyhow::Result<()> {
    let mut output = source.create(path)?;
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
            target: symlink_target(&source.image, entry)?,
        };
        serde_json::to_writer(&mut output, &line)?;
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
