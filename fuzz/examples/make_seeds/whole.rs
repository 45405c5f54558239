//! Images that the builder makes, small ones of every kind, and the inputs that say how; and inputs of the targets whose
//! structure only their body knows.

use ferrofs_fuzz::{PATCHED_IMAGES, built_image};

use crate::seed_set::SeedSet;

/// Inputs that are tried; of each kind of image the smallest is kept.
const RECIPES: u32 = 3000;
const RECIPE_BYTES_MAX: usize = 120;
const IMAGE_MAX_BYTES: usize = 4 << 10;
/// Bits of the superblock: what an image needs from a reader.
const INCOMPAT_AT: usize = 1024 + 80;
const ALGORITHMS_AT: usize = 1024 + 84;

/// Puts the seeds on the seed_set.
pub(crate) fn put(seed_set: &mut SeedSet) {
    built(seed_set);
    for number in 0..PATCHED_IMAGES {
        let kind = format!("{number:02}");
        seed_set.put("write_tar", kind.clone(), vec![number]);
        seed_set.put("extract", kind.clone(), vec![number]);
        seed_set.put("fuse", kind, requests(number));
    }
    let texts: [(&str, &[u8]); 6] = [
        ("plain", b"4096 1 \\.so$\n0 \\.(jpg|zip)$\n\0usr/lib/a.so"),
        ("classes", b"[[:alpha:]_-]{1,3}x\n^[]a]+\\`\0ab_x"),
        ("comment", b"# text\n\n8192 a b\n\0a b"),
        ("nested", b"0 ((a*)*|b+)?$\n\0aaab"),
        ("several", b"4096 ^a\n0 b\n8192 1 b$\n\0ab"),
        ("malformed", b"4096\n0 [a\n0 [[.a.]]\n\0a"),
    ];
    for (kind, text) in texts {
        seed_set.put("hints", kind.to_owned(), text.to_vec());
    }
    let texts: [(&str, &[u8]); 6] = [
        ("fs_config", b"\0vendor/bin/x 0 2000 0755 capabilities=0x1000001400\nd\\x20e 1 2 644\n\0d e"),
        ("fs_config-bad", b"\0a 0 0 999\n"),
        ("file_contexts", b"\x01# all\n/.* u:r:all:s0\n/usr(/.*)? -d usr\n/a\\.b -- <<none>>\n\0usr"),
        ("file_contexts-bad", b"\x01/a -x l\n"),
        (
            "sidecar",
            b"\x02{\"path\":\"/dir\",\"type\":\"d\",\"mode\":\"0700\",\"uid\":7,\"gid\":0,\"mtime\":-1,\
              \"nanoseconds\":5,\"xattrs\":[{\"name\":\"user.a\",\"value\":\"61\"}]}\n",
        ),
        (
            "sidecar-new",
            b"\x02{\"path\":\"/dir/l\",\"type\":\"l\",\"mode\":\"0777\",\"uid\":0,\"gid\":0,\"mtime\":0,\
              \"nanoseconds\":0,\"target\":{\"hex\":\"2e2eff\"}}\n",
        ),
    ];
    for (kind, text) in texts {
        seed_set.put("texts", kind.to_owned(), text.to_vec());
    }
    let mut page = vec![3; 1];
    page.extend_from_slice(b"ferrofs!");
    for number in [1_u32, 40 + 200, 1, 100] {
        page.extend_from_slice(&number.to_ne_bytes());
    }
    page.extend_from_slice(b"9.8.7\0\0\0\0\0\0\0\0\0\0\0");
    page.resize(1 + 40 + 200, 7);
    seed_set.put("stats", "summary".to_owned(), page);
    android(seed_set);
    documents(seed_set);
    layers(seed_set);
}

/// A sparse image of each kind of chunk, and a super image with a partition of two extents.
fn android(seed_set: &mut SeedSet) {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut sparse = vec![3];
    sparse.extend(words(&[0xed26_ff3a, 1, 28 | 12 << 16, 4, 7, 4, 0]));
    sparse.extend(words(&[0xcac1, 2, 20, 0x6463_6261, 0x6867_6665]));
    sparse.extend(words(&[0xcac2, 2, 16, 0x3433_3231]));
    sparse.extend(words(&[0xcac3, 1, 12, 0xcac4, 0, 16, 0]));
    seed_set.put("android", "sparse".to_owned(), sparse);
    let mut partitions = vec![0];
    partitions.extend(words(&[65536, 1, 4096]));
    partitions.extend([8, 7]);
    let mut header = words(&[0, 10, 128]);
    header.resize(80, 0);
    header.extend(words(&[0, 1, 52, 52, 2, 24]));
    header.resize(128, 0);
    partitions.extend(header);
    let mut name = b"a".to_vec();
    name.resize(36, 0);
    partitions.extend(name);
    partitions.extend(words(&[0, 0, 2, 0]));
    partitions.extend(words(&[1, 0, 0, 24, 0, 0]));
    partitions.extend(words(&[1, 0, 1, 0, 0, 0]));
    partitions.resize(1 + 12 + 2 + 128 + 112, 0);
    seed_set.put("android", "super".to_owned(), partitions);
}

