//! Experiments that read the files of an image front to back in equal blocks, by one reader and by many at the same time:
//! `reads` through the library, and what that makes it decode; `decodes`, how often each cluster is decoded, by our library
//! and by peers whose decoder calls are counted (`bench/count_decodes.c`, preloaded). Clusters that are touched are the
//! compressed extents of the files that are read, each place once.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_image::{Image, Inode};
use serde::Deserialize;

use crate::child::name_of;
use crate::experiment::{Candidate, Context, Experiment, OURS, RoundOptions, up_to};
use crate::image_info::{open, regular_files};
use crate::machine::{Requirement, files};
use crate::mounted::{Mounter, System};
use crate::process::{self, Cost};
use crate::programs::{ImageArguments, Invocation};
use crate::reader::{Observation, read_front, read_together};
use crate::statistics::{Figures, MIB};
use crate::trees::read_in;

const BLOCK_BYTES: usize = 128 << 10;
const FSCK: &str = "fsck.erofs";

#[derive(Debug, Clone, Args)]
pub(crate) struct ReadsArguments {
    /// The image
    image: PathBuf,
    #[command(flatten)]
    files: FileArguments,
    #[command(flatten)]
    rounds: RoundOptions,
}

/// What is read, and by how many.
#[derive(Debug, Clone, Args)]
struct FileArguments {
    /// Numbers of readers; one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    #[arg(value_parser = up_to(1024))]
    readers: Vec<u16>,
    /// Read only files of at least this size
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    at_least: u64,
    /// Read files in the order of their paths, until their total size reaches this number of bytes
    /// [default: all files that --at-least selects]
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    most_bytes: u64,
}

impl FileArguments {
    /// Their paths and inodes, in the order of their paths.
    fn of(&self, image: &Image) -> Result<(Vec<PathBuf>, Vec<Inode>)> {
        let mut files = regular_files(image)?;
        files.retain(|(_, inode)| inode.size() >= self.at_least);
        files.sort_by(|(left, _), (right, _)| left.as_os_str().cmp(right.as_os_str()));
        let mut bytes = 0_u64;
        files.retain(|(_, inode)| {
            let before = bytes;
            bytes = bytes.saturating_add(inode.size());
            before < self.most_bytes
        });
        ensure!(!files.is_empty(), "no file of {} bytes or more", self.at_least);
        Ok(files.into_iter().unzip())
    }
}

impl Experiment for ReadsArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::File(self.image.clone())]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (_, files) = self.files.of(&open(&self.image)?)?;
        let first_sum = Cell::new(None);
        context.plan(self.rounds, 1);
        let candidates = self.files.readers.iter().map(|&readers| {
            let (files, first_sum) = (&files, &first_sum);
            Candidate::ours(readers.to_string(), move || {
                let pass = read_anew(&self.image, files, readers)?;
                let is_first = first_sum.replace(Some(pass.sum)).is_none_or(|sum| sum == pass.sum);
                ensure!(is_first, "{readers} readers got other bytes than those before them");
                Ok(pass.figures(readers))
            })
        });
        let title = format!("at least {} bytes in blocks of {BLOCK_BYTES}", self.files.at_least);
        let case = self.image.display().to_string();
        context.compare(["reads", &title, &case], &[], candidates.collect())?;
        Ok(())
    }
}

/// What was done until the last reader was done.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct ReadPass {
    wall: Duration,
    cpu: Duration,
    /// To all readers together.
    served_bytes: u64,
    /// Clusters that were decoded for it, different ones among them, and their bytes.
    decodes: u64,
    distinct: u64,
    #[serde(rename = "bytes")]
    decoded_bytes: u64,
    /// A checksum of what each reader got.
    sum: u64,
}

/// Has this many readers read all files of an image of their own, so that nothing is decoded before the first read.
fn read_anew(path: &Path, files: &[Inode], readers: u16) -> Result<ReadPass> {
    // Else the first readers alone would wait for the disk.
    read_in(path)?;
    let image = open(path)?;
    let pass = read_all(&image, files, BLOCK_BYTES, readers)?;
    let mut places = HashSet::new();
    for file in files {
        for extent in image.file_extents(file, 0)? {
            let place = extent?.location.filter(|place| place.algorithm.is_some());
            places.extend(place.map(|place| place.offset));
        }
    }
    Ok(ReadPass { distinct: places.len() as u64, ..pass })
}

