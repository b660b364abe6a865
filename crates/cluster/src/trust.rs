//! Who may join: a token, a certificate, and the file that holds both.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::ClusterError;
use crate::store::Store;

/// The name in certificates. It says nothing of a machine: an actor knows the certificate itself.
pub(crate) const SERVER_NAME: &str = "starling";

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Everything that an actor needs to join a run. Anyone who reads it can join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinFile {
    /// Where the learner listens, as `host:port`, or the Redis server between them, as
    /// `redis://host:port/db` or `rediss://…`.
    pub address: String,
    /// Proves that an actor may join. In a Redis server it names the run.
    pub token: String,
    /// The learner's certificate (PEM), the only one that is accepted; without it nothing is
    /// encrypted. Of a Redis server it is that of the authority that signed its own, if that is not one
    /// of the system's.
    pub certificate: Option<String>,
    /// The password of the Redis server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
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
        let file = JoinFile::read(join)?;
        if file.is_redis() {
            return Ok(None);
        }
        let JoinFile {
            token, certificate, ..
        } = file;
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
        if let Some((_, secret)) = &self.tls {
            write_private(key, secret).map_err(|error| unwritable(key, &error))?;
        }
        self.join_file(address).write(join)
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
            password: None,
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
    /// For a run over a Redis server: a new run, or that of the file from an earlier start.
    ///
    /// # Errors
    /// When there are no random numbers, or the address is not one.
    pub fn over_redis(
        address: String,
        password: Option<String>,
        certificate: Option<String>,
        before: Option<&Self>,
    ) -> Result<Self, ClusterError> {
        if !Store::is_meant(&address) {
            let text =
                format!("{address} is not redis://HOST:PORT[/DB] or rediss://HOST:PORT[/DB]");
            return Err(ClusterError::Trust(text));
        }
        let token = match before.filter(|before| before.is_redis()) {
            Some(before) => before.token.clone(),
            None => Identity::new(false)?.token,
        };
        let join = Self {
            address,
            token,
            certificate,
            password,
        };
        Store::new(&join)?;
        Ok(join)
    }

    /// Whether learner and actors communicate through a Redis server.
    pub fn is_redis(&self) -> bool {
        Store::is_meant(&self.address)
    }

    /// Whether what is between them is encrypted.
    pub fn is_encrypted(&self) -> bool {
        match self.is_redis() {
            true => self.address.starts_with("rediss://"),
            false => self.certificate.is_some(),
        }
    }

    /// Whether the address is one of this machine alone.
    pub fn is_near(&self) -> bool {
        let place = self
            .address
            .rsplit_once("://")
            .map_or(&*self.address, |(_, rest)| rest);
        let place = place.split('/').next().unwrap_or(place);
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        let host = match place.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => place.split(':').next().unwrap_or(place),
        };
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Writes it so that nobody else can read it.
    pub fn write(&self, path: &Path) -> Result<(), ClusterError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| ClusterError::Trust(error.to_string()))?;
        write_private(path, &format!("{text}\n")).map_err(|error| unwritable(path, &error))
    }

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
    fn addresses_of_this_machine_are_known() {
        for (address, near) in [
            ("127.0.0.1:7777", true),
            ("[::1]:7777", true),
            ("10.0.0.5:7777", false),
            ("redis://127.0.0.1:6379/1", true),
            ("redis://me@localhost", true),
            ("redis://localhost@10.0.0.5:6379", false),
            ("rediss://[fe80::1]:6379/0", false),
        ] {
            let join = JoinFile {
                address: address.into(),
                token: String::new(),
                certificate: None,
                password: None,
            };
            assert_eq!(join.is_near(), near, "{address}");
        }
    }

    /// Passwords are not part of an address, where people would see them.
    #[test]
    fn passwords_in_addresses_are_refused() {
        let over = |address: &str| JoinFile::over_redis(address.into(), None, None, None);
        let refused = over("redis://:secret@127.0.0.1:6379").unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("STARLING_REDIS_PASSWORD") && !text.contains("secret"),
            "{text}"
        );
        assert!(over("http://127.0.0.1").is_err());
        let join = over("redis://127.0.0.1:6379/2").unwrap();
        let address = "redis://127.0.0.1:6380".to_owned();
        let again = JoinFile::over_redis(address, None, None, Some(&join)).unwrap();
        assert_eq!(again.token, join.token);
    }

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
