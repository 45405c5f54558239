//! What precedes the root in an image: superblock, configuration records, tables of long prefixes and of devices.
//! [`SuperblockTimes`] chooses the time of the image and the one that compact inodes share.

use ferrofs_codec::Method;
use ferrofs_ondisk::compression::{AlgorithmId, CompressionConfig};
use ferrofs_ondisk::{
    Compat, DeviceSlot, Incompat, SUPERBLOCK_OFFSET, Superblock, TimeBase, Timestamp, seal_checksum,
};

use crate::compress::profiles::disk_algorithm;
use crate::metadata::{Features, MetadataWriter, WrittenMetadata};
use crate::spill::SpillStore;
use crate::spill::paged::Sorter;
use crate::tree::Device;
use crate::{BuildOptions, Error, ErrorKind, Result, SuperblockTime};

/// The largest window of DEFLATE, which its encoder uses, as a shift.
const DEFLATE_WINDOW_BITS: u8 = 15;
/// The unit in which the superblock says where long prefixes lie.
const PREFIX_UNIT_BYTES: u64 = 4;

/// Everything in front of the root.
#[derive(Debug)]
pub(crate) struct SuperblockArea {
    /// Where the configuration records start, whether there will be some or not.
    records_at: u64,
    prefixes_at: u64,
    prefixes: Vec<u8>,
    /// The table of prefixes stands in the packed inode, at its start, and not here.
    packs_prefixes: bool,
    digest_prefix: Option<u8>,
    prefix_count: u8,
    devices: u16,
    has_xattrs: bool,
    times: SuperblockTimes,
}

impl SuperblockArea {
    /// Reserves the space that the options can need.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for parameters that a record cannot hold.
    pub(crate) fn plan(writer: &MetadataWriter<'_>, options: &BuildOptions) -> Result<Self> {
        let records_at = SUPERBLOCK_OFFSET + u64::from(superblock_bytes(options));
        let all = compression(options, |_| true);
        let records = all.records(max_pcluster_blocks(options)).map_err(format)?;
        let (prefixes, prefix_count) = writer.prefixes()?;
        let prefixes_at = (records_at + records.len() as u64).next_multiple_of(PREFIX_UNIT_BYTES);
        let devices = writer.devices()?;
        let packs_prefixes = options.packs_xattr_prefixes();
        let digest_prefix = writer.digest_prefix();
        let (has_xattrs, times) = (writer.has_xattrs(), writer.times);
        Ok(Self {
            records_at,
            prefixes_at,
            prefixes,
            packs_prefixes,
            digest_prefix,
            prefix_count,
            devices,
            has_xattrs,
            times,
        })
    }

    /// Bytes in front of the root.
    pub(crate) fn bytes(&self) -> u64 {
        match self.devices {
            0 => self.prefixes_end(),
            devices => self.devices_at() + DeviceSlot::BYTES * u64::from(devices),
        }
    }

    fn prefixes_end(&self) -> u64 {
        self.prefixes_at + self.plain_prefixes().len() as u64
    }

    /// What the packed inode starts with.
    pub(crate) fn packed(&self) -> &[u8] {
        if self.packs_prefixes { &self.prefixes } else { &[] }
    }

    fn plain_prefixes(&self) -> &[u8] {
        if self.packs_prefixes { &[] } else { &self.prefixes }
    }

    fn devices_at(&self) -> u64 {
        self.prefixes_end().next_multiple_of(DeviceSlot::BYTES)
    }

