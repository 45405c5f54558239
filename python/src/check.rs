//! Verifies an image and keeps what was wrong.

use ferrofs_image::{CancelToken, ErrorKind, Image, VerifyEvent, VerifyOptions};
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::progress::{Supervision, WorkCounters, supervise};

/// Problems that are kept; all are counted. A damaged image can have millions.
const PROBLEMS_MAX: usize = 1000;

/// Inodes, bytes and problems; and the first problems as exceptions.
pub(crate) type CheckTuple = (u64, u64, u64, Vec<Py<PyAny>>);

/// Verifies what `path` names.
pub(crate) fn check(
    py: Python<'_>,
    image: &Image,
    path: &[u8],
    progress: Option<Py<PyAny>>,
) -> PyResult<CheckTuple> {
    let cancel = CancelToken::new();
    let counters = WorkCounters::default();
    let given = Supervision { phases: &["check"], counters: &counters, cancel: &cancel };
    let (summary, problems) = supervise(py, &given, progress.as_ref(), || {
        let mut problems = Vec::new();
        let mut on_event = |event| match event {
            VerifyEvent::Progress(done) => counters.set(done.inodes, done.bytes),
            VerifyEvent::Problem(problem) if problems.len() < PROBLEMS_MAX => {
                problems.push(Failure::from(problem.error).at(&problem.path));
            }
            VerifyEvent::Problem(_) => {}
        };
        let options = VerifyOptions::new().path(path).cancel(&cancel);
        match image.verify(&options, &mut on_event) {
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
