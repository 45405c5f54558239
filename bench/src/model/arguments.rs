//! The command line of the model experiment.

use clap::{Args, ValueEnum};
use ferrofs_model::faults::Kernel;
use ferrofs_model::machine::{CPUS_MAX, Costs};
use ferrofs_model::stream::Queue;
use serde::Serialize;

/// What runs over simulated CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// One submitter and a worker on every other CPU, as in the workqueue experiment
    Workqueue,
    /// Faulting memory in on several threads, as in the jobs experiment
    Jobs,
}

/// A queue, by its name in the workqueue experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModelRow {
    /// QEMU's version 2: shared bitmaps and event, round robin
    Original,
    /// The same with batching
    Batching,
    /// Batching, and slots, bitmaps and events of each worker on lines of their own
    PerThread,
    /// QEMU's version 3: the same without batching
    RoundRobin,
    /// Ours with a submitter that only hands out
    OursWaiting,
    /// Ours, whose submitter works, too
    Ours,
}

impl ModelRow {
    pub(super) fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) const fn queue(self) -> Queue {
        match self {
            Self::Original => Queue::Original,
            Self::Batching => Queue::Batching,
            Self::PerThread => Queue::PerThread,
            Self::RoundRobin => Queue::RoundRobin,
            Self::OursWaiting => Queue::OursWaiting,
            Self::Ours => Queue::Ours,
        }
    }
}

/// What is simulated. Times are in nanoseconds; docs/benchmarks.md says where the numbers come from.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ModelArguments {
    /// What runs; both if nothing is named
    #[arg(value_enum, value_name = "SUBJECT")]
    pub(crate) subjects: Vec<Subject>,
    /// workqueue: numbers of CPUs; the submitter has one of them
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = cpus)]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    pub(crate) cpus: Vec<usize>,
    /// workqueue: queues; all if none is named
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = ModelRow::value_variants().to_vec())]
    pub(crate) rows: Vec<ModelRow>,
    /// workqueue: requests that each worker may have before it, 1 to 64
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) requests: u8,
    /// workqueue: requests looked at for each queue and number of CPUs, after as many that are not; a
    /// tenth with --quick
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub(crate) count: u32,
    /// workqueue: what a request costs who handles it; the default is zlib's level 1 on a page
    #[arg(long, value_name = "NS", default_value_t = 3400.0, value_parser = nanoseconds)]
    pub(crate) request: f64,
    /// jobs: numbers of threads, a CPU each
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = cpus)]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 48, 64, 96])]
    pub(crate) threads: Vec<usize>,
    /// jobs: memory to fault in, in GiB; an eighth with --quick
    #[arg(long, value_name = "GIB", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(8..=1024))]
    pub(crate) gib: u16,
    /// jobs: a fault of a page of 4 KiB, beside the zone's lock
    #[arg(long, value_name = "NS", default_value_t = 250.0, value_parser = nanoseconds)]
    pub(crate) page: f64,
    /// jobs: how long a zone's lock is held for 63 pages, the batch of Linux
    #[arg(long, value_name = "NS", default_value_t = 1000.0, value_parser = nanoseconds)]
    pub(crate) hold: f64,
    /// jobs: what the memory of one socket takes, in GB a second
    #[arg(long, value_name = "GB/s", default_value_t = 150.0, value_parser = nanoseconds)]
    pub(crate) bandwidth: f64,
    /// CPUs that share a socket; 64, but 48 for jobs, if not given
    #[arg(long, value_name = "N", value_parser = cpus)]
    pub(crate) socket: Option<usize>,
    /// Do not run the part that this machine has beside the model
    #[arg(long)]
    pub(crate) no_check: bool,
    #[command(flatten)]
    pub(crate) costs: CostArguments,
}

