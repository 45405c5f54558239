//! Commits what became of tasks, in their order, on one thread: gives bytes an address, finds equal ones,
//! resolves copies, and puts the ranges of each file together.

use std::collections::HashMap;

use ferrofs_ondisk::compression::AlgorithmId;

use super::aligned::AlignedSink;
use super::copies::{Resolved, Source};
use super::growing::{Growing, can_hold, holdable};
use crate::chunks::{ChunkStore, TableRoom, TableRules, table};
use crate::compress::digest::Digest;
use crate::compress::output::{Encoded, Form, Laid, Output};
use crate::compress::worker::Worker;
use crate::data::{Extent, FileData, Fragment};
use crate::fragments::PackedFile;
use crate::segment::{Duty, SEGMENT_BYTES, Task};
use crate::{BlockSink, Error, ErrorKind, Result};

/// How many extents of a copy are tried, one after another, to give what lies before it an end that an
/// index can hold; then all of the copy is encoded anew.
const TRIES_MAX: usize = 4;

/// What is decided for all files of a build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitRules {
    /// Bytes of a block.
    pub(crate) block: u64,
    /// How chunks are indexed, for chunk-based files.
    pub(crate) table: Option<TableRules>,
    /// What the build may take.
    pub(crate) memory_bytes: u64,
    /// The data of each file starts at a multiple of so many bytes; 0 stands for any place.
    pub(crate) alignment: u64,
    /// Of all pclusters so many are remembered, to find equal ones.
    pub(crate) known_pclusters_max: usize,
}

/// Commits tasks in order.
pub(crate) struct Committer<'s> {
    rules: CommitRules,
    sink: AlignedSink<'s>,
    /// Encodes what was encoded in vain.
    again: Worker,
    scratch: Output,
    growing: Growing,
    /// By file: whether others copy from it.
    is_copied: Vec<bool>,
    /// Where the extents of files start that others copy from.
    starts: HashMap<usize, Vec<u64>>,
    chunks: ChunkStore,
    table_room: TableRoom,
    pclusters: HashMap<(Digest, Option<AlgorithmId>), u64>,
    packed: PackedFile,
    files: Vec<FileData>,
}

impl<'s> Committer<'s> {
    /// For a build into `sink`; `again` encodes what must be encoded once more. The packed inode goes on
    /// with what `packed` holds.
    pub(crate) fn new(
        rules: CommitRules,
        sink: &'s mut dyn BlockSink,
        again: Worker,
        is_copied: Vec<bool>,
        packed: PackedFile,
    ) -> Self {
        Self {
            rules,
            sink: AlignedSink::new(sink, rules.alignment),
            again,
            scratch: Output::default(),
            growing: Growing::default(),
            is_copied,
            starts: HashMap::new(),
            chunks: ChunkStore::default(),
            table_room: TableRoom::new(rules.memory_bytes),
            pclusters: HashMap::new(),
            packed,
            files: Vec::new(),
        }
    }

    /// Commits all tasks of an item.
    pub(crate) fn commit(&mut self, tasks: &[Task], output: &Output) -> Result<()> {
        for (task, outcome) in tasks.iter().zip(&output.results) {
            let bytes = output.bytes.get(outcome.bytes.clone()).unwrap_or_default();
            let committed = match &outcome.form {
                Form::Unread => self.commit_unread(task),
                Form::Encoded(encoded) => self.commit_encoded(task, (encoded, output), bytes),
                Form::Flat { tail } => self.commit_flat(task, bytes, tail),
                Form::Chunks(digests) => self.commit_chunks(task, digests, bytes),
                Form::Hashed(digest) => self.pack_file(task, Some(*digest)),
            };
            let committed = committed.and_then(|()| self.close(task));
            committed.map_err(|error| error.at(task.content.store().name()))?;
        }
        Ok(())
    }

    /// The data of all files, in order, and the packed inode.
    pub(crate) fn into_files(self) -> (Vec<FileData>, PackedFile) {
        (self.files, self.packed)
    }

