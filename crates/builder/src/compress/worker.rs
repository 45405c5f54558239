//! A worker of the data path: reads the ranges of an item and turns them into its output. It owns its
//! encoder and its read buffer; whatever goes wrong is a value in the item.

use ferrofs_workers::workqueue::{Handler, NoHandler};

use super::digest::{Digest, Hasher};
use super::output::{Form, Outcome, Output};
use super::recipes::Recipes;
use super::{Compressor, Part};
use crate::flat::{lay_chunks, lay_flat};
use crate::segment::{Duty, Freedom, SEGMENT_BYTES, Task};
use crate::tree::{Content, Reader};
use crate::{Error, ErrorKind, Result};

/// What a slot of the queue holds: tasks, then what became of them.
#[derive(Debug, Default)]
pub(crate) struct Item {
    /// Its place in the order of all items.
    pub(crate) number: u64,
    /// Bytes that are read for it.
    pub(crate) bytes: u64,
    /// What is to be done.
    pub(crate) tasks: Vec<Task>,
    /// What became of it.
    pub(crate) output: Output,
    /// What went wrong with the first task that has no result.
    pub(crate) error: Option<Error>,
}

/// Reads and encodes, on one thread.
pub(crate) struct Worker {
    recipes: Recipes,
    /// By the number of the recipe, made when the first file needs it.
    compressors: Vec<Option<Compressor>>,
    buffer: Vec<u8>,
}

impl Worker {
    /// Without an encoder until one is needed.
    pub(crate) fn new(recipes: Recipes) -> Self {
        let compressors = (0..recipes.count()).map(|_| None).collect();
        Self { recipes, compressors, buffer: Vec::new() }
    }

    /// One of these for the queue, which asks for a result.
    pub(crate) fn for_queue(recipes: Recipes) -> Result<Self, NoHandler> {
        Ok(Self::new(recipes))
    }

    /// Does one task, behind what `output` holds.
    pub(crate) fn work(&mut self, task: &Task, output: &mut Output) -> Result<()> {
        let before = output.bytes.len();
        let done = match task.duty {
            Duty::Skip | Duty::Pack | Duty::Copy { .. } => Ok(Form::Unread),
            Duty::Hash => hash(&task.content, &mut self.buffer).map(Form::Hashed),
            duty => self.read_and(duty, task, output),
        };
        let form = done.map_err(|error| error.at(task.content.store().name()))?;
        output.results.push(Outcome { bytes: before..output.bytes.len(), form });
        Ok(())
    }

    fn read_and(&mut self, duty: Duty, task: &Task, output: &mut Output) -> Result<Form> {
        // A task is a segment at most.
        let bytes = usize::try_from(task.bytes.min(SEGMENT_BYTES)).unwrap_or(usize::MAX);
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let buffer = self.buffer.get_mut(..bytes).unwrap_or_default();
        if !buffer.is_empty() {
            let mut reader = task.content.store().open()?;
            read(reader.as_mut(), task.start, buffer)?;
            if task.closes() {
                reader.check_unchanged()?;
            }
        }
        let (rules, buffer) = (self.recipes.rules, &*buffer);
        match duty {
            Duty::Encode(freedom) => {
                let none = || Error::new(ErrorKind::Defect("something to encode, and no recipe"));
                let place = self.compressors.get_mut(task.recipe).ok_or_else(none)?;
                let compressor = match place {
                    Some(compressor) => compressor,
                    None => place.insert(self.recipes.compressor(task.recipe)?),
                };
                let part = Part { bytes: buffer, closes: task.closes(), freedom };
                compressor.compress(part, output)
            }
            Duty::Chunk(chunk) => Ok(lay_chunks(buffer, (chunk, rules.block), output)),
            _ => {
                let may_inline = rules.inline_data && task.closes();
                Ok(lay_flat(buffer, rules.block, may_inline, output))
            }
        }
    }

    /// Compresses a range that was tried before and ends elsewhere now.
    pub(crate) fn work_again(&mut self, task: &Task, output: &mut Output) -> Result<()> {
        let freedom = Freedom { may_end_apart: true, may_be_flat: false };
        self.work(&Task { duty: Duty::Encode(freedom), ..task.clone() }, output)
    }
}

fn read(reader: &mut dyn Reader, offset: u64, buffer: &mut [u8]) -> Result<()> {
    reader.read_exact_at(offset, buffer).map_err(|error| error.at_byte(offset))
}

/// The digest of all of a file, however long.
pub(crate) fn hash(content: &Content, buffer: &mut Vec<u8>) -> Result<Digest> {
    let mut reader = content.store().open()?;
    let mut hasher = Hasher::default();
    let mut at = 0;
    while at < content.bytes() {
        let bytes = (content.bytes() - at).min(SEGMENT_BYTES);
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        if buffer.len() < count {
            buffer.resize(count, 0);
        }
        let buffer = buffer.get_mut(..count).unwrap_or_default();
        read(reader.as_mut(), at, buffer)?;
        hasher.add(buffer);
        at += bytes;
    }
    reader.check_unchanged()?;
    Ok(hasher.finish())
}

impl Handler for Worker {
    type Request = Item;

    fn handle(&mut self, item: &mut Item) {
        let Item { tasks, output, error, bytes, .. } = item;
        // Encoded or not, it is seldom more; growing by and by would copy it, and take twice the memory.
        output.bytes.reserve_exact(usize::try_from(*bytes).unwrap_or(0));
        for task in tasks.iter() {
            if let Err(failed) = self.work(task, output) {
                *error = Some(failed);
                return;
            }
        }
    }
}
