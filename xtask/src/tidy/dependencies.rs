//! Every crate from outside has a row or heading in docs/dependencies.md that names it in backticks. What it
//! says is for people to judge. Which crate of the project may depend on which is checked by cargo-deny
//! (`deny.toml`). Called by `tidy`.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::tree::Report;

/// The manifests that cargo is asked about: the workspace, and the workspaces beside it.
const ROOTS: [&str; 3] = ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml"];

/// A dependency of a crate, under its own name rather than one given to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Whether it is a crate of this project.
    pub(crate) is_internal: bool,
    /// The line of the manifest that names it, or 1.
    pub(crate) line: usize,
}

/// A crate of the project with what it asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// The manifests of all members of the workspaces that are there.
pub(crate) fn read_all(root: &Path) -> Result<Vec<Manifest>, Box<dyn Error>> {
    let mut manifests = Vec::new();
    for path in ROOTS.into_iter().filter(|path| root.join(path).is_file()) {
        let answer = metadata(&root.join(path))?;
        let packages = answer["packages"].as_array().ok_or("cargo metadata names no packages")?;
        manifests.extend(packages.iter().map(|package| parse(package, root)));
    }
    Ok(manifests)
}

fn metadata(manifest: &Path) -> Result<Value, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()?;
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&answer.stdout)?)
}

fn parse(package: &Value, root: &Path) -> Manifest {
    let place = Path::new(text(package, "manifest_path"));
    let source = std::fs::read_to_string(place).unwrap_or_default();
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    Manifest {
        path: place.strip_prefix(root).unwrap_or(place).display().to_string(),
        name: text(package, "name").to_owned(),
        dependencies: dependencies.iter().map(|entry| dependency(entry, &source)).collect(),
    }
}

fn dependency(entry: &Value, source: &str) -> Dependency {
    let name = text(entry, "name").to_owned();
    let is_internal = entry["path"].is_string();
    Dependency { line: line_of(source, &name), name, is_internal }
}

fn text<'value>(value: &'value Value, key: &str) -> &'value str {
    value[key].as_str().unwrap_or_default()
}

fn line_of(source: &str, name: &str) -> usize {
    let names_it = |line: &str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '.', '=', '"']))
    };
    source.lines().position(names_it).map_or(1, |index| index + 1)
}

/// Reports each crate from outside that the page does not explain.
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
    use super::{Dependency, Manifest, check, line_of, parse};
    use crate::tidy::tree::Report;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn a_package_is_read_with_its_dependencies_of_every_kind() {
        let package = json!({
            "name": "ferrofs-image",
            "manifest_path": "/checkout/crates/image/Cargo.toml",
            "dependencies": [
                { "name": "ferrofs-codec", "kind": null, "path": "/checkout/crates/codec" },
                { "name": "cc", "kind": "build" },
                { "name": "proptest", "kind": "dev" },
            ],
        });
        let manifest = parse(&package, Path::new("/checkout"));
        let one =
            |name: &str, is_internal| Dependency { name: name.to_owned(), is_internal, line: 1 };
        assert_eq!(manifest.name, "ferrofs-image");
        assert_eq!(manifest.path, "crates/image/Cargo.toml");
        assert_eq!(
            manifest.dependencies,
            [one("ferrofs-codec", true), one("cc", false), one("proptest", false),]
        );
    }

    #[test]
    fn the_line_is_that_of_the_whole_name() {
        let source = "[dependencies]\nserde_json = \"1\"\nserde.workspace = true\n";
        assert_eq!(line_of(source, "serde"), 3);
        assert_eq!(line_of(source, "absent"), 1);
    }

    fn findings(name: &str, is_internal: bool, page: Option<&str>) -> usize {
        let dependency = Dependency { name: name.to_owned(), is_internal, line: 3 };
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