/// What a registry, a server and another process say.
fn documents(seed_set: &mut SeedSet) {
    let digest = format!("sha256:{}", "5a".repeat(32));
    let layer = format!(
        r#"{{"mediaType":"application/vnd.erofs","digest":"{digest}","size":9,"annotations":{{"org.erofs.chunk-index.range":"4:8"}}}}"#
    );
    let index = ferrofs_remote::ChunkIndex::uniform(
        (2 << 20) + 7,
        1 << 20,
        [1, 2, 3].map(|byte| ferrofs_remote::ContentDigest::from_bytes([byte; 32])).to_vec(),
    );
    let tar_layer =
        layer.replace("application/vnd.erofs", "application/vnd.oci.image.layer.v1.tar+gzip");
    let blob = format!(
        r#"{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":5}}"#
    );
    let texts: [(&str, u8, Vec<u8>); 13] = [
        ("manifest", 0, format!(r#"{{"schemaVersion":2,"layers":[{layer}]}}"#).into_bytes()),
        (
            "image-index",
            0,
            format!(
                r#"{{"manifests":[{{"digest":"{digest}","size":5,"platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}}]}}"#
            )
            .into_bytes(),
        ),
        ("chunk-index", 1, index.expect("three chunks").to_bytes()),
        ("http", 2, b"https://example.org:8080/a%20b.erofs?token=1#index=sha256:00".to_vec()),
        ("oci", 2, b"oci://localhost:5000/a/b:tag#layer=1&platform=linux/arm64".to_vec()),
        ("layout", 2, b"oci-layout:dir:tag".to_vec()),
        ("bucket", 2, b"s3://bucket/key/of/it".to_vec()),
        (
            "fetch",
            3,
            br#"{"type":"fetch","id":7,"object":1,"chunks":[[0,2],[3,9]],"urgency":"demand","past_caches":false}"#
                .to_vec(),
        ),
        ("fetched", 4, br#"{"type":"fetched","id":7}"#.to_vec()),
        ("container", 6, format!(r#"{{"config":{blob},"layers":[{tar_layer}]}}"#).into_bytes()),
        ("config", 6, format!(r#"{{"rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}"#).into_bytes()),
        (
            "layout-index",
            6,
            format!(
                r#"{{"manifests":[{{"digest":"{digest}","size":5,"annotations":{{"org.opencontainers.image.ref.name":"tag"}}}}]}}"#
            )
            .into_bytes(),
        ),
        ("cached", 5, [&1_u32.to_le_bytes()[..], &[80, 0, 1, 0, 0x80, 6]].concat()),
    ];
    for (kind, number, text) in texts {
        seed_set.put("remote", kind.to_owned(), [&[number][..], &text].concat());
    }
}

/// Numbers that are always the same.
fn random(state: &mut u32) -> u8 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    state.to_be_bytes()[0]
}

fn built(seed_set: &mut SeedSet) {
    let mut state = 1;
    for number in 0..RECIPES {
        let bytes = RECIPE_BYTES_MAX / (1 + usize::try_from(number).unwrap_or(0) % 3);
        let mut recipe: Vec<u8> = (0..bytes).map(|_| random(&mut state)).collect();
        recipe[4] &= 3;
        let Some(image) = built_image(&recipe) else { continue };
        let kind = format!("{:02x}-{}", image[INCOMPAT_AT], image[ALGORITHMS_AT]);
        if image.len() <= IMAGE_MAX_BYTES {
            seed_set.put("check", kind.clone(), image);
        }
        seed_set.put("build_image", kind, recipe);
    }
}

/// Lists the root and everything in it, reads, and asks for attributes and statistics.
fn requests(number: u8) -> Vec<u8> {
    const STEPS: [[u8; 5]; 12] = [
        [13, 0, 0, 0, 0xF0],
        [5, 4, 0, 0, 20],
        [5, 5, 0, 8, 20],
        [3, 6, 0, 0, 0],
        [4, 7, 0, 0, 0],
        [0, 0, 4, 0, 0],
        [0, 0, 5, 0, 0],
        [13, 5, 0, 0, 0xF0],
        [10, 4, 0, 0, 0xF0],
        [8, 4, 3, 0, 0xF0],
        [15, 4, 0, 0, 3],
        [12, 0, 0, 0, 0x20],
    ];
    [&[1, 0, number][..], STEPS.as_flattened()].concat()
}

fn layers(seed_set: &mut SeedSet) {
    let scripts: [(&str, &[u8]); 4] = [
        ("whiteout", &[0, 1, 1, 7, 1, 1, 5, 1, 1]),
        ("opaque", &[0, 7, 1, 7, 0, 0, 6, 1, 0, 0, 8, 1]),
        ("replaced", &[3, 1, 0, 0, 7, 1, 7, 0, 0, 0, 1, 0, 7, 0, 0, 3, 1, 0]),
        ("symlink", &[4, 2, 0, 7, 0, 0, 0, 2, 1, 5, 3, 0]),
    ];
    for (kind, script) in scripts {
        seed_set.put("layers", kind.to_owned(), script.to_vec());
    }
}
