//! The progress of a run: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Evaluation;
use crate::record::Row;
use crate::replay::MemoryPlan;
use crate::{EngineError, Outcome, Reason, RunConfig, Status, Watcher};

use super::numbers::grouped;

pub(super) struct Progress {
    bar: Option<Arc<Bar>>,
    /// When the bar was drawn last.
    drawn: Option<Instant>,
    quiet: bool,
}

/// A round can take less than a terminal needs to draw.
const REDRAW: Duration = Duration::from_millis(50);

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = shown.then(|| Arc::new(Bar::default()));
        Self {
            bar,
            drawn: None,
            quiet,
        }
    }

    /// Prints lines from other threads, above the bar if there is one; also with `--quiet`.
    pub(super) fn speaker(&self) -> impl Fn(&str) + Send + 'static {
        let bar = self.bar.clone();
        move |line| match &bar {
            Some(bar) => bar.print_above(line),
            None => note!("{line}"),
        }
    }

    pub(super) fn begin(&mut self, config: &RunConfig, folder: &Path) {
        self.say(&format!(
            "{} on {}, seed {}, {} environments",
            config.algo_name,
            config.env_id,
            config.settings.seed,
            grouped(config.settings.envs as u64),
        ));
        self.say(&folder.display().to_string());
    }

    /// Says from which step a run is continued.
    pub(super) fn resumed(&mut self, step: u64) {
        self.say(&format!("resuming from step {}", grouped(step)));
    }

    /// Says how much memory the replay will take, if there is one.
    pub(super) fn replay(&mut self, memory: Option<MemoryPlan>) {
        if let Some(memory) = memory {
            let gigabytes = memory.total_bytes() as f64 / 1e9;
            let rows = grouped(memory.rows as u64);
            self.say(&format!(
                "the replay takes up to {gigabytes:.2} GB of memory for {rows} steps"
            ));
        }
    }

    pub(super) fn warn(&mut self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    /// Leaves the bar as the run left it: full if it reached its goal.
    pub(super) fn end(&mut self, outcome: &Result<Outcome, EngineError>) {
        if let (Some(bar), Ok(outcome)) = (&self.bar, outcome) {
            bar.draw(line(&outcome.status, Some(outcome.reason), columns()));
        }
        if let Some(bar) = &self.bar {
            bar.close();
        }
    }

    pub(super) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.print_above(line),
            None if !self.quiet => note!("{line}"),
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.close();
        }
    }
}

/// A line at the bottom of the terminal that is drawn over and over. It is shorter than the
/// terminal is wide, so that an echoed `^C` does not begin a new line.
#[derive(Default)]
struct Bar(Mutex<Option<String>>);

impl Bar {
    fn draw(&self, line: String) {
        let mut shown = self.line();
        write(&format!("\r\x1b[2K{line}"));
        *shown = Some(line);
    }

    fn print_above(&self, text: &str) {
        let line = self.line();
        write(&format!(
            "\r\x1b[2K{text}\n{}",
            line.as_deref().unwrap_or_default()
        ));
    }

    /// Makes the next output start on a new line.
    fn close(&self) {
        if self.line().take().is_some() {
            write("\n");
        }
    }

    fn line(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The terminal may be gone: that must not end the run.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Watcher for Progress {
    fn round(&mut self, status: &Status) {
        if let Some(bar) = &self.bar
            && self.drawn.is_none_or(|drawn| drawn.elapsed() > REDRAW)
        {
            bar.draw(line(status, None, columns()));
            self.drawn = Some(Instant::now());
        }
    }

    fn row(&mut self, status: &Status, _row: &Row) {
        if self.bar.is_none() {
            let (now, total) = (grouped(status.env_steps), grouped(status.total_steps));
            let numbers = [Some(speed(status)), mean_return(status), loss(status)];
            let numbers: String = numbers.into_iter().flatten().collect();
            self.say(&format!("{now}/{total} steps{numbers}"));
        }
    }

    fn evaluated(&mut self, status: &Status, evaluation: &Evaluation) {
        self.say(&format!(
            "evaluation at {}: mean return {:.1} over {} episodes",
            grouped(status.env_steps),
            evaluation.mean(),
            evaluation.returns.len()
        ));
    }
}

/// What a line may take: a little less than the terminal, where Ctrl-C is echoed behind it.
fn columns() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stderr());
    let width = size.map_or(80, |(width, _)| width.0);
    usize::from(width).saturating_sub(4)
}

