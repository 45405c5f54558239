//! Ordered pipelines on real threads, compared with the plain loop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tests::{CountLatch, for_a_while, place};
use super::{CallerRole, HelperBudget, OrderedPipeline, ParallelFor};

#[test]
fn results_are_committed_in_the_order_of_the_items() {
    for (helpers, max_in_flight, count) in
        [(3, 1, 50), (3, 2, 500), (1, 7, 500), (4, 64, 2000), (2, 9, 0)]
    {
        let helpers = HelperBudget::new(helpers);
        let mut committed = Vec::new();
        let report = OrderedPipeline::new()
            .max_threads(5)
            .max_in_flight(max_in_flight)
            .helpers(&helpers)
            .run(
                0..count,
                || (),
                |(), item: u64| {
                    // Items take different times: every seventh lets others overtake it.
                    if item.is_multiple_of(7) {
                        std::thread::yield_now();
                    }
                    Ok::<_, ()>(item * 3)
                },
                |result| {
                    committed.push(result);
                    Ok(())
                },
            );
        assert_eq!(report.unwrap().items, count);
        assert_eq!(committed, (0..count).map(|item| item * 3).collect::<Vec<_>>());
        assert_eq!(helpers.free(), helpers.total());
    }
}

#[test]
fn no_more_items_than_max_in_flight_are_on_their_way() {
    let helpers = HelperBudget::new(3);
    for max_in_flight in [2, 3, 8] {
        let (drawn, committed, peak) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let items = (0..300).inspect(|_| {
            drawn.set(drawn.get() + 1);
            peak.set(peak.get().max(drawn.get() - committed.get()));
        });
        let run =
            OrderedPipeline::new().max_threads(4).max_in_flight(max_in_flight).helpers(&helpers);
        let commit = |_| {
            committed.set(committed.get() + 1);
            Ok::<_, ()>(())
        };
        assert!(run.run(items, || (), |(), item: i32| Ok(item), commit).is_ok());
        assert_eq!((drawn.get(), committed.get()), (300, 300));
        assert!(peak.get() <= max_in_flight, "{} on their way, of {max_in_flight}", peak.get());
    }
}

#[test]
fn without_a_helper_it_is_a_plain_loop_on_the_caller() {
    let here = std::thread::current().id();
    let none = HelperBudget::new(0);
    let some = HelperBudget::new(4);
    let alone = [
        OrderedPipeline::new().max_threads(8).helpers(&none),
        OrderedPipeline::new().max_threads(1).helpers(&some),
        OrderedPipeline::new().max_threads(0).helpers(&some),
        OrderedPipeline::new().max_threads(8).max_in_flight(1).helpers(&some),
        OrderedPipeline::new().max_threads(8).max_in_flight(0).helpers(&some),
    ];
    for run in alone {
        let order = RefCell::new(Vec::new());
        let steps = Mutex::new(Vec::new());
        let report = run.run(
            0..3,
            || assert_eq!(std::thread::current().id(), here),
            |(), item| {
                assert_eq!((some.free(), std::thread::current().id()), (4, here));
                steps.lock().unwrap().push(item);
                Ok::<i32, ()>(item)
            },
            |item| {
                order.borrow_mut().push((item, steps.lock().unwrap().len()));
                Ok(())
            },
        );
        assert_eq!(report.unwrap().threads, 1);
        assert_eq!(order.into_inner(), [(0, 1), (1, 2), (2, 3)]);
    }
}

#[test]
fn one_item_needs_no_thread() {
    let helpers = HelperBudget::new(4);
    let work = |(): &mut (), item: u8| {
        assert_eq!(helpers.free(), 4);
        Ok::<_, ()>(item)
    };
    let report = OrderedPipeline::new().helpers(&helpers).run([7], || (), work, |_| Ok(()));
    assert_eq!((report.unwrap().threads, report.unwrap().items), (1, 1));
}

#[test]
fn the_error_is_that_of_the_first_item_even_if_a_later_one_failed_before() {
    let helpers = HelperBudget::new(1);
    let later_failed = CountLatch::default();
    let mut committed = Vec::new();
    let outcome = OrderedPipeline::new().max_threads(2).max_in_flight(4).helpers(&helpers).run(
        0..100,
        || (),
        |(), item| match item {
            1 => {
                later_failed.wait_for(1);
                Err(item)
            }
            2 => {
                later_failed.add_one();
                Err(item)
            }
            item => Ok(item),
        },
        |item| {
            committed.push(item);
            Ok(())
        },
    );
    assert_eq!(outcome.unwrap_err(), 1);
    assert_eq!(committed, [0]);
}

