//! The programs that are launched, in their order: those that a Debian system with python3 has. Each ends as soon as
//! it has started; the last one is the one that is measured. Read by the launcher and by the table.

/// A program and its arguments, as the image names them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) path: &'static str,
    pub(crate) arguments: &'static [&'static str],
}

const fn version(path: &'static str) -> Program {
    Program { path, arguments: &["--version"] }
}

/// All of them.
pub(crate) const PROGRAMS: [Program; 16] = [
    version("/usr/bin/bash"),
    version("/usr/bin/ls"),
    version("/usr/bin/sed"),
    Program { path: "/usr/bin/awk", arguments: &["BEGIN { exit 0 }"] },
    version("/usr/bin/grep"),
    version("/usr/bin/find"),
    version("/usr/bin/tar"),
    version("/usr/bin/sort"),
    version("/usr/bin/diff"),
    version("/usr/bin/dpkg"),
    version("/usr/bin/apt-get"),
    version("/usr/bin/git"),
    version("/usr/bin/gcc"),
    version("/usr/bin/ld"),
    Program { path: "/usr/bin/perl", arguments: &["-MPOSIX", "-e", "1"] },
    Program { path: "/usr/bin/python3", arguments: &["-c", "import json, decimal"] },
];
