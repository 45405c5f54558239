//! The reads experiment: the files of an image read front to back in equal blocks, by one reader and by
//! many at the same time, and what that makes the library decode.

mod readers;

use std::collections::HashSet;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use ferrofs_image::{FileType, Image, Inode, WalkEvent};

use crate::arguments::ReadsArguments;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::Samples;
use crate::table::Table;
pub(crate) use readers::Through;
use readers::{Pass, Work, read_all};

/// Readers that are held against one.
const MANY_READERS: usize = 64;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// Runs the experiment.
///
/// # Errors
/// When the image cannot be read, holds no file of that size, or readers got different bytes.
pub(crate) fn run(
    arguments: &ReadsArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("reads", arguments)?;
    let repeat = if is_quick { 1 } else { arguments.repeat };
    let mut rows: Vec<(usize, Vec<Pass>)> =
        arguments.readers.iter().map(|readers| (usize::from(*readers), Vec::new())).collect();
    let mut first_sum = None;
    for _ in 0..repeat {
        for (readers, passes) in &mut rows {
            // An image of its own, so that nothing is decoded before the first read.
            let image = Image::open(&arguments.image);
            let image = image.with_context(|| format!("opening {}", arguments.image.display()))?;
            let files = chosen(&image, arguments)?;
            let block_bytes = usize::try_from(arguments.block)?;
            writeln!(out, "{} files, {readers} readers", files.len())?;
            let through = arguments.through;
            let work = Work { image: &image, files: &files, block_bytes, through };
            let pass = read_all(work, *readers)?;
            let sum = *first_sum.get_or_insert(pass.sum);
            ensure!(pass.sum == sum, "{readers} readers got other bytes than those before them");
            passes.push(pass);
        }
    }
    add_table(&mut report, arguments, &rows);
    judge(&mut report, &rows)?;
    Ok(report)
}

/// The files that are read: in the order of their paths, each inode once.
fn chosen(image: &Image, arguments: &ReadsArguments) -> Result<Vec<Inode>> {
    let mut nodes = Vec::new();
    for visit in image.walk(b"/")? {
        match visit {
            WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
                nodes.push(node)
            }
            WalkEvent::Problem(problem) => return Err(problem.error.into()),
            _ => {}
        }
    }
    nodes.retain(|node| node.inode.size() >= arguments.at_least);
    nodes.sort_by(|left, right| left.path.cmp(&right.path));
    let mut nids = HashSet::new();
    let mut bytes = 0_u64;
    let mut files: Vec<Inode> = Vec::new();
    for node in nodes {
        if bytes < arguments.most_bytes && nids.insert(node.inode.nid()) {
            bytes = bytes.saturating_add(node.inode.size());
            files.push(node.inode);
        }
    }
    ensure!(!files.is_empty(), "no file of {} bytes or more", arguments.at_least);
    Ok(files)
}

/// Says whether many readers had no more decoded than one, and draws what they were served.
fn judge(report: &mut Report, rows: &[(usize, Vec<Pass>)]) -> Result<()> {
    let mut plot = Plot::bars("Serving readers", "MiB/s, median, and least to most");
    let decoded = |readers: usize| {
        let (_, passes) = rows.iter().find(|(other, _)| *other == readers)?;
        Some(passes.iter().map(|pass| pass.decoded_bytes as f64).collect::<Samples>().median())
    };
    for (readers, passes) in rows {
        let rate = |pass: &Pass| pass.served_bytes as f64 / MIB / pass.seconds;
        let rates: Samples = passes.iter().map(rate).collect();
        let summary = rates.summary();
        let name = format!("{readers} readers");
        plot.add_bar(name.clone(), "", summary.median, summary.minimum, summary.maximum);
        report.judge_repetitions(name, &rates)?;
    }
    report.add_plot(plot);
    if let Some((one, many)) = decoded(1).zip(decoded(MANY_READERS)).filter(|(one, _)| *one > 0.0) {
        let verdict = report.mark("once")?.verdict(&[many / one]);
        report.add_remark(format!(
            "{MANY_READERS} readers had {:.3} times as much decoded as one {verdict}",
            many / one
        ));
    }
    Ok(())
}

fn add_table(report: &mut Report, arguments: &ReadsArguments, rows: &[(usize, Vec<Pass>)]) {
    let mut table = Table::new(
        format!(
            "Reading files of at least {} bytes in blocks of {}: {}",
            arguments.at_least,
            arguments.block,
            arguments.image.display()
        ),
        [
            "readers",
            "MiB served",
            "clusters decoded",
            "MiB decoded",
            "decoded per served",
            "seconds",
            "CPU s",
            "MiB/s",
        ],
    );
    for (readers, passes) in rows {
        let samples = |value: fn(&Pass) -> f64| passes.iter().map(value).collect::<Samples>();
        let seconds = samples(|pass| pass.seconds);
        let cpu_seconds = samples(|pass| pass.cpu_seconds);
        let bytes = samples(|pass| pass.served_bytes as f64);
        let clusters = samples(|pass| pass.clusters as f64);
        let decoded_bytes = samples(|pass| pass.decoded_bytes as f64);
        let (served, decoded) = (bytes.median() / MIB, decoded_bytes.median() / MIB);
        table.add([
            readers.to_string(),
            format!("{served:.1}"),
            format!("{:.0}", clusters.median()),
            format!("{decoded:.1}"),
            format!("{:.3}", decoded / served),
            format!("{:.3}", seconds.median()),
            format!("{:.3}", cpu_seconds.median()),
            format!("{:.1}", served / seconds.median()),
        ]);
        for (row, unit, samples) in [
            ("seconds", "s", seconds),
            ("CPU seconds", "s", cpu_seconds),
            ("bytes served", "B", bytes),
            ("clusters decoded", "clusters", clusters),
            ("bytes decoded", "B", decoded_bytes),
        ] {
            let case = format!("{readers} readers");
            report.add_series(Series { row: row.to_owned(), case, unit, samples });
        }
    }
    report.add_table(table);
}
