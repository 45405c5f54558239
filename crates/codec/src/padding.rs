//! Where a compressed stream lies in its pcluster. Strips what is known to be padding.

/// How the compressed stream lies in its pcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Zeros on the left; the stream ends with the pcluster.
    ///
    /// LZ4 in images with the feature `LZ4_0PADDING`, and always the other three algorithms. No
    /// stream can start with a zero byte then.
    Left,
    /// The stream starts at byte 0, and padding of any content may follow it.
    ///
    /// Only LZ4, in images from before `LZ4_0PADDING`. The other algorithms read it as [`Left`],
    /// as Linux does.
    ///
    /// [`Left`]: Padding::Left
    Right,
}

/// The stream behind its padding; empty when there is none.
#[inline]
pub(crate) fn without_leading_zeros(input: &[u8]) -> &[u8] {
    match input.first() {
        Some(0) => skip_zeros(input),
        _ => input,
    }
}

/// Sixteen at a time: the last pcluster of a file can be nearly all padding.
fn skip_zeros(input: &[u8]) -> &[u8] {
    let (groups, _) = input.as_chunks::<16>();
    let zero_groups = groups.iter().take_while(|group| **group == [0; 16]).count();
    let rest = &input[zero_groups * 16..];
    let zeros = rest.iter().take_while(|byte| **byte == 0).count();
    &rest[zeros..]
}

#[cfg(test)]
mod tests {
    use super::without_leading_zeros;

    #[test]
    fn every_count_of_zeros_is_skipped_and_no_other_byte() {
        for zeros in 0..70 {
            for tail in [&[][..], &[1], &[7, 0, 0, 9, 0]] {
                let input = [vec![0; zeros], tail.to_vec()].concat();
                assert_eq!(without_leading_zeros(&input), tail);
            }
        }
    }
}
