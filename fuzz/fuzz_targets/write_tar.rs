//! Fuzz target; its body is in the library.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ferrofs_fuzz::WRITE_TAR.run(bytes));
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, random_value: u32| {
    ferrofs_fuzz::mutate_numbered(
        &mut data[..max_size],
        size.min(max_size),
        random_value,
        libfuzzer_sys::fuzzer_mutate,
    )
});
