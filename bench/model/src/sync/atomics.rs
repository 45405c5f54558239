//! Atomics that report each access to the simulated machine. Called by whoever names the `sync` door.

use std::sync::atomic::{self, Ordering};

use crate::machine::{Access, access};

/// An atomic by the name of the standard library's.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                access(self, Access::Load);
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                access(self, Access::Store);
                self.0.store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                // A processor takes the line to write even if the comparison fails.
                access(self, Access::Update);
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut current = self.load(failure);
                while let Some(new) = change(current) {
                    match self.compare_exchange(current, new, success, failure) {
                        Ok(old) => return Ok(old),
                        Err(other) => current = other,
                    }
                }
                Err(current)
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.fetch_or(value, order)
            }

            pub(crate) fn fetch_xor(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.fetch_xor(value, order)
            }

            pub(crate) fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

/// What only numbers can do.
macro_rules! number {
    ($name:ident, $value:ty) => {
        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.fetch_sub(value, order)
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.fetch_max(value, order)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
