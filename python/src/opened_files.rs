//! What open files of an image hold, so that the end of the image ends it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferrofs_image::OpenFile;

use crate::process::PerProcess;

/// What a file of an image holds open.
pub(crate) type OpenSlot = PerProcess<Arc<OpenFile>>;

/// The files that were opened of an image: each keeps the sources of the image open. As in
/// [`PerProcess`], the lock is held for moments that neither wait nor call Python.
#[derive(Debug, Default)]
pub(crate) struct OpenedFiles(Mutex<Vec<Weak<OpenSlot>>>);

impl OpenedFiles {
    pub(crate) fn add(&self, file: &Arc<OpenSlot>) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
            // Twice as many, so that the next such search is far away.
            let count = files.len();
            files.reserve(count + 1);
        }
        files.push(Arc::downgrade(file));
    }

    /// Takes what the files hold; the caller drops it, detached.
    pub(crate) fn take(&self) -> Vec<Arc<OpenFile>> {
        let files = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        files.iter().filter_map(|file| file.upgrade()?.take()).collect()
    }
}
