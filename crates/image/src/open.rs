//! Opening an image: superblock, checksum, configuration records, devices, special inodes, xattr
//! prefixes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ferrofs_ondisk as ondisk;
use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::{
    Compat, DeviceSlot, FileType, SUPERBLOCK_OFFSET, Superblock, checksum_span, superblock_checksum,
};

use ferrofs_workers::single_flight::SingleFlight;

use crate::counted_starts::CountedStarts;
use crate::engine::{
    self, ContextPool, DecodeTimer, DecodeWorkers, Engine, MemoryShares, QueuedOutputs, SlotLimits,
    SyncDecompress,
};
use crate::error::{Error, ErrorKind, Result, parsed};
use crate::idle_reclaimer::{Activity, IdleReclaimer};
use crate::image::Image;
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::memory::MemoryPool;
use crate::metadata_cache::MetadataCache;
use crate::source::{self, Devices, FileSource, ImageSource, read_exact, read_up_to};
use crate::xattr;

/// Decode slots that are held at the same time while threads wait for the storage: one for each
/// listener of a mount.
const SLOTS_HELD_MAX: usize = 32;
/// At most so many decoded bytes of the metabox for each byte of the image.
const METABOX_MAX_RATIO: u64 = 1024;
/// The superblock with its first extension slot: all bytes that have a meaning.
const FRONT_BYTES: usize = 144;

/// How to open an image.
///
/// ```no_run
/// # fn main() -> ferrofs_image::Result<()> {
/// let image = ferrofs_image::OpenOptions::new()
///     .offset(64 << 10)
///     .device("layer.blob")
///     .open("app.erofs")?;
/// println!("{} inodes", image.superblock().inodes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    offset: u64,
    devices: Vec<PathBuf>,
    ignores_checksum: bool,
    memory: Option<MemoryPool>,
    cache_limit_bytes: Option<u64>,
    retain_memory: bool,
    workers: Option<DecodeWorkers>,
    sync_decompress: SyncDecompress,
    caller_caches: bool,
    defers_threads: bool,
}

impl Image {
    /// Opens the image at `path`. [`OpenOptions`] opens it in other ways.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(path)
    }
}

impl OpenOptions {
    /// An image that starts at byte 0 and has no extra devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The image starts at this byte of its file.
    #[must_use]
    pub fn offset(mut self, bytes: u64) -> Self {
        self.offset = bytes;
        self
    }

    /// Adds a device. Either all devices are added, in the order of the device table of the image,
    /// or none, if they are appended to the image.
    #[must_use]
    pub fn device(mut self, path: impl Into<PathBuf>) -> Self {
        self.devices.push(path.into());
        self
    }

    /// Opens the image even if the checksum of its superblock is wrong.
    #[must_use]
    pub fn ignore_checksum(mut self, yes: bool) -> Self {
        self.ignores_checksum = yes;
        self
    }

    /// Takes memory from this pool, which several images can share. The default is a pool of its
    /// own with the [default limit](MemoryPool::with_default_limit).
    #[must_use]
    pub fn memory(mut self, memory: &MemoryPool) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    /// Caches decoded clusters in at most so many bytes of the memory. They are evicted when the
    /// memory is needed elsewhere. The default is half of the memory; a program that reads every
    /// file once gains nothing from more than 8 MiB (docs/benchmarks.md).
    #[must_use]
    pub fn cache_limit_bytes(mut self, bytes: u64) -> Self {
        self.cache_limit_bytes = Some(bytes);
        self
    }

    /// Keeps buffers and caches until their memory is needed elsewhere, or the image is dropped.
    /// The default is that a thread frees them within eight seconds of the last read. For programs
    /// that end when they have read.
    #[must_use]
    pub fn retain_memory(mut self, yes: bool) -> Self {
        self.retain_memory = yes;
        self
    }

    /// Decodes on these workers. The default is [`DecodeWorkers::global`].
    #[must_use]
    pub fn workers(mut self, workers: &DecodeWorkers) -> Self {
        self.workers = Some(workers.clone());
        self
    }

    /// Which threads decode for [`Image::read_at`] and
    /// [`OpenFile::read_at`](crate::OpenFile::read_at).
    #[must_use]
    pub fn sync_decompress(mut self, mode: SyncDecompress) -> Self {
        self.sync_decompress = mode;
        self
    }

