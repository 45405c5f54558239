//! Numbers, amounts of bytes and times: as they are typed, and as people read them.

use std::time::Duration;

/// Reads a number of bytes with an optional suffix k, m or g.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'm') => (&text[..text.len() - 1], 20),
        Some(b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "not a number of bytes, such as 4096 or 64k".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// The least size of the cache of remote images; docs/remote.md has the reason.
const CACHE_SIZE_MIN: u64 = 32 << 20;

/// Reads a size of the cache of remote images.
pub(crate) fn parse_cache_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let is_enough = bytes >= CACHE_SIZE_MIN;
    is_enough.then_some(bytes).ok_or_else(|| "a cache needs at least 32m".to_owned())
}

/// Reads a time: a number of seconds, or, with the suffix m, h or d, a number of minutes, hours or days.
pub(crate) fn parse_age(text: &str) -> Result<u64, String> {
    let (digits, seconds) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3600),
        Some(b'd') => (&text[..text.len() - 1], 86_400),
        _ => (text, 1),
    };
    let number: u64 =
        digits.parse().map_err(|_| "not a time, such as 30d, 12h or 90m".to_owned())?;
    number.checked_mul(seconds).ok_or_else(|| "too long".to_owned())
}

/// Reads a number as erofs-utils reads it, with strtoull of C: decimal, or hexadecimal after `0x`, or octal after `0`;
/// blanks and a plus sign may come before it, and an empty text is 0.
pub(crate) fn parse_number(text: &str) -> Result<u64, String> {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.is_empty() {
        return Ok(0);
    }
    let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    // `from_str_radix` takes a sign, too.
    let is_plain = !text.contains(['+', '-']);
    read.ok().filter(|_| is_plain).ok_or_else(|| "not a number, such as 4096 or 0x1000".to_owned())
}

/// As [`parse_number`], but a number after a minus sign is subtracted from 2^64, as strtoull does it.
pub(crate) fn parse_wrapping_number(text: &str) -> Result<u64, String> {
    match text.trim_ascii_start().strip_prefix('-') {
        Some(digits) if digits.starts_with(|digit: char| digit.is_ascii_digit()) => {
            parse_number(digits).map(u64::wrapping_neg)
        }
        _ => parse_number(text),
    }
}

/// Reads a size as mkfs.erofs reads it: a number with an optional suffix k, m or g.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'm') => (&text[..text.len() - 1], 20),
        Some(b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = parse_number(digits).ok().filter(|_| !digits.is_empty());
    let number = number.ok_or_else(|| "not a size, such as 4096, 0x1000 or 64k".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Reads a size with an optional minus sign.
pub(crate) fn parse_signed_size(text: &str) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if is_negative && !digits.starts_with(|digit: char| digit.is_ascii_digit()) {
        return Err("not a size, such as 4096, 0x1000 or 64k".to_owned());
    }
    let size = i64::try_from(parse_size(digits)?).map_err(|_| "too large".to_owned())?;
    Ok(if is_negative { -size } else { size })
}

/// Reads the number at the start of a text as C's atoi does: 0 if there is none.
pub(crate) fn parse_leading_number(text: &str) -> i64 {
    let text = text.trim_start();
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    let number = digits.fold(0i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    if is_negative { -number } else { number }
}

/// Reads a level of verbosity as erofs-utils reads it: a word that is no number is 0.
pub(crate) fn parse_verbosity(text: &str) -> Result<u8, String> {
    let level = u8::try_from(parse_leading_number(text)).ok().filter(|level| *level <= 9);
    level.ok_or_else(|| "not a level from 0 to 9".to_owned())
}

/// Reads a user or group id as mkfs.erofs reads it: modulo 2^32, but for the id that stands for none.
pub(crate) fn parse_id(text: &str) -> Result<u32, String> {
    let id = parse_id_offset(text)?;
    (id != u32::MAX).then_some(id).ok_or_else(|| "not an id".to_owned())
}

/// Reads the id of an owner or a group, which is not the id that stands for none.
pub(crate) fn parse_owner(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| "not an id from 0 to 4294967294".to_owned())
}

/// Reads an offset for ids as mkfs.erofs reads it: modulo 2^32.
pub(crate) fn parse_id_offset(text: &str) -> Result<u32, String> {
    let number = parse_wrapping_number(text)? & u64::from(u32::MAX);
    u32::try_from(number).map_err(|_| "more than 32 bits".to_owned())
}

/// The largest number of threads: the most CPUs that Linux supports on x86-64.
const JOBS_MAX: usize = 8192;

/// Reads a number of threads.
pub(crate) fn parse_jobs(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=JOBS_MAX).contains(number));
    number.ok_or_else(|| format!("not a number of threads from 1 to {JOBS_MAX}"))
}

/// The longest time of busy polling, in microseconds: callers that take longer until their next request lose little by a
/// wake-up.
const BUSY_POLL_MAX: u64 = 1000;

