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
use ferrofs_image::{FileExtent, Image, Inode};
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
    /// Images with files in LZ4; sizes are compared with that of the first
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
                context.report.judge("frames", "", peak);
                context.report.judge("size", "", difference_percent(first, bytes as f64).abs());
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

/// Decodes each regular file, and the packed one: the window that the image declares, and the frames of each LZ4 extent.
fn decode_all(path: &Path) -> Result<(u16, Samples)> {
    let image = Image::open(path)?;
    let superblock = image.superblock();
    ensure!(superblock.metabox.is_none(), "clusters may lie in a metabox, not in the image");
    let window_bytes = image.compression().lz4_max_distance.context("it declares no LZ4")?;
    let settings = DecoderSettings::default().lz4_max_distance(Some(window_bytes));
    let mut decoding = BounceDecoding {
        image: &image,
        file: File::open(path)?,
        decoder: Decoder::new(&settings)?,
        window_bytes,
        frames: vec![[0; LZ4_WINDOW_PAGE_BYTES]; FRAMES_MAX],
        samples: Samples::default(),
    };
    let packed = superblock.packed.map(|nid| image.inode(nid)).transpose()?;
    let files = regular_files(&image)?.into_iter().map(|(_, inode)| inode);
    for file in packed.into_iter().chain(files) {
        for extent in image.file_extents(&file, 0)? {
            let decoded = decoding.decode(&file, &extent?);
            decoded.with_context(|| format!("in the inode {}", file.nid()))?;
        }
    }
    let frames = decoding.samples;
    ensure!(!frames.0.is_empty(), "no file has an LZ4 extent");
    Ok((window_bytes, frames))
}

struct BounceDecoding<'a> {
    image: &'a Image,
    file: File,
    decoder: Decoder,
    window_bytes: u16,
    frames: Vec<[u8; LZ4_WINDOW_PAGE_BYTES]>,
    samples: Samples,
}

impl BounceDecoding<'_> {
    /// Decodes the extent if it is one of LZ4, and compares it with what the engine reads.
    fn decode(&mut self, file: &Inode, extent: &FileExtent) -> Result<()> {
        let is_lz4 = |algorithm| algorithm == Some(AlgorithmId::Lz4);
        let Some(place) = extent.location.filter(|place| is_lz4(place.algorithm)) else {
            return Ok(());
        };
        let mut input = vec![0; usize::try_from(place.bytes)?];
        self.file.read_exact_at(&mut input, place.offset)?;
        let extent_bytes = usize::try_from(extent.end - extent.start)?;
        let is_padded_left = self.image.superblock().has_left_padding();
        let part = Lz4Part {
            padding: if is_padded_left { Padding::Left } else { Padding::Right },
            extent_bytes,
            skip_bytes: 0,
            // What refers to the front of deduplicated data ends before the stream does.
            mode: DecodeMode::Prefix,
        };
        let count = lz4_window_pages(self.window_bytes, extent_bytes);
        let (mut decoded, mut wanted) = (vec![0; extent_bytes], vec![0; extent_bytes]);
        self.decoder.decode_lz4_part(&input, part, &mut decoded, &mut self.frames[..count])?;
        let got = self.image.read_at(file, extent.start, &mut wanted)?;
        ensure!(got == extent_bytes && decoded == wanted, "other bytes from {} on", extent.start);
        self.samples.0.push(count as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Samples, Statistic, decode_all};

    fn decoded(name: &str) -> anyhow::Result<(u16, Samples)> {
        decode_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name))
    }

    #[test]
    fn every_lz4_extent_is_decoded_through_the_frames_of_its_pages_up_to_the_window() {
        let (window, frames) = decoded("lz4hc-64k.erofs").unwrap();
        let [least, most] = [Statistic::Least, Statistic::Most].map(|end| frames.number(end));
        assert_eq!((window, most), (65_535, 17.0));
        assert!(least >= 1.0 && least < most);
        // The front of deduplicated extents, a packed file, and several algorithms.
        for name in ["lz4hc-dedupe-fragments-ztail", "lz4-dedupe", "zd-lz4"] {
            assert!(!decoded(&format!("{name}.erofs")).unwrap().1.0.is_empty(), "{name}");
        }
        let said = decoded("plain.erofs").err().unwrap().to_string();
        assert!(said.starts_with("no file has an LZ4"), "{said}");
    }
}
