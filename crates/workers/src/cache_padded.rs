//! A value alone on its cache lines, so that two threads that write adjacent fields do not slow each other down.
//! Used wherever two fields have different writers.

use std::ops::{Deref, DerefMut};

/// `T` at the start of 128 bytes of its own.
///
/// A cache line has 64 bytes on most processors, but x86-64 prefetches lines in pairs and some aarch64 processors
/// have lines of 128.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
