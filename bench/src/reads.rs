//! The reads experiment: the files of an image read front to back in equal blocks through the library, by one reader and by
//! many at the same time, and what that makes the library decode.

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
use crate::plot::Plot;
use crate::procfs::Usage;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// Compared with one reader.
const MANY_READERS: u16 = 64;
const MIB: f64 = 1_048_576.0;

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
    /// Runs of each; 1 with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
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
        let mut rows: Vec<(u16, Vec<ReadPass>)> =
            self.readers.iter().map(|readers| (*readers, Vec::new())).collect();
        let mut first_sum = None;
        for _ in 0..context.rounds(self.repeat, 1) {
            for (readers, passes) in &mut rows {
                let (pass, files) = read_image(self, *readers)?;
                context.say(format!("{files} files, {readers} readers"))?;
                let sum = *first_sum.get_or_insert(pass.sum);
                ensure!(
                    pass.sum == sum,
                    "{readers} readers got other bytes than those before them"
                );
                passes.push(pass);
            }
        }
        self.add(&mut context.report, &rows)
    }
}

/// One run with an image of its own, so that nothing is decoded before the first read; and the number of files.
fn read_image(arguments: &ReadsArguments, readers: u16) -> Result<(ReadPass, usize)> {
    let image = Image::open(&arguments.image);
    let image = image.with_context(|| format!("opening {}", arguments.image.display()))?;
    let files = files_up_to(&image, arguments.at_least, arguments.most_bytes)?;
    ensure!(!files.is_empty(), "no file of {} bytes or more", arguments.at_least);
    let files: Vec<Inode> = files.into_iter().map(|(_, inode)| inode).collect();
    let block_bytes = usize::try_from(arguments.block)?;
    let work = ReadWork { image: &image, files: &files, block_bytes, through: arguments.through };
    Ok((read_all(work, readers.into())?, files.len()))
}

impl ReadsArguments {
    fn add(&self, report: &mut Report, rows: &[(u16, Vec<ReadPass>)]) -> Result<()> {
        let (at_least, block, image) = (self.at_least, self.block, self.image.display());
        let mut table = Table::new(
            format!("Reading files of at least {at_least} bytes in blocks of {block}: {image}"),
            "readers | MiB served | clusters decoded | MiB decoded | decoded per served | seconds | CPU s | MiB/s",
        );
        let mut plot = Plot::bars("Serving readers", "MiB/s, median, and least to most");
        let mut one_and_many = [f64::NAN; 2];
        for (readers, passes) in rows {
            let case = format!("{readers} readers");
            let samples =
                |value: fn(&ReadPass) -> f64| passes.iter().map(value).collect::<Samples>();
            let figures = [
                ("seconds", "s", samples(|pass| pass.seconds)),
                ("CPU seconds", "s", samples(|pass| pass.cpu_seconds)),
                ("bytes served", "B", samples(|pass| pass.served_bytes as f64)),
                ("clusters decoded", "clusters", samples(|pass| pass.clusters as f64)),
                ("bytes decoded", "B", samples(|pass| pass.decoded_bytes as f64)),
            ];
            let [seconds, cpu, served, clusters, decoded] =
                figures.each_ref().map(|of| of.2.median());
            table.add([
                readers.to_string(),
                format!("{:.1}", served / MIB),
                format!("{clusters:.0}"),
                format!("{:.1}", decoded / MIB),
                format!("{:.3}", decoded / served),
                format!("{seconds:.3}"),
                format!("{cpu:.3}"),
                format!("{:.1}", served / MIB / seconds),
            ]);
            for (row, unit, samples) in &figures {
                report.series(*row, &case, unit, samples);
            }
            let rates = samples(|pass| pass.served_bytes as f64 / MIB / pass.seconds);
            plot.median_bar(&case, "", &rates);
            report.judge_repetitions(&case, &rates)?;
            match *readers {
                1 => one_and_many[0] = decoded,
                MANY_READERS => one_and_many[1] = decoded,
                _ => {}
            }
        }
        report.table(table);
        report.plot(plot);
        let ratio = one_and_many[1] / one_and_many[0];
        if ratio.is_finite() {
            let text =
                format!("{MANY_READERS} readers had {ratio:.3} times as much decoded as one");
            report.judged_remark(&text, "once", &[ratio])?;
        }
        Ok(())
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
