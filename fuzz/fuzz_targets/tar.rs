//! Fuzz target; its body is in the library.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ferrofs_fuzz::TAR.run(bytes));
