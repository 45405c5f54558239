//! Points in time as people read them, in UTC.

use ferrofs_image::Timestamp;

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
