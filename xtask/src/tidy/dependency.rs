//! Every crate from outside has its paragraph in docs/dependencies.md: a heading or a table
//! row that names it in backticks. What the paragraph says is for people to judge. Called by
//! `tidy`.

use super::finding::Report;
use super::manifest::Manifest;

pub(crate) fn check(manifests: &[Manifest], page: Option<&str>, report: &mut Report) {
    let page = page.unwrap_or_default();
    for manifest in manifests {
        for dependency in manifest.dependencies.iter().filter(|found| !found.is_internal) {
            let name = &dependency.name;
            if !is_explained(page, name) {
                let message = format!("`{name}` has no paragraph in docs/dependencies.md");
                report.add(&manifest.path, dependency.line, message);
            }
        }
    }
}

/// Whether a heading, or the first cell of a table row, names the crate.
fn is_explained(page: &str, name: &str) -> bool {
    let quoted = format!("`{name}`");
    page.lines().any(|line| {
        let place = match line.strip_prefix('|') {
            Some(row) => row.split('|').next(),
            None => line.strip_prefix('#'),
        };
        place.is_some_and(|place| place.contains(&quoted))
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::finding::Report;
    use crate::tidy::manifest::{Dependency, Manifest, Need};

    fn findings(name: &str, is_internal: bool, page: Option<&str>) -> usize {
        let dependency =
            Dependency { name: name.to_owned(), need: Need::Tests, is_internal, line: 3 };
        let manifest = Manifest {
            path: "Cargo.toml".to_owned(),
            name: "ferrofs".to_owned(),
            dependencies: vec![dependency],
        };
        let mut report = Report::default();
        check(&[manifest], page, &mut report);
        report.lines().len()
    }

    #[test]
    fn a_heading_or_a_first_cell_explains_a_crate() {
        assert_eq!(findings("clap", false, Some("## `clap`\nParses.\n")), 0);
        assert_eq!(findings("clap", false, Some("| `clap` 4 | parses |\n")), 0);
    }

    #[test]
    fn a_mention_elsewhere_explains_nothing() {
        assert_eq!(findings("clap", false, Some("| `lexopt` | rather than `clap` |\n")), 1);
        assert_eq!(findings("clap", false, Some("We like `clap`.\n")), 1);
        assert_eq!(findings("clap", false, Some("## `clap_derive`\n")), 1);
        assert_eq!(findings("clap", false, None), 1);
    }

    #[test]
    fn our_own_crates_need_no_paragraph() {
        assert_eq!(findings("ferrofs-image", true, None), 0);
    }
}
