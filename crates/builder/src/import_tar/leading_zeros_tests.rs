//! Files that begin with the end mark of an archive: archives of nothing, and images of file systems.

use super::tests::{ArchiveBuilder, import};
use super::{InputLimit, TarImportOptions, TarSource, from_tar};
use crate::{ErrorKind, NoopObserver};
use ferrofs_workers::CancelToken;

/// Names one kind of file.
fn foreign_name(start: &[u8]) -> Option<&'static str> {
    (start.get(1024..1028)? == b"here").then_some("a test")
}

#[test]
fn a_file_that_begins_with_an_end_mark_is_an_archive_only_if_all_of_it_is_zero() {
    let with = |at: usize, bytes: &[u8]| {
        let mut file = vec![0; 390 * 512];
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for concatenated in [false, true] {
        let options = TarImportOptions { concatenated, ..TarImportOptions::default() };
        let asking = options.clone().foreign_name(Some(foreign_name));
        for file in [with(1024, b"here"), with(199_679, b"x")] {
            assert_eq!(import(&file, &options).unwrap().len(), 1);
        }
        for zeros in [513, 1024, 1025, 2048, 200_000] {
            assert_eq!(import(&vec![0; zeros], &asking).unwrap().len(), 1, "{zeros}");
        }
        let foreign = with(1024, b"here");
        // Between concatenated archives, a part of a block is always refused.
        let shortest = if concatenated { 1536 } else { 1028 };
        for file in [&foreign[..shortest], &foreign[..2000], &foreign] {
            let error = import(file, &asking).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Archive(_)), "{error:?}");
            assert_eq!(
                error.to_string(),
                "a.tar: not a tar archive: this is a test; build from an archive or a directory of its files"
            );
        }
        for at in [1025, 70_000, 199_679] {
            let error = import(&with(at, b"x"), &asking).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("a.tar: byte {at}: not a tar archive: it begins")),
                "{error}"
            );
        }
        // What follows a whole archive is another matter.
        let archive = [ArchiveBuilder::new().file("a", "1").end(), with(1024, b"here")].concat();
        assert_eq!(import(&archive, &asking).unwrap().len(), 2);
    }
}

#[test]
fn zeros_are_read_up_to_the_limit() {
    let options = TarImportOptions::default().foreign_name(Some(foreign_name));
    let limited = options.input(InputLimit::Bytes(1 << 20));
    assert_eq!(import(&vec![0; 1 << 20], &limited).unwrap().len(), 1);
    let reader = Box::new(std::io::repeat(0));
    let endless = TarSource::Stream { name: "zeros".into(), reader };
    let error = from_tar(endless, &limited, &NoopObserver, &CancelToken::new()).unwrap_err();
    assert!(error.to_string().contains("--max-input"), "{error}");
}
