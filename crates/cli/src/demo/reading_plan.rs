//! What is read to measure a mount: files from end to end, and single blocks from all over them. Made once, so that
//! every mount and every number of readers has the same to do.

use std::collections::HashSet;

use ferrofs_image::{FileType, Image, WalkEvent};

use crate::progress::WorkAmount;
use crate::signals::StopRequest;

/// Of a larger image every n-th file is read, so that there are about so many of them,
const FILES_MAX: u64 = 20_000;
/// and so many bytes in them;
const BYTES_MAX: u64 = 256 << 20;
/// and of a large file its beginning.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a block that is read by itself.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Blocks that are read by themselves.
const BLOCKS_MAX: usize = 1000;
/// Where random numbers begin: the same ones each time.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is read.
#[derive(Clone, Debug)]
pub(super) struct ReadingPlan {
    pub(super) files: Vec<PlannedFile>,
    /// Each once, in no order.
    pub(super) blocks: Vec<PlannedBlock>,
    /// Regular files of the image.
    pub(super) all_files: u64,
    /// Bytes of the files to be read.
    pub(super) bytes: u64,
}

/// A file to read.
#[derive(Clone, Debug)]
pub(super) struct PlannedFile {
    /// From the root of the image.
    pub(super) path: Vec<u8>,
    /// Not beyond these.
    pub(super) bytes: u64,
    size: u64,
}

/// A block to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedBlock {
    /// Its file's place in the list.
    pub(super) file: usize,
    /// Where it begins, in bytes.
    pub(super) offset: u64,
}

impl ReadingPlan {
    /// Chooses from an image that holds `total`.
    ///
    /// # Errors
    /// The image cannot be walked, or somebody wants an end.
    pub(super) fn choose(
        image: &Image,
        total: WorkAmount,
        stop: &StopRequest,
    ) -> anyhow::Result<Self> {
        let stride = (total.entries / FILES_MAX).max(total.bytes / BYTES_MAX).saturating_add(1);
        let mut plan = Self { files: Vec::new(), blocks: Vec::new(), all_files: 0, bytes: 0 };
        for visit in image.walk(b"/")? {
            stop.check()?;
            let WalkEvent::Leaf(node) = visit else { continue };
            if node.inode.file_type() != FileType::Regular {
                continue;
            }
            let is_chosen = plan.all_files.is_multiple_of(stride) && plan.bytes < BYTES_MAX;
            plan.all_files += 1;
            if is_chosen {
                let size = node.inode.size();
                let bytes = size.min(FILE_BYTES_MAX);
                plan.bytes += bytes;
                plan.files.push(PlannedFile { path: node.path, bytes, size });
            }
        }
        plan.blocks = blocks(&plan.files);
        Ok(plan)
    }
}

/// Different blocks of the files, in no order.
fn blocks(files: &[PlannedFile]) -> Vec<PlannedBlock> {
    let mut end = 0u64;
    // After how many blocks each file ends, all files in a row.
    let ends: Vec<u64> = files
        .iter()
        .map(|file| {
            end = end.saturating_add(file.size.div_ceil(BLOCK_BYTES));
            end
        })
        .collect();
    let wanted = usize::try_from(end).unwrap_or(usize::MAX).min(BLOCKS_MAX);
    let mut random = Random(SEED);
    let mut chosen = HashSet::new();
    // With few blocks the last ones take long to come by; nobody misses them.
    let attempts = wanted * 8;
    for _ in 0..attempts {
        if chosen.len() == wanted {
            break;
        }
        chosen.insert(random.below(end));
    }
    let mut numbers: Vec<u64> = chosen.into_iter().collect();
    numbers.sort_unstable();
    numbers.sort_by_cached_key(|_| random.next());
    let block = |number: u64| {
        let file = ends.partition_point(|end| *end <= number);
        let first = file.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
        PlannedBlock { file, offset: (number - first).saturating_mul(BLOCK_BYTES) }
    };
    numbers.into_iter().map(block).collect()
}

/// Numbers without a pattern (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 if that is 0.
    fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64) -> PlannedFile {
        PlannedFile { path: Vec::new(), bytes: size, size }
    }

    #[test]
    fn blocks_are_different_ones_and_lie_in_their_files() {
        let files = [file(0), file(1), file(4096), file(0), file(40_000_000), file(4097)];
        let blocks = blocks(&files);
        assert_eq!(blocks.len(), BLOCKS_MAX);
        let different: HashSet<_> = blocks.iter().map(|one| (one.file, one.offset)).collect();
        assert_eq!(different.len(), BLOCKS_MAX);
        for block in &blocks {
            assert!(block.offset < files[block.file].size && block.offset % BLOCK_BYTES == 0);
        }
        assert!(!blocks.is_sorted_by_key(|block| (block.file, block.offset)));
    }

    #[test]
    fn few_blocks_are_all_there_are() {
        assert!(blocks(&[]).is_empty() && blocks(&[file(0)]).is_empty());
        let blocks = blocks(&[file(5000), file(3)]);
        assert!((1..=3).contains(&blocks.len()), "{blocks:?}");
    }
}
