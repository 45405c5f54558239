//! Images that refer to a blob, or to devices that were there before.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use ferrofs_codec::Method;
use ferrofs_image::{Image, OpenOptions};
use ferrofs_ondisk::compression::AlgorithmId;
use ruzstd::decoding::StreamingDecoder;

use tempfile::TempDir;

use super::tests::*;
use super::*;
use crate::import::{TarContentMode, TarImportOptions, TarSource, from_tar};
use crate::test_source::file;
use crate::{Algorithms, BlobOutput};
use crate::{NoopObserver, OutputMode};
use ferrofs_workers::CancelToken;

/// A folder with an image, its blob, and whatever else a test puts there.
struct BlobDirectory(TempDir);

impl BlobDirectory {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn facts(&self, device: &str) -> BTreeMap<Vec<u8>, NodeFacts> {
        let image = OpenOptions::new().device(self.path(device)).open(self.path("image")).unwrap();
        facts_of(&image)
    }
}

fn with_blob(blob: BlobOutput) -> BuildOptions {
    BuildOptions { chunk_bytes: Some(4096), blob: Some(blob), ..options(12) }
}

#[test]
fn chunks_go_to_the_blob_and_nothing_else_does() {
    let (directory, tree) = (BlobDirectory::new(), all_kinds_tree());
    let options = with_blob(BlobOutput::NewFile(directory.path("blob")));
    let report =
        build(&tree, &options, &directory.path("image"), &NoopObserver, &CancelToken::new())
            .unwrap();
    assert_eq!(directory.names(), ["blob", "image"]);
    assert_eq!(directory.facts("blob"), facts_of_tree(&tree));
    assert_eq!(fs::metadata(directory.path("blob")).unwrap().len(), report.blob_bytes);
    let image = Image::open(directory.path("image")).unwrap();
    let [slot] = image.device_slots() else { panic!("{:?}", image.device_slots()) };
    assert_eq!((slot.blocks * 4096, slot.unified_block), (report.blob_bytes, report.blocks));
    // Appended to the image the blob is found, too.
    let mut whole = fs::read(directory.path("image")).unwrap();
    whole.extend(fs::read(directory.path("blob")).unwrap());
    fs::write(directory.path("image"), whole).unwrap();
    assert_eq!(facts_of_image(&directory.path("image")), facts_of_tree(&tree));
}

#[test]
fn a_blob_takes_the_chunks_and_the_image_what_is_compressed() {
    let methods = vec![Method::Lz4 { max_distance: u16::MAX }];
    let mut tree = all_kinds_tree();
    let mut state = 3_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    let noise: Vec<u8> = (0..50_000).map(|_| random()).collect();
    let id = tree.add(file(&noise)).unwrap();
    tree.link(Tree::ROOT, b"noise", id).unwrap();
    let directory = BlobDirectory::new();
    for inline_pclusters in [false, true] {
        let options = BuildOptions {
            algorithms: Some(Algorithms { default: 0, methods: methods.clone() }),
            inline_pclusters,
            ..with_blob(BlobOutput::NewFile(directory.path("blob")))
        };
        let (path, cancel) = (directory.path("image"), CancelToken::new());
        let report = build(&tree, &options, &path, &NoopObserver, &cancel).unwrap();
        let compressed = report.by_algorithm.get(&Some(AlgorithmId::Lz4)).unwrap();
        assert!(compressed.bytes_out > 0 && report.blob_bytes >= 50_000, "{report:?}");
        assert_eq!(directory.facts("blob"), facts_of_tree(&tree), "{options:?}");
    }
}