    fn commit_unread(&mut self, task: &Task) -> Result<()> {
        match (task.duty, self.rules.table) {
            (Duty::Pack, _) => self.pack_file(task, None),
            (Duty::Copy { of, offset }, _) => self.commit_copy(task, of, offset),
            (_, Some(rules)) => {
                self.growing.is_chunked = true;
                let more = self.table_room.take(task.bytes.div_ceil(rules.chunk_bytes))?;
                let chunks = &mut self.growing.chunks;
                chunks.resize(chunks.len().saturating_add(more), None);
                Ok(())
            }
            (_, None) => {
                self.growing.is_hole = true;
                Ok(())
            }
        }
    }

    fn pack_file(&mut self, task: &Task, digest: Option<Digest>) -> Result<()> {
        let offset = self.packed.add_file(&task.content, digest)?;
        self.growing.fragment = Some(Fragment { bytes: task.bytes, offset });
        Ok(())
    }

    fn commit_flat(&mut self, task: &Task, bytes: &[u8], tail: &[u8]) -> Result<()> {
        let growing = &mut self.growing;
        if !bytes.is_empty() {
            let address = self.sink.append(bytes)?;
            let end = address.saturating_add(bytes.len() as u64);
            growing.flat = match growing.flat {
                None => Some((address, end)),
                Some((start, next)) if next == address => Some((start, end)),
                Some(_) => return Err(defect("the parts of a flat file do not lie side by side")),
            };
        }
        if task.closes() {
            growing.flat_tail = Some(tail.into());
        }
        Ok(())
    }

    fn commit_chunks(
        &mut self,
        task: &Task,
        chunks: &[Option<Digest>],
        bytes: &[u8],
    ) -> Result<()> {
        let rules = self.rules.table.ok_or_else(|| defect("chunks without a table"))?;
        self.table_room.take(chunks.len() as u64)?;
        self.growing.is_chunked = true;
        let (mut left, mut rest) = (task.bytes, bytes);
        for &digest in chunks {
            let length = left.min(rules.chunk_bytes);
            left -= length;
            let Some(digest) = digest else {
                self.growing.chunks.push(None);
                continue;
            };
            let whole = usize::try_from(length.next_multiple_of(self.rules.block)).ok();
            let split = whole.and_then(|whole| rest.split_at_checked(whole));
            let (chunk, behind) = split.ok_or_else(|| defect("a chunk without bytes"))?;
            rest = behind;
            let place = self.chunks.place((digest, length), chunk, rules.block, &mut self.sink)?;
            self.growing.chunks.push(Some(place));
        }
        Ok(())
    }

    fn commit_encoded(
        &mut self,
        task: &Task,
        (encoded, output): (&Encoded, &Output),
        bytes: &[u8],
    ) -> Result<()> {
        if self.growing.again_from.is_some() {
            return self.encode_again(task, task.end());
        }
        if task.start == 0 {
            self.check_index(task.content.bytes())?;
        }
        let laid = output.extents.get(encoded.extents.clone()).unwrap_or_default();
        self.place(task, (laid, encoded), bytes)
    }

    /// The index of a file is made as a whole, of 2 bytes a block at least: half of the memory is for it.
    fn check_index(&self, file_bytes: u64) -> Result<()> {
        let memory_bytes = self.rules.memory_bytes;
        if file_bytes / self.rules.block <= memory_bytes / 4 {
            return Ok(());
        }
        let what = format!(
            "a compressed file of {file_bytes} bytes: the {memory_bytes} bytes of memory have no room for \
             its index; larger blocks or more memory do"
        );
        Err(Error::new(ErrorKind::Unsupported(what)))
    }

