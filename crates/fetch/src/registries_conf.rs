//! Where repositories are by the configuration of podman, skopeo and buildah: `registries.conf`,
//! version 2, with its drop-ins (containers-registries.conf(5)). Read when a location is opened.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::small_file::read_small_file;

/// The longest file that is read, in bytes, and most files of a folder.
const FILE_MAX_BYTES: u64 = 1 << 20;
const DROP_INS_MAX: usize = 1024;
const NAME: &str = "registries.conf";
/// Below the folders of the system.
const SYSTEM: &str = "/etc/containers";
const VENDOR: &str = "/usr/share/containers";

/// Where a repository is, and in which order it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepositoryPlaces {
    pub(crate) mirrors: Vec<MirrorPlace>,
    pub(crate) origin: RepositoryPlace,
}

/// A repository on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepositoryPlace {
    pub(crate) registry: String,
    pub(crate) name: String,
    /// Without TLS.
    pub(crate) is_insecure: bool,
}

/// A repository that has the same as another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorPlace {
    pub(crate) place: RepositoryPlace,
    pub(crate) pull: PullFromMirror,
}

/// What a mirror is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PullFromMirror {
    #[default]
    All,
    DigestOnly,
    TagOnly,
}

impl PullFromMirror {
    pub(crate) fn allows(self, by_digest: bool) -> bool {
        match self {
            Self::All => true,
            Self::DigestOnly => by_digest,
            Self::TagOnly => !by_digest,
        }
    }
}

/// The files.
#[derive(Debug, Default)]
pub(crate) struct RegistriesConf {
    /// By their prefixes.
    registries: BTreeMap<String, RegistryTable>,
}

#[derive(Deserialize)]
struct RegistriesFile {
    #[serde(default)]
    registry: Vec<RegistryTable>,
}

#[derive(Debug, Deserialize)]
struct RegistryTable {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    location: String,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    blocked: bool,
    #[serde(default, rename = "mirror-by-digest-only")]
    by_digest_only: bool,
    #[serde(default)]
    mirror: Vec<MirrorTable>,
}

#[derive(Debug, Deserialize)]
struct MirrorTable {
    location: String,
    #[serde(default)]
    insecure: bool,
    #[serde(default, rename = "pull-from-mirror")]
    pull: Option<PullFromMirror>,
}

/// Which file, and which folders of drop-ins, in the order in which later ones replace earlier ones.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    file: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Files {
    /// As `containers/image` looks for them. `variable` is the environment.
    fn find(variable: impl Fn(&str) -> Option<PathBuf>, exists: impl Fn(&Path) -> bool) -> Self {
        let variable = |name: &str| variable(name).filter(|path| path.is_absolute());
        let home = || Some(variable("HOME")?.join(".config"));
        let user = variable("XDG_CONFIG_HOME").or_else(home).map(|path| path.join("containers"));
        let named = variable("CONTAINERS_REGISTRIES_CONF");
        let folders = match (variable("CONTAINERS_REGISTRIES_CONF_DIR"), &named) {
            (Some(folder), _) => vec![folder],
            // Whoever names a file means that file.
            (None, Some(_)) => Vec::new(),
            (None, None) => {
                let system = [VENDOR, SYSTEM].map(PathBuf::from);
                let all = system.into_iter().chain(user.clone());
                all.map(|folder| folder.join(format!("{NAME}.d"))).collect()
            }
        };
        let usual = user.into_iter().chain([SYSTEM, VENDOR].map(PathBuf::from));
        let mut usual = usual.map(|folder| folder.join(NAME));
        Self { file: named.or_else(|| usual.find(|path| exists(path))), folders }
    }
}

/// The files of a folder of drop-ins. One that is left out could have blocked a registry.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| error.to_string())?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension().is_none_or(|end| end != "conf") {
            continue;
        }
        if names.len() == DROP_INS_MAX {
            return Err(format!("it has more than {DROP_INS_MAX} files; remove some"));
        }
        names.push(path);
    }
    Ok(names)
}

impl RegistriesConf {
    /// Reads the files of this process' user.
    ///
    /// # Errors
    /// A text that names the file: it cannot be read, or is malformed.
    pub(crate) fn load() -> Result<Self, String> {
        let variable = |name: &str| env::var_os(name).map(PathBuf::from);
        Self::read(&Files::find(variable, Path::exists))
    }

