//! How users say how files are compressed: algorithms as in `-z` of mkfs.erofs, and hints by which files get another
//! compression, or none, by their paths, as in its `--compress-hints`.
//!
//! Algorithms are `ALG[,LEVEL][,level=N][,dictsize=N]`, separated by colons. The first one is the default for all files.

use ferrofs_codec::{LzmaContexts, Method};
use regex::bytes::RegexSet;

use crate::import::exclude_patterns::{regex_set, translate_posix_regex};
use crate::{Algorithms, Error, ErrorKind, Result};

/// Bytes of the shortest and the longest dictionary of MicroLZMA.
const LZMA_DICTIONARIES: (u64, u64) = (4096, 8 << 20);
/// The least default dictionary; the default is four pclusters.
const LZMA_DICTIONARY_MIN: u64 = 32 << 10;
/// Bytes of the shortest and the longest window of ZSTD.
const ZSTD_WINDOWS: (u64, u64) = (1 << 10, 1 << 20);
/// Pclusters in the default window of ZSTD.
const ZSTD_WINDOW_PCLUSTERS: u64 = 8;
/// The only window that DEFLATE is written with.
const DEFLATE_WINDOW: u64 = 32 << 10;

/// The values that the defaults of parameters depend on.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmContext {
    /// Bytes of the largest pcluster.
    pub pcluster_bytes: u64,
    /// The farthest that a match of LZ4 may reach back.
    pub max_distance: u16,
}

/// The parameters after the name of an algorithm.
#[derive(Debug, Default)]
struct AlgorithmParameters {
    level: Option<u64>,
    dictionary: Option<u64>,
    contexts: LzmaContexts,
}

impl Algorithms {
    /// Reads a list such as `lz4hc,12:zstd,level=3,dictsize=64k`.
    ///
    /// ```
    /// use ferrofs_builder::{AlgorithmContext, Algorithms};
    ///
    /// let context = AlgorithmContext { pcluster_bytes: 64 << 10, ..AlgorithmContext::default() };
    /// assert_eq!(Algorithms::parse("lz4hc,12:zstd", context)?.methods.len(), 2);
    /// # Ok::<(), ferrofs_builder::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`]: an unknown name or parameter, or a value out of range.
    pub fn parse(text: &str, context: AlgorithmContext) -> Result<Self> {
        let methods = text.split(':').map(|one| parse_one(one, context));
        let methods = methods.collect::<Result<_, String>>();
        let methods = methods.map_err(|why| Error::new(ErrorKind::InvalidOptions(why)))?;
        Ok(Self { default: 0, methods })
    }
}

impl Default for AlgorithmContext {
    /// Pclusters of a block of 4 KiB, and matches of LZ4 of any distance.
    fn default() -> Self {
        Self { pcluster_bytes: 4096, max_distance: u16::MAX }
    }
}

fn parse_one(text: &str, setting: AlgorithmContext) -> Result<Method, String> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or_default();
    let mut parameters = AlgorithmParameters::default();
    for (at, word) in words.enumerate() {
        parameters.read(name, word, at == 0)?;
    }
    let max_distance = setting.max_distance;
    let method = match name {
        "lz4" => {
            parameters.refuse_level(name)?;
            Method::Lz4 { max_distance }
        }
        "lz4hc" => Method::Lz4Hc { level: parameters.level(name, 9, 0..=12)?, max_distance },
        "lzma" => {
            let level = parameters.level.unwrap_or(6);
            if level > 9 && !(100..=109).contains(&level) {
                return Err(format!("lzma has levels 0 to 9 and 100 to 109, not {level}"));
            }
            if !parameters.contexts.is_valid() {
                return Err(
                    "lzma: lc and lp are at most 4 together, and pb is at most 4".to_owned()
                );
            }
            Method::Lzma {
                level: parameters.level(name, 6, 0..=109)?,
                dictionary_bytes: parameters.lzma_dictionary(setting)?,
                contexts: parameters.contexts,
            }
        }
        "deflate" => Method::Deflate { level: parameters.level(name, 1, 0..=9)? },
        "libdeflate" => Method::Deflate { level: parameters.level(name, 1, 0..=12)? },
        "zstd" => Method::Zstd {
            level: parameters.level(name, 3, 0..=22)?.into(),
            window_log: parameters.zstd_window_log(setting)?,
        },
        _ => {
            return Err(format!(
                "no algorithm {name}: there are lz4, lz4hc, lzma, deflate, libdeflate and zstd"
            ));
        }
    };
    parameters.check_dictionary(name)?;
    Ok(method)
}

