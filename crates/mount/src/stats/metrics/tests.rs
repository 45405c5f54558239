//! Metrics: what they count, from several threads, and what counting costs.

use ferrofs_fuse::SentReply;

use super::*;

fn sent(errno: Option<Errno>, bytes: usize, elapsed: Duration) -> ReplyOutcome {
    ReplyOutcome::of(SentReply { errno, bytes, elapsed })
}

#[test]
fn an_operation_is_counted_with_its_time_and_its_bytes() {
    let metrics = MountMetrics::new(2);
    let elapsed = Duration::from_micros(80);
    metrics.record_reply(OperationKind::Read, 5, &sent(None, 4096, elapsed));
    metrics.record_reply(OperationKind::Read, 5, &sent(Some(Errno::IO), 0, elapsed));
    let read = metrics.operation(OperationKind::Read);
    assert_eq!((read.times.count(), read.errors, read.bytes), (2, 1, 4096));
    assert_eq!(read.times.longest(), Duration::from_micros(80));
    assert_eq!(metrics.operation(OperationKind::Lookup).times.count(), 0);
    assert_eq!(metrics.top_files()[0].node, 5);
}

#[test]
fn answers_that_something_is_not_there_are_no_errors() {
    let metrics = MountMetrics::new(1);
    for errno in [Errno::NODATA, Errno::NOSYS, Errno::NXIO, Errno::NOTTY] {
        metrics.record_reply(OperationKind::GetXattr, 1, &sent(Some(errno), 0, Duration::ZERO));
    }
    for errno in [Errno::IO, Errno::NOMEM, Errno::UCLEAN, Errno::CANCELED] {
        metrics.record_reply(OperationKind::GetXattr, 1, &sent(Some(errno), 0, Duration::ZERO));
    }
    let counted = metrics.operation(OperationKind::GetXattr);
    assert_eq!((counted.times.count(), counted.errors), (8, 4));
}

#[test]
fn a_request_without_an_answer_is_not_counted() {
    let metrics = MountMetrics::new(1);
    metrics.record_reply(OperationKind::Read, 1, &ReplyOutcome::default());
    assert_eq!(metrics.operation(OperationKind::Read).times.count(), 0);
}

#[test]
fn nothing_is_lost_between_listeners() {
    const EACH: usize = 5000;
    let metrics = MountMetrics::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    metrics.record_reply(
                        OperationKind::Lookup,
                        1,
                        &sent(None, 128, Duration::ZERO),
                    );
                    metrics.record_store(10);
                }
            });
        }
    });
    let counted = metrics.operation(OperationKind::Lookup);
    assert_eq!(counted.times.count(), 4 * EACH as u64);
    assert_eq!(counted.bytes, 4 * 128 * EACH as u64);
    assert_eq!(metrics.stores(), (4 * EACH as u64, 40 * EACH as u64));
}