/// The line of the bar, at most `columns` wide: what does not fit is left out, the least
/// important first. `ended` says why the run is over, if it is.
fn line(status: &Status, ended: Option<Reason>, columns: usize) -> String {
    let done = matches!(ended, Some(Reason::Finished | Reason::Solved));
    let (now, total) = (status.env_steps, status.total_steps.max(1));
    let share = match done {
        true => 1.0,
        false => (now as f64 / total as f64).min(1.0),
    };
    let steps = match done {
        true => format!("  {} steps", grouped(now)),
        false => format!("  {}/{} steps", grouped(now), grouped(total)),
    };
    let left = total.saturating_sub(now) as f64 / status.steps_per_second;
    let eta = (ended.is_none() && left.is_finite()).then(|| format!("  eta {}", duration(left)));
    let percent = format!(" {:>3.0}%", (100.0 * share).floor());
    // In the order in which they are shown; the numbers say what is left out first.
    let mut fields = [
        (0, Some(steps)),
        (3, Some(speed(status))),
        (1, mean_return(status)),
        (4, loss(status)),
        (2, eta),
    ];
    let width = |fields: &[(u8, Option<String>)]| -> usize {
        let shown = fields.iter().filter_map(|(_, field)| field.as_ref());
        percent.len() + shown.map(|field| field.chars().count()).sum::<usize>()
    };
    for least in [4, 3, 2, 1, 0] {
        if width(&fields) + MIN_BAR <= columns {
            break;
        }
        for (importance, field) in &mut fields {
            if *importance == least {
                *field = None;
            }
        }
    }
    let bar = columns.saturating_sub(width(&fields)).min(MAX_BAR);
    let fields: String = fields.into_iter().filter_map(|(_, field)| field).collect();
    format!("{}{percent}{fields}", drawn(share, bar))
}

const MIN_BAR: usize = 6;
const MAX_BAR: usize = 24;

fn drawn(share: f64, columns: usize) -> String {
    let full = (share * columns as f64) as usize;
    let tip = usize::from(full < columns && share > 0.0);
    format!(
        "{}{}{}",
        "━".repeat(full),
        "╸".repeat(tip),
        "─".repeat(columns - full - tip)
    )
}

fn speed(status: &Status) -> String {
    format!(
        "  {} steps/s",
        grouped(status.steps_per_second.round() as u64)
    )
}

fn mean_return(status: &Status) -> Option<String> {
    let name = match status.counts_games {
        true => "score",
        false => "return",
    };
    status.mean_return.map(|mean| format!("  {name} {mean:.1}"))
}

fn loss(status: &Status) -> Option<String> {
    status.loss.map(|loss| format!("  loss {loss:.3}"))
}

/// Seconds as the two largest units that they fill.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}m"),
        (days, hours, ..) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(now: u64, total: u64) -> Status {
        Status {
            env_steps: now,
            total_steps: total,
            episodes: 0,
            updates: 0,
            mean_return: Some(-1479.63),
            counts_games: false,
            loss: Some(-0.0014),
            steps_per_second: 131_408.4,
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn the_line_fits_and_leaves_out_the_least_important() {
        let text = line(&status(75_776, 200_000), None, 106);
        assert_eq!(
            text,
            "━━━━━━━━━╸──────────────  37%  75,776/200,000 steps  131,408 steps/s  return -1479.6  \
             loss -0.001  eta 0s"
        );
        let text = line(&status(9_115_776, 200_000_000), None, 76);
        assert_eq!(
            text,
            "╸────────────   4%  9,115,776/200,000,000 steps  return -1479.6  eta 24m 12s"
        );
        for columns in 0..130 {
            for (now, total) in [(0, 1), (75_776, 200_000), (199_115_776, 200_000_000_000)] {
                for ended in [None, Some(Reason::Interrupted), Some(Reason::Finished)] {
                    let text = line(&status(now, total), ended, columns);
                    assert!(text.chars().count() <= columns.max(5), "{columns}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_run_that_reached_its_goal_ends_with_a_full_bar() {
        let text = line(&status(75_776, 200_000), Some(Reason::Solved), 76);
        assert_eq!(
            text,
            "━━━━━━━━━━━ 100%  75,776 steps  131,408 steps/s  return -1479.6  loss -0.001"
        );
    }

    #[test]
    fn a_run_that_was_stopped_has_no_time_left() {
        let text = line(&status(75_776, 200_000), Some(Reason::Interrupted), 106);
        assert_eq!(
            text,
            "━━━━━━━━━╸──────────────  37%  75,776/200,000 steps  131,408 steps/s  return -1479.6  \
             loss -0.001"
        );
    }

    #[test]
    fn times_are_given_in_two_units() {
        let times = [
            (5.9, "5s"),
            (65.0, "1m 5s"),
            (7265.0, "2h 1m"),
            (200_000.0, "2d 7h"),
        ];
        for (seconds, text) in times {
            assert_eq!(duration(seconds), text);
        }
    }
}
