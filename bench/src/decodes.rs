//! The decodes experiment: how often each cluster is decoded, by our library for one reader and for many, and by peers whose
//! decoder calls are counted (`scripts/count_decodes.c`, preloaded). Clusters that are touched are the compressed extents of
//! the files that are read, each place once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ferrofs_image::{Image, Inode};
use serde::{Deserialize, Serialize};

use crate::comparison::RoundArguments;
use crate::experiment::{Context, Experiment};
use crate::image_info::{files_up_to, regular_files};
use crate::machine::Requirement;
use crate::process;
use crate::programs::Invocation;
use crate::reads::{ReadWork, Through, read_all};
use crate::report::Table;

const BLOCK_BYTES: usize = 128 << 10;
const FSCK: &str = "fsck.erofs";

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
    rounds: RoundArguments,
}

/// What a peer decoded: streams, different inputs among them, and bytes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct DecodeCounts {
    decodes: u64,
    distinct: u64,
    bytes: u64,
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
            for &readers in &self.readers {
                let image = Image::open(path).with_context(|| path.display().to_string())?;
                let files = files_up_to(&image, self.at_least, self.most_bytes)?;
                let files: Vec<Inode> = files.into_iter().map(|(_, inode)| inode).collect();
                ensure!(!files.is_empty(), "no file of {} bytes or more", self.at_least);
                let touched = touched(&image, &files)?;
                let through = Through::Inode;
                let work =
                    ReadWork { image: &image, files: &files, block_bytes: BLOCK_BYTES, through };
                let pass = read_all(work, readers.into())?;
                let counts = DecodeCounts {
                    decodes: pass.clusters,
                    distinct: touched,
                    bytes: pass.decoded_bytes,
                };
                let cost = [pass.seconds, pass.cpu_seconds];
                table.add(row(
                    [&name, "ferrofs", &readers.to_string()],
                    counts,
                    pass.served_bytes,
                    cost,
                ));
                let ratio = pass.clusters as f64 / touched as f64;
                let samples = [ratio].into_iter().collect();
                context.report.series(
                    &name,
                    format!("{readers} readers"),
                    "decodes a cluster",
                    &samples,
                );
                worst = worst.max(ratio);
            }
            self.peers(path, &name, folder.path(), &mut table, context)?;
        }
        context.report.table(table);
        context.report.claim("decodes", "once", &[worst], "no image has compressed files")
    }
}

impl DecodesArguments {
    /// fsck.erofs over the whole image and erofsfuse over its whole tree, where the counter can be compiled.
    fn peers(
        &self,
        image: &Path,
        name: &str,
        folder: &Path,
        table: &mut Table,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let fsck = match self.rounds.programs.peer(FSCK) {
            Ok(program) => program,
            Err(why) => {
                context.report.leave_out(FSCK, why);
                return Ok(());
            }
        };
        let (library, log) = (folder.join("count_decodes.so"), folder.join("counts"));
        if !library.exists()
            && let Err(error) = compile_counter(&library)
        {
            context.report.leave_out("counts of peers", format!("{error:#}"));
            return Ok(());
        }
        let invocation = Invocation::new(&fsck).with(["--extract"]).with([image]);
        context.report.peer_command(FSCK, invocation.line());
        let mut counted = invocation.command();
        counted.env("LD_PRELOAD", &library).env("COUNT_DECODES", &log);
        let run = process::run(&mut counted, None).and_then(|_| counts_in(&log));
        let counts = match run {
            Ok(counts) => counts,
            Err(error) => {
                context.report.leave_out(format!("{FSCK} on {name}"), format!("{error:#}"));
                return Ok(());
            }
        };
        let (cost, _) = process::run(&mut invocation.command(), None)?;
        let opened = Image::open(image)?;
        let served = regular_files(&opened)?.iter().map(|(_, inode)| inode.size()).sum();
        let cost = [cost.wall.as_secs_f64(), cost.cpu.as_secs_f64()];
        table.add(row([name, "fsck.erofs, whole image", "1"], counts, served, cost));
        Ok(())
    }
}

fn row(names: [&str; 3], counts: DecodeCounts, served: u64, cost: [f64; 2]) -> Vec<String> {
    let DecodeCounts { decodes, distinct, bytes } = counts;
    let mut cells = names.map(str::to_owned).to_vec();
    cells.extend([
        distinct.to_string(),
        decodes.to_string(),
        format!("{:.2}", decodes as f64 / distinct as f64),
        format!("{:.2}", bytes as f64 / served as f64),
        (served >> 20).to_string(),
    ]);
    cells.extend(cost.map(|seconds| format!("{seconds:.2}")));
    cells
}

/// Different places of compressed extents.
fn touched(image: &Image, files: &[Inode]) -> Result<u64> {
    let mut places = HashSet::new();
    for file in files {
        for extent in image.file_extents(file, 0)? {
            let place = extent?.place.filter(|place| place.algorithm.is_some());
            places.extend(place.map(|place| place.offset));
        }
    }
    Ok(places.len() as u64)
}

/// Compiles the counter of decoder calls.
fn compile_counter(library: &Path) -> Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/count_decodes.c");
    let mut command = std::process::Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(library).args([source, "-ldl"]);
    process::run(&mut command, None).context("compiling count_decodes.c")?;
    Ok(())
}

/// The sums of all processes that decoded; the file is removed.
fn counts_in(log: &Path) -> Result<DecodeCounts> {
    let text = std::fs::read_to_string(log).context("no decoder of a shared library was called")?;
    std::fs::remove_file(log)?;
    let mut sum = DecodeCounts::default();
    for line in text.lines() {
        let counts: DecodeCounts = serde_json::from_str(line)?;
        sum.decodes += counts.decodes;
        sum.distinct += counts.distinct;
        sum.bytes += counts.bytes;
    }
    if sum.distinct == 0 {
        bail!("nothing was decoded");
    }
    Ok(sum)
}
