//! Logins of registries, as docker, podman and skopeo store them. They stay in this process.

use std::fmt;
use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use reqwest::header::HeaderValue;

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

/// The login of a registry, `None` if there is none. Runs a credential helper if one is configured.
///
/// # Errors
/// A text that says why the configuration cannot be used. It contains no part of a login.
pub(crate) async fn find_credentials(registry: &str) -> Result<Option<Credentials>, String> {
    let keys = match registry {
        // Podman's name, and docker's.
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => {
            vec!["docker.io".to_owned(), DOCKER_HUB_KEY.to_owned()]
        }
        other => vec![other.to_owned()],
    };
    // A helper is a process that may take its time.
    let found = tokio::task::spawn_blocking(move || {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        find_in(&login_files(variable, rustix::process::getuid().as_raw()), &keys)
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

/// The first login under one of these names. A file that cannot be used is an error if no other one
/// has a login.
fn find_in(files: &[PathBuf], keys: &[String]) -> Result<Option<DockerCredential>, String> {
    let mut problem = None;
    for file in files {
        let mut failed = |error: &dyn fmt::Display| {
            problem.get_or_insert_with(|| format!("{}: {error}", file.display()));
        };
        let bytes = match read_small_file(file, FILE_MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                failed(&error);
                continue;
            }
        };
        for key in keys {
            match docker_credential::get_credential_from_reader(&bytes[..], key) {
                Ok(login) => return Ok(Some(login)),
                Err(
                    CredentialRetrievalError::NoCredentialConfigured
                    // Helpers fail for a host that they do not know.
                    | CredentialRetrievalError::HelperFailure { .. },
                ) => {}
                Err(error) => failed(&error),
            }
        }
    }
    problem.map_or(Ok(None), Err)
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
            let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
            find_in(&files, &keys)
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
}
