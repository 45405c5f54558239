//! The C library: functions that C programs call, over the crates that do the work.
//!
//! `include/ferrofs.h` describes the interface; this crate implements it. A function checks and
//! copies its arguments, calls the libraries within `guard::call`, and converts the result. It
//! prints nothing, and no panic leaves it.
//!
//! | module | functions |
//! |---|---|
//! | `error` | `ferrofs_error_*`: errors as objects of the caller |
//! | `open` | opening and closing images, from files and from `struct ferrofs_io` |
//! | `inode` | looking up, `stat`, reading, links, attributes |
//! | `dir` | listing |
//! | `work` | checking and extracting |
//! | `build` | building |
//!
//! `guard`, `pointer`, `structs` and `path` are shared: catching panics, pointers of the caller,
//! the structures of the header, and looking paths up.

mod build;
mod dir;
mod error;
mod guard;
mod inode;
mod io;
mod open;
mod path;
mod pointer;
mod structs;
mod work;

/// The header promises that images and inodes may be used from many threads, and that the others may change threads.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<open::ImageHandle>();
    is_shared::<inode::InodeHandle>();
    is_sent::<dir::DirHandle>();
    is_sent::<error::CallError>();
};
