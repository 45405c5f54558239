//! Meters: what they count, from several threads, and what counting costs.

use ferrofs_fuse::Given;

use super::*;

fn given(errno: Option<Errno>, bytes: usize, took: Duration) -> Outcome {
    Outcome::of(Given { errno, bytes, took })
}

#[test]
fn an_operation_is_counted_with_its_time_and_its_bytes() {
    let meters = Meters::new(2);
    let took = Duration::from_micros(80);
    meters.end(Kind::Read, 5, &given(None, 4096, took));
    meters.end(Kind::Read, 5, &given(Some(Errno::IO), 0, took));
    let read = meters.operation(Kind::Read);
    assert_eq!((read.times.count(), read.errors, read.bytes), (2, 1, 4096));
    assert_eq!(read.times.longest(), Duration::from_micros(80));
    assert_eq!(meters.operation(Kind::Lookup).times.count(), 0);
    assert_eq!(meters.top_files()[0].node, 5);
}

#[test]
fn answers_that_something_is_not_there_are_no_errors() {
    let meters = Meters::new(1);
    for errno in [Errno::NODATA, Errno::NOSYS, Errno::NXIO, Errno::NOTTY] {
        meters.end(Kind::GetXattr, 1, &given(Some(errno), 0, Duration::ZERO));
    }
    for errno in [Errno::IO, Errno::NOMEM, Errno::UCLEAN, Errno::CANCELED] {
        meters.end(Kind::GetXattr, 1, &given(Some(errno), 0, Duration::ZERO));
    }
    let counted = meters.operation(Kind::GetXattr);
    assert_eq!((counted.times.count(), counted.errors), (8, 4));
}

#[test]
fn a_request_without_an_answer_is_not_counted() {
    let meters = Meters::new(1);
    meters.end(Kind::Read, 1, &Outcome::default());
    assert_eq!(meters.operation(Kind::Read).times.count(), 0);
}

#[test]
fn nothing_is_lost_between_listeners() {
    const EACH: usize = 5000;
    let meters = Meters::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    meters.end(Kind::Lookup, 1, &given(None, 128, Duration::ZERO));
                    meters.stored(10);
                }
            });
        }
    });
    let counted = meters.operation(Kind::Lookup);
    assert_eq!(counted.times.count(), 4 * EACH as u64);
    assert_eq!(counted.bytes, 4 * 128 * EACH as u64);
    assert_eq!(meters.stores(), (4 * EACH as u64, 40 * EACH as u64));
}