/// Reads a number with an optional suffix k, m or g.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl AlgorithmParameters {
    fn read(&mut self, name: &str, word: &str, is_first: bool) -> Result<(), String> {
        let number = |text: &str| {
            parse_number(text).ok_or_else(|| format!("{name}: {word} is not a number"))
        };
        match word.split_once('=') {
            None if word.is_empty() => {}
            None if is_first => self.level = Some(number(word)?),
            Some(("level", level)) => self.level = Some(number(level)?),
            Some(("dictsize", bytes)) => self.dictionary = Some(number(bytes)?),
            Some((context @ ("lc" | "lp" | "pb"), bits)) if name == "lzma" => {
                let bits = u8::try_from(number(bits)?).unwrap_or(u8::MAX);
                *match context {
                    "lc" => &mut self.contexts.literal_bits,
                    "lp" => &mut self.contexts.literal_position_bits,
                    _ => &mut self.contexts.position_bits,
                } = bits;
            }
            _ => return Err(format!("{name} has no parameter {word}")),
        }
        Ok(())
    }

    fn level(
        &self,
        name: &str,
        default: u8,
        range: std::ops::RangeInclusive<u8>,
    ) -> Result<u8, String> {
        let Some(level) = self.level else { return Ok(default) };
        u8::try_from(level).ok().filter(|level| range.contains(level)).ok_or_else(|| {
            format!("{name} has levels {} to {}, not {level}", range.start(), range.end())
        })
    }

    fn refuse_level(&self, name: &str) -> Result<(), String> {
        self.level.map_or(Ok(()), |level| {
            Err(format!("{name} has no level {level}: it has no levels; use lz4hc"))
        })
    }

    fn lzma_dictionary(&self, setting: AlgorithmContext) -> Result<u32, String> {
        let (min, max) = LZMA_DICTIONARIES;
        let suiting = setting.pcluster_bytes.saturating_mul(4).clamp(LZMA_DICTIONARY_MIN, max);
        let bytes = self.dictionary.unwrap_or(suiting);
        let fitting = (min..=max).contains(&bytes).then(|| u32::try_from(bytes).ok()).flatten();
        fitting.ok_or_else(|| {
            format!("lzma supports dictionaries of {min} to {max} bytes, not {bytes}")
        })
    }

    fn zstd_window_log(&self, setting: AlgorithmContext) -> Result<u8, String> {
        let (min, max) = ZSTD_WINDOWS;
        let suiting = setting.pcluster_bytes.saturating_mul(ZSTD_WINDOW_PCLUSTERS);
        let suiting = 1 << suiting.clamp(min, max).ilog2();
        let bytes = self.dictionary.unwrap_or(suiting);
        let is_window = bytes.is_power_of_two() && (min..=max).contains(&bytes);
        let log = is_window.then(|| u8::try_from(bytes.trailing_zeros()).ok()).flatten();
        log.ok_or_else(|| {
            format!(
                "zstd supports dictionaries of {min} to {max} bytes, powers of two, not {bytes}"
            )
        })
    }

    /// Only some algorithms have a dictionary.
    fn check_dictionary(&self, name: &str) -> Result<(), String> {
        match (name, self.dictionary) {
            ("lzma" | "zstd", _) | (_, None) | ("deflate", Some(DEFLATE_WINDOW)) => Ok(()),
            ("deflate", Some(bytes)) => {
                Err(format!("deflate: dictsize={bytes} is not supported; use {DEFLATE_WINDOW}"))
            }
            (_, Some(_)) => Err(format!("{name} has no dictsize")),
        }
    }
}

/// How files are compressed whose paths match an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionHint {
    /// Bytes of the largest pcluster: whole blocks, 1 MiB at most. 0: the file is not compressed.
    pub pcluster_bytes: u32,
    /// An index into [`Algorithms::methods`](crate::Algorithms::methods).
    pub method: usize,
    /// Where it stands in the file of hints, from 1 on.
    pub line: usize,
}

/// Compression hints in their order: the first that matches a path counts. The default has none.
#[derive(Clone, Debug)]
pub struct CompressionHints {
    hints: Vec<CompressionHint>,
    expressions: RegexSet,
}

impl Default for CompressionHints {
    fn default() -> Self {
        Self { hints: Vec::new(), expressions: RegexSet::empty() }
    }
}

