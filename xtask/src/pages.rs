//! Manual pages and completions of the command, made from the description of its arguments. What
//! users read is thereby what the parser does.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::aot::{Shell, generate_to};

use crate::arguments::Arguments;
use crate::dump::DumpArguments;
use crate::fsck::FsckArguments;
use crate::mkfs::MkfsArguments;
use crate::mount::{ErofsfuseArguments, MountFuseArguments};

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes `ferrofs.1`, a page for each verb, and one for each other name of the command.
pub(crate) fn write_manual(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let commands = vec![
        Arguments::command(),
        ErofsfuseArguments::command(),
        MountFuseArguments::command(),
        FsckArguments::command(),
        DumpArguments::command(),
        MkfsArguments::command(),
    ];
    for command in commands {
        clap_mangen::generate_to(command, dir)?;
    }
    Ok(())
}

/// Writes a completion file for each shell, under the name that the shell looks for.
pub(crate) fn write_completions(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for shell in SHELLS {
        generate_to(shell, &mut Arguments::command(), "ferrofs", dir)?;
    }
    Ok(())
}

/// The exit status of a chore that writes files.
pub(crate) fn outcome(written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_its_page_and_its_examples() {
        let dir = tempfile::tempdir().unwrap();
        write_manual(dir.path()).unwrap();
        for verb in Arguments::command().get_subcommands() {
            let page = dir.path().join(format!("ferrofs-{}.1", verb.get_name()));
            let text = fs::read_to_string(&page).unwrap();
            assert!(text.contains("Examples"), "{page:?}");
        }
        for name in
            ["ferrofs", "erofsfuse", "mount.fuse.ferrofs", "fsck.erofs", "dump.erofs", "mkfs.erofs"]
        {
            assert!(dir.path().join(format!("{name}.1")).exists(), "{name}");
        }
    }

    #[test]
    fn completions_know_the_verbs() {
        let dir = tempfile::tempdir().unwrap();
        write_completions(dir.path()).unwrap();
        for file in ["ferrofs.bash", "ferrofs.fish", "_ferrofs"] {
            let text = fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(text.contains("extract") && text.contains("no-checksum"), "{file}");
        }
    }
}