    /// Writes this area into the head of an image of `blocks` blocks with these devices.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for numbers that exceed their field.
    pub(crate) fn write(
        &self,
        options: &BuildOptions,
        written: &mut WrittenMetadata,
        blocks: u64,
        devices: &[Device],
    ) -> Result<()> {
        let features = &written.features;
        let declared = compression(options, |algorithm| features.algorithms.contains(&algorithm));
        // Block numbers are below the count.
        let is_wide = options.wide || features.has_wide || u32::try_from(blocks).is_err();
        let wide = if is_wide { Incompat::BIT48 } else { 0 };
        let metabox = if written.metabox.is_some() { Incompat::METABOX } else { 0 };
        let incompat = self.incompat(features, written.packed.is_some()) | wide | metabox;
        let has_records = incompat & Incompat::COMPR_CFGS != 0;
        let mut sb = Superblock::new(options.block_size);
        sb.bytes = superblock_bytes(options);
        sb.compat = Compat::new(self.compat(options));
        sb.incompat = Incompat::new(incompat);
        (sb.root, sb.packed, sb.metabox) = (written.root, written.packed, written.metabox);
        (sb.inodes, sb.blocks) = (written.inodes, blocks);
        (sb.epoch, sb.fixed_nsec) = (self.times.base.epoch, self.times.base.fixed_nsec);
        sb.build_time = self.times.build_time;
        sb.xattr_block = written.xattr_block;
        (sb.uuid, sb.label) = (options.uuid, options.label);
        sb.algorithms_or_distance = match has_records {
            true => declared.algorithm_bits(),
            false => declared.lz4_max_distance.unwrap_or(0),
        };
        if self.prefix_count > 0 {
            sb.xattr_prefix_count = self.prefix_count;
            sb.digest_prefix = self.digest_prefix;
            let start = if self.packs_prefixes { 0 } else { self.prefixes_at };
            let units = start / PREFIX_UNIT_BYTES;
            sb.xattr_prefix_start = u32::try_from(units).map_err(|_| past_its_field())?;
        }
        if self.devices > 0 {
            sb.extra_devices = self.devices;
            let slot = self.devices_at() / DeviceSlot::BYTES;
            sb.device_table_slot = u16::try_from(slot).map_err(|_| past_its_field())?;
        }
        let head = &mut written.head;
        put(head, SUPERBLOCK_OFFSET, &sb.to_bytes().map_err(format)?)?;
        if has_records {
            let records = declared.records(max_pcluster_blocks(options)).map_err(format)?;
            put(head, self.records_at, &records)?;
        }
        put(head, self.prefixes_at, self.plain_prefixes())?;
        if self.devices > 0 {
            put(head, self.devices_at(), &device_table(devices, &sb)?)?;
        }
        if options.superblock_checksum {
            let start = usize::try_from(SUPERBLOCK_OFFSET).unwrap_or(usize::MAX);
            let covered = head.get_mut(start..).ok_or_else(past_its_field)?;
            seal_checksum(options.block_size, covered).map_err(format)?;
        }
        Ok(())
    }

    fn compat(&self, options: &BuildOptions) -> u32 {
        let bits = [
            (options.superblock_checksum, Compat::SB_CHKSUM),
            (true, Compat::MTIME),
            (options.xattr_filter && self.has_xattrs, Compat::XATTR_FILTER),
            (!self.plain_prefixes().is_empty(), Compat::PLAIN_XATTR_PFX),
            (self.digest_prefix.is_some(), Compat::ISHARE_XATTRS),
        ];
        sum(&bits)
    }

    fn incompat(&self, features: &Features, has_packed: bool) -> u32 {
        let is_lz4_only = features.algorithms.iter().all(|used| *used == AlgorithmId::Lz4);
        let bits = [
            (features.has_compressed, Incompat::ZERO_PADDING),
            (!is_lz4_only || features.has_big_pclusters, Incompat::COMPR_CFGS),
            (features.has_chunks, Incompat::CHUNKED_FILE),
            (features.has_two_algorithms || self.devices > 0, Incompat::DEVICE_TABLE),
            (features.has_inline_pclusters, Incompat::ZTAILPACKING),
            (has_packed || features.has_shared_pclusters, Incompat::FRAGMENTS),
            (self.prefix_count > 0, Incompat::XATTR_PREFIXES),
        ];
        sum(&bits)
    }
}

/// The table of devices. After the blocks of the image they follow each other in the unified address space,
/// so that they may also be appended to it.
fn device_table(devices: &[Device], image: &Superblock) -> Result<Vec<u8>> {
    let is_wide = image.incompat.has(Incompat::BIT48);
    let (mut table, mut next) = (Vec::new(), image.blocks);
    for device in devices {
        let blocks = image.block_size.count(device.bytes);
        // Without a place there a device can still be given by itself.
        let has_place = is_wide || u32::try_from(next.saturating_add(blocks)).is_ok();
        let unified_block = if has_place { next } else { 0 };
        let slot = DeviceSlot { tag: device.tag, blocks, unified_block };
        table.extend_from_slice(&slot.to_bytes(is_wide).map_err(format)?);
        next = next.saturating_add(blocks);
    }
    Ok(table)
}

/// Bytes of the superblock: the nid of a metabox stands in a slot of 16 bytes behind the first 128.
fn superblock_bytes(options: &BuildOptions) -> u16 {
    let slot = if options.metabox_pcluster_bytes.is_some() { 16 } else { 0 };
    Superblock::new(options.block_size).bytes + slot
}

