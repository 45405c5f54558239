//! `ferrofs demo`: the main job on real input. Unpacks an image and mounts it, compares every byte of both with what it
//! must be, reads the mount with several readers beside the kernel's own, and shows what was measured.

mod caller;
mod carried;
mod comparison;
mod fidelity;
pub(super) mod interruption;
mod kernel_mount;
mod own_mount;
mod race;
mod readers;
mod reading_plan;
mod reading_table;
mod record;
mod scratch_directory;
mod table;
mod truth;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use ferrofs_extract::{Event, Options, Selection, Summary, extract, measure};
use ferrofs_image::Image;

use super::extract::say_withheld;
use crate::advice;
use crate::amount::{counted, grouped};
use crate::arguments::DemoArguments;
use crate::name::escaped;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::progress::{Progress, Work};
use crate::resources::Resources;
use crate::source;
use crate::stats;
use crate::stderr;
use caller::Caller;
use comparison::{Comparison, ComparisonResult};
use fidelity::Fidelity;
use interruption::Interruption;
use kernel_mount::KernelMount;
use own_mount::{Mounting, OwnMount};
use race::{Contestant, Race, RaceResult, several};
use reading_plan::ReadingPlan;
use scratch_directory::ScratchDirectory;
use table::{Table, write_compared};
use truth::Truth;

/// What an extraction took.
struct Extracted {
    summary: Summary,
    time: Duration,
    peak_bytes: Option<u64>,
}

/// What is shown, where, and to whom.
struct Demonstration<'a> {
    arguments: &'a DemoArguments,
    scratch: &'a Path,
    interruption: &'a Interruption,
    resources: Resources,
    caller: Caller,
    /// The image's file, and what to call it.
    path: PathBuf,
    name: String,
    image: Image,
    truth: Truth,
    total: Work,
}

/// Unpacks, mounts, compares, measures.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<Outcome> {
    let interruption = Interruption::watch()?;
    let scratch = ScratchDirectory::new().context("cannot make a directory for temporary files")?;
    let path = escaped(scratch.path().as_os_str().as_bytes());
    let shown = Demonstration::new(arguments, scratch.path(), &interruption)
        .and_then(|demonstration| demonstration.run());
    // A signal may have ended programs that were asked, too; then it is the reason, and not what they lack.
    let shown = shown.or_else(|error| interruption.check().and(Err(error)));
    let removed = scratch.remove().with_context(|| format!("cannot remove {path}"));
    match (shown, removed) {
        (Err(error), Err(left)) => {
            stderr::complain(format_args!("{left:#}"));
            Err(error)
        }
        (shown, removed) => removed.and(shown),
    }
}

impl<'a> Demonstration<'a> {
    fn new(
        arguments: &'a DemoArguments,
        scratch: &'a Path,
        interruption: &'a Interruption,
    ) -> anyhow::Result<Self> {
        let (path, name) = image_path(arguments, scratch)?;
        let resources = Resources::of(&arguments.work)?;
        let image = source::open_for_work(&path, &arguments.read, &resources)?;
        let truth = match (&arguments.image, &arguments.source) {
            (None, _) => Truth::Manifest,
            (Some(_), Some(source)) => Truth::Directory(source.clone()),
            (Some(_), None) => Truth::Image(image.clone()),
        };
        let total = measure(&image, &Selection::default()).into();
        let caller = Caller::current();
        Ok(Self {
            arguments,
            scratch,
            interruption,
            resources,
            caller,
            path,
            name,
            image,
            truth,
            total,
        })
    }

    fn run(&self) -> anyhow::Result<Outcome> {
        let problems = self.show_unpacking()? + self.show_mount()?;
        stats::tell(self.resources.stats(&self.image, None).as_ref());
        Ok(Outcome::of_problems(problems))
    }