impl CompressionHints {
    /// Reads hints in the format of `--compress-hints` of mkfs.erofs, one a line:
    ///
    /// ```text
    /// # bytes of a pcluster, or 0; the number of an algorithm, from 0 on; an expression
    /// 4096 1 \.so$
    /// 0 \.(jpg|zip)$
    /// ```
    ///
    /// Without a number it is algorithm 0. Expressions are POSIX extended ones, as
    /// [`ExcludePatterns`](crate::import::adjust::ExcludePatterns) reads them, and are looked for anywhere in a path that is
    /// relative to the root and has no slash before it; of a file with several names in the first of them, in the
    /// order of the tree. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`] with the number of the line: a number or the expression is missing or cannot be read.
    /// Whether sizes and algorithms suit an image is checked when it is built.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let (mut hints, mut patterns) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (hint, pattern) = parse_line(number, line).map_err(|why| refused(number, &why))?;
            hints.push(hint);
            patterns.push(pattern);
        }
        let expressions = regex_set(&patterns).map_err(|failure| {
            let line = hints.get(failure.index).map_or(0, |hint: &CompressionHint| hint.line);
            match failure.is_alone {
                true => refused(line, &failure.error.to_string()),
                false => refused(
                    line,
                    &format!("all expressions up to here together: {}", failure.error),
                ),
            }
        })?;
        Ok(Self { hints, expressions })
    }

    /// All of them, in their order.
    #[must_use]
    pub fn all(&self) -> &[CompressionHint] {
        &self.hints
    }

    /// The hint for the file at `path`, relative to the root and without a slash before it.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<CompressionHint> {
        let first = self.expressions.matches(path).into_iter().next()?;
        self.hints.get(first).copied()
    }
}

fn parse_line(line: usize, text: &[u8]) -> std::result::Result<(CompressionHint, String), String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
    let is_blank = |letter| letter == ' ' || letter == '\t';
    let (size, rest) = text.trim().split_once(is_blank).ok_or("an expression is missing")?;
    let pcluster_bytes = size.parse().map_err(|_| format!("{size} is not a number of bytes"))?;
    let rest = rest.trim_start();
    let (method, pattern) = match rest.split_once(is_blank) {
        None => (0, rest),
        Some((number, pattern)) => {
            let what = "is not an algorithm number, which must precede an expression with blanks";
            (number.parse().map_err(|_| format!("{number} {what}"))?, pattern.trim_start())
        }
    };
    let pattern = translate_posix_regex(pattern).map_err(|error| error.to_string())?;
    Ok((CompressionHint { pcluster_bytes, method, line }, pattern))
}

