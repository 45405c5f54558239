//! Logins of registries, as docker, podman and skopeo store them. They stay in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use reqwest::header::HeaderValue;
use serde::Deserialize;
use serde_json::Value;

use crate::credential_helper::{HelperError, ask_helper};
use crate::small_file::read_small_file;

/// What docker calls its own registry in its configuration.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
/// The longest file of logins, in bytes.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// A login.
pub(crate) struct Credentials {
    user: String,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// The value of an `Authorization` header; `None` if it has characters that no header has.
    pub(crate) fn basic_header(&self) -> Option<HeaderValue> {
        let encoded = STANDARD.encode(format!("{}:{}", self.user, self.password));
        let mut header = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

/// Names of logins of a repository.
#[derive(Debug, PartialEq, Eq)]
struct LoginNames {
    /// The repository and its parent namespaces with their host, the most specific one first.
    namespaces: Vec<String>,
    /// The host. Helpers know no other name.
    hosts: Vec<String>,
}

impl LoginNames {
    fn new(registry: &str, repository: &str) -> Self {
        let (host, hosts) = match registry {
            // Podman's name, and docker's.
            "docker.io" | "index.docker.io" | "registry-1.docker.io" => {
                ("docker.io", vec!["docker.io".to_owned(), DOCKER_HUB_KEY.to_owned()])
            }
            other => (other, vec![other.to_owned()]),
        };
        let mut namespaces = Vec::new();
        let mut rest = Some(repository);
        while let Some(namespace) = rest {
            namespaces.push(format!("{host}/{namespace}"));
            rest = namespace.rsplit_once('/').map(|(outer, _)| outer);
        }
        Self { namespaces, hosts }
    }
}

/// The login for a repository of a registry, `None` if there is none. Runs a credential helper if one is
/// configured.
///
/// # Errors
/// A text that says why the configuration cannot be used. It contains no part of a login.
pub(crate) async fn find_credentials(
    registry: &str,
    repository: &str,
) -> Result<Option<Credentials>, String> {
    let names = LoginNames::new(registry, repository);
    // A helper is a process that may take its time.
    let found = tokio::task::spawn_blocking(move || {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        find_in(&login_files(variable, rustix::process::getuid().as_raw()), &names)
    });
    match found.await {
        Ok(Ok(Some(DockerCredential::UsernamePassword(user, password)))) => {
            Ok(Some(Credentials { user, password }))
        }
        Ok(Ok(Some(DockerCredential::IdentityToken(_)))) => {
            Err("the login is an identity token, which is not supported; log in with a password"
                .to_owned())
        }
        Ok(Ok(None)) => Ok(None),
        Ok(Err(error)) => Err(format!("the login of the registry: {error}")),
        Err(_) => Err("the login of the registry could not be read".to_owned()),
    }
}

/// The files that may have logins, in the order of podman (containers-auth.json(5)); then docker's.
fn login_files(variable: impl Fn(&str) -> Option<PathBuf>, user: u32) -> Vec<PathBuf> {
    // Relative ones would be looked up from `/`; the XDG base directory specification ignores them, too.
    let variable = |name: &str| variable(name).filter(|path| path.is_absolute());
    let home = variable("HOME");
    let mut files = Vec::new();
    if let Some(named) = variable("REGISTRY_AUTH_FILE") {
        files.push(named);
    } else {
        // Without a session, as for root and in cron, podman has a folder of its own.
        let own = || PathBuf::from(format!("/run/containers/{user}"));
        let runtime = variable("XDG_RUNTIME_DIR").map(|folder| folder.join("containers"));
        files.push(runtime.unwrap_or_else(own).join("auth.json"));
        let config = variable("XDG_CONFIG_HOME");
        let config = config.or_else(|| home.as_ref().map(|home| home.join(".config")));
        files.extend(config.map(|folder| folder.join("containers/auth.json")));
    }
    let docker = variable("DOCKER_CONFIG").or_else(|| home.map(|home| home.join(".docker")));
    files.extend(docker.map(|folder| folder.join("config.json")));
    files
}

/// The login of the first file that has one. A file that cannot be used is an error if no other one has
/// a login.
fn find_in(files: &[PathBuf], names: &LoginNames) -> Result<Option<DockerCredential>, String> {
    let mut diagnostic = None;
    for file in files {
        let mut failed = |error: &dyn fmt::Display| {
            diagnostic.get_or_insert_with(|| format!("{}: {error}", file.display()));
        };
        let bytes = match read_small_file(file, FILE_MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                failed(&error);
                continue;
            }
        };
        match LoginFile::parse(&bytes).and_then(|file| file.find(names)) {
            Ok(Some(login)) => return Ok(Some(login)),
            Ok(None) => {}
            Err(error) => failed(&error),
        }
    }
    diagnostic.map_or(Ok(None), Err)
}

/// A file of logins. Names are compared and helpers are asked here; what else a login can be is the matter
/// of the library.
struct LoginFile {
    logins: BTreeMap<String, Value>,
    helpers: BTreeMap<String, String>,
    /// The helper for all hosts.
    store: Option<String>,
}

/// Why a file of logins cannot be used.
#[derive(Debug)]
enum LoginError {
    File(CredentialRetrievalError),
    Helper(HelperError),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Helper(error) => error.fmt(f),
        }
    }
}

