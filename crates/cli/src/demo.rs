//! `ferrofs demo`: the main job on real input. Unpacks an image and mounts it, compares every byte of both with what it
//! must be, reads the mount with several readers beside the kernel's own, and shows what was measured.

mod benchmark;
mod carried;
mod comparison;
mod credentials;
mod kernel_mount;
mod own_mount;
mod readers;
mod reading_plan;
mod reading_table;
mod record;
mod reference;
mod table;
mod temp_directory;
mod visibility;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use benchmark::{BenchmarkResult, MountBenchmark, MountKind, several};
use comparison::{Comparison, ComparisonResult};
use credentials::Credentials;
use ferrofs_extract::{ExtractEvent, ExtractOptions, ExtractSummary, Selection, extract, measure};
use ferrofs_image::Image;
use kernel_mount::KernelMount;
use own_mount::{DaemonMount, MountAttempt};
use reading_plan::ReadingPlan;
use reference::ReferenceTree;
use table::{ExtractTable, write_compared};
use temp_directory::TempDirectory;
use visibility::VisibilityRules;

use crate::amount::{counted, grouped};
use crate::arguments::DemoArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::resources::Resources;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::{diagnostics, read_stats, source};

/// What an extraction took.
struct TimedExtract {
    summary: ExtractSummary,
    time: Duration,
    peak_bytes: Option<u64>,
}

/// What is shown, where, and to whom.
struct DemoRun<'a> {
    arguments: &'a DemoArguments,
    temp: &'a Path,
    stop: &'a StopRequest,
    resources: Resources,
    credentials: Credentials,
    /// The image's file, and what to call it.
    path: PathBuf,
    name: String,
    image: Image,
    reference: ReferenceTree,
    total: WorkAmount,
}

/// Unpacks, mounts, compares, measures.
pub(crate) fn run(
    arguments: &DemoArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    let temp = TempDirectory::new().context("cannot make a directory for temporary files")?;
    let path = escape(temp.path().as_os_str().as_bytes());
    let shown = DemoRun::new(arguments, temp.path(), &stop).and_then(|demo_run| demo_run.run());
    // A signal may have ended programs that were asked, too; then it is the reason, and not what they lack.
    let shown = shown.or_else(|error| stop.check().map_err(Into::into).and(Err(error)));
    let removed = temp.remove().with_context(|| format!("cannot remove {path}"));
    match (shown, removed) {
        (Err(error), Err(left)) => {
            output::print_message(format_args!("{left:#}"));
            Err(error)
        }
        (shown, removed) => removed.and(shown),
    }
}

impl<'a> DemoRun<'a> {
    fn new(
        arguments: &'a DemoArguments,
        temp: &'a Path,
        stop: &'a StopRequest,
    ) -> anyhow::Result<Self> {
        let (path, name) = image_path(arguments, temp)?;
        let resources = Resources::of(&arguments.work)?;
        let image = source::open_for_work(&path, &arguments.read, &resources)?;
        let reference = match (&arguments.image, &arguments.source) {
            (None, _) => ReferenceTree::Manifest,
            (Some(_), Some(source)) => ReferenceTree::Directory(source.clone()),
            (Some(_), None) => ReferenceTree::Image(image.clone()),
        };
        let total = measure(&image, &Selection::default()).into();
        let credentials = Credentials::current();
        Ok(Self {
            arguments,
            temp,
            stop,
            resources,
            credentials,
            path,
            name,
            image,
            reference,
            total,
        })
    }

    fn run(&self) -> anyhow::Result<CommandStatus> {
        let problems = self.show_unpacking()? + self.show_mount()?;
        read_stats::print_stats(read_stats::collect(&self.resources, &self.image, None).as_ref());
        Ok(CommandStatus::from_failures(problems))
    }

    /// Gives how many problems there were.
    fn show_unpacking(&self) -> anyhow::Result<u64> {
        let unpacked = self.temp.join("tree");
        let shown = escape(unpacked.as_os_str().as_bytes());
        self.print_if_verbose(&format!("unpacking {} into {shown}", self.name))?;
        let extracted = self.unpack(&unpacked)?;
        self.print_if_verbose(&format!("comparing every byte with {}", self.reference.name()))?;
        let visibility = VisibilityRules::of_unpacked(&self.credentials, &self.reference);
        let (compared, compare_time) = self.compare(&unpacked, visibility)?;
        let image_bytes =
            fs::metadata(&self.path)?.len().saturating_sub(self.arguments.read.offset);
        let table = ExtractTable {
            name: &self.name,
            image_bytes,
            extracted: &extracted,
            compared,
            compare_time,
        };
        let mut output = Output::new();
        table.write(&mut output)?;
        output.flush()?;
        Ok(extracted.summary.failures + compared.differences)
    }

