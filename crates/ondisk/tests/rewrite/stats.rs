//! Counts what was compared, and keeps what differed.

use std::collections::BTreeMap;
use std::fmt;

/// Every kind of structure that the images must have shown.
const KINDS: [&str; 16] = [
    "superblock",
    "checksum",
    "config records",
    "device slot",
    "compact inode",
    "extended inode",
    "directory block",
    "directory split",
    "xattr body",
    "xattr filter",
    "shared xattr",
    "map header",
    "full index",
    "compact index",
    "extent table",
    "chunk table",
];

#[derive(Debug, Default)]
pub(crate) struct RewriteStats {
    counts: BTreeMap<&'static str, (u64, u64)>,
    pub(crate) differences: Vec<String>,
}

impl RewriteStats {
    /// Notes a comparison of what is in the image with what was written.
    pub(crate) fn compare(&mut self, kind: &'static str, place: &str, theirs: &[u8], ours: &[u8]) {
        let counts = self.counts.entry(kind).or_default();
        counts.0 += 1;
        if theirs == ours {
            counts.1 += 1;
            return;
        }
        let at = theirs.iter().zip(ours).position(|(a, b)| a != b);
        let at = at.unwrap_or(theirs.len().min(ours.len()));
        let window = |bytes: &[u8]| {
            let end = bytes.len().min(at + 16);
            format!("{:02x?}", &bytes[at.min(end)..end])
        };
        self.differences.push(format!(
            "{kind} of {place}: byte {at} of {}/{}: theirs {} ours {}",
            theirs.len(),
            ours.len(),
            window(theirs),
            window(ours)
        ));
    }

    /// Notes that nothing could be written.
    pub(crate) fn refuse(&mut self, kind: &'static str, place: &str, why: &dyn fmt::Display) {
        self.counts.entry(kind).or_default().0 += 1;
        self.differences.push(format!("{kind} of {place}: {why}"));
    }

    pub(crate) fn result(
        &mut self,
        kind: &'static str,
        place: &str,
        theirs: &[u8],
        ours: Result<Vec<u8>, ferrofs_ondisk::Error>,
    ) {
        match ours {
            Ok(ours) => self.compare(kind, place, theirs, &ours),
            Err(error) => self.refuse(kind, place, &error),
        }
    }

    pub(crate) fn assert_all_kinds_seen(&self) {
        for kind in KINDS {
            assert!(self.counts.contains_key(kind), "no image has a {kind}");
        }
    }
}

impl fmt::Display for RewriteStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, (compared, equal)) in &self.counts {
            writeln!(f, "{kind:>16} {compared:>7} compared {equal:>7} equal")?;
        }
        Ok(())
    }
}
