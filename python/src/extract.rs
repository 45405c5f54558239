//! Extracts an image, or some of its entries, into a directory of the host.

use std::path::PathBuf;

use ferrofs_extract::{ExistingFiles, ExtractEvent, ExtractOptions, OwnerPolicy, Selection};
use ferrofs_image::{CancelToken, Image};
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::progress::{Supervision, WorkCounters, supervise};

/// Failures that are kept; all are counted.
const FAILURES_MAX: usize = 1000;

/// Entries, bytes and failures; and the first failures as exceptions.
pub(crate) type ExtractTuple = (u64, u64, u64, Vec<Py<PyAny>>);

/// What to extract, and how.
#[derive(Debug, FromPyObject)]
pub(crate) struct GivenExtraction {
    destination: PathBuf,
    /// Paths; everything if there is none.
    members: Vec<Vec<u8>>,
    /// Whether owners, attributes, set-id bits and devices are those of the image.
    preserve: bool,
    /// Whether the destination gets the metadata of the root; without it, only one that is made here.
    root_metadata: Option<bool>,
    /// The most bytes that are written, and of repeated work; the defaults if there are none.
    max_output: Option<u64>,
    max_work: Option<u64>,
}

/// Extracts. What exists is replaced, as zipfile does it.
pub(crate) fn extract(
    py: Python<'_>,
    image: &Image,
    given: GivenExtraction,
    progress: Option<Py<PyAny>>,
) -> PyResult<ExtractTuple> {
    let cancel = CancelToken::new();
    let counters = WorkCounters::default();
    let supervision =
        Supervision { phases: &["extract"], counters: &counters, cancel: &cancel, stream: None };
    let (summary, failures) = supervise(py, &supervision, progress.as_ref(), |_| {
        let (mut failures, mut exit) = (Vec::new(), None);
        let mut on_event = |event| match event {
            ExtractEvent::Progress(done) => counters.set(done.entries, done.bytes),
            ExtractEvent::Failed(error) => {
                let failure = Failure::from(error);
                if failure.is_exit() {
                    cancel.cancel();
                    exit.get_or_insert(failure);
                } else if failures.len() < FAILURES_MAX {
                    failures.push(failure);
                }
            }
            _ => {}
        };
        let owners = if given.preserve { OwnerPolicy::IfRoot } else { OwnerPolicy::Caller };
        // A directory that was there belongs to the caller: `/tmp` must not lose its sticky bit.
        let sets_root = given.root_metadata.unwrap_or_else(|| !given.destination.exists());
        let options = ExtractOptions::new()
            .existing(ExistingFiles::Replace)
            .selection(Selection::of_paths(&given.members))
            .owners(owners)
            .skip_xattrs(!given.preserve)
            .skip_set_id(!given.preserve)
            .skip_devices(!given.preserve)
            .skip_destination_metadata(!sets_root)
            .max_output(given.max_output)
            .max_work(given.max_work)
            .cancel(&cancel);
        let extracted =
            ferrofs_extract::extract(image, &given.destination, &options, &mut on_event);
        match exit {
            Some(exit) => Err(exit),
            None => Ok((extracted?, failures)),
        }
    })?;
    counters.set(summary.entries(), summary.bytes);
    let failures = failures.into_iter().map(|failure| Ok(failure.instance(py)?.unbind()));
    let failures = failures.collect::<PyResult<Vec<_>>>()?;
    Ok((summary.entries(), summary.bytes, summary.failures, failures))
}
