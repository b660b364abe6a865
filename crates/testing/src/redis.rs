//! A Redis or Valkey server of a test's own.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server at a free port of this machine, with its files in a folder of the test. It ends with the
/// test.
#[derive(Debug)]
pub struct RedisServer {
    program: OsString,
    folder: PathBuf,
    args: Vec<String>,
    port: u16,
    process: Child,
}

impl RedisServer {
    /// Starts a server with these further arguments. Where there is no program for it, records that
    /// `test` is skipped (see [`skip`](crate::skip)) and returns `None`. The program is that of
    /// `STARLING_REDIS_SERVER`, or `redis-server` or `valkey-server`.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(test: &str, folder: &Path, args: &[&str]) -> Option<Self> {
        let given = std::env::var_os("STARLING_REDIS_SERVER");
        let known = ["redis-server", "valkey-server"].map(OsString::from);
        let mut programs = given.into_iter().chain(known);
        let runs = |program: &OsString| {
            let mut command = Command::new(program);
            let tried = command.arg("--version").stdout(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        };
        let Some(program) = programs.find(runs) else {
            let why = "neither redis-server nor valkey-server is installed";
            crate::skip("redis", test, why);
            return None;
        };
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Another process may take the port in between.
        for _ in 0..5 {
            let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
            let Ok(port) = port.map(|address| address.port()) else {
                continue;
            };
            if let Some(process) = launch(&program, folder, &args, port) {
                return Some(Self {
                    program,
                    folder: folder.to_owned(),
                    args,
                    port,
                    process,
                });
            }
        }
        panic!("no Redis server starts in {}", folder.display());
    }

    /// Its port at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after it was killed, with the same files and at the same port.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&mut self) {
        match launch(&self.program, &self.folder, &self.args, self.port) {
            Some(process) => self.process = process,
            None => panic!("the Redis server does not start again"),
        }
    }

    /// What it answers to a command of words, as it is on the wire.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn ask<W: AsRef<[u8]>>(&self, words: &[W]) -> String {
        match ask(self.port, words) {
            Ok(answer) => answer,
            Err(error) => panic!("the Redis server does not answer: {error}"),
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server that answers, unless it ends.
fn launch(program: &OsString, folder: &Path, args: &[String], port: u16) -> Option<Child> {
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--save", "", "--dir"]).arg(folder).args(args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = command.spawn().ok()?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(120) {
        if process.try_wait().ok()?.is_some() {
            return None;
        }
        // One that wants a password is ready too; one that reads its files is not.
        let answer = ask(port, &["PING"]).unwrap_or_default();
        if answer.starts_with("+PONG") || answer.starts_with("-NOAUTH") {
            return Some(process);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = process.kill();
    let _ = process.wait();
    None
}

fn ask<W: AsRef<[u8]>>(port: u16, words: &[W]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        command.extend(format!("${}\r\n", word.len()).bytes());
        command.extend(word);
        command.extend(b"\r\n");
    }
    stream.write_all(&command)?;
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}
