//! Compiling C programs and running them.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use tempfile::TempDir;

/// What the standard library needs beside the C library, as `rustc --print native-static-libs` lists
/// it.
const SYSTEM_LIBRARIES: [&str; 7] =
    ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// Reports that a test, or a part of it, is skipped: in its output, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = env::var_os("FERROFS_SKIPPED") {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// A path of this crate.
pub(crate) fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A file of tests/data.
pub(crate) fn data(name: &str) -> PathBuf {
    here("../../tests/data").join(name)
}

/// The images that `tests/c/api.c` reads: one whose paths it knows, and one with attributes.
pub(crate) fn api_images() -> [PathBuf; 2] {
    [data("demo.erofs"), data("48bit.erofs")]
}

/// The images of tests/data, and of the folder of damaged images; without that folder, the calling test
/// is listed as skipped.
pub(crate) fn images() -> Vec<PathBuf> {
    let corrupt = env::var_os("FERROFS_CORRUPT").map(PathBuf::from);
    let corrupt = corrupt.unwrap_or_else(|| here("../../../shared/corrupt"));
    if !corrupt.is_dir() {
        skip("only sound images: no set of corrupt images (FERROFS_CORRUPT)");
    }
    let mut images = Vec::new();
    for folder in [data(""), corrupt] {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let paths = entries.map(|entry| entry.unwrap().path());
        images.extend(paths.filter(|path| path.extension() == Some(OsStr::new("erofs"))));
    }
    images.sort();
    assert!(images.len() > 50, "{}", images.len());
    images
}

/// A library as cargo has built it for the tests.
pub(crate) fn built(name: &str) -> PathBuf {
    let beside = env::current_exe().unwrap().with_file_name(name);
    if beside.exists() { beside } else { beside.parent().unwrap().with_file_name(name) }
}

/// Whether a program can be started.
pub(crate) fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn compiler(language: Language) -> OsString {
    let (variable, default) = match language {
        Language::C => ("CC", "cc"),
        Language::Cpp => ("CXX", "c++"),
    };
    env::var_os(variable).unwrap_or_else(|| default.into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Cpp,
}

/// A folder with the library as it is installed, and the programs that were compiled with it.
pub(crate) struct Installation {
    pub(crate) dir: TempDir,
}

impl Installation {
    /// The static library as cargo built it; the shared one is linked from it as the release does, with
    /// symbol versions.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(built("libferrofs_capi.a"), dir.path().join("libferrofs.a")).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Links the shared library; its path.
    pub(crate) fn link_shared(&self) -> PathBuf {
        let shared = self.path("libferrofs.so.0.1");
        let mut linking = Command::new(compiler(Language::C));
        linking.arg("-shared").arg("-o").arg(&shared);
        linking.arg("-Wl,--whole-archive").arg(self.path("libferrofs.a"));
        linking.args(["-Wl,--no-whole-archive", "-Wl,-soname,libferrofs.so.0.1"]);
        linking.args(["-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,--gc-sections"]);
        let map = format!("-Wl,--version-script={}", here("ferrofs.map").display());
        linking.arg(map).args(SYSTEM_LIBRARIES);
        succeed(&mut linking);
        std::os::unix::fs::symlink("libferrofs.so.0.1", self.path("libferrofs.so")).unwrap();
        shared
    }

    /// Compiles `source` and links it with the library: the static one, unless `flags` say otherwise.
    pub(crate) fn compile(&self, source: &Path, language: Language, flags: &[&str]) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let program = self.path(&format!("{name}-{language:?}"));
        let mut compiling = Command::new(compiler(language));
        match language {
            Language::C => compiling.arg("-std=c99"),
            Language::Cpp => compiling.args(["-std=c++11", "-x", "c++"]),
        };
        compiling
            .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
            .arg(here("include"));
        compiling.arg(source).args(["-x", "none", "-o"]).arg(&program);
        if flags.contains(&"-lferrofs") {
            compiling.arg("-L").arg(self.dir.path());
        } else {
            compiling.arg(self.path("libferrofs.a"));
        }
        compiling.args(flags).args(SYSTEM_LIBRARIES);
        succeed(&mut compiling);
        program
    }
}

/// Runs a command, which must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
