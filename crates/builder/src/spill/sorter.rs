//! An external sort: records in any order come out in ascending order. Runs are sorted in memory and merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::SpillStore;
use super::paged::{PagedArray, Record};

/// Bytes of a run, which is sorted in memory.
const RUN_BYTES: usize = 2 << 20;

/// Takes records in any order.
#[derive(Debug)]
pub(crate) struct Sorter<R> {
    store: SpillStore,
    runs: Vec<PagedArray<R>>,
    buffer: Vec<R>,
}

impl<R: Record + Ord> Sorter<R> {
    /// No records.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { store: store.clone(), runs: Vec::new(), buffer: Vec::new() }
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: R) {
        if self.buffer.len() >= RUN_BYTES / size_of::<R>() {
            self.end_run();
        }
        self.buffer.push(record);
    }

    /// All records in ascending order.
    pub(crate) fn finish(mut self) -> SortedRecords<R> {
        if !self.runs.is_empty() {
            self.end_run();
        }
        self.buffer.sort_unstable();
        let in_memory = std::mem::take(&mut self.buffer).into_iter();
        let mut sorted = SortedRecords { in_memory, runs: Vec::new(), heads: BinaryHeap::new() };
        for (number, records) in self.runs.into_iter().enumerate() {
            sorted.runs.push(RunReader { records, next: 0, batch: Vec::new().into_iter() });
            sorted.pull(number);
        }
        sorted
    }

    fn end_run(&mut self) {
        self.buffer.sort_unstable();
        let mut run = PagedArray::new(&self.store);
        for record in self.buffer.drain(..) {
            run.push(record);
        }
        self.runs.push(run);
    }
}

/// Records in ascending order.
#[derive(Debug)]
pub(crate) struct SortedRecords<R> {
    /// All of them, if there is one run only.
    in_memory: std::vec::IntoIter<R>,
    runs: Vec<RunReader<R>>,
    /// The next record of each run.
    heads: BinaryHeap<Reverse<(R, usize)>>,
}

#[derive(Debug)]
struct RunReader<R> {
    records: PagedArray<R>,
    next: usize,
    batch: std::vec::IntoIter<R>,
}

impl<R: Record + Ord> SortedRecords<R> {
    fn pull(&mut self, number: usize) {
        let Some(run) = self.runs.get_mut(number) else { return };
        if run.batch.len() == 0 {
            run.batch = run.records.batch(run.next).into_iter();
            run.next += run.batch.len();
        }
        self.heads.extend(run.batch.next().map(|record| Reverse((record, number))));
    }
}

impl<R: Record + Ord> Iterator for SortedRecords<R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        if self.runs.is_empty() {
            return self.in_memory.next();
        }
        let Reverse((record, number)) = self.heads.pop()?;
        self.pull(number);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::tests::small_store;

    #[test]
    fn records_come_out_in_order_however_many_runs_there_are() {
        let (store, _directory) = small_store();
        for count in [0, 10, 100_000, 700_000_u32] {
            let mut sorter = Sorter::new(&store);
            for number in 0..count {
                sorter.push((u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, number));
            }
            let sorted: Vec<(u64, u32)> = sorter.finish().collect();
            assert_eq!(sorted.len(), count as usize);
            assert!(sorted.is_sorted());
            assert_eq!(
                sorted.iter().map(|(_, number)| u64::from(*number)).sum::<u64>(),
                (0..u64::from(count)).sum::<u64>()
            );
        }
        store.check().unwrap();
    }
}
