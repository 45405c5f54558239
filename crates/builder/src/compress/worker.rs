//! What one thread of the data path does: it reads the ranges of a batch and turns them into its output. It owns
//! encoders and a read buffer, and knows nothing of addresses in the image.

use ferrofs_workers::CancelToken;

use crate::compress::output::{BatchOutput, StoredForm, TaskOutput, store_chunks, store_flat};
use crate::compress::profiles::CompressionProfiles;
use crate::compress::{RangeCompressor, RangeInput};
use crate::context::check_cancelled;
use crate::digest::Sha256Digest;
use crate::split::{EncodeConstraints, RangeTask, SEGMENT_BYTES, TaskKind};
use crate::{Error, ErrorKind, Result};

/// Tasks on their way to a thread, then what became of them.
#[derive(Debug, Default)]
pub(crate) struct TaskBatch {
    /// Bytes that are read for its tasks.
    pub(crate) bytes: u64,
    /// What is to be done.
    pub(crate) tasks: Vec<RangeTask>,
    /// What became of it.
    pub(crate) output: BatchOutput,
    /// What went wrong with the first task that has no result, or behind all of them.
    pub(crate) error: Option<Error>,
}

/// Reads and encodes, on one thread.
pub(crate) struct DataWorker {
    profiles: CompressionProfiles,
    /// By the number of the profile, made when the first file needs it.
    compressors: Vec<Option<RangeCompressor>>,
    buffer: Vec<u8>,
    cancel: CancelToken,
}

impl DataWorker {
    /// Without an encoder until one is needed.
    pub(crate) fn new(profiles: CompressionProfiles, cancel: CancelToken) -> Self {
        let compressors = (0..profiles.count()).map(|_| None).collect();
        Self { profiles, compressors, buffer: Vec::new(), cancel }
    }

    /// Does all tasks of a batch, up to the first that fails.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`]. The error of a task is put into the batch, behind the results of those before it.
    pub(crate) fn work_on(&mut self, batch: &mut TaskBatch) -> Result<()> {
        let TaskBatch { tasks, output, error, bytes } = batch;
        // Encoded or not, it is seldom more; growing by and by would copy it, and take twice the memory.
        output.bytes.reserve_exact(usize::try_from(*bytes).unwrap_or(0));
        for task in tasks.iter() {
            check_cancelled(&self.cancel)?;
            if let Err(failed) = self.work(task, output) {
                *error = Some(failed);
                break;
            }
        }
        Ok(())
    }

    /// Does one task, behind what `output` holds.
    pub(crate) fn work(&mut self, task: &RangeTask, output: &mut BatchOutput) -> Result<()> {
        let before = output.bytes.len();
        let done = match task.kind {
            TaskKind::Skip | TaskKind::Pack | TaskKind::Copy { .. } => Ok(StoredForm::Unread),
            TaskKind::Hash => {
                { Sha256Digest::of_file(&task.content, &mut self.buffer, &self.cancel) }
                    .map(StoredForm::Hashed)
            }
            kind => self.read_and(kind, task, output),
        };
        let form = done.map_err(|error| error.at(task.content.source().name()))?;
        output.results.push(TaskOutput { bytes: before..output.bytes.len(), form });
        Ok(())
    }

    fn read_and(
        &mut self,
        kind: TaskKind,
        task: &RangeTask,
        output: &mut BatchOutput,
    ) -> Result<StoredForm> {
        // A task is a segment at most.
        let bytes = usize::try_from(task.bytes.min(SEGMENT_BYTES)).unwrap_or(usize::MAX);
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let buffer = self.buffer.get_mut(..bytes).unwrap_or_default();
        if !buffer.is_empty() {
            let mut reader = task.content.source().open()?;
            let read = reader.read_exact_at(task.start, buffer);
            read.map_err(|error| error.at_byte(task.start))?;
            if task.ends_file() {
                reader.check_unchanged()?;
            }
        }
        let (params, buffer) = (self.profiles.params, &*buffer);
        match kind {
            TaskKind::Encode(constraints) => {
                let none = || Error::new(ErrorKind::Internal("data to encode, but no profile"));
                let place = self.compressors.get_mut(task.profile).ok_or_else(none)?;
                let compressor = match place {
                    Some(compressor) => compressor,
                    None => place.insert(self.profiles.compressor(task.profile)?),
                };
                let part = RangeInput { bytes: buffer, ends_file: task.ends_file(), constraints };
                compressor.compress(part, output, &self.cancel)
            }
            TaskKind::Chunk(chunk) => Ok(store_chunks(buffer, chunk, params.block, output)),
            _ => {
                let may_inline = params.inline_data && task.ends_file();
                Ok(store_flat(buffer, params.block, may_inline, output))
            }
        }
    }

    /// Compresses a range that was tried before and ends elsewhere now.
    pub(crate) fn reencode(&mut self, task: &RangeTask, output: &mut BatchOutput) -> Result<()> {
        let constraints = EncodeConstraints { may_end_apart: true, may_be_flat: false };
        self.work(&RangeTask { kind: TaskKind::Encode(constraints), ..task.clone() }, output)
    }
}
