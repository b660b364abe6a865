//! Runs in a browser: a server that reads run folders, and its page.
//!
//! ```text
//! run folders ──▶ Library (polled once for all pages) ──▶ list, events with a cursor ──▶ page
//!                    │ columns, when a page asks for them ──▶ binary, only missing rows ──▶ │
//!                    ├◀── stop, checkpoint: a signal to the holder of the run's lock ◀── POST ──┤
//! checkpoint ──▶ Stage (a process that plays it) ──▶ pictures, while a page reads them ────────▶ │
//! ```
//!
//! Read first: [`Dashboard`], `Library` (`library.rs`), `Guard` (`guard.rs`).

mod csv;
mod guard;
mod library;
mod page;
mod process;
mod queue;
mod run;
mod server;
mod stage;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_record::RunInfo;

use guard::Guard;
use library::Library;
use server::Shared;
use stage::Stages;

/// The settings that the usual preset of an environment and algorithm gives, if they are known.
pub type Preset = Box<dyn Fn(&RunInfo) -> Option<Value> + Send + Sync>;

/// The runs below a folder as the table shows them, each with its settings by their dotted names
/// (`settings`) and its folder (`path`).
pub fn list_runs(folder: &Path) -> Vec<Value> {
    let library = Library::new(folder.to_owned());
    library.poll();
    library.rows()
}

/// The command that plays with the latest checkpoint of a run, in the folder given, until its output
/// is closed. It writes pictures to its standard output: the length of a description in 4 bytes, the
/// length of a PNG in 4 bytes (both with the lowest byte first), the description in JSON, the PNG. A
/// description with the text `error` is the last one, and has no PNG.
pub type Player = Box<dyn Fn(&Path) -> Command + Send + Sync>;

/// What the dashboard asks of the program that it is part of.
pub struct Program {
    /// For the comparison of settings.
    pub preset: Preset,
    /// For the view of the agent.
    pub player: Player,
}

/// A server that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port}: {source}")]
    Listen {
        /// The host that was asked for.
        host: String,
        /// The port that was asked for.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The folder of the runs.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The system has no random numbers.
    #[error("no random numbers for the token: {0}")]
    Random(#[from] getrandom::Error),
    /// Threads or sockets.
    #[error("the server failed: {0}")]
    Serve(#[from] io::Error),
}

/// A server for the runs below a folder. It listens from the beginning; [`Dashboard::run`] answers.
pub struct Dashboard {
    listener: TcpListener,
    address: SocketAddr,
    host: String,
    shared: Shared,
}

/// How often files are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// The share of the time between looks that a look may take.
const SHARE: u32 = 4;
/// How much the threads of the server give way to training.
const NICE: i32 = 5;

impl Dashboard {
    /// Reads what is below `folder` and listens on `host` (an address or a name) and `port` (0 for
    /// any).
    ///
    /// # Errors
    /// When the folder is missing or the address cannot be used.
    pub fn open(
        folder: &Path,
        host: &str,
        port: u16,
        program: Program,
    ) -> Result<Self, DashboardError> {
        let root = std::fs::canonicalize(folder);
        let root = root.map_err(|_| DashboardError::NotAFolder(folder.to_owned()))?;
        if !root.is_dir() {
            return Err(DashboardError::NotAFolder(folder.to_owned()));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let listener = TcpListener::bind((bare, port));
        let listener = listener.map_err(|source| DashboardError::Listen {
            host: host.to_owned(),
            port,
            source,
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let guard = Guard::new(bare, address)?;
        let library = Library::new(root);
        library.poll();
        let shared = Shared {
            library: Arc::new(library),
            epoch: guard::secret()?.into(),
            guard: Arc::new(guard),
            preset: Arc::new(program.preset),
            stages: Arc::new(Stages::new(program.player)),
            title: folder.display().to_string().into(),
        };
        Ok(Self {
            listener,
            address,
            host: host.to_owned(),
            shared,
        })
    }

    /// The address to open, with the token.
    pub fn url(&self) -> String {
        let token = &self.shared.guard.token;
        let host = match self.address.ip() {
            ip if ip.is_unspecified() => starling_record::host_name(),
            _ if self.host.contains(':') && !self.host.starts_with('[') => {
                format!("[{}]", self.host)
            }
            _ => self.host.clone(),
        };
        format!("http://{host}:{}/?token={token}", self.address.port())
    }

    /// The address of a run's page, with the token.
    pub fn url_of(&self, run: &Path) -> String {
        let path = std::fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
        format!("{}#/run/{}", self.url(), self.shared.library.id_of(&path))
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// When the server cannot be started.
    pub fn run(self) -> Result<(), DashboardError> {
        let library = Arc::clone(&self.shared.library);
        let look = move || {
            give_way();
            loop {
                let began = Instant::now();
                library.poll();
                // On a slow file system less often.
                thread::sleep(EVERY.max(began.elapsed() * SHARE));
            }
        };
        thread::Builder::new().name("runs".into()).spawn(look)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("dashboard")
            .on_thread_start(give_way)
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            axum::serve(listener, server::router(self.shared)).await
        })?;
        Ok(())
    }
}

/// Lowers the priority of this thread. That it cannot be lowered does no harm.
fn give_way() {
    let _ = rustix::process::nice(NICE);
}
