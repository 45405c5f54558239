//! Statistics of the types and sizes of files, in the format of dump.erofs. As there, a file counts
//! once for each of its names.

use std::io::{self, Write};

use anyhow::anyhow;
use ferrofs_image::{FileType, Image, Inode, WalkEntry, WalkEvent};

use crate::metadata_text::{format_percent, stored_bytes};
use crate::output::{Output, escape};

/// Classes of sizes: below 1 KiB, below 2 KiB and so on; the last one has no end.
const CLASSES: usize = 17;
/// Endings of names that have a class of their own.
const ENDINGS: [&str; 9] = [".txt", ".so", ".xml", ".apk", ".odex", ".vdex", ".oat", ".rc", ".otf"];
/// Characters of the longest bar.
const BAR: u64 = 50;

/// The kinds of inodes as dump.erofs names them, in its order.
const KINDS: [(FileType, &str); 7] = [
    (FileType::Regular, "regular file"),
    (FileType::Directory, "directory"),
    (FileType::CharDevice, "char dev"),
    (FileType::BlockDevice, "block dev"),
    (FileType::Fifo, "FIFO file"),
    (FileType::Socket, "SOCK file"),
    (FileType::Symlink, "symlink file"),
];

#[derive(Debug, Default)]
struct Statistics {
    kinds: [u64; KINDS.len()],
    compressed: u64,
    uncompressed: u64,
    bytes: u64,
    stored_bytes: u64,
    sizes: [u64; CLASSES],
    stored_sizes: [u64; CLASSES],
    endings: [u64; ENDINGS.len() + 1],
}

/// Counts, and shows what was counted.
pub(super) fn show(output: &mut Output, image: &Image) -> anyhow::Result<()> {
    let mut statistics = Statistics::default();
    for visit in image.walk(b"/").map_err(|error| anyhow!("/: {error}"))? {
        match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) => {
                statistics.add(image, &node);
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Problem(problem) => {
                return Err(anyhow!("{}: {}", escape(&problem.path), problem.error));
            }
        }
    }
    if let Some(packed) = image.superblock().packed {
        let packed = image.inode(packed).map_err(|error| anyhow!("the packed file: {error}"))?;
        statistics.add_packed(image, &packed);
    }
    statistics.show(output)?;
    Ok(())
}

impl Statistics {
    fn add(&mut self, image: &Image, node: &WalkEntry) {
        let inode = &node.inode;
        let kind = KINDS.iter().position(|(kind, _)| *kind == inode.file_type());
        if let Some(count) = kind.and_then(|kind| self.kinds.get_mut(kind)) {
            *count += 1;
        }
        self.add_form(inode);
        if inode.file_type() == FileType::Regular {
            self.add_file(image, inode, &node.path);
        }
    }

    fn add_form(&mut self, inode: &Inode) {
        if inode.compressed_blocks().is_some() {
            self.compressed += 1;
        } else {
            self.uncompressed += 1;
        }
    }

    fn add_stored(&mut self, image: &Image, inode: &Inode) {
        let stored = stored_bytes(image, inode);
        self.stored_bytes = self.stored_bytes.saturating_add(stored);
        self.stored_sizes[class(stored)] += 1;
    }

    /// The packed file is none of the files that are counted, but its data is stored.
    fn add_packed(&mut self, image: &Image, inode: &Inode) {
        self.add_form(inode);
        self.add_stored(image, inode);
    }

    fn add_file(&mut self, image: &Image, inode: &Inode, path: &[u8]) {
        let bytes = inode.size();
        self.bytes = self.bytes.saturating_add(bytes);
        self.sizes[class(bytes)] += 1;
        self.add_stored(image, inode);
        let ending = ENDINGS.iter().position(|ending| path.ends_with(ending.as_bytes()));
        self.endings[ending.unwrap_or(ENDINGS.len())] += 1;
    }

    fn show(&self, output: &mut Output) -> io::Result<()> {
        let total: u64 = self.kinds.iter().sum();
        writeln!(output, "Filesystem total file count:\t\t{total}")?;
        writeln!(output, "Filesystem unknown type count:\t\t0")?;
        for ((_, name), count) in KINDS.iter().zip(self.kinds) {
            writeln!(output, "Filesystem {name} count:\t\t{count}")?;
        }
        writeln!(output, "Filesystem compressed files:            {}", self.compressed)?;
        writeln!(output, "Filesystem uncompressed files:          {}", self.uncompressed)?;
        writeln!(output, "Filesystem total original file size:    {} Bytes", self.bytes)?;
        writeln!(output, "Filesystem total file size:             {} Bytes", self.stored_bytes)?;
        let rate = format_percent(self.stored_bytes, self.bytes);
        writeln!(output, "Filesystem compress rate:               {rate}%")?;
        // Shares are shares of the regular files, which the packed file is not one of.
        let files = self.endings.iter().sum();
        show_sizes(output, "Original", &self.sizes, files)?;
        show_sizes(output, "On-disk", &self.stored_sizes, files)?;
        self.show_endings(output, files)
    }

    fn show_endings(&self, output: &mut Output, files: u64) -> io::Result<()> {
        writeln!(output, "\nFile type distribution:")?;
        show_head(output, "type")?;
        for (name, count) in ENDINGS.into_iter().chain(["others"]).zip(self.endings) {
            show_row(output, &format!("{name:<17}\t"), count, files)?;
        }
        Ok(())
    }
}

/// The class of a size: the logarithm of its KiB.
fn class(bytes: u64) -> usize {
    let kibibytes = bytes >> 10;
    let class = kibibytes.checked_ilog2().map_or(0, |log| log + 1);
    usize::try_from(class).map_or(CLASSES - 1, |class| class.min(CLASSES - 1))
}

fn show_sizes(
    output: &mut Output,
    which: &str,
    counts: &[u64; CLASSES],
    files: u64,
) -> io::Result<()> {
    writeln!(output, "\n{which} file size distribution:")?;
    show_head(output, ">=(KB) .. <(KB) ")?;
    for (class, count) in counts.iter().enumerate() {
        let first = if class == 0 { 0 } else { 1u64 << (class - 1) };
        let last = if class + 1 == CLASSES { String::new() } else { (1u64 << class).to_string() };
        show_row(output, &format!("{first:>6} .. {last:<6}\t"), *count, files)?;
    }
    Ok(())
}

fn show_head(output: &mut Output, first: &str) -> io::Result<()> {
    writeln!(output, "{first:<23}{:<17}ratio |{:<50}|", "count", "distribution")
}

fn show_row(output: &mut Output, first: &str, count: u64, total: u64) -> io::Result<()> {
    let bar = (u128::from(count) * u128::from(BAR)).checked_div(total.into()).unwrap_or(0);
    let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
    writeln!(output, "{first}{count:<10}{:>10}% |{bar:<50}|", format_percent(count, total))
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn sizes_fall_into_classes_of_powers_of_two() {
        assert_eq!([0, 1023, 1024, 2047, 2048].map(class), [0, 0, 1, 1, 2]);
        assert_eq!([(32 << 20) - 1, 32 << 20, u64::MAX].map(class), [15, 16, 16]);
    }
}
