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
    /// Keeps `input` if it is shorter than what is kept for this kind.
    pub(crate) fn put(&mut self, target: &'static str, kind: String, input: Vec<u8>) {
        let kept = self.seeds.entry((target, kind)).or_insert_with(|| input.clone());
        if input.len() < kept.len() {
            *kept = input;
        }
    }

    /// Writes all seeds; answers how many there are, and of how many bytes.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<(usize, usize)> {
        let mut total = 0;
        for ((target, kind), input) in &self.seeds {
            let folder = folder.join(target);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(kind), input)?;
            total += input.len();
        }
        Ok((self.seeds.len(), total))
    }
}
