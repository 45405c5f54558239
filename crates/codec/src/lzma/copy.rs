//! Repeating bytes of the output at its end: what a match does.
#![allow(unsafe_code, reason = "copies in steps that may write more than is asked for")]

/// How far behind the end of a match [`fast`] may write.
pub(super) const SLACK: usize = 32;

/// Repeats the `length` bytes that begin `distance` bytes before `target`.
///
/// # Safety
///
/// The `distance` bytes before `target` and the `length + SLACK` bytes from it on are one piece of
/// writable memory, and `distance` is not zero.
#[inline(always)]
pub(super) unsafe fn fast(target: *mut u8, distance: usize, length: usize) {
    // SAFETY: a loop that stops at `end` writes up to 31 bytes behind it, and reads a multiple of
    // `distance` before what it writes. The loop between them writes its last step at 9 bytes behind
    // `target` at most (for a distance of 3), and leaves `to` at 21 at most.
    unsafe {
        let mut source = target.sub(distance).cast_const();
        let mut to = target;
        let end = target.add(length);
        if distance >= 32 {
            loop {
                step::<32>(source, to);
                source = source.add(32);
                to = to.add(32);
                if to >= end {
                    return;
                }
            }
        }
        // The pattern is written once more, twice more and so on until a step fits in.
        let mut period = distance;
        while period < 16 {
            step::<16>(source, to);
            to = to.add(period);
            period *= 2;
        }
        while to < end {
            step::<16>(source, to);
            source = source.add(16);
            to = to.add(16);
        }
    }
}

/// Reads a step, then writes it: a step that overlaps its source copies old bytes.
///
/// # Safety
///
/// `BYTES` bytes can be read at `source` and written at `target`.
#[inline(always)]
unsafe fn step<const BYTES: usize>(source: *const u8, target: *mut u8) {
    // SAFETY: the caller promises both; arrays of bytes have alignment 1.
    unsafe { *target.cast::<[u8; BYTES]>() = *source.cast::<[u8; BYTES]>() };
}

/// As [`fast`], but writes nothing behind the match.
///
/// # Safety
///
/// As for [`fast`], without the slack.
#[cold]
pub(super) unsafe fn exact(target: *mut u8, distance: usize, length: usize) {
    // SAFETY: the bytes read begin `distance` bytes before `target` and end before those written.
    unsafe {
        let source = target.sub(distance).cast_const();
        for at in 0..length {
            *target.add(at) = *source.add(at);
        }
    }
}
