//! Readers: threads that read the same files of one image in the same order, from the same moment on.
//! Called by the reads experiment.

use std::sync::RwLock;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use ferrofs_image::{Image, Inode};
use serde::Serialize;

use crate::usage::Usage;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
pub(crate) enum Through {
    /// By its inode: nothing is read that was not asked for
    #[default]
    Inode,
    /// As an open file of each reader's own, which reads ahead
    File,
}

/// What all readers read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) image: &'a Image,
    pub(super) files: &'a [Inode],
    pub(super) block_bytes: usize,
    pub(super) through: Through,
}

/// What it took until the last reader was done.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// To all readers together.
    pub(super) served_bytes: u64,
    /// Clusters that the image decoded for it.
    pub(super) clusters: u64,
    /// Bytes that they came to.
    pub(super) decoded_bytes: u64,
    /// Of what each reader got.
    pub(super) sum: u64,
}

/// What one reader got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Got {
    bytes: u64,
    sum: u64,
}

/// Lets so many readers read all files.
///
/// # Errors
/// When a reader cannot be started, a file cannot be read, or two readers got different bytes.
pub(super) fn read_all(work: Work<'_>, readers: usize) -> Result<Pass> {
    // Readers wait while it is written to. Should one of them not come to be, the others find it free.
    let start = RwLock::new(());
    let before = work.image.stats();
    let (got, seconds, usage) = thread::scope(|scope| {
        let begin = |number| {
            let name = thread::Builder::new().name(format!("reader/{number}"));
            name.spawn_scoped(scope, || {
                let mut block = vec![0; work.block_bytes];
                drop(start.read());
                work.files.iter().try_fold(Got { bytes: 0, sum: 0 }, |got, file| {
                    read(work, file, &mut block, got)
                })
            })
        };
        let held = start.write();
        let running: Vec<_> = (0..readers).map(begin).collect::<Result<_, _>>()?;
        let (usage, clock) = (Usage::now(), Instant::now());
        drop(held);
        let got: Vec<Got> = running.into_iter().map(join).collect::<Result<_>>()?;
        let seconds = clock.elapsed().as_secs_f64();
        anyhow::Ok((got, seconds, Usage::now().since(usage)))
    })?;
    let first = *got.first().context("no readers")?;
    ensure!(got.iter().all(|other| *other == first), "two readers got different bytes");
    let size: u64 = work.files.iter().map(Inode::size).sum();
    ensure!(first.bytes == size, "readers got {} of {size} bytes", first.bytes);
    let after = work.image.stats();
    Ok(Pass {
        seconds,
        cpu_seconds: usage.cpu.as_secs_f64(),
        served_bytes: got.iter().map(|reader| reader.bytes).sum(),
        clusters: after.clusters_decoded - before.clusters_decoded,
        decoded_bytes: after.bytes_decoded - before.bytes_decoded,
        sum: first.sum,
    })
}

fn join(reader: ScopedJoinHandle<'_, Result<Got>>) -> Result<Got> {
    reader.join().map_err(|_| anyhow!("a reader panicked"))?
}

/// Reads a file to its end.
fn read(work: Work<'_>, inode: &Inode, block: &mut [u8], mut got: Got) -> Result<Got> {
    let file = match work.through {
        Through::Inode => None,
        Through::File => Some(work.image.open_file(inode)?),
    };
    let mut offset = 0;
    loop {
        let count = match &file {
            Some(file) => file.read_at(offset, block)?,
            None => work.image.read_at(inode, offset, block)?,
        };
        let bytes = block.get(..count).unwrap_or_default();
        // The first byte of every 4 KiB: enough to tell a block that is not the one asked for, and little
        // beside what reading costs.
        for (sample, place) in bytes.iter().step_by(4096).zip(1_u64..) {
            got.sum = got.sum.rotate_left(5) ^ u64::from(*sample).wrapping_mul(place);
        }
        got.bytes += count as u64;
        offset += count as u64;
        if count < block.len() || count == 0 {
            return Ok(got);
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_image::{FileType, Image, WalkEvent};

    use super::{Through, Work, read_all};

    #[test]
    fn many_readers_get_what_one_gets() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(path).unwrap();
        let leaves = image.walk(b"/").unwrap().filter_map(|visit| match visit {
            WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
                Some(node.inode)
            }
            _ => None,
        });
        let files: Vec<_> = leaves.collect();
        let work =
            Work { image: &image, files: &files, block_bytes: 128 << 10, through: Through::Inode };
        let one = read_all(work, 1).unwrap();
        let many = read_all(work, 8).unwrap();
        let small = read_all(Work { block_bytes: 4096, ..work }, 2).unwrap();
        let ahead = read_all(Work { through: Through::File, ..work }, 2).unwrap();
        assert_eq!((many.sum, ahead.sum), (one.sum, one.sum));
        assert_eq!(many.served_bytes, 8 * one.served_bytes);
        assert_eq!(small.served_bytes, 2 * one.served_bytes);
        assert!(one.served_bytes > 0 && one.clusters > 0 && one.decoded_bytes > 0);
    }
}
