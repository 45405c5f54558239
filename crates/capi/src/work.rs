//! Work on whole images: checking and extracting. Events of the libraries become calls of the
//! caller's functions.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::ffi::{c_char, c_int};

use ferrofs_extract::{ExistingFiles, ExtractEvent, OwnerPolicy, Selection, extract};
use ferrofs_image::{CancelToken, Image, LastLink, VerifyEvent, VerifyOptions, VerifySummary};

use crate::error::{CallError, CallResult, Code};
use crate::guard;
use crate::io::{Answer, Callbacks};
use crate::open::{ImageHandle, host_path};
use crate::path::follow;
use crate::pointer;
use crate::structs::{CheckOptions, CheckSummary, ExtractOptions, ExtractSummary};

/// Bits of `FERROFS_EXTRACT_*`.
mod extract_flag {
    pub(super) const REPLACE: u32 = 1;
    pub(super) const OWNERS: u32 = 2;
    pub(super) const NO_OWNERS: u32 = 4;
    pub(super) const NO_XATTRS: u32 = 8;
    pub(super) const NO_SET_ID: u32 = 16;
    pub(super) const NO_DEVICES: u32 = 32;
    pub(super) const DESTINATION_METADATA: u32 = 64;
    pub(super) const ALL: u32 = 127;
}

/// Number 0 of an option stands for its default.
pub(crate) fn nonzero(number: usize) -> Option<usize> {
    (number > 0).then_some(number)
}

/// `ferrofs_check`.
///
/// # Safety
/// `image` is an open image, `options` and `summary` begin with their size or are NULL, the functions
/// of `options` can be called, `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_check(
    image: *const ImageHandle,
    options: *const CheckOptions,
    summary: *mut CheckSummary,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let (image, options) =
            unsafe { (pointer::handle(image, "image")?, pointer::options(options)?) };
        // SAFETY: this function's contract.
        let place = unsafe { pointer::result_place(summary) }?;
        // SAFETY: this function's contract.
        let path = unsafe { pointer::optional_text(options.path) }.unwrap_or(b"/");
        let found = check(&image.image, path, &options)?;
        let result = CheckSummary {
            inodes: found.inodes,
            bytes: found.bytes,
            problems: found.problems,
            ..CheckSummary::new()
        };
        // SAFETY: this function's contract, and the size is checked.
        unsafe { place.write(&result) };
        Ok(c_int::from(found.problems > 0))
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

fn check(image: &Image, path: &[u8], options: &CheckOptions) -> CallResult<VerifySummary> {
    let CheckOptions { problem, progress, ctx, .. } = *options;
    let callbacks = Callbacks { problem, progress, ctx };
    let cancel = CancelToken::new();
    let mut verifying = VerifyOptions::new().path(start_of(image, path)?).cancel(&cancel);
    if let Some(threads) = nonzero(options.threads) {
        verifying = verifying.max_threads(threads);
    }
    if options.max_work > 0 {
        verifying = verifying.max_work(options.max_work);
    }
    Ok(image.verify(&verifying, &mut |event| {
        let answer = match event {
            VerifyEvent::Problem(problem) => callbacks.problem(&problem.into()),
            VerifyEvent::Progress(now) => callbacks.progress(now.inodes, now.bytes),
        };
        if answer == Answer::Stop {
            cancel.cancel();
        }
    })?)
}

/// Where a check of `path` starts. A path that leads nowhere is a wrong argument. What is damaged on
/// the way is met again by the check, which reports it as a problem.
fn start_of(image: &Image, path: &[u8]) -> CallResult<Vec<u8>> {
    match follow(image, path, LastLink::Keep) {
        Err(error)
            if !matches!(
                error.code(),
                Code::NotFound | Code::Type | Code::Loop | Code::Invalid
            ) =>
        {
            Ok(path.to_vec())
        }
        found => Ok(found?.path),
    }
}

/// `ferrofs_extract`.
///
/// # Safety
/// As [`ferrofs_check`]; `destination` is a text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_extract(
    image: *const ImageHandle,
    destination: *const c_char,
    options: *const ExtractOptions,
    summary: *mut ExtractSummary,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let (image, options) =
            unsafe { (pointer::handle(image, "image")?, pointer::options(options)?) };
        // SAFETY: this function's contract.
        let destination = unsafe { pointer::text(destination, "destination") }?;
        // SAFETY: this function's contract.
        let place = unsafe { pointer::result_place(summary) }?;
        // SAFETY: this function's contract.
        let patterns =
            unsafe { pointer::texts(options.patterns, options.pattern_count, "a pattern") }?;
        let cancel = CancelToken::new();
        let destination = host_path(destination);
        let keeps_its_own =
            options.flags & extract_flag::DESTINATION_METADATA == 0 && destination.is_dir();
        let extracting = extract_options(&options)?
            .selection(Selection::new(patterns))
            .skip_destination_metadata(keeps_its_own)
            .cancel(&cancel);
        let ExtractOptions { problem, progress, ctx, .. } = options;
        let callbacks = Callbacks { problem, progress, ctx };
        let mut handle = |event| {
            if answer(&callbacks, event) == Answer::Stop {
                cancel.cancel();
            }
        };
        let found = extract(&image.image, destination, &extracting, &mut handle)?;
        let result = ExtractSummary {
            entries: found.entries(),
            bytes: found.bytes,
            failures: found.failures,
            ..ExtractSummary::new()
        };
        // SAFETY: this function's contract, and the size is checked.
        unsafe { place.write(&result) };
        Ok(c_int::from(found.failures > 0))
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

fn answer(callbacks: &Callbacks, event: ExtractEvent) -> Answer {
    match event {
        ExtractEvent::Failed(failed) => callbacks.problem(&failed.into()),
        ExtractEvent::Progress(now) => callbacks.progress(now.entries, now.bytes),
        _ => Answer::Continue,
    }
}

fn extract_options(options: &ExtractOptions) -> CallResult<ferrofs_extract::ExtractOptions> {
    let has = |flag| options.flags & flag != 0;
    if has(!extract_flag::ALL) || options.reserved != 0 {
        return Err(CallError::new(Code::Unsupported, "an unknown flag to extract"));
    }
    let owners = match (has(extract_flag::OWNERS), has(extract_flag::NO_OWNERS)) {
        (true, true) => {
            return Err(CallError::invalid("owners cannot be both the image's and the caller's"));
        }
        (true, false) => OwnerPolicy::Image,
        (false, true) => OwnerPolicy::Caller,
        (false, false) => OwnerPolicy::IfRoot,
    };
    let existing = match has(extract_flag::REPLACE) {
        true => ExistingFiles::Replace,
        false => ExistingFiles::Refuse,
    };
    Ok(ferrofs_extract::ExtractOptions::new()
        .existing(existing)
        .owners(owners)
        .skip_xattrs(has(extract_flag::NO_XATTRS))
        .skip_set_id(has(extract_flag::NO_SET_ID))
        .skip_devices(has(extract_flag::NO_DEVICES))
        .max_threads(nonzero(options.threads))
        .max_work((options.max_work > 0).then_some(options.max_work))
        .max_output((options.max_output > 0).then_some(options.max_output)))
}
