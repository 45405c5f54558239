//! Parses the algorithms of `-z` of mkfs.erofs and of `--compress`:
//! `ALG[,LEVEL][,level=N][,dictsize=N]`, separated by colons. The first one is the default for all
//! files.

use ferrofs_builder::{Algorithms, BuildOptions};
use ferrofs_codec::Method;

use crate::amount::parse_bytes;

/// Bytes of the shortest and the longest dictionary of MicroLZMA.
const LZMA_DICTIONARIES: (u64, u64) = (4096, 8 << 20);
/// The least default dictionary; the default is four pclusters.
const LZMA_DICTIONARY_LEAST: u64 = 32 << 10;
/// Bytes of the shortest and the longest window of ZSTD.
const ZSTD_WINDOWS: (u64, u64) = (1 << 10, 1 << 20);
/// Pclusters in the default window of ZSTD.
const ZSTD_WINDOW_PCLUSTERS: u64 = 8;
/// The only window that DEFLATE is written with.
const DEFLATE_WINDOW: u64 = 32 << 10;

/// The values that the defaults of parameters depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlgorithmContext {
    /// Bytes of the largest pcluster.
    pub(crate) pcluster_bytes: u64,
    /// The farthest that a match of LZ4 may reach back.
    pub(crate) max_distance: u16,
}

/// The parameters after the name of an algorithm.
#[derive(Debug, Default)]
struct AlgorithmParameters {
    level: Option<u64>,
    dictionary: Option<u64>,
}

/// Reads a list of algorithms.
pub(crate) fn parse(text: &str, setting: AlgorithmContext) -> Result<Algorithms, String> {
    let methods = text.split(':').map(|one| parse_one(one, setting));
    Ok(Algorithms { default: 0, methods: methods.collect::<Result<_, _>>()? })
}

/// Reads `BYTES[:ALG]`, the compression of inodes in a metabox, into options that already have the
/// algorithms of files. ALG is one of them or a further one; the default is that of all files.
pub(crate) fn take_metabox(text: &str, options: &mut BuildOptions) -> Result<(), String> {
    let (bytes, algorithm) = match text.split_once(':') {
        Some((bytes, algorithm)) => (bytes, Some(algorithm)),
        None => (text, None),
    };
    let bytes = parse_bytes(bytes).map_err(|why| format!("{bytes}: {why}"))?;
    options.metabox_pcluster_bytes = Some(parse_u32("pclusters of inodes", bytes)?);
    let Some(algorithm) = algorithm else { return Ok(()) };
    let pcluster_bytes = options.pcluster_bytes.into();
    let Some(algorithms) = &mut options.algorithms else {
        return Err(format!("{algorithm}: nothing is compressed without -z"));
    };
    let methods = &mut algorithms.methods;
    let max_distance = methods.iter().find_map(|method| match *method {
        Method::Lz4 { max_distance } | Method::Lz4Hc { max_distance, .. } => Some(max_distance),
        _ => None,
    });
    let max_distance = max_distance.unwrap_or(u16::MAX);
    let method = parse_one(algorithm, AlgorithmContext { pcluster_bytes, max_distance })?;
    let known = methods.iter().position(|known| *known == method);
    options.metabox_method = Some(known.unwrap_or(methods.len()));
    if known.is_none() {
        methods.push(method);
    }
    Ok(())
}