    /// Gives how many problems there were.
    fn show_mount(&self) -> anyhow::Result<u64> {
        let directory = self.temp.join("mnt");
        let shown = escape(directory.as_os_str().as_bytes());
        let mount = match DaemonMount::start(self.arguments, &self.path, &directory)? {
            MountAttempt::Done(mount) => mount,
            MountAttempt::Unavailable(reason) => {
                self.print(&format!("no mount is shown: {reason}"))?;
                return Ok(0);
            }
        };
        self.print_if_verbose(&format!("mounted on {shown} by user {}", self.credentials.uid))?;
        self.print_if_verbose(&format!(
            "comparing every byte and attribute, by {} readers, with {}",
            several(),
            self.reference.name()
        ))?;
        let visibility = VisibilityRules::of_mount(&self.credentials, &self.reference);
        let (compared, compare_time) = self.compare(mount.directory(), visibility)?;
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
        let plan = ReadingPlan::choose(&self.image, self.total, self.stop)?;
        let kernel = self.try_kernel();
        let contestants: &[MountKind] = match kernel {
            Ok(()) => &[MountKind::Own, MountKind::Kernel],
            Err(_) => &[MountKind::Own],
        };
        let files = plan.files.len() as u64;
        let chosen =
            if plan.all_files == files { String::new() } else { format!("{} of ", grouped(files)) };
        self.print_if_verbose(&format!(
            "reading {chosen}{} and {} of 4 KiB, each time from a fresh mount",
            counted(plan.all_files, "file", "files"),
            counted(plan.blocks.len() as u64, "block", "blocks")
        ))?;
        let benchmark = MountBenchmark {
            arguments: self.arguments,
            image: &self.path,
            temp: self.temp,
            plan: &plan,
            stop: self.stop,
        };
        let result = benchmark.run(contestants)?;
        self.show_race_result(&result, kernel.err())?;
        Ok(complain_about_failures(&result))
    }

    fn show_race_result(
        &self,
        result: &BenchmarkResult,
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
        if self.credentials.uid != 0 {
            return Err(anyhow!("that takes root"));
        }
        let directory = self.temp.join("kernel");
        KernelMount::start(&self.path, &self.arguments.read, &directory)?.end()
    }

    fn compare(
        &self,
        tree: &Path,
        visibility: VisibilityRules,
    ) -> anyhow::Result<(ComparisonResult, Duration)> {
        let started = Instant::now();
        let style = self.arguments.progress.progress;
        let mut progress = ProgressDisplay::new(style, "compare", || self.total);
        let comparison = Comparison {
            tree,
            reference: &self.reference,
            visibility,
            readers: several(),
            stop: self.stop,
        };
        let compared = comparison.run(&mut progress)?;
        progress.finish(compared.done);
        if compared.unreadable > 0 && !self.arguments.read.quiet {
            let files = counted(compared.unreadable, "file", "files");
            output::print_message(format_args!("{files} not compared: you may not read them"));
        }
        Ok((compared, started.elapsed()))
    }

    fn unpack(&self, unpacked: &Path) -> anyhow::Result<TimedExtract> {
        let options = ExtractOptions::new()
            .max_threads(Some(self.resources.threads))
            .cancel(self.stop.token());
        let style = self.arguments.progress.progress;
        let mut progress = ProgressDisplay::new(style, "unpack", || self.total);
        let mut done = WorkAmount::default();
        let started = Instant::now();
        let result = extract(&self.image, unpacked, &options, &mut |event| match event {
            ExtractEvent::Progress(now) => {
                done = now.into();
                progress.update(done);
            }
            // What fails because it is cut short is no failure.
            ExtractEvent::Failed(error) if !self.stop.is_requested() => {
                let suggestion = diagnostics::for_extract_error(&error);
                progress.print_path_message(
                    error.path(),
                    format_args!("{}{suggestion}", error.reason()),
                );
            }
            _ => {}
        });
        let time = started.elapsed();
        progress.finish(done);
        self.stop.check()?;
        let summary =
            result.map_err(|error| anyhow!("{}: {}", escape(error.path()), error.reason()))?;
        Ok(TimedExtract { summary, time, peak_bytes: read_stats::process_peak_bytes() })
    }

    fn print_if_verbose(&self, text: &str) -> anyhow::Result<()> {
        if self.arguments.read.quiet { Ok(()) } else { self.print(text) }
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        let mut output = Output::new();
        writeln!(output, "{text}")?;
        output.flush()?;
        Ok(self.stop.check()?)
    }
}

/// Where the image lies, and what to call it; the carried one is written to a file first.
fn image_path(arguments: &DemoArguments, temp: &Path) -> anyhow::Result<(PathBuf, String)> {
    if let Some(path) = &arguments.image {
        return Ok((path.clone(), escape(path.as_os_str().as_bytes())));
    }
    let path = temp.join("demo.erofs");
    fs::write(&path, carried::IMAGE).context("cannot write the carried image")?;
    Ok((path, "the carried image".to_owned()))
}

/// Names the reads that failed; gives how many of them are ours to answer for.
fn complain_about_failures(result: &BenchmarkResult) -> u64 {
    let mut failures = 0;
    for row in &result.rows {
        for sample in [&row.files, &row.blocks] {
            let Some(failure) = &sample.failure else { continue };
            let reads = counted(sample.failures, "read", "reads");
            let whose = match row.mount_kind {
                MountKind::Own => {
                    failures += sample.failures;
                    "the mount"
                }
                MountKind::Kernel => "the kernel's mount",
            };
            output::print_message(format_args!("{reads} from {whose} failed: {failure}"));
        }
    }
    failures
}