    fn read(files: &Files) -> Result<Self, String> {
        let mut all = Self::default();
        if let Some(file) = &files.file {
            all.add(file)?;
        }
        for folder in &files.folders {
            let mut names =
                drop_ins(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
            names.sort_unstable();
            for name in names {
                all.add(&name)?;
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let bytes = match read_small_file(path, FILE_MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|error| failed(&error))?,
        };
        let text = String::from_utf8(bytes).map_err(|error| failed(&error))?;
        let document: RegistriesFile = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + count_lines(&text, span.start));
            failed(&format_args!("line {line}: {}", error.message()))
        })?;
        for mut table in document.registry {
            if table.prefix.is_empty() {
                table.prefix.clone_from(&table.location);
            }
            if table.prefix.is_empty() {
                return Err(failed(&"a [[registry]] has neither prefix nor location"));
            }
            let stars = table.prefix.matches('*').count();
            if stars > usize::from(table.prefix.starts_with("*.")) {
                let why =
                    format!("the prefix {:?} has a * elsewhere than in *.DOMAIN", table.prefix);
                return Err(failed(&why));
            }
            table.prefix = with_lower_host(&table.prefix);
            self.registries.insert(table.prefix.clone(), table);
        }
        Ok(())
    }

    /// Where the repository `name` of `registry` is.
    ///
    /// # Errors
    /// A text: the registry is blocked, or the configuration leads to no repository.
    pub(crate) fn places(&self, registry: &str, name: &str) -> Result<RepositoryPlaces, String> {
        let (registry, name) = canonical(registry, name);
        let reference = format!("{registry}/{name}");
        let found = self.registries.iter().filter_map(|(prefix, table)| {
            Some((matched_length(prefix, &reference)?, prefix.len(), table))
        });
        let Some((matched, _, table)) = found.max_by_key(|found| (found.0, found.1)) else {
            let origin = RepositoryPlace { registry, name, is_insecure: false };
            return Ok(RepositoryPlaces { mirrors: Vec::new(), origin });
        };
        if table.blocked {
            return Err(format!("{NAME} blocks {}", table.prefix));
        }
        let rest = reference.get(matched..).unwrap_or_default();
        let moved = |location: &str, is_insecure| {
            let text = if location.is_empty() {
                reference.clone()
            } else {
                format!("{}{rest}", location.trim_end_matches('/'))
            };
            match text.split_once('/') {
                Some((registry, name)) if is_host(registry) && is_name(name) => {
                    Ok(RepositoryPlace {
                        registry: registry.to_ascii_lowercase(),
                        name: name.into(),
                        is_insecure,
                    })
                }
                _ => Err(format!("{NAME} maps {reference} to {text:?}, which is no repository")),
            }
        };
        let mut mirrors = Vec::with_capacity(table.mirror.len());
        for mirror in &table.mirror {
            let usual =
                if table.by_digest_only { PullFromMirror::DigestOnly } else { PullFromMirror::All };
            let place = moved(&mirror.location, mirror.insecure)?;
            mirrors.push(MirrorPlace { place, pull: mirror.pull.unwrap_or(usual) });
        }
        Ok(RepositoryPlaces { mirrors, origin: moved(&table.location, table.insecure)? })
    }
}

fn count_lines(text: &str, end: usize) -> usize {
    text.bytes().take(end).filter(|byte| *byte == b'\n').count()
}

/// A prefix as it is compared: hosts have no case, and names of repositories have one.
fn with_lower_host(prefix: &str) -> String {
    let (host, rest) = prefix.split_at(prefix.find('/').unwrap_or(prefix.len()));
    host.to_ascii_lowercase() + rest
}

/// The name of a repository as prefixes have it: Docker Hub has several names, and leaves out
/// `library/`.
fn canonical(registry: &str, name: &str) -> (String, String) {
    match &*registry.to_ascii_lowercase() {
        "docker.io" | "index.docker.io" if !name.contains('/') => {
            ("docker.io".to_owned(), format!("library/{name}"))
        }
        "index.docker.io" => ("docker.io".to_owned(), name.to_owned()),
        other => (other.to_owned(), name.to_owned()),
    }
}

