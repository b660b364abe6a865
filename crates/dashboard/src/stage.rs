//! The agent playing now: a process that plays with the latest checkpoint of a run while a page shows
//! it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::Player;

/// All agents that are being watched.
pub(crate) struct Stages {
    player: Player,
    /// By the run's id. A stage ends with its last seat.
    stages: Mutex<HashMap<String, Weak<Stage>>>,
}

/// One agent that plays.
struct Stage {
    child: Arc<Mutex<Child>>,
    /// The last picture, as the page gets it.
    picture: watch::Receiver<Bytes>,
}

/// A viewer.
pub(crate) struct Seat {
    stage: Arc<Stage>,
}

/// Why an agent is not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotShown {
    #[error("{MOST} agents are being watched already; close one of those pages")]
    TooMany,
    #[error("the process that plays did not start: {0}")]
    NotStarted(#[from] io::Error),
}

/// Agents that play at the same time.
const MOST: usize = 2;
/// What a description and a picture may have.
const MOST_BYTES: u32 = 16 << 20;
/// A page that takes no picture for this long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

impl Stages {
    pub(crate) fn new(player: Player) -> Self {
        Self {
            player,
            stages: Mutex::default(),
        }
    }

    /// A seat before the agent of a run, which begins to play unless it does already.
    pub(crate) fn sit_down(&self, id: &str, run: &Path) -> Result<Seat, NotShown> {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.retain(|_, stage| stage.strong_count() > 0);
        let playing = stages.get(id).and_then(Weak::upgrade);
        if let Some(stage) = playing.filter(|stage| stage.is_playing()) {
            return Ok(Seat { stage });
        }
        if stages.len() >= MOST && !stages.contains_key(id) {
            return Err(NotShown::TooMany);
        }
        let mut command = (self.player)(run);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let child = Arc::new(Mutex::new(child));
        let (sender, picture) = watch::channel(Bytes::new());
        let stage = Arc::new(Stage {
            child: Arc::clone(&child),
            picture,
        });
        thread::Builder::new().name("stage".into()).spawn(move || {
            if let Some(mut output) = output {
                while let Ok(picture) = read_picture(&mut output) {
                    sender.send_replace(picture);
                }
            }
            // What the process said last stays; if it said nothing, this is what is known.
            let _ = lock(&child).kill();
            let ended = lock(&child).wait();
            if !is_error(&sender.borrow()) {
                let how = ended.map_or_else(|error| error.to_string(), |how| how.to_string());
                let text = format!("the process that plays has ended ({how})");
                sender.send_replace(described(&json!({ "error": text }).to_string()));
            }
        })?;
        stages.insert(id.to_owned(), Arc::downgrade(&stage));
        Ok(Seat { stage })
    }
}

impl Stage {
    fn is_playing(&self) -> bool {
        self.picture.has_changed().is_ok()
    }
}

impl Drop for Stage {
    /// There is no viewer any more. The reading thread waits for the process.
    fn drop(&mut self) {
        let _ = lock(&self.child).kill();
    }
}

impl Seat {
    /// Pictures as they come. One that is not taken in time is left out.
    pub(crate) fn pictures(self) -> ReceiverStream<Result<Bytes, Infallible>> {
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut picture = self.stage.picture.clone();
            picture.mark_changed();
            loop {
                tokio::select! {
                    changed = picture.changed() => if changed.is_err() { return },
                    () = send.closed() => return,
                }
                let next = picture.borrow_and_update().clone();
                if next.is_empty() {
                    continue;
                }
                match tokio::time::timeout(PATIENCE, send.send(Ok(next))).await {
                    Ok(Ok(())) => {}
                    _ => return,
                }
            }
        });
        ReceiverStream::new(receive)
    }
}

/// The next description and picture, with their lengths.
fn read_picture(output: &mut impl Read) -> io::Result<Bytes> {
    let mut head = [0; 8];
    output.read_exact(&mut head)?;
    let [a, b, c, d, e, f, g, h] = head;
    let lengths = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
    if lengths.iter().any(|length| *length > MOST_BYTES) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let length: usize = lengths.iter().map(|length| *length as usize).sum();
    let mut bytes = vec![0; 8 + length];
    bytes[..8].copy_from_slice(&head);
    output.read_exact(&mut bytes[8..])?;
    Ok(bytes.into())
}

/// A description without a picture.
fn described(text: &str) -> Bytes {
    let length = u32::try_from(text.len()).unwrap_or(0);
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

/// Whether a picture is none, but says why.
fn is_error(picture: &Bytes) -> bool {
    picture.get(4..8) == Some(&[0; 4])
}

fn lock(child: &Mutex<Child>) -> std::sync::MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
