//! The public items of each library crate, kept as text in `docs/api`, so that a change of the surface
//! is seen in review. It asks rustdoc for its JSON and lets the `public-api` crate read it; nothing of
//! the project is run. Called by `main`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// The crates that others can depend on.
const CRATES: [&str; 9] = [
    "ferrofs-builder",
    "ferrofs-codec",
    "ferrofs-extract",
    "ferrofs-fuse",
    "ferrofs-image",
    "ferrofs-mount",
    "ferrofs-ondisk",
    "ferrofs-remote",
    "ferrofs-workers",
];

/// The version of rustdoc's JSON that the pinned `public-api` reads. A compiler that writes another one
/// needs another `public-api`; the check is then skipped by name, since nothing can be compared.
const JSON_FORMAT: u64 = 57;

/// Set where cargo calls this program in place of rustdoc: the program to run.
const AS_RUSTDOC: &str = "FERROFS_XTASK_AS_RUSTDOC";

/// Whether the texts are compared or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Check,
    Write,
}

/// Runs rustdoc if cargo called this program in place of it. JSON is an unstable output, and a variable lets
/// a stable compiler write it. Cargo itself must not have that variable: build scripts read it, and
/// with it most dependencies would be compiled again.
pub(crate) fn run_as_rustdoc() -> Option<ExitCode> {
    let rustdoc = env::var_os(AS_RUSTDOC)?;
    let status =
        Command::new(&rustdoc).args(env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status();
    Some(match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask api: cannot run {}: {error}", rustdoc.display());
            ExitCode::FAILURE
        }
    })
}

/// Compares the public items of every crate with its text, or writes the texts.
pub(crate) fn run(mode: Mode) -> ExitCode {
    match run_all(mode) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask api: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(mode: Mode) -> Result<bool, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut is_same = true;
    let folder = rustdoc_json(root)?;
    for name in CRATES {
        let json = folder.join(format!("{}.json", name.replace('-', "_")));
        let format = json_format(&json)?;
        if format != JSON_FORMAT {
            let why = format!("rustdoc writes JSON format {format}, this reads {JSON_FORMAT}");
            // What could not be written was not.
            if mode == Mode::Write {
                return Err(why.into());
            }
            skip(&why)?;
            return Ok(true);
        }
        let items = public_items(&json)?;
        let path = root.join("docs/api").join(format!("{name}.txt"));
        match mode {
            Mode::Write => {
                fs::create_dir_all(root.join("docs/api"))?;
                fs::write(&path, items)?;
            }
            Mode::Check => {
                let kept = fs::read_to_string(&path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                for line in differences(&kept, &items) {
                    println!("{name}: {line}");
                    is_same = false;
                }
            }
        }
    }
    if !is_same {
        println!("api: if this is intended, run `cargo run -p xtask -- api` and commit docs/api");
    }
    Ok(is_same)
}

/// Reports that the check is skipped: in its output, and in the file that `FERROFS_SKIPPED` names, for a summary.
fn skip(reason: &str) -> io::Result<()> {
    let line = format!("public API: {reason}");
    println!("skipped: {line}");
    let Some(path) = env::var_os("FERROFS_SKIPPED") else { return Ok(()) };
    let mut file = fs::File::options().append(true).create(true).open(path)?;
    writeln!(file, "{line}")
}

/// Has rustdoc describe every library; the folder of the JSON. The whole workspace at once and the profile of lints and
/// pages: dependencies then have the same features, and have been checked already.
fn rustdoc_json(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--lib", "--profile", "test"])
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow")
        .env("RUSTDOC", env::current_exe()?)
        .env(AS_RUSTDOC, env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into()))
        .current_dir(root)
        .status()?;
    if !status.success() {
        return Err(format!("rustdoc failed: {status}").into());
    }
    Ok(target.join("doc"))
}

fn json_format(path: &Path) -> Result<u64, Box<dyn Error>> {
    let value: serde_json::Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    value["format_version"].as_u64().ok_or_else(|| "rustdoc's JSON has no format_version".into())
}

/// One line an item. Implementations that the compiler derives are left out: they follow from the type.
fn public_items(path: &Path) -> Result<String, Box<dyn Error>> {
    let api = public_api::Builder::from_rustdoc_json(path)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    let mut text = String::new();
    for item in api.items() {
        text.push_str(&item.to_string());
        text.push('\n');
    }
    Ok(text)
}

/// Lines that one of two texts has more often, marked `-` for kept and `+` for new; if there are none, the first one that
/// stands elsewhere.
fn differences(kept: &str, now: &str) -> Vec<String> {
    let mut spare: BTreeMap<&str, usize> = BTreeMap::new();
    for line in now.lines() {
        *spare.entry(line).or_default() += 1;
    }
    let mut found = Vec::new();
    for line in kept.lines() {
        match spare.get_mut(line) {
            Some(count @ 1..) => *count -= 1,
            _ => found.push(format!("- {line}")),
        }
    }
    for line in now.lines() {
        if let Some(count @ 1..) = spare.get_mut(line) {
            *count -= 1;
            found.push(format!("+ {line}"));
        }
    }
    if found.is_empty() {
        let moved = kept.lines().zip(now.lines()).find(|(kept, now)| kept != now);
        found.extend(moved.map(|(kept, now)| format!("{now} stands before {kept}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn an_item_that_is_gone_and_one_that_is_new_are_named() {
        assert_eq!(
            differences("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n"),
            ["- pub fn a()", "+ pub fn c()"]
        );
    }

    #[test]
    fn a_repeated_item_and_another_order_are_differences() {
        assert_eq!(differences("a\n", "a\na\n"), ["+ a"]);
        assert_eq!(differences("a\na\n", "a\n"), ["- a"]);
        assert_eq!(differences("a\nb\n", "b\na\n"), ["b stands before a"]);
    }

    #[test]
    fn equal_texts_do_not_differ() {
        assert_eq!(differences("pub fn a()\n", "pub fn a()\n"), Vec::<String>::new());
    }
}
