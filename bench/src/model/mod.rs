//! The model experiment: the queues and the jobs of the other experiments over simulated CPUs, for numbers
//! of CPUs that the machine at hand has not. What it has is run beside the model, with costs measured
//! here, so that a reader sees how far the two are apart. Every table and plot says that it is a model.

mod arguments;
mod faulting;
mod here;
mod streams;

use std::io::Write;

use anyhow::Result;

use crate::report::Report;
pub(crate) use arguments::{ModelArguments, Subject};

/// Runs the subjects that were named.
///
/// # Errors
/// When a model loses a request, or the machine refuses what the comparison needs.
pub(crate) fn run(
    arguments: &ModelArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("model", arguments)?;
    report.add_remark(
        "Model: the code of the queues and jobs over simulated CPUs, a MESI directory and the costs \
         that stand in the settings. No figure of it was measured but those marked \"here\".",
    );
    if arguments.has(Subject::Workqueue) {
        streams::run(arguments, is_quick, out, &mut report)?;
    }
    if arguments.has(Subject::Jobs) {
        faulting::run(arguments, is_quick, out, &mut report)?;
    }
    Ok(report)
}
