//! How much room a file takes in its image, and what that is to its size. Called by the names that
//! erofs-utils has for looking at images.

use ferrofs_image::{Image, Inode};

/// The bytes that an inode's data takes: its blocks if it is compressed, else its size.
pub(crate) fn stored_bytes(image: &Image, inode: &Inode) -> u64 {
    match inode.compressed_blocks() {
        Some(blocks) => blocks.saturating_mul(image.superblock().block_size.bytes().into()),
        None => inode.size(),
    }
}

/// A share in percent, rounded to two digits behind the point; 0 for nothing of nothing.
pub(crate) fn format_percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let hundredths = (part * 20_000 + whole).checked_div(2 * whole).unwrap_or(0);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::format_percent;

    #[test]
    fn shares_have_two_digits_behind_the_point() {
        assert_eq!(format_percent(24_576, 44_000), "55.85");
        assert_eq!(format_percent(1, 1), "100.00");
        assert_eq!(format_percent(3, 10_000), "0.03");
        assert_eq!(format_percent(2, 3), "66.67");
        assert_eq!(format_percent(0, 0), "0.00");
        assert_eq!(format_percent(u64::MAX, 1), "1844674407370955161500.00");
    }
}
