//! Work that waits for a disk or keeps a processor busy, inside of asynchronous code.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does `work` on this thread, while another one takes over the connections that this thread serves.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // There is no other thread, or no connection is served by this one.
        _ => work(),
    }
}
