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
use serde::{Deserialize, Serialize};

use crate::experiment::{Context, Experiment};
use crate::image_info::{files_up_to, regular_files};
use crate::machine::Requirement;
use crate::mounted::{Mounter, System};
use crate::process;
use crate::programs::{Invocation, PeerArguments};
use crate::reads::{ReadWork, Through, read_all};
use crate::table::Table;

const BLOCK_BYTES: usize = 128 << 10;
const FSCK: &str = "fsck.erofs";
const EROFSFUSE: &str = "erofsfuse";

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct DecodesArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Only files of at least so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    at_least: u64,
    /// The first files only, until they have so many bytes together
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    most_bytes: u64,
    /// Readers, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    readers: Vec<u16>,
    #[command(flatten)]
    rounds: PeerArguments,
}

/// What was decoded: streams, different inputs among them, and bytes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct DecodeCounts {
    decodes: u64,
    distinct: u64,
    bytes: u64,
}

/// A row of the table.
struct Row {
    who: String,
    readers: u16,
    counts: DecodeCounts,
    served_bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
}

/// The preloaded library that counts decoder calls, and what is measured with it.
struct Counter<'a> {
    folder: &'a Path,
    image: &'a Path,
    files: Vec<PathBuf>,
}

impl Experiment for DecodesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        self.images.iter().cloned().map(Requirement::File).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let folder = self.rounds.folder()?;
        let header = "image | program | readers | clusters touched | decodes | a cluster | decoded per served | MiB served | seconds | CPU s";
        let mut table = Table::new("How often clusters are decoded", header);
        let mut worst = f64::NAN;
        for path in &self.images {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            context.say(&name)?;
            let image = Image::open(path).with_context(|| path.display().to_string())?;
            let (files, inodes): (Vec<_>, Vec<_>) =
                files_up_to(&image, self.at_least, self.most_bytes)?.into_iter().unzip();
            ensure!(!files.is_empty(), "no file of {} bytes or more", self.at_least);
            for &readers in &self.readers {
                let row = ours(path, &inodes, readers)?;
                let ratio = row.counts.decodes as f64 / row.counts.distinct as f64;
                let samples = [ratio].into_iter().collect();
                let column = format!("{readers} readers");
                context.report.series(&name, column, "decodes a cluster", &samples);
                worst = worst.max(ratio);
                table.add(row.cells(&name));
            }
            let counter = Counter { folder: folder.path(), image: path, files };
            for peer in [FSCK, EROFSFUSE] {
                match self.peer(peer, &counter, context) {
                    Ok(rows) => rows.iter().for_each(|row| table.add(row.cells(&name))),
                    Err(error) => {
                        context.report.leave_out(format!("{peer} on {name}"), format!("{error:#}"));
                    }
                }
            }
        }
        context.report.table(table);
        context.report.judge("once", "", worst);
        context.report.explain("once", "no image has compressed files");
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
    ) -> Result<Vec<Row>> {
        let (folder, image) = (counter.folder, counter.image);
        if peer == FSCK {
            let program = self.rounds.programs.peer(FSCK).map_err(Error::msg)?;
            let invocation = Invocation::new(&program).with(["--extract"]).with([image]);
            context.report.peer_command(FSCK, invocation.line());
            return Ok(vec![counter.fsck(&invocation)?]);
        }
        let mounter = System::Erofsfuse.find(&self.rounds.programs).map_err(Error::msg)?;
        context.report.peer_command(EROFSFUSE, mounter.words(image, &folder.join("mount")));
        self.readers.iter().map(|&readers| counter.mounted(&mounter, readers)).collect()
    }
}

