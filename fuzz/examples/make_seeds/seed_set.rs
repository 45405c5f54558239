//! The seeds that have been found: of each kind the smallest.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Seeds by target and kind.
#[derive(Debug, Default)]
pub(crate) struct SeedSet {
    seeds: BTreeMap<(&'static str, String), Vec<u8>>,
}

impl SeedSet {
    /// Keeps `seed` if it is shorter than what is kept for this kind.
    pub(crate) fn put(&mut self, target: &'static str, kind: String, seed: Vec<u8>) {
        let kept = self.seeds.entry((target, kind)).or_insert_with(|| seed.clone());
        if seed.len() < kept.len() {
            *kept = seed;
        }
    }

    /// Writes all seeds; answers how many there are, and of how many bytes.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<(usize, usize)> {
        let mut total = 0;
        for ((target, kind), seed) in &self.seeds {
            let folder = folder.join(target);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(kind), seed)?;
            total += seed.len();
        }
        Ok((self.seeds.len(), total))
    }
}
