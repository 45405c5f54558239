//! The compiled half of the Python package `ferrofs`: images, open files, checks, extractions and
//! builds, as `ferrofs._native`. The Python half (`python/ferrofs`) gives them their public shape.
//!
//! Three rules hold everywhere. Image code runs detached from the interpreter, so other threads of
//! Python go on. A thread that is attached waits for no lock. Nothing that belongs to the parent of
//! a forked process is used or dropped in the child.

mod build;
mod bytes_object;
mod calls;
mod check;
mod content;
mod errors;
mod extract;
mod file;
mod image;
mod inode_fields;
mod lookup;
mod opened_files;
mod process;
mod progress;
mod remote;
mod source;
mod tree;

/// The module `ferrofs._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::build::build;
    #[pymodule_export]
    use crate::file::NativeFile;
    #[pymodule_export]
    use crate::image::NativeImage;
    #[pymodule_export]
    use crate::remote::display_form;
    #[pymodule_export]
    use crate::source::{forget_parent_reads, is_url, stop_sources};
}
