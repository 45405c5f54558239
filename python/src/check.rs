//! Verifies an image and keeps what was wrong.

use ferrofs_image::{CancelToken, ErrorKind, Image, VerifyEvent, VerifyOptions};
use pyo3::prelude::*;

use crate::errors::{BindingResult, Failure};
use crate::lookup::real_path;
use crate::progress::{Supervision, WorkCounters, supervise};

/// Problems that are kept; all are counted. A damaged image can have millions.
const PROBLEMS_MAX: usize = 1000;

/// Inodes, bytes and problems; and the first problems as exceptions.
pub(crate) type CheckTuple = (u64, u64, u64, Vec<Py<PyAny>>);

/// Verifies what `path` names. A path that leads nowhere is a wrong argument and no problem of the
/// image.
pub(crate) fn check(
    py: Python<'_>,
    image: &Image,
    path: &[u8],
    progress: Option<Py<PyAny>>,
) -> PyResult<CheckTuple> {
    let cancel = CancelToken::new();
    let counters = WorkCounters::default();
    let given =
        Supervision { phases: &["check"], counters: &counters, cancel: &cancel, stream: None };
    let (summary, problems) = supervise(py, &given, progress.as_ref(), |_| {
        let (mut problems, mut exit) = (Vec::new(), None);
        let mut on_event = |event| match event {
            VerifyEvent::Progress(done) => counters.set(done.inodes, done.bytes),
            VerifyEvent::Problem(problem) => {
                let failure = Failure::from(problem.error).at(&problem.path);
                if failure.is_exit() {
                    cancel.cancel();
                    exit.get_or_insert(failure);
                } else if problems.len() < PROBLEMS_MAX {
                    problems.push(failure);
                }
            }
        };
        let start = start_of(image, path)?;
        let options = VerifyOptions::new().path(start).cancel(&cancel);
        let verified = image.verify(&options, &mut on_event);
        if let Some(exit) = exit {
            return Err(exit);
        }
        match verified {
            Ok(summary) => Ok((summary, problems)),
            Err(error) if matches!(error.kind(), ErrorKind::WorkLimit { .. }) => {
                Err(Failure::from(error))
            }
            Err(error) => Err(Failure::from(error).at(path)),
        }
    })?;
    counters.set(summary.inodes, summary.bytes);
    let problems = problems.into_iter().map(|failure| Ok(failure.instance(py)?.unbind()));
    let problems = problems.collect::<PyResult<Vec<_>>>()?;
    Ok((summary.inodes, summary.bytes, summary.problems, problems))
}

/// Where a check of `path` starts. What is damaged on the way is met again by the check, which
/// reports it as a problem.
fn start_of(image: &Image, path: &[u8]) -> BindingResult<Vec<u8>> {
    match real_path(image, path) {
        Err(failure) if !failure.leads_nowhere() && !failure.is_exit() => Ok(path.to_vec()),
        found => found,
    }
}
