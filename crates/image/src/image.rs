//! The image: the one handle that library users hold.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::{DeviceSlot, FileType, Nid, Superblock};
use ferrofs_workers::memory::Buffer;

use crate::dir::{DirEntryRef, ReadDir};
use crate::engine::ImageStats;
use crate::error::{Error, Result};
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::map::FileExtents;
use crate::memory::MemoryPool;
use crate::open_file::OpenFile;
use crate::pieces::FilePiece;
use crate::verify::{self, VerifyEvent, VerifyOptions, VerifySummary};
use crate::walk::TreeWalk;
use crate::xattr::Xattr;

/// An open image.
///
/// A handle is cheap to clone and may be used from many threads at once; several images know
/// nothing of each other. Nothing is ever written.
#[derive(Clone, Debug)]
pub struct Image {
    inner: Arc<ImageInner>,
}

impl Image {
    pub(crate) fn new(inner: ImageInner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.inner.sb
    }

    /// The compression algorithms that the image declares.
    #[must_use]
    pub fn compression(&self) -> &CompressionConfig {
        &self.inner.compression
    }

    /// The device table.
    #[must_use]
    pub fn device_slots(&self) -> &[DeviceSlot] {
        &self.inner.device_slots
    }

    /// Bytes of the image's file, from the image's start on.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.inner.engine.devices.primary().length()
    }

    /// The root directory.
    ///
    /// # Errors
    /// Its inode is damaged.
    pub fn root(&self) -> Result<Inode> {
        self.inner.inode(self.inner.sb.root)
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// There is no sound inode at that place.
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        self.inner.inode(nid)
    }

    /// The inode that `name` leads to in `dir`; `None` if there is no such name.
    ///
    /// # Errors
    /// `dir` is no directory, or it or the inode found is damaged.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        self.inner.lookup(dir, name)
    }

    /// The inode at a path from the root. Symlinks are not followed; empty and `.` components
    /// change nothing, and `..` goes up. `None` if a component does not exist or is no directory.
    ///
    /// # Errors
    /// Something on the way is damaged.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Inode>> {
        self.inner.resolve(path)
    }

    /// The entries of a directory without `.` and `..`, in the order of the image: by bytes.
    ///
    /// # Errors
    /// `dir` is no directory. Damage shows when the entries are reached.
    pub fn read_dir(&self, dir: &Inode) -> Result<ReadDir<'_>> {
        self.inner.read_dir(dir)
    }

    /// Hands the entries of a directory to `visit` until it breaks off, from a place on, in the order in which they
    /// are stored, `.` and `..` among them. 0 is the first place; others come from [`DirEntryRef::next`], and lead to
    /// the same entry in every listing.
    ///
    /// # Errors
    /// It is no directory, or a block of it is damaged; what comes before that has been handed out.
    pub fn list(
        &self,
        dir: &Inode,
        from: u64,
        visit: &mut dyn FnMut(&DirEntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.list(dir, from, visit)
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `link` is no symlink, or its target is damaged, empty, longer than 4,096 bytes, or holds a
    /// NUL.
    pub fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        self.inner.read_link(link)
    }

    /// All extended attributes that users may see.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.inner.xattrs(inode)
    }

    /// The value of one extended attribute, by its full name; `None` if it is not there.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(inode, name)
    }

    /// Reads the bytes of a file from `offset` on; answers how many were read, which are fewer
    /// than asked only at the end of the file. Directories and symlinks have bytes too.
    ///
    /// # Errors
    /// The data cannot be read or is damaged; `buffer` may then hold anything.
    pub fn read_at(&self, file: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read_in_mode(file, offset, buffer, self.inner.mode)?.bytes)
    }

    /// Hands a whole file to `sink`, in order and without gaps.
    ///
    /// While `sink` runs its thread counts as one that reads: it may read from the image itself, but
    /// must not wait for another thread that does, as there may be no [slot](Image::decode_slots) for that.
    ///
    /// # Errors
    /// The data cannot be read or is damaged, or `sink` fails.
    pub fn for_each_piece<E: From<Error>>(
        &self,
        file: &Inode,
        mut sink: impl FnMut(FilePiece<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.for_each_piece_in(file, 0..file.size(), &mut sink).map(|_| ())
    }

    /// Hands the part of a file that belongs to `range` to `sink`, in order and without gaps, and
    /// answers which part that was.
    ///
    /// A cluster belongs whole to the range in which it starts: it may reach behind the end of the
    /// range, and one that reaches into the range from before it is left to the range before. All
    /// else is cut where the range is. So ranges that cover a file hand each byte out once, and no
    /// cluster is decoded twice. `sink` is called as by [`Image::for_each_piece`]. Whoever reads a file in ranges has to check that each answer begins
    /// where the one before ends: the index of a damaged image can contradict itself.
    ///
    /// # Errors
    /// The data cannot be read or is damaged, or `sink` fails.
    pub fn for_each_piece_in<E: From<Error>>(
        &self,
        file: &Inode,
        range: Range<u64>,
        mut sink: impl FnMut(FilePiece<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Range<u64>, E> {
        self.inner.wake_idle_reclaimer();
        self.inner.for_each_piece_in(file, range, &mut sink)
    }

    /// How a file is stored from byte `offset` on, range by range: what is data and what is a hole,
    /// and what can only be read as a whole. Reads metadata only. Directories and symlinks have
    /// ranges too; from the end of a file on there are none.
    ///
    /// # Errors
    /// The map of the file is damaged. Damage further on shows when it is reached.
    pub fn file_extents<'a>(&'a self, file: &'a Inode, offset: u64) -> Result<FileExtents<'a>> {
        FileExtents::new(&self.inner, file, offset)
    }

    /// Walks a path and everything below it, depth first.
    ///
    /// # Errors
    /// The path does not exist ([`std::io::ErrorKind::NotFound`]), or something on the way to it
    /// is damaged.
    pub fn walk(&self, path: &[u8]) -> Result<TreeWalk<'_>> {
        TreeWalk::new(&self.inner, path)
    }

    /// Opens a file for reading it in pieces, with readahead.
    ///
    /// # Errors
    /// It is no regular file.
    pub fn open_file(&self, file: &Inode) -> Result<OpenFile> {
        file.require(FileType::Regular)?;
        Ok(OpenFile::new(Arc::clone(&self.inner), file.clone()))
    }

    /// The memory that reading takes.
    #[must_use]
    pub fn memory(&self) -> &MemoryPool {
        &self.inner.engine.memory
    }

    /// Memory to read into, for somebody who waits for it. With a reserve ([`MemoryPool::with_reserve`]) the longest
    /// unused of what is kept makes room before anything is taken from the system beyond it.
    ///
    /// # Errors
    /// As [`MemoryPool::buffer`] that must succeed.
    pub fn demand_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.inner.engine.demand_buffer(bytes)
    }

    /// Memory for what may be wanted soon, as far as it takes none from anybody: what lies idle, or free bytes of the
    /// budget; with a reserve nothing is mapped beyond that, and a [share](MemoryPool::reserve_share) stays for those who must
    /// have memory. Best effort: whoever gets none does without.
    #[must_use]
    pub fn best_effort_buffer(&self, bytes: usize) -> Option<Buffer> {
        self.inner.engine.best_effort_buffer(bytes)
    }

    /// How many threads can read at a time; more of them wait. It is bounded by the CPUs, and where
    /// memory is scarce by what the decoders of a thread need.
    #[must_use]
    pub fn decode_slots(&self) -> usize {
        self.inner.engine.decode_slots.count()
    }

    /// From now on the time of each run of a decoder is measured, which takes some 60 ns; see
    /// [`ImageStats::decode_time`].
    pub fn measure_decoding(&self) {
        let engine = &self.inner.engine;
        engine.decode_timer.measure(engine.decode_slots.count());
    }

    /// What reading came to so far.
    #[must_use]
    pub fn stats(&self) -> ImageStats {
        ImageStats::of(&self.inner.engine)
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &ImageInner {
        &self.inner
    }

    /// Reads all metadata and every byte of every file, or of what [`VerifyOptions`] says, and reports what is wrong,
    /// in the order of the tree. Events come on this thread.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once the token of the options is cancelled. What is wrong
    /// with the image is no error here, but an event.
    pub fn verify(
        &self,
        options: &VerifyOptions,
        on_event: &mut dyn FnMut(VerifyEvent),
    ) -> Result<VerifySummary> {
        self.inner.wake_idle_reclaimer();
        verify::verify(&self.inner, options, on_event)
    }

    /// What is wrong with the image as a whole: it, or a device, is shorter than it says.
    #[must_use]
    pub fn truncation(&self) -> Option<Error> {
        verify::truncation(&self.inner)
    }
}
