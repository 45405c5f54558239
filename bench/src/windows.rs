//! The windows experiment: how many bounce frames decoding takes when not one page of the output is at hand, for images
//! with windows of different sizes. Every LZ4 extent is decoded through exactly so many frames, and compared.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferrofs_codec::{
    DecodeMode, Decoder, DecoderSettings, LZ4_WINDOW_PAGE_BYTES, Lz4Part, Padding, lz4_window_pages,
};
use ferrofs_image::{FileExtent, FileType, Image, Inode, WalkEvent};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::arguments::WindowsArguments;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;

/// The smaller window of the seeds.
const SMALL_WINDOW_BYTES: u16 = 16 << 10;
/// What the largest window takes.
const FRAMES_MAX: usize = lz4_window_pages(u16::MAX, usize::MAX);

/// Runs the experiment.
///
/// # Errors
/// When an image cannot be read, holds no LZ4 extent, or an extent decodes to other bytes through the frames.
pub(crate) fn run(arguments: &WindowsArguments, out: &mut dyn Write) -> Result<Report> {
    let mut report = Report::new("windows", arguments)?;
    let columns =
        ["image", "KB", "of the first", "window", "LZ4 extents", "frames, mean", "frames, peak"];
    let mut table = Table::new("Bounce frames with all output pages missing", columns);
    let mut first_bytes = None;
    let mut plot = Plot::bars("Bounce frames of an extent", "frames, mean, and least to most");
    let mut smaller = None;
    for path in &arguments.images {
        writeln!(out, "{}", path.display())?;
        let decoded = decode_all(path).with_context(|| format!("in {}", path.display()))?;
        let bytes = decoded.image_bytes as f64;
        let frames = decoded.frames.summary();
        table.add([
            path.display().to_string(),
            decoded.image_bytes.div_ceil(1024).to_string(),
            format!("{:.5}", bytes / *first_bytes.get_or_insert(bytes)),
            decoded.window_bytes.to_string(),
            frames.count.to_string(),
            format!("{:.2}", frames.average),
            format!("{:.0}", frames.maximum),
        ]);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let window = format!("window of {}", decoded.window_bytes);
        plot.add_bar(name, window, frames.average, frames.minimum, frames.maximum);
        if decoded.window_bytes <= SMALL_WINDOW_BYTES {
            let first = first_bytes.unwrap_or(bytes);
            smaller = Some((difference_percent(first, bytes).abs(), frames.maximum));
        }
        report.add_series(Series {
            row: path.display().to_string(),
            case: format!("window of {}", decoded.window_bytes),
            unit: "frames",
            samples: decoded.frames,
        });
    }
    report.add_table(table);
    report.add_plot(plot);
    let why = "no image with a window of 16 KiB behind another was given";
    let (size, peak) = smaller.unwrap_or((f64::NAN, f64::NAN));
    report.claim("001", "frames", &[peak], why)?;
    report.claim("004", "size", &[size], why)?;
    Ok(report)
}

/// What decoding an image took.
struct Decoded {
    image_bytes: u64,
    /// As the image declares it.
    window_bytes: u16,
    /// Of each LZ4 extent.
    frames: Samples,
}

fn decode_all(path: &Path) -> Result<Decoded> {
    let image = Image::open(path)?;
    ensure!(
        image.superblock().metabox.is_none(),
        "clusters may lie in a metabox, not in the image"
    );
    let window_bytes = image.compression().lz4_max_distance.context("it declares no LZ4")?;
    let settings = DecoderSettings::default().lz4_max_distance(Some(window_bytes));
    let mut bounce = Bounce {
        image: &image,
        file: File::open(path)?,
        decoder: Decoder::new(&settings)?,
        window_bytes,
        frames: vec![[0; LZ4_WINDOW_PAGE_BYTES]; FRAMES_MAX],
        samples: Samples::default(),
    };
    for file in files(&image)? {
        bounce.decode_file(&file)?;
    }
    let frames = bounce.samples;
    ensure!(frames.values().next().is_some(), "no file has an LZ4 extent");
    Ok(Decoded { image_bytes: image.length(), window_bytes, frames })
}

/// Each regular file once, and the packed one.
fn files(image: &Image) -> Result<Vec<Inode>> {
    let mut nids = HashSet::new();
    let mut files: Vec<_> =
        image.superblock().packed.map(|nid| image.inode(nid)).transpose()?.into_iter().collect();
    for visit in image.walk(b"/")? {
        match visit {
            WalkEvent::Leaf(node)
                if node.inode.file_type() == FileType::Regular && nids.insert(node.inode.nid()) =>
            {
                files.push(node.inode);
            }
            WalkEvent::Problem(problem) => return Err(problem.error.into()),
            _ => {}
        }
    }
    Ok(files)
}

/// Decodes extents as somebody who has no page of the output.
struct Bounce<'a> {
    image: &'a Image,
    file: File,
    decoder: Decoder,
    window_bytes: u16,
    frames: Vec<[u8; LZ4_WINDOW_PAGE_BYTES]>,
    samples: Samples,
}

impl Bounce<'_> {
    fn decode_file(&mut self, file: &Inode) -> Result<()> {
        for range in self.image.file_extents(file, 0)? {
            self.decode_extent(file, &range?)
                .with_context(|| format!("in the inode {}", file.nid()))?;
        }
        Ok(())
    }

    /// Decodes the extent if it is one of LZ4, and compares it with what the engine reads.
    fn decode_extent(&mut self, file: &Inode, range: &FileExtent) -> Result<()> {
        let Some(place) = range.location.filter(|place| place.algorithm == Some(AlgorithmId::Lz4))
        else {
            return Ok(());
        };
        let mut input = vec![0; usize::try_from(place.bytes)?];
        self.file.read_exact_at(&mut input, place.offset)?;
        let extent_bytes = usize::try_from(range.end - range.start)?;
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
        let got = self.image.read_at(file, range.start, &mut wanted)?;
        ensure!(got == extent_bytes && decoded == wanted, "other bytes from {} on", range.start);
        self.samples.push(count as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::decode_all;

    fn image(name: &str) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data")).join(name)
    }

    #[test]
    fn extents_take_the_frames_of_their_pages_up_to_the_window() {
        let decoded = decode_all(&image("lz4hc-64k.erofs")).unwrap();
        let frames = decoded.frames.summary();
        assert_eq!((decoded.window_bytes, frames.maximum), (65_535, 17.0));
        assert!(frames.minimum >= 1.0 && frames.minimum < frames.maximum);
    }

    #[test]
    fn the_front_of_deduplicated_extents_and_the_packed_file_are_decoded() {
        for name in ["lz4hc-dedupe-fragments-ztail.erofs", "lz4-dedupe.erofs"] {
            assert!(decode_all(&image(name)).unwrap().frames.summary().count > 0, "{name}");
        }
    }

    #[test]
    fn images_without_lz4_are_refused() {
        for (name, wanted) in [("zd-lz4.erofs", None), ("plain.erofs", Some("no file has an LZ4"))]
        {
            let said = decode_all(&image(name)).err().map(|error| error.to_string());
            match wanted {
                Some(wanted) => assert!(said.unwrap_or_default().starts_with(wanted), "{name}"),
                None => assert_eq!(said, None, "{name}"),
            }
        }
    }
}
