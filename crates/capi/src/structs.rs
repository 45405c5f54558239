//! The structures of the header. A test compares their sizes and offsets with those of the C
//! compiler.
#![allow(unsafe_code, reason = "promises that these structures may hold any bytes that C wrote")]

use std::ffi::{c_char, c_int, c_void};

use crate::error::CallError;
use crate::pointer::SizedStruct;

/// `ferrofs_progress`.
pub(crate) type ProgressFunction = unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int;
/// `ferrofs_problem`.
pub(crate) type ProblemFunction = unsafe extern "C" fn(*mut c_void, *const CallError) -> c_int;

macro_rules! sized_structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub(crate) struct $name {
                pub(crate) size: usize,
                $(pub(crate) $field: $type,)*
            }

            impl $name {
                /// A result of this size, the rest zero.
                #[allow(dead_code, reason = "only some structures are results")]
                pub(crate) fn new() -> Self {
                    // SAFETY: zeros are a value of such a structure, see below.
                    let zeros: Self = unsafe { std::mem::zeroed() };
                    Self { size: size_of::<Self>(), ..zeros }
                }
            }

            // SAFETY: repr(C); integers, pointers, arrays of bytes, and functions that may be NULL,
            // for all of which zeros are a value. The assertion below excludes padding. C can
            // write only functions or NULL where the header has a function.
            unsafe impl SizedStruct for $name {}

            const _: () = assert!(
                size_of::<$name>() == size_of::<usize>() $(+ size_of::<$type>())*,
                "the structure has padding",
            );
        )*

        /// Names, sizes and offsets of all structures, as a C program that prints what differs.
        #[cfg(test)]
        pub(crate) fn layout_checks() -> String {
            use std::fmt::Write;
            let mut text = String::new();
            $(
                let tag = c_name(stringify!($name));
                writeln!(text, "CHECK (sizeof (struct {tag}) == {});", size_of::<$name>()).unwrap();
                $(
                    writeln!(
                        text,
                        "CHECK (offsetof (struct {tag}, {}) == {});",
                        stringify!($field),
                        std::mem::offset_of!($name, $field)
                    )
                    .unwrap();
                )*
            )*
            text
        }
    };
}

sized_structs! {
    /// `struct ferrofs_io`.
    IoTable {
        ctx: *mut c_void,
        pread: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64) -> i64>,
        length: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
        close: Option<unsafe extern "C" fn(*mut c_void)>,
    }
    /// `struct ferrofs_open_options`.
    OpenOptions {
        offset: u64,
        devices: *const *const c_char,
        device_count: usize,
        memory_bytes: u64,
        flags: u32,
        reserved: u32,
    }
    /// `struct ferrofs_image_info`.
    ImageInfo {
        inodes: u64,
        blocks: u64,
        build_time: i64,
        root_nid: u64,
        block_bytes: u32,
        device_count: u32,
        uuid: [u8; 16],
        label: [u8; 24],
    }
    /// `struct ferrofs_stat`.
    Stat {
        nid: u64,
        bytes: u64,
        mtime: i64,
        mtime_nsec: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        nlink: u32,
        rdev_major: u32,
        rdev_minor: u32,
        has_xattrs: u32,
    }
    /// `struct ferrofs_dirent`.
    Dirent {
        nid: u64,
        name: *const c_char,
        name_length: usize,
        mode: u32,
        reserved: u32,
    }
    /// `struct ferrofs_check_options`.
    CheckOptions {
        path: *const c_char,
        problem: Option<ProblemFunction>,
        progress: Option<ProgressFunction>,
        ctx: *mut c_void,
        threads: usize,
        max_work: u64,
    }
    /// `struct ferrofs_check_summary`.
    CheckSummary {
        inodes: u64,
        bytes: u64,
        problems: u64,
    }
    /// `struct ferrofs_extract_options`.
    ExtractOptions {
        patterns: *const *const c_char,
        pattern_count: usize,
        problem: Option<ProblemFunction>,
        progress: Option<ProgressFunction>,
        ctx: *mut c_void,
        threads: usize,
        max_output: u64,
        flags: u32,
        reserved: u32,
        max_work: u64,
    }
    /// `struct ferrofs_extract_summary`.
    ExtractSummary {
        entries: u64,
        bytes: u64,
        failures: u64,
    }
    /// `struct ferrofs_build_options`.
    BuildOptions {
        compression: *const c_char,
        block_bytes: u32,
        pcluster_bytes: u32,
        uuid: [u8; 16],
        label: *const c_char,
        time: i64,
        progress: Option<ProgressFunction>,
        ctx: *mut c_void,
        threads: usize,
        memory_bytes: u64,
        flags: u32,
        reserved: u32,
    }
    /// `struct ferrofs_build_summary`.
    BuildSummary {
        bytes: u64,
        inodes: u64,
        content_bytes: u64,
    }
}

/// The tag of a structure in the header.
#[cfg(test)]
fn c_name(name: &str) -> String {
    let mut tag = String::from("ferrofs");
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            tag.push('_');
        }
        tag.push(letter.to_ascii_lowercase());
    }
    tag.replace("ferrofs_io_table", "ferrofs_io")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A C compiler is a requirement of the project.
    #[test]
    fn the_c_compiler_lays_structures_out_as_this_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("layout.c");
        let checks = layout_checks();
        assert!(checks.contains("CHECK (offsetof (struct ferrofs_dirent, name_length) == 24);"));
        let text = format!(
            "#include \"ferrofs.h\"\n#define JOIN(a, b) a##b\n#define NAME(line) JOIN (check_, line)\n\
             #define CHECK(what) typedef char NAME (__LINE__)[(what) ? 1 : -1]\n{checks}"
        );
        fs::write(&source, text).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let output = Command::new(compiler)
            .args(["-std=c99", "-pedantic", "-Werror", "-fsyntax-only", "-I", include])
            .arg(&source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
