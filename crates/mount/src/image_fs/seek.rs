//! LSEEK: the next data or hole of a file. A program can call it at any byte of a file that has millions of extents,
//! and a listener may run at a real-time priority, so a request looks at a limited number of extents. Where that is not
//! enough, a hole is reported as data, which POSIX permits: programs then read zeros.

use std::iter::Peekable;

use ferrofs_fuse::Errno;
use ferrofs_image::{Error, ExtentStorage, FileExtent};

use super::{FsResult, ImageFs};

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Extents that are looked at for data, and again for the end of a hole: about a millisecond for each, and half a
/// gibibyte of a file that is compressed to clusters of 4 KiB. A file that is stored plainly has one extent, or one for
/// each chunk. In a metabox, a few kilobytes of image can be an array of millions of chunks.
const SEEK_EXTENTS_MAX: usize = 64 << 10;

/// A request of LSEEK.
#[derive(Clone, Copy, Debug)]
struct SeekQuery {
    /// Where to start; less than `size`.
    offset: u64,
    /// Of the file.
    size: u64,
    wanted: SeekWanted,
    /// [`SEEK_EXTENTS_MAX`], except in tests.
    extents_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeekWanted {
    Data,
    Hole,
}

/// Where a row of extents ends that are all holes, or all data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunEnd {
    /// Here the other kind begins.
    At(u64),
    EndOfFile,
    /// The limit of extents was reached before the end.
    Unknown,
}

impl SeekQuery {
    /// Answers from the extents of the file from byte `offset` on. `None`: there is no data.
    ///
    /// A hole whose end is more than the limit of extents away is treated as data in both directions. So data is never
    /// skipped, and a program that asks for data and for a hole in turn always moves on: a hole that follows data at
    /// `x` is behind `x`, and data that follows a hole at `x` is behind `x`, too.
    fn answer<E>(
        self,
        extents: impl Iterator<Item = Result<FileExtent, E>>,
    ) -> Result<Option<u64>, E> {
        let mut extents = extents.peekable();
        if self.wanted == SeekWanted::Data {
            return Ok(match self.end_of_run(&mut extents, SeekWanted::Hole)? {
                RunEnd::At(data) => Some(data),
                RunEnd::EndOfFile => None,
                RunEnd::Unknown => Some(self.offset),
            });
        }
        // Every file has a hole after its last byte.
        let RunEnd::At(hole) = self.end_of_run(&mut extents, SeekWanted::Data)? else {
            return Ok(Some(self.size));
        };
        match self.end_of_run(&mut extents, SeekWanted::Hole) {
            Ok(RunEnd::Unknown) => Ok(Some(self.size)),
            // Who asks for the data after the hole gets the error.
            Ok(RunEnd::At(_) | RunEnd::EndOfFile) | Err(_) => Ok(Some(hole)),
        }
    }

    /// Where the extents of one kind end that come next.
    fn end_of_run<E>(
        self,
        extents: &mut Peekable<impl Iterator<Item = Result<FileExtent, E>>>,
        kind: SeekWanted,
    ) -> Result<RunEnd, E> {
        let is_of_kind = |extent: &FileExtent| {
            (extent.storage == ExtentStorage::Hole) == (kind == SeekWanted::Hole)
        };
        for _ in 0..self.extents_max {
            let same = |next: &Result<_, E>| next.as_ref().map_or(true, is_of_kind);
            match extents.next_if(same).transpose()? {
                Some(_) => {}
                None => break,
            }
        }
        match extents.peek() {
            Some(Ok(next)) if !is_of_kind(next) => Ok(RunEnd::At(next.start)),
            // An error beyond the limit is for the request that gets there.
            Some(_) => Ok(RunEnd::Unknown),
            None => Ok(RunEnd::EndOfFile),
        }
    }
}

/// Why a search ended.
enum SeekFailure {
    Damaged(Error),
    /// The session has replied already, since the caller was killed or has waited too long.
    Answered,
}

impl From<Error> for SeekFailure {
    fn from(error: Error) -> Self {
        Self::Damaged(error)
    }
}