/// Has this many readers read all files in the same order, from the same moment on.
fn read_all(image: &Image, files: &[Inode], block_bytes: usize, readers: u16) -> Result<ReadPass> {
    let before = image.stats();
    let (got, [wall, cpu]) = read_together(readers, |_| {
        let mut block = vec![0; block_bytes];
        files
            .iter()
            .try_fold(Observation::default(), |got, file| read(image, file, &mut block, got))
    })?;
    let first = *got.first().context("no readers")?;
    ensure!(got.iter().all(|other| *other == first), "two readers got different bytes");
    let size: u64 = files.iter().map(Inode::size).sum();
    ensure!(first.bytes == size, "readers got {} of {size} bytes", first.bytes);
    let after = image.stats();
    Ok(ReadPass {
        wall,
        cpu,
        served_bytes: got.iter().map(|reader| reader.bytes).sum(),
        decodes: after.clusters_decoded - before.clusters_decoded,
        decoded_bytes: after.bytes_decoded - before.bytes_decoded,
        sum: first.sum,
        ..ReadPass::default()
    })
}

/// Reads a file to its end, by its inode: nothing is read that was not requested.
fn read(
    image: &Image,
    inode: &Inode,
    block: &mut [u8],
    mut got: Observation,
) -> Result<Observation> {
    let mut offset = 0;
    loop {
        let count = image.read_at(inode, offset, block)?;
        // The first byte of every 4 KiB: enough to find a wrong block, and cheap beside the reads.
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

#[derive(Debug, Clone, Args)]
pub(crate) struct DecodesArguments {
    #[command(flatten)]
    of: ImageArguments,
    #[command(flatten)]
    files: FileArguments,
}

impl ReadPass {
    /// The columns of a row. Without compressed files no cluster is touched.
    fn figures(&self, readers: u16) -> Figures {
        let [served, decoded] =
            [self.served_bytes, self.decoded_bytes].map(|bytes| bytes as f64 / MIB);
        let mut figures = vec![
            ("readers", readers.into()),
            ("clusters touched", self.distinct as f64),
            ("decodes", self.decodes as f64),
            ("decodes a cluster", self.decodes as f64 / self.distinct as f64),
            ("MiB decoded", decoded),
            ("decoded per served", decoded / served),
            ("MiB served", served),
            ("wall", self.wall.as_secs_f64()),
            ("CPU", self.cpu.as_secs_f64()),
            ("MiB/s", served / self.wall.as_secs_f64()),
        ];
        figures.retain(|(_, value)| !value.is_nan());
        figures
    }
}

impl Experiment for DecodesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        files(&self.of.images)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (folder, programs) = (self.of.peers.folder()?, &self.of.peers.programs);
        context.plan(self.of.peers.rounds, self.of.images.len());
        for path in &self.of.images {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (files, inodes) = self.files.of(&open(path)?)?;
            let counter = &Counter { folder: folder.path(), image: path, files };
            let inodes = &inodes;
            let ours = self.files.readers.iter().map(|&readers| {
                let run = move || Ok(read_anew(path, inodes, readers)?.figures(readers));
                Candidate::ours(OURS, run)
            });
            let mut candidates: Vec<_> = ours.collect();
            // fsck.erofs over the whole image, and erofsfuse over the files for each number of readers.
            match programs.peer(FSCK) {
                Ok(fsck) => {
                    let invocation = fsck.with(["--extract"]).with([path]);
                    context.report.peer_command(FSCK, invocation.line());
                    let run = move || counter.fsck(&invocation);
                    candidates.push(Candidate::of(FSCK, "fsck.erofs, whole image", run));
                }
                Err(why) => context.report.leave_out(format!("{FSCK} on {name}"), why),
            }
            let erofsfuse = &name_of(&System::Erofsfuse);
            match System::Erofsfuse.find(programs) {
                Ok(mounter) => {
                    let words = mounter.words(path, &counter.folder.join("mount"));
                    context.report.peer_command(erofsfuse, words);
                    candidates.extend(self.files.readers.iter().map(|&readers| {
                        let mounter = mounter.clone();
                        let run = move || counter.mounted(&mounter, readers);
                        Candidate::of(erofsfuse, erofsfuse, run)
                    }));
                }
                Err(why) => context.report.leave_out(format!("{erofsfuse} on {name}"), why),
            }
            context.compare(["decodes", "", &name], &[], candidates)?;
        }
        Ok(())
    }
}

