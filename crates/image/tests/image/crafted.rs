//! Images that are written byte by byte, for what no builder writes: directories that share their
//! entries, attributes that inodes share, names without end. Blocks have 4 KiB; inodes lie in slots
//! of 32 bytes from the second block on, data behind them.

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// The number of the first inode slot.
const FIRST_NID: u64 = (BLOCK / 32) as u64;
/// Types of directory entries.
pub(crate) const FILE: u8 = 1;
pub(crate) const DIRECTORY: u8 = 2;
pub(crate) const FIFO: u8 = 5;

/// A compact inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactInode {
    /// The data layout.
    pub(crate) layout: u16,
    /// Units of 4 bytes of the attributes, and two more.
    pub(crate) xattr_count: u16,
    /// Type and permissions.
    pub(crate) mode: u16,
    /// Names.
    pub(crate) nlink: u16,
    /// Bytes of data.
    pub(crate) size: usize,
    /// The first block, or what the layout has in its place.
    pub(crate) payload: u32,
}

/// An image on its way.
#[derive(Debug)]
pub(crate) struct CraftedImage {
    slots: Vec<u8>,
    data: Vec<u8>,
    /// The block of the shared attributes.
    pub(crate) xattr_block: u32,
}

impl CompactInode {
    /// A FIFO without a further property.
    pub(crate) fn fifo() -> Self {
        Self { layout: 0, xattr_count: 0, mode: 0o10_644, nlink: 1, size: 0, payload: 0 }
    }

    /// A directory whose entries begin in a block.
    pub(crate) fn directory(size: usize, payload: u32) -> Self {
        Self { mode: 0o40_755, nlink: 2, size, payload, ..Self::fifo() }
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [self.layout << 1, self.xattr_count, self.mode, self.nlink] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&u32::try_from(self.size).unwrap().to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.payload.to_le_bytes());
        bytes.resize(32, 0);
        bytes
    }
}

impl CraftedImage {
    /// An image with room for so many inode slots.
    pub(crate) fn new(slots: usize) -> Self {
        let bytes = (slots * 32).next_multiple_of(BLOCK);
        Self { slots: vec![0; bytes], data: Vec::new(), xattr_block: 0 }
    }

    /// The number of the inode in a slot.
    pub(crate) fn nid(slot: usize) -> u64 {
        FIRST_NID + slot as u64
    }

    /// Writes an inode and what follows it.
    pub(crate) fn inode(&mut self, slot: usize, inode: CompactInode, behind: &[u8]) {
        let bytes = [&inode.bytes(), behind].concat();
        self.slots[slot * 32..][..bytes.len()].copy_from_slice(&bytes);
    }

    /// Writes data and returns its block.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> u32 {
        let block = (BLOCK + self.slots.len() + self.data.len()) / BLOCK;
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(BLOCK), 0);
        u32::try_from(block).unwrap()
    }

    /// The image.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut image = vec![0u8; BLOCK];
        image.extend_from_slice(&self.slots);
        image.extend_from_slice(&self.data);
        let blocks = u32::try_from(image.len() / BLOCK).unwrap();
        let mut put = |at: usize, bytes: &[u8]| {
            image[1024 + at..1024 + at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &0xE0F5_E1E2u32.to_le_bytes());
        put(12, &[12]);
        put(14, &u16::try_from(Self::nid(0)).unwrap().to_le_bytes());
        put(16, &1u64.to_le_bytes());
        put(36, &blocks.to_le_bytes());
        put(44, &self.xattr_block.to_le_bytes());
        image
    }
}

/// The blocks of a directory with these names, numbers and types.
pub(crate) fn directory<N: AsRef<[u8]>>(entries: &[(N, u64, u8)]) -> Vec<u8> {
    let mut blocks: Vec<Vec<&(N, u64, u8)>> = vec![Vec::new()];
    let mut used = 0;
    for entry in entries {
        let bytes = 12 + entry.0.as_ref().len();
        if used + bytes > BLOCK {
            blocks.push(Vec::new());
            used = 0;
        }
        used += bytes;
        if let Some(block) = blocks.last_mut() {
            block.push(entry);
        }
    }
    let mut data = Vec::new();
    for block in blocks {
        data.resize(data.len().next_multiple_of(BLOCK), 0);
        let mut at = u16::try_from(12 * block.len()).unwrap();
        for (name, nid, kind) in &block {
            data.extend_from_slice(&nid.to_le_bytes());
            data.extend_from_slice(&at.to_le_bytes());
            data.extend_from_slice(&[*kind, 0]);
            at += u16::try_from(name.as_ref().len()).unwrap();
        }
        for (name, ..) in block {
            data.extend_from_slice(name.as_ref());
        }
    }
    data
}

/// A name of four letters; numbers in order give names in order.
pub(crate) fn name(number: usize) -> String {
    let letter =
        |place: u32| char::from(b'a' + u8::try_from(number / 26usize.pow(place) % 26).unwrap());
    (0..4).rev().map(letter).collect()
}

/// A file `f` of `count` extents of `bytes` bytes, each of them the front of an LZ4 cluster of its own. The
/// clusters have `cluster` bytes and overlap.
pub(crate) fn front_extents(count: usize, bytes: usize, cluster: usize) -> Vec<u8> {
    const TABLE: usize = 16;
    let mut image = CraftedImage::new(3 + count);
    // A literal run of 256 bytes, wherever a stream begins.
    let block = image.data(&vec![0xF1; cluster + count]);
    let data_at = usize::try_from(block).unwrap() * BLOCK;
    let mut behind = u32::try_from(count).unwrap().to_le_bytes().to_vec();
    behind.extend_from_slice(&5u16.to_le_bytes());
    behind.resize(TABLE, 0);
    for number in 0..count {
        let length = cluster | 1 << 27 | 1 << 28;
        for field in [length, data_at + number, 0, number * bytes] {
            behind.extend_from_slice(&u32::try_from(field).unwrap().to_le_bytes());
        }
    }
    let file =
        CompactInode { layout: 1, mode: 0o100_644, size: count * bytes, ..CompactInode::fifo() };
    image.inode(1, file, &behind);
    let root = directory(&[("f", CraftedImage::nid(1), FILE)]);
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    image.finish()
}