/// A number of bytes that must fit into 32 bits.
pub(crate) fn parse_u32(what: &str, bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| format!("{what}: {bytes} bytes are too many"))
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
            Method::Lzma {
                level: parameters.level(name, 6, 0..=109)?,
                dictionary_bytes: parameters.lzma_dictionary(setting)?,
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

impl AlgorithmParameters {
    fn read(&mut self, name: &str, word: &str, is_first: bool) -> Result<(), String> {
        let number = |text: &str| {
            let suffix = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let read = if suffix.is_empty() { text.parse().ok() } else { None };
            read.or_else(|| parse_bytes(text).ok())
                .ok_or_else(|| format!("{name}: {word} is not a number"))
        };
        match word.split_once('=') {
            None if word.is_empty() => {}
            None if is_first => self.level = Some(number(word)?),
            Some(("level", level)) => self.level = Some(number(level)?),
            Some(("dictsize", bytes)) => self.dictionary = Some(number(bytes)?),
            // The parameters of every stream; others are not supported.
            Some(("lc", "3") | ("lp", "0") | ("pb", "2")) if name == "lzma" => {}
            Some(("lc" | "lp" | "pb", _)) if name == "lzma" => {
                return Err(format!("lzma: {word} is not supported; use lc=3, lp=0 and pb=2"));
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
        let (least, most) = LZMA_DICTIONARIES;
        let suiting = setting.pcluster_bytes.saturating_mul(4).clamp(LZMA_DICTIONARY_LEAST, most);
        let bytes = self.dictionary.unwrap_or(suiting);
        let fitting = (least..=most).contains(&bytes).then(|| u32::try_from(bytes).ok()).flatten();
        fitting.ok_or_else(|| {
            format!("lzma supports dictionaries of {least} to {most} bytes, not {bytes}")
        })
    }

    fn zstd_window_log(&self, setting: AlgorithmContext) -> Result<u8, String> {
        let (least, most) = ZSTD_WINDOWS;
        let suiting = setting.pcluster_bytes.saturating_mul(ZSTD_WINDOW_PCLUSTERS);
        let suiting = 1 << suiting.clamp(least, most).ilog2();
        let bytes = self.dictionary.unwrap_or(suiting);
        let is_window = bytes.is_power_of_two() && (least..=most).contains(&bytes);
        let log = is_window.then(|| u8::try_from(bytes.trailing_zeros()).ok()).flatten();
        log.ok_or_else(|| {
            format!(
                "zstd supports dictionaries of {least} to {most} bytes, powers of two, not {bytes}"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(text: &str, pcluster_bytes: u64) -> Result<Vec<Method>, String> {
        parse(text, AlgorithmContext { pcluster_bytes, max_distance: 65535 })
            .map(|found| found.methods)
    }

    fn one(text: &str) -> Method {
        methods(text, 65536).unwrap()[0]
    }

    #[test]
    fn levels_stand_alone_or_with_their_name() {
        assert_eq!(one("lz4"), Method::Lz4 { max_distance: 65535 });
        for text in ["lz4hc", "lz4hc,9", "lz4hc,level=9", "lz4hc,"] {
            assert_eq!(one(text), Method::Lz4Hc { level: 9, max_distance: 65535 }, "{text}");
        }
        assert_eq!(
            one("lzma,109,dictsize=65536"),
            Method::Lzma { level: 109, dictionary_bytes: 65536 }
        );
        assert_eq!(one("zstd,level=22,dictsize=1m"), Method::Zstd { level: 22, window_log: 20 });
        assert_eq!(one("libdeflate,12"), Method::Deflate { level: 12 });
        assert_eq!(one("deflate,dictsize=32768"), Method::Deflate { level: 1 });
    }

    #[test]
    fn inodes_are_compressed_as_files_are_or_in_a_way_of_their_own() {
        let of = |algorithms: Option<&str>, text| {
            let setting = AlgorithmContext { pcluster_bytes: 16384, max_distance: 16384 };
            let algorithms = algorithms.map(|algorithms| parse(algorithms, setting).unwrap());
            let mut options = BuildOptions::default().algorithms(algorithms).pcluster_bytes(16384);
            take_metabox(text, &mut options).map(|()| {
                let methods = options.algorithms.map_or(0, |algorithms| algorithms.methods.len());
                (options.metabox_pcluster_bytes.unwrap(), options.metabox_method, methods)
            })
        };
        assert_eq!(of(Some("lz4"), "8k").unwrap(), (8192, None, 1));
        assert_eq!(of(Some("lz4:lzma"), "4096:lzma").unwrap(), (4096, Some(1), 2));
        assert_eq!(of(Some("lz4"), "4096:lz4").unwrap(), (4096, Some(0), 1));
        assert_eq!(of(Some("lz4"), "4096:zstd,level=9").unwrap(), (4096, Some(1), 2));
        assert_eq!(of(None, "4096").unwrap(), (4096, None, 0));
        assert!(of(None, "4096:lz4").unwrap_err().contains("without -z"));
        assert!(of(Some("lz4"), "x:lz4").unwrap_err().contains("x: not a number"));
        assert!(of(Some("lz4"), "4096:lz5").unwrap_err().contains("no algorithm lz5"));
    }

    /// As mkfs.erofs 1.9 chooses them.
    #[test]
    fn dictionaries_suit_the_pclusters() {
        let lzma = |pcluster| methods("lzma", pcluster).unwrap()[0];
        let zstd = |pcluster| methods("zstd", pcluster).unwrap()[0];
        for (pcluster, dictionary_bytes) in [(4096, 32768), (16384, 65536), (65536, 262_144)] {
            assert_eq!(lzma(pcluster), Method::Lzma { level: 6, dictionary_bytes });
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
            ("lzma,lc=0", "lc=3"),
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
}
