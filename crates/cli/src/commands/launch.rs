//! `starling launch`: a learner, actors and evaluators on several machines.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cluster::launch::{
    Ending, Launch, LaunchError, Plan, Standing, View, manifests, script,
};
use crate::settings;

use super::{Usage, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// YAML file with `run`, `learner`, `actors` and `evaluators`, or a CSV of hosts with the columns
    /// job, ip, ssh_port, ssh_username; the book's chapter on several machines describes both
    file: PathBuf,
    /// For a CSV: the settings of the run, such as env=CartPole-v1 algo=ppo envs=32
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print a script or manifests instead of starting anything
    #[arg(long, value_enum)]
    print: Option<Print>,
    /// Path of the program on the nodes, for --print slurm [default: `program` of the file, or this one]
    #[arg(long, value_name = "PATH")]
    program: Option<String>,
    /// Folder for the logs of the processes
    #[arg(long, value_name = "DIR", default_value = "launch")]
    logs: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Print {
    /// A script for sbatch
    Slurm,
    /// Manifests for kubectl apply; they contain a secret
    Kubernetes,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let plan = read(&args.file, &args.overrides)?;
    // Errors in the settings are reported here, not by a remote process.
    check(&plan)?;
    match args.print {
        Some(Print::Slurm) => {
            let own = || Ok::<_, std::io::Error>(std::env::current_exe()?.display().to_string());
            let program = match args.program.or_else(|| plan.program.clone()) {
                Some(program) => program,
                None => own()?,
            };
            say!("{}", script(&plan, &program).map_err(mistake)?);
            return Ok(ExitCode::SUCCESS);
        }
        Some(Print::Kubernetes) => {
            for manifest in manifests(&plan).map_err(mistake)? {
                say!("---\n{}", settings::to_yaml(&manifest));
            }
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    std::fs::create_dir_all(&args.logs)
        .with_context(|| format!("cannot create {}", args.logs.display()))?;
    if plan.insecure {
        note!("warning: nothing between the machines is encrypted (insecure)");
    }
    let message = "stopping all (Ctrl-C again: quit now, without a checkpoint)";
    let stop = signals::stop_flag_with(message, |text| note!("{text}"))?;
    let launch = Launch::start(plan, Some(args.logs.clone())).map_err(mistake)?;
    let mut board = Board::new();
    let ended = launch.wait(&stop, |launch| board.show(launch));
    board.close();
    match ended? {
        Ending::Finished => Ok(ExitCode::SUCCESS),
        Ending::Interrupted => Ok(130.into()),
    }
}

fn read(file: &Path, overrides: &[String]) -> anyhow::Result<Plan> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot open {shown}"))?;
    let is_csv = file.extension().is_some_and(|end| end == "csv");
    let plan = match is_csv {
        true => {
            let run = settings::overrides(overrides)?;
            Plan::from_csv(&text, run.as_object().cloned().unwrap_or_default())
        }
        false if !overrides.is_empty() => {
            let text = format!("settings belong in {shown}, under `run`");
            return Err(Usage(text).into());
        }
        false => Plan::from_value(settings::from_yaml(&text, &shown.to_string())?),
    };
    plan.map_err(|error| Usage(format!("{shown}: {error}")).into())
}

/// Resolves the settings as the learner will.
fn check(plan: &Plan) -> anyhow::Result<()> {
    let arguments = plan.train_arguments().map_err(mistake)?;
    super::train::check(&arguments)
}

fn mistake(error: LaunchError) -> anyhow::Error {
    match error {
        LaunchError::Plan(text) => Usage(text).into(),
        other => other.into(),
    }
}

/// The table of roles: redrawn on a terminal, otherwise only changes are printed.
struct Board {
    terminal: bool,
    drawn: usize,
    shown: Vec<(Standing, u64)>,
    at: Option<Instant>,
    run_said: bool,
}

/// How often the table is drawn.
const EVERY: Duration = Duration::from_millis(500);

impl Board {
    fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            drawn: 0,
            shown: Vec::new(),
            at: None,
            run_said: false,
        }
    }

    fn show(&mut self, launch: &Launch) {
        if let (Some(run), false) = (launch.run_folder(), self.run_said) {
            self.run_said = true;
            self.clear();
            note!("{run}");
        }
        let views = launch.views();
        if !self.terminal {
            for (at, view) in views.iter().enumerate() {
                let now = (view.standing.clone(), view.restarts);
                if self.shown.get(at) != Some(&now) {
                    note!("{}", line(view));
                }
            }
            let all = views.iter();
            self.shown = all
                .map(|view| (view.standing.clone(), view.restarts))
                .collect();
            return;
        }
        if self.at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.at = Some(Instant::now());
        self.clear();
        let table = table(&views);
        self.drawn = table.lines().count();
        note!("{table}");
    }

    /// Moves back over the table that was drawn last.
    fn clear(&mut self) {
        if self.drawn > 0 {
            let up = self.drawn;
            super::write_raw(&format!("\x1b[{up}A\x1b[J"));
            self.drawn = 0;
        }
    }

    fn close(&mut self) {
        self.drawn = 0;
    }
}

fn table(views: &[View]) -> String {
    let mut lines = vec![cells("role", "host", "state", "restarts", "said last")];
    lines.extend(views.iter().map(line));
    lines.join("\n")
}

fn line(view: &View) -> String {
    let state = match view.standing {
        Standing::Preparing => "preparing",
        Standing::Waiting => "waiting",
        Standing::Running => "running",
        Standing::Pausing => "restarting",
        Standing::Stopping => "stopping",
        Standing::Ended => "ended",
        Standing::Failed => "failed",
    };
    let restarts = view.restarts.to_string();
    cells(&view.role, &view.host, state, &restarts, &view.said)
}

/// One line of at most 79 columns.
fn cells(role: &str, host: &str, state: &str, restarts: &str, said: &str) -> String {
    let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    let line = format!(
        "{:<14}{:<19}{:<11}{:<9}{}",
        cut(role, 13),
        cut(host, 18),
        cut(state, 10),
        cut(restarts, 8),
        cut(said, 26)
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns() {
        let long = "x".repeat(200);
        let view = View {
            role: "evaluator 1234".into(),
            host: long.clone(),
            standing: Standing::Pausing,
            restarts: 123_456_789,
            since: Instant::now(),
            said: long,
        };
        let table = table(&[view]);
        assert!(
            table.lines().all(|line| line.chars().count() < 80),
            "{table}"
        );
    }
}
