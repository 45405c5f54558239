//! An inode in words and in JSON, for `ls` and `stat`.

use anyhow::anyhow;
use ferrofs_image::{FileType, Image, Inode, Nid, Timestamp, WalkEvent};
use serde::Serialize;

use crate::output::{JsonBytes, escape, hex};

/// A timestamp in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonTime {
    seconds: i64,
    nanoseconds: u32,
}

impl From<Timestamp> for JsonTime {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

/// What `ls` and `stat` say about an inode in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonInode {
    pub(crate) path: JsonBytes,
    #[serde(rename = "type")]
    file_type: &'static str,
    /// Permissions as octal digits.
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: JsonTime,
    nid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<JsonBytes>,
}

impl JsonInode {
    pub(crate) fn new(path: &[u8], inode: &Inode, target: Option<Vec<u8>>) -> Self {
        Self {
            path: JsonBytes::from(path),
            file_type: inode.file_type().name(),
            mode: format!("{:04o}", inode.mode() & 0o7777),
            nlink: inode.nlink(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: inode.size(),
            mtime: inode.mtime().into(),
            nid: inode.nid().raw(),
            device: inode.device(),
            target: target.map(JsonBytes),
        }
    }
}

/// Type and permissions as `ls -l` shows them.
pub(crate) fn mode_text(inode: &Inode) -> String {
    let mode = inode.mode();
    let kind = match inode.file_type() {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    let mut text = String::from(kind);
    for (class, (bit, letter)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The permissions that have a bit of their own in `mode`, as letters.
pub(crate) fn permissions_text(mode: u16) -> String {
    let letters = b"rwxrwxrwx".iter().enumerate();
    letters
        .map(|(at, letter)| if mode >> (8 - at) & 1 == 1 { char::from(*letter) } else { '-' })
        .collect()
}

const SECONDS_PER_DAY: i64 = 86_400;

/// A date and a time to the second.
pub(crate) fn format_seconds(time: Timestamp) -> String {
    let days = time.seconds.div_euclid(SECONDS_PER_DAY);
    let second = time.seconds.rem_euclid(SECONDS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

/// A date and a time to the nanosecond, with its zone.
pub(crate) fn format_exact(time: Timestamp) -> String {
    format!("{}.{:09} UTC", format_seconds(time), time.nanoseconds)
}

/// A date and a time as the C library's `ctime` has them.
pub(crate) fn format_ctime(time: Timestamp) -> String {
    const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = time.seconds.div_euclid(SECONDS_PER_DAY);
    let second = time.seconds.rem_euclid(SECONDS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let named = |names: &[&'static str], at: i64| {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or_default()
    };
    // The first day of all was a Thursday.
    let weekday = named(&WEEKDAYS, (days + 4).rem_euclid(7));
    let month = named(&MONTHS, month - 1);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{weekday} {month} {day:>2} {hour:02}:{minute:02}:{:02} {year}", second % 60)
}

/// Year, month and day of a day after 1970-01-01, in the Gregorian calendar without an end.
///
/// Years are counted from March, in eras of 400 years, so that the leap day is the last of its
/// year. All numbers an `i64` of seconds can lead to are far from overflowing here.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097;
    // 0000-03-01 is 719,468 days before 1970-01-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(DAYS_PER_ERA), shifted.rem_euclid(DAYS_PER_ERA));
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The bytes that an inode's data takes: its blocks if it is compressed, else its size.
pub(crate) fn stored_bytes(image: &Image, inode: &Inode) -> u64 {
    match inode.compressed_blocks() {
        Some(blocks) => blocks.saturating_mul(image.superblock().block_size.bytes().into()),
        None => inode.size(),
    }
}

/// A share in percent with two digits behind the point, rounded as `printf` rounds it; 0 of nothing.
pub(crate) fn format_percent(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    format!("{percent:.2}")
}

/// An inode and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct FoundInode {
    /// Its first name; none for an inode that no directory names, such as the packed one.
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) inode: Inode,
}

impl FoundInode {
    /// Looks up what `path` names.
    pub(crate) fn at(image: &Image, path: &[u8]) -> anyhow::Result<Self> {
        let found = image.resolve(path).map_err(|error| anyhow!("{}: {error}", escape(path)))?;
        let inode = found.ok_or_else(|| anyhow!("{}: no such path in the image", escape(path)))?;
        Ok(Self { path: Some(path.to_vec()), inode })
    }

    /// Reads the inode `number` and looks through the image for its name.
    pub(crate) fn numbered(image: &Image, number: u64) -> anyhow::Result<Self> {
        let nid = Nid::new(number);
        let inode = image.inode(nid).map_err(|error| anyhow!("{error}"))?;
        let walk = image.walk(b"/").map_err(|error| anyhow!("/: {error}"))?;
        let path = walk.into_iter().find_map(|visit| match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) if node.inode.nid() == nid => {
                Some(node.path)
            }
            _ => None,
        });
        Ok(Self { path, inode })
    }
}

/// When the image was built.
pub(crate) fn build_time(image: &Image) -> Timestamp {
    let sb = image.superblock();
    let seconds = sb.epoch.saturating_add(sb.build_time.into());
    Timestamp { seconds, nanoseconds: sb.fixed_nsec }
}

/// A UUID in its usual groups.
pub(crate) fn format_uuid(uuid: [u8; 16]) -> String {
    let digits = hex(&uuid);
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    parts.map(|(from, to)| &digits[from..to]).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_read_right() {
        let text = |seconds| format_seconds(Timestamp { seconds, nanoseconds: 0 });
        assert_eq!(text(0), "1970-01-01 00:00:00");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(text(1_700_000_061), "2023-11-14 22:14:21");
        assert_eq!(text(-1), "1969-12-31 23:59:59");
        assert_eq!(text(-2_147_483_648), "1901-12-13 20:45:52");
        assert_eq!(text(8_589_934_592), "2242-03-16 12:56:32");
        assert_eq!(
            format_exact(Timestamp { seconds: 1, nanoseconds: 5 }),
            "1970-01-01 00:00:01.000000005 UTC"
        );
    }

    #[test]
    fn moments_in_words_are_those_of_the_c_library() {
        let text = |seconds| format_ctime(Timestamp { seconds, nanoseconds: 0 });
        assert_eq!(text(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(text(1_710_000_000), "Sat Mar  9 16:00:00 2024");
        assert_eq!(text(-1), "Wed Dec 31 23:59:59 1969");
    }

    #[test]
    fn the_ends_of_time_do_not_overflow() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(!format_seconds(Timestamp { seconds, nanoseconds: 0 }).is_empty());
        }
    }
}

#[cfg(test)]
mod stored_size_tests {
    use super::format_percent;

    #[test]
    fn shares_have_two_digits_behind_the_point() {
        assert_eq!(format_percent(24_576, 44_000), "55.85");
        assert_eq!(format_percent(1, 1), "100.00");
        assert_eq!(format_percent(3, 10_000), "0.03");
        assert_eq!(format_percent(2, 3), "66.67");
        assert_eq!(format_percent(0, 0), "0.00");
        // Half of a digit becomes an even one, if a double is exactly that half.
        assert_eq!(format_percent(1, 800), "0.12");
        assert_eq!(format_percent(3, 800), "0.38");
        assert_eq!(format_percent(1, 20_000), "0.01");
        assert!(format_percent(u64::MAX, 1).starts_with("18446744073709551"));
    }
}