#[test]
fn a_blob_in_place_is_overwritten_from_its_start() {
    let (directory, tree) = (BlobDirectory::new(), all_kinds_tree());
    fs::write(directory.path("blob"), vec![9; 1 << 20]).unwrap();
    fs::write(directory.path("image"), "former").unwrap();
    let options = with_blob(BlobOutput::InPlace(directory.path("blob")));
    build(&tree, &options, &directory.path("image"), &NoopObserver, &CancelToken::new()).unwrap();
    assert_eq!(directory.facts("blob"), facts_of_tree(&tree));
    assert_eq!(fs::metadata(directory.path("blob")).unwrap().len(), 1 << 20);
}

/// Looks at what has a name when the image is whole, and accepts it or not.
struct BlobInspector<'a> {
    directory: &'a BlobDirectory,
    accepts: bool,
}

impl BuildObserver for BlobInspector<'_> {
    fn inspect(&self, image: &Path, blob: Option<&Path>) -> std::result::Result<(), String> {
        assert_eq!(self.directory.names(), ["blob", "image"]);
        assert_eq!(fs::read(self.directory.path("blob")).unwrap(), b"former");
        let image = OpenOptions::new().device(blob.unwrap()).open(image).unwrap();
        assert!(facts_of(&image).len() > 1);
        if self.accepts { Ok(()) } else { Err("not as it should be".to_owned()) }
    }
}

#[test]
fn neither_gets_its_name_before_both_are_accepted() {
    let (directory, tree) = (BlobDirectory::new(), all_kinds_tree());
    for name in ["blob", "image"] {
        fs::write(directory.path(name), "former").unwrap();
    }
    let options = with_blob(BlobOutput::NewFile(directory.path("blob")));
    let refusing = BlobInspector { directory: &directory, accepts: false };
    build(&tree, &options, &directory.path("image"), &refusing, &CancelToken::new()).unwrap_err();
    assert_eq!(fs::read(directory.path("image")).unwrap(), b"former");
    assert_eq!(fs::read(directory.path("blob")).unwrap(), b"former");
    build(
        &tree,
        &options,
        &directory.path("image"),
        &BlobInspector { directory: &directory, accepts: true },
        &CancelToken::new(),
    )
    .unwrap();
    assert_eq!(directory.facts("blob"), facts_of_tree(&tree));
}

/// Keeps the blob from getting its name: what has it is a directory by then.
struct BlobBlocker<'a>(&'a BlobDirectory);

impl BuildObserver for BlobBlocker<'_> {
    fn inspect(&self, _: &Path, _: Option<&Path>) -> std::result::Result<(), String> {
        fs::create_dir_all(self.0.path("blob/full")).unwrap();
        Ok(())
    }
}

#[test]
fn a_former_image_goes_before_its_blob_becomes_another() {
    let directory = BlobDirectory::new();
    fs::write(directory.path("image"), "former").unwrap();
    let options = with_blob(BlobOutput::NewFile(directory.path("blob")));
    let (tree, cancel) = (all_kinds_tree(), CancelToken::new());
    let observer = BlobBlocker(&directory);
    build(&tree, &options, &directory.path("image"), &observer, &cancel).unwrap_err();
    assert_eq!(directory.names(), ["blob"]);
}

#[test]
fn an_image_in_place_whose_blob_gets_no_name_is_no_image() {
    let directory = BlobDirectory::new();
    let image = directory.path("image");
    fs::write(&image, vec![9; 1 << 20]).unwrap();
    let options = BuildOptions {
        output_mode: OutputMode::InPlace { offset: 0 },
        ..with_blob(BlobOutput::NewFile(directory.path("blob")))
    };
    let (tree, cancel) = (all_kinds_tree(), CancelToken::new());
    let error = build(&tree, &options, &image, &BlobBlocker(&directory), &cancel).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Output { .. }), "{error}");
    assert!(fs::read(&image).unwrap()[..4096].iter().all(|byte| *byte == 0));
    Image::open(&image).unwrap_err();
}