/// Reads how long a thread polls.
pub(crate) fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    let micros = text.parse().ok().filter(|micros| *micros <= BUSY_POLL_MAX);
    let micros = micros.map(Duration::from_micros);
    micros.ok_or_else(|| format!("not a number of microseconds from 0 to {BUSY_POLL_MAX}"))
}

/// Checks a list of CPUs: numbers and ranges, with commas between them.
pub(crate) fn parse_cpus(text: &str) -> Result<String, String> {
    let is_item = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(a), Ok(b)) if a <= b)
    };
    let is_list = text.split(',').all(is_item);
    is_list.then(|| text.to_owned()).ok_or_else(|| "not a list of CPUs, such as 0-3,6".to_owned())
}

/// A number of bytes in the largest unit in which it is at least 1.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// A number with a comma between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A time in the unit that keeps it short.
pub(crate) fn human_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_nanos() {
        nanoseconds @ 0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// A time of seconds to days, in two units.
pub(crate) fn long_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_multiply() {
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        assert_eq!(parse_bytes("7"), Ok(7));
        for wrong in ["", "k", "-1", "1x", "99999999999g"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_cache_size("1g"), Ok(1 << 30));
        parse_cache_size("31m").unwrap_err();
        assert_eq!((parse_age("30d"), parse_age("90m")), (Ok(2_592_000), Ok(5400)));
        assert_eq!((parse_age("7"), parse_age("12h")), (Ok(7), Ok(43_200)));
        for wrong in ["", "d", "-1d", "1w", "99999999999999999999d", "é"] {
            parse_age(wrong).unwrap_err();
        }
    }

    #[test]
    fn sizes_of_mkfs_erofs_may_be_hexadecimal_and_have_suffixes() {
        for (text, bytes) in [("4096", 4096), ("0x1000", 4096), ("64k", 65536), ("010K", 8192)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_signed_size("-64k"), Ok(-65536));
        for wrong in ["", "k", "x", "4kb", "-1", "99999999999g", "é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_size("+4096"), parse_signed_size("")), (Ok(4096), Ok(0)));
        parse_signed_size("9223372036854775808").unwrap_err();
        parse_signed_size("-+4").unwrap_err();
    }

    #[test]
    fn words_that_are_no_numbers_are_0_for_atoi() {
        for (text, number) in [
            ("x", 0),
            ("12x", 12),
            ("", 0),
            ("-3", -3),
            (" +7", 7),
            ("99999999999999999999", i64::MAX),
        ] {
            assert_eq!(parse_leading_number(text), number, "{text}");
        }
        assert_eq!((parse_verbosity("x"), parse_verbosity("3")), (Ok(0), Ok(3)));
        assert!(parse_verbosity("10").is_err() && parse_verbosity("-1").is_err());
        assert_eq!(parse_id("0x10"), Ok(16));
        assert_eq!((parse_id("4294967301"), parse_id("-2")), (Ok(5), Ok(u32::MAX - 1)));
        assert!(parse_id("4294967295").is_err() && parse_id("-1").is_err());
        assert_eq!(parse_id_offset("-1"), Ok(u32::MAX));
    }

    #[test]
    fn numbers_may_be_hexadecimal_or_octal() {
        assert_eq!(parse_number("0x1000"), Ok(4096));
        assert_eq!(parse_number("010"), Ok(8));
        assert_eq!(parse_number("0"), Ok(0));
        assert_eq!(parse_number("4096"), Ok(4096));
        assert_eq!((parse_number(""), parse_number(" +7")), (Ok(0), Ok(7)));
        for wrong in ["0x", "08", "-1", "0x-1", "0x+1", "++1", "+ 1", "4k"] {
            assert!(parse_number(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_wrapping_number("-1"), Ok(u64::MAX));
        for wrong in ["--1", "-+1", "-", "-99999999999999999999"] {
            assert!(parse_wrapping_number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_of_cpus_are_numbers_and_ranges() {
        for right in ["0", "0-3,6", "7,1"] {
            assert_eq!(parse_cpus(right).as_deref(), Ok(right));
        }
        for wrong in ["", "a", "3-1", "1-", "0,,1", "-1"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_jobs("8"), Ok(8));
        assert!(parse_jobs("0").is_err() && parse_jobs("9999999").is_err());
    }

    #[test]
    fn times_are_short() {
        for (nanoseconds, text) in
            [(7, "7 ns"), (1_500, "1.5 µs"), (2_340_000, "2.3 ms"), (61_000_000_000, "61.00 s")]
        {
            assert_eq!(human_time(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn long_times_are_in_two_units() {
        assert_eq!(long_time(Duration::from_secs(59)), "59 s");
        assert_eq!(long_time(Duration::from_secs(3_725)), "1 h 2 min");
        assert_eq!(long_time(Duration::from_nanos(u64::MAX)), "213503 d 23 h");
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(u64::MAX), "15.9 EiB");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123), "123");
        assert_eq!(counted(1, "entry", "entries"), "1 entry");
    }
}