    /// The caller caches what it reads, as the kernel does for a mount, and will hardly read a byte
    /// twice. Then an extent that is read as a whole is decoded straight into the buffer of the
    /// caller and not cached here, and one that is read in parts is cached until all of it has been
    /// read.
    #[must_use]
    pub fn caller_caches(mut self, yes: bool) -> Self {
        self.caller_caches = yes;
        self
    }

    /// Opening and reading start no thread until [`Image::allow_threads`] is called: no decode worker, and none that frees
    /// memory. For a process that drops privileges after it has opened the image, since threads that run already would keep
    /// theirs.
    #[must_use]
    pub fn defer_threads(mut self, yes: bool) -> Self {
        self.defers_threads = yes;
        self
    }

    /// Opens the image at `path`.
    ///
    /// # Errors
    /// A file cannot be opened or read. The superblock, or what belongs to it, is damaged: the
    /// checksum, configuration records, device table, special inodes, xattr prefixes. The memory
    /// limit is too low.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Image> {
        let primary = Arc::new(FileSource::open(path.as_ref(), self.offset)?);
        let mut devices: Vec<Arc<dyn ImageSource>> = Vec::with_capacity(self.devices.len());
        for device in &self.devices {
            devices.push(Arc::new(FileSource::open_device(device)?));
        }
        self.open_sources(primary, devices)
    }

    /// Opens an image from sources of the caller. The offset and the paths of these options are
    /// ignored.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_sources(
        &self,
        primary: Arc<dyn ImageSource>,
        devices: Vec<Arc<dyn ImageSource>>,
    ) -> Result<Image> {
        let mut front = [0u8; FRONT_BYTES];
        let filled = read_up_to(&*primary, SUPERBLOCK_OFFSET, &mut front)?;
        let front = front.get(..filled).unwrap_or_default();
        let sb = parsed(Superblock::parse(front), SUPERBLOCK_OFFSET)?;
        if !self.ignores_checksum {
            verify_checksum(&*primary, &sb)?;
        }
        let compression = compression(&*primary, &sb)?;
        let device_slots = device_slots(&*primary, &sb)?;
        let devices = Devices::new(primary, &device_slots, devices, sb.block_size)?;
        let engine = self.engine(devices, &sb, &compression)?;
        let metadata_cache =
            Arc::new(MetadataCache::new(&engine.memory, engine.decode_slots.held())?);
        let shrunk = Arc::downgrade(&engine);
        let reclaimer = engine.memory.budget().register_reclaimer(move |bytes| {
            shrunk.upgrade().map_or(0, |engine| engine.shrink(bytes))
        })?;
        let mut inner = ImageInner {
            sb,
            compression,
            device_slots,
            idle_reclaimer: if self.retain_memory {
                IdleReclaimer::disabled()
            } else {
                idle_reclaimer(&engine, &metadata_cache)
            },
            engine,
            metadata_cache,
            mode: self.sync_decompress,
            caller_caches: self.caller_caches,
            metabox: None,
            packed: None,
            counted_starts: CountedStarts::default(),
            xattr_prefixes: Vec::new(),
            _reclaimer: reclaimer,
        };
        inner.metabox = special(&inner, inner.sb.metabox, "metabox")?;
        bound_metabox(&inner)?;
        inner.packed = special(&inner, inner.sb.packed, "packed")?;
        inner.xattr_prefixes = xattr::read_prefixes(&inner)?;
        Ok(Image::new(inner))
    }

    fn engine(
        &self,
        devices: Devices,
        sb: &Superblock,
        compression: &CompressionConfig,
    ) -> Result<Arc<Engine>> {
        let memory = self.memory.clone().map_or_else(MemoryPool::with_default_limit, Ok)?;
        let workers = self.workers.clone().unwrap_or_else(DecodeWorkers::global);
        let settings = engine::settings(compression);
        let limit = memory.budget().limit_bytes();
        let decoder = u64::try_from(settings.memory_bytes_max()).unwrap_or(u64::MAX);
        let shares = MemoryShares::new(&memory, decoder);
        let useful = workers.parallelism().saturating_mul(2);
        let decode_slots = SlotLimits {
            running: useful.min(shares.slots),
            held: useful.max(SLOTS_HELD_MAX).min(shares.slots),
        };
        let cache_bytes = self.cache_limit_bytes.unwrap_or(limit / 2).min(limit);
        let cache_shards = engine::cache_shards(cache_bytes, workers.parallelism());
        Ok(Arc::new(Engine {
            devices,
            decode_slots: ContextPool::new(decode_slots),
            queued_outputs: QueuedOutputs::default(),
            read_buffers: shares.read_buffers(&memory, decode_slots.held)?,
            clusters: SingleFlight::sharded(cache_bytes, cache_shards),
            memory,
            decode_timer: DecodeTimer::default(),
            workers,
            may_start_threads: AtomicBool::new(!self.defers_threads),
            settings,
            padding: engine::padding(sb),
        }))
    }
}

