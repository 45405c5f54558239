//! What a build does with files of the host besides the image: blobs, and devices that were there before; other processes
//! that create files under the names of the outputs meanwhile, of which nothing is removed; and the temporary file of a
//! tree that does not fit into memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use ferrofs_codec::Method;
use ferrofs_image::{Image, OpenOptions};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;
use ruzstd::decoding::StreamingDecoder;
use tempfile::TempDir;

use super::tests::*;
use super::*;
use crate::import::{
    DirectoryOptions, TarContentMode, TarImportOptions, TarSource, from_directory, from_tar,
};
use crate::test_source::{content, file, metadata, node};
use crate::tree::{DeviceAddress, NodeKind, SourceExtent};
use crate::{
    Algorithms, BlobOutput, Deduplication, Fragments, NoopObserver, OutputMode, SpillOptions,
    SpillStore,
};

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
    let rejecting = BlobInspector { directory: &directory, accepts: false };
    build(&tree, &options, &directory.path("image"), &rejecting, &CancelToken::new()).unwrap_err();
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
fn a_previous_image_goes_before_its_blob_becomes_another() {
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

/// The image has 48-bit addresses because a file needs them, not because an option asks for them.
#[test]
fn a_device_of_more_than_2_32_blocks_keeps_its_length() {
    let place = TempDir::new().unwrap();
    let mut tree = Tree::new(metadata());
    let device = tree.add_device(Device { tag: [0; 64], bytes: 3 << 40 }).unwrap();
    let extent = SourceExtent {
        start: 0,
        bytes: 512,
        place: Some(DeviceAddress { device, offset: 5 << 39 }),
    };
    let content = content("far", &[7; 512]).on_devices(vec![extent]);
    let id = tree.add(node(NodeKind::File(content))).unwrap();
    tree.link(Tree::ROOT, b"far", id).unwrap();
    let target = place.path().join("image");
    build(&tree, &options(9), &target, &NoopObserver, &CancelToken::new()).unwrap();
    let image = Image::open(&target).unwrap();
    let [slot] = image.device_slots() else { panic!("{:?}", image.device_slots()) };
    assert_eq!((slot.blocks * 512, slot.unified_block > 0), (3 << 40, true));
}

/// An archive of another program, unpacked.
fn archive(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
    let packed = fs::File::open(folder.join(format!("{name}.tar.zst"))).unwrap();
    let mut bytes = Vec::new();
    StreamingDecoder::new(packed).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The tree of an archive whose contents stay in it.
fn referring_tree(source: TarSource) -> Tree {
    let options =
        TarImportOptions { contents: TarContentMode::Index, ..TarImportOptions::default() };
    from_tar(source, &options, &NoopObserver, &CancelToken::new()).unwrap()
}

#[test]
fn an_image_refers_to_the_contents_of_an_archive() {
    for name in ["pax", "pax-sparse-0.0", "pax-sparse-1.0", "gnu-sparse", "v7"] {
        let (directory, bytes) = (BlobDirectory::new(), archive(name));
        fs::write(directory.path("tar"), &bytes).unwrap();
        let tree = referring_tree(TarSource::Path(directory.path("tar")));
        let report =
            build(&tree, &options(9), &directory.path("image"), &NoopObserver, &CancelToken::new())
                .unwrap();
        assert_eq!(directory.facts("tar"), facts_of_tree(&tree), "{name}");
        assert!(report.external_bytes > 0, "{name}");
        // However it comes, the image is the same.
        let reader = Box::new(std::io::Cursor::new(bytes));
        let source = TarSource::Stream { name: "pipe".into(), reader };
        let piped = referring_tree(source);
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
    let tree = referring_tree(TarSource::Path(directory.path("tar")));
    build(&tree, &options(12), &directory.path("image"), &NoopObserver, &CancelToken::new())
        .unwrap();
    assert_eq!(directory.facts("tar"), facts_of_tree(&tree));
}

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

    /// The names that are there; those with the contents of [`put`](Self::put) end with "(theirs)".
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

/// Files of a few bytes and of some blocks, many of them equal, in directories of several pages.
fn source() -> TempDir {
    let source = TempDir::new().unwrap();
    for directory in 0..12_u32 {
        let folder = source.path().join(format!("directory {directory}"));
        fs::create_dir(&folder).unwrap();
        for number in 0..150_u32 {
            let bytes = (number as usize * 37) % 9000;
            let variant = if number % 3 == 0 { 0 } else { directory };
            let word = format!("{variant} and {number} ");
            let content = word.repeat(bytes / word.len() + 1);
            let name = folder.join(format!("a file with a long name, number {number}"));
            fs::write(&name, &content.as_bytes()[..bytes]).unwrap();
            if number % 10 == 0 {
                fs::hard_link(&name, source.path().join(format!("link {directory} {number}")))
                    .unwrap();
            }
        }
    }
    source
}

fn store_in(directory: &Path, memory_bytes: u64) -> SpillStore {
    let options = SpillOptions::default().memory_bytes_max(memory_bytes);
    SpillStore::new(options.directory(Some(directory.to_path_buf())))
}

fn forms() -> Vec<BuildOptions> {
    let methods =
        vec![Method::Lz4 { max_distance: 65535 }, Method::Zstd { level: 3, window_log: 16 }];
    let algorithms = Some(Algorithms { default: 0, methods });
    let compressed = BuildOptions { algorithms, ..options(12) };
    vec![
        options(9),
        BuildOptions { chunk_bytes: Some(4096), inline_data: false, ..options(12) },
        compressed.clone(),
        BuildOptions {
            fragments: Fragments::Tails,
            deduplication: Deduplication::On,
            ..compressed.clone()
        },
        BuildOptions {
            fragments: Fragments::All,
            compress_directories: true,
            metabox_pcluster_bytes: Some(8192),
            ..compressed.clone()
        },
        BuildOptions { wide: true, ..compressed },
    ]
}

#[test]
fn an_image_does_not_depend_on_how_much_of_its_tree_is_in_memory() {
    let (source, place) = (source(), TempDir::new().unwrap());
    let temporary = TempDir::new().unwrap();
    for (number, form) in forms().into_iter().enumerate() {
        let image = |memory_bytes| {
            let store = store_in(temporary.path(), memory_bytes);
            let import = DirectoryOptions::default().store(Some(store));
            let cancel = CancelToken::new();
            let tree = from_directory(source.path(), &import, &NoopObserver, &cancel).unwrap();
            let target = place.path().join("image");
            let report = build(&tree, &form, &target, &NoopObserver, &cancel).unwrap();
            let bytes = fs::read(&target).unwrap();
            fs::remove_file(&target).unwrap();
            (bytes, report)
        };
        let (in_memory, report) = image(u64::MAX);
        assert_eq!(report.spilled_bytes, 0);
        let (spilled, report) = image(0);
        assert!(report.spilled_bytes > 100_000, "{number}: {report:?}");
        assert!(report.store_bytes < 400_000, "{number}: {report:?}");
        assert!(in_memory == spilled, "options {number}");
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}

/// Special files in one directory: 100 bytes each.
fn large_tree(store: &SpillStore) -> Tree {
    let mut tree = Tree::in_store(metadata(), store);
    for number in 0..30_000_u32 {
        let child = tree.add(node(NodeKind::Fifo)).unwrap();
        tree.link(Tree::ROOT, format!("a name of a file, number {number}").as_bytes(), child)
            .unwrap();
    }
    tree
}

#[test]
fn a_temporary_file_that_cannot_be_made_ends_the_build_and_no_image_is_there() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("image");
    let missing = place.path().join("missing");
    // The import has room for the tree, and the build has less.
    let tree = large_tree(&store_in(&missing, u64::MAX));
    let build_options = BuildOptions { memory_bytes: 40 << 20, ..options(12) };
    tree.store().set_memory_max(0);
    let error = build(&tree, &build_options, &target, &NoopObserver, &CancelToken::new());
    let error = error.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Output { .. }), "{error}");
    assert_eq!(error.path(), missing);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn an_import_that_cannot_spill_is_refused_with_the_directory() {
    let source = source();
    let missing = source.path().join("missing");
    let import = DirectoryOptions::default().store(Some(store_in(&missing, 0)));
    let cancel = CancelToken::new();
    let error = from_directory(source.path(), &import, &NoopObserver, &cancel).unwrap_err();
    let wanted = format!("{}: cannot create a temporary file: ", missing.display());
    assert!(error.to_string().starts_with(&wanted), "{error}");
}

/// Cancels a build when its metadata is about to be written.
struct CancelsMetadata(CancelToken);

impl BuildObserver for CancelsMetadata {
    fn phase(&self, phase: BuildPhase) {
        if phase == BuildPhase::Metadata {
            self.0.cancel();
        }
    }
}

#[test]
fn a_build_that_is_cancelled_while_it_spills_leaves_nothing_behind() {
    let (place, temporary) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let tree = large_tree(&store_in(temporary.path(), 0));
    assert!(tree.store().stats().file_bytes > 0);
    let cancel = CancelToken::new();
    let observer = CancelsMetadata(cancel.clone());
    let target = place.path().join("image");
    let error = build(&tree, &options(12), &target, &observer, &cancel).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    drop(tree);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn distinct_xattrs_of_many_entries_are_spilled_and_equal_ones_are_stored_once() {
    let temporary = TempDir::new().unwrap();
    let store = store_in(temporary.path(), 0);
    let mut tree = Tree::in_store(metadata(), &store);
    let with_value = |tree: &mut Tree, number: u32, value: Vec<u8>| {
        let mut child = node(NodeKind::Fifo);
        child.metadata.xattrs.insert(b"user.x".as_slice().into(), value.into());
        let id = tree.add(child).unwrap();
        tree.link(Tree::ROOT, number.to_string().as_bytes(), id).unwrap();
        id
    };
    for number in 0..100 {
        with_value(&mut tree, number, vec![7; 60_000]);
    }
    assert!(tree.store_bytes() < 200_000, "{}", tree.store_bytes());
    for number in 100..200 {
        with_value(&mut tree, number, number.to_string().repeat(20_000).into_bytes());
    }
    assert!(tree.store_bytes() > 6_000_000);
    assert!(store.stats().memory_bytes_peak < 400_000);
    let (_, last) = tree.nodes().last().unwrap();
    assert_eq!(&*last.metadata.xattrs[&b"user.x"[..]], "199".repeat(20_000).as_bytes());
    store.check().unwrap();
}

#[test]
fn an_archive_of_many_entries_is_imported_within_the_memory_of_its_store() {
    let (temporary, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store_in(temporary.path(), 1 << 20);
    let tree = large_tree(&SpillStore::new(SpillOptions::default()));
    // A tar of special files: one header each.
    let mut archive = Vec::new();
    for number in 0..tree.len() - 1 {
        let mut header = [0_u8; 512];
        let name = format!("entry-{number}");
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..124].copy_from_slice(b"0000000\x000000000\0");
        header[124..148].copy_from_slice(b"00000000000\x0000000000000\0");
        header[156] = b'6';
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
    }
    archive.resize(archive.len() + 1024, 0);
    let source = TarSource::Bytes { name: "a.tar".into(), bytes: archive.into() };
    let import = TarImportOptions::default().store(Some(store.clone()));
    let imported = from_tar(source, &import, &NoopObserver, &CancelToken::new()).unwrap();
    assert_eq!(imported.len(), tree.len());
    let stats = store.stats();
    assert!(stats.memory_bytes_peak <= 1 << 20 && stats.file_bytes > 0, "{stats:?}");
    let target = place.path().join("image");
    build(&imported, &options(12), &target, &NoopObserver, &CancelToken::new()).unwrap();
    assert!(store.stats().memory_bytes_peak <= 1 << 20);
}

#[test]
fn an_empty_file_that_has_grown_since_the_import_is_named() {
    let (source, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = source.path().join("log");
    for form in forms() {
        fs::write(&path, b"").unwrap();
        let import = DirectoryOptions::default();
        let tree = from_directory(source.path(), &import, &NoopObserver, &CancelToken::new());
        let (tree, target) = (tree.unwrap(), place.path().join("image"));
        build(&tree, &form, &target, &NoopObserver, &CancelToken::new()).unwrap();
        fs::write(&path, b"x").unwrap();
        let error = build(&tree, &form, &target, &NoopObserver, &CancelToken::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }), "{error}");
        assert_eq!(error.path(), path);
    }
}

/// A tree of so many small files that differ.
fn small_files(count: u32) -> Tree {
    let mut tree = Tree::new(metadata());
    for number in 0..count {
        let name = format!("{number:06}");
        let file = tree.add(file(name.repeat(20).as_bytes())).unwrap();
        tree.link(Tree::ROOT, name.as_bytes(), file).unwrap();
    }
    tree
}

#[test]
fn the_packed_inode_gets_the_memory_of_the_indexes_of_its_parts() {
    let place = TempDir::new().unwrap();
    // The least memory that a build needs, to 16 KiB.
    let min_memory = |tree: &Tree| {
        let builds = |memory_bytes| {
            let options = BuildOptions { memory_bytes, jobs: Some(1), ..forms()[3].clone() };
            let target = place.path().join("image");
            build(tree, &options, &target, &NoopObserver, &CancelToken::new()).is_ok()
        };
        let (mut low, mut high) = (0_u64, 4096_u64);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if builds(middle << 14) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high << 14
    };
    let (few, many) = (min_memory(&small_files(100)), min_memory(&small_files(8000)));
    assert!(few > 20 << 20, "{few}");
    // Indexes of 8,000 parts take 500 KiB, and all that is left if that is less.
    assert!(many < few + (256 << 10), "{few} {many}");
}
