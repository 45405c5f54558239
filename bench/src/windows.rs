//! The windows experiment: how many bounce frames decoding needs when no page of the output is at hand, for images with
//! LZ4 windows of different sizes. Every LZ4 extent is decoded through exactly so many frames, and compared.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_codec::{
    DecodeMode, Decoder, DecoderSettings, LZ4_WINDOW_PAGE_BYTES, Lz4Part, Padding, lz4_window_pages,
};
use ferrofs_image::Image;
use ferrofs_ondisk::compression::AlgorithmId;

use crate::experiment::{Context, Experiment};
use crate::image_info::regular_files;
use crate::machine::{Requirement, files};
use crate::statistics::{Measured, Samples, Statistic, difference_percent};

/// The smaller window of the mails.
const SMALL_WINDOW_BYTES: u16 = 16 << 10;
const FRAMES_MAX: usize = lz4_window_pages(u16::MAX, usize::MAX);

#[derive(Debug, Clone, Args)]
pub(crate) struct WindowsArguments {
    /// Images with LZ4-compressed files; the size of each image is compared with that of the first
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
}

impl Experiment for WindowsArguments {
    fn requirements(&self) -> Vec<Requirement> {
        files(&self.images)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (mut all, mut first_bytes) = (Vec::new(), None);
        for path in &self.images {
            context.say(path.display())?;
            let bytes = path.metadata()?.len();
            let first = *first_bytes.get_or_insert(bytes as f64);
            let (window, frames) =
                decode_all(path).with_context(|| format!("in {}", path.display()))?;
            let peak = frames.number(Statistic::Most);
            if window <= SMALL_WINDOW_BYTES {
                context.report.evaluate("frames", "", peak);
                context.report.evaluate("size", "", difference_percent(first, bytes as f64).abs());
            }
            let mut figures = vec![
                ("image", bytes.div_ceil(1024) as f64),
                ("of the first", bytes as f64 / first),
                ("window", window.into()),
                ("LZ4 extents", frames.0.len() as f64),
                ("frames, peak", peak),
            ];
            figures.extend(frames.0.into_iter().map(|frames| ("frames", frames)));
            all.push(Measured::new(path.display().to_string(), figures));
        }
        context.report.add("windows", "", "", &all)
    }
}

/// Decodes each LZ4 extent of the regular files and of the packed one, and compares it with what the engine reads: the window
/// that the image declares, and the frames of each extent.
fn decode_all(path: &Path) -> Result<(u16, Samples)> {
    let image = Image::open(path)?;
    let superblock = image.superblock();
    ensure!(superblock.metabox.is_none(), "clusters may lie in a metabox, not in the image");
    let window_bytes = image.compression().lz4_max_distance.context("it declares no LZ4")?;
    let settings = DecoderSettings::default().lz4_max_distance(Some(window_bytes));
    let (input, decoder) = (File::open(path)?, Decoder::new(&settings)?);
    let mut frames = vec![[0; LZ4_WINDOW_PAGE_BYTES]; FRAMES_MAX];
    let mut samples = Samples::default();
    let packed = superblock.packed.map(|nid| image.inode(nid)).transpose()?;
    let files = regular_files(&image)?.into_iter().map(|(_, inode)| inode);
    for file in packed.into_iter().chain(files) {
        for extent in image.file_extents(&file, 0)? {
            let extent = extent?;
            let is_lz4 = |algorithm| algorithm == Some(AlgorithmId::Lz4);
            let Some(place) = extent.location.filter(|place| is_lz4(place.algorithm)) else {
                continue;
            };
            let mut cluster = vec![0; usize::try_from(place.bytes)?];
            input.read_exact_at(&mut cluster, place.offset)?;
            let extent_bytes = usize::try_from(extent.end - extent.start)?;
            let part = Lz4Part {
                padding: if superblock.has_left_padding() { Padding::Left } else { Padding::Right },
                extent_bytes,
                skip_bytes: 0,
                // What refers to the front of deduplicated data ends before the stream does.
                mode: DecodeMode::Prefix,
            };
            let count = lz4_window_pages(window_bytes, extent_bytes);
            let (mut decoded, mut wanted) = (vec![0; extent_bytes], vec![0; extent_bytes]);
            let place = || format!("in the inode {} from {} on", file.nid(), extent.start);
            decoder
                .decode_lz4_part(&cluster, part, &mut decoded, &mut frames[..count])
                .with_context(place)?;
            let got = image.read_at(&file, extent.start, &mut wanted).with_context(place)?;
            ensure!(got == extent_bytes && decoded == wanted, "other bytes {}", place());
            samples.0.push(count as f64);
        }
    }
    ensure!(!samples.0.is_empty(), "no file has an LZ4 extent");
    Ok((window_bytes, samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(name: &str) -> Result<(u16, Samples)> {
        decode_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name))
    }

    #[test]
    fn every_lz4_extent_is_decoded_through_the_frames_of_its_pages_up_to_the_window() {
        let (window, frames) = decoded("lz4hc-64k.erofs").unwrap();
        let [min, max] = [Statistic::Least, Statistic::Most].map(|end| frames.number(end));
        assert_eq!((window, max), (65_535, 17.0));
        assert!(min >= 1.0 && min < max);
        // The front of deduplicated extents, a packed file, and several algorithms.
        for name in ["lz4hc-dedupe-fragments-ztail", "lz4-dedupe", "zd-lz4"] {
            assert!(!decoded(&format!("{name}.erofs")).unwrap().1.0.is_empty(), "{name}");
        }
        let message = decoded("plain.erofs").err().unwrap().to_string();
        assert!(message.starts_with("no file has an LZ4"), "{message}");
    }
}
