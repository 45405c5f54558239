//! What differs between an image and its source, and where.

use std::fmt;

use crate::escape::escape;

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The path from the root, without a slash before it; empty for the root, or the image as a whole.
    path: Vec<u8>,
    /// The byte of the file.
    offset: Option<u64>,
    what: String,
}

impl Difference {
    pub(super) fn new(path: &[u8], what: String) -> Self {
        Self { path: path.to_vec(), offset: None, what }
    }

    pub(super) fn at(self, offset: u64) -> Self {
        Self { offset: Some(offset), ..self }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", escape(&self.path))?;
        }
        if let Some(offset) = self.offset {
            write!(f, "byte {offset}: ")?;
        }
        f.write_str(&self.what)
    }
}
