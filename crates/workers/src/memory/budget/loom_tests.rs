//! Every interleaving of charges of both policies.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use super::*;
use crate::sync::thread;

#[test]
fn a_charge_that_waits_gets_what_is_dropped_and_the_sum_never_passes_the_limit() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let budget = Budget::with_stall(2, Duration::from_secs(3600));
        let held = budget.charge(2, AllocPolicy::MayFail).unwrap();
        let own = budget.clone();
        let waiter = thread::spawn(move || {
            let charge = own.charge(1, AllocPolicy::MustSucceed).unwrap();
            assert!(own.used_bytes() <= 2);
            drop(charge);
        });
        drop(held);
        if let Ok(charge) = budget.charge(2, AllocPolicy::MayFail) {
            assert_eq!(budget.used_bytes(), 2, "nobody else has any");
            drop(charge);
        }
        waiter.join().unwrap();
        assert_eq!(budget.used_bytes(), 0);
    });
}
