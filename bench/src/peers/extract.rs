//! The `extract` experiment: ours with one thread and with more, fsck.erofs and unsquashfs take an image apart, one after
//! another in every round, each into a folder that is not there yet.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::caches;
use super::discard::put_away;
use super::findings::Findings;
use super::images::Pictured;
use super::interleave::Contestant;
use super::program::{Program, ProgramArguments};
use super::sheet::{FSCK, RunArguments, Sheet, ours_with};
use super::squashfs::{Wanted, of_tree};
use super::worded::Worded;
use super::work::Work;
use crate::report::Report;

const UNSQUASHFS: &str = "unsquashfs";

/// What is taken apart.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ExtractArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Folder to extract to; memory (/dev/shm) if none is named, or else the system's temporary folder
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// A squashfs image of the same tree, for unsquashfs; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
    #[command(flatten)]
    runs: RunArguments,
    #[command(flatten)]
    programs: ProgramArguments,
}

/// Who takes part.
struct Entrants {
    ours: Program,
    threads: Vec<u16>,
    fsck: Option<Program>,
    /// With its image.
    unsquashfs: Option<(Program, PathBuf)>,
}

impl Entrants {
    fn names(&self) -> Vec<String> {
        let fsck = self.fsck.iter().map(|_| FSCK.to_owned());
        let unsquashfs = self.unsquashfs.iter().map(|_| UNSQUASHFS.to_owned());
        fsck.chain(unsquashfs).chain(self.threads.iter().map(|jobs| ours_with(*jobs))).collect()
    }

    fn contestants(&self, image: &Path, output: &Path) -> Vec<Contestant<Worded>> {
        let mut all = Vec::new();
        if let Some(program) = &self.fsck {
            let mut word = OsString::from("--extract=");
            word.push(output);
            all.push(
                Worded::new(program, image, [word.as_ref(), image.as_os_str()]).contestant(FSCK),
            );
        }
        if let Some((program, packed)) = &self.unsquashfs {
            let worded = Worded::new(program, packed, ["-quiet", "-no-progress", "-d"]);
            all.push(worded.and([output, packed]).contestant(UNSQUASHFS));
        }
        for jobs in &self.threads {
            let worded = Worded::new(&self.ours, image, ["extract", "--quiet", "--progress=none"]);
            let worded = worded.and([format!("--jobs={jobs}")]).and([image, output]);
            all.push(worded.contestant(ours_with(*jobs)));
        }
        all
    }
}

/// Runs the experiment.
///
/// # Errors
/// When ours does not extract, or there is no place for what it writes.
pub(crate) fn run(
    arguments: &ExtractArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let ours = arguments.programs.ours()?;
    let images = Pictured::look_at_all(&arguments.images)?;
    let work = Work::make_in_memory(arguments.to.as_deref())?;
    let (fsck, unsquashfs) = (arguments.programs.peer(FSCK), arguments.programs.peer(UNSQUASHFS));
    let known = [Ok(&ours), fsck.as_ref(), unsquashfs.as_ref()].into_iter().flatten();
    let known: Vec<Program> = known.cloned().collect();
    let mut findings = Findings::new("extract", arguments, &known)?;
    let packed = match (unsquashfs, images.first()) {
        (Ok(program), Some(first)) => {
            let (given, programs) = (arguments.squashfs.as_deref(), &arguments.programs);
            let found = of_tree(Wanted { given, programs, is_quick }, first, work.folder())?;
            found.map(|path| (program, path))
        }
        (Err(why), _) => Err(why),
        (Ok(_), None) => Err("no image".to_owned()),
    };
    let entrants = Entrants {
        ours,
        threads: arguments.runs.thread_counts(),
        fsck: findings.present(FSCK, fsck),
        unsquashfs: findings.present(UNSQUASHFS, packed),
    };
    let pace = arguments.runs.pace(is_quick);
    findings.report.add_remark(pace.sentence());
    findings.report.add_remark(format!(
        "into new folders in {}; caches: the image is read into the page cache before each run",
        work.place()
    ));
    let mut sheet = Sheet::new(&findings, "extract", entrants.names(), &entrants.threads)?;
    let (output, said) = (work.path("output"), work.path("said"));
    for image in &images {
        if !findings.has_time(pace, &image.name) {
            continue;
        }
        writeln!(out, "{}", image.path.display())?;
        let contestants = entrants.contestants(&image.path, &output);
        sheet.measure(&mut findings, &image.name, (&contestants, pace), |worded| {
            caches::read(&worded.source)?;
            let sample = worded.run(&said);
            // Also what one that failed has left.
            if output.exists() {
                put_away(&output, &work)?;
            }
            sample
        })?;
    }
    Ok(sheet.finish(findings))
}
