//! What is seen of a run while it goes on: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use crate::engine::Evaluation;
use crate::record::Row;
use crate::replay::MemoryPlan;
use crate::{RunConfig, Status, Watcher};
use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| ProgressBar::new(0));
        if let Some(bar) = &bar {
            let template = "{bar:24} {percent:>3}% {human_pos}/{human_len} steps  {msg}  eta {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self { bar, quiet }
    }

    pub(super) fn begin(&mut self, config: &RunConfig, folder: &Path) {
        if let Some(bar) = &self.bar {
            bar.set_length(config.settings.steps);
        }
        self.say(&format!(
            "{} on {}, seed {}, {} environments → {}",
            config.algo_name,
            config.env_id,
            config.settings.seed,
            config.settings.envs,
            folder.display()
        ));
    }

    /// Says what memory the replay will take, if there is one.
    pub(super) fn replay(&mut self, memory: Option<MemoryPlan>) {
        if let Some(memory) = memory {
            let gigabytes = memory.total_bytes() as f64 / 1e9;
            let rows = memory.rows;
            self.say(&format!(
                "the replay takes up to {gigabytes:.2} GB of memory for {rows} steps"
            ));
        }
    }

    pub(super) fn warn(&mut self, note: &str) {
        self.say(&format!("warning: {note}"));
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if !self.quiet => eprintln!("{line}"),
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

impl Watcher for Progress {
    fn round(&mut self, status: &Status) {
        if let Some(bar) = &self.bar {
            bar.set_position(status.env_steps);
            bar.set_message(numbers(status));
        }
    }

    fn row(&mut self, status: &Status, _row: &Row) {
        if self.bar.is_none() {
            let (now, total) = (status.env_steps, status.total_steps);
            self.say(&format!("{now}/{total} steps  {}", numbers(status)));
        }
    }

    fn evaluated(&mut self, status: &Status, evaluation: &Evaluation) {
        self.say(&format!(
            "evaluation at {}: mean return {:.1} over {} episodes",
            status.env_steps,
            evaluation.mean(),
            evaluation.returns.len()
        ));
    }
}

fn numbers(status: &Status) -> String {
    let mut text = format!("{:.0} steps/s", status.steps_per_second);
    if let Some(mean) = status.mean_return {
        text.push_str(&format!("  return {mean:.1}"));
    }
    if let Some(loss) = status.loss {
        text.push_str(&format!("  loss {loss:.3}"));
    }
    text
}
