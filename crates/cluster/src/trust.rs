//! Who may join: a token, a certificate, and the file that holds both.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::ClusterError;

/// The name in certificates. It says nothing of a machine: an actor knows the certificate itself.
pub(crate) const SERVER_NAME: &str = "starling";

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// All that an actor needs to join a run. Whoever reads it can take part.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinFile {
    /// Where the learner listens, as `host:port`.
    pub address: String,
    /// Proves that an actor may join.
    pub token: String,
    /// The learner's certificate (PEM), the only one that is accepted. Without it nothing is
    /// encrypted.
    pub certificate: Option<String>,
}

/// What the learner keeps to itself.
#[derive(Clone)]
pub struct Identity {
    pub(crate) token: String,
    /// Certificate and key (PEM).
    pub(crate) tls: Option<(String, String)>,
}

impl std::fmt::Debug for JoinFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinFile({})", self.address)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity(tls: {})", self.tls.is_some())
    }
}

impl Identity {
    /// A new token, and with `tls` a new certificate.
    pub fn new(tls: bool) -> Result<Self, ClusterError> {
        let mut token = [0; TOKEN_BYTES];
        let random = getrandom::fill(&mut token);
        random.map_err(|error| ClusterError::Trust(error.to_string()))?;
        let token = token.iter().map(|byte| format!("{byte:02x}")).collect();
        let make = || rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
        let tls = match tls.then(make).transpose() {
            Ok(made) => made.map(|made| (made.cert.pem(), made.signing_key.serialize_pem())),
            Err(error) => return Err(ClusterError::Trust(error.to_string())),
        };
        Ok(Self { token, tls })
    }

    /// The one that wrote these files, so that actors can join a learner that starts again.
    ///
    /// # Errors
    /// When a file is there that cannot be read.
    pub fn read(join: &Path, key: &Path) -> Result<Option<Self>, ClusterError> {
        if !join.exists() {
            return Ok(None);
        }
        let JoinFile {
            token, certificate, ..
        } = JoinFile::read(join)?;
        let tls = match certificate {
            None => None,
            Some(certificate) => {
                let key = fs::read_to_string(key).map_err(|error| unreadable(key, &error))?;
                Some((certificate, key))
            }
        };
        Ok(Some(Self { token, tls }))
    }

    /// Writes both files so that nobody else can read them: what actors need, and the key.
    pub fn write(&self, address: String, join: &Path, key: &Path) -> Result<(), ClusterError> {
        let file = self.join_file(address);
        let text = serde_json::to_string_pretty(&file)
            .map_err(|error| ClusterError::Trust(error.to_string()))?;
        if let Some((_, secret)) = &self.tls {
            write_private(key, secret).map_err(|error| unwritable(key, &error))?;
        }
        write_private(join, &format!("{text}\n")).map_err(|error| unwritable(join, &error))
    }

    /// What actors need.
    pub fn join_file(&self, address: String) -> JoinFile {
        let certificate = self
            .tls
            .as_ref()
            .map(|(certificate, _)| certificate.clone());
        JoinFile {
            address,
            token: self.token.clone(),
            certificate,
        }
    }

    /// Whether what is between them is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether this is the token. How long it takes does not depend on where they differ.
    pub(crate) fn accepts(&self, given: &[u8]) -> bool {
        let expected = bearer(&self.token);
        expected.as_bytes().ct_eq(given).into()
    }
}

/// The token as metadata.
pub(crate) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

impl JoinFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, ClusterError> {
        let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        Self::parse(&text).map_err(|error| unreadable(path, &error))
    }

    /// From the content of a file, or from its path.
    pub fn find(given: &str) -> Result<Self, ClusterError> {
        match given.trim_start().starts_with('{') {
            true => Self::parse(given)
                .map_err(|error| ClusterError::Trust(format!("the join file is damaged: {error}"))),
            false => Self::read(Path::new(given)),
        }
    }

    fn parse(text: &str) -> io::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }
}

/// A file that only its owner can read, whatever was there before.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(partial, path)
}

fn unreadable(path: &Path, error: &io::Error) -> ClusterError {
    ClusterError::Trust(format!("cannot read {}: {error}", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> ClusterError {
    ClusterError::Trust(format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_files_are_private_and_bring_the_identity_back() {
        let folder = tempfile::tempdir().unwrap();
        let (join, key) = (folder.path().join("join.json"), folder.path().join("key"));
        assert!(Identity::read(&join, &key).unwrap().is_none());
        for tls in [true, false] {
            let made = Identity::new(tls).unwrap();
            made.write("127.0.0.1:7".into(), &join, &key).unwrap();
            for path in [&join, &key] {
                let mode = fs::metadata(path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600);
            }
            let back = Identity::read(&join, &key).unwrap().unwrap();
            assert_eq!((&back.token, &back.tls), (&made.token, &made.tls));
            let content = fs::read_to_string(&join).unwrap();
            assert_eq!(
                JoinFile::find(&content).unwrap(),
                made.join_file("127.0.0.1:7".into())
            );
        }
    }

    #[test]
    fn only_the_token_is_accepted() {
        let (one, other) = (Identity::new(false).unwrap(), Identity::new(false).unwrap());
        assert_eq!(one.token.len(), 2 * TOKEN_BYTES);
        assert!(one.accepts(bearer(&one.token).as_bytes()));
        for wrong in [bearer(&other.token), one.token.clone(), String::new()] {
            assert!(!one.accepts(wrong.as_bytes()));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let made = Identity::new(true).unwrap();
        let shown = format!("{made:?} {:?}", made.join_file("a:1".into()));
        assert!(
            !shown.contains(&made.token) && !shown.contains("PRIVATE"),
            "{shown}"
        );
    }
}
