//! [`Image`]: the handle that users of the library hold.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::{DeviceSlot, FileType, Nid, Superblock};

use crate::dir::{DirEntryRef, ReadDir};
use crate::engine::{ImageStats, ReadBuffer};
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
/// A handle is cheap to clone and may be used from many threads at once. Several images share
/// nothing but what their [`OpenOptions`](crate::OpenOptions) share. An image is never written to.
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

    /// The length of the image file in bytes, from the start of the image on.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.inner.engine.devices.primary().length()
    }

    /// The length of the image and of the devices that were given, in bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.inner.stored_bytes()
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
    /// No valid inode lies there.
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        self.inner.inode(nid)
    }

    /// Looks `name` up in the directory `dir`; `None` if there is no such name.
    ///
    /// # Errors
    /// `dir` is not a directory, or it or the inode found is damaged.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        self.inner.lookup(dir, name)
    }

    /// The inode at a path from the root. Symlinks are not followed; empty and `.` components are
    /// skipped, and `..` goes up. `None` if a component does not exist or is not a directory.
    ///
    /// # Errors
    /// [`ErrorKind::PathTooLong`](crate::ErrorKind::PathTooLong) for more than 64 KiB of names. An
    /// inode or a directory on the path is damaged.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Inode>> {
        self.inner.resolve(path)
    }

    /// The entries of a directory without `.` and `..`, in the order of the image: by bytes.
    ///
    /// # Errors
    /// `dir` is not a directory. Damaged entries are reported by the iterator.
    pub fn read_dir(&self, dir: &Inode) -> Result<ReadDir<'_>> {
        self.inner.read_dir(dir)
    }

    /// Calls `visit` with each entry of a directory, `.` and `..` included, in the order in which
    /// they are stored, until it breaks. `from` is the position to start at: 0 is the first entry;
    /// [`DirEntryRef::next`] has the other positions, which are the same in every listing.
    ///
    /// # Errors
    /// `dir` is not a directory, a block of it is damaged, or a name has a slash or a NUL; entries
    /// before that block or name have been visited.
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
    /// `link` is not a symlink, or its target is damaged, empty, longer than 4,096 bytes, or holds
    /// a NUL.
    pub fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        self.inner.read_link(link)
    }

    /// How many bytes the names and values of [`Image::xattrs`] take: a few bytes of an image can be
    /// 16 MiB of attributes, which a caller may want to charge before it reads them.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs_bytes(&self, inode: &Inode) -> Result<u64> {
        self.inner.xattrs_bytes(inode)
    }

    /// All extended attributes that users may see.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.inner.xattrs(inode)
    }

    /// The names of [`Image::xattrs`], in the same order. No value is read: a few bytes of an image
    /// can be 16 MiB of values.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(inode)
    }

    /// How many bytes the value of [`Image::xattr`] has; `None` if the attribute is not there. The
    /// value is not read.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattr_length(&self, inode: &Inode, name: &[u8]) -> Result<Option<usize>> {
        self.inner.xattr_length(inode, name)
    }

    /// The value of one extended attribute, by its full name; `None` if it is not there.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(inode, name)
    }

    /// The digest of a file's content, as the attribute holds it that the superblock marks for that
    /// (`--xattr-inode-digest` of mkfs.erofs): `sha256:` and 32 bytes; `None` without one.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn content_digest(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        self.inner.content_digest(inode)
    }

    /// Reads the bytes of a file from byte `offset` on. Returns how many were read, which are fewer
    /// than asked for only at the end of the file. Directories and symlinks can be read, too.
    ///
    /// # Errors
    /// The data cannot be read or is damaged. The contents of `buffer` are unspecified then.
    pub fn read_at(&self, file: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read_in_mode(file, offset, buffer, self.inner.mode)?.bytes)
    }

    /// Reads like [`read_at`](Image::read_at), for a prefetch: it takes memory for contents from nobody, and waits for no
    /// memory, no decode slot and no other thread that decodes. `None` if it would have to: then do
    /// without the prefetch.
    ///
    /// # Errors
    /// As [`read_at`](Image::read_at).
    pub fn read_best_effort(
        &self,
        file: &Inode,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        self.inner.read_best_effort(file, offset, buffer)
    }

    /// Calls `sink` with a whole file piece by piece, in order and without gaps.
    ///
    /// While `sink` runs, its thread holds a [decode slot](Image::decode_slots). It may read from
    /// the image itself, but must not wait for another thread that reads, as no slot may be left
    /// for that one.
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

    /// Calls `sink` with the part of a file that belongs to `range`, in order and without gaps.
    /// Returns which part that was.
    ///
    /// A cluster belongs as a whole to the range in which it starts: it may end behind the range,
    /// and a cluster that starts before the range is left out. All else is cut at the ends of the
    /// range. So ranges that cover a file pass each byte on once, and no cluster is decoded twice.
    /// `sink` is called as by [`Image::for_each_piece`].
    ///
    /// The caller has to check that each returned part begins where the one before ends, as the
    /// index of a damaged image can contradict itself.
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

    /// How a file is stored from byte `offset` on, extent by extent: what is data, what is a hole,
    /// and what can only be read as a whole. Reads metadata only. Directories and symlinks have
    /// extents, too. There are none from the end of a file on.
    ///
    /// # Errors
    /// The map of the file is damaged. Damage further on is reported by the iterator.
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

    /// Opens a file for reads with readahead.
    ///
    /// # Errors
    /// It is not a regular file.
    pub fn open_file(&self, file: &Inode) -> Result<OpenFile> {
        file.require(FileType::Regular)?;
        Ok(OpenFile::new(Arc::clone(&self.inner), file.clone()))
    }

    /// The memory that reading uses.
    #[must_use]
    pub fn memory(&self) -> &MemoryPool {
        &self.inner.engine.memory
    }

    /// A buffer to read into, for a caller that waits for it. With a reserve
    /// ([`MemoryPool::with_reserve`]) clusters that were kept longest are evicted before anything
    /// is mapped beyond the reserve.
    ///
    /// All such buffers leave room for the longest extent, for which readers may wait while they
    /// hold them. If there is no more room, this waits until another one is dropped. So a thread
    /// must not hold one when it asks for the next.
    ///
    /// # Errors
    /// As [`MemoryPool::buffer`] with
    /// [`AllocPolicy::MustSucceed`](crate::AllocPolicy::MustSucceed).
    pub fn demand_buffer(&self, bytes: usize) -> Result<ReadBuffer> {
        self.inner.engine.read_buffer(bytes)
    }

    /// A buffer for a prefetch, as far as it takes memory from nobody: idle buffers, or free bytes
    /// of the budget. With a reserve nothing is mapped beyond it, and a
    /// [share](MemoryPool::reserve_share) of it is left for demands. `None` if there is no such
    /// memory: then do without the prefetch.
    #[must_use]
    pub fn best_effort_buffer(&self, bytes: usize) -> Option<ReadBuffer> {
        self.inner.engine.best_effort_read_buffer(bytes)
    }

    /// How many threads can decode at a time; others wait for a slot. The number depends on the
    /// CPUs, and on memory where that is scarce.
    #[must_use]
    pub fn decode_slots(&self) -> usize {
        self.inner.engine.decode_slots.count()
    }

    /// Measures the time of each run of a decoder from now on. That takes about 60 ns a run; see
    /// [`ImageStats::decode_time`].
    pub fn measure_decoding(&self) {
        let engine = &self.inner.engine;
        engine.decode_timer.measure(engine.decode_slots.count());
    }

    /// From now on, reads may start threads; see [`OpenOptions::defer_threads`](crate::OpenOptions::defer_threads).
    pub fn allow_threads(&self) {
        self.inner.engine.may_start_threads.store(true, Ordering::Relaxed);
        // It frees what earlier reads have kept.
        self.inner.wake_idle_reclaimer();
    }

    /// The work of decoding so far, in bytes: those that were decoded, as in [`ImageStats::bytes_decoded`], and
    /// a quarter of those that were read beyond as many. Reading a byte takes a quarter of the time of decoding one,
    /// and a damaged image can have a cluster of a mebibyte for each byte.
    #[must_use]
    pub fn decoding_work(&self) -> u64 {
        let counters = self.inner.engine.decode_slots.counters();
        counters.decoded_bytes.saturating_add(counters.surplus_input_bytes / 4)
    }

    /// What has been read and decoded so far.
    #[must_use]
    pub fn stats(&self) -> ImageStats {
        ImageStats::of(&self.inner.engine)
    }

    /// What fetching a remote image has cost so far; `None` for a local one. May wait for the fetcher
    /// for a moment.
    #[must_use]
    pub fn remote_stats(&self) -> Option<crate::source::RemoteStats> {
        self.inner.engine.devices.remote_stats()
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &ImageInner {
        &self.inner
    }

    /// Verifies the image, or what [`VerifyOptions::path`] names: reads all metadata and every byte
    /// of every file, and reports what is wrong in the order of the tree. `on_event` is called on
    /// this thread.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) after the token of the options was
    /// cancelled. Problems of the image are events, not errors.
    pub fn verify(
        &self,
        options: &VerifyOptions,
        on_event: &mut dyn FnMut(VerifyEvent),
    ) -> Result<VerifySummary> {
        self.inner.wake_idle_reclaimer();
        verify::verify(&self.inner, options, on_event)
    }

    /// An error if the image or a device is shorter than the superblock says.
    #[must_use]
    pub fn truncation(&self) -> Option<Error> {
        verify::truncation(&self.inner)
    }
}
