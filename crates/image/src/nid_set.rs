//! A set of inode numbers that is small where they lie close together, as those of a tree do: a bit an
//! inode slot. A million inodes in a row take some 200 KiB.

use std::collections::HashMap;

use ferrofs_ondisk::Nid;

/// Inode slots of a page of the set: eight words of bits.
const PAGE_BITS: u32 = 9;

/// A set of inode numbers.
#[derive(Debug, Default)]
pub(crate) struct NidSet {
    pages: HashMap<u64, [u64; 8]>,
}

impl NidSet {
    /// Adds a number; false if it was there.
    pub(crate) fn insert(&mut self, nid: Nid) -> bool {
        let raw = nid.raw();
        let page = self.pages.entry(raw >> PAGE_BITS).or_default();
        let word = usize::try_from((raw >> 6) & 7).ok().and_then(|word| page.get_mut(word));
        let bit = 1u64 << (raw & 63);
        let Some(word) = word else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        const PAGE_BYTES: u64 = 80;
        u64::try_from(self.pages.capacity()).unwrap_or(u64::MAX).saturating_mul(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_is_a_set() {
        let (mut set, mut truth) = (NidSet::default(), HashSet::new());
        let mut number = 1u64;
        for step in 0..20_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let nid = Nid::new(if step % 2 == 0 { number % 5_000 } else { number >> (step % 60) });
            assert_eq!(set.insert(nid), truth.insert(nid), "{nid}");
        }
    }

    #[test]
    fn numbers_in_a_row_take_little() {
        let mut set = NidSet::default();
        (0..1_000_000).for_each(|raw| assert!(set.insert(Nid::new(raw))));
        assert!(set.bytes() < 512 << 10, "{}", set.bytes());
    }
}
