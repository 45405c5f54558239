//! What each crate asks for, as cargo understands its manifest. It reads and judges nothing;
//! the checks of arrows and of docs/dependencies.md use it. Called by `tidy`.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The manifests that cargo is asked about: the workspace, and the fuzz targets beside it.
const ROOTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Which build needs a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The crate itself or its build script.
    Build,
    /// Only its tests, examples and benches.
    Tests,
}

/// A dependency of a crate, under its own name rather than one given to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) need: Need,
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

/// The manifests of the workspace's members and of the fuzz targets, if there are any.
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
    let need = if text(entry, "kind") == "dev" { Need::Tests } else { Need::Build };
    let is_internal = entry["path"].is_string();
    Dependency { line: line_of(source, &name), name, need, is_internal }
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

#[cfg(test)]
mod tests {
    use super::{Dependency, Need, line_of, parse};
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn a_package_is_read_with_its_three_kinds_of_dependency() {
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
        let one = |name: &str, need, is_internal| Dependency {
            name: name.to_owned(),
            need,
            is_internal,
            line: 1,
        };
        assert_eq!(manifest.name, "ferrofs-image");
        assert_eq!(manifest.path, "crates/image/Cargo.toml");
        assert_eq!(
            manifest.dependencies,
            [
                one("ferrofs-codec", Need::Build, true),
                one("cc", Need::Build, false),
                one("proptest", Need::Tests, false),
            ]
        );
    }

    #[test]
    fn the_line_is_that_of_the_whole_name() {
        let source = "[dependencies]\nserde_json = \"1\"\nserde.workspace = true\n";
        assert_eq!(line_of(source, "serde"), 3);
        assert_eq!(line_of(source, "absent"), 1);
    }
}
