//! Entries of directories, with attributes where the kernel wants them.

use ferrofs_fuse::{ListedName, Listing, Operation, Reply, Request};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrofs_image::{FileType, Inode, ListedEntry, Nid};

use super::{Answer, ImageFs};

/// The longest answer: what a directory of some thousand names takes, and what a listener keeps for it.
const ROOM_BYTES: u32 = 256 << 10;

/// A directory of at most so many bytes, some three hundred names, is listed with all attributes at once: it is one
/// request in any case.
const SMALL_BYTES: u64 = 8192;

impl ImageFs {
    pub(super) fn read_dir(
        &self,
        node: u64,
        offset: u64,
        mut listing: Listing<'_>,
        reply: Reply<'_>,
    ) {
        match self.fill(node, offset, &mut listing) {
            Ok(()) => reply.bytes(listing.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    /// An empty list of the kind and with the room that a request asks for.
    pub(super) fn listing<'a>(request: &Request<'_>, scratch: &'a mut Vec<u8>) -> Listing<'a> {
        let (size, is_plus) = match request.operation {
            Operation::ReadDir { size, .. } => (size, false),
            Operation::ReadDirPlus { size, .. } => (size, true),
            _ => (0, false),
        };
        let room = usize::try_from(size.min(ROOM_BYTES)).unwrap_or(0);
        Listing::new(scratch, room, is_plus)
    }

    /// Somebody wants more of an inode than its name.
    pub(super) fn met(&self, inode: &Inode) {
        if inode.file_type() != FileType::Directory {
            self.interest.rise();
            self.forecast.known(inode.nid());
        }
    }

    /// What can be read of a directory is listed; an error comes when nothing is left before it.
    fn fill(&self, node: u64, offset: u64, listing: &mut Listing<'_>) -> Answer<()> {
        let dir = self.inode(node)?;
        let with_files =
            listing.is_plus() && (dir.size() <= SMALL_BYTES || self.interest.is_there());
        let mut files = Vec::new();
        let filled = self.fill_with(&dir, (offset, with_files), listing, &mut files);
        self.forecast.shown(&files);
        filled
    }

    fn fill_with(
        &self,
        dir: &Inode,
        (offset, with_files): (u64, bool),
        listing: &mut Listing<'_>,
        files: &mut Vec<(Nid, bool)>,
    ) -> Answer<()> {
        let listed = self.image.list(dir, offset, &mut |entry| {
            if !self.add(entry, with_files, listing) {
                return ControlFlow::Break(());
            }
            if entry.type_hint == Some(FileType::Regular) {
                files.push((entry.nid, with_files));
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(error) if listing.as_bytes().is_empty() => {
                Err(self.failed(dir.nid(), "an entry", &error))
            }
            _ => Ok(()),
        }
    }

    /// `false` if there is no room.
    fn add(&self, entry: &ListedEntry<'_>, with_files: bool, listing: &mut Listing<'_>) -> bool {
        if !listing.has_room(entry.name.len()) {
            return false;
        }
        let listed = ListedName {
            ino: self.nodes.ino(entry.nid),
            next: entry.next,
            file_type: entry.type_hint.map_or(0, d_type),
            name: entry.name,
        };
        let is_dot = matches!(entry.name, b"." | b"..");
        let is_wanted = with_files || entry.type_hint == Some(FileType::Directory);
        // An inode that cannot be read is listed all the same; looking it up says what is wrong.
        let inode = (listing.is_plus() && is_wanted && !is_dot)
            .then(|| self.image.inode(entry.nid).ok())
            .flatten();
        listing.push(&listed, inode.map(|inode| self.entry(&inode)).as_ref())
    }
}

/// Whether those who list directories want more than names. Attributes in a listing cost the kernel an inode each,
/// and save a request each where somebody looks at them: `ls -l` does, `find` does not. So they are in what is
/// listed after somebody has asked for those of a file, and no more once nobody has for long.
#[derive(Debug, Default)]
pub(super) struct Interest(AtomicU32);

/// Listings that have attributes after one was asked for.
const INTEREST_LASTS: u32 = 256;

impl Interest {
    fn rise(&self) {
        // A guess, which orders nothing: relaxed, here and below.
        self.0.store(INTEREST_LASTS, Ordering::Relaxed);
    }

    fn is_there(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left > 0
    }
}

/// As in `d_type`.
fn d_type(file_type: FileType) -> u8 {
    match file_type {
        FileType::Fifo => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}
