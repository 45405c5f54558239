//! `ferrofs info`: prints the superblock of an image and its tables.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{Image, Nid};
use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::{Compat, DeviceSlot};
use serde::Serialize;

use crate::amount::{grouped, human_bytes};
use crate::arguments::InfoArguments;
use crate::exit_status::CommandStatus;
use crate::metadata_text::{self, JsonTime, build_time, format_uuid};
use crate::output::{JsonBytes, Output};
use crate::signals::ExitOnSignals;
use crate::source;

#[derive(Serialize)]
struct InfoReport {
    image: JsonBytes,
    offset: u64,
    length: u64,
    block_size: u32,
    blocks: u64,
    inodes: u64,
    label: JsonBytes,
    uuid: String,
    checksum: &'static str,
    built: JsonTime,
    epoch: i64,
    fixed_nanoseconds: u32,
    compatible_features: Vec<String>,
    incompatible_features: Vec<String>,
    compression: JsonCompression,
    root_nid: u64,
    packed_nid: Option<u64>,
    metabox_nid: Option<u64>,
    superblock_bytes: u16,
    meta_block: i32,
    xattr_block: u32,
    xattr_prefixes: u8,
    devices: Vec<JsonDevice>,
}

#[derive(Serialize)]
struct JsonCompression {
    #[serde(skip_serializing_if = "Option::is_none")]
    lz4_max_distance: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lzma_dictionary_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deflate_window_bits: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zstd_window_log: Option<u8>,
}

#[derive(Serialize)]
struct JsonDevice {
    tag: JsonBytes,
    blocks: u64,
    unified_block: u64,
}

/// Shows the image.
pub(crate) fn run(
    arguments: &InfoArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let image = source::open(&arguments.image, &arguments.read)?;
    let report = report(arguments, &image);
    let mut output = Output::new();
    let written = match arguments.json {
        true => output.json(&report),
        false => show(&mut output, &report, &image),
    };
    CommandStatus::Success.after_output(written.and_then(|()| output.flush()))
}

fn report(arguments: &InfoArguments, image: &Image) -> InfoReport {
    let sb = image.superblock();
    InfoReport {
        image: arguments.image.as_os_str().as_bytes().into(),
        offset: arguments.read.offset,
        length: image.length(),
        block_size: sb.block_size.bytes(),
        blocks: sb.blocks,
        inodes: sb.inodes,
        label: sb.label_text().into(),
        uuid: format_uuid(sb.uuid),
        checksum: checksum(arguments, image),
        built: build_time(image).into(),
        epoch: sb.epoch,
        fixed_nanoseconds: sb.fixed_nsec,
        compatible_features: sb.compat.names(),
        incompatible_features: sb.incompat.names(),
        compression: declared(image).into(),
        root_nid: sb.root.raw(),
        packed_nid: sb.packed.map(Nid::raw),
        metabox_nid: sb.metabox.map(Nid::raw),
        superblock_bytes: sb.bytes,
        meta_block: sb.meta_block,
        xattr_block: sb.xattr_block,
        xattr_prefixes: sb.xattr_prefix_count,
        devices: image.device_slots().iter().map(JsonDevice::from).collect(),
    }
}

/// An image with a wrong checksum is opened only with `--no-checksum`.
fn checksum(arguments: &InfoArguments, image: &Image) -> &'static str {
    match image.superblock().compat.has(Compat::SB_CHKSUM) {
        false => "none",
        true if arguments.read.no_checksum => "not checked",
        true => "ok",
    }
}

fn show(output: &mut Output, report: &InfoReport, image: &Image) -> io::Result<()> {
    show_name(output, "image", &report.image)?;
    if report.offset > 0 {
        writeln!(output, "begins at byte:   {}", report.offset)?;
    }
    let promised = u128::from(report.blocks) * u128::from(report.block_size);
    let promised = u64::try_from(promised).unwrap_or(u64::MAX);
    writeln!(output, "size:             {}", human_bytes(promised))?;
    if promised > report.length {
        writeln!(output, "truncated:        the file has only {}", human_bytes(report.length))?;
    }
    writeln!(output, "block size:       {}", report.block_size)?;
    writeln!(output, "blocks:           {}", grouped(report.blocks))?;
    writeln!(output, "inodes:           {}", grouped(report.inodes))?;
    show_name(output, "label", &report.label)?;
    writeln!(output, "uuid:             {}", report.uuid)?;
    writeln!(output, "built:            {}", metadata_text::format_exact(build_time(image)))?;
    writeln!(output, "checksum:         {}", report.checksum)?;
    writeln!(output, "compatible:       {}", listed(&report.compatible_features))?;
    writeln!(output, "incompatible:     {}", listed(&report.incompatible_features))?;
    writeln!(output, "compression:      {}", compression_text(&declared(image)))?;
    writeln!(output, "root nid:         {}", Nid::new(report.root_nid))?;
    if let Some(nid) = report.packed_nid {
        writeln!(output, "packed nid:       {nid}")?;
    }
    if let Some(nid) = report.metabox_nid {
        writeln!(output, "metabox nid:      {nid}")?;
    }
    if report.xattr_prefixes > 0 {
        writeln!(output, "xattr prefixes:   {}", report.xattr_prefixes)?;
    }
    show_devices(output, image.device_slots())
}

fn show_name(output: &mut Output, key: &str, name: &JsonBytes) -> io::Result<()> {
    write!(output, "{:<18}", format!("{key}:"))?;
    output.name(if name.0.is_empty() { b"-" } else { &name.0 })?;
    writeln!(output)
}

fn show_devices(output: &mut Output, devices: &[DeviceSlot]) -> io::Result<()> {
    for (number, device) in devices.iter().enumerate() {
        let (blocks, first) = (grouped(device.blocks), device.unified_block);
        write!(output, "device {:<11}", format!("{}:", number + 1))?;
        write!(output, "{blocks} blocks, at block {first}, tag ")?;
        let tag = device.tag_text();
        output.name(if tag.is_empty() { b"-" } else { tag })?;
        writeln!(output)?;
    }
    Ok(())
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

fn compression_text(compression: &CompressionConfig) -> String {
    let parts = [
        compression.lz4_max_distance.map(|bytes| format!("lz4 (window {bytes})")),
        compression.lzma_dictionary_bytes.map(|bytes| format!("lzma (dictionary {bytes})")),
        compression.deflate_window_bits.map(|bits| format!("deflate (window 2^{bits})")),
        compression.zstd_window_log.map(|log| format!("zstd (window 2^{log})")),
    ];
    listed(&parts.into_iter().flatten().collect::<Vec<_>>())
}

/// The compression algorithms that the image declares. An image that declares none can still have
/// files with LZ4; that is not printed.
fn declared(image: &Image) -> CompressionConfig {
    if image.superblock().declares_compression() {
        image.compression().clone()
    } else {
        CompressionConfig::default()
    }
}

impl From<CompressionConfig> for JsonCompression {
    fn from(compression: CompressionConfig) -> Self {
        Self {
            lz4_max_distance: compression.lz4_max_distance,
            lzma_dictionary_bytes: compression.lzma_dictionary_bytes,
            deflate_window_bits: compression.deflate_window_bits,
            zstd_window_log: compression.zstd_window_log,
        }
    }
}

impl From<&DeviceSlot> for JsonDevice {
    fn from(slot: &DeviceSlot) -> Self {
        Self { tag: slot.tag_text().into(), blocks: slot.blocks, unified_block: slot.unified_block }
    }
}
