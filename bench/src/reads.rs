//! The reads experiment: the files of an image read front to back in equal blocks through the library, by one reader and by
//! many at the same time, and what that makes the library decode.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::RwLock;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use ferrofs_image::{Image, Inode};
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::image_info::files_up_to;
use crate::machine::Requirement;
use crate::procfs::Usage;
use crate::rounds::{Candidate, RoundOptions};
use crate::statistics::{CPU, Figure, WALL};
use crate::table::Sheet;

const MIB: f64 = 1_048_576.0;
const SERVED: Figure = Figure::new("MiB served", "MiB", 1);
const CLUSTERS: Figure = Figure::new("clusters decoded", "clusters", 0);
const DECODED: Figure = Figure::new("MiB decoded", "MiB", 1);
const SHARE: Figure = Figure::new("decoded per served", "", 3);
const RATE: Figure = Figure::new("MiB/s", "MiB/s", 1);

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ReadsArguments {
    /// The image
    image: PathBuf,
    /// Readers, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    readers: Vec<u16>,
    /// Only files of at least so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    at_least: u64,
    /// The first files only, until they have so many bytes together
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    most_bytes: u64,
    /// Bytes of one read
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    block: u32,
    /// How the files are read
    #[arg(long, value_enum, default_value_t)]
    through: Through,
    #[command(flatten)]
    rounds: RoundOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
pub(crate) enum Through {
    /// By its inode: nothing is read that was not requested
    #[default]
    Inode,
    /// As an open file of each reader's own, which reads ahead
    File,
}

impl Experiment for ReadsArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::File(self.image.clone())]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let first_sum = Cell::new(None);
        context.plan(&self.rounds, 1);
        let candidates = self.readers.iter().map(|&readers| {
            let first_sum = &first_sum;
            Candidate::ours(readers.to_string(), move || {
                let pass = self.pass(readers)?;
                let is_first = first_sum.replace(Some(pass.sum)).is_none_or(|sum| sum == pass.sum);
                ensure!(is_first, "{readers} readers got other bytes than those before them");
                let (served, decoded) =
                    (pass.served_bytes as f64 / MIB, pass.decoded_bytes as f64 / MIB);
                Ok(vec![
                    (WALL, pass.seconds),
                    (CPU, pass.cpu_seconds),
                    (SERVED, served),
                    (CLUSTERS, pass.clusters as f64),
                    (DECODED, decoded),
                    (SHARE, decoded / served),
                    (RATE, served / pass.seconds),
                ])
            })
        });
        let candidates = candidates.collect();
        let (at_least, block) = (self.at_least, self.block);
        let title = format!("Reading files of at least {at_least} bytes in blocks of {block}");
        let mut sheet = Sheet::of(&context.report.case, &title).bars(RATE).steady(RATE);
        context.compare(&self.image.display().to_string(), candidates, &mut sheet)?;
        context.report.sheet(sheet);
        Ok(())
    }
}

impl ReadsArguments {
    /// One run with an image of its own, so that nothing is decoded before the first read.
    fn pass(&self, readers: u16) -> Result<ReadPass> {
        let image = Image::open(&self.image);
        let image = image.with_context(|| format!("opening {}", self.image.display()))?;
        let files = files_up_to(&image, self.at_least, self.most_bytes)?;
        ensure!(!files.is_empty(), "no file of {} bytes or more", self.at_least);
        let files: Vec<Inode> = files.into_iter().map(|(_, inode)| inode).collect();
        let block_bytes = usize::try_from(self.block)?;
        let work = ReadWork { image: &image, files: &files, block_bytes, through: self.through };
        read_all(work, readers.into())
    }
}

/// What all readers read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadWork<'a> {
    pub(crate) image: &'a Image,
    pub(crate) files: &'a [Inode],
    pub(crate) block_bytes: usize,
    pub(crate) through: Through,
}

/// Until the last reader was done.
#[derive(Debug, Clone)]
pub(crate) struct ReadPass {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// To all readers together.
    pub(crate) served_bytes: u64,
    /// What the image decoded for it.
    pub(crate) clusters: u64,
    pub(crate) decoded_bytes: u64,
    /// A checksum of what each reader got.
    sum: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ReadSum {
    bytes: u64,
    sum: u64,
}

/// Has this many readers read all files in the same order, from the same moment on.
pub(crate) fn read_all(work: ReadWork<'_>, readers: usize) -> Result<ReadPass> {
    // Readers wait for the write lock. Should one of them not start, the others find it free.
    let start = RwLock::new(());
    let before = work.image.stats();
    let (got, seconds, usage) = thread::scope(|scope| {
        let begin = |number| {
            let name = thread::Builder::new().name(format!("reader/{number}"));
            name.spawn_scoped(scope, || {
                let mut block = vec![0; work.block_bytes];
                drop(start.read());
                let mut files = work.files.iter();
                files.try_fold(ReadSum::default(), |got, file| read(work, file, &mut block, got))
            })
        };
        let held = start.write();
        let running: Vec<_> = (0..readers).map(begin).collect::<Result<_, _>>()?;
        let (usage, clock) = (Usage::now(), Instant::now());
        drop(held);
        let join = |reader: ScopedJoinHandle<'_, Result<ReadSum>>| {
            reader.join().map_err(|_| anyhow!("a reader panicked"))?
        };
        let got = running.into_iter().map(join).collect::<Result<Vec<ReadSum>>>()?;
        let seconds = clock.elapsed().as_secs_f64();
        anyhow::Ok((got, seconds, Usage::now().since(usage)))
    })?;
    let first = *got.first().context("no readers")?;
    ensure!(got.iter().all(|other| *other == first), "two readers got different bytes");
    let size: u64 = work.files.iter().map(Inode::size).sum();
    ensure!(first.bytes == size, "readers got {} of {size} bytes", first.bytes);
    let after = work.image.stats();
    Ok(ReadPass {
        seconds,
        cpu_seconds: usage.cpu.as_secs_f64(),
        served_bytes: got.iter().map(|reader| reader.bytes).sum(),
        clusters: after.clusters_decoded - before.clusters_decoded,
        decoded_bytes: after.bytes_decoded - before.bytes_decoded,
        sum: first.sum,
    })
}

/// Reads a file to its end.
fn read(work: ReadWork<'_>, inode: &Inode, block: &mut [u8], mut got: ReadSum) -> Result<ReadSum> {
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
        // The first byte of every 4 KiB: enough to tell a wrong block, and cheap beside the reads.
        let bytes = block.get(..count).unwrap_or_default();
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
    use ferrofs_image::Image;

    use super::{ReadWork, Through, read_all};
    use crate::image_info::regular_files;

    #[test]
    fn many_readers_get_what_one_gets() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(path).unwrap();
        let files = regular_files(&image).unwrap().into_iter().map(|(_, inode)| inode);
        let files: Vec<_> = files.collect();
        let (block_bytes, through) = (128 << 10, Through::Inode);
        let work = ReadWork { image: &image, files: &files, block_bytes, through };
        let one = read_all(work, 1).unwrap();
        let many = read_all(work, 8).unwrap();
        let small = read_all(ReadWork { block_bytes: 4096, ..work }, 2).unwrap();
        let ahead = read_all(ReadWork { through: Through::File, ..work }, 2).unwrap();
        assert_eq!((many.sum, ahead.sum), (one.sum, one.sum));
        assert_eq!(many.served_bytes, 8 * one.served_bytes);
        assert_eq!(small.served_bytes, 2 * one.served_bytes);
        assert!(one.served_bytes > 0 && one.clusters > 0 && one.decoded_bytes > 0);
    }
}
