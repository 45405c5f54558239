//! A thread of the simulated machine: a stack of its own on one thread of the system, which runs until
//! it gives way. All fibers of a machine run on one thread, so exactly one of them runs at a time and
//! nothing depends on the system's scheduler. Called by `machine` alone.
#![allow(unsafe_code, reason = "a fiber finds the way back to who resumed it through a pointer")]

use std::cell::Cell;
use std::{io, ptr};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Enough for the deepest calls of a queue and for a panic on top of them.
const STACK_BYTES: usize = 256 << 10;

thread_local! {
    /// The way back of the fiber that runs on this thread; null while none does.
    static WAY_BACK: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A body with a stack.
pub(crate) struct Fiber(Coroutine<(), (), ()>);

impl Fiber {
    /// A body that has not begun.
    ///
    /// # Errors
    /// When there is no memory for its stack.
    pub(crate) fn new(body: impl FnOnce() + 'static) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        Ok(Self(Coroutine::with_stack(stack, move |yielder, ()| {
            WAY_BACK.set(yielder);
            body();
        })))
    }

    /// Runs it until it gives way or ends; says whether it ended. Its panic goes on here.
    pub(crate) fn resume(&mut self) -> bool {
        /// Whoever ran before, put back even after a panic.
        struct Outer(*const Yielder<(), ()>);

        impl Drop for Outer {
            fn drop(&mut self) {
                WAY_BACK.set(self.0);
            }
        }

        let _outer = Outer(WAY_BACK.get());
        matches!(self.0.resume(()), CoroutineResult::Return(()))
    }
}

/// Goes back to who resumed this fiber, until it is resumed again.
///
/// # Panics
/// Outside of a fiber: that would be a mistake of the machine.
pub(crate) fn give_way() {
    let way_back = WAY_BACK.get();
    assert!(!way_back.is_null(), "give_way: no fiber runs");
    // SAFETY: the pointer was set by the fiber that runs now: at its start, or below when it came
    // back; `resume` puts the outer one back whenever a fiber stops, and each thread has its own. The
    // yielder lies on the fiber's stack below its body, so it lives as long as the body runs.
    unsafe { (*way_back).suspend(()) };
    WAY_BACK.set(way_back);
}
