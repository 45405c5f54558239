//! Examples and programs that use the whole interface.

use std::fs;
use std::process::Command;

use crate::support::{
    Installation, Language, api_images, built, data, has_program, here, skip, succeed,
};

/// The languages that there is a compiler for. A C compiler is a requirement.
fn languages() -> Vec<Language> {
    let has_cpp = has_program(&std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    if !has_cpp {
        skip("there is no C++ compiler");
    }
    let languages = [(Language::C, true), (Language::Cpp, has_cpp)];
    languages.into_iter().filter_map(|(language, there)| there.then_some(language)).collect()
}

#[test]
fn every_function_does_what_the_header_says() {
    let installation = Installation::new();
    for language in languages() {
        let program = installation.compile(&here("tests/c/api.c"), language, &[]);
        let scratch = tempfile::tempdir().unwrap();
        let output = succeed(Command::new(program).args(api_images()).arg(scratch.path()));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_program_runs_with_the_shared_library() {
    let installation = Installation::new();
    installation.link_shared();
    let program = installation.compile(&here("tests/c/api.c"), Language::C, &["-lferrofs"]);
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", installation.dir.path());
    succeed(command.args(api_images()).arg(scratch.path()));
}

#[test]
fn threads_that_share_an_image_read_the_same_bytes() {
    let installation = Installation::new();
    let program = installation.compile(&here("tests/c/threads.c"), Language::C, &[]);
    for image in ["lz4hc-64k.erofs", "lzma.erofs", "lz4hc-all-fragments.erofs"] {
        succeed(Command::new(&program).arg(data(image)));
    }
}

/// Tables and images end with their last handle, also in a forked child.
#[test]
fn tables_and_images_live_as_long_as_the_header_says() {
    let installation = Installation::new();
    let program = installation.compile(&here("tests/c/life.c"), Language::C, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let output = succeed(Command::new(program).arg(scratch.path()).arg(data("tar/pax.tar.gz")));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn initial_values_are_without_warnings_in_every_standard() {
    let installation = Installation::new();
    let source = installation.path("initial.c");
    let text = "#include <ferrofs.h>\nint main (void)\n{\n    struct ferrofs_stat st = FERROFS_INIT (struct \
                ferrofs_stat);\n    return st.size != sizeof st || st.nid != 0;\n}\n";
    fs::write(&source, text).unwrap();
    for standard in ["-std=c99", "-std=c11", "-std=c17", "-std=c2x"] {
        succeed(&mut Command::new(installation.compile(&source, Language::C, &[standard])));
    }
}

#[test]
fn the_example_of_the_readme_compiles_and_runs() {
    let installation = Installation::new();
    let readme = fs::read_to_string(here("README.md")).unwrap();
    let example = readme.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let source = installation.path("readme.c");
    fs::write(&source, example).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("etc")).unwrap();
    fs::write(tree.join("etc/os-release"), "ID=none\n").unwrap();
    let build = installation.compile(&here("examples/build.c"), Language::C, &[]);
    succeed(Command::new(build).arg(&tree).arg(scratch.path().join("app.erofs")));
    for language in languages() {
        let program = installation.compile(&source, language, &[]);
        let output = succeed(Command::new(&program).current_dir(scratch.path()));
        assert_eq!(output.stdout, b"8 bytes\n");
        let output = Command::new(&program).current_dir(&tree).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn the_steps_of_the_readme_without_cargo_c_make_a_program_that_starts() {
    let installation = Installation::new();
    let readme = fs::read_to_string(here("README.md")).unwrap();
    let steps = readme.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let (build, steps) = steps.split_once('\n').unwrap();
    assert!(build.starts_with("cargo build"), "{build}");
    let steps = steps.replace("target/release/", "built/");
    let steps = steps.replace("crates/capi/include", "include");
    let dir = installation.dir.path();
    fs::create_dir(dir.join("built")).unwrap();
    fs::copy(built("libferrofs_capi.so"), dir.join("built/libferrofs_capi.so")).unwrap();
    std::os::unix::fs::symlink(here("include"), dir.join("include")).unwrap();
    fs::copy(here("examples/list.c"), dir.join("program.c")).unwrap();
    succeed(Command::new("sh").args(["-e", "-c", &steps]).current_dir(dir));
    succeed(Command::new(dir.join("program")).arg(data("demo.erofs")));
}

#[test]
fn the_examples_compile_and_run() {
    let installation = Installation::new();
    for language in languages() {
        let list = installation.compile(&here("examples/list.c"), language, &[]);
        let build = installation.compile(&here("examples/build.c"), language, &[]);
        let scratch = tempfile::tempdir().unwrap();
        let (tree, image) = (scratch.path().join("tree"), scratch.path().join("image"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "content").unwrap();
        let output = succeed(Command::new(build).arg(&tree).arg(&image));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("4 inodes, 7 bytes in "), "{text}");
        let output = succeed(Command::new(&list).arg(&image));
        let text = String::from_utf8(output.stdout).unwrap();
        let paths: Vec<_> = text.lines().filter_map(|line| line.split(' ').nth(3)).collect();
        assert_eq!(paths, ["/", "/a", "/a/b", "/a/b/file"]);
        let output = Command::new(&list).arg(tree.join("a/b/file")).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
    }
}
