//! The data path: all regular files of a tree become bytes of the image and a map of where they lie.
//!
//! The caller's thread cuts files into items, hands them to workers by the threaded workqueue, and
//! commits what comes back in the order in which it was sent, so that the bytes depend on the tree and the
//! options only. Items on their way, and so the memory, are bounded by [`Options::memory_bytes`].

mod commit;
mod copies;
mod growing;
mod stream;
#[cfg(test)]
mod tests;
mod window;

use std::cell::RefCell;

use ferrofs_codec::Method;
use ferrofs_workers::cpus::Granted;
use ferrofs_workers::workqueue::{Batching, Outcome, Settings, Spread, WorkQueue};

use crate::chunks::{TableRoom, TableRules};
use crate::compress::rules::Rules;
use crate::compress::worker::{Item, Worker, compressor};
use crate::data::{FileData, SpecialFile};
use crate::dedupe::{DedupeSettings, Piece, Plan};
use crate::fragments::PackedFile;
use crate::order::{Ordered, files_in_order};
use crate::references::References;
use crate::segment::{Cutter, Items, Pieces, SEGMENT_BYTES, Style};
use crate::tree::{Content, Tree};
use crate::watch::{Phase, Watch};
use crate::{Algorithms, BlockSink, DataMap, Deduplication, Error, ErrorKind, Options, Result};
use commit::{CommitRules, Committer};
pub(crate) use stream::MakeBytes;
use stream::Stream;
use window::Window;

/// Items on their way at most: what a slow one can hold up.
const ITEMS_MAX: usize = 256;
/// Slots of a worker: one that it works on, and one that is ready when it is done.
const SLOTS: usize = 2;
/// What a known pcluster takes in the table of all.
const KNOWN_PCLUSTER_BYTES: u64 = 128;

