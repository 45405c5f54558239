//! What a mount tells whoever runs it: lines for a log.

use std::fmt;

use ferrofs_fuse::SessionEvent;
use ferrofs_image::{Error, Nid};

/// Something that ought to be in a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountLogEvent<'a> {
    /// A request failed because of the image or its file.
    Failed {
        /// The inode it was about.
        nid: Nid,
        /// What was wanted.
        what: &'static str,
        /// Why not.
        error: &'a Error,
    },
    /// The session says something.
    Session(&'a SessionEvent),
}

impl fmt::Display for MountLogEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { nid, what, error } => write!(f, "{what} of nid {}: {error}", nid.raw()),
            Self::Session(event) => write!(f, "{event}"),
        }
    }
}
