//! Squares numbers on the workers of a workqueue: `cargo run -p ferrofs-workers --example workqueue`.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use ferrofs_workers::Error;
use ferrofs_workers::workqueue::{Handler, RequestOutcome, WorkQueue, WorkQueueSettings};

/// The state of one worker; each worker has its own.
struct Square;

impl Handler for Square {
    type Request = u64;

    fn handle(&mut self, request: &mut u64) {
        *request *= *request;
    }
}

fn main() -> Result<(), Error> {
    let mut sum = 0;
    let on_done = |request: &mut u64, outcome| {
        if outcome == RequestOutcome::Done {
            sum += *request;
        }
    };
    let mut queue = WorkQueue::new(&WorkQueueSettings::default(), || 0, || Ok(Square), on_done)?;
    for number in 1..=1_000 {
        let mut slot = queue.reserve_or_inline();
        *slot.request() = number;
        slot.submit();
    }
    queue.wait();
    drop(queue);
    println!("the sum of the squares from 1 to 1000 is {sum}");
    Ok(())
}
