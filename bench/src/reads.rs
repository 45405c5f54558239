//! The reads experiment: the files of an image read front to back in equal blocks through the library, by one reader and by
//! many at the same time, and what that makes the library decode.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_image::{Image, Inode};

use crate::experiment::{Candidate, Context, Experiment, RoundOptions, up_to};
use crate::image_info::files_up_to;
use crate::machine::Requirement;
use crate::reader::{Seen, read_together};
use crate::trees::read_in;

/// Bytes of one read.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
const MIB: f64 = 1_048_576.0;

#[derive(Debug, Clone, Args)]
pub(crate) struct ReadsArguments {
    /// The image
    image: PathBuf,
    #[command(flatten)]
    pub(crate) files: FileArguments,
    #[command(flatten)]
    rounds: RoundOptions,
}

/// What is read, and by how many.
#[derive(Debug, Clone, Args)]
pub(crate) struct FileArguments {
    /// Readers, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    #[arg(value_parser = up_to(1024))]
    pub(crate) readers: Vec<u16>,
    /// Only files of at least so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    at_least: u64,
    /// The first files only, until they have so many bytes together
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    most_bytes: u64,
}

impl FileArguments {
    pub(crate) fn of(&self, image: &Image) -> Result<(Vec<PathBuf>, Vec<Inode>)> {
        let files = files_up_to(image, self.at_least, self.most_bytes)?;
        ensure!(!files.is_empty(), "no file of {} bytes or more", self.at_least);
        Ok(files.into_iter().unzip())
    }
}

pub(crate) fn open(path: &Path) -> Result<Image> {
    Image::open(path).with_context(|| format!("opening {}", path.display()))
}

impl Experiment for ReadsArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        vec![Requirement::File(&self.image)]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let first_sum = Cell::new(None);
        context.plan(self.rounds, 1);
        let candidates = self.files.readers.iter().map(|&readers| {
            let first_sum = &first_sum;
            Candidate::ours(readers.to_string(), move || {
                // Else the first number of readers alone would wait for the disk.
                read_in(&self.image)?;
                // An image of its own, so that nothing is decoded before the first read.
                let image = open(&self.image)?;
                let (_, files) = self.files.of(&image)?;
                let pass = read_all(&image, &files, BLOCK_BYTES, readers)?;
                let is_first = first_sum.replace(Some(pass.sum)).is_none_or(|sum| sum == pass.sum);
                ensure!(is_first, "{readers} readers got other bytes than those before them");
                let [served, decoded] =
                    [pass.served_bytes, pass.decoded_bytes].map(|bytes| bytes as f64 / MIB);
                Ok(vec![
                    ("wall", pass.seconds),
                    ("CPU", pass.cpu_seconds),
                    ("MiB served", served),
                    ("clusters decoded", pass.clusters as f64),
                    ("MiB decoded", decoded),
                    ("decoded per served", decoded / served),
                    ("MiB/s", served / pass.seconds),
                ])
            })
        });
        let title = format!("at least {} bytes in blocks of {BLOCK_BYTES}", self.files.at_least);
        let case = self.image.display().to_string();
        context.compare(["reads", &title, &case], candidates.collect())?;
        Ok(())
    }
}

/// Until the last reader was done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadPass {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// To all readers together.
    pub(crate) served_bytes: u64,
    /// What was decoded for it.
    pub(crate) clusters: u64,
    pub(crate) decoded_bytes: u64,
    /// A checksum of what each reader got.
    pub(crate) sum: u64,
}

/// Has this many readers read all files in the same order, from the same moment on.
pub(crate) fn read_all(
    image: &Image,
    files: &[Inode],
    block_bytes: usize,
    readers: u16,
) -> Result<ReadPass> {
    let before = image.stats();
    let (got, [wall, cpu]) = read_together(readers, |_| {
        let mut block = vec![0; block_bytes];
        files.iter().try_fold(Seen::default(), |got, file| read(image, file, &mut block, got))
    })?;
    let first = *got.first().context("no readers")?;
    ensure!(got.iter().all(|other| *other == first), "two readers got different bytes");
    let size: u64 = files.iter().map(Inode::size).sum();
    ensure!(first.bytes == size, "readers got {} of {size} bytes", first.bytes);
    let after = image.stats();
    Ok(ReadPass {
        seconds: wall.as_secs_f64(),
        cpu_seconds: cpu.as_secs_f64(),
        served_bytes: got.iter().map(|reader| reader.bytes).sum(),
        clusters: after.clusters_decoded - before.clusters_decoded,
        decoded_bytes: after.bytes_decoded - before.bytes_decoded,
        sum: first.sum,
    })
}

/// Reads a file to its end, by its inode: nothing is read that was not requested.
fn read(image: &Image, inode: &Inode, block: &mut [u8], mut got: Seen) -> Result<Seen> {
    let mut offset = 0;
    loop {
        let count = image.read_at(inode, offset, block)?;
        // The first byte of every 4 KiB: enough to tell a wrong block, and cheap beside the reads.
        let bytes = block.get(..count).unwrap_or_default();
        for (sample, place) in bytes.iter().step_by(4096).zip(1_u64..) {
            got.sum = got.sum.rotate_left(5) ^ u64::from(*sample).wrapping_mul(place);
        }
        got.bytes += count as u64;
        offset += count as u64;
        if count < block.len() || count == 0 {
            return Ok(got);
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_image::Image;

    use super::{BLOCK_BYTES, read_all};
    use crate::image_info::regular_files;

    #[test]
    fn many_readers_get_what_one_gets() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(path).unwrap();
        let files = regular_files(&image).unwrap().into_iter().map(|(_, inode)| inode);
        let files: Vec<_> = files.collect();
        let pass = |block_bytes, readers| read_all(&image, &files, block_bytes, readers).unwrap();
        let (one, many, small) = (pass(BLOCK_BYTES, 1), pass(BLOCK_BYTES, 8), pass(4096, 2));
        assert_eq!(many.sum, one.sum);
        let served = [many.served_bytes, small.served_bytes];
        assert_eq!(served, [8 * one.served_bytes, 2 * one.served_bytes]);
        assert!(one.served_bytes > 0 && one.clusters > 0 && one.decoded_bytes > 0);
    }
}
