//! The decodes experiment: how often each cluster is decoded, by our library for one reader and for many, and by peers whose
//! decoder calls are counted (`bench/count_decodes.c`, preloaded). Clusters that are touched are the compressed extents of
//! the files that are read, each place once.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Error, Result, ensure};
use clap::Args;
use ferrofs_image::{Image, Inode};
use serde::Deserialize;

use crate::experiment::{Context, Experiment};
use crate::image_info::regular_files;
use crate::machine::{Requirement, files};
use crate::mounted::{Mounter, System};
use crate::process;
use crate::programs::{OURS, PeerArguments};
use crate::reads::{BLOCK_BYTES, FileArguments, open, read_all};
use crate::statistics::{Figure, Measured};

const FSCK: &str = "fsck.erofs";
const READERS: Figure = Figure::new("readers", "", 0);
const DISTINCT: Figure = Figure::new("clusters touched", "", 0);
const DECODES: Figure = Figure::new("decodes", "", 0);
const RATIO: Figure = Figure::new("decodes a cluster", "", 2);
const SHARE: Figure = Figure::new("decoded per served", "", 2);
const SERVED: Figure = Figure::new("served", "MiB", 0);
const SECONDS: Figure = Figure::new("wall", "s", 2);
const CPU_SECONDS: Figure = Figure::new("CPU", "s", 2);

#[derive(Debug, Clone, Args)]
pub(crate) struct DecodesArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    files: FileArguments,
    #[command(flatten)]
    peers: PeerArguments,
}

/// What was decoded: streams, different inputs among them, and bytes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct DecodeCounts {
    decodes: u64,
    distinct: u64,
    bytes: u64,
}

/// What was served, and what that took.
#[derive(Debug, Clone, Copy)]
struct Served {
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
}

/// A row of the table.
fn row(who: &str, readers: u16, counts: DecodeCounts, served: Served) -> Measured {
    let figures = vec![
        (READERS, readers.into()),
        (DISTINCT, counts.distinct as f64),
        (DECODES, counts.decodes as f64),
        (RATIO, counts.decodes as f64 / counts.distinct as f64),
        (SHARE, counts.bytes as f64 / served.bytes as f64),
        (SERVED, (served.bytes >> 20) as f64),
        (SECONDS, served.seconds),
        (CPU_SECONDS, served.cpu_seconds),
    ];
    Measured::new(who, figures)
}

