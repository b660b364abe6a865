//! One worker process: how it is started, what it says, how it ends.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::interpreter::{cannot_run, command};

/// What every worker runs.
const PROGRAM: &str = include_str!("worker.py");

/// The last lines of its output that are part of the message about a worker that ended.
const LAST_LINES: usize = 30;

/// How long a wait takes before it returns to the caller, which may wait again.
const SLICE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// How long a worker may take to end by itself.
const TO_END: Duration = Duration::from_millis(500);

/// A worker process.
pub(crate) struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    answers: ChildStdout,
    log: Log,
    /// The kernel ends the worker when this is closed.
    _life: OwnedFd,
}

/// What a worker answered.
pub(crate) enum Answer {
    /// All went well.
    Done,
    /// What it was asked to describe.
    Described(Value),
    /// What went wrong.
    Failed(Value),
    /// A picture: height, width and bytes.
    Picture(usize, usize, Vec<u8>),
}

impl Worker {
    /// Starts a worker that shares the given memory. `config` is what it is told first: it gets the
    /// numbers of two open files of the worker, the one that tells it when this process is gone and
    /// the memory.
    pub(crate) fn start(
        python: &Path,
        memory: Option<BorrowedFd<'_>>,
        config: impl FnOnce(i32, i32) -> Value,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a worker process could not be started: {error}");
        let (life_read, life) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        // Duplicates are inherited by processes that are started while they are open. They are
        // closed when the worker has them.
        let life_read = rustix::io::dup(&life_read).map_err(|e| failed(e.into()))?;
        let memory = memory.map(rustix::io::dup).transpose();
        let memory = memory.map_err(|e| failed(e.into()))?;
        let number = |file: &OwnedFd| file.as_raw_fd();
        let config = config(number(&life_read), memory.as_ref().map_or(-1, number)).to_string();
        let mut command = command(python);
        command
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for this process, which decides when workers end.
            .process_group(0);
        // Environments of several workers compute at the same time already.
        for name in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"] {
            if std::env::var_os(name).is_none() {
                command.env(name, "1");
            }
        }
        let mut child = command.spawn().map_err(|e| cannot_run(python, &e))?;
        let missing = || failed(io::ErrorKind::BrokenPipe.into());
        let commands = child.stdin.take().ok_or_else(missing)?;
        let answers = child.stdout.take().ok_or_else(missing)?;
        let log = Log::new(child.stderr.take().ok_or_else(missing)?).map_err(failed)?;
        let mut worker = Self {
            child,
            commands: Some(commands),
            answers,
            log,
            _life: life,
        };
        let length = (config.len() as u32).to_le_bytes();
        worker.send(&[&length[..], config.as_bytes()].concat());
        Ok(worker)
    }

    /// Its output is logged under this name.
    pub(crate) fn named(mut self, name: String) -> Self {
        self.log.name = name;
        self
    }

    /// Sends bytes. That a worker has ended shows when its answer is read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if let Some(commands) = &mut self.commands {
            let _ = commands.write_all(bytes);
        }
    }

    /// Its answer, of which the first byte is there.
    ///
    /// # Errors
    /// When the worker has ended: how, and what it said last.
    pub(crate) fn answer(&mut self) -> Result<Answer, String> {
        self.read().map_err(|_| self.how_it_ended())
    }

    fn read(&mut self) -> io::Result<Answer> {
        let mut kind = [0];
        self.answers.read_exact(&mut kind)?;
        let mut number = || {
            let mut bytes = [0; 4];
            let read = self.answers.read_exact(&mut bytes);
            read.map(|()| u32::from_le_bytes(bytes) as usize)
        };
        match kind[0] {
            b'k' => Ok(Answer::Done),
            b'p' => {
                let (height, width) = (number()?, number()?);
                let mut bytes = vec![0; height * width * 3];
                self.answers.read_exact(&mut bytes)?;
                Ok(Answer::Picture(height, width, bytes))
            }
            kind => {
                let mut bytes = vec![0; number()?];
                self.answers.read_exact(&mut bytes)?;
                let table = serde_json::from_slice(&bytes)?;
                Ok(match kind {
                    b'd' => Answer::Described(table),
                    _ => Answer::Failed(table),
                })
            }
        }
    }

    fn how_it_ended(&mut self) -> String {
        self.commands = None;
        let status = self.wait(TO_END);
        self.log.read();
        let how = match status {
            Some(status) => how(status),
            None => "closed its pipe of answers".into(),
        };
        match self.log.last.is_empty() {
            true => how,
            false => {
                let last: Vec<&str> = self.log.last.iter().map(String::as_str).collect();
                format!("{how}; it said last:\n{}", last.join("\n"))
            }
        }
    }

    fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < most => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => return None,
            }
        }
    }

    /// Tells the worker to end.
    pub(crate) fn close(&mut self) {
        self.commands = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        let ended = self.wait(TO_END).is_some();
        self.log.read();
        if !ended {
            // With what it started itself.
            if let Some(group) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until each worker that is `expected` to answer has done so or has ended, and logs what they
/// print meanwhile. `still` is called ten times per second with the workers that are waited for.
pub(crate) fn wait_for(workers: &mut [Worker], expected: &[bool], still: &mut dyn FnMut(&[bool])) {
    let mut waiting = expected.to_vec();
    while waiting.contains(&true) {
        let mut files = Vec::with_capacity(2 * workers.len());
        let mut owners = Vec::with_capacity(2 * workers.len());
        for (w, worker) in workers.iter().enumerate() {
            if waiting[w] {
                files.push(PollFd::new(&worker.answers, PollFlags::IN));
                owners.push((w, true));
            }
            if worker.log.is_open {
                files.push(PollFd::new(&worker.log.pipe, PollFlags::IN));
                owners.push((w, false));
            }
        }
        let ready = match poll(&mut files, Some(&SLICE)) {
            Ok(ready) => ready,
            // A signal: nothing is known of the files.
            Err(_) => continue,
        };
        if ready == 0 {
            still(&waiting);
            continue;
        }
        let events: Vec<PollFlags> = files.iter().map(PollFd::revents).collect();
        drop(files);
        for ((w, is_answer), event) in owners.into_iter().zip(events) {
            match event.is_empty() {
                true => {}
                false if is_answer => waiting[w] = false,
                false => workers[w].log.read(),
            }
        }
    }
}

/// What a worker's environments print, line by line into the log.
struct Log {
    name: String,
    pipe: ChildStderr,
    is_open: bool,
    /// A line whose end is missing.
    begun: Vec<u8>,
    last: VecDeque<String>,
}

impl Log {
    fn new(pipe: ChildStderr) -> io::Result<Self> {
        let flags = fcntl_getfl(pipe.as_fd())?;
        fcntl_setfl(pipe.as_fd(), flags | OFlags::NONBLOCK)?;
        Ok(Self {
            name: String::new(),
            pipe,
            is_open: true,
            begun: Vec::new(),
            last: VecDeque::new(),
        })
    }

    /// Reads what is there.
    fn read(&mut self) {
        let mut bytes = [0; 8192];
        while self.is_open {
            match self.pipe.read(&mut bytes) {
                Ok(0) => self.is_open = false,
                Ok(count) => self.begun.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_open = error.kind() == io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            self.line(&line[..end]);
        }
        // The end of the output, or a line that is too long for a log.
        if !self.begun.is_empty() && (!self.is_open || self.begun.len() > 65_536) {
            let line = std::mem::take(&mut self.begun);
            self.line(&line);
        }
    }

    fn line(&mut self, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end();
        tracing::info!("{} printed: {line}", self.name);
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = match signal {
                4 => " (SIGILL)",
                6 => " (SIGABRT)",
                7 => " (SIGBUS)",
                8 => " (SIGFPE)",
                9 => " (SIGKILL: was the machine out of memory?)",
                11 => " (SIGSEGV)",
                15 => " (SIGTERM)",
                _ => "",
            };
            format!("was killed by signal {signal}{name}")
        }
        (None, Some(code)) => format!("ended with exit status {code}"),
        (None, None) => "ended".into(),
    }
}
