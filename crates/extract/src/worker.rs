//! What a thread of an extraction does with a request: run a batch, or write a segment of a large
//! file. It keeps one buffer of 256 KiB and nothing else between requests. Called by the workqueue.

use std::sync::Arc;

use ferrofs_workers::workqueue::Handler;

use crate::batch::EntryBatch;
use crate::content::ContentWriter;
use crate::entry_writer::{ExtractContext, TaskReport};
use crate::large_file::{FileSegment, SegmentEnd};

/// A request, and afterwards what came of it.
#[derive(Debug, Default)]
pub(crate) enum ExtractRequest {
    #[default]
    Nothing,
    Batch(EntryBatch),
    Segment(FileSegment),
    /// A segment has ended, and others of its file are still being written.
    Ended(TaskReport),
}

/// One thread's share in an extraction.
#[derive(Debug)]
pub(crate) struct ExtractWorker {
    context: Arc<ExtractContext>,
    content: ContentWriter,
}

impl ExtractWorker {
    pub(crate) fn new(context: Arc<ExtractContext>) -> Self {
        Self { context, content: ContentWriter::default() }
    }
}

impl Handler for ExtractWorker {
    type Request = ExtractRequest;

    fn handle(&mut self, request: &mut ExtractRequest) {
        if let ExtractRequest::Segment(segment) = request {
            segment.write(&mut self.content);
        }
        // From here on a panic would be the batch's.
        *request = match std::mem::take(request) {
            ExtractRequest::Segment(segment) => end(segment),
            other => other,
        };
        if let ExtractRequest::Batch(batch) = request {
            batch.run(&self.context, &mut self.content);
        }
    }
}

/// Ends a segment.
pub(crate) fn end(segment: FileSegment) -> ExtractRequest {
    match segment.end() {
        SegmentEnd::OneOfMany(report) => ExtractRequest::Ended(report),
        SegmentEnd::Last(batch) => ExtractRequest::Batch(batch),
    }
}