    /// Gives how many problems there were.
    fn show_unpacking(&self) -> anyhow::Result<u64> {
        let unpacked = self.scratch.join("tree");
        let shown = escaped(unpacked.as_os_str().as_bytes());
        self.say(&format!("unpacking {} into {shown}", self.name))?;
        let extracted = self.unpack(&unpacked)?;
        if !self.arguments.read.quiet {
            say_withheld(&extracted.summary.withheld);
        }
        self.say(&format!("comparing every byte with {}", self.truth.name()))?;
        let fidelity = Fidelity::of_unpacked(&self.caller, &self.truth);
        let (compared, compare_time) = self.compare(&unpacked, fidelity)?;
        let image_bytes =
            fs::metadata(&self.path)?.len().saturating_sub(self.arguments.read.offset);
        let table =
            Table { name: &self.name, image_bytes, extracted: &extracted, compared, compare_time };
        let mut output = Output::new();
        table.write(&mut output)?;
        output.flush()?;
        Ok(extracted.summary.failures + compared.differences)
    }

    /// Gives how many problems there were.
    fn show_mount(&self) -> anyhow::Result<u64> {
        let directory = self.scratch.join("mnt");
        let shown = escaped(directory.as_os_str().as_bytes());
        let mount = match OwnMount::start(self.arguments, &self.path, &directory)? {
            Mounting::Done(mount) => mount,
            Mounting::NotToBeHad(reason) => {
                self.put(&format!("no mount is shown: {reason}"))?;
                return Ok(0);
            }
        };
        self.say(&format!("mounted on {shown} by user {}", self.caller.uid))?;
        self.say(&format!(
            "comparing every byte and attribute, by {} readers, with {}",
            several(),
            self.truth.name()
        ))?;
        let fidelity = Fidelity::of_mount(&self.caller, &self.truth);
        let (compared, compare_time) = self.compare(mount.directory(), fidelity)?;
        mount.end()?;
        let mut output = Output::new();
        write_compared(compared, compare_time, &mut output)?;
        output.flush()?;
        drop(output);
        let failures = self.show_race()?;
        Ok(compared.differences + failures)
    }

    /// Gives how many reads failed that should not.
    fn show_race(&self) -> anyhow::Result<u64> {
        let plan = ReadingPlan::choose(&self.image, self.total, self.interruption)?;
        let kernel = self.try_kernel();
        let contestants: &[Contestant] = match kernel {
            Ok(()) => &[Contestant::Own, Contestant::Kernel],
            Err(_) => &[Contestant::Own],
        };
        let files = plan.files.len() as u64;
        let chosen =
            if plan.all_files == files { String::new() } else { format!("{} of ", grouped(files)) };
        self.say(&format!(
            "reading {chosen}{} and {} of 4 KiB, each time from a fresh mount",
            counted(plan.all_files, "file", "files"),
            counted(plan.blocks.len() as u64, "block", "blocks")
        ))?;
        let race = Race {
            arguments: self.arguments,
            image: &self.path,
            scratch: self.scratch,
            plan: &plan,
            interruption: self.interruption,
        };
        let result = race.run(contestants)?;
        self.show_race_result(&result, kernel.err())?;
        Ok(complain_about_failures(&result))
    }

    fn show_race_result(
        &self,
        result: &RaceResult,
        without_kernel: Option<anyhow::Error>,
    ) -> anyhow::Result<()> {
        let mut output = Output::new();
        reading_table::write(result, &mut output)?;
        let rounds = counted(u64::from(result.rounds), "round", "rounds");
        writeln!(
            output,
            "  {rounds}; a fresh mount has nothing in the page cache, the image's file has been read before"
        )?;
        if let Some(reason) = without_kernel {
            writeln!(output, "  not beside the kernel's EROFS: {reason:#}")?;
        }
        writeln!(output, "  ferrofs stats, of the last mount that {} read files from:", several())?;
        reading_table::write_stats(result, &mut output)?;
        writeln!(
            output,
            "unmounted; all {} processes of mounts ended well",
            // And the one that was compared.
            result.own_mounts + 1
        )?;
        output.flush()?;
        Ok(())
    }