/// How much of a reference a prefix is, if the reference begins with it: to the end of a part. `*.`
/// stands for any subdomains.
fn matched_length(prefix: &str, reference: &str) -> Option<usize> {
    let end = match prefix.strip_prefix('*') {
        None => reference.starts_with(prefix).then_some(prefix.len())?,
        Some(domain) => {
            let host = reference.split('/').next().unwrap_or_default();
            let at = host.find(domain).filter(|at| *at > 0)?;
            at + domain.len()
        }
    };
    let next = reference.as_bytes().get(end);
    matches!(next, None | Some(b'/' | b':')).then_some(end)
}

/// Whether a URL can have this text as its host and port.
fn is_host(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// Whether a path can have this text as the name of a repository.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_allowed)
    };
    text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> Result<RegistriesConf, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(NAME);
        std::fs::write(&file, text).unwrap();
        RegistriesConf::read(&Files { file: Some(file), folders: Vec::new() })
    }

    /// `HOST/NAME` of the mirrors and of the origin; with `!` if it has no TLS.
    fn places(conf: &RegistriesConf, registry: &str, name: &str) -> Vec<String> {
        let found = conf.places(registry, name).unwrap();
        let all = found.mirrors.into_iter().map(|mirror| mirror.place).chain([found.origin]);
        all.map(|place| {
            let prefix = if place.is_insecure { "!" } else { "" };
            format!("{prefix}{}/{}", place.registry, place.name)
        })
        .collect()
    }

    #[test]
    fn the_longest_prefix_counts_and_mirrors_come_first() {
        let conf = conf(
            r#"
            unqualified-search-registries = ["docker.io"]
            [[registry]]
            location = "example.com"
            insecure = true
            [[registry]]
            prefix = "example.com/team"
            location = "far.example.org/t"
            [[registry.mirror]]
            location = "near.example.org:5000/m"
            insecure = true
            [[registry.mirror]]
            location = "second"
            [[registry]]
            prefix = "*.example.net"
            [[registry.mirror]]
            location = "cache.example.org/net"
            [[registry]]
            prefix = "docker.io"
            location = "docker.io"
            [[registry.mirror]]
            location = "hub.example.org"
            "#,
        )
        .unwrap();
        let find = |registry, name| places(&conf, registry, name);
        assert_eq!(
            find("example.com", "team/app"),
            ["!near.example.org:5000/m/app", "second/app", "far.example.org/t/app"]
        );
        assert_eq!(find("example.com", "teams/app"), ["!example.com/teams/app"]);
        assert_eq!(find("example.com:5000", "a"), ["!example.com:5000/a"]);
        assert_eq!(find("example.community", "a"), ["example.community/a"]);
        assert_eq!(
            find("a.b.example.net", "x/y"),
            ["cache.example.org/net/x/y", "a.b.example.net/x/y"]
        );
        assert_eq!(find("example.net", "x"), ["example.net/x"]);
        for host in ["docker.io", "index.docker.io"] {
            let wanted = ["hub.example.org/library/debian", "docker.io/library/debian"];
            assert_eq!(find(host, "debian"), wanted);
        }
    }

    #[test]
    fn hosts_have_no_case_and_names_of_repositories_have_one() {
        let conf = conf(
            r#"
            [[registry]]
            prefix = "Example.COM:5000/Team"
            location = "Far.Example.org/T"
            [[registry.mirror]]
            location = "NEAR.example.org:5000/M"
            [[registry]]
            prefix = "*.Example.NET"
            location = "Cache.example.org"
            "#,
        )
        .unwrap();
        let find = |registry, name| places(&conf, registry, name);
        let wanted = ["near.example.org:5000/M/app", "far.example.org/T/app"];
        assert_eq!(find("example.com:5000", "Team/app"), wanted);
        assert_eq!(find("EXAMPLE.com:5000", "Team/app"), wanted);
        assert_eq!(find("example.com:5000", "team/app"), ["example.com:5000/team/app"]);
        assert_eq!(find("a.example.net", "x"), ["cache.example.org/x"]);
        assert_eq!(find("Docker.IO", "debian"), ["docker.io/library/debian"]);
    }

    #[test]
    fn mirrors_may_have_tags_or_digests_only() {
        let conf = conf(
            r#"
            [[registry]]
            location = "a.example"
            mirror-by-digest-only = true
            [[registry.mirror]]
            location = "m1.example"
            [[registry.mirror]]
            location = "m2.example"
            pull-from-mirror = "tag-only"
            "#,
        )
        .unwrap();
        let found = conf.places("a.example", "x").unwrap().mirrors;
        let allowed = |by_digest| -> Vec<_> {
            found.iter().map(|mirror| mirror.pull.allows(by_digest)).collect()
        };
        assert_eq!((allowed(true), allowed(false)), (vec![true, false], vec![false, true]));
    }

    #[test]
    fn what_is_blocked_or_malformed_is_an_error() {
        let blocked = conf("[[registry]]\nlocation = \"a.example/bad\"\nblocked = true\n").unwrap();
        assert!(blocked.places("a.example", "bad/x").unwrap_err().contains("blocks a.example/bad"));
        blocked.places("a.example", "good").unwrap();
        for (text, part) in [
            ("\n[[registry]]\nlocation = 5\n", "line 3"),
            ("[[registry]\n", "line 1"),
            ("[[registry]]\ninsecure = true\n", "neither prefix nor location"),
            ("[[registry]]\nprefix = \"a.*.b\"\n", "*.DOMAIN"),
            ("[[registry]]\nlocation=\"a\"\n[[registry.mirror]]\ninsecure=true\n", "location"),
        ] {
            let error = conf(text).unwrap_err();
            assert!(error.contains(part) && error.contains(NAME), "{text}: {error}");
        }
        let away = conf("[[registry]]\nprefix = \"a.example\"\nlocation = \"b c/d\"\n").unwrap();
        assert!(away.places("a.example", "x").unwrap_err().contains("no repository"));
        let short = conf("[[registry]]\nprefix = \"a.example/x\"\nlocation = \"b\"\n").unwrap();
        short.places("a.example", "x").unwrap_err();
    }

    #[test]
    fn drop_ins_replace_and_the_file_of_the_user_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |name: &str, location: &str| {
            let text = format!("[[registry]]\nprefix = \"a.example\"\nlocation = \"{location}\"\n");
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), text).unwrap();
        };
        let folders = vec![root.join("system.d"), root.join("user.d")];
        let files = Files { file: Some(root.join("main")), folders };
        let found = || places(&RegistriesConf::read(&files).unwrap(), "a.example", "x");
        assert_eq!(found(), ["a.example/x"]);
        for (name, location) in [
            ("main", "one"),
            ("system.d/20.conf", "three"),
            ("system.d/10.conf", "three"),
            ("system.d/30.txt", "three"),
            ("user.d/00.conf", "four"),
        ] {
            write(name, location);
            assert_eq!(found(), [format!("{location}/x")]);
        }
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/me"));
        let user = PathBuf::from("/home/me/.config/containers/registries.conf");
        let all = Files::find(home, |_| true);
        assert_eq!(all.file, Some(user.clone()));
        assert_eq!(all.folders.last(), Some(&user.with_extension("conf.d")));
        let system = Files::find(home, |path| *path != *user);
        assert_eq!(system.file, Some(PathBuf::from("/etc/containers/registries.conf")));
        let named = |name: &str| name.ends_with("_CONF").then(|| PathBuf::from("/x/y"));
        let named = Files::find(named, |_| true);
        assert_eq!(named, Files { file: Some(PathBuf::from("/x/y")), folders: Vec::new() });
    }

    /// It was left out, and with it what it blocks.
    #[test]
    fn a_folder_of_drop_ins_that_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("some.d");
        let files = Files { file: None, folders: vec![folder.clone()] };
        RegistriesConf::read(&files).unwrap();
        std::fs::write(&folder, "").unwrap();
        let error = RegistriesConf::read(&files).unwrap_err();
        assert!(error.contains("some.d"), "{error}");
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        for number in 0..=DROP_INS_MAX {
            if number == DROP_INS_MAX {
                RegistriesConf::read(&files).unwrap();
            }
            std::fs::write(folder.join(format!("{number}.conf")), "").unwrap();
        }
        let error = RegistriesConf::read(&files).unwrap_err();
        assert!(error.contains("more than 1024 files"), "{error}");
    }
}