/// The preloaded library that counts decoder calls, and what is measured with it.
struct Counter<'a> {
    folder: &'a Path,
    image: &'a Path,
    files: Vec<PathBuf>,
}

impl Counter<'_> {
    /// The environment of a program that is counted.
    fn variables(&self) -> Result<Vec<(&'static str, PathBuf)>> {
        let library = self.folder.join("count_decodes.so");
        if !library.exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/count_decodes.c");
            let mut command = Command::new("cc");
            command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]);
            process::run(&mut command).context("compiling count_decodes.c")?;
        }
        Ok(vec![("LD_PRELOAD", library), ("COUNT_DECODES", self.folder.join("counts"))])
    }

    /// Counted, and then timed without the counter.
    fn fsck(&self, invocation: &Invocation) -> Result<Figures> {
        read_in(self.image)?;
        process::run(invocation.command().envs(self.variables()?))?;
        let counts = self.counts()?;
        let (Cost { wall, cpu, .. }, _) = process::run(&mut invocation.command())?;
        let files = regular_files(&open(self.image)?)?;
        let served_bytes = files.iter().map(|(_, inode)| inode.size()).sum();
        Ok(ReadPass { wall, cpu, served_bytes, ..counts }.figures(1))
    }

    /// Counted, and then timed without the counter, each on a mount of its own.
    fn mounted(&self, mounter: &Mounter, readers: u16) -> Result<Figures> {
        read_in(self.image)?;
        let counted = Mounter { variables: self.variables()?, ..mounter.clone() };
        self.read_mounted(&counted, readers, ReadPass::default())?;
        Ok(self.read_mounted(mounter, readers, self.counts()?)?.figures(readers))
    }

    /// Adds to what was counted that all readers read the same files at the same time. CPU time is that of the daemon.
    fn read_mounted(&self, mounter: &Mounter, readers: u16, counts: ReadPass) -> Result<ReadPass> {
        let directory = self.folder.join("mount");
        fs::create_dir_all(&directory)?;
        let mounted = mounter.mount(self.image, &directory, &self.folder.join("log"))?;
        let (got, [wall, _]) = read_together(readers, |_| {
            let mut block = vec![0; BLOCK_BYTES];
            let read = |path| read_front(&directory.join(path), u64::MAX, &mut block, false);
            self.files.iter().map(read).try_fold(0, |sum, seen| anyhow::Ok(sum + seen?.bytes))
        })?;
        let cpu = mounted.daemon_cpu()?;
        mounted.end()?;
        Ok(ReadPass { wall, cpu, served_bytes: got.iter().sum(), ..counts })
    }

    /// The sums of all processes that decoded; their file is removed.
    fn counts(&self) -> Result<ReadPass> {
        let log = self.folder.join("counts");
        let text = fs::read_to_string(&log);
        let text = text.context("no decoder of a shared library was called")?;
        fs::remove_file(log)?;
        let mut sum = ReadPass::default();
        for counts in serde_json::Deserializer::from_str(&text).into_iter::<ReadPass>() {
            let counts = counts?;
            sum.decodes += counts.decodes;
            sum.distinct += counts.distinct;
            sum.decoded_bytes += counts.decoded_bytes;
        }
        ensure!(sum.distinct > 0, "nothing was decoded");
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readers_get_what_one_gets() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(path).unwrap();
        let files = regular_files(&image).unwrap().into_iter().map(|(_, inode)| inode);
        let files: Vec<_> = files.collect();
        let pass = |block_bytes, readers| read_all(&image, &files, block_bytes, readers).unwrap();
        let (one, many, small) = (pass(BLOCK_BYTES, 1), pass(BLOCK_BYTES, 8), pass(4096, 2));
        assert_eq!(many.sum, one.sum);
        let served = [many.served_bytes, small.served_bytes];
        assert_eq!(served, [8 * one.served_bytes, 2 * one.served_bytes]);
        assert!(one.served_bytes > 0 && one.decodes > 0 && one.decoded_bytes > 0);
    }
}