/// Writes the data of all regular files of `tree` to `sink`. What is to lie in the packed inode is gathered;
/// [`write_packed`] writes it when all of it is there.
///
/// # Errors
/// Of all errors the first in the order of the files: a source that cannot be read or has changed, a sink
/// that refuses to write, options that contradict each other, memory that is too small.
pub(crate) fn write_data(
    tree: &Tree,
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<(DataMap, PackedFile)> {
    let mut files = files_in_order(tree);
    let mut map = refer(tree, &files, options, sink, watch)?;
    files.retain(|file| map.files.get(file.node.index()).is_none_or(Option::is_none));
    let contents: Vec<Content> = files.iter().map(|file| file.content.clone()).collect();
    let plan = match Style::of(options)? {
        Style::Compressed => plan(&contents, options, watch)?,
        // Chunks are compared by themselves; what goes to the packed inode, there.
        Style::Chunks(_) | Style::Flat { .. } | Style::Packed => None,
    };
    let pieces = plan.as_ref().map(|plan| plan as &dyn Pieces);
    let (data, packed) = write_files((&contents, pieces), options, sink, watch)?;
    for (file, data) in files.iter().zip(data) {
        if let Some(place) = map.files.get_mut(file.node.index()) {
            *place = Some(data);
        }
    }
    Ok((map, packed))
}

/// The data of those files that lie on devices already.
fn refer(
    tree: &Tree,
    files: &[Ordered<'_>],
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<DataMap> {
    let rules = table_rules(options, options.block_size.bytes().into());
    let mut references = References { devices: tree.devices(), rules, sink };
    let mut room = TableRoom::new(options.memory_bytes);
    let mut map = DataMap { files: vec![None; tree.len()], packed: None };
    for Ordered { node, content } in files {
        let Some(parts) = content.parts() else { continue };
        if watch.should_stop() {
            return Err(Error::new(ErrorKind::Stopped));
        }
        let data = references.refer(content, parts, &mut room);
        let data = data.map_err(|error| error.at(content.store().name()))?;
        watch.bytes_done(data.as_ref().map_or(0, |_| content.bytes()));
        if let Some(place) = map.files.get_mut(node.index()) {
            *place = data;
        }
    }
    Ok(map)
}

fn table_rules(options: &Options, chunk_bytes: u64) -> TableRules {
    TableRules {
        block: options.block_size,
        chunk_bytes,
        force_indexes: options.force_chunk_indexes,
        device: u16::from(options.blob.is_some()),
    }
}

/// Writes the data of `files` in their order.
pub(crate) fn write_files(
    (files, pieces): (&[Content], Option<&dyn Pieces>),
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<(Vec<FileData>, PackedFile)> {
    let style = Style::of(options)?;
    let crew = Crew::new(Rules::new(options)?, method(options)?, options)?;
    let table = match style {
        Style::Chunks(chunk_bytes) => Some(table_rules(options, chunk_bytes)),
        _ => None,
    };
    let mut committer = crew.committer((table, options), sink, copied(files, pieces));
    crew.run(Cutter::new(files, style, pieces)?, &mut committer, watch)?;
    Ok(committer.into_files())
}

/// Writes the data of the packed inode.
///
/// # Errors
/// As [`write_data`].
pub(crate) fn write_packed(
    content: &Content,
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<SpecialFile> {
    let whole = std::slice::from_ref(content);
    // Ends of files are compared as they are packed; whole files may have equal parts.
    let is_compared = Style::of(options)? == Style::Packed;
    let plan = if is_compared { plan(whole, options, watch)? } else { None };
    let pieces = plan.as_ref().map(|plan| plan as &dyn Pieces);
    let crew = Crew::new(Rules::new(options)?.of_packed(), method(options)?, options)?;
    let committer = crew.committer((None, options), sink, copied(whole, pieces));
    let cutter = Cutter::new(whole, Style::Compressed, pieces)?;
    crew.write_special(content.bytes(), cutter, committer, watch)
}

/// Writes the data of the metabox, which has `bytes` bytes: `next` makes so many further ones as it is asked
/// for.
///
/// # Errors
/// As [`write_data`], and those of `next`.
pub(crate) fn write_metabox(
    (bytes, next): (u64, MakeBytes<'_>),
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<SpecialFile> {
    let pcluster = options.metabox_pcluster_bytes.unwrap_or(options.pcluster_bytes);
    let rules = Rules::new(options)?.of_metabox(pcluster);
    let method = match (&options.algorithms, options.metabox_method) {
        (Some(algorithms), Some(number)) => Some(nth_method(algorithms, number)?),
        _ => method(options)?,
    };
    let crew = Crew::new(rules, method, options)?;
    let committer = crew.committer((None, options), sink, Vec::new());
    let stream = Stream::new("the metabox", bytes, next, method.is_some());
    crew.write_special(bytes, stream, committer, watch)
}

/// Where `files` hold the same bytes, if that is asked for.
fn plan(files: &[Content], options: &Options, watch: &dyn Watch) -> Result<Option<Plan>> {
    if options.deduplication == Deduplication::Off || options.algorithms.is_none() {
        return Ok(None);
    }
    watch.phase(Phase::Deduplicate);
    // What is on its way to the image takes its share later, when the search has given back its own.
    let settings = DedupeSettings {
        block_bytes: options.block_size.bytes(),
        pcluster_bytes: options.pcluster_bytes,
        jobs: options.jobs,
        memory_bytes: options.memory_bytes / 2,
    };
    let files: Vec<&Content> = files.iter().collect();
    let plan = Plan::find(&files, &settings, &|| watch.should_stop())?;
    watch.phase(Phase::Data);
    Ok(Some(plan))
}

impl Pieces for Plan {
    fn pieces(&self, file: usize) -> &[Piece] {
        self.pieces(file)
    }
}

/// The method of all files.
fn method(options: &Options) -> Result<Option<Method>> {
    let Some(algorithms) = &options.algorithms else { return Ok(None) };
    nth_method(algorithms, algorithms.default).map(Some)
}

fn nth_method(algorithms: &Algorithms, number: usize) -> Result<Method> {
    let missing = || {
        let what = format!("algorithm number {number} of {}", algorithms.methods.len());
        Error::new(ErrorKind::Options(what))
    };
    algorithms.methods.get(number).copied().ok_or_else(missing)
}

/// By file: whether others copy from it.
fn copied(files: &[Content], pieces: Option<&dyn Pieces>) -> Vec<bool> {
    let mut copied = vec![false; if pieces.is_some() { files.len() } else { 0 }];
    for file in 0..copied.len() {
        for piece in pieces.map_or(&[][..], |pieces| pieces.pieces(file)) {
            if let Piece::Copy { of, .. } = piece
                && let Some(copied) = copied.get_mut(*of)
            {
                *copied = true;
            }
        }
    }
    copied
}

/// Passes on who is asked, and not what is told: the packed inode's bytes were told with their files, and
/// nobody waits for those of the metabox.
struct Silent<'w>(&'w dyn Watch);

impl Watch for Silent<'_> {
    fn should_stop(&self) -> bool {
        self.0.should_stop()
    }
}

/// The workers, and how much may be on its way to them.
#[derive(Clone, Copy, Debug)]
struct Crew {
    rules: Rules,
    method: Option<Method>,
    workers: usize,
    /// Workers that were asked for are used, however few CPUs there are.
    spread: Spread,
    in_flight_bytes: u64,
}

impl Crew {
    /// As many workers as are asked for and fit into the memory.
    fn new(rules: Rules, method: Option<Method>, options: &Options) -> Result<Self> {
        // Made once to see that the parameters are right, and how much memory it takes.
        let encoder_bytes = match method {
            Some(_) => compressor(rules, method)?.memory_bytes(),
            None => 0,
        };
        let each = SEGMENT_BYTES + encoder_bytes;
        // One item that is worked on, and one that waits to be committed.
        let in_flight_min = 2 * (SEGMENT_BYTES + rules.block as u64);
        let least = each + in_flight_min;
        let Some(spare) = options.memory_bytes.checked_sub(in_flight_min).filter(|&m| m >= each)
        else {
            let what = format!("{} bytes of memory: {least} are needed", options.memory_bytes);
            return Err(Error::new(ErrorKind::Options(what)));
        };
        let asked = options.jobs.unwrap_or_else(|| Granted::read().parallelism()).max(1);
        let affordable = usize::try_from(spare / each).unwrap_or(usize::MAX);
        let workers = asked.min(affordable);
        let spread = if options.jobs.is_some() { Spread::Every } else { Spread::Granted };
        // What every slot and two that wait can hold: more on its way would only take memory.
        let useful = (workers * SLOTS + 2) as u64 * SEGMENT_BYTES;
        let in_flight_bytes = (options.memory_bytes - workers as u64 * each).min(useful);
        Ok(Self { rules, method, workers, spread, in_flight_bytes })
    }

    /// What commits the work of this crew.
    fn committer<'s>(
        &self,
        (table, options): (Option<TableRules>, &Options),
        sink: &'s mut dyn BlockSink,
        is_copied: Vec<bool>,
    ) -> Committer<'s> {
        let known = options.memory_bytes / 8 / KNOWN_PCLUSTER_BYTES;
        let known_pclusters_max = usize::try_from(known).unwrap_or(usize::MAX);
        let block = self.rules.block as u64;
        let memory_bytes = options.memory_bytes;
        let rules = CommitRules { block, table, memory_bytes, known_pclusters_max };
        Committer::new(rules, sink, Worker::new(self.rules, self.method), is_copied)
    }

    /// Writes the one file of `bytes` bytes that `items` make.
    fn write_special(
        &self,
        bytes: u64,
        items: impl Items,
        mut committer: Committer<'_>,
        watch: &dyn Watch,
    ) -> Result<SpecialFile> {
        self.run(items, &mut committer, &Silent(watch))?;
        let data = committer.into_files().0.pop();
        let data = data.ok_or_else(|| Error::new(ErrorKind::Defect("a file that is not there")))?;
        Ok(SpecialFile { bytes, data })
    }

    /// Does all that `items` hand out.
    fn run(
        &self,
        mut items: impl Items,
        committer: &mut Committer<'_>,
        watch: &dyn Watch,
    ) -> Result<()> {
        let window = RefCell::new(Window::new(self.workers + SLOTS));
        let on_done = |item: &mut Item, outcome: Outcome| {
            window.borrow_mut().arrive(std::mem::take(item), outcome == Outcome::Done);
        };
        let (rules, method) = (self.rules, self.method);
        let make = move || Worker::for_queue(rules, method);
        let queue = WorkQueue::new(&self.settings(), Item::default, make, on_done);
        let mut queue = queue.map_err(|error| Error::new(ErrorKind::Workers(error)))?;
        let mut next = next_item(&mut items, &window)?;
        loop {
            queue.collect();
            commit_ready(&window, committer, watch)?;
            let (on_way, bytes) = (window.borrow().len(), window.borrow().bytes());
            match next.take() {
                Some(mut item) if self.has_room(&item, on_way, bytes) => {
                    let mut slot = queue.get();
                    window.borrow_mut().send(&mut item);
                    *slot.request() = item;
                    slot.submit();
                    next = next_item(&mut items, &window)?;
                }
                None if on_way == 0 => return Ok(()),
                waiting => {
                    next = waiting;
                    queue.wait_for_one();
                }
            }
        }
    }

    fn has_room(&self, item: &Item, on_way: usize, bytes: u64) -> bool {
        on_way == 0 || on_way < ITEMS_MAX && bytes + item.bytes <= self.in_flight_bytes
    }

    fn settings(&self) -> Settings {
        Settings {
            name: "build".to_owned(),
            workers: Some(self.workers),
            slots: Some(SLOTS),
            batching: Batching::RoundRobin,
            spread: self.spread,
            ..Settings::default()
        }
    }
}

/// The next item, if there is one.
fn next_item(items: &mut impl Items, window: &RefCell<Window>) -> Result<Option<Item>> {
    let mut item = window.borrow_mut().empty_item();
    let Some(bytes) = items.next_item(&mut item.tasks)? else { return Ok(None) };
    item.bytes = bytes;
    Ok(Some(item))
}

/// Commits the items that are next.
fn commit_ready(
    window: &RefCell<Window>,
    committer: &mut Committer<'_>,
    watch: &dyn Watch,
) -> Result<()> {
    loop {
        if watch.should_stop() {
            return Err(Error::new(ErrorKind::Stopped));
        }
        if window.borrow().is_broken() {
            return Err(Error::new(ErrorKind::Defect("a worker panicked")));
        }
        let Some(mut item) = window.borrow_mut().take_next() else { return Ok(()) };
        committer.commit(&item.tasks, &item.output)?;
        if let Some(error) = item.error.take() {
            return Err(error);
        }
        watch.bytes_done(item.tasks.iter().map(|task| task.bytes).sum());
        window.borrow_mut().recycle(item);
    }
}