/// What is read of a file of logins.
#[derive(Deserialize)]
struct LoginDocument {
    auths: Option<BTreeMap<String, Value>>,
    #[serde(rename = "credHelpers")]
    helpers: Option<BTreeMap<String, String>>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
}

impl LoginFile {
    fn parse(bytes: &[u8]) -> Result<Self, LoginError> {
        let document: LoginDocument = serde_json::from_slice(bytes)
            .map_err(|_| LoginError::File(CredentialRetrievalError::ConfigReadError))?;
        let mut helpers = document.helpers.unwrap_or_default();
        // Without a program the host has none.
        helpers.retain(|_, program| !program.is_empty());
        let logins = document.auths.unwrap_or_default();
        Ok(Self { logins, helpers, store: document.store.filter(|store| !store.is_empty()) })
    }

    /// The helper of the host comes first, as in podman; then the most specific name counts.
    fn find(&self, names: &LoginNames) -> Result<Option<DockerCredential>, LoginError> {
        for host in &names.hosts {
            if let Some((name, program)) = written(&self.helpers, host)
                && let Some(login) = helper_login(program, name)?
            {
                return Ok(Some(login));
            }
        }
        for namespace in &names.namespaces {
            let Some(entry) = written(&self.logins, namespace) else { continue };
            if let Some(login) = login(&BTreeMap::from([entry]), entry.0)? {
                return Ok(Some(login));
            }
        }
        let all: BTreeMap<_, _> = self.logins.iter().collect();
        let mut failure = None;
        for host in &names.hosts {
            if written(&self.helpers, host).is_some() {
                continue;
            }
            let name = self.host_name(host);
            let found = match (login(&all, name), &self.store) {
                (Ok(None), Some(store)) => helper_login(store, name),
                (found, _) => found,
            };
            match found {
                Ok(Some(login)) => return Ok(Some(login)),
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// The name of the login of a host, under which the library finds it.
    fn host_name<'n>(&'n self, host: &'n str) -> &'n str {
        let mut names = self.logins.keys();
        // It compares the host of a URL itself, but not in another case.
        if names.clone().any(|name| host_of(name) == host) {
            return host;
        }
        names.find(|name| host_of(name).eq_ignore_ascii_case(host)).map_or(host, |name| name)
    }
}

/// What is under a name: this one, or one that has its host in another case.
fn written<'a, T>(all: &'a BTreeMap<String, T>, wanted: &str) -> Option<(&'a String, &'a T)> {
    let parts = |name: &str| {
        let (host, rest) = name.split_at(name.find('/').unwrap_or(name.len()));
        (host.to_ascii_lowercase(), rest.to_owned())
    };
    let is_same = |name: &String| parts(name) == parts(wanted);
    all.get_key_value(wanted).or_else(|| all.iter().find(|(name, _)| is_same(name)))
}

/// The host of a name, which can be a URL.
fn host_of(name: &str) -> &str {
    let url = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
    url.map_or(name, |url| url.split('/').next().unwrap_or_default())
}

/// The login under a name, without any helper.
fn login(
    logins: &BTreeMap<&String, &Value>,
    name: &str,
) -> Result<Option<DockerCredential>, LoginError> {
    let file = serde_json::to_vec(&BTreeMap::from([("auths", logins)]));
    let file = file.map_err(|_| LoginError::File(CredentialRetrievalError::ConfigReadError))?;
    match docker_credential::get_credential_from_reader(&*file, name) {
        Ok(login) => Ok(Some(login)),
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(None),
        Err(error) => Err(LoginError::File(error)),
    }
}

/// The login that a helper has for a host.
fn helper_login(program: &str, host: &str) -> Result<Option<DockerCredential>, LoginError> {
    let answer = ask_helper(program, host).map_err(LoginError::Helper)?;
    Ok(answer.map(|login| match &*login.username {
        // What docker writes in the place of a name.
        "<token>" => DockerCredential::IdentityToken(login.secret),
        _ => DockerCredential::UsernamePassword(login.username, login.secret),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_of_podman_come_before_those_of_docker() {
        let files = |names: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = names.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| PathBuf::from(value))
            };
            let files = login_files(variable, 7);
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>()
        };
        let session = files(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/7")]);
        let rest = ["/h/.config/containers/auth.json", "/h/.docker/config.json"];
        assert_eq!(session[0], "/run/user/7/containers/auth.json");
        assert_eq!(session[1..], rest);
        let cron = files(&[("HOME", "/h")]);
        assert_eq!(cron[0], "/run/containers/7/auth.json");
        assert_eq!(cron[1..], rest);
        assert_eq!(files(&[]), ["/run/containers/7/auth.json"]);
        let named = files(&[("REGISTRY_AUTH_FILE", "/a"), ("DOCKER_CONFIG", "/d")]);
        assert_eq!(named, ["/a", "/d/config.json"]);
        let relative = files(&[("HOME", "h"), ("XDG_RUNTIME_DIR", "."), ("XDG_CONFIG_HOME", "c")]);
        assert_eq!(relative, ["/run/containers/7/auth.json"]);
    }

    #[test]
    fn the_first_file_with_a_login_counts() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        // me:one and me:two.
        let auth =
            |key: &str, auth: &str| format!(r#"{{"auths":{{"{key}":{{"auth":"{auth}"}}}}}}"#);
        let one = write("one", &auth("host:5000", "bWU6b25l"));
        let two = write("two", &auth("host:5000", "bWU6dHdv"));
        let hub = write("hub", &auth(DOCKER_HUB_KEY, "bWU6b25l"));
        let (empty, bad) = (write("empty", "{}"), write("bad", "{"));
        let absent = directory.path().join("absent");
        let find = |files: &[&PathBuf], keys: &[&str]| {
            let files: Vec<_> = files.iter().map(|file| (*file).clone()).collect();
            let hosts = keys.iter().map(|key| (*key).to_owned()).collect();
            find_in(&files, &LoginNames { namespaces: Vec::new(), hosts })
        };
        let login = |password: &str| {
            Ok(Some(DockerCredential::UsernamePassword("me".into(), password.into())))
        };
        assert_eq!(find(&[&absent, &empty, &two, &one], &["host:5000"]), login("two"));
        assert_eq!(find(&[&bad, &one], &["host:5000"]), login("one"));
        assert_eq!(find(&[&one, &hub], &["docker.io", DOCKER_HUB_KEY]), login("one"));
        assert_eq!(find(&[&absent, &empty], &["host:5000"]), Ok(None));
        let error = find(&[&bad, &empty], &["host:5000"]).unwrap_err();
        assert!(error.contains("/bad: "), "{error}");
    }

    /// The password that is found for a repository in a file of logins.
    fn found(file: &str, registry: &str, repository: &str) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("auth.json");
        std::fs::write(&path, file).unwrap();
        match find_in(&[path], &LoginNames::new(registry, repository)).unwrap() {
            Some(DockerCredential::UsernamePassword(_, password)) => Some(password),
            other => {
                assert_eq!(other, None);
                None
            }
        }
    }

    fn file_of(names: &[&str]) -> String {
        let entry = |name: &&str| {
            let auth = STANDARD.encode(format!("me:{name}"));
            format!(r#""{name}":{{"auth":"{auth}"}}"#)
        };
        let entries: Vec<_> = names.iter().map(entry).collect();
        format!(r#"{{"auths":{{{}}}}}"#, entries.join(","))
    }

    #[test]
    fn the_most_specific_login_of_a_repository_counts() {
        let all = ["host:5000", "host:5000/a", "host:5000/a/b", "host:5000/a/b/c", "host:5000/x"];
        for count in 1..=4 {
            let file = file_of(&all[..count]);
            let wanted = Some(all[count - 1].to_owned());
            assert_eq!(found(&file, "host:5000", "a/b/c"), wanted, "{file}");
        }
        let file = file_of(&all);
        let found = |repository| found(&file, "host:5000", repository).unwrap();
        assert_eq!(found("a/b/cc"), "host:5000/a/b");
        assert_eq!(found("aa"), "host:5000");
        assert_eq!(found("x"), "host:5000/x");
        let of_others = file_of(&["host:5000/x", "other", "host"]);
        assert_eq!(self::found(&of_others, "host:5000", "a"), None);
    }

    #[test]
    fn docker_hub_has_namespaces_under_the_name_of_podman() {
        let file = file_of(&["docker.io/me", DOCKER_HUB_KEY]);
        let found = |name| found(&file, "registry-1.docker.io", name).unwrap();
        assert_eq!(found("me/app"), "docker.io/me");
        assert_eq!(found("library/debian"), DOCKER_HUB_KEY);
    }

    #[test]
    fn the_host_of_a_login_has_no_case() {
        let find = |names: &[&str]| found(&file_of(names), "localhost:5000", "a/b");
        assert_eq!(find(&["LocalHost:5000"]).unwrap(), "LocalHost:5000");
        assert_eq!(find(&["LocalHost:5000", "localhost:5000"]).unwrap(), "localhost:5000");
        assert_eq!(find(&["https://LocalHost:5000/v1/"]).unwrap(), "https://LocalHost:5000/v1/");
        assert_eq!(find(&["LocalHost:5000/a", "localhost:5000"]).unwrap(), "LocalHost:5000/a");
        assert_eq!(find(&["localhost:5000/A"]), None);
    }

    #[test]
    fn helpers_are_asked_for_hosts_only() {
        // No program has this name.
        let store = r#"{"credsStore":"none-has-this-name","auths":{"host/a":{"auth":"bWU6b25l"}}}"#;
        assert_eq!(found(store, "host", "a/b").unwrap(), "one");
        let helper = r#"{"credHelpers":{"host/a":"none-has-this-name"}}"#;
        assert_eq!(found(helper, "host", "a/b"), None);
        // A login without a password is kept by a helper, or is none.
        let empty = r#"{"auths":{"host/a":{},"host":{"auth":"bWU6b25l"}}}"#;
        assert_eq!(found(empty, "host", "a/b").unwrap(), "one");
    }

    #[test]
    fn what_cannot_be_used_is_not_replaced_by_a_less_specific_login() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("auth.json");
        for text in [
            r#"{"auths":{"host/a":{"auth":"?"},"host":{"auth":"bWU6b25l"}}}"#,
            // The helper of a host comes first.
            r#"{"credHelpers":{"Host":"none-has-this-name"},"auths":{"host/a":{"auth":"bWU6b25l"}}}"#,
            r#"{"auths":{"host/a":{"auth":5}}}"#,
            r#"{"auths":[]}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            let error = find_in(std::slice::from_ref(&path), &LoginNames::new("host", "a/b"));
            let error = error.unwrap_err();
            assert!(error.contains("auth.json: "), "{text}: {error}");
        }
    }
}
