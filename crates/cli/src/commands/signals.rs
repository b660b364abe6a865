//! Signals that end a run with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
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
                acknowledge(
                    "stopping after this round (Ctrl-C again: quit now, without a checkpoint)",
                );
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)?;
    Ok(stop)
}

/// Whether the program was started with this signal ignored, as `nohup` does with SIGHUP.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
