//! TaskSource on their way: what arrives in any order leaves in the order in which it was sent, and buffers
//! come back to be used again.

use std::collections::VecDeque;

use crate::compress::worker::TaskBatch;

/// What is kept of the memory of an item: enough for one that bundles small files. What a large one
/// filled would stay resident beside those that are worked on.
const KEPT_BYTES: usize = 1 << 20;

/// TaskSource that were sent and are not committed.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// From `first` on; none where an item has not arrived.
    arrived: VecDeque<Option<TaskBatch>>,
    first: u64,
    spare: Vec<TaskBatch>,
    /// Buffers beyond this are not kept.
    spare_max: usize,
    /// Bytes that are read for the items.
    bytes: u64,
    /// A worker did not come back with its item.
    is_broken: bool,
}

impl ReorderBuffer {
    /// Keeps the buffers of so many items.
    pub(crate) fn new(spare_max: usize) -> Self {
        Self { spare_max, ..Self::default() }
    }

    /// Bytes on their way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// TaskSource on their way.
    pub(crate) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// An empty item, to be filled.
    pub(crate) fn empty_item(&mut self) -> TaskBatch {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives the item its number, right before it is sent.
    pub(crate) fn send(&mut self, item: &mut TaskBatch) {
        item.number = self.first + self.arrived.len() as u64;
        self.bytes += item.bytes;
        self.arrived.push_back(None);
    }

    /// An item is back.
    pub(crate) fn arrive(&mut self, item: TaskBatch, is_handled: bool) {
        self.is_broken |= !is_handled;
        let index =
            item.number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(place) = index.and_then(|index| self.arrived.get_mut(index)) {
            *place = Some(item);
        }
    }

    /// Whether a worker panicked.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The next item in order, if it is back.
    pub(crate) fn take_next(&mut self) -> Option<TaskBatch> {
        if self.arrived.front()?.is_none() {
            return None;
        }
        let item = self.arrived.pop_front().flatten()?;
        self.first += 1;
        self.bytes = self.bytes.saturating_sub(item.bytes);
        Some(item)
    }

    /// Takes the buffers of a committed item back.
    pub(crate) fn recycle(&mut self, mut item: TaskBatch) {
        if self.spare.len() < self.spare_max {
            item.tasks.clear();
            item.output.clear();
            item.output.bytes.shrink_to(KEPT_BYTES);
            item.bytes = 0;
            self.spare.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_large_item_filled_little_is_kept() {
        let mut window = ReorderBuffer::new(2);
        for bytes in [KEPT_BYTES / 2, 4 * KEPT_BYTES] {
            let mut item = TaskBatch::default();
            item.output.bytes = vec![1; bytes];
            window.recycle(item);
            let item = window.empty_item();
            assert!(item.output.bytes.is_empty());
            assert_eq!(item.output.bytes.capacity(), bytes.min(KEPT_BYTES));
        }
    }

    #[test]
    fn items_leave_in_the_order_in_which_they_were_sent() {
        let mut window = ReorderBuffer::new(1);
        let mut items: Vec<TaskBatch> = (0..3).map(|_| window.empty_item()).collect();
        for item in &mut items {
            item.bytes = 10;
            window.send(item);
        }
        assert_eq!((window.bytes(), window.len()), (30, 3));
        let numbers = |item: Option<TaskBatch>| item.map(|item| item.number);
        window.arrive(items.pop().unwrap(), true);
        window.arrive(items.remove(0), true);
        assert_eq!(numbers(window.take_next()), Some(0));
        assert_eq!(numbers(window.take_next()), None);
        window.arrive(items.remove(0), true);
        assert_eq!(numbers(window.take_next()), Some(1));
        assert_eq!(numbers(window.take_next()), Some(2));
        assert_eq!((window.bytes(), window.len()), (0, 0));
    }
}
