//! The files that keep the metadata of an extracted image for a later build: `fs_config` and
//! `file_contexts` of Android's build system, and the sidecar. Called by `extract`'s caller.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::import::android_text::{
    CAPABILITY_XATTR, LABEL_XATTR, capability_set, escape_expression, escape_path,
};
use ferrofs_builder::import::sidecar::{SidecarEntry, SidecarXattr, type_letter};
use ferrofs_image::{FileType, Image, WalkEntry, WalkEvent};

use crate::arguments::ExtractArguments;
use crate::output::{JsonBytes, escape, hex};
use crate::source;
use crate::text_file::{InputFiles, TextFile};

/// Writes the files that the arguments name.
///
/// # Errors
/// The image cannot be read, a file cannot be written, or a label cannot stand in a line.
pub(super) fn write(arguments: &ExtractArguments) -> anyhow::Result<()> {
    if arguments.android_config.is_none() && arguments.sidecar.is_none() {
        return Ok(());
    }
    let image = source::open(&arguments.image, &arguments.read)?;
    let inputs = InputFiles::new(&arguments.image, &arguments.read.devices);
    if let Some(directory) = &arguments.android_config {
        let given = arguments.mount_point.as_ref().map(|path| path.as_bytes()).unwrap_or_default();
        let names: Vec<&[u8]> =
            given.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        write_android((&image, inputs), directory, &names.join(&b'/'))?;
    }
    if let Some(path) = &arguments.sidecar {
        write_sidecar((&image, inputs), path)?;
    }
    Ok(())
}

/// Calls `visit` with every entry of the image, and its xattrs.
fn for_each(
    image: &Image,
    mut visit: impl FnMut(&WalkEntry, Vec<ferrofs_image::Xattr>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for event in image.walk(b"/").map_err(|error| anyhow!("/: {error}"))? {
        let entry = match event {
            WalkEvent::Enter(entry) | WalkEvent::Leaf(entry) => entry,
            WalkEvent::Leave(_) => continue,
            WalkEvent::Problem(problem) => bail!("{}: {}", escape(&problem.path), problem.error),
        };
        let xattrs = image.xattrs(&entry.inode);
        let xattrs = xattrs.map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))?;
        visit(&entry, xattrs)?;
    }
    Ok(())
}

/// Writes `fs_config` and `file_contexts`.
fn write_android(
    (image, inputs): (&Image, InputFiles<'_>),
    directory: &Path,
    mount_point: &[u8],
) -> anyhow::Result<()> {
    let shown = escape(directory.as_os_str().as_bytes());
    fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    let mut config = TextFile::create(&directory.join("fs_config"), inputs)?;
    let mut contexts = TextFile::create(&directory.join("file_contexts"), inputs)?;
    for_each(image, |entry, xattrs| {
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

fn write_sidecar((image, inputs): (&Image, InputFiles<'_>), path: &Path) -> anyhow::Result<()> {
    let mut output = TextFile::create(path, inputs)?;
    for_each(image, |entry, xattrs| {
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
            target: symlink_target(image, entry)?,
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
