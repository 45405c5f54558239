//! `ferrofs stat`: prints the metadata of inodes.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image, Inode, Xattr};
use serde::Serialize;

use crate::arguments::StatArguments;
use crate::exit_status::CommandStatus;
use crate::metadata_text::{self, JsonInode, mode_text};
use crate::output::{self, JsonBytes, Output, escape};
use crate::signals::ExitOnSignals;
use crate::source;

#[derive(Serialize)]
struct StatReport {
    #[serde(flatten)]
    inode: JsonInode,
    ino: u32,
    layout: &'static str,
    xattrs: Vec<JsonXattr>,
}

#[derive(Serialize)]
struct JsonXattr {
    name: JsonBytes,
    value: JsonBytes,
}

struct InodeDetails {
    inode: Inode,
    target: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
}

/// Shows each path.
pub(crate) fn run(
    arguments: &StatArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let image = source::open(&arguments.image, &arguments.read)?;
    let mut failures = 0;
    let written = show_all(arguments, &image, &mut failures);
    CommandStatus::from_failures(failures).after_output(written)
}

/// Shows each path, and counts those that cannot be shown.
fn show_all(arguments: &StatArguments, image: &Image, failures: &mut u64) -> anyhow::Result<()> {
    let mut output = Output::new();
    for (at, path) in arguments.paths.iter().enumerate() {
        let path = path.as_bytes();
        match look_up(image, path) {
            Ok(Some(details)) if arguments.json => output.json(&report(path, details))?,
            Ok(Some(details)) => {
                if at > 0 {
                    writeln!(output)?;
                }
                show(&mut output, path, &details)?;
            }
            Ok(None) => {
                output::print_path_message(path, "no such path in the image");
                *failures += 1;
            }
            Err(error) => {
                output::print_path_message(path, error);
                *failures += 1;
            }
        }
    }
    Ok(output.flush()?)
}

fn look_up(image: &Image, path: &[u8]) -> ferrofs_image::Result<Option<InodeDetails>> {
    let Some(inode) = image.resolve(path)? else { return Ok(None) };
    let target = match inode.file_type() {
        FileType::Symlink => Some(image.read_link(&inode)?),
        _ => None,
    };
    let xattrs = image.xattrs(&inode)?;
    Ok(Some(InodeDetails { inode, target, xattrs }))
}

fn report(path: &[u8], details: InodeDetails) -> StatReport {
    let InodeDetails { inode, target, xattrs } = details;
    let xattrs = xattrs.into_iter();
    StatReport {
        ino: inode.ino(),
        layout: inode.layout().name(),
        inode: JsonInode::new(path, &inode, target),
        xattrs: xattrs
            .map(|xattr| JsonXattr { name: JsonBytes(xattr.name), value: JsonBytes(xattr.value) })
            .collect(),
    }
}

fn show(output: &mut Output, path: &[u8], details: &InodeDetails) -> io::Result<()> {
    let inode = &details.inode;
    write!(output, "  path: ")?;
    output.name(path)?;
    if let Some(target) = &details.target {
        write!(output, " -> ")?;
        output.name(target)?;
    }
    writeln!(output)?;
    writeln!(output, "  type: {}", inode.file_type().name())?;
    if let Some((major, minor)) = inode.device() {
        writeln!(output, "device: {major}, {minor}")?;
    }
    writeln!(output, "   nid: {} (ino {})", inode.nid(), inode.ino())?;
    writeln!(output, "layout: {}", inode.layout().name())?;
    writeln!(output, "  size: {}", inode.size())?;
    writeln!(output, "  mode: {:04o} ({})", inode.mode() & 0o7777, mode_text(inode))?;
    writeln!(output, " owner: uid {}, gid {}", inode.uid(), inode.gid())?;
    writeln!(output, " links: {}", inode.nlink())?;
    writeln!(output, " mtime: {}", metadata_text::format_exact(inode.mtime()))?;
    for xattr in &details.xattrs {
        // Values are often binary, so they are escaped for programs, too.
        let (name, value) = (escape(&xattr.name), escape(&xattr.value));
        writeln!(output, " xattr: {name}={value}")?;
    }
    Ok(())
}
