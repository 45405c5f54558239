//! What a thread of an extraction does with a request: run a batch, or write a segment of a large
//! file. It keeps one buffer of 256 KiB and nothing else between requests. Called by the workqueue.

use std::sync::Arc;

use ferrofs_workers::workqueue::Handler;

use crate::batch::Batch;
use crate::content::ContentWriter;
use crate::entry_writer::{Report, Task};
use crate::large_file::{Ended, Segment};

/// A request, and afterwards what came of it.
#[derive(Debug, Default)]
pub(crate) enum Request {
    #[default]
    Nothing,
    Batch(Batch),
    Segment(Segment),
    /// A segment has ended, and others of its file are still being written.
    Ended(Report),
}

/// One thread's share in an extraction.
#[derive(Debug)]
pub(crate) struct Worker {
    task: Arc<Task>,
    content: ContentWriter,
}

impl Worker {
    pub(crate) fn new(task: Arc<Task>) -> Self {
        Self { task, content: ContentWriter::default() }
    }
}

impl Handler for Worker {
    type Request = Request;

    fn handle(&mut self, request: &mut Request) {
        if let Request::Segment(segment) = request {
            segment.write(&mut self.content);
        }
        // From here on a panic would be the batch's.
        *request = match std::mem::take(request) {
            Request::Segment(segment) => end(segment),
            other => other,
        };
        if let Request::Batch(batch) = request {
            batch.run(&self.task, &mut self.content);
        }
    }
}

/// Ends a segment.
pub(crate) fn end(segment: Segment) -> Request {
    match segment.end() {
        Ended::OneOfMany(report) => Request::Ended(report),
        Ended::Last(batch) => Request::Batch(batch),
    }
}