/// What the superblock declares of the algorithms of `options` that are `used`: the largest of each parameter.
fn compression(options: &BuildOptions, used: impl Fn(AlgorithmId) -> bool) -> CompressionConfig {
    let mut declared = CompressionConfig::default();
    for method in options.algorithms.iter().flat_map(|algorithms| &algorithms.methods) {
        if !used(disk_algorithm(method.algorithm())) {
            continue;
        }
        match *method {
            Method::Lz4 { max_distance } | Method::Lz4Hc { max_distance, .. } => {
                declared.lz4_max_distance = declared.lz4_max_distance.max(Some(max_distance));
            }
            Method::Lzma { dictionary_bytes, .. } => {
                let before = declared.lzma_dictionary_bytes;
                declared.lzma_dictionary_bytes = before.max(Some(dictionary_bytes));
            }
            Method::Deflate { .. } => declared.deflate_window_bits = Some(DEFLATE_WINDOW_BITS),
            Method::Zstd { window_log, .. } => {
                declared.zstd_window_log = declared.zstd_window_log.max(Some(window_log));
            }
        }
    }
    declared
}

fn max_pcluster_blocks(options: &BuildOptions) -> u16 {
    // The options are checked: 1 MiB of blocks of 512 bytes at most.
    u16::try_from(options.pcluster_bytes_max() >> options.block_size.bits()).unwrap_or(u16::MAX)
}

fn sum(bits: &[(bool, u32)]) -> u32 {
    bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
}

fn put(head: &mut [u8], at: u64, bytes: &[u8]) -> Result<()> {
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let place = head.get_mut(start..start.saturating_add(bytes.len()));
    place.ok_or_else(past_its_field)?.copy_from_slice(bytes);
    Ok(())
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

#[cold]
fn past_its_field() -> Error {
    Error::new(ErrorKind::Unsupported("a head of more than 4 GiB".to_owned()))
}

/// The times of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SuperblockTimes {
    /// What compact inodes have for their time.
    pub(super) base: TimeBase,
    /// The time of the image, in seconds after the epoch; the largest number stands for anything later.
    pub(super) build_time: u32,
}

impl SuperblockTimes {
    /// The times for an image whose inodes have these.
    ///
    /// With a fixed time the epoch is that time. Otherwise the newest time is the image's, and the epoch
    /// is what most inodes have, so that most inodes can be compact; of equally frequent times it is the
    /// older. In a `wide` image compact inodes have seconds of their own after the epoch, and share the
    /// nanoseconds only: those that most inodes have, and the epoch is the oldest time with these.
    pub(super) fn choose(
        wanted: SuperblockTime,
        wide: bool,
        times: impl Iterator<Item = Timestamp>,
        store: &SpillStore,
    ) -> Self {
        let mut sorter = Sorter::new(store);
        let mut newest = None;
        for time in times {
            newest = newest.max(Some(time.seconds));
            // Readers differ in what they make of an epoch before 1970.
            if let Ok(seconds) = u64::try_from(time.seconds) {
                // With the nanoseconds first where the most frequent ones are looked for.
                sorter.push(match wide {
                    true => (u64::from(time.nanoseconds), seconds),
                    false => (seconds, u64::from(time.nanoseconds)),
                });
            }
        }
        let newest = newest.unwrap_or(0).max(0);
        let (image, fixed) = match wanted {
            SuperblockTime::Fixed(seconds) => {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                (seconds, Some(seconds))
            }
            SuperblockTime::Newest => (newest, None),
        };
        let sorted = sorter.finish();
        let base = if wide { oldest(sorted, image) } else { most_frequent(sorted, image, fixed) };
        let build_time = u32::try_from(image.saturating_sub(base.epoch)).unwrap_or(u32::MAX);
        Self { base, build_time }
    }
}

/// The time that most inodes have, of those in the second `fixed` if there is one; else that of the image. Of equally
/// frequent ones it is the first.
fn most_frequent(
    times: impl Iterator<Item = (u64, u64)>,
    image: i64,
    fixed: Option<i64>,
) -> TimeBase {
    let is_wanted = |seconds: u64| fixed.is_none_or(|fixed| seconds == fixed.cast_unsigned());
    let times = times.filter(|(seconds, _)| is_wanted(*seconds));
    let most = most_frequent_run(times.map(|time| (time, ())));
    let (epoch, fixed_nsec) = most.map_or((image, 0), |((seconds, nanoseconds), ())| {
        (seconds.cast_signed(), u32::try_from(nanoseconds).unwrap_or(0))
    });
    TimeBase { epoch, fixed_nsec }
}

