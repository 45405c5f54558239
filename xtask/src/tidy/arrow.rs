//! Which crate may see which: the table of arrows, and the check that no manifest draws
//! another. Test-only dependencies are free, since they ship nothing. Called by `tidy`.

use super::finding::Report;
use super::manifest::{Manifest, Need};

/// What a crate may see of the project.
#[derive(Debug, Clone, Copy)]
enum Sight {
    Anything,
    Only(&'static [&'static str]),
}

/// The arrows of ARCHITECTURE.md. Leaves see nothing, and no arrow goes up.
const ARROWS: [(&str, Sight); 13] = [
    (
        "ferrofs",
        Sight::Only(&[
            "ferrofs-extract",
            "ferrofs-fuse",
            "ferrofs-image",
            "ferrofs-codec",
            "ferrofs-ondisk",
            "ferrofs-workers",
            "ferrofs-builder",
            "ferrofs-mount",
        ]),
    ),
    ("ferrofs-extract", Sight::Only(&["ferrofs-image", "ferrofs-workers"])),
    ("ferrofs-image", Sight::Only(&["ferrofs-ondisk", "ferrofs-codec", "ferrofs-workers"])),
    ("ferrofs-builder", Sight::Only(&["ferrofs-ondisk", "ferrofs-codec", "ferrofs-workers"])),
    ("ferrofs-mount", Sight::Only(&["ferrofs-fuse", "ferrofs-image", "ferrofs-workers"])),
    ("ferrofs-bench", Sight::Anything),
    ("ferrofs-fuzz", Sight::Anything),
    ("ferrofs-ondisk", Sight::Only(&[])),
    ("ferrofs-codec", Sight::Only(&[])),
    ("ferrofs-fuse", Sight::Only(&[])),
    ("ferrofs-model", Sight::Only(&[])),
    ("ferrofs-workers", Sight::Only(&[])),
    ("xtask", Sight::Only(&[])),
];

pub(crate) fn check(manifests: &[Manifest], report: &mut Report) {
    for manifest in manifests {
        let name = manifest.name.as_str();
        match ARROWS.iter().find(|(from, _)| *from == name) {
            None => {
                let message = format!("crate {name} has no row in xtask/src/tidy/arrow.rs");
                report.add(&manifest.path, 1, message);
            }
            Some((_, sight)) => check_sight(manifest, *sight, report),
        }
    }
}

fn check_sight(manifest: &Manifest, sight: Sight, report: &mut Report) {
    let Sight::Only(allowed) = sight else { return };
    for dependency in &manifest.dependencies {
        let counts = dependency.is_internal && dependency.need == Need::Build;
        if counts && !allowed.contains(&dependency.name.as_str()) {
            let message = format!("{} may not depend on {}", manifest.name, dependency.name);
            report.add(&manifest.path, dependency.line, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::finding::Report;
    use crate::tidy::manifest::{Dependency, Manifest, Need};

    fn messages(from: &str, to: &str, need: Need) -> Vec<String> {
        let dependency = Dependency { name: to.to_owned(), need, is_internal: true, line: 7 };
        let manifest = Manifest {
            path: "Cargo.toml".to_owned(),
            name: from.to_owned(),
            dependencies: vec![dependency],
        };
        let mut report = Report::default();
        check(&[manifest], &mut report);
        report.into_sorted().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_of_the_table_passes() {
        assert!(messages("ferrofs-image", "ferrofs-codec", Need::Build).is_empty());
        assert!(messages("ferrofs-bench", "ferrofs-mount", Need::Build).is_empty());
    }

    #[test]
    fn an_arrow_up_or_between_leaves_is_reported() {
        assert_eq!(
            messages("ferrofs-ondisk", "ferrofs-image", Need::Build),
            ["Cargo.toml:7: ferrofs-ondisk may not depend on ferrofs-image"]
        );
        assert_eq!(messages("ferrofs-codec", "ferrofs-workers", Need::Build).len(), 1);
        assert_eq!(messages("ferrofs-mount", "ferrofs-ondisk", Need::Build).len(), 1);
    }

    #[test]
    fn tests_may_see_anything() {
        assert!(messages("ferrofs-ondisk", "ferrofs-image", Need::Tests).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_reported() {
        assert_eq!(
            messages("ferrofs-cloud", "ferrofs-image", Need::Build),
            ["Cargo.toml:1: crate ferrofs-cloud has no row in xtask/src/tidy/arrow.rs"]
        );
    }
}
