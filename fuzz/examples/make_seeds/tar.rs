//! Small archives with everything that an importer knows, and compressed ones from `tests/data/tar`.

use std::error::Error;
use std::fs;
use std::path::Path;

use crate::seed_set::SeedSet;

const BLOCK_BYTES: usize = 512;

/// Switches of the target: mended checksums, whiteouts, several archives.
const MENDED: u8 = 0x20;
const TO_OVERLAY: u8 = 0x08;
const APPLIED: u8 = 0x0C;
const CONCATENATED: u8 = 0x10;

/// An archive in the making.
#[derive(Debug, Default)]
struct Archive(Vec<u8>);

impl Archive {
    /// An entry of this type; `changes` are written into its header.
    fn entry(mut self, kind: u8, path: &str, body: &[u8], changes: &[(usize, &[u8])]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        let size = format!("{:011o}\0", body.len());
        let fields: [(usize, &[u8]); 7] = [
            (0, path.as_bytes()),
            (100, b"0000644\0"),
            (108, b"0001750\0"),
            (116, b"0001750\0"),
            (124, size.as_bytes()),
            (136, b"14000000000\0"),
            (257, b"ustar\x0000"),
        ];
        for (at, bytes) in fields.iter().chain(changes) {
            block[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        block[156] = kind;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&block);
        self.raw(body)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK_BYTES), 0);
        self
    }

    fn records(self, kind: u8, records: &[(&str, &str)]) -> Self {
        let mut body = String::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let digits = if rest + 2 < 100 { 2 } else { 3 };
            body += &format!("{} {key}={value}\n", rest + digits);
        }
        self.entry(kind, "records", body.as_bytes(), &[])
    }

    fn end(self) -> Vec<u8> {
        self.raw(&[0; 2 * BLOCK_BYTES]).0
    }
}

/// Puts the seeds on the seed_set.
pub(crate) fn put(made: &Path, seed_set: &mut SeedSet) -> Result<(), Box<dyn Error>> {
    let mut keep = |name: &str, switches: u8, archive: Vec<u8>| {
        seed_set.put("tar", name.to_owned(), [vec![switches], archive].concat());
    };
    keep("kinds", MENDED, kinds());
    keep("links", MENDED, links());
    keep("gnu", MENDED, gnu());
    keep("pax", MENDED, pax());
    keep("sparse-old", MENDED, sparse_old());
    keep("sparse-records", MENDED, sparse_records());
    keep("sparse-map", MENDED, sparse_map());
    keep("whiteouts", MENDED | TO_OVERLAY, whiteouts());
    keep("layers", MENDED | APPLIED | 1, [whiteouts(), whiteouts()].concat());
    keep("two", MENDED | CONCATENATED, [links(), kinds()].concat());
    for name in ["pax.tar.gz", "pax-two.tar.gzip", "pax.tar.xz", "pax-two.tar.zstd"] {
        keep(name, 0, fs::read(made.join(name))?);
    }
    Ok(())
}

fn kinds() -> Vec<u8> {
    Archive::default()
        .entry(b'5', "./", b"", &[])
        .entry(b'0', "dir/file", b"hello", &[])
        .entry(b'3', "character", b"", &[(329, b"0000001\0"), (337, b"0000003\0")])
        .entry(b'4', "block", b"", &[(329, b"0000010\0"), (337, b"0000021\0")])
        .entry(b'6', "fifo", b"", &[])
        .entry(0, "old/", b"", &[(257, &[0; 8])])
        .entry(b'7', "name", b"x", &[(345, b"prefix")])
        .end()
}

fn links() -> Vec<u8> {
    Archive::default()
        .entry(b'0', "a/b", b"one", &[])
        .entry(b'1', "c", b"", &[(157, b"a/b")])
        .entry(b'2', "d", b"", &[(157, b"a")])
        .entry(b'0', "a/b", b"two", &[])
        .entry(b'5', "a", b"", &[])
        .end()
}

fn gnu() -> Vec<u8> {
    let gnu: (usize, &[u8]) = (257, b"ustar  \0");
    Archive::default()
        .entry(b'L', "././@LongLink", &[b'n'; 150], &[gnu])
        .entry(b'K', "././@LongLink", &[b't'; 150], &[gnu])
        .entry(b'2', "n", b"", &[gnu, (108, b"\x80\0\0\0\0\x12\xD6\x87"), (136, &[0xFF; 12])])
        .entry(b'D', "dumped/", b"Yfile\0\0", &[gnu])
        .entry(b'V', "label", b"", &[gnu])
        .end()
}

fn pax() -> Vec<u8> {
    Archive::default()
        .records(b'g', &[("uid", "70000"), ("comment", "x")])
        .records(
            b'x',
            &[
                ("path", "some/where"),
                ("mtime", "-1.25"),
                ("SCHILY.xattr.user.x", "1"),
                ("LIBARCHIVE.xattr.user.y", "AAE="),
                ("SCHILY.acl.access", "user::rw-,user:7:r--,group::r--,mask::r--,other::---"),
            ],
        )
        .entry(b'0', "short", b"contents", &[])
        .end()
}

fn sparse_old() -> Vec<u8> {
    let part = b"00000000002\x0000000000003\0";
    let mut more = [0; BLOCK_BYTES];
    more[..24].copy_from_slice(b"00000001000\x0000000000002\0");
    let mut body = more.to_vec();
    body.extend_from_slice(b"abcde");
    let header: [(usize, &[u8]); 5] = [
        (124, b"00000000005\0"),
        (257, b"ustar  \0"),
        (386, part),
        (482, b"\x01"),
        (483, b"00000010000\0"),
    ];
    Archive::default().entry(b'S', "sparse", &body, &header).end()
}

fn sparse_records() -> Vec<u8> {
    Archive::default()
        .records(
            b'x',
            &[
                ("GNU.sparse.size", "4096"),
                ("GNU.sparse.numblocks", "2"),
                ("GNU.sparse.offset", "2"),
                ("GNU.sparse.numbytes", "3"),
                ("GNU.sparse.offset", "512"),
                ("GNU.sparse.numbytes", "2"),
            ],
        )
        .entry(b'0', "zero", b"abcde", &[])
        .records(b'x', &[("GNU.sparse.size", "4096"), ("GNU.sparse.map", "2,3,512,2")])
        .entry(b'0', "one", b"abcde", &[])
        .end()
}

fn sparse_map() -> Vec<u8> {
    let mut body = b"2\n2\n3\n512\n2\n".to_vec();
    body.resize(BLOCK_BYTES, 0);
    body.extend_from_slice(b"abcde");
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.realsize", "4096"),
        ("GNU.sparse.name", "name"),
    ];
    Archive::default().records(b'x', &records).entry(b'0', "other", &body, &[]).end()
}

fn whiteouts() -> Vec<u8> {
    Archive::default()
        .entry(b'0', "a/.wh.b", b"", &[])
        .entry(b'0', "c/.wh..wh..opq", b"", &[])
        .entry(b'0', "a/b/c", b"x", &[])
        .entry(b'0', ".wh..wh.plnk", b"", &[])
        .end()
}