fn refused(line: usize, why: &str) -> Error {
    Error::new(ErrorKind::InvalidOptions(format!("line {line} of the hints: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(text: &str, pcluster_bytes: u64) -> Result<Vec<Method>, String> {
        Algorithms::parse(text, AlgorithmContext { pcluster_bytes, max_distance: 65535 })
            .map(|found| found.methods)
            .map_err(|error| error.to_string())
    }

    fn one(text: &str) -> Method {
        methods(text, 65536).unwrap()[0]
    }

    #[test]
    fn contexts_of_lzma_are_those_that_are_given() {
        let contexts = LzmaContexts { literal_bits: 0, literal_position_bits: 2, position_bits: 0 };
        let dictionary_bytes = 256 << 10;
        let given = one("lzma,level=9,lc=0,lp=2,pb=0");
        assert_eq!(given, Method::Lzma { level: 9, dictionary_bytes, contexts });
        let contexts = LzmaContexts::default();
        assert_eq!(one("lzma,lc=3"), Method::Lzma { level: 6, dictionary_bytes, contexts });
    }

    #[test]
    fn levels_stand_alone_or_with_their_name() {
        assert_eq!(one("lz4"), Method::Lz4 { max_distance: 65535 });
        for text in ["lz4hc", "lz4hc,9", "lz4hc,level=9", "lz4hc,"] {
            assert_eq!(one(text), Method::Lz4Hc { level: 9, max_distance: 65535 }, "{text}");
        }
        assert_eq!(
            one("lzma,109,dictsize=65536"),
            Method::Lzma { level: 109, dictionary_bytes: 65536, contexts: LzmaContexts::default() }
        );
        assert_eq!(one("zstd,level=22,dictsize=1m"), Method::Zstd { level: 22, window_log: 20 });
        assert_eq!(one("libdeflate,12"), Method::Deflate { level: 12 });
        assert_eq!(one("deflate,dictsize=32768"), Method::Deflate { level: 1 });
    }

    /// As mkfs.erofs 1.9 chooses them.
    #[test]
    fn dictionaries_suit_the_pclusters() {
        let lzma = |pcluster| methods("lzma", pcluster).unwrap()[0];
        let zstd = |pcluster| methods("zstd", pcluster).unwrap()[0];
        for (pcluster, dictionary_bytes) in [(4096, 32768), (16384, 65536), (65536, 262_144)] {
            assert_eq!(
                lzma(pcluster),
                Method::Lzma { level: 6, dictionary_bytes, contexts: LzmaContexts::default() }
            );
        }
        for (pcluster, window_log) in
            [(4096, 15), (16384, 17), (65536, 19), (1 << 20, 20), (512, 12)]
        {
            assert_eq!(zstd(pcluster), Method::Zstd { level: 3, window_log });
        }
    }

    #[test]
    fn several_algorithms_keep_their_order() {
        let found = methods("lz4hc,12:zstd:lzma,level=1", 4096).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], Method::Lz4Hc { level: 12, max_distance: 65535 });
    }

    #[test]
    fn nonsense_is_refused_with_what_there_is() {
        for (text, part) in [
            ("foo", "there are lz4"),
            ("", "there are lz4"),
            ("lz4:", "there are lz4"),
            ("lz4,3", "has no level"),
            ("lz4hc,13", "levels 0 to 12"),
            ("lzma,10", "100 to 109"),
            ("lzma,110", "100 to 109"),
            ("deflate,12", "levels 0 to 9"),
            ("zstd,23", "levels 0 to 22"),
            ("zstd,dictsize=1000", "powers of two"),
            ("zstd,dictsize=2m", "powers of two"),
            ("lzma,dictsize=100", "dictionaries of"),
            ("lzma,lc=3,lp=2", "4 together"),
            ("lzma,pb=5", "pb is at most 4"),
            ("lzma,lc=x", "not a number"),
            ("deflate,dictsize=4096", "use 32768"),
            ("lz4hc,dictsize=4096", "no dictsize"),
            ("zstd,level=x", "not a number"),
            ("zstd,3,4", "no parameter"),
            ("zstd,speed=4", "no parameter"),
        ] {
            let message = methods(text, 65536).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn the_first_hint_that_fits_a_path_counts() {
        let text =
            b"# a comment\n\n0 \\.jpg$\n65536 2 ^usr/lib/\n4096\t\t1\t usr/.*with blanks\n512 so\n";
        let hints = CompressionHints::parse(text).unwrap();
        let found = |path: &[u8]| hints.find(path).map(|hint| (hint.pcluster_bytes, hint.method));
        assert_eq!(found(b"usr/lib/a.jpg"), Some((0, 0)));
        assert_eq!(found(b"usr/lib/a.so"), Some((65536, 2)));
        assert_eq!(found(b"usr/share/with blanks.so"), Some((4096, 1)));
        assert_eq!(found(b"opt/usr/lib/a.so"), Some((512, 0)));
        assert_eq!(found(b"etc/passwd"), None);
        let lines: Vec<_> = hints.all().iter().map(|hint| hint.line).collect();
        assert_eq!(lines, [3, 4, 5, 6]);
        assert!(CompressionHints::parse(b"").unwrap().all().is_empty());
    }

    /// Each line was compiled up to the limit of all of them, before all of them were refused.
    #[test]
    fn lines_that_are_too_large_together_are_refused_by_the_first_one_too_many() {
        let line = "0 ((a{90}){90}){2}\n";
        let counts: Vec<usize> = (1..100).collect();
        let fitting = counts.partition_point(|count| {
            CompressionHints::parse(line.repeat(*count).as_bytes()).is_ok()
        });
        assert!((2..99).contains(&fitting), "{fitting}");
        let text = ["#\n", &line.repeat(fitting + 300), "0 (\n"].concat();
        let error = CompressionHints::parse(text.as_bytes()).unwrap_err().to_string();
        let wanted =
            format!("line {} of the hints: all expressions up to here together: ", fitting + 2);
        assert!(error.starts_with(&wanted), "{error}");
        let error = CompressionHints::parse(b"0 a\n0 ((a{1000}){1000}){1000}\n0 b\n").unwrap_err();
        assert!(
            error.to_string().starts_with("line 2 of the hints: Compiled regex exceeds"),
            "{error}"
        );
    }

    #[test]
    fn malformed_lines_are_refused_with_their_number() {
        for (text, part) in [
            (&b"4096\n"[..], "line 1 of the hints: an expression is missing"),
            (b"\n#\n4096 a(\n", "line 3 of the hints: "),
            (b"x a\n", "line 1 of the hints: x is not a number of bytes"),
            (b"-1 a\n", "-1 is not a number of bytes"),
            (b"4k a\n", "4k is not a number of bytes"),
            (b"99999999999 a\n", "not a number of bytes"),
            (b"4096 b c\n", "b is not an algorithm number"),
            (b"4096 -1 c\n", "-1 is not an algorithm number"),
            (b"4096 [[.a.]]\n", "line 1 of the hints: "),
            (b"4096 \xff\n", "not UTF-8"),
        ] {
            let message = CompressionHints::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{}: {message}", text.escape_ascii());
        }
    }
}