/// Frees what the engine and the metadata cache keep when nobody has read for a while.
fn idle_reclaimer(engine: &Arc<Engine>, metadata_cache: &Arc<MetadataCache>) -> IdleReclaimer {
    let (used, kept) = (Arc::downgrade(engine), Arc::downgrade(engine));
    let metadata_cache = Arc::downgrade(metadata_cache);
    let activity = move || {
        used.upgrade().map(|engine| Activity {
            uses: engine.activity(),
            is_busy: engine.decode_slots.is_in_use(),
        })
    };
    let reclaim = move || {
        if let Some(engine) = kept.upgrade() {
            engine.shrink(u64::MAX);
        }
        if let Some(metadata_cache) = metadata_cache.upgrade() {
            metadata_cache.shrink();
        }
    };
    IdleReclaimer::new(activity, reclaim)
}

fn verify_checksum(primary: &dyn ImageSource, sb: &Superblock) -> Result<()> {
    if !sb.compat.has(Compat::SB_CHKSUM) {
        return Ok(());
    }
    let mut covered = source::zeroed(checksum_span(sb.block_size))?;
    read_exact(primary, SUPERBLOCK_OFFSET, &mut covered)?;
    let computed = parsed(superblock_checksum(sb.block_size, &covered), SUPERBLOCK_OFFSET)?;
    let stored = sb.checksum;
    if computed == stored {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Checksum { stored, computed }).at(SUPERBLOCK_OFFSET | 4))
}

/// Reads the configuration records behind the superblock (docs/format.md F6).
fn compression(primary: &dyn ImageSource, sb: &Superblock) -> Result<CompressionConfig> {
    let mut compression = sb.implied_compression();
    let mut at = SUPERBLOCK_OFFSET.saturating_add(u64::from(sb.bytes));
    for algorithm in parsed(sb.recorded_algorithms(), SUPERBLOCK_OFFSET)? {
        at = at.saturating_add(3) & !3;
        let mut length = [0u8; 2];
        read_exact(primary, at, &mut length)?;
        let payload = at.saturating_add(2);
        let bytes = u16::from_le_bytes(length);
        let mut record = source::zeroed(usize::from(bytes))?;
        read_exact(primary, payload, &mut record)?;
        parsed(compression.add_record(algorithm, &record), payload)?;
        at = payload.saturating_add(u64::from(bytes));
    }
    Ok(compression)
}

fn device_slots(primary: &dyn ImageSource, sb: &Superblock) -> Result<Vec<DeviceSlot>> {
    let wide = sb.incompat.has(ondisk::Incompat::BIT48);
    let mut at = u64::from(sb.device_table_slot).saturating_mul(DeviceSlot::BYTES);
    let mut slots = Vec::new();
    for _ in 0..sb.extra_devices {
        let mut bytes = [0u8; 128];
        read_exact(primary, at, &mut bytes)?;
        slots.push(parsed(DeviceSlot::parse(&bytes, wide), at)?);
        at = at.saturating_add(DeviceSlot::BYTES);
    }
    Ok(slots)
}

/// Holes can make the metabox, and an index inside it, as long as a 64-bit number can say, and a
/// walk would not end. Real metadata compresses far less than the factor allowed here.
fn bound_metabox(inner: &ImageInner) -> Result<()> {
    let Some(metabox) = &inner.metabox else { return Ok(()) };
    let length = inner.engine.devices.primary().length();
    if metabox.size() / METABOX_MAX_RATIO <= length {
        return Ok(());
    }
    let kind = ErrorKind::MetaboxSize { bytes: metabox.size(), length };
    Err(Error::new(kind).in_inode(metabox.nid()).at(metabox.offset()))
}

/// Loads the packed inode or the metabox inode, which are regular files.
fn special(
    inner: &ImageInner,
    nid: Option<ondisk::Nid>,
    name: &'static str,
) -> Result<Option<Inode>> {
    let Some(nid) = nid else { return Ok(None) };
    let inode = inner.inode(nid)?;
    if inode.file_type() != FileType::Regular {
        return Err(Error::new(ErrorKind::SpecialInode(name)).in_inode(nid).at(inode.offset()));
    }
    Ok(Some(inode))
}
