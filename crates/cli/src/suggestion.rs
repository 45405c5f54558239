//! What to do about an error, where a user can do something.

use ferrofs_image::ErrorKind;
use ferrofs_ondisk as ondisk;

/// The way out of an error of the image, beginning with a semicolon; empty if there is none.
pub(crate) fn for_image_error(error: &ferrofs_image::Error) -> &'static str {
    match error.kind() {
        ErrorKind::Checksum { .. } => "; --no-checksum reads it nevertheless",
        ErrorKind::DeviceCount { .. } => {
            "; name each device with --device=FILE, in the order of the device table"
        }
        ErrorKind::Format(ondisk::ErrorKind::BadMagic(_)) => {
            "; this is no EROFS image, or it begins further on: see --offset"
        }
        ErrorKind::Format(ondisk::ErrorKind::UnknownIncompat(_)) => {
            "; a newer ferrofs may know them"
        }
        _ => "",
    }
}

/// The way out of an error of an extraction; empty if there is none.
pub(crate) fn for_extract_error(error: &ferrofs_extract::Error) -> &'static str {
    match error.kind() {
        ferrofs_extract::ErrorKind::Image(error) => for_image_error(error),
        ferrofs_extract::ErrorKind::NotEmpty => {
            "; give another directory, or replace what is in it with --overwrite"
        }
        ferrofs_extract::ErrorKind::DirectoryInTheWay => "; remove it, or use another DEST",
        ferrofs_extract::ErrorKind::NothingMatches => "; `ferrofs ls -R IMAGE` shows what there is",
        _ => "",
    }
}
