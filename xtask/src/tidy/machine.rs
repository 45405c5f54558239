//! Traces of the machine a line was written on: absolute paths of its folders and hosts that
//! only serve packages. The names are spelt in two parts below, so that this file passes its
//! own check. Called by `tidy` for every text file.

use super::finding::Report;
use super::source::SourceFile;

const FOLDERS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

const HOSTS: [&str; 7] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npm", "js.org"),
    concat!("npm", "js.com"),
    concat!("proxy.", "golang.org"),
    concat!("arti", "factory"),
];

pub(crate) fn check(file: &SourceFile, report: &mut Report) {
    for (number, line) in file.lines() {
        for folder in FOLDERS.into_iter().filter(|folder| has_absolute(line, folder)) {
            report.add(&file.path, number, format!("path of one machine: {folder}"));
        }
        for host in HOSTS.into_iter().filter(|host| line.contains(host)) {
            report.add(&file.path, number, format!("host of a package registry: {host}"));
        }
    }
}

/// Whether the folder stands at the start of a path: `tests/NAME/` is a folder of our own.
fn has_absolute(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-})/".contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::{FOLDERS, HOSTS, check};
    use crate::tidy::finding::Report;
    use crate::tidy::source::SourceFile;

    fn lines_found(text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(&SourceFile::new("a.md", text), &mut report);
        report.lines()
    }

    #[test]
    fn an_absolute_folder_is_reported() {
        for folder in FOLDERS {
            assert_eq!(lines_found(&format!("run it in {folder}main\n")), [1]);
            assert_eq!(lines_found(&format!("# Title\n(`{folder}main`)\n")), [2]);
        }
    }

    #[test]
    fn a_registry_host_is_reported() {
        for host in HOSTS {
            assert_eq!(lines_found(&format!("see https://{host}/x\n")), [1]);
        }
    }

    #[test]
    fn relative_paths_and_other_hosts_pass() {
        let text = format!("tests{}a\n${{HOME}}{}\nhttps://example.org/\n", FOLDERS[0], FOLDERS[1]);
        assert_eq!(lines_found(&text), Vec::<usize>::new());
    }
}
