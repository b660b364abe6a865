//! Signals that end a run with a checkpoint, and the one that only asks for a checkpoint.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// A flag that the first of these signals sets: Ctrl-C, SIGTERM, SIGHUP, and SIGUSR1 and SIGUSR2,
/// by which job schedulers announce a time limit. `acknowledge` is called with a message at once:
/// a round can take long, and until it ends nothing else shows that the signal arrived.
///
/// A second Ctrl-C or SIGTERM ends the program without a checkpoint. The other signals never do:
/// a terminal that is closed sends SIGHUP once from the shell and once from the kernel, and a
/// scheduler that announced the time limit sends SIGTERM when it is reached.
pub(super) fn stop_flag(
    acknowledge: impl Fn(&str) + Send + 'static,
) -> anyhow::Result<Arc<AtomicBool>> {
    let message = "stopping after this round (Ctrl-C again: quit now, without a checkpoint)";
    stop_flag_with(message, acknowledge)
}

/// As [`stop_flag`], with another message.
pub(super) fn stop_flag_with(
    message: &'static str,
    acknowledge: impl Fn(&str) + Send + 'static,
) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    for signal in [SIGHUP, SIGUSR1, SIGUSR2] {
        if !is_ignored(signal) {
            signals.add_signal(signal)?;
        }
    }
    let watch = move || {
        let mut asked = false;
        for signal in signals.forever() {
            let insists = matches!(signal, SIGINT | SIGTERM);
            if insists && asked {
                // Without the exit handlers of libraries whose threads are still at work.
                signal_hook::low_level::exit(130);
            }
            asked |= insists;
            if !flag.swap(true, Ordering::Relaxed) {
                acknowledge(message);
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)?;
    Ok(stop)
}

/// A flag that SIGURG sets: a checkpoint is wanted, and the run continues. The dashboard's button sends
/// it. Where a program has no handler the system ignores it, so that it never ends a run.
pub(super) fn checkpoint_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGURG, Arc::clone(&asked))?;
    Ok(asked)
}

/// Whether the program was started with this signal ignored, as `nohup` does with SIGHUP.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Sets the flag when standard input is closed, or when the launcher has not written to it for `limit`:
/// it is gone or out of reach, or wants this process to stop.
pub(super) fn end_with_launcher(stop: &Arc<AtomicBool>, limit: Duration) -> anyhow::Result<()> {
    let stop = Arc::clone(stop);
    let (heard, heartbeats) = mpsc::channel();
    let read = move || {
        let mut bytes = [0; 64];
        while matches!(std::io::stdin().lock().read(&mut bytes), Ok(1..)) {
            if heard.send(()).is_err() {
                return;
            }
        }
    };
    let watch = move || {
        // After a pause of the whole process, what was written meanwhile is read first.
        let grace = Duration::from_secs(1).min(limit);
        loop {
            let next = heartbeats.recv_timeout(limit);
            let next = next.or_else(|error| match error {
                RecvTimeoutError::Timeout => heartbeats.recv_timeout(grace),
                RecvTimeoutError::Disconnected => Err(error),
            });
            match next {
                Ok(()) => continue,
                Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = limit.as_secs_f64();
                    tracing::error!("no heartbeat from the launcher for {seconds} s: stopping");
                }
            }
            stop.store(true, Ordering::Relaxed);
            return;
        }
    };
    for work in [Box::new(read) as Box<dyn FnOnce() + Send>, Box::new(watch)] {
        let thread = std::thread::Builder::new().name("launcher".into());
        thread.spawn(work)?;
    }
    Ok(())
}

/// The argument `--launched`: seconds without a heartbeat from the launcher after which a process stops.
pub(super) fn heartbeat_timeout(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (1.0..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("allowed: 1 to 86400".into()),
    }
}

/// Asks the kernel to stop this process when the process that started it ends. `parent` is that
/// process: it may have ended already.
///
/// The kernel sends the signal once for each thread of the parent that the process belongs to in
/// turn, so it has to be one that does not mean more when it is repeated.
pub(super) fn end_with(parent: Option<u32>) -> anyhow::Result<()> {
    let Some(parent) = parent else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::USR1))?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    match now == Some(parent) {
        true => Ok(()),
        false => Err(anyhow::anyhow!(
            "the process that started this one has ended"
        )),
    }
}