/// Our library, which counts by itself.
fn ours(path: &Path, files: &[Inode], readers: u16) -> Result<Row> {
    // Opened anew, so that its cache is empty.
    let image = Image::open(path).with_context(|| path.display().to_string())?;
    let through = Through::Inode;
    let work = ReadWork { image: &image, files, block_bytes: BLOCK_BYTES, through };
    let pass = read_all(work, readers.into())?;
    let (decodes, distinct) = (pass.clusters, touched(&image, files)?);
    Ok(Row {
        who: "ferrofs".to_owned(),
        readers,
        counts: DecodeCounts { decodes, distinct, bytes: pass.decoded_bytes },
        served_bytes: pass.served_bytes,
        seconds: pass.seconds,
        cpu_seconds: pass.cpu_seconds,
    })
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
        Ok(vec![("LD_PRELOAD", library), ("COUNT_DECODES", self.log())])
    }

    fn log(&self) -> PathBuf {
        self.folder.join("counts")
    }

    /// Counted, and then timed without the counter.
    fn fsck(&self, invocation: &Invocation) -> Result<Row> {
        process::run(invocation.command().envs(self.variables()?), None)?;
        let counts = self.counts()?;
        let (cost, _) = process::run(&mut invocation.command(), None)?;
        let image = Image::open(self.image)?;
        Ok(Row {
            who: "fsck.erofs, whole image".to_owned(),
            readers: 1,
            counts,
            served_bytes: regular_files(&image)?.iter().map(|(_, inode)| inode.size()).sum(),
            seconds: cost.wall.as_secs_f64(),
            cpu_seconds: cost.cpu.as_secs_f64(),
        })
    }

    /// Counted, and then timed without the counter, each on a mount of its own.
    fn mounted(&self, mounter: &Mounter, readers: u16) -> Result<Row> {
        self.read_mounted(&mounter.clone().with_variables(self.variables()?), readers)?;
        let counts = self.counts()?;
        let (served_bytes, seconds, cpu_seconds) = self.read_mounted(mounter, readers)?;
        let who = EROFSFUSE.to_owned();
        Ok(Row { who, readers, counts, served_bytes, seconds, cpu_seconds })
    }

    /// All readers read the same files at the same time. Answers bytes, seconds, and CPU seconds of the daemon.
    fn read_mounted(&self, mounter: &Mounter, readers: u16) -> Result<(u64, f64, f64)> {
        let directory = self.folder.join("mount");
        fs::create_dir_all(&directory)?;
        let mounted = mounter.mount(self.image, &directory, &self.folder.join("log"))?;
        let begin = Instant::now();
        let served = thread::scope(|scope| {
            let read = || self.read_files(&directory);
            let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            threads.into_iter().try_fold(0, |sum, reader| {
                Ok::<_, Error>(sum + reader.join().map_err(|_| Error::msg("a reader panicked"))??)
            })
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = mounted.daemon_cpu()?.as_secs_f64();
        mounted.end()?;
        Ok((served, seconds, cpu_seconds))
    }

    fn read_files(&self, directory: &Path) -> Result<u64> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut bytes = 0;
        for path in &self.files {
            let mut file = File::open(directory.join(path.strip_prefix("/").unwrap_or(path)))?;
            loop {
                let count = file.read(&mut block)?;
                if count == 0 {
                    break;
                }
                bytes += count as u64;
            }
        }
        Ok(bytes)
    }

    /// The sums of all processes that decoded; their file is removed.
    fn counts(&self) -> Result<DecodeCounts> {
        let text = fs::read_to_string(self.log());
        let text = text.context("no decoder of a shared library was called")?;
        fs::remove_file(self.log())?;
        let mut sum = DecodeCounts::default();
        for line in text.lines() {
            let counts: DecodeCounts = serde_json::from_str(line)?;
            sum.decodes += counts.decodes;
            sum.distinct += counts.distinct;
            sum.bytes += counts.bytes;
        }
        ensure!(sum.distinct > 0, "nothing was decoded");
        Ok(sum)
    }
}

impl Row {
    fn cells(&self, image: &str) -> Vec<String> {
        let DecodeCounts { decodes, distinct, bytes } = self.counts;
        vec![
            image.to_owned(),
            self.who.clone(),
            self.readers.to_string(),
            distinct.to_string(),
            decodes.to_string(),
            format!("{:.2}", decodes as f64 / distinct as f64),
            format!("{:.2}", bytes as f64 / self.served_bytes as f64),
            (self.served_bytes >> 20).to_string(),
            format!("{:.2}", self.seconds),
            format!("{:.2}", self.cpu_seconds),
        ]
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
