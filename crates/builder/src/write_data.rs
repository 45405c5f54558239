//! The data path: all regular files of a tree become bytes of the image and a map of where they lie.
//!
//! The caller's thread cuts files into items, hands them to workers by the threaded workqueue, and
//! commits what comes back in the order in which it was sent, so that the bytes depend on the tree and the
//! options only. Items on their way, and so the memory, are bounded by [`Options::memory_bytes`].

mod aligned;
mod commit;
mod copies;
mod growing;
mod stream;
#[cfg(test)]
mod tests;
mod window;

use std::cell::RefCell;

use ferrofs_workers::cpus::Granted;
use ferrofs_workers::workqueue::{Batching, Outcome, Settings, Spread, WorkQueue};

use crate::chunks::{TableRoom, TableRules};
use crate::compress::recipes::Recipes;
use crate::compress::worker::{Item, Worker};
use crate::data::{FileData, SpecialFile};
use crate::dedupe::{DedupeSettings, Piece, Plan};
use crate::fragments::PackedFile;
use crate::order::files_in_order;
use crate::references::References;
use crate::segment::{Choice, Cutter, Files, Items, Pieces, SEGMENT_BYTES, Style, Styles};
use crate::tree::{Content, Tree};
use crate::watch::{Phase, Watch};
use crate::{BlockSink, DataMap, Deduplication, Error, ErrorKind, Options, Result};
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

