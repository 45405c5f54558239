//! What dump.erofs is asked for: the superblock, an inode, statistics, in the lines that scripts look for.

mod inode;
mod statistics;
mod superblock;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use super::found_inode::FoundInode;
use crate::applets::dump::DumpArguments;
use crate::arguments::ReadArguments;
use crate::exit_status::CommandStatus;
use crate::output::Output;
use crate::source;

/// Shows what is asked for.
pub(crate) fn run(arguments: &DumpArguments) -> anyhow::Result<CommandStatus> {
    let read = ReadArguments {
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum: false,
        // Layouts can be shown without what lies elsewhere.
        quiet: true,
    };
    let image = source::open(&arguments.image, &read)?;
    let mut output = Output::new();
    if arguments.blkid_udev {
        superblock::show_for_udev(&mut output, &image)?;
        output.flush()?;
        return Ok(CommandStatus::Success);
    }
    if arguments.shows_superblock() {
        superblock::show(&mut output, &image)?;
    }
    if arguments.statistics {
        statistics::show(&mut output, &image)?;
    }
    let found = match (&arguments.path, arguments.nid) {
        (Some(path), _) => Some(FoundInode::at(&image, path.as_bytes())?),
        (None, Some(nid)) => Some(FoundInode::numbered(&image, nid)?),
        (None, None) => None,
    };
    if let Some(found) = &found {
        if arguments.cat {
            inode::write_content(&mut output, &image, found)?;
        } else {
            inode::show(&mut output, &image, found)?;
        }
        if arguments.ls {
            inode::list(&mut output, &image, found)?;
        }
        if arguments.extents {
            inode::show_extents(&mut output, &image, found)?;
        }
    }
    output.flush()?;
    Ok(CommandStatus::Success)
}