    /// Gives a range its place, as far as an index can hold its extents; what is behind them is to be
    /// encoded again, with what follows.
    fn place(
        &mut self,
        task: &Task,
        (laid, encoded): (&[Laid], &Encoded),
        bytes: &[u8],
    ) -> Result<()> {
        let ends = task.closes() && encoded.inline.is_none() && encoded.tail.is_none();
        let count = holdable(laid, self.growing.at, self.rules.block, ends);
        let held = laid.get(..count).unwrap_or_default();
        self.append(task, (held, &encoded.digests), bytes)?;
        if count < laid.len() {
            self.growing.again_from = Some(self.growing.at);
            return Ok(());
        }
        self.growing.inline.clone_from(&encoded.inline);
        if let Some(tail) = encoded.tail {
            let offset = self.packed.add_tail(&task.content, tail)?;
            self.growing.fragment = Some(Fragment { bytes: tail.bytes, offset });
        }
        Ok(())
    }

    fn append(
        &mut self,
        task: &Task,
        (laid, digests): (&[Laid], &[Digest]),
        bytes: &[u8],
    ) -> Result<()> {
        if self.is_worth_sharing(task, laid, digests) {
            return self.append_or_share(laid, digests, bytes);
        }
        let total: usize = laid.iter().map(|extent| extent.pcluster_bytes as usize).sum();
        let own = bytes.get(..total).ok_or_else(|| defect("extents without bytes"))?;
        let mut address = if own.is_empty() { 0 } else { self.sink.append(own)? };
        for (index, extent) in laid.iter().enumerate() {
            self.know(digests.get(index), extent, address);
            self.growing.push(extent_at(extent, address));
            address += u64::from(extent.pcluster_bytes);
        }
        Ok(())
    }

    fn append_or_share(&mut self, laid: &[Laid], digests: &[Digest], bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (extent, digest) in laid.iter().zip(digests) {
            let split = rest.split_at_checked(extent.pcluster_bytes as usize);
            let (own, behind) = split.ok_or_else(|| defect("an extent without bytes"))?;
            rest = behind;
            let known = self.pclusters.get(&(*digest, extent.algorithm)).copied();
            let address = match known {
                Some(address) => address,
                None => self.sink.append(own)?,
            };
            self.growing.is_shared |= known.is_some();
            self.know(Some(digest), extent, address);
            self.growing.push(extent_at(extent, address));
        }
        Ok(())
    }

    /// Pclusters at the places of others make the file's index a full one, of 8 bytes a block in place
    /// of 2, which equal pclusters must be worth.
    fn is_worth_sharing(&self, task: &Task, laid: &[Laid], digests: &[Digest]) -> bool {
        let known = |(extent, digest): (&Laid, &Digest)| {
            let known = self.pclusters.contains_key(&(*digest, extent.algorithm));
            if known { u64::from(extent.pcluster_bytes) } else { 0 }
        };
        let saved: u64 = laid.iter().zip(digests).map(known).sum();
        let cost = 6 * task.content.bytes().div_ceil(self.rules.block);
        saved > 0 && (self.growing.is_shared || saved > cost)
    }

    fn know(&mut self, digest: Option<&Digest>, extent: &Laid, address: u64) {
        if let Some(digest) = digest
            && self.pclusters.len() < self.rules.known_pclusters_max
        {
            self.pclusters.entry((*digest, extent.algorithm)).or_insert(address);
        }
    }

    fn commit_copy(&mut self, task: &Task, of: usize, offset: u64) -> Result<()> {
        let Resolved { extents, inline, fragment } = self.resolve(task, of, offset);
        let mut extents = extents.into_iter();
        if self.growing.again_from.is_some() {
            let mut end = task.start;
            for extent in extents.by_ref().take(TRIES_MAX) {
                end += extent.bytes;
                self.encode_again(task, end)?;
                if self.growing.again_from.is_none() {
                    break;
                }
            }
        }
        let has_end = inline.is_some() || fragment.is_some();
        if self.growing.again_from.is_none() {
            self.push_copied(task, extents, has_end);
        }
        if self.growing.again_from.is_none() && self.growing.at < task.end() {
            if has_end {
                self.growing.at = task.end();
                (self.growing.inline, self.growing.fragment) = (inline, fragment);
                return Ok(());
            }
            self.growing.again_from = Some(self.growing.at);
        }
        self.encode_again(task, task.end())
    }

