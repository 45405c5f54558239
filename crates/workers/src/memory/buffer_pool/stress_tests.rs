//! A second of leases of all lengths and both policies on eight threads, under a budget too small for
//! them, with blocks given back, trimmed and mapped together meanwhile: every lease is its holder's alone.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use super::*;

const LENGTH: Duration = Duration::from_secs(1);
const LIMIT: u64 = 6 << 20;

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

fn round(buffers: &BufferPool, random: &mut Random, me: u8) {
    let magnitude = random.below(21);
    let length = usize::try_from(random.below(1 << magnitude)).unwrap();
    let policy = if random.below(3) == 0 { AllocPolicy::MayFail } else { AllocPolicy::MustSucceed };
    let Ok(mut buffer) = buffers.lease(length, policy) else {
        assert_eq!(policy, AllocPolicy::MayFail);
        return;
    };
    let ends = |buffer: &Buffer| (buffer.first().copied(), buffer.last().copied());
    let mark = |buffer: &mut Buffer| {
        if let Some(last) = buffer.last_mut() {
            *last = me;
        }
        if let Some(first) = buffer.first_mut() {
            *first = me;
        }
    };
    mark(&mut buffer);
    if random.below(4) == 0
        && let Ok(mut beside) = buffers.lease_beside(&buffer, length / 2, policy)
    {
        mark(&mut beside);
        std::thread::yield_now();
        assert!(beside.is_empty() || ends(&beside) == (Some(me), Some(me)));
    }
    match random.below(40) {
        0 => drop(buffers.release_idle(random.below(1 << 20))),
        3 => drop(buffers.fill_reserve(length, 2)),
        1 => drop(buffers.trim(Duration::from_micros(random.below(2000)))),
        2 => drop(buffers.preallocate(length, 3)),
        _ => std::thread::yield_now(),
    }
    assert!(buffer.is_empty() || ends(&buffer) == (Some(me), Some(me)));
}

#[test]
fn every_lease_is_its_holders_alone_and_the_budget_holds() {
    let budget = Budget::new(LIMIT);
    let buffers = BufferPool::new(&budget).unwrap();
    buffers.reserve(LIMIT / 3);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for me in 1..=8_u8 {
            let buffers = buffers.clone();
            scope.spawn(move || {
                let mut random = Random(u64::from(me).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                while begun.elapsed() < LENGTH {
                    round(&buffers, &mut random, me);
                }
            });
        }
    });
    println!("{:?} {:?}", buffers.stats(), budget.stats());
    assert_eq!((buffers.leased_bytes(), budget.used_bytes()), (0, buffers.idle_bytes()));
    assert!(budget.peak_bytes() <= LIMIT);
    buffers.store.release_idle(u64::MAX);
    assert_eq!(budget.used_bytes(), 0);
}
