//! Makes small container images for tests: layers and their documents.

use sha2::{Digest, Sha256};

/// A tar archive with these files; a path that ends with `/` is a directory.
pub(crate) fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, content) in files {
        archive.extend(header(path, content.len()));
        archive.extend(content.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn header(path: &str, size: usize) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000755\0");
    put(108, "0001000\0");
    put(116, "0001000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000001\0");
    put(148, "        ");
    put(156, if path.ends_with('/') { "5" } else { "0" });
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// The same bytes as a gzip stream without compression.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let count = bytes.chunks(0xffff).count();
    for (number, chunk) in bytes.chunks(0xffff).enumerate() {
        let length = u16::try_from(chunk.len()).unwrap();
        stream.push(u8::from(number + 1 == count));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(chunk);
    }
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)));
    }
    stream.extend((!crc).to_le_bytes());
    stream.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
    stream
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layer as its image describes it. Tests change a part of it.
#[derive(Clone)]
pub(crate) struct TestLayer {
    pub(crate) media_type: String,
    pub(crate) blob: Vec<u8>,
    pub(crate) digest: String,
    pub(crate) size: usize,
    pub(crate) diff_id: String,
}

impl TestLayer {
    pub(crate) fn plain(archive: Vec<u8>) -> Self {
        let digest = hex(&archive);
        Self {
            media_type: "application/vnd.oci.image.layer.v1.tar".to_owned(),
            size: archive.len(),
            diff_id: digest.clone(),
            digest,
            blob: archive,
        }
    }

    pub(crate) fn gzipped(archive: &[u8]) -> Self {
        let blob = gzip(archive);
        Self {
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
            size: blob.len(),
            diff_id: hex(archive),
            digest: hex(&blob),
            blob,
        }
    }
}

/// Two layers, of which the upper one deletes.
pub(crate) fn two_layers() -> Vec<TestLayer> {
    let lower =
        [("kept", "below"), ("gone", "x"), ("dir/", ""), ("dir/low", "x"), ("replaced", "old")];
    let upper = [
        (".wh.gone", ""),
        ("dir/", ""),
        ("dir/.wh..wh..opq", ""),
        ("dir/new", "above"),
        ("replaced", "new"),
    ];
    vec![TestLayer::gzipped(&tar(&lower)), TestLayer::plain(tar(&upper))]
}

/// What is there of [`two_layers`].
pub(crate) const MERGED: &str = "/\n/dir\n/dir/new\n/kept\n/replaced\n";

/// The configuration and the manifest of an image.
pub(crate) fn documents(layers: &[TestLayer]) -> (String, String) {
    let ids: Vec<_> = layers.iter().map(|one| format!(r#""sha256:{}""#, one.diff_id)).collect();
    let config = format!(r#"{{"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#, ids.join(","));
    let descriptor = |media_type: &str, digest: &str, size: usize| {
        format!(r#"{{"mediaType":"{media_type}","digest":"sha256:{digest}","size":{size}}}"#)
    };
    let listed: Vec<_> =
        layers.iter().map(|one| descriptor(&one.media_type, &one.digest, one.size)).collect();
    let of_config = descriptor("application/x", &hex(config.as_bytes()), config.len());
    let manifest =
        format!(r#"{{"schemaVersion":2,"config":{of_config},"layers":[{}]}}"#, listed.join(","));
    (config, manifest)
}
