//! Damaged images through the C interface, under programs that find errors of memory.

use std::process::Command;

use crate::support::{
    Installation, Language, api_images, data, has_program, here, images, skip, succeed,
};

#[test]
fn damaged_images_give_errors_and_no_output() {
    let installation = Installation::new();
    let program = installation.compile(&here("tests/c/exercise.c"), Language::C, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let output = succeed(Command::new(program).arg(scratch.path()).args(images()));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// AddressSanitizer replaces the allocator of the whole program, so it finds what either side does to
/// memory after it is freed or past its end as far as C code touches it, and what nobody frees.
#[test]
fn damaged_images_are_clean_under_the_address_sanitizer() {
    let installation = Installation::new();
    let probe = installation.path("probe.c");
    std::fs::write(&probe, "int main (void) { return 0; }\n").unwrap();
    let has_sanitizer = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-fsanitize=address", "-o"])
        .arg(installation.path("probe"))
        .arg(&probe)
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_sanitizer {
        return skip("the C compiler has no AddressSanitizer");
    }
    let flags = ["-fsanitize=address"];
    let program = installation.compile(&here("tests/c/exercise.c"), Language::C, &flags);
    let scratch = tempfile::tempdir().unwrap();
    let output = succeed(Command::new(program).arg(scratch.path()).args(images()));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let program = installation.compile(&here("tests/c/api.c"), Language::C, &flags);
    let scratch = tempfile::tempdir().unwrap();
    succeed(Command::new(program).args(api_images()).arg(scratch.path()));
}

#[test]
fn valgrind_finds_nothing() {
    if !has_program("valgrind") {
        return skip("valgrind is not installed");
    }
    let installation = Installation::new();
    for (source, image) in [("api", "demo.erofs"), ("exercise", "lz4hc-64k-ztail.erofs")] {
        let source = here(&format!("tests/c/{source}.c"));
        let program = installation.compile(&source, Language::C, &[]);
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("valgrind");
        // Threads of the library live until the process ends, so their stacks are reachable then.
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        command.arg(program);
        match source.ends_with("api.c") {
            true => command.args(api_images()).arg(scratch.path()),
            false => command.arg(scratch.path()).arg(data(image)),
        };
        let output = succeed(&mut command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // Lines with two dashes are about valgrind itself: older ones do not know openat2.
        assert!(stderr.lines().all(|line| line.starts_with("--")), "{stderr}");
    }
}
