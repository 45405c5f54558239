//! The files of which most bytes are read, found in one pass with a table of fixed size (the space-saving sketch of
//! Metwally, Agrawal and El Abbadi): a file that is not in the table takes the place of the one with the fewest bytes,
//! and inherits them as its uncertainty. Used by `metrics`, one table a shard.

/// Places in a table: twice as many as are shown, so that what is shown has settled.
const ENTRIES: usize = 32;

/// A file with what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCount {
    pub(super) node: u64,
    /// 0: nobody has this place.
    pub(super) bytes: u64,
    pub(super) uncertain_bytes: u64,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct TopFilesSketch {
    entries: [FileCount; ENTRIES],
}

impl TopFilesSketch {
    /// So many bytes of a file were read.
    pub(super) fn read(&mut self, node: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Some(known) = self.entries.iter_mut().find(|one| one.node == node && one.bytes > 0) {
            known.bytes = known.bytes.saturating_add(bytes);
        } else if let Some(min_entry) = self.entries.iter_mut().min_by_key(|one| one.bytes) {
            let uncertain_bytes = min_entry.bytes;
            *min_entry =
                FileCount { node, bytes: uncertain_bytes.saturating_add(bytes), uncertain_bytes };
        }
    }

    /// What a file can have that is not in the table.
    fn min_bytes(&self) -> u64 {
        self.entries.iter().map(|one| one.bytes).min().unwrap_or(0)
    }

    /// The files of several tables, those first of which most was read for certain.
    pub(super) fn merged(tables: &[Self]) -> Vec<FileCount> {
        let mut all: Vec<FileCount> = Vec::new();
        for counted in tables.iter().flat_map(|table| &table.entries).filter(|one| one.bytes > 0) {
            match all.iter_mut().find(|one| one.node == counted.node) {
                Some(known) => {
                    known.bytes = known.bytes.saturating_add(counted.bytes);
                    known.uncertain_bytes =
                        known.uncertain_bytes.saturating_add(counted.uncertain_bytes);
                }
                None => all.push(*counted),
            }
        }
        for one in &mut all {
            let lacks = |table: &&Self| !table.entries.iter().any(|other| other.node == one.node);
            let missed = tables.iter().filter(lacks).map(Self::min_bytes);
            one.uncertain_bytes = missed.fold(one.uncertain_bytes, u64::saturating_add);
        }
        all.sort_by_key(|one| std::cmp::Reverse(one.bytes.saturating_sub(one.uncertain_bytes)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{ENTRIES, TopFilesSketch};

    #[test]
    fn what_stands_out_is_found_among_many() {
        let mut tables = [TopFilesSketch::default(), TopFilesSketch::default()];
        for round in 0..1000_u64 {
            for table in &mut tables {
                table.read(7, 1000);
                table.read(8, 400);
            }
            // As many files as rounds, each read once.
            tables[0].read(1000 + round, 10);
        }
        let found = TopFilesSketch::merged(&tables);
        assert_eq!((found[0].node, found[1].node), (7, 8));
        for (file, exact) in [(found[0], 2_000_000), (found[1], 800_000)] {
            assert!(file.bytes.abs_diff(exact) <= file.uncertain_bytes, "{file:?}");
            assert!(file.uncertain_bytes < exact / 100, "{file:?}");
        }
    }

    #[test]
    fn few_files_are_counted_exactly() {
        let mut table = TopFilesSketch::default();
        for node in 1..=ENTRIES as u64 {
            table.read(node, node);
            table.read(node, 0);
        }
        let found = TopFilesSketch::merged(&[table]);
        assert_eq!(found.len(), ENTRIES);
        assert!(found.iter().all(|one| one.bytes == one.node && one.uncertain_bytes == 0));
    }
}