#[test]
fn an_image_in_place_is_no_image_after_a_panic_of_the_observer() {
    struct PanickingObserver;
    impl BuildObserver for PanickingObserver {
        fn inspect(&self, image: &Path, _: Option<&Path>) -> std::result::Result<(), String> {
            Image::open(image).unwrap();
            panic!("an observer that fails");
        }
    }
    let directory = BlobDirectory::new();
    let image = directory.path("image");
    fs::write(&image, "former").unwrap();
    let options = BuildOptions { output_mode: OutputMode::InPlace { offset: 0 }, ..options(12) };
    let tree = all_kinds_tree();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        build(&tree, &options, &image, &PanickingObserver, &CancelToken::new())
    }));
    panicked.unwrap_err();
    Image::open(&image).unwrap_err();
}

#[test]
fn a_blob_needs_chunks_and_data_of_its_own() {
    let directory = BlobDirectory::new();
    let blob = Some(BlobOutput::NewFile(directory.path("blob")));
    let mut tree = all_kinds_tree();
    let without_chunks = BuildOptions { blob: blob.clone(), ..options(12) };
    let error =
        build(&tree, &without_chunks, &directory.path("image"), &NoopObserver, &CancelToken::new())
            .unwrap_err();
    assert!(error.to_string().contains("without a chunk size"), "{error}");
    tree.add_device(Device { tag: [0; 64], bytes: 5 }).unwrap();
    let options = with_blob(BlobOutput::NewFile(directory.path("blob")));
    let error =
        build(&tree, &options, &directory.path("image"), &NoopObserver, &CancelToken::new())
            .unwrap_err();
    assert!(error.to_string().contains("other devices"), "{error}");
    assert!(directory.names().is_empty());
}

/// An archive of another program, unpacked.
fn archive(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
    let packed = fs::File::open(folder.join(format!("{name}.tar.zst"))).unwrap();
    let mut bytes = Vec::new();
    StreamingDecoder::new(packed).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn an_image_refers_to_the_contents_of_an_archive() {
    for name in ["pax", "pax-sparse-0.0", "pax-sparse-1.0", "gnu-sparse", "v7"] {
        let (directory, bytes) = (BlobDirectory::new(), archive(name));
        fs::write(directory.path("tar"), &bytes).unwrap();
        let referring =
            TarImportOptions { contents: TarContentMode::Index, ..TarImportOptions::default() };
        let tree = from_tar(
            TarSource::Path(directory.path("tar")),
            &referring,
            &NoopObserver,
            &CancelToken::new(),
        )
        .unwrap();
        let report =
            build(&tree, &options(9), &directory.path("image"), &NoopObserver, &CancelToken::new())
                .unwrap();
        assert_eq!(directory.facts("tar"), facts_of_tree(&tree), "{name}");
        assert!(report.external_bytes > 0, "{name}");
        // However it comes, the image is the same.
        let reader = Box::new(std::io::Cursor::new(bytes));
        let source = TarSource::Stream { name: "pipe".into(), reader };
        let piped = from_tar(source, &referring, &NoopObserver, &CancelToken::new()).unwrap();
        build(&piped, &options(9), &directory.path("piped"), &NoopObserver, &CancelToken::new())
            .unwrap();
        let images = ["image", "piped"].map(|name| fs::read(directory.path(name)).unwrap());
        assert!(images[0] == images[1], "{name}");
    }
}

#[test]
fn what_no_block_can_hold_of_an_archive_is_copied() {
    let directory = BlobDirectory::new();
    fs::write(directory.path("tar"), archive("pax")).unwrap();
    let referring =
        TarImportOptions { contents: TarContentMode::Index, ..TarImportOptions::default() };
    let tree = from_tar(
        TarSource::Path(directory.path("tar")),
        &referring,
        &NoopObserver,
        &CancelToken::new(),
    )
    .unwrap();
    build(&tree, &options(12), &directory.path("image"), &NoopObserver, &CancelToken::new())
        .unwrap();
    assert_eq!(directory.facts("tar"), facts_of_tree(&tree));
}