#[test]
fn an_error_of_a_commit_stops_the_run() {
    let helpers = HelperBudget::new(2);
    let mut committed = 0;
    let worked = AtomicUsize::new(0);
    let outcome = OrderedPipeline::new().max_threads(3).max_in_flight(4).helpers(&helpers).run(
        0..1000,
        || (),
        |(), item| {
            worked.fetch_add(1, Ordering::SeqCst);
            Ok(item)
        },
        |item| {
            committed += 1;
            if item == 5 { Err("full") } else { Ok(()) }
        },
    );
    assert_eq!((outcome.unwrap_err(), committed), ("full", 6));
    assert!(worked.into_inner() <= 5 + 4 + 1);
    assert_eq!(helpers.free(), 2);
}

#[test]
fn after_an_error_nothing_more_is_drawn() {
    let helpers = HelperBudget::new(1);
    let drawn = Cell::new(0);
    let items = (0..).inspect(|_| drawn.set(drawn.get() + 1));
    let work = |(): &mut (), item: u32| if item == 10 { Err(item) } else { Ok(item) };
    let run = OrderedPipeline::new().max_threads(2).max_in_flight(4).helpers(&helpers);
    assert_eq!(run.run(items, || (), work, |_| Ok(())), Err(10));
    assert!(drawn.get() <= 10 + 4, "{} drawn", drawn.get());
}

#[test]
fn a_panic_of_the_work_comes_at_its_place_in_the_order() {
    let helpers = HelperBudget::new(2);
    let mut committed = Vec::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        OrderedPipeline::new().max_threads(3).max_in_flight(8).helpers(&helpers).run(
            0..100,
            || (),
            |(), item: i32| {
                if item == 20 {
                    resume_unwind(Box::new(item));
                }
                Ok::<_, ()>(item)
            },
            |item| {
                committed.push(item);
                Ok(())
            },
        )
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<i32>(), Some(&20));
    assert_eq!(committed, (0..20).collect::<Vec<_>>());
    assert_eq!(helpers.free(), 2);
}

#[test]
fn a_panic_of_the_iterator_or_the_commit_ends_the_helpers() {
    let helpers = HelperBudget::new(2);
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(8).helpers(&helpers);
    let items = (0..100).inspect(|item| {
        if *item == 30 {
            resume_unwind(Box::new("iterator"));
        }
    });
    let work = |(): &mut (), item: i32| Ok::<_, ()>(item);
    let caught = catch_unwind(AssertUnwindSafe(|| run.run(items, || (), work, |_| Ok(()))));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"iterator"));
    let commit = |_| resume_unwind(Box::new("commit"));
    let caught = catch_unwind(AssertUnwindSafe(|| run.run(0..100, || (), work, commit)));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"commit"));
    assert_eq!(helpers.free(), 2);
}

#[test]
fn helpers_work_while_the_iterator_waits() {
    // The iterator does not go on before the item that it gave is worked on, and while it waits the
    // caller is inside of it: only a helper can do that.
    let helpers = HelperBudget::new(1);
    let worked = CountLatch::default();
    let items = (0..20).inspect(|drawn| worked.wait_for(*drawn));
    let here = std::thread::current().id();
    let others = AtomicUsize::new(0);
    let run = OrderedPipeline::new().max_threads(2).max_in_flight(8).helpers(&helpers);
    let report = run.run(
        items,
        || (),
        |(), item: usize| {
            if std::thread::current().id() != here {
                others.fetch_add(1, Ordering::SeqCst);
            }
            worked.add_one();
            Ok::<_, ()>(item)
        },
        |_| Ok(()),
    );
    assert_eq!((report.unwrap().items, report.unwrap().threads), (20, 2));
    assert!(others.into_inner() >= 19);
}

#[test]
fn the_caller_works_while_a_helper_is_busy() {
    // Item 0 ends when all others in flight are done: whoever has it, the other one works.
    let helpers = HelperBudget::new(1);
    let done = CountLatch::default();
    let run = OrderedPipeline::new().max_threads(2).max_in_flight(4).helpers(&helpers);
    let work = |(): &mut (), item: usize| {
        if item == 0 {
            done.wait_for(3);
        } else {
            done.add_one();
        }
        Ok::<_, ()>(item)
    };
    assert_eq!(run.run(0..10, || (), work, |_| Ok(())).unwrap().items, 10);
}