impl Experiment for DecodesArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        files(&self.images).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let folder = self.peers.folder()?;
        let mut sheet = context.sheet("decodes", "");
        for path in &self.images {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            context.say(&name)?;
            let (files, inodes) = self.files.of(&open(path)?)?;
            let counter = Counter { folder: folder.path(), image: path, files };
            let readers = self.files.readers.iter();
            let mut all =
                readers.map(|&readers| ours(path, &inodes, readers)).collect::<Result<Vec<_>>>()?;
            for peer in [FSCK, System::Erofsfuse.name()] {
                match self.peer(peer, &counter, context) {
                    Ok(rows) => all.extend(rows),
                    Err(error) => {
                        context.report.leave_out(format!("{peer} on {name}"), format!("{error:#}"));
                    }
                }
            }
            sheet.add(&name, &all);
            context.report.judge_all(&name, &[&name], &all);
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

impl DecodesArguments {
    /// fsck.erofs over the whole image, or erofsfuse over the files for each number of readers.
    fn peer(
        &self,
        peer: &'static str,
        counter: &Counter<'_>,
        context: &mut Context<'_>,
    ) -> Result<Vec<Measured>> {
        if peer == FSCK {
            let invocation =
                self.peers.programs.peer(FSCK)?.with(["--extract"]).with([counter.image]);
            context.report.peer_command(FSCK, invocation.line());
            return Ok(vec![counter.fsck(&|| invocation.command())?]);
        }
        let mounter = System::Erofsfuse.find(&self.peers.programs)?;
        let words = mounter.words(counter.image, &counter.folder.join("mount"));
        context.report.peer_command(peer, words);
        let readers = self.files.readers.iter();
        readers.map(|&readers| counter.mounted(peer, &mounter, readers)).collect()
    }
}

/// Our library, which counts by itself.
fn ours(path: &Path, files: &[Inode], readers: u16) -> Result<Measured> {
    // Opened anew, so that its cache is empty.
    let image = open(path)?;
    let pass = read_all(&image, files, BLOCK_BYTES, readers.into())?;
    let (decodes, distinct) = (pass.clusters, touched(&image, files)?);
    let counts = DecodeCounts { decodes, distinct, bytes: pass.decoded_bytes };
    let (bytes, seconds, cpu_seconds) = (pass.served_bytes, pass.seconds, pass.cpu_seconds);
    Ok(row(OURS, readers, counts, Served { bytes, seconds, cpu_seconds }))
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
            process::run(&mut command, None).context("compiling count_decodes.c")?;
        }
        Ok(vec![("LD_PRELOAD", library), ("COUNT_DECODES", self.folder.join("counts"))])
    }

    /// Counted, and then timed without the counter.
    fn fsck(&self, command: &dyn Fn() -> Command) -> Result<Measured> {
        process::run(command().envs(self.variables()?), None)?;
        let counts = self.counts()?;
        let (cost, _) = process::run(&mut command(), None)?;
        let bytes = regular_files(&open(self.image)?)?.iter().map(|(_, inode)| inode.size()).sum();
        let (seconds, cpu_seconds) = (cost.wall.as_secs_f64(), cost.cpu.as_secs_f64());
        let served = Served { bytes, seconds, cpu_seconds };
        Ok(row("fsck.erofs, whole image", 1, counts, served))
    }

    /// Counted, and then timed without the counter, each on a mount of its own.
    fn mounted(&self, who: &str, mounter: &Mounter, readers: u16) -> Result<Measured> {
        let counted = Mounter { variables: self.variables()?, ..mounter.clone() };
        self.read_mounted(&counted, readers)?;
        Ok(row(who, readers, self.counts()?, self.read_mounted(mounter, readers)?))
    }

    /// All readers read the same files at the same time. CPU time is that of the daemon.
    fn read_mounted(&self, mounter: &Mounter, readers: u16) -> Result<Served> {
        let directory = self.folder.join("mount");
        fs::create_dir_all(&directory)?;
        let mounted = mounter.mount(self.image, &directory, &self.folder.join("log"))?;
        let begin = Instant::now();
        let bytes = thread::scope(|scope| {
            let read = || self.read_files(&directory);
            let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            threads.into_iter().try_fold(0, |sum, reader| {
                Ok::<_, Error>(sum + reader.join().map_err(|_| Error::msg("a reader panicked"))??)
            })
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = mounted.daemon_cpu()?.as_secs_f64();
        mounted.end()?;
        Ok(Served { bytes, seconds, cpu_seconds })
    }

    fn read_files(&self, directory: &Path) -> Result<u64> {
        let (mut block, mut bytes) = (vec![0; BLOCK_BYTES], 0);
        for path in &self.files {
            let mut file = File::open(directory.join(path))?;
            loop {
                match file.read(&mut block)? {
                    0 => break,
                    count => bytes += count as u64,
                }
            }
        }
        Ok(bytes)
    }

    /// The sums of all processes that decoded; their file is removed.
    fn counts(&self) -> Result<DecodeCounts> {
        let log = self.folder.join("counts");
        let text = fs::read_to_string(&log);
        let text = text.context("no decoder of a shared library was called")?;
        fs::remove_file(log)?;
        let mut sum = DecodeCounts::default();
        for counts in serde_json::Deserializer::from_str(&text).into_iter::<DecodeCounts>() {
            let counts = counts?;
            sum.decodes += counts.decodes;
            sum.distinct += counts.distinct;
            sum.bytes += counts.bytes;
        }
        ensure!(sum.distinct > 0, "nothing was decoded");
        Ok(sum)
    }
}

/// Different places of compressed extents.
fn touched(image: &Image, files: &[Inode]) -> Result<u64> {
    let mut places = HashSet::new();
    for file in files {
        for extent in image.file_extents(file, 0)? {
            let place = extent?.location.filter(|place| place.algorithm.is_some());
            places.extend(place.map(|place| place.offset));
        }
    }
    Ok(places.len() as u64)
}
