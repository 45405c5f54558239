//! Opening and closing images, and what the superblock says.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{FileSource, Image, ImageSource, MemoryPool};

use crate::error::{CallError, CallResult, Code};
use crate::guard;
use crate::io::CallerTables;
use crate::pointer;
use crate::structs::{ImageInfo, IoTable, OpenOptions};

/// `FERROFS_OPEN_IGNORE_CHECKSUM`.
const IGNORE_CHECKSUM: u32 = 1;

/// The version with a NUL behind it.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL"),
    };

/// An open image, which all its handles share.
#[derive(Clone, Debug)]
pub(crate) struct SharedImage {
    image: Image,
    /// Dropped behind the image.
    _tables: Arc<CallerTables>,
}

impl Deref for SharedImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

/// An image. The type is `ferrofs_image` in C.
#[derive(Debug)]
pub(crate) struct ImageHandle {
    pub(crate) image: SharedImage,
}

impl ImageHandle {
    pub(crate) fn new(image: Image, tables: CallerTables) -> Self {
        Self { image: SharedImage { image, _tables: Arc::new(tables) } }
    }
}

/// `ferrofs_version`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ferrofs_version() -> *const c_char {
    VERSION.as_ptr()
}

/// `ferrofs_open`.
///
/// # Safety
/// As the header says of all pointers: `path` is a text, `options` begins with its size, `image` and
/// `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_open(
    path: *const c_char,
    options: *const OpenOptions,
    image: *mut *mut ImageHandle,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let (path, options) = unsafe { (pointer::text(path, "path")?, pointer::options(options)?) };
        pointer::require(image, "image")?;
        let opening = image_options(&options)?;
        // SAFETY: this function's contract.
        let devices = unsafe { pointer::texts(options.devices, options.device_count, "a device") }?;
        let primary = FileSource::open(host_path(path), options.offset);
        let primary = primary.map_err(|error| {
            CallError::io(&error, format!("{}: {error}", path.escape_ascii())).at_path(path)
        })?;
        let devices = devices.into_iter().map(|device| {
            Ok(Arc::new(FileSource::open_device(host_path(device))?) as Arc<dyn ImageSource>)
        });
        let devices = devices.collect::<CallResult<Vec<_>>>()?;
        let opened = opening.open_sources(Arc::new(primary), devices);
        let opened = opened.map_err(|error| CallError::from(error).at_path(path))?;
        let opened = ImageHandle::new(opened, CallerTables::default());
        // SAFETY: this function's contract.
        unsafe { pointer::write_handle(image, opened) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_open_io`.
///
/// # Safety
/// As [`ferrofs_open`]; `io` and the items of `devices` begin with their size, and their functions can
/// be called from any thread.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_open_io(
    io: *const IoTable,
    devices: *const *const IoTable,
    device_count: usize,
    options: *const OpenOptions,
    image: *mut *mut ImageHandle,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        let mut tables = CallerTables::default();
        // All tables are taken before anything can fail, so that each of them is closed.
        // SAFETY: this function's contract.
        let primary = unsafe { source(io, &mut tables) };
        // SAFETY: this function's contract.
        let devices = unsafe { pointer::array(devices, device_count) }?;
        // SAFETY: this function's contract.
        let devices = devices.iter().map(|device| unsafe { source(*device, &mut tables) });
        let devices: Vec<_> = devices.collect();
        let (primary, devices) = (primary?, devices.into_iter().collect::<CallResult<Vec<_>>>()?);
        // SAFETY: this function's contract.
        let options = unsafe { pointer::options(options) }?;
        pointer::require(image, "image")?;
        if options.offset != 0 || options.device_count != 0 {
            return Err(CallError::invalid("ferrofs_open_io takes no offset and no device files"));
        }
        let opened = image_options(&options)?.open_sources(primary, devices)?;
        // SAFETY: this function's contract.
        unsafe { pointer::write_handle(image, ImageHandle::new(opened, tables)) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// Takes a table.
///
/// # Safety
/// `table` is NULL or begins with its size.
unsafe fn source(
    table: *const IoTable,
    tables: &mut CallerTables,
) -> CallResult<Arc<dyn ImageSource>> {
    if table.is_null() {
        return Err(CallError::invalid("a struct ferrofs_io is NULL"));
    }
    // SAFETY: this function's contract.
    let (table, rest) = unsafe { pointer::options_with_rest(table) }?;
    tables.take(table, rest)
}

fn image_options(options: &OpenOptions) -> CallResult<ferrofs_image::OpenOptions> {
    if options.flags & !IGNORE_CHECKSUM != 0 || options.reserved != 0 {
        return Err(CallError::new(Code::Unsupported, "an unknown flag to open an image"));
    }
    let made =
        ferrofs_image::OpenOptions::new().ignore_checksum(options.flags & IGNORE_CHECKSUM != 0);
    Ok(match options.memory_bytes {
        0 => made,
        bytes => made.memory(&MemoryPool::new(bytes)?),
    })
}

/// A path of the host.
pub(crate) fn host_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// `ferrofs_close`.
///
/// # Safety
/// `image` is NULL or an open image.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_close(image: *mut ImageHandle) {
    // SAFETY: this function's contract.
    guard::drop_quietly(|| unsafe { pointer::free(image) });
}

/// `ferrofs_image_get_info`.
///
/// # Safety
/// `image` is an open image, `info` begins with its size, `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_image_get_info(
    image: *const ImageHandle,
    info: *mut ImageInfo,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let image = unsafe { pointer::handle(image, "image") }?;
        pointer::require(info, "info")?;
        // SAFETY: this function's contract.
        let place = unsafe { pointer::result_place(info) }?;
        // SAFETY: this function's contract, and the size is checked.
        unsafe { place.write(&image_info(&image.image)) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

fn image_info(image: &Image) -> ImageInfo {
    let superblock = image.superblock();
    let mut label = [0; 24];
    for (target, byte) in label.iter_mut().zip(superblock.label) {
        *target = byte;
    }
    ImageInfo {
        inodes: superblock.inodes,
        blocks: superblock.blocks,
        build_time: superblock.epoch.saturating_add(superblock.build_time.into()),
        root_nid: superblock.root.raw(),
        block_bytes: superblock.block_size.bytes(),
        device_count: superblock.extra_devices.into(),
        uuid: superblock.uuid,
        label,
        ..ImageInfo::new()
    }
}
