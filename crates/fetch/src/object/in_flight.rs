//! The requests of an object that are in flight, and how they end: with an answer, with an error, or
//! when no client has the object open any more (docs/remote.md, F6).

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use tokio::sync::{Notify, watch};

use super::SharedObject;
use crate::lock::lock;

/// A verb that follows another one opens the same object within this time, and needs what is on its way.
const REOPEN_TIME: Duration = Duration::from_secs(1);

/// A request in flight, for one or several chunks.
#[derive(Debug)]
pub(super) struct InFlightFetch {
    /// The chunks that are stored, or the error.
    pub(super) progress: watch::Sender<Progress>,
    /// A reader waits for it now.
    pub(super) demanded: Notify,
    /// It asks no cache.
    pub(super) is_past_caches: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The chunk behind the last one that was stored.
    pub(super) stored: u32,
    pub(super) outcome: Option<Result<(), FetchError>>,
    /// Of the last attempt.
    pub(super) failure: Option<FetchError>,
}

impl InFlightFetch {
    pub(super) fn begin(
        in_flight: &mut HashMap<u32, Arc<Self>>,
        chunks: &Range<u32>,
        is_past_caches: bool,
    ) -> Arc<Self> {
        let ongoing = Arc::new(Self {
            progress: watch::Sender::new(Progress { stored: chunks.start, ..Progress::default() }),
            demanded: Notify::new(),
            is_past_caches,
        });
        in_flight.extend(chunks.clone().map(|chunk| (chunk, Arc::clone(&ongoing))));
        ongoing
    }

    fn remove_from(&self, in_flight: &mut HashMap<u32, Arc<Self>>, chunks: &Range<u32>) {
        for chunk in chunks.clone() {
            if in_flight.get(&chunk).is_some_and(|other| std::ptr::eq(&raw const **other, self)) {
                in_flight.remove(&chunk);
            }
        }
    }
}

/// An object while a client has it open, or opens it.
#[derive(Debug)]
pub(crate) struct ObjectUse(Arc<SharedObject>);

impl ObjectUse {
    pub(crate) fn new(object: Arc<SharedObject>) -> Self {
        // Only its end is waited for.
        object.uses.send_if_modified(|count| {
            *count += 1;
            false
        });
        Self(object)
    }
}

impl Clone for ObjectUse {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for ObjectUse {
    fn drop(&mut self) {
        self.0.uses.send_if_modified(|count| {
            *count -= 1;
            *count == 0
        });
    }
}

impl Deref for ObjectUse {
    type Target = Arc<SharedObject>;

    fn deref(&self) -> &Arc<SharedObject> {
        &self.0
    }
}

/// A request that runs. Whatever ends it, even a panic, its chunks are no longer in flight, and those who
/// wait hear of it.
pub(super) struct RunningRequest {
    object: Arc<SharedObject>,
    ongoing: Arc<InFlightFetch>,
    chunks: Range<u32>,
    outcome: Result<(), FetchError>,
}

impl RunningRequest {
    pub(super) fn new(
        object: &Arc<SharedObject>,
        ongoing: Arc<InFlightFetch>,
        chunks: Range<u32>,
    ) -> Self {
        let detail = "the request ended before its answer";
        let outcome = Err(object.error(FetchErrorKind::Exhausted, detail));
        Self { object: Arc::clone(object), ongoing, chunks, outcome }
    }

    /// F6. Carries a request out, unless the last client closes the object before.
    pub(super) async fn run(mut self, work: impl Future<Output = Result<(), FetchError>>) {
        let mut work = std::pin::pin!(work);
        let mut uses = self.object.uses.subscribe();
        loop {
            tokio::select! {
                outcome = &mut work => return self.outcome = outcome,
                () = until_unused(&mut uses) => {
                    let mut in_flight = lock(&self.object.in_flight);
                    // Who has opened it before this lock may have seen the request.
                    if *self.object.uses.borrow() == 0 {
                        return self.ongoing.remove_from(&mut in_flight, &self.chunks);
                    }
                }
            }
        }
    }
}

/// Waits until no client has had the object open for [`REOPEN_TIME`]. It returns without the lock of the count, which must not
/// be held while the lock of the requests is taken: whoever has the lock of the requests may wait for that of the count.
async fn until_unused(uses: &mut watch::Receiver<usize>) {
    loop {
        // The sender lives as long as the object.
        uses.wait_for(|count| *count == 0).await.ok();
        tokio::time::sleep(REOPEN_TIME).await;
        // It changes when a last client closes the object, also if that had opened it meanwhile.
        if *uses.borrow() == 0 && !uses.has_changed().unwrap_or(false) {
            return;
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.ongoing.remove_from(&mut lock(&self.object.in_flight), &self.chunks);
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        self.ongoing.progress.send_modify(|progress| progress.outcome = Some(outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Only the count before the wait and after it was looked at.
    #[test]
    fn an_object_that_was_used_meanwhile_is_waited_for_anew() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let uses = watch::Sender::new(0);
        let mut watched = uses.subscribe();
        let started_at = Instant::now();
        let used_after = REOPEN_TIME / 2;
        runtime.block_on(async {
            let using = async {
                tokio::time::sleep(used_after).await;
                // As `ObjectUse` counts.
                for (count, is_told) in [(1, false), (0, true)] {
                    uses.send_if_modified(|now| {
                        *now = count;
                        is_told
                    });
                }
            };
            tokio::join!(until_unused(&mut watched), using);
        });
        assert!(started_at.elapsed() >= used_after + REOPEN_TIME, "{:?}", started_at.elapsed());
    }
}
