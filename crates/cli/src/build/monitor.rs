//! Observes a build: shows its progress, prints warnings, passes on a signal, and compares the
//! image with its source before the image gets its name.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrofs_builder::{BuildObserver, BuildPhase, Error};
use ferrofs_workers::CancelToken;

use super::verify::{ImageVerifier, UnpublishedImage, VerifyCounters};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::signals::StopRequest;

/// Observes a build.
#[derive(Debug)]
pub(super) struct BuildMonitor<'a> {
    stop: &'a StopRequest,
    /// Whether each warning is printed.
    print_warnings: bool,
    verifier: Option<ImageVerifier<'a>>,
    built_bytes: AtomicU64,
    verified_inodes: AtomicU64,
    verified_bytes: AtomicU64,
    warnings: AtomicU64,
    /// `None` while the amount of work is not known.
    progress: Option<Mutex<ProgressDisplay>>,
    phases: Mutex<Vec<(BuildStep, Instant)>>,
}

/// What takes time in a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuildStep {
    Build(BuildPhase),
    Verify,
    Finished,
}

impl<'a> BuildMonitor<'a> {
    /// Observes an import, whose length is not known.
    pub(super) fn new(stop: &'a StopRequest, print_warnings: bool) -> Self {
        Self {
            stop,
            print_warnings,
            verifier: None,
            built_bytes: AtomicU64::new(0),
            verified_inodes: AtomicU64::new(0),
            verified_bytes: AtomicU64::new(0),
            warnings: AtomicU64::new(0),
            progress: None,
            phases: Mutex::default(),
        }
    }

    /// Observes the build of what was imported.
    pub(super) fn for_build(
        self,
        progress: ProgressDisplay,
        verifier: Option<ImageVerifier<'a>>,
    ) -> Self {
        Self { verifier, progress: Some(Mutex::new(progress)), ..self }
    }

    /// The token that cancels the work of the library.
    pub(super) fn cancel_token(&self) -> &CancelToken {
        self.stop.token()
    }

    /// How many warnings there were.
    pub(super) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Relaxed)
    }

    /// Ends the display; returns how long each step took.
    pub(super) fn finish(self) -> Vec<(BuildStep, Duration)> {
        self.begin(BuildStep::Finished);
        let done = self.done();
        if let Some(progress) = self.progress {
            progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish(done);
        }
        let phases = self.phases.into_inner().unwrap_or_else(PoisonError::into_inner);
        phases
            .windows(2)
            .filter_map(|pair| match pair {
                [(step, begun), (_, ended)] => Some((*step, ended.duration_since(*begun))),
                _ => None,
            })
            .collect()
    }

    fn begin(&self, step: BuildStep) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        phases.push((step, Instant::now()));
    }

    fn done(&self) -> WorkAmount {
        // Pairs with nothing: it is only shown.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = read(&self.built_bytes).saturating_add(read(&self.verified_bytes));
        WorkAmount { entries: read(&self.verified_inodes), bytes }
    }

    fn verified(&self, counters: VerifyCounters) {
        self.verified_inodes.store(counters.inodes, Ordering::Relaxed);
        self.verified_bytes.store(counters.bytes, Ordering::Relaxed);
        self.show();
    }

    fn show(&self) {
        // If another thread shows progress right now, that is enough.
        if let Some(Ok(mut progress)) = self.progress.as_ref().map(Mutex::try_lock) {
            progress.update(self.done());
        }
    }
}

impl BuildObserver for BuildMonitor<'_> {
    fn bytes_done(&self, bytes: u64) {
        self.built_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.show();
    }

    fn phase(&self, phase: BuildPhase) {
        self.begin(BuildStep::Build(phase));
    }

    fn inspect(&self, image: &Path, blob: Option<&Path>) -> Result<(), String> {
        let Some(verifier) = &self.verifier else { return Ok(()) };
        self.begin(BuildStep::Verify);
        let place = UnpublishedImage { image, blob };
        let verified = verifier
            .verify(place, &|| self.stop.is_requested(), &mut |counters| self.verified(counters));
        self.begin(BuildStep::Build(BuildPhase::Publish));
        verified.map(|_| ()).map_err(|difference| difference.to_string())
    }

    fn warn(&self, warning: Error) {
        self.warnings.fetch_add(1, Ordering::Relaxed);
        if !self.print_warnings {
            return;
        }
        let path = warning.path().as_os_str().as_bytes();
        let text = format_args!("left out: {}", warning.kind());
        match &self.progress {
            Some(progress) => {
                let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                progress.print_path_message(path, text);
            }
            None => crate::output::print_path_message(path, text),
        }
    }
}
