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
    let texts: [(&str, &[u8]); 5] = [
        ("plain", b"4096 1 \\.so$\n0 \\.(jpg|zip)$\n\0usr/lib/a.so"),
        ("classes", b"[[:alpha:]_-]{1,3}x\n^[]a]+\\`\0ab_x"),
        ("comment", b"# text\n\n8192 a b\n\0a b"),
        ("nested", b"0 ((a*)*|b+)?$\n\0aaab"),
        ("malformed", b"4096\n0 [a\n0 [[.a.]]\n\0a"),
    ];
    for (kind, text) in texts {
        seed_set.put("hints", kind.to_owned(), text.to_vec());
    }
    let mut page = vec![3; 1];
    page.extend_from_slice(b"ferrofs!");
    for number in [1_u32, 40 + 200, 1, 100] {
        page.extend_from_slice(&number.to_ne_bytes());
    }
    page.extend_from_slice(b"9.8.7\0\0\0\0\0\0\0\0\0\0\0");
    page.resize(1 + 40 + 200, 7);
    seed_set.put("stats", "summary".to_owned(), page);
    layers(seed_set);
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