/// What the machine costs; the defaults are those of [`Costs`].
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct CostArguments {
    /// An access to a line that the CPU holds: 5 cycles at 3.5 GHz
    #[arg(long, value_name = "NS", default_value_t = Costs::default().hit, value_parser = nanoseconds)]
    hit: f64,
    /// A line, or the right to write it, from a CPU of the same socket: an Ice Lake Xeon
    #[arg(long, value_name = "NS", default_value_t = Costs::default().near, value_parser = nanoseconds)]
    near: f64,
    /// The same from another socket
    #[arg(long, value_name = "NS", default_value_t = Costs::default().far, value_parser = nanoseconds)]
    far: f64,
    /// How long a line that many read keeps the next reader waiting: assumed
    #[arg(long, value_name = "NS", default_value_t = Costs::default().occupancy, value_parser = nanoseconds)]
    occupancy: f64,
    /// A locked instruction or a full fence, beyond the access: 19 cycles
    #[arg(long, value_name = "NS", default_value_t = Costs::default().locked, value_parser = nanoseconds)]
    locked: f64,
    /// The hint in a loop that waits: 140 cycles
    #[arg(long, value_name = "NS", default_value_t = Costs::default().pause, value_parser = nanoseconds)]
    pause: f64,
    /// A look at the clock
    #[arg(long, value_name = "NS", default_value_t = Costs::default().clock, value_parser = nanoseconds)]
    clock: f64,
    /// Falling asleep on a futex
    #[arg(long, value_name = "NS", default_value_t = Costs::default().sleep, value_parser = nanoseconds)]
    sleep: f64,
    /// Waking a sleeper, for who wakes
    #[arg(long, value_name = "NS", default_value_t = Costs::default().wake, value_parser = nanoseconds)]
    wake: f64,
    /// From the wake-up until the sleeper runs
    #[arg(long, value_name = "NS", default_value_t = Costs::default().latency, value_parser = nanoseconds)]
    latency: f64,
}

impl CostArguments {
    pub(super) fn costs(self) -> Costs {
        let Self { hit, near, far, occupancy, locked, pause, clock, sleep, wake, latency } = self;
        Costs {
            hit,
            near,
            far,
            occupancy,
            locked,
            pause,
            clock,
            sleep,
            wake,
            latency,
            ..Costs::default()
        }
    }
}

impl ModelArguments {
    pub(super) fn has(&self, subject: Subject) -> bool {
        self.subjects.is_empty() || self.subjects.contains(&subject)
    }

    pub(super) fn kernel(&self) -> Kernel {
        Kernel { page: self.page, batch: 63, hold: self.hold, bandwidth: self.bandwidth }
    }
}

fn cpus(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=CPUS_MAX) => Ok(count),
        Ok(count) => Err(format!("{count} is not within 1 to {CPUS_MAX}")),
        Err(error) => Err(format!("{error}")),
    }
}

/// What takes no time, or is slower than an hour, is a slip.
fn nanoseconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=3.6e12).contains(&number) => Ok(number),
        Ok(number) => Err(format!("{number} is not within 0 to 3.6e12")),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ferrofs_model::machine::Costs;

    use super::Subject;
    use crate::arguments::{Arguments, Experiment};

    fn parse(words: &str) -> Result<super::ModelArguments, String> {
        let parsed = Arguments::try_parse_from(words.split_whitespace());
        match parsed.map_err(|error| error.to_string())?.experiment {
            Experiment::Model(arguments) => Ok(arguments),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn without_numbers_the_costs_are_the_stated_ones() {
        let parsed = parse("bench model").unwrap();
        assert_eq!(parsed.costs.costs(), Costs::default());
        assert!(parsed.has(Subject::Workqueue) && parsed.has(Subject::Jobs));
        assert_eq!(parsed.cpus.last(), Some(&256));
    }

    #[test]
    fn a_subject_and_costs_are_understood() {
        let parsed = parse("bench model jobs --near 23 --threads 1,96 --socket 48").unwrap();
        assert!(!parsed.has(Subject::Workqueue));
        assert_eq!((parsed.threads, parsed.socket), (vec![1, 96], Some(48)));
        assert_eq!(parsed.costs.near, 23.0);
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        for words in ["--cpus 0", "--cpus 513", "--near -1", "--near x", "--page inf", "memory"] {
            assert!(parse(&format!("bench model {words}")).is_err(), "{words}");
        }
    }
}
