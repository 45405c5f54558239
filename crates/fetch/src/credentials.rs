//! Logins of registries, as docker, podman and skopeo store them. They stay in this process.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use reqwest::header::HeaderValue;

/// What docker calls its own registry in its configuration.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

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
    let key = match registry {
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB_KEY,
        other => other,
    };
    let key = key.to_owned();
    // A helper is a process that may take its time.
    let found = tokio::task::spawn_blocking(move || {
        let podman = docker_credential::get_podman_credential(&key);
        if podman.is_ok() { podman } else { docker_credential::get_credential(&key) }
    });
    match found.await {
        Ok(Ok(DockerCredential::UsernamePassword(user, password))) => {
            Ok(Some(Credentials { user, password }))
        }
        Ok(Ok(DockerCredential::IdentityToken(_))) => {
            Err("the login is an identity token, which is not supported; log in with a password"
                .to_owned())
        }
        Ok(Err(
            CredentialRetrievalError::NoCredentialConfigured
            | CredentialRetrievalError::ConfigNotFound
            // Helpers fail for a host that they do not know.
            | CredentialRetrievalError::HelperFailure { .. },
        )) => Ok(None),
        // The crate has one error for a file that is missing and one that cannot be read.
        Ok(Err(CredentialRetrievalError::ConfigReadError)) if !has_docker_config() => Ok(None),
        Ok(Err(error)) => Err(format!("the login of the registry: {error}")),
        Err(_) => Err("the login of the registry could not be read".to_owned()),
    }
}

fn has_docker_config() -> bool {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".docker")));
    folder.is_some_and(|folder| folder.join("config.json").exists())
}
