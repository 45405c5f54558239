//! A cheap test for bytes that no encoder makes shorter. It owns no state, and errs towards encoding.

/// Fewer bytes than this tell nothing.
const SAMPLE_BYTES_MIN: usize = 2048;
/// More bytes than this tell nothing new.
const SAMPLE_BYTES_MAX: usize = 16 << 10;
/// The table in which repeats of four bytes are looked for.
const TABLE_BITS: u32 = 12;

/// Whether the bytes look as if they were random: all values equally frequent, and no run of four
/// bytes seen twice near each other. What an encoder of entropy or of matches would gain on such
/// bytes is less than a block in a hundred.
pub(crate) fn looks_random(bytes: &[u8]) -> bool {
    let Some(front) = bytes.get(..SAMPLE_BYTES_MIN) else { return false };
    // Most files fail on their first bytes.
    is_even(front) && {
        let sample = bytes.get(..SAMPLE_BYTES_MAX).unwrap_or(bytes);
        is_even(sample) && !has_repeats(bytes)
    }
}

/// Whether the values of the bytes are as evenly spread as those of random bytes.
///
/// The sum of the squares of the counts is n + n²/256 for random bytes, with a deviation of about
/// n·√(2/256); an order-0 encoder gains something only where it is clearly more.
fn is_even(bytes: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    for &byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
    }
    let squares: u64 = counts.iter().map(|&count| u64::from(count) * u64::from(count)).sum();
    let count = bytes.len() as u64;
    let expected = count + count * count / 256;
    squares < expected + count / 2
}

/// Whether more runs of four bytes come twice than chance explains.
fn has_repeats(bytes: &[u8]) -> bool {
    let mut seen = vec![0_u32; 1 << TABLE_BITS];
    let mut repeats = 0_usize;
    for run in bytes.windows(4) {
        let Ok(run) = <[u8; 4]>::try_from(run) else { continue };
        let value = u32::from_le_bytes(run);
        let slot = value.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS);
        if let Some(place) = seen.get_mut(slot as usize) {
            repeats += usize::from(*place == value);
            *place = value;
        }
    }
    // A match of four bytes gains about one; one in 512 bytes is less than the loss elsewhere.
    repeats > bytes.len() / 512 + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that nothing compresses.
    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let step = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn noise_looks_random_and_text_does_not() {
        assert!(looks_random(&noise(65536)));
        let text = b"the bytes of a text have few values and come again ".repeat(1000);
        assert!(!looks_random(&text));
    }

    #[test]
    fn noise_that_comes_twice_does_not_look_random() {
        let mut twice = noise(2048);
        twice.extend_from_within(..);
        assert!(!looks_random(&twice));
    }

    #[test]
    fn few_bytes_never_look_random() {
        assert!(!looks_random(&noise(1000)));
    }
}
