//! The limits of an extraction: repeated work, and bytes of output. They stop everything. Shared by
//! all threads of an extraction or of a tar.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_image::{Image, WorkMeter, Xattr};

use crate::error::ErrorKind;

/// Creating an entry in a directory takes about as long as decoding so many bytes, on a busy machine.
pub(crate) const ENTRY_WORK: u64 = 64 << 10;
/// The same for a member of a tar.
pub(crate) const MEMBER_WORK: u64 = 4 << 10;
/// The same for setting an extended attribute, beside its bytes.
const XATTR_WORK: u64 = 1 << 10;

/// Bytes of output that any image may have.
const MIN_OUTPUT_BYTES: u64 = 16 << 30;
/// Further bytes of output for each byte of the image. Indexes of identical files have 2 bytes for a
/// block, so dense images of many files stay below.
const OUTPUT_PER_BYTE: u64 = 8192;

/// The most bytes that an extraction writes by default, for an image of so many bytes, devices included.
#[must_use]
pub fn default_output_limit(image_bytes: u64) -> u64 {
    image_bytes.saturating_mul(OUTPUT_PER_BYTE).saturating_add(MIN_OUTPUT_BYTES)
}

/// Counts work and output.
#[derive(Debug)]
pub(crate) struct ExtractLimits {
    image: Image,
    /// The work of decoding before the extraction began.
    decoded_before: u64,
    pub(crate) work: WorkMeter,
    output: AtomicU64,
    output_limit: u64,
}

impl ExtractLimits {
    /// The given limits, or the defaults for the image.
    pub(crate) fn new(image: &Image, max_work: Option<u64>, max_output: Option<u64>) -> Self {
        let bytes = image.stored_bytes();
        let work = max_work.unwrap_or_else(|| WorkMeter::default_limit(bytes));
        Self {
            image: image.clone(),
            decoded_before: image.decoding_work(),
            work: WorkMeter::new(work),
            output: AtomicU64::new(0),
            output_limit: max_output.unwrap_or_else(|| default_output_limit(bytes)),
        }
    }

    /// Adds bytes of output, without holes.
    pub(crate) fn add_output(&self, bytes: u64) -> Result<(), ErrorKind> {
        // Relaxed: no data is published with the number. Files end the sum: it cannot overflow.
        let before = self.output.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.output_limit {
            // One file can take all of the work, so that looking once for each file is not enough.
            return self.check_decoding();
        }
        Err(ErrorKind::OutputLimit { limit: self.output_limit })
    }

    /// Adds the attributes of an entry: many inodes can share one.
    pub(crate) fn add_xattrs(&self, xattrs: &[Xattr]) -> Result<(), ErrorKind> {
        if xattrs.is_empty() {
            return Ok(());
        }
        let bytes = |xattr: &Xattr| XATTR_WORK + (xattr.name.len() + xattr.value.len()) as u64;
        let bytes = xattrs.iter().map(bytes).sum();
        Ok(self.work.add(bytes, "extended attributes that inodes share")?)
    }

    /// Compares the work of decoding with the output.
    pub(crate) fn check_decoding(&self) -> Result<(), ErrorKind> {
        let decoded = self.image.decoding_work().saturating_sub(self.decoded_before);
        let output = self.output.load(Ordering::Relaxed);
        let limit = self.work.limit();
        if decoded.saturating_sub(output) <= limit {
            return Ok(());
        }
        let what = "clusters that are decoded again for other files";
        Ok(WorkMeter::new(limit).add(limit.saturating_add(1), what)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_attributes_have_limits() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let image = Image::open(folder.join("plain.erofs")).unwrap();
        let limits = ExtractLimits::new(&image, Some(3000), Some(10));
        limits.add_output(10).unwrap();
        let error = limits.add_output(1).unwrap_err();
        assert!(matches!(error, ErrorKind::OutputLimit { limit: 10 }) && error.stops_everything());
        let xattr = Xattr { name: b"user.a".to_vec(), value: vec![0; 1900] };
        limits.add_xattrs(std::slice::from_ref(&xattr)).unwrap();
        let error = limits.add_xattrs(&[xattr]).unwrap_err();
        assert!(error.stops_everything() && error.to_string().contains("3000"), "{error}");
        let defaults = ExtractLimits::new(&image, None, None);
        defaults.add_output(MIN_OUTPUT_BYTES).unwrap();
        defaults.check_decoding().unwrap();
    }
}