impl ImageFs {
    /// LSEEK with `SEEK_DATA` or `SEEK_HOLE`. It ends early when `is_answered` says that nobody waits for its reply.
    pub(super) fn seek(
        &self,
        node: u64,
        offset: u64,
        whence: u32,
        is_answered: &dyn Fn() -> bool,
    ) -> FsResult<u64> {
        let inode = self.inode(node)?;
        let wanted = match whence {
            SEEK_DATA => SeekWanted::Data,
            SEEK_HOLE => SeekWanted::Hole,
            _ => return Err(Errno::INVAL),
        };
        let size = inode.size();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let query = SeekQuery { offset, size, wanted, extents_max: SEEK_EXTENTS_MAX };
        let extents = self.image.file_extents(&inode, offset);
        let answer = extents.map_err(SeekFailure::from).and_then(|extents| {
            query.answer(extents.map(|extent| match is_answered() {
                false => Ok(extent?),
                true => Err(SeekFailure::Answered),
            }))
        });
        match answer {
            Ok(found) => found.ok_or(Errno::NXIO),
            Err(SeekFailure::Damaged(error)) => {
                Err(self.failed(inode.nid(), "the extents", &error))
            }
            Err(SeekFailure::Answered) => Err(Errno::INTR),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "numbers of the tests")]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::io::Write;
    use std::sync::Arc;

    use ferrofs_fuse::Capabilities;
    use ferrofs_image::Image;
    use proptest::prelude::*;

    use super::super::tests::mounted_image;
    use super::*;

    /// Bytes of an extent.
    const STEP: u64 = 10;

    /// The answer about a file in which extent n is a hole if `holes[n]` is set.
    fn answer(holes: &[bool], offset: u64, wanted: SeekWanted) -> Option<u64> {
        let extents = (0..).zip(holes).map(|(number, is_hole)| {
            let storage = if *is_hole { ExtentStorage::Hole } else { ExtentStorage::Plain };
            let (start, end) = (number * STEP, (number + 1) * STEP);
            FileExtent { start, end, storage, location: None }
        });
        let extents = extents.filter(|extent| extent.end > offset).map(|extent| {
            Ok::<_, Infallible>(FileExtent { start: extent.start.max(offset), ..extent })
        });
        let size = holes.len() as u64 * STEP;
        SeekQuery { offset, size, wanted, extents_max: 3 }.answer(extents).unwrap()
    }

    proptest! {
        /// What cp, tar and rsync do.
        #[test]
        fn asking_for_data_and_holes_in_turn_moves_on_and_finds_all_data(
            holes in proptest::collection::vec(prop::bool::weighted(0.7), 1..24),
            from in 0..10_u64,
        ) {
            let size = holes.len() as u64 * STEP;
            let (mut position, mut found) = (from, Vec::new());
            while position < size {
                let Some(data) = answer(&holes, position, SeekWanted::Data) else { break };
                let hole = answer(&holes, data, SeekWanted::Hole).unwrap();
                prop_assert!(position <= data && data < hole && hole <= size);
                found.push(data..hole);
                position = hole;
            }
            for byte in from..size {
                if !holes[(byte / STEP) as usize] {
                    prop_assert!(found.iter().any(|range| range.contains(&byte)), "{byte}");
                }
            }
        }

        #[test]
        fn short_holes_are_found_exactly(
            holes in proptest::collection::vec(any::<bool>(), 1..4),
            offset in 0..10_u64,
        ) {
            let size = holes.len() as u64 * STEP;
            let next = |is_hole| (offset..size).find(|at| holes[(at / STEP) as usize] == is_hole);
            prop_assert_eq!(answer(&holes, offset, SeekWanted::Data), next(false));
            let hole = next(true).or(Some(size));
            prop_assert_eq!(answer(&holes, offset, SeekWanted::Hole), hole);
        }
    }

    const BLOCK: u64 = 4096;
    const HOLE: u32 = u32::MAX;
    /// The node of the file: its inode has this number.
    const FILE: u64 = 4;

