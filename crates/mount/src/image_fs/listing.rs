//! Entries of directories, with attributes where the kernel wants them.

use ferrofs_fuse::{ListedName, Listing, Operation, Reply, Request};
use ferrofs_image::{DirEntry, FileType, PlacedEntry};

use super::{Answer, ImageFs};

/// The longest answer: what a directory of some thousand names takes, and what a listener keeps for it.
const ROOM_BYTES: u32 = 256 << 10;

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

    /// What can be read of a directory is listed; an error comes when nothing is left before it.
    fn fill(&self, node: u64, offset: u64, listing: &mut Listing<'_>) -> Answer<()> {
        let dir = self.inode(node)?;
        let failed = |error| self.failed(dir.nid(), "an entry", &error);
        for placed in self.image.list(&dir, offset).map_err(failed)? {
            match placed {
                Ok(placed) if self.add(&placed, listing) => {}
                Ok(_) => return Ok(()),
                Err(_) if !listing.as_bytes().is_empty() => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// `false` if there is no room.
    fn add(&self, placed: &PlacedEntry, listing: &mut Listing<'_>) -> bool {
        let DirEntry { nid, type_hint, name, .. } = &placed.entry;
        if !listing.has_room(name.len()) {
            return false;
        }
        let listed = ListedName {
            ino: self.nodes.ino(*nid),
            next: placed.next,
            file_type: type_hint.map_or(0, d_type),
            name,
        };
        let is_dot = matches!(&**name, b"." | b"..");
        // An inode that cannot be read is listed all the same; looking it up says what is wrong.
        let inode = (listing.is_plus() && !is_dot).then(|| self.image.inode(*nid).ok()).flatten();
        listing.push(&listed, inode.map(|inode| self.entry(&inode)).as_ref())
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
