//! Images that refer to a blob, or to devices that were there before.

use std::io::Read;
use std::path::PathBuf;

use ferrofs_image::OpenOptions;
use ruzstd::decoding::StreamingDecoder;

use super::*;
use crate::Blob;
use crate::import::{Contents, TarOptions, TarSource, from_tar};

/// A folder with an image, its blob, and whatever else a test puts there.
struct Bed(TempDir);

impl Bed {
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

    fn facts(&self, device: &str) -> BTreeMap<Vec<u8>, Facts> {
        let image = OpenOptions::new().device(self.path(device)).open(self.path("image")).unwrap();
        facts_of(&image)
    }
}

fn with_blob(blob: Blob) -> Options {
    Options { chunk_bytes: Some(4096), blob: Some(blob), ..options(12) }
}

#[test]
fn chunks_go_to_the_blob_and_nothing_else_does() {
    let (bed, tree) = (Bed::new(), zoo());
    let options = with_blob(Blob::NewFile(bed.path("blob")));
    let report = build(&tree, &options, &bed.path("image"), &NoWatch).unwrap();
    assert_eq!(bed.names(), ["blob", "image"]);
    assert_eq!(bed.facts("blob"), facts_of_tree(&tree));
    assert_eq!(fs::metadata(bed.path("blob")).unwrap().len(), report.blob_bytes);
    let image = Image::open(bed.path("image")).unwrap();
    let [slot] = image.device_slots() else { panic!("{:?}", image.device_slots()) };
    assert_eq!((slot.blocks * 4096, slot.unified_block), (report.blob_bytes, report.blocks));
    // Appended to the image the blob is found, too.
    let mut whole = fs::read(bed.path("image")).unwrap();
    whole.extend(fs::read(bed.path("blob")).unwrap());
    fs::write(bed.path("image"), whole).unwrap();
    assert_eq!(facts_of_image(&bed.path("image")), facts_of_tree(&tree));
}

#[test]
fn a_blob_in_place_is_overwritten_from_its_start() {
    let (bed, tree) = (Bed::new(), zoo());
    fs::write(bed.path("blob"), vec![9; 1 << 20]).unwrap();
    fs::write(bed.path("image"), "former").unwrap();
    let options = with_blob(Blob::InPlace(bed.path("blob")));
    build(&tree, &options, &bed.path("image"), &NoWatch).unwrap();
    assert_eq!(bed.facts("blob"), facts_of_tree(&tree));
    assert_eq!(fs::metadata(bed.path("blob")).unwrap().len(), 1 << 20);
}

/// Looks at what has a name when the image is whole, and accepts it or not.
struct Inspector<'a> {
    bed: &'a Bed,
    accepts: bool,
}

impl Watch for Inspector<'_> {
    fn inspect(&self, image: &Path, blob: Option<&Path>) -> std::result::Result<(), String> {
        assert_eq!(self.bed.names(), ["blob", "image"]);
        assert_eq!(fs::read(self.bed.path("blob")).unwrap(), b"former");
        let image = OpenOptions::new().device(blob.unwrap()).open(image).unwrap();
        assert!(facts_of(&image).len() > 1);
        if self.accepts { Ok(()) } else { Err("not as it should be".to_owned()) }
    }
}

#[test]
fn neither_gets_its_name_before_both_are_accepted() {
    let (bed, tree) = (Bed::new(), zoo());
    for name in ["blob", "image"] {
        fs::write(bed.path(name), "former").unwrap();
    }
    let options = with_blob(Blob::NewFile(bed.path("blob")));
    let refusing = Inspector { bed: &bed, accepts: false };
    build(&tree, &options, &bed.path("image"), &refusing).unwrap_err();
    assert_eq!(fs::read(bed.path("image")).unwrap(), b"former");
    assert_eq!(fs::read(bed.path("blob")).unwrap(), b"former");
    build(&tree, &options, &bed.path("image"), &Inspector { bed: &bed, accepts: true }).unwrap();
    assert_eq!(bed.facts("blob"), facts_of_tree(&tree));
}

#[test]
fn a_former_image_goes_before_its_blob_becomes_another() {
    let bed = Bed::new();
    fs::write(bed.path("image"), "former").unwrap();
    // The blob cannot get its name: what has it is a directory by then.
    struct Thief<'a>(&'a Bed);
    impl Watch for Thief<'_> {
        fn inspect(&self, _: &Path, _: Option<&Path>) -> std::result::Result<(), String> {
            fs::create_dir_all(self.0.path("blob/full")).unwrap();
            Ok(())
        }
    }
    let options = with_blob(Blob::NewFile(bed.path("blob")));
    build(&zoo(), &options, &bed.path("image"), &Thief(&bed)).unwrap_err();
    assert_eq!(bed.names(), ["blob"]);
}

#[test]
fn a_blob_needs_chunks_and_data_of_its_own() {
    let bed = Bed::new();
    let blob = Some(Blob::NewFile(bed.path("blob")));
    let mut tree = zoo();
    let without_chunks = Options { blob: blob.clone(), ..options(12) };
    let error = build(&tree, &without_chunks, &bed.path("image"), &NoWatch).unwrap_err();
    assert!(error.to_string().contains("without a size of chunks"), "{error}");
    tree.add_device(Device { tag: [0; 64], bytes: 5 }).unwrap();
    let options = with_blob(Blob::NewFile(bed.path("blob")));
    let error = build(&tree, &options, &bed.path("image"), &NoWatch).unwrap_err();
    assert!(error.to_string().contains("other devices"), "{error}");
    assert!(bed.names().is_empty());
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
        let (bed, bytes) = (Bed::new(), archive(name));
        fs::write(bed.path("tar"), &bytes).unwrap();
        let referring = TarOptions { contents: Contents::Referred, ..TarOptions::default() };
        let tree = from_tar(TarSource::Path(bed.path("tar")), &referring).unwrap();
        let report = build(&tree, &options(9), &bed.path("image"), &NoWatch).unwrap();
        assert_eq!(bed.facts("tar"), facts_of_tree(&tree), "{name}");
        assert!(report.referred_bytes > 0, "{name}");
        // However it comes, the image is the same.
        let reader = Box::new(std::io::Cursor::new(bytes));
        let source = TarSource::Stream { name: "pipe".into(), reader };
        let piped = from_tar(source, &referring).unwrap();
        build(&piped, &options(9), &bed.path("piped"), &NoWatch).unwrap();
        let images = ["image", "piped"].map(|name| fs::read(bed.path(name)).unwrap());
        assert!(images[0] == images[1], "{name}");
    }
}

#[test]
fn what_no_block_can_hold_of_an_archive_is_copied() {
    let bed = Bed::new();
    fs::write(bed.path("tar"), archive("pax")).unwrap();
    let referring = TarOptions { contents: Contents::Referred, ..TarOptions::default() };
    let tree = from_tar(TarSource::Path(bed.path("tar")), &referring).unwrap();
    build(&tree, &options(12), &bed.path("image"), &NoWatch).unwrap();
    assert_eq!(bed.facts("tar"), facts_of_tree(&tree));
}