    /// A file system with one file, whose chunks of one block are at these blocks.
    fn mounted_chunks(chunks: &[u32]) -> Arc<ImageFs> {
        let mut image = vec![0; 8192 + 160];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        // The superblock: its magic, blocks of 2^12 bytes, the root is inode 1, inodes start at block 2, and there are
        // files of chunks.
        put(1024, &0xe0f5_e1e2_u32.to_le_bytes());
        put(1024 + 12, &[12, 0, 1, 0]);
        put(1024 + 40, &[2]);
        put(1024 + 80, &[4]);
        // The root, in block 1: inode, offset of the name and type of each entry.
        let entries = [(1_u8, 36_u8, 2_u8), (1, 37, 2), (4, 39, 1)];
        let entries = entries.map(|(nid, at, kind)| [nid, 0, 0, 0, 0, 0, 0, 0, at, 0, kind, 0]);
        put(4096, &[entries.as_flattened(), b"...f"].concat());
        let inode = |layout: u8, mode: u16, size: u32, payload: u8| {
            let mut inode = [0; 32];
            inode[0] = layout << 1;
            inode[4..6].copy_from_slice(&mode.to_le_bytes());
            inode[6] = 1;
            inode[8..12].copy_from_slice(&size.to_le_bytes());
            inode[16] = payload;
            inode
        };
        put(8192 + 32, &inode(0, 0o40755, 40, 1));
        let size = u32::try_from(chunks.len() as u64 * BLOCK).unwrap();
        put(8192 + 128, &inode(4, 0o100_644, size, 0));
        image.extend(chunks.iter().flat_map(|chunk| chunk.to_le_bytes()));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&image).unwrap();
        mounted_image(Image::open(file.path()).unwrap(), Capabilities::default())
    }

    /// The answer to a request, and how many extents it looked at.
    fn seek(file_system: &ImageFs, offset: u64, whence: u32) -> (FsResult<u64>, usize) {
        let extents = Cell::new(0);
        let found = file_system.seek(FILE, offset, whence, &|| {
            extents.set(extents.get() + 1);
            false
        });
        (found, extents.get())
    }

    #[test]
    fn a_seek_in_a_file_of_many_extents_looks_at_a_limited_number_of_them() {
        let many = SEEK_EXTENTS_MAX + 10;
        let holes = [vec![1], vec![HOLE; many], vec![1]].concat();
        let (size, last) = (holes.len() as u64 * BLOCK, (many as u64 + 1) * BLOCK);
        let file_system = mounted_chunks(&holes);
        // The hole is data up to its last extents.
        for (offset, whence, wanted) in [
            (0, SEEK_DATA, 0),
            (0, SEEK_HOLE, size),
            (BLOCK, SEEK_DATA, BLOCK),
            (BLOCK + 7, SEEK_HOLE, size),
            (last - BLOCK, SEEK_DATA, last),
            (last - BLOCK, SEEK_HOLE, last - BLOCK),
            (20 * BLOCK, SEEK_DATA, last),
            (20 * BLOCK, SEEK_HOLE, 20 * BLOCK),
        ] {
            let (found, extents) = seek(&file_system, offset, whence);
            assert_eq!(found, Ok(wanted), "{whence} at {offset}");
            assert!(extents <= SEEK_EXTENTS_MAX + 2, "{extents} extents");
        }
        file_system.shut_down();
        let file_system = mounted_chunks(&[vec![1; many], vec![HOLE]].concat());
        let (found, extents) = seek(&file_system, 0, SEEK_HOLE);
        assert_eq!(found, Ok((many as u64 + 1) * BLOCK));
        assert!(extents <= SEEK_EXTENTS_MAX + 2, "{extents} extents");
        assert_eq!(seek(&file_system, last - BLOCK, SEEK_DATA).0, Err(Errno::NXIO));
        file_system.shut_down();
    }

    #[test]
    fn a_seek_ends_when_its_request_has_been_answered() {
        let file_system = mounted_chunks(&[HOLE; 1000]);
        let extents = Cell::new(0);
        let found = file_system.seek(FILE, 0, SEEK_DATA, &|| {
            extents.set(extents.get() + 1);
            extents.get() > 10
        });
        assert_eq!((found, extents.get()), (Err(Errno::INTR), 11));
        file_system.shut_down();
    }
}