#[test]
fn every_thread_has_one_state_of_its_own() {
    let helpers = HelperBudget::new(2);
    let made = Mutex::new(HashSet::new());
    let all = CountLatch::default();
    let init = || {
        let here = std::thread::current().id();
        assert!(made.lock().unwrap().insert(here), "a second state for {here:?}");
        (here, true)
    };
    let work = |(maker, is_new): &mut (std::thread::ThreadId, bool), item: usize| {
        assert_eq!(*maker, std::thread::current().id());
        if std::mem::take(is_new) {
            all.add_one();
            all.wait_for(3);
        }
        Ok::<_, ()>(item)
    };
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(6).helpers(&helpers);
    assert!(run.run(0..100, init, work, |_| Ok(())).is_ok());
    assert_eq!(made.into_inner().unwrap().len(), 3);
}

// Jobs in the work, with a budget that is spent.
#[test]
fn jobs_inside_of_ordered_work_do_not_wait_for_helpers() {
    let helpers = HelperBudget::new(2);
    let mut sums = Vec::new();
    let work = |(): &mut (), item: u64| {
        let sum = AtomicUsize::new(0);
        ParallelFor::over(0..item * 10).max_threads(3).helpers(&helpers).run(|chunk| {
            let units = usize::try_from(chunk.end - chunk.start).unwrap();
            sum.fetch_add(units, Ordering::Relaxed);
            Ok(())
        })?;
        Ok::<_, ()>(sum.into_inner())
    };
    let commit = |sum| {
        sums.push(sum);
        Ok(())
    };
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(6).helpers(&helpers);
    assert!(run.run(0..40, || (), work, commit).is_ok());
    assert_eq!(sums, (0..40).map(|item| item * 10).collect::<Vec<_>>());
}

#[test]
fn what_was_not_committed_is_dropped() {
    let helpers = HelperBudget::new(2);
    let alive = AtomicUsize::new(0);
    struct Counted<'a>(&'a AtomicUsize, u32);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let items = (0..100).map(|number| {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted(&alive, number)
    });
    let work = |(): &mut (), item| Ok(item);
    let commit = |item: Counted<'_>| if item.1 == 50 { Err("stop") } else { Ok(()) };
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(8).helpers(&helpers);
    assert_eq!(run.run(items, || (), work, commit).unwrap_err(), "stop");
    assert_eq!(alive.into_inner(), 0);
}

/// Runs items of these costs under a bound of bytes; the peak of the costs in flight, and of the items.
fn peak_in_flight(run: OrderedPipeline<'_>, costs: &[u64]) -> (u64, usize) {
    let (bytes, items, peak) = (Cell::new(0), Cell::new(0), Cell::new((0, 0)));
    let processed = CountLatch::default();
    let source = costs.iter().copied().enumerate().inspect(|(_, cost)| {
        bytes.set(bytes.get() + cost);
        items.set(items.get() + 1);
    });
    let commit = |cost: u64| {
        // All that is drawn is in flight, but for the one that is held back.
        let (most_bytes, most_items) = peak.get();
        peak.set((most_bytes.max(bytes.get()), most_items.max(items.get())));
        bytes.set(bytes.get() - cost);
        items.set(items.get() - 1);
        Ok::<_, ()>(())
    };
    let work = |(): &mut (), (_, cost): (usize, u64)| {
        processed.add_one();
        Ok(cost)
    };
    let report = run.run_with_cost(source, |(_, cost)| *cost, || (), work, commit).unwrap();
    assert_eq!((report.items, processed.into_inner()), (costs.len() as u64, costs.len()));
    peak.get()
}

#[test]
fn no_more_bytes_than_the_bound_are_in_flight_and_one_item_held_back() {
    let helpers = HelperBudget::new(3);
    for role in [CallerRole::Works, CallerRole::CommitsOnly] {
        let run = OrderedPipeline::new().max_threads(3).max_in_flight(64).helpers(&helpers);
        let run = run.caller_role(role).max_in_flight_bytes(100);
        let costs: Vec<u64> = (0..500).map(|number| number * 7 % 41).collect();
        let (bytes, _) = peak_in_flight(run, &costs);
        assert!(bytes <= 100 + 40, "{bytes} bytes, and the largest item has 40");
    }
}