/// Writes the data of all regular files of `tree` to `sink`. What is to lie in the packed inode is gathered
/// behind `packed_front`; [`write_packed`] writes it when all of it is there.
///
/// # Errors
/// Of all errors the first in the order of the files: a source that cannot be read or has changed, a sink
/// that refuses to write, options that contradict each other, memory that is too small.
pub(crate) fn write_data(
    tree: &Tree,
    options: &Options,
    packed_front: &[u8],
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<(DataMap, PackedFile)> {
    let recipes = Recipes::new(options)?;
    let has_hints = !options.hints.all().is_empty();
    let mut map = refer(tree, options, sink, watch)?;
    let (mut nodes, mut contents, mut choices) = (Vec::new(), Vec::new(), Vec::new());
    files_in_order(tree, |path, node, content| {
        if map.files.get(node.index()).is_some_and(Option::is_some) {
            return;
        }
        nodes.push(node);
        contents.push(content.clone());
        if has_hints {
            choices.push(recipes.choose(options, path));
        }
    });
    let plan = match Style::of(options) {
        Style::Compressed => plan((&contents, &choices), &recipes, options, watch)?,
        // Chunks are compared by themselves; what goes to the packed inode, there.
        Style::Chunks(_) | Style::Flat { .. } | Style::Packed => None,
    };
    let files = Files { contents: &contents, choices: &choices, pieces: plan.as_deref() };
    let packed = PackedFile::new(packed_front, options.fragment_sharing);
    let (data, packed) = write_files((files, packed), options, sink, watch)?;
    for (node, data) in nodes.into_iter().zip(data) {
        if let Some(place) = map.files.get_mut(node.index()) {
            *place = Some(data);
        }
    }
    Ok((map, packed))
}

/// The data of those files that lie on devices already.
fn refer(
    tree: &Tree,
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<DataMap> {
    let rules = table_rules(options, options.block_size.bytes().into());
    let mut references = References { devices: tree.devices(), rules, sink };
    let mut room = TableRoom::new(options.memory_bytes);
    let mut map = DataMap { files: vec![None; tree.len()], packed: None };
    let mut referring = Vec::new();
    files_in_order(tree, |_, node, content| {
        if content.parts().is_some() {
            referring.push((node, content));
        }
    });
    for (node, content) in referring {
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
    (files, packed): (Files<'_>, PackedFile),
    options: &Options,
    sink: &mut dyn BlockSink,
    watch: &dyn Watch,
) -> Result<(Vec<FileData>, PackedFile)> {
    let styles = Styles { usual: Style::of(options), as_is: Style::uncompressed(options) };
    let crew = Crew::new(Recipes::new(options)?, options)?;
    let rules = commit_rules(options, styles.as_is);
    let mut committer = crew.committer(rules, sink, copied(files), packed);
    let cutter = Cutter::new(files, styles, options.fragment_sharing)?;
    crew.run(cutter, &mut committer, watch)?;
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
    let recipes = Recipes::new(options)?.of_packed(options);
    let whole = std::slice::from_ref(content);
    // Ends of files are compared as they are packed; whole files may have equal parts.
    let plan = match Style::of(options) {
        Style::Packed => plan((whole, &[]), &recipes, options, watch)?,
        _ => None,
    };
    let files = Files { contents: whole, choices: &[], pieces: plan.as_deref() };
    let styles = Styles { usual: Style::Compressed, as_is: Style::Compressed };
    let crew = Crew::new(recipes, options)?;
    let rules = commit_rules(options, styles.as_is);
    let nothing = PackedFile::new(&[], options.fragment_sharing);
    let committer = crew.committer(rules, sink, copied(files), nothing);
    let cutter = Cutter::new(files, styles, options.fragment_sharing)?;
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
    let recipes = Recipes::new(options)?.of_metabox(options)?;
    let stream = Stream::new("the metabox", bytes, next, recipes.count() > 0);
    let crew = Crew::new(recipes, options)?;
    let rules = commit_rules(options, Style::Compressed);
    let nothing = PackedFile::new(&[], options.fragment_sharing);
    let committer = crew.committer(rules, sink, Vec::new(), nothing);
    crew.write_special(bytes, stream, committer, watch)
}

/// Of files that are stored in this way where they are not compressed.
fn commit_rules(options: &Options, as_is: Style) -> CommitRules {
    let table = match as_is {
        Style::Chunks(chunk_bytes) => Some(table_rules(options, chunk_bytes as u64)),
        _ => None,
    };
    let known = options.memory_bytes / 8 / KNOWN_PCLUSTER_BYTES;
    let block = u64::from(options.block_size.bytes());
    let alignment = match options.data_alignment_blocks {
        0 | 1 => 0,
        blocks => u64::from(blocks) * block,
    };
    let known_pclusters_max = usize::try_from(known).unwrap_or(usize::MAX);
    let memory_bytes = options.memory_bytes;
    CommitRules { block, table, memory_bytes, alignment, known_pclusters_max }
}

/// Where `files` hold the same bytes, if that is asked for. Only files of the same recipe share theirs: an index
/// names two algorithms at most, and pclusters of one size go together best.
fn plan(
    (files, choices): (&[Content], &[Choice]),
    recipes: &Recipes,
    options: &Options,
    watch: &dyn Watch,
) -> Result<Option<Box<dyn Pieces>>> {
    if options.deduplication == Deduplication::Off || options.algorithms.is_none() {
        return Ok(None);
    }
    watch.phase(Phase::Deduplicate);
    let find = |files: &[&Content], recipe| {
        // What is on its way to the image takes its share later, when the search has given back its own.
        let settings = DedupeSettings {
            block_bytes: options.block_size.bytes(),
            pcluster_bytes: u32::try_from(recipes.pcluster(recipe)).unwrap_or(u32::MAX),
            jobs: options.jobs,
            memory_bytes: options.memory_bytes / 2,
        };
        Plan::find(files, &settings, &|| watch.should_stop())
    };
    let plan: Box<dyn Pieces> = if choices.is_empty() {
        Box::new(find(&files.iter().collect::<Vec<_>>(), 0)?)
    } else {
        let mut all = PlanByRecipe::without_copies(files);
        for recipe in 0..recipes.count() {
            let is_it = |file: &usize| choices.get(*file) == Some(&Choice::Recipe(recipe));
            let chosen: Vec<usize> = (0..files.len()).filter(is_it).collect();
            let of_recipe: Vec<&Content> =
                chosen.iter().filter_map(|file| files.get(*file)).collect();
            all.take_over(&find(&of_recipe, recipe)?, &chosen);
        }
        Box::new(all)
    };
    watch.phase(Phase::Data);
    Ok(Some(plan))
}

impl Pieces for Plan {
    fn pieces(&self, file: usize) -> &[Piece] {
        self.pieces(file)
    }
}

/// The plans of files of several recipes, put together.
struct PlanByRecipe(Vec<Vec<Piece>>);

impl PlanByRecipe {
    fn without_copies(files: &[Content]) -> Self {
        let own = |file: &Content| match file.bytes() {
            0 => Vec::new(),
            bytes => vec![Piece::Own { bytes }],
        };
        Self(files.iter().map(own).collect())
    }

    /// Takes over the plan for some of the files: those with the numbers `chosen`.
    fn take_over(&mut self, plan: &Plan, chosen: &[usize]) {
        for (number, file) in chosen.iter().enumerate() {
            let pieces = plan.pieces(number).iter().map(|piece| match *piece {
                Piece::Copy { of, offset, bytes } => {
                    let of = chosen.get(of).copied().unwrap_or(usize::MAX);
                    Piece::Copy { of, offset, bytes }
                }
                own @ Piece::Own { .. } => own,
            });
            if let Some(place) = self.0.get_mut(*file) {
                *place = pieces.collect();
            }
        }
    }
}

impl Pieces for PlanByRecipe {
    fn pieces(&self, file: usize) -> &[Piece] {
        self.0.get(file).map_or(&[], Vec::as_slice)
    }
}

/// By file: whether others copy from it.
fn copied(files: Files<'_>) -> Vec<bool> {
    let mut copied = vec![false; files.pieces.map_or(0, |_| files.contents.len())];
    for file in 0..copied.len() {
        for piece in files.pieces.map_or(&[][..], |pieces| pieces.pieces(file)) {
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
#[derive(Debug)]
struct Crew {
    recipes: Recipes,
    workers: usize,
    /// Workers that were asked for are used, however few CPUs there are.
    spread: Spread,
    in_flight_bytes: u64,
}

impl Crew {
    /// As many workers as are asked for and fit into the memory.
    fn new(recipes: Recipes, options: &Options) -> Result<Self> {
        let each = SEGMENT_BYTES + recipes.memory_bytes()?;
        // One item that is worked on, and one that waits to be committed.
        let in_flight_min = 2 * (SEGMENT_BYTES + recipes.rules.block as u64);
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
        // A segment for each worker, and half as many that wait: to be worked on, or to be committed, when each is 8 MiB
        // where the data is incompressible.
        let useful = (workers + workers.div_ceil(2) + 1) as u64 * SEGMENT_BYTES;
        let in_flight_bytes = (options.memory_bytes - workers as u64 * each).min(useful);
        Ok(Self { recipes, workers, spread, in_flight_bytes })
    }

    /// What commits the work of this crew, and gathers more for `packed`.
    fn committer<'s>(
        &self,
        rules: CommitRules,
        sink: &'s mut dyn BlockSink,
        is_copied: Vec<bool>,
        packed: PackedFile,
    ) -> Committer<'s> {
        Committer::new(rules, sink, Worker::new(self.recipes.clone()), is_copied, packed)
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
        let recipes = self.recipes.clone();
        let make = move || Worker::for_queue(recipes.clone());
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
