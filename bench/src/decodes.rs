//! The decodes experiment: how often each cluster is decoded, by our library for one reader and for many, and by peers whose
//! decoder calls are counted (`bench/count_decodes.c`, preloaded). Clusters that are touched are the compressed extents of
//! the files that are read, each place once.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_image::{Image, Inode};
use serde::Deserialize;

use crate::experiment::{Candidate, Context, Experiment};
use crate::image_info::regular_files;
use crate::machine::{Requirement, files};
use crate::mounted::{Mounter, System};
use crate::process;
use crate::programs::{ImageArguments, Invocation, OURS};
use crate::reader::{read_front, read_together};
use crate::reads::{BLOCK_BYTES, FileArguments, ReadPass, open, read_all};
use crate::statistics::Figures;
use crate::trees::read_in;

const FSCK: &str = "fsck.erofs";

#[derive(Debug, Clone, Args)]
pub(crate) struct DecodesArguments {
    #[command(flatten)]
    of: ImageArguments,
    #[command(flatten)]
    files: FileArguments,
}

/// What a decoder did: streams, different inputs among them, and bytes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct DecodeCounts {
    decodes: u64,
    distinct: u64,
    bytes: u64,
}

/// The columns of a row.
fn figures(readers: u16, distinct: u64, pass: &ReadPass) -> Figures {
    vec![
        ("readers", readers.into()),
        ("clusters touched", distinct as f64),
        ("decodes", pass.clusters as f64),
        ("decodes a cluster", pass.clusters as f64 / distinct as f64),
        ("decoded per served", pass.decoded_bytes as f64 / pass.served_bytes as f64),
        ("served", (pass.served_bytes >> 20) as f64),
        ("wall", pass.seconds),
        ("CPU", pass.cpu_seconds),
    ]
}

impl Experiment for DecodesArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        files(&self.of.images).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let folder = self.of.peers.folder()?;
        context.plan(self.of.peers.rounds, self.of.images.len());
        for path in &self.of.images {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (files, inodes) = self.files.of(&open(path)?)?;
            let counter = Counter { folder: folder.path(), image: path, files };
            let readers = self.files.readers.iter();
            let mut candidates: Vec<_> = readers
                .map(|&readers| {
                    let inodes = &inodes;
                    Candidate::ours(OURS, move || ours(path, inodes, readers))
                })
                .collect();
            for peer in [FSCK, System::Erofsfuse.name()] {
                match self.peer(peer, &counter, context) {
                    Ok(peers) => candidates.extend(peers),
                    Err(error) => {
                        context.report.leave_out(format!("{peer} on {name}"), format!("{error:#}"));
                    }
                }
            }
            context.compare(["decodes", "", &name], candidates)?;
        }
        Ok(())
    }
}

impl DecodesArguments {
    /// fsck.erofs over the whole image, or erofsfuse over the files for each number of readers.
    fn peer<'a>(
        &self,
        peer: &'static str,
        counter: &'a Counter<'a>,
        context: &mut Context<'_>,
    ) -> Result<Vec<Candidate<'a>>> {
        let programs = &self.of.peers.programs;
        if peer == FSCK {
            let invocation = programs.peer(FSCK)?.with(["--extract"]).with([counter.image]);
            context.report.peer_command(FSCK, invocation.line());
            let who = "fsck.erofs, whole image";
            return Ok(vec![Candidate::peer(who, move || counter.fsck(&invocation))]);
        }
        let mounter = System::Erofsfuse.find(programs)?;
        let words = mounter.words(counter.image, &counter.folder.join("mount"));
        context.report.peer_command(peer, words);
        let readers = self.files.readers.iter().map(|&readers| {
            let mounter = mounter.clone();
            Candidate::peer(peer, move || counter.mounted(&mounter, readers))
        });
        Ok(readers.collect())
    }
}

/// Our library, which counts by itself.
fn ours(path: &Path, files: &[Inode], readers: u16) -> Result<Figures> {
    // Else the first row alone would wait for the disk.
    read_in(path)?;
    // Opened anew, so that its cache is empty.
    let image = open(path)?;
    let pass = read_all(&image, files, BLOCK_BYTES, readers)?;
    Ok(figures(readers, touched(&image, files)?, &pass))
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
    fn fsck(&self, invocation: &Invocation) -> Result<Figures> {
        read_in(self.image)?;
        process::run(invocation.command().envs(self.variables()?), None)?;
        let counts = self.counts()?;
        let (cost, _) = process::run(&mut invocation.command(), None)?;
        let files = regular_files(&open(self.image)?)?;
        let served_bytes = files.iter().map(|(_, inode)| inode.size()).sum();
        let (seconds, cpu_seconds) = (cost.wall.as_secs_f64(), cost.cpu.as_secs_f64());
        let served = ReadPass { seconds, cpu_seconds, served_bytes, ..ReadPass::default() };
        Ok(counts.figures(1, served))
    }

    /// Counted, and then timed without the counter, each on a mount of its own.
    fn mounted(&self, mounter: &Mounter, readers: u16) -> Result<Figures> {
        read_in(self.image)?;
        let counted = Mounter { variables: self.variables()?, ..mounter.clone() };
        self.read_mounted(&counted, readers)?;
        Ok(self.counts()?.figures(readers, self.read_mounted(mounter, readers)?))
    }

    /// All readers read the same files at the same time. CPU time is that of the daemon.
    fn read_mounted(&self, mounter: &Mounter, readers: u16) -> Result<ReadPass> {
        let directory = self.folder.join("mount");
        fs::create_dir_all(&directory)?;
        let mounted = mounter.mount(self.image, &directory, &self.folder.join("log"))?;
        let (got, [wall, _]) = read_together(readers, |_| {
            let mut block = vec![0; BLOCK_BYTES];
            let read = |path| read_front(&directory.join(path), u64::MAX, &mut block, false);
            self.files.iter().map(read).try_fold(0, |sum, seen| anyhow::Ok(sum + seen?.bytes))
        })?;
        let (seconds, served_bytes) = (wall.as_secs_f64(), got.iter().sum());
        let cpu_seconds = mounted.daemon_cpu()?.as_secs_f64();
        mounted.end()?;
        Ok(ReadPass { seconds, cpu_seconds, served_bytes, ..ReadPass::default() })
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

impl DecodeCounts {
    fn figures(self, readers: u16, served: ReadPass) -> Figures {
        let pass = ReadPass { clusters: self.decodes, decoded_bytes: self.bytes, ..served };
        figures(readers, self.distinct, &pass)
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
