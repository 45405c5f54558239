//! Parses what is typed about the compression of inodes, and amounts that must fit into 32 bits. The
//! library parses algorithms.

use ferrofs_builder::{AlgorithmContext, Algorithms, BuildOptions};
use ferrofs_codec::Method;

use crate::amount::parse_bytes;

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
    let context = AlgorithmContext { pcluster_bytes, max_distance };
    let parsed = Algorithms::parse(algorithm, context).map_err(|error| error.to_string())?;
    let [method] = parsed.methods[..] else {
        return Err(format!("{algorithm}: inodes are compressed by one algorithm"));
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_compressed_as_files_are_or_in_a_way_of_their_own() {
        let of = |algorithms: Option<&str>, text| {
            let setting = AlgorithmContext { pcluster_bytes: 16384, max_distance: 16384 };
            let algorithms =
                algorithms.map(|algorithms| Algorithms::parse(algorithms, setting).unwrap());
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
}