    fn push_copied(&mut self, task: &Task, extents: impl Iterator<Item = Extent>, has_end: bool) {
        for extent in extents {
            let at = self.growing.at;
            let is_last = task.closes() && !has_end && at + extent.bytes == task.end();
            let lengths = (extent.bytes, u64::from(extent.pcluster_bytes));
            if !can_hold(at, lengths, self.rules.block, is_last) {
                self.growing.again_from = Some(at);
                return;
            }
            self.growing.is_shared = true;
            self.growing.push(extent);
        }
    }

    fn resolve(&self, task: &Task, of: usize, offset: u64) -> Resolved {
        let Growing { extents, starts, .. } = &self.growing;
        let source = if of == task.file {
            Source { extents, starts, inline: None, fragment: None }
        } else {
            let (Some(FileData::Compressed(data)), Some(starts)) =
                (self.files.get(of), self.starts.get(&of))
            else {
                return Resolved::default();
            };
            let (extents, fragment) = (&data.extents, data.fragment);
            Source { extents, starts, inline: data.inline.as_ref(), fragment }
        };
        source.resolve(offset, task.bytes, task.closes())
    }

    /// Encodes what has no place yet, up to `end`, and gives it one as far as an index can hold it.
    fn encode_again(&mut self, task: &Task, end: u64) -> Result<()> {
        while let Some(start) = self.growing.again_from
            && start < end
        {
            let cut = end.min((start / SEGMENT_BYTES + 1).saturating_mul(SEGMENT_BYTES));
            let part = Task { start, bytes: cut - start, ..task.clone() };
            let mut output = std::mem::take(&mut self.scratch);
            output.clear();
            self.again.work_again(&part, &mut output)?;
            self.growing.again_from = None;
            let Some(Form::Encoded(encoded)) = output.results.first().map(|result| &result.form)
            else {
                return Err(defect("a range that was encoded again and is not encoded"));
            };
            self.place(&part, (&output.extents, encoded), &output.bytes)?;
            self.scratch = output;
            if cut == end {
                break;
            }
            // A cut at a multiple of blocks leaves nothing behind.
            self.growing.again_from = Some(self.growing.at);
        }
        Ok(())
    }

    /// After the last range of a file.
    fn close(&mut self, task: &Task) -> Result<()> {
        if !task.closes() {
            return Ok(());
        }
        self.sink.begin_file();
        let mut growing = std::mem::take(&mut self.growing);
        let is_copied = self.is_copied.get(task.file).copied().unwrap_or(false);
        let data = match self.rules.table {
            Some(rules) if growing.is_chunked => {
                let chunks = std::mem::take(&mut growing.chunks);
                let before = chunks.len();
                let data = table(chunks, &rules)?;
                if let FileData::Chunks { places, .. } = &data {
                    self.table_room.give_back(before.saturating_sub(places.len()));
                }
                data
            }
            _ => growing.finish(self.rules.block, is_copied),
        };
        if let FileData::Compressed(compressed) = &data
            && compressed.bytes() != Some(task.content.bytes())
        {
            return Err(defect("the extents of a file do not add up to it"));
        }
        if is_copied {
            self.starts.insert(task.file, growing.starts);
        }
        self.files.push(data);
        Ok(())
    }
}

fn extent_at(extent: &Laid, address: u64) -> Extent {
    Extent {
        bytes: u64::from(extent.bytes),
        algorithm: extent.algorithm,
        address,
        pcluster_bytes: extent.pcluster_bytes,
        partial: false,
    }
}

fn defect(what: &'static str) -> Error {
    Error::new(ErrorKind::Defect(what))
}
