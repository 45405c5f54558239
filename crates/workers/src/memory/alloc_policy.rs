//! The two ways to ask for memory, as a type, so that no call can leave it open. It owns nothing;
//! every function of this module that hands out memory takes one.

/// What a caller accepts when memory is short.
///
/// The kernel's field for the same thing is called `besteffort` and means "must succeed"; here each
/// name says what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocPolicy {
    /// Readahead and prefetch: what is at hand, or [`ErrorKind::NotNow`](crate::ErrorKind::NotNow).
    ///
    /// It never faults a page in, never maps, never waits for a lock, a frame or a context, and makes
    /// no system call. It gives way when somebody waits for memory, and while a
    /// [`Pressure`](super::Pressure) watcher says that the system is short. The refusal is about this
    /// moment: it is never to be remembered.
    MayFail,
    /// Somebody waits for the result: a demanded read, an extraction.
    ///
    /// It may map and fault, asks the registered reclaimers to give memory back, waits until
    /// something comes back, and tries again after the system refused. Only at the hard limit it
    /// answers [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory); it never aborts.
    MustSucceed,
}