/// The nanoseconds that most inodes have, and the oldest second with these, or that of the image before it. `times` have
/// the nanoseconds first.
fn oldest(times: impl Iterator<Item = (u64, u64)>, image: i64) -> TimeBase {
    // Seconds ascend, so that the first one of a run is the oldest.
    let (fixed_nsec, epoch) =
        most_frequent_run(times).map_or((0, image), |(nanoseconds, first)| {
            (u32::try_from(nanoseconds).unwrap_or(0), first.cast_signed().min(image))
        });
    TimeBase { epoch, fixed_nsec }
}

/// The most frequent key of a sorted sequence, the first of equally frequent ones, with its first value.
fn most_frequent_run<K: PartialEq, V>(sorted: impl Iterator<Item = (K, V)>) -> Option<(K, V)> {
    let mut most: Option<(K, V, u64)> = None;
    let mut run: Option<(K, V, u64)> = None;
    let mut end_run = |run: Option<(K, V, u64)>| {
        if let Some(run) = run
            && most.as_ref().is_none_or(|most| run.2 > most.2)
        {
            most = Some(run);
        }
    };
    for (key, value) in sorted {
        match &mut run {
            Some((current, _, count)) if *current == key => *count += 1,
            _ => end_run(run.replace((key, value, 1))),
        }
    }
    end_run(run);
    most.map(|(key, value, _)| (key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(wanted: SuperblockTime, times: &[(i64, u32)]) -> (i64, u32, u32) {
        choose_for(wanted, false, times)
    }

    fn choose_for(wanted: SuperblockTime, wide: bool, times: &[(i64, u32)]) -> (i64, u32, u32) {
        let store = SpillStore::new(crate::SpillOptions::default());
        let times = times.iter();
        let times = times.map(|&(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
        let chosen = SuperblockTimes::choose(wanted, wide, times, &store);
        (chosen.base.epoch, chosen.base.fixed_nsec, chosen.build_time)
    }

    #[test]
    fn a_fixed_time_is_the_epoch() {
        assert_eq!(choose(SuperblockTime::Fixed(7), &[(1, 0), (1, 0)]), (7, 0, 0));
        assert_eq!(choose(SuperblockTime::Fixed(7), &[(7, 5), (7, 5), (7, 9), (8, 1)]), (7, 5, 0));
    }

    #[test]
    fn the_newest_time_is_the_images_and_the_commonest_its_inodes() {
        let times = [(30, 1), (10, 2), (10, 2), (20, 0)];
        assert_eq!(choose(SuperblockTime::Newest, &times), (10, 2, 20));
    }

    #[test]
    fn of_equally_frequent_times_the_older_counts() {
        assert_eq!(choose(SuperblockTime::Newest, &[(9, 0), (3, 5), (3, 4)]), (3, 4, 6));
    }

    #[test]
    fn one_file_from_the_far_future_does_not_move_the_epoch() {
        let times = [(1 << 33, 0), (1, 0), (1, 0)];
        assert_eq!(choose(SuperblockTime::Newest, &times), (1, 0, u32::MAX));
    }

    #[test]
    fn a_time_before_1970_is_no_epoch() {
        assert_eq!(choose(SuperblockTime::Newest, &[(-5, 0), (-5, 0), (1, 0)]), (1, 0, 0));
        assert_eq!(choose(SuperblockTime::Newest, &[(-5, 0)]), (0, 0, 0));
    }

    #[test]
    fn in_a_wide_image_the_commonest_nanoseconds_and_their_oldest_second_count() {
        let times = [(50, 7), (40, 7), (30, 7), (5, 0), (5, 0), (-9, 7), (60, 1)];
        assert_eq!(choose_for(SuperblockTime::Newest, true, &times), (30, 7, 30));
        assert_eq!(choose_for(SuperblockTime::Fixed(99), true, &times), (30, 7, 69));
        assert_eq!(choose_for(SuperblockTime::Fixed(3), true, &times), (3, 7, 0));
        assert_eq!(choose_for(SuperblockTime::Newest, true, &[(4, 9), (3, 2)]), (3, 2, 1));
        assert_eq!(choose_for(SuperblockTime::Newest, true, &[(-4, 9)]), (0, 0, 0));
    }
}
