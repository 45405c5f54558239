//! What a build would come to: what there is, counted, and the size of the image, from a part of the files that is built in
//! memory.

use std::ops::Range;
use std::sync::Arc;

use ferrofs_builder::tree::{Content, ContentReader, ContentSource, Node, NodeKind, Tree};
use ferrofs_builder::{BuildOptions, Error, Result};
use serde::Serialize;

use super::engine;

/// Bytes of files that are built at most: some seconds with the slowest algorithm.
const SAMPLE_BYTES: u64 = 16 << 20;
/// Bytes that are taken of one file at most, so that one file does not stand for all.
const FILE_BYTES: u64 = 1 << 20;

/// What a build would come to.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub(super) struct BuildEstimate {
    pub(super) inodes: u64,
    pub(super) content_bytes: u64,
    /// Bytes of the image.
    pub(super) image_bytes: u64,
    /// How many bytes of files this was concluded from.
    pub(super) sampled_bytes: u64,
}

/// Builds a part of `tree` in memory and concludes from it.
///
/// # Errors
/// As the build.
pub(super) fn estimate(tree: &Tree, options: &BuildOptions) -> Result<BuildEstimate> {
    let (inodes, content_bytes) = (tree.len() as u64, content_bytes(tree));
    let sample = sample(tree, content_bytes)?;
    let sampled_bytes = self::content_bytes(&sample);
    let built = engine::build_in_memory(&sample, options)?;
    let data_bytes: u64 = built.by_algorithm.values().map(|stored| stored.bytes_out).sum();
    let other_bytes = built.bytes.saturating_sub(data_bytes);
    let block = u64::from(built.block_bytes).max(1);
    let data = scaled(data_bytes, content_bytes, sampled_bytes);
    let other = scaled(other_bytes, inodes, sample.len() as u64);
    let image_bytes = data.saturating_add(other).div_ceil(block).saturating_mul(block);
    Ok(BuildEstimate { inodes, content_bytes, image_bytes, sampled_bytes })
}

/// What all regular files have together.
pub(super) fn content_bytes(tree: &Tree) -> u64 {
    tree.nodes()
        .filter_map(|(_, node)| node.content())
        .fold(0, |sum, content| sum.saturating_add(content.bytes()))
}

/// `part` in the proportion of `whole` to `sampled`.
fn scaled(part: u64, whole: u64, sampled: u64) -> u64 {
    let scaled = (u128::from(part) * u128::from(whole)).checked_div(sampled.into());
    scaled.map_or(0, |scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// A tree of some of the files, from all over, each with the beginning of its contents; all of them if they are few.
fn sample(tree: &Tree, content_bytes: u64) -> Result<Tree> {
    let root = tree.node(Tree::ROOT).metadata.clone();
    let mut sample = Tree::new(root);
    // So many bytes of the source pass for each byte that is taken.
    let step = content_bytes.div_ceil(SAMPLE_BYTES).max(1);
    let (mut passed, mut taken) = (0u64, 0u64);
    let mut error = None;
    let walked = tree.walk(|_, id| {
        let Some(content) = tree.node(id).content() else { return Ok(()) };
        passed = passed.saturating_add(content.bytes());
        let due = (passed / step).saturating_sub(taken);
        if due == 0 && content.bytes() > 0 {
            return Ok(());
        }
        let bytes = content.bytes().min(FILE_BYTES).min(due.max(FILE_BYTES / 16));
        taken = taken.saturating_add(bytes);
        let kind = NodeKind::File(Content::new(Arc::new(FilePrefix::of(content, bytes)), bytes));
        let node = Node { metadata: tree.node(id).metadata.clone(), kind };
        let name = sample.len().to_string();
        let added = sample.add(node).and_then(|id| sample.link(Tree::ROOT, name.as_bytes(), id));
        added.map(|_| ()).map_err(|found| error = Some(found))
    });
    match (walked, error) {
        (Err(()), Some(error)) => Err(error),
        _ => Ok(sample),
    }
}

/// The beginning of a file.
struct FilePrefix {
    whole: Arc<dyn ContentSource>,
    bytes: u64,
}

impl FilePrefix {
    fn of(content: &Content, bytes: u64) -> Self {
        Self { whole: Arc::clone(content.source()), bytes }
    }
}

impl ContentSource for FilePrefix {
    fn name(&self) -> String {
        self.whole.name()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>, Error> {
        self.whole.open()
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>, Error> {
        let ranges = self.whole.data_ranges()?.into_iter();
        let cut = ranges.map(|range| range.start..range.end.min(self.bytes));
        Ok(cut.filter(|range| range.start < range.end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn parts_grow_in_proportion() {
        assert_eq!(scaled(10, 300, 100), 30);
        assert_eq!(scaled(10, 0, 0), 0);
        assert_eq!(scaled(u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
