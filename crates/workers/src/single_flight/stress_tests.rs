//! A second and a half of random lookups on eight threads, with prefetches, failures, panics,
//! permits that are queued, fills that are taken over, and evictions: every reader gets the right
//! value.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;

const LENGTH: Duration = Duration::from_millis(1500);
const KEYS: u64 = 40;
const LONGEST: u64 = 64;

/// Numbers that look random: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What a key says, so that a value of another is seen.
#[derive(Debug, Clone)]
struct Front(Arc<Vec<u64>>);

impl CacheValue for Front {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}

/// A payload that does not print.
struct OnPurpose;

struct Bed {
    single_flight: SingleFlight<u64, Front>,
    /// Permits that were enqueued.
    queue: Mutex<VecDeque<FillPermit<u64, Front>>>,
    begun: AtomicU64,
    reads: AtomicU64,
}

impl Bed {
    fn read(&self, key: u64, length: usize, random: &mut Random) {
        loop {
            let value = match self.single_flight.lookup(key, length, Urgency::Demand) {
                Lookup::Hit(value) => Some(value),
                Lookup::Miss(mut permit) if random.below(3) == 0 => {
                    let waiter = permit.enqueue();
                    self.queue.lock().unwrap().push_back(permit);
                    self.wait(waiter, key, length, random)
                }
                Lookup::Miss(permit) => self.compute(permit, random),
                Lookup::Pending(waiter) => self.wait(waiter, key, length, random),
            };
            if let Some(Front(content)) = value {
                assert!(content.len() >= length && content.iter().all(|said| *said == key));
                self.reads.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Takes over what it waits for if nobody has begun it; otherwise it sleeps.
    fn wait(
        &self,
        waiter: Waiter<Front>,
        key: u64,
        length: usize,
        random: &mut Random,
    ) -> Option<Front> {
        match self.single_flight.lookup(key, length, Urgency::Demand) {
            Lookup::Hit(value) => Some(value),
            Lookup::Miss(permit) => self.compute(permit, random),
            Lookup::Pending(_) => waiter.wait(),
        }
    }

    fn help(&self, random: &mut Random) {
        let permit = self.queue.lock().unwrap().pop_front();
        if let Some(permit) = permit {
            self.compute(permit, random);
        }
    }

    /// Fails now and then, panics now and then, and gives up without a demand.
    fn compute(&self, mut permit: FillPermit<u64, Front>, random: &mut Random) -> Option<Front> {
        if !permit.begin() {
            return None;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let content = vec![permit.key(); permit.length()];
        match random.below(12) {
            0 => {
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _lost = permit;
                    std::panic::resume_unwind(Box::new(OnPurpose));
                }));
                assert!(panicked.is_err());
                return None;
            }
            1 => return None,
            2 | 3 => std::thread::yield_now(),
            _ => {}
        }
        if !permit.is_demanded() && random.below(2) == 0 {
            return None;
        }
        let value = Front(Arc::new(content));
        if random.below(3) == 0 {
            if let Some(permit) = permit.finish_unless_waited() {
                permit.publish(value.clone());
            }
        } else {
            permit.publish(value.clone());
        }
        Some(value)
    }

    fn round(&self, random: &mut Random) {
        let key = random.below(random.0 % KEYS + 1);
        let length = usize::try_from(random.below(LONGEST)).unwrap();
        match random.below(12) {
            0..8 => self.read(key, length, random),
            8 => {
                if let Lookup::Miss(mut permit) =
                    self.single_flight.lookup(key, length, Urgency::Prefetch)
                {
                    drop(permit.enqueue());
                    self.queue.lock().unwrap().push_back(permit);
                }
            }
            9 => {
                if let Lookup::Miss(permit) =
                    self.single_flight.lookup(key, length, Urgency::Prefetch)
                {
                    self.compute(permit, random);
                }
            }
            10 => self.help(random),
            _ => drop(self.single_flight.evict(random.below(2000))),
        }
    }
}

#[test]
fn every_reader_gets_the_right_value_whatever_happens_to_who_computes_it() {
    let bed = Bed {
        single_flight: SingleFlight::new(12_000),
        queue: Mutex::new(VecDeque::new()),
        begun: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for seed in 1..=8_u64 {
            let bed = &bed;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                while begun.elapsed() < LENGTH {
                    bed.round(&mut random);
                }
            });
        }
    });
    let Bed { single_flight, queue, begun, reads } = bed;
    drop(queue);
    let stats = single_flight.stats();
    println!("{reads:?} reads, {stats:?}");
    // Every computation that began ended once, and none that was taken over began twice.
    let queued_at_the_end = stats.abandoned + stats.computed - begun.load(Ordering::Relaxed);
    assert!(queued_at_the_end <= KEYS, "{queued_at_the_end}");
    assert!(single_flight.weight_bytes() <= 12_000);
    single_flight.evict(u64::MAX);
    assert_eq!((single_flight.keys(), single_flight.weight_bytes()), (0, 0));
}

#[test]
fn sixty_four_readers_of_the_same_values_compute_each_once() {
    const READERS: u64 = 64;
    let single_flight: SingleFlight<u64, Front> = SingleFlight::new(1 << 20);
    let barrier = std::sync::Barrier::new(64);
    let computed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                barrier.wait();
                for key in 0..KEYS {
                    let value = loop {
                        match single_flight.lookup(key, 8, Urgency::Demand) {
                            Lookup::Hit(value) => break value,
                            Lookup::Pending(waiter) => {
                                if let Some(value) = waiter.wait() {
                                    break value;
                                }
                            }
                            Lookup::Miss(mut permit) => {
                                if permit.begin() {
                                    computed.fetch_add(1, Ordering::Relaxed);
                                    std::thread::yield_now();
                                    permit.publish(Front(Arc::new(vec![key; 8])));
                                }
                            }
                        }
                    };
                    assert!(value.0.iter().all(|said| *said == key));
                }
            });
        }
    });
    println!("{:?}", single_flight.stats());
    assert_eq!((computed.into_inner(), single_flight.stats().computed), (KEYS, KEYS));
}
