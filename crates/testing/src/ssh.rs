//! An sshd of a test's own.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server at a free port of this machine, with its own host key, configuration and authorised key.
/// It ends with the test.
#[derive(Debug)]
pub struct SshServer {
    folder: PathBuf,
    port: u16,
    process: Child,
}

impl SshServer {
    /// Starts a server. Where there is no program for it, records that `test` is skipped (see
    /// [`skip`](crate::skip)) and returns `None`. Sessions have `home` as their home folder.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(test: &str, folder: &Path, home: &Path) -> Option<Self> {
        let known = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from);
        let Some(program) = known.into_iter().find(|path| path.exists()) else {
            crate::skip("sshd", test, "sshd is not installed");
            return None;
        };
        // The folder to which a server that runs as root confines itself. Elsewhere it is not needed.
        let _ = fs::create_dir_all("/run/sshd");
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let made = command.arg(folder.join(key)).status();
            assert!(made.is_ok_and(|status| status.success()), "no key is made");
        }
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
        let port = port.map_or(0, |address| address.port());
        let at = |name: &str| folder.join(name).display().to_string();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n\
             MaxStartups 100\nSetEnv HOME={}\n",
            at("host"),
            at("authorized"),
            home.display()
        );
        let written = [
            fs::write(folder.join("authorized"), text("user.pub")),
            fs::write(
                folder.join("known"),
                format!("[127.0.0.1]:{port} {}", text("host.pub")),
            ),
            fs::write(folder.join("config"), config),
        ];
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        let log = fs::File::create(folder.join("sshd.txt"));
        let mut command = Command::new(program);
        command.args(["-D", "-e", "-f", &at("config")]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Ok(log) = log {
            command.stderr(log);
        }
        let process = command.spawn();
        let mut process = process.unwrap_or_else(|error| panic!("sshd does not start: {error}"));
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = matches!(process.try_wait(), Ok(Some(_)));
            let late = began.elapsed() > Duration::from_secs(20);
            assert!(!ended && !late, "sshd does not start: {}", text("sshd.txt"));
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self {
            folder: folder.to_owned(),
            port,
            process,
        })
    }

    /// The host, as ssh takes it with [`options`](Self::options).
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Arguments of ssh for a connection to it, and to nothing else.
    pub fn options(&self) -> Vec<String> {
        let at = |name: &str| self.folder.join(name).display().to_string();
        [
            "-F".to_owned(),
            "none".to_owned(),
            "-i".to_owned(),
            at("user"),
            "-o".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "-o".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            "-o".to_owned(),
            format!("UserKnownHostsFile={}", at("known")),
        ]
        .to_vec()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
