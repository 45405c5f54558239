//! The xattr target: a body, its entries, prefixes, names and the filter.
//!
//! Input: the xattr body of an inode.

use ferrofs_ondisk::xattr::{
    BODY_HEADER_BYTES, ENTRY_HEADER_BYTES, LongPrefix, NameIndex, XattrEntry, XattrIbody,
    filter_bit, prefix_text, split_name,
};

/// Reads a body, and its bytes as an entry and as an item of the prefix table.
pub fn xattr(bytes: &[u8]) {
    check_body(bytes);
    if let Ok(entry) = XattrEntry::parse(bytes) {
        check_entry(&entry, bytes);
    }
    if let Ok(prefix) = LongPrefix::parse(bytes) {
        assert!(prefix.infix.len() <= 255);
        assert_eq!(Some((&prefix.base, prefix.infix)), bytes.split_first());
    }
    match split_name(bytes) {
        Some((index, suffix)) => check_name(index, suffix, bytes),
        None => assert!(!bytes.starts_with(b"user.x")),
    }
}

fn check_body(bytes: &[u8]) {
    let body = match XattrIbody::parse(bytes) {
        Ok(body) => body,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(XattrIbody::filter_of(bytes), Ok(body.name_filter));
    let ids = body.shared_ids().count();
    assert_eq!(BODY_HEADER_BYTES + ids * 4 + body.entries.len(), bytes.len());
    let mut covered = 0;
    let mut failed = false;
    for entry in body.inline_entries() {
        assert!(!failed, "an iterator goes on after an error");
        match entry {
            Ok(entry) => {
                check_entry(&entry, &body.entries[covered..]);
                covered += entry.padded_bytes();
            }
            Err(error) => {
                failed = true;
                assert!(error.offset() >= covered as u64);
            }
        }
    }
    assert!(failed || covered >= body.entries.len(), "entries cover their area");
}

fn check_entry(entry: &XattrEntry<'_>, bytes: &[u8]) {
    let size = ENTRY_HEADER_BYTES + entry.suffix.len() + entry.value.len();
    assert_eq!(XattrEntry::size_of(bytes), Ok(size));
    assert!(size <= bytes.len() && entry.padded_bytes() == size.next_multiple_of(4));
    assert!(!entry.is_padding() || entry.suffix.is_empty());
    match entry.index {
        NameIndex::Long(id) => assert!(id < 128),
        NameIndex::Short(index) => {
            if let Ok(Some(text)) = prefix_text(index) {
                check_name(index, entry.suffix, &[text.as_bytes(), entry.suffix].concat());
            }
        }
    }
}

/// A full name splits where it was joined, if it is one that Linux would look for.
fn check_name(index: u8, suffix: &[u8], name: &[u8]) {
    assert_eq!(filter_bit(index, suffix).count_ones(), 1);
    let text = prefix_text(index).expect("the index was looked up").expect("and is not hidden");
    let is_complete = !text.ends_with('.');
    let is_proper = is_complete == suffix.is_empty();
    assert_eq!(split_name(name), is_proper.then_some((index, suffix)));
}