#[test]
fn an_item_above_the_bound_is_processed_alone() {
    let helpers = HelperBudget::new(2);
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(8).helpers(&helpers);
    let (_, items) = peak_in_flight(run.max_in_flight_bytes(10), &[1000; 50]);
    assert!(items <= 2, "{items}: one in flight, one held back");
    let (_, items) = peak_in_flight(run.max_in_flight_bytes(0), &[1; 50]);
    assert!(items <= 2, "{items}: one in flight, one held back");
}

#[test]
fn items_without_a_cost_are_bounded_by_their_number_alone() {
    let helpers = HelperBudget::new(2);
    let run = OrderedPipeline::new().max_threads(3).max_in_flight(8).helpers(&helpers);
    let (_, items) = peak_in_flight(run.max_in_flight_bytes(0), &[0; 100]);
    assert!(items <= 8);
}

#[test]
fn a_caller_that_only_commits_processes_nothing() {
    let helpers = HelperBudget::new(2);
    let here = std::thread::current().id();
    let run = OrderedPipeline::new().max_threads(2).max_in_flight(6).helpers(&helpers);
    let mut committed = Vec::new();
    let report = run.caller_role(CallerRole::CommitsOnly).run(
        0..200_u32,
        || (),
        |(), item| {
            assert_ne!(std::thread::current().id(), here);
            Ok::<_, ()>(item)
        },
        |item| {
            assert_eq!(std::thread::current().id(), here);
            committed.push(item);
            Ok(())
        },
    );
    // Two that work, and the caller.
    assert_eq!(report.unwrap().threads, 3);
    assert_eq!(committed, (0..200).collect::<Vec<_>>());
    assert_eq!(helpers.free(), 2);
}

#[test]
fn a_caller_that_should_only_commit_works_if_there_is_no_helper() {
    let none = HelperBudget::new(0);
    let run = OrderedPipeline::new().max_threads(4).caller_role(CallerRole::CommitsOnly);
    let report = run.helpers(&none).run(0..5, || (), |(), item: u8| Ok::<_, ()>(item), |_| Ok(()));
    assert_eq!((report.unwrap().threads, report.unwrap().items), (1, 5));
}

#[test]
fn an_error_of_the_iterator_comes_at_its_place_in_the_order() {
    // The third item cannot be drawn; the second one fails when it is processed, later than that.
    let helpers = HelperBudget::new(2);
    let third_was_drawn = CountLatch::default();
    let items = [Ok(1), Ok(2), Err("drawn")].into_iter().inspect(|item| {
        if item.is_err() {
            third_was_drawn.add_one();
        }
    });
    let work = |(): &mut (), item: Result<u32, &'static str>| match item? {
        2 => {
            third_was_drawn.wait_for(1);
            Err("processed")
        }
        item => Ok(item),
    };
    let run = OrderedPipeline::new().max_threads(2).max_in_flight(4).helpers(&helpers);
    let run = run.caller_role(CallerRole::CommitsOnly);
    assert_eq!(run.run(items, || (), work, |_| Ok(())), Err("processed"));
}

#[test]
fn random_ordered_runs_end_as_their_plain_loops_do() {
    let helpers = HelperBudget::new(3);
    let rounds = for_a_while(3, |random| {
        let count = random.below(300);
        let (bad_work, bad_commit) = (random.below(600), random.below(600));
        let bad = bad_work.min(bad_commit);
        let spin = random.below(4) * 50;
        let run = OrderedPipeline::new().max_threads(1 + place(random.below(4))).helpers(&helpers);
        let role = [CallerRole::Works, CallerRole::CommitsOnly][place(random.below(2))];
        let run = run.caller_role(role).max_in_flight_bytes(random.below(200));
        let mut committed = 0;
        let outcome = run.max_in_flight(place(random.below(20))).run_with_cost(
            0..count,
            |item| item % 17 * 3,
            || 0_u64,
            |state, item| {
                for step in 0..(item % 5) * spin {
                    *state = std::hint::black_box(state.wrapping_add(step));
                }
                if item >= bad_work { Err(item) } else { Ok(item) }
            },
            |item| {
                assert_eq!(item, committed);
                if item >= bad_commit {
                    return Err(item);
                }
                committed += 1;
                Ok(())
            },
        );
        assert_eq!(committed, bad.min(count));
        assert_eq!(outcome.err(), (bad < count).then_some(bad));
    });
    assert_eq!(helpers.free(), 3);
    eprintln!("{rounds} runs");
}
