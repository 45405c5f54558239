//! The `random` experiment: every block of 4 KiB of a part of an image's largest file once, in random order, through fresh
//! mounts of everybody, by one job and by more.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::bed::{Bed, Wish, find};
use super::column::{Column, Figure, ratio};
use super::findings::{Findings, add_bars};
use super::images::Pictured;
use super::interleave::Pace;
use super::mounted::System;
use super::program::ProgramArguments;
use super::reader::{BLOCK_BYTES, Reader, Way};
use super::work::Work;
use crate::deadline::TimeLimit;
use crate::plot::Plot;
use crate::report::Report;
use crate::table::Table;

/// A quick run reads so much: with large LZMA clusters, a daemon that keeps none takes milliseconds for a block.
const QUICK_BYTES: u64 = 4 << 20;

/// What is read.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct RandomArguments {
    /// EROFS images, with a large file in each
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Who mounts
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = System::EROFS)]
    systems: Vec<System>,
    /// The file, from the root of the tree; the largest one if none is named
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Bytes at its front that are read; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(4096..=1 << 40))]
    bytes: u64,
    /// Threads that read, each its own part, one run for each number
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Vec<u16>,
    /// Rounds, each on mounts made anew; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    #[command(flatten)]
    limit: TimeLimit,
    /// Folder for mount points; the system's temporary folder if none is named
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    #[command(flatten)]
    programs: ProgramArguments,
}

impl RandomArguments {
    fn reader(&self, image: &Pictured, jobs: u16, is_quick: bool) -> Result<Reader> {
        let largest = || image.largest.as_ref().map(|(path, _)| path.clone());
        let file = self.file.as_ref().map(|path| path.strip_prefix("/").unwrap_or(path).into());
        let file: PathBuf = file
            .or_else(largest)
            .with_context(|| format!("{} has no file with anything in it", image.path.display()))?;
        let most = if is_quick { QUICK_BYTES } else { u64::MAX };
        let bytes = self.bytes.min(most);
        Ok(Reader { jobs, bytes, file: Some(file), ..Reader::new(Way::Random) })
    }
}

/// Runs the experiment.
///
/// # Errors
/// When ours cannot mount or read, or the file is too short.
pub(crate) fn run(
    arguments: &RandomArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let images = Pictured::look_at_all(&arguments.images)?;
    let wish = Wish { systems: &arguments.systems, programs: &arguments.programs };
    let found = find(wish)?;
    let mut findings = Findings::new("random", arguments, &found.programs())?;
    let first = images.first().context("no image")?;
    let work = Work::make(arguments.work.as_deref())?;
    let pace = Pace::new(arguments.rounds, 0, is_quick).within(arguments.limit);
    let bed = Bed::new(&mut findings, found, None, (work, first))?;
    findings.report.add_remark(pace.sentence());
    findings.report.add_remark(format!(
        "reads: pread of {BLOCK_BYTES} bytes, every block once, in the same random order for everybody, with POSIX_FADV_RANDOM"
    ));
    let mut verdicts = [findings.verdict("mean-kernel")?, findings.verdict("p99-kernel")?];
    let mut left = arguments.jobs.len() * images.len();
    for jobs in &arguments.jobs {
        let title = format!("random, {jobs} {}", if *jobs == 1 { "job" } else { "jobs" });
        let mut table = Table::new(format!("{title}, microseconds and CPU seconds"), HEADER);
        let mut plot = Plot::bars(title.clone(), "microseconds (mean)");
        for image in &images {
            let case = format!("{title}, {}", image.name);
            let part = pace.part(left);
            left -= 1;
            if !findings.has_time(pace, &case) {
                continue;
            }
            let reader = arguments.reader(image, *jobs, is_quick)?;
            writeln!(out, "{case}")?;
            let contest = bed.contest(image, &reader, part)?;
            findings.keep(&case, &contest);
            for (verdict, figure) in verdicts.iter_mut().zip([Figure::Mean, Figure::P99]) {
                let (ours, theirs) = (System::Ferrofs.name(), System::Kernel.name());
                verdict.add(&case, ratio(&contest.columns, figure, ours, theirs));
            }
            add_rows(&mut table, &image.name, &contest.columns);
            add_bars(&mut plot, &image.name, &contest.columns, Figure::Mean);
        }
        findings.report.add_table(table);
        findings.report.add_plot(plot);
    }
    findings.judge(verdicts);
    Ok(findings.report)
}

const HEADER: [&str; 11] = [
    "image",
    "system",
    "mean",
    "p50",
    "p99",
    "p999",
    "reader CPU",
    "daemon CPU",
    "daemon peak, MiB",
    "mean: ferrofs / it",
    "p99: ferrofs / it",
];

fn add_rows(table: &mut Table, image: &str, columns: &[Column]) {
    let ours = System::Ferrofs.name();
    for column in columns {
        let against = |figure| {
            let ratio = ratio(columns, figure, ours, &column.name).filter(|_| column.name != ours);
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
        };
        table.add([
            image.to_owned(),
            column.name.clone(),
            column.spread(Figure::Mean),
            column.middle(Figure::P50),
            column.spread(Figure::P99),
            column.middle(Figure::P999),
            column.middle(Figure::Cpu),
            column.middle(Figure::DaemonCpu),
            column.middle(Figure::Peak),
            against(Figure::Mean),
            against(Figure::P99),
        ]);
    }
}
