//! Models of the whole pool with one CPU: work that is submitted while the CPU goes and comes, and
//! first uses at the same time.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use super::{DispatchTarget, PerCpuPool, PerCpuSettings};
use crate::cpus::CpuSet;
use crate::wake_event::WakeEvent;

fn cpu() -> usize {
    CpuSet::of_process().iter().next().unwrap_or(0)
}

fn pool() -> PerCpuPool {
    PerCpuPool::new(PerCpuSettings::new("model").cpus(CpuSet::from_iter([cpu()])))
}

fn submit(pool: &PerCpuPool, ran: &Arc<AtomicUsize>) -> DispatchTarget {
    let ran = Arc::clone(ran);
    pool.submit_to(cpu(), move || {
        ran.fetch_add(1, Ordering::Relaxed);
    })
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 10_000;
    builder.check(check);
}

#[test]
fn dropping_the_pool_runs_what_was_submitted() {
    model(|| {
        let pool = pool();
        let ran = Arc::new(AtomicUsize::new(0));
        assert_eq!(submit(&pool, &ran), DispatchTarget::Cpu(cpu()));
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_sleeping_worker_is_woken_for_every_item() {
    model(|| {
        let pool = pool();
        for _ in 0..2 {
            let done = Arc::new(WakeEvent::new());
            let signal = Arc::clone(&done);
            let went = pool.submit_to(cpu(), move || {
                let _: bool = signal.set();
            });
            assert_eq!(went, DispatchTarget::Cpu(cpu()));
            let _: bool = done.wait();
        }
    });
}

#[test]
fn work_submitted_while_its_cpu_goes_runs_once() {
    model(|| {
        let pool = Arc::new(pool());
        let ran = Arc::new(AtomicUsize::new(0));
        pool.start();
        let other = {
            let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
            loom::thread::spawn(move || {
                let went = submit(&pool, &ran);
                assert!(matches!(went, DispatchTarget::Cpu(_) | DispatchTarget::Fallback));
            })
        };
        pool.take_offline(cpu());
        assert!(pool.stats().serving.is_empty());
        other.join().unwrap();
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_cpu_that_goes_and_comes_at_once_is_settled_by_the_last_word() {
    model(|| {
        let pool = Arc::new(pool());
        pool.start();
        let other = {
            let pool = Arc::clone(&pool);
            loom::thread::spawn(move || pool.take_offline(cpu()))
        };
        pool.bring_online(cpu());
        other.join().unwrap();
        pool.bring_online(cpu());
        assert_eq!(pool.stats().serving, CpuSet::from_iter([cpu()]));
    });
}
