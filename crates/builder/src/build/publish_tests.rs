//! Other processes that create files under the names of the outputs while an image is built: nothing of theirs is
//! removed, and a build that fails leaves nothing of its own.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::tests::options;
use super::*;
use crate::NoopObserver;
use crate::test_source::{file, metadata};

/// The file beside an image: a blob, or a chunk index.
const BESIDE: [&str; 2] = ["blob", "index"];

/// The names of an image and of the file beside it.
struct OutputNames {
    directory: TempDir,
    options: BuildOptions,
}

impl OutputNames {
    fn new(beside: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join(beside);
        let mut options = BuildOptions { chunk_bytes: Some(4096), ..options(12) };
        match beside {
            "blob" => options.blob = Some(BlobOutput::NewFile(path)),
            _ => options.chunk_index = Some(ChunkIndexOutput::NewFile(path)),
        }
        Self { directory, options }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, names: &[&str]) {
        names.iter().for_each(|name| fs::write(self.path(name), *name).unwrap());
    }

    fn open(&self, existing: ExistingOutput) -> BuildOutputs {
        let open = |name| OutputTarget::open(&self.path(name), existing).unwrap();
        let blob = self.options.blob.as_ref().map(|_| open("blob"));
        let chunk_index = self.options.chunk_index.as_ref().map(|_| open("index"));
        BuildOutputs { image: open("image"), blob, chunk_index }
    }

    fn build(&self, outputs: BuildOutputs) -> Result<BuildReport> {
        let mut tree = Tree::new(metadata());
        let id = tree.add(file(&vec![7; 10_000])).unwrap();
        tree.link(Tree::ROOT, b"file", id).unwrap();
        build_into(&tree, &self.options, outputs, &NoopObserver, &CancelToken::new())
    }

    /// The names that are there; those with the contents of [`put`](Self::put) have a mark.
    fn found(&self) -> Vec<String> {
        let shown = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let is_theirs = fs::read(&path).is_ok_and(|bytes| bytes == name.as_bytes());
            if is_theirs { name + " (theirs)" } else { name }
        };
        let mut found: Vec<_> = fs::read_dir(self.directory.path()).unwrap().map(shown).collect();
        found.sort();
        found
    }
}

#[test]
fn what_another_build_finished_first_stays() {
    for beside in BESIDE {
        for theirs in [&[beside, "image"][..], &["image"], &[beside]] {
            for existing in [ExistingOutput::Refuse, ExistingOutput::Rewrite] {
                let names = OutputNames::new(beside);
                let outputs = names.open(existing);
                names.put(theirs);
                let error = names.build(outputs).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Exists), "{error}");
                let mut wanted: Vec<_> =
                    theirs.iter().map(|name| format!("{name} (theirs)")).collect();
                wanted.sort();
                assert_eq!(names.found(), wanted);
            }
        }
    }
}

#[test]
fn a_blob_in_place_does_not_cost_another_build_its_image() {
    let names = OutputNames::new("blob");
    names.put(&["blob"]);
    let outputs = names.open(ExistingOutput::Rewrite);
    names.put(&["image"]);
    let error = names.build(outputs).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Exists), "{error}");
    assert_eq!(names.found(), ["blob", "image (theirs)"]);
    assert_eq!(fs::read(names.path("blob")).unwrap(), b"");
}

#[test]
fn an_image_that_cannot_get_its_name_leaves_no_file_beside_it() {
    for beside in BESIDE {
        for is_replaced in [false, true] {
            let names = OutputNames::new(beside);
            if is_replaced {
                names.put(&[beside, "image"]);
            }
            let outputs = names.open(ExistingOutput::Replace);
            if is_replaced {
                fs::remove_file(names.path("image")).unwrap();
            }
            // No file replaces a directory.
            fs::create_dir(names.path("image")).unwrap();
            let error = names.build(outputs).unwrap_err();
            assert!(error.to_string().contains("its name"), "{error}");
            assert_eq!(names.found(), ["image"]);
        }
    }
}

#[test]
fn a_forced_build_replaces_what_it_found_and_what_came_later() {
    for beside in BESIDE {
        for later in [&[][..], &["image"], &[beside, "image"]] {
            let names = OutputNames::new(beside);
            names.put(&[beside, "image"]);
            let outputs = names.open(ExistingOutput::Replace);
            for name in later {
                fs::remove_file(names.path(name)).unwrap();
            }
            names.put(later);
            names.build(outputs).unwrap();
            let mut wanted = [beside, "image"];
            wanted.sort_unstable();
            assert_eq!(names.found(), wanted);
        }
    }
}