    /// Whether the kernel mounts the image; why not.
    fn try_kernel(&self) -> anyhow::Result<()> {
        if self.caller.uid != 0 {
            return Err(anyhow!("that takes root"));
        }
        let directory = self.scratch.join("kernel");
        KernelMount::start(&self.path, &self.arguments.read, &directory)?.end()
    }

    fn compare(
        &self,
        tree: &Path,
        fidelity: Fidelity,
    ) -> anyhow::Result<(ComparisonResult, Duration)> {
        let started = Instant::now();
        let style = self.arguments.progress.progress;
        let mut progress = Progress::new(style, "compare", || self.total);
        let comparison = Comparison {
            tree,
            truth: &self.truth,
            fidelity,
            readers: several(),
            interruption: self.interruption,
        };
        let compared = comparison.run(&mut progress)?;
        progress.finish(compared.done);
        if compared.unreadable > 0 && !self.arguments.read.quiet {
            let files = counted(compared.unreadable, "file", "files");
            stderr::complain(format_args!("{files} not compared: you may not read them"));
        }
        Ok((compared, started.elapsed()))
    }

    fn unpack(&self, unpacked: &Path) -> anyhow::Result<Extracted> {
        let options = Options {
            max_threads: Some(self.resources.threads),
            stop: Some(self.interruption.flag()),
            ..Options::default()
        };
        let style = self.arguments.progress.progress;
        let mut progress = Progress::new(style, "unpack", || self.total);
        let mut done = Work::default();
        let started = Instant::now();
        let result = extract(&self.image, unpacked, &options, &mut |event| match event {
            Event::Progress(now) => {
                done = now.into();
                progress.update(done);
            }
            // What fails because it is cut short is no failure.
            Event::Failed(error) if !self.interruption.is_wanted() => {
                let advice = advice::for_extraction(&error);
                progress.complain_about(error.path(), format_args!("{}{advice}", error.reason()));
            }
            _ => {}
        });
        let time = started.elapsed();
        progress.finish(done);
        self.interruption.check()?;
        let summary =
            result.map_err(|error| anyhow!("{}: {}", escaped(error.path()), error.reason()))?;
        Ok(Extracted { summary, time, peak_bytes: stats::process_peak_bytes() })
    }

    fn say(&self, text: &str) -> anyhow::Result<()> {
        if self.arguments.read.quiet { Ok(()) } else { self.put(text) }
    }

    fn put(&self, text: &str) -> anyhow::Result<()> {
        let mut output = Output::new();
        writeln!(output, "{text}")?;
        output.flush()?;
        self.interruption.check()
    }
}

/// Where the image lies, and what to call it; the carried one is written to a file first.
fn image_path(arguments: &DemoArguments, scratch: &Path) -> anyhow::Result<(PathBuf, String)> {
    if let Some(path) = &arguments.image {
        return Ok((path.clone(), escaped(path.as_os_str().as_bytes())));
    }
    let path = scratch.join("demo.erofs");
    fs::write(&path, carried::IMAGE).context("cannot write the carried image")?;
    Ok((path, "the carried image".to_owned()))
}

/// Names the reads that failed; gives how many of them are ours to answer for.
fn complain_about_failures(result: &RaceResult) -> u64 {
    let mut failures = 0;
    for row in &result.rows {
        for sample in [&row.files, &row.blocks] {
            let Some(failure) = &sample.failure else { continue };
            let reads = counted(sample.failures, "read", "reads");
            let whose = match row.contestant {
                Contestant::Own => {
                    failures += sample.failures;
                    "the mount"
                }
                Contestant::Kernel => "the kernel's mount",
            };
            stderr::complain(format_args!("{reads} from {whose} failed: {failure}"));
        }
    }
    failures
}
