//! The sheet of `extract` and `check`: a row for each image, wall and CPU time of everybody who takes part, ours with one
//! thread and with more against fsck.erofs, and peak memory. Runs nothing itself.

use anyhow::Result;
use clap::Args;
use ferrofs_workers::cpus::AvailableCpus;
use serde::Serialize;

use super::column::{Column, Figure, Sample, ratio};
use super::findings::{Findings, Verdict, add_bars};
use super::interleave::{Contestant, Pace, interleave};
use super::worded::Worded;
use crate::plot::Plot;
use crate::report::Report;
use crate::table::Table;

/// The peer that ours is held against.
pub(super) const FSCK: &str = "fsck.erofs";

/// How often, and with how many threads.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct RunArguments {
    /// Rounds that count, after one that does not; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Threads of ours beside its run with one; as many as the system runs at once if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
}

impl RunArguments {
    /// One, and more if there are more.
    pub(super) fn thread_counts(self) -> Vec<u16> {
        let granted = u16::try_from(AvailableCpus::read().parallelism()).unwrap_or(u16::MAX);
        let mut counts = vec![1, self.jobs.unwrap_or(granted)];
        counts.dedup();
        counts
    }

    pub(super) fn pace(self, is_quick: bool) -> Pace {
        Pace::new(self.rounds, 1, is_quick)
    }
}

/// What a run of ours with so many threads is called.
pub(super) fn ours_with(jobs: u16) -> String {
    format!("ferrofs --jobs {jobs}")
}

/// Tables that are being filled.
#[derive(Debug)]
pub(super) struct Sheet {
    /// Whose columns there are, in order.
    names: Vec<String>,
    /// Ours with one thread, and with most.
    one: String,
    many: Option<String>,
    times: Table,
    peaks: Table,
    plot: Plot,
    one_thread: Verdict,
    many_threads: Verdict,
    gain: Verdict,
    cost: Verdict,
}

impl Sheet {
    /// An empty one for contestants of these names.
    pub(super) fn new(
        findings: &Findings,
        title: &str,
        names: Vec<String>,
        threads: &[u16],
    ) -> Result<Self> {
        let many = threads.get(1).copied();
        let mut header = vec!["image".to_owned()];
        for name in &names {
            header.extend([format!("{name} wall"), "CPU".to_owned()]);
        }
        header.push("1 / fsck".to_owned());
        if let Some(many) = many {
            header.extend([
                format!("{many} / fsck"),
                format!("{many} / 1"),
                format!("CPU {many} / 1"),
            ]);
        }
        let peaks = ["image".to_owned()].into_iter().chain(names.iter().cloned());
        Ok(Self {
            one: ours_with(1),
            many: many.map(ours_with),
            times: Table::new(format!("{title}, seconds"), header),
            peaks: Table::new("Peak memory, MiB", peaks),
            plot: Plot::bars(title, "seconds (wall)"),
            one_thread: findings.verdict("one-thread")?,
            many_threads: findings.verdict("many-threads")?,
            gain: findings.verdict("gain")?,
            cost: findings.verdict("cost")?,
            names,
        })
    }

    /// Has an image measured, and adds its row.
    pub(super) fn measure(
        &mut self,
        findings: &mut Findings,
        image: &str,
        (contestants, pace): (&[Contestant<Worded>], Pace),
        measure: impl FnMut(&Worded) -> Result<Sample>,
    ) -> Result<()> {
        for one in contestants {
            findings.report.add_peer_command(&one.name, one.what.line());
        }
        let contest = interleave(contestants, pace, measure)?;
        findings.keep(image, &contest);
        self.add(image, &contest.columns);
        Ok(())
    }

    fn add(&mut self, image: &str, columns: &[Column]) {
        let (one, many) = (&self.one, self.many.as_deref().unwrap_or_default());
        let ratios = [
            ratio(columns, Figure::Wall, one, FSCK),
            ratio(columns, Figure::Wall, many, FSCK),
            ratio(columns, Figure::Wall, many, one),
            ratio(columns, Figure::Cpu, many, one),
        ];
        let verdicts =
            [&mut self.one_thread, &mut self.many_threads, &mut self.gain, &mut self.cost];
        verdicts.into_iter().zip(ratios).for_each(|(verdict, ratio)| verdict.add(image, ratio));
        let of = |name: &String| columns.iter().find(|column| column.name == *name);
        let (mut times, mut peaks) = (vec![image.to_owned()], vec![image.to_owned()]);
        for column in self.names.iter().map(of) {
            let cell = |say: &dyn Fn(&Column) -> String| column.map_or_else(String::new, say);
            times.push(cell(&|column| column.spread(Figure::Wall)));
            times.push(cell(&|column| column.middle(Figure::Cpu)));
            peaks.push(cell(&|column| column.middle(Figure::Peak)));
        }
        let shown = if self.many.is_some() { ratios.len() } else { 1 };
        let ratios = ratios.into_iter().take(shown);
        times.extend(ratios.map(|r| r.map_or_else(String::new, |ratio| format!("{ratio:.2}"))));
        self.times.add(times);
        self.peaks.add(peaks);
        add_bars(&mut self.plot, image, columns, Figure::Wall);
    }

    /// The report with all of it.
    pub(super) fn finish(self, mut findings: Findings) -> Report {
        findings.report.add_table(self.times);
        findings.report.add_table(self.peaks);
        findings.report.add_plot(self.plot);
        findings.judge([self.one_thread, self.many_threads, self.gain, self.cost]);
        findings.report
    }
}

#[cfg(test)]
mod tests {
    use super::{FSCK, Sheet, ours_with};
    use crate::peers::column::{Column, Figure, Sample};
    use crate::peers::findings::Findings;

    fn column(name: &str, wall: f64, cpu: f64) -> Column {
        let mut column = Column::new(name);
        column.push(&Sample::from([(Figure::Wall, wall), (Figure::Cpu, cpu)]));
        column
    }

    #[test]
    fn a_row_holds_ours_against_fsck_and_against_itself() {
        let findings = Findings::new("check", &serde_json::json!({}), &[]).unwrap();
        let names = vec![FSCK.to_owned(), ours_with(1), ours_with(2)];
        let mut sheet = Sheet::new(&findings, "check", names, &[1, 2]).unwrap();
        let columns = [
            column(FSCK, 2.0, 2.0),
            column(&ours_with(1), 1.0, 1.0),
            column(&ours_with(2), 0.5, 1.1),
        ];
        sheet.add("lz4", &columns);
        sheet.add("alone", &columns[1..2]);
        let mut text = Vec::new();
        sheet.finish(findings).print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(" 0.50 |") && text.contains(" 0.25 |"), "{text}");
        assert!(text.contains("1.100 here, held") && text.contains("0.250 here, held"), "{text}");
    }
}
