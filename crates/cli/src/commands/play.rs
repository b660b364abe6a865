//! `starling play`: shows an environment in the terminal and records a video.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::engine::{Agent, Filmed, Played, RunConfig, is_needed_to_act};
use crate::envs::render::Picture;
use crate::record::{RunFolder, checkpoint};

use super::Usage;
use super::film;
use super::numbers::{at_least_one, whole};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Environment (random actions), or run (its latest agent): its folder, a prefix of its name, or last
    #[arg(value_name = "ENV|RUN", required_unless_present = "run")]
    what: Option<String>,
    /// Settings of the environment, such as env.difficulty=1; not with a run
    #[arg(value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Folder of a run
    #[arg(long, value_name = "DIR", conflicts_with = "what", hide = true)]
    run: Option<PathBuf>,
    /// Maximum number of steps; the episode may end earlier
    #[arg(
        long,
        default_value = "1000",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    steps: u64,
    /// Seed of the environment and of the actions
    #[arg(long, default_value = "1", value_parser = whole, allow_negative_numbers = true)]
    seed: u64,
    /// The video to write, .mp4 or .gif [default: <environment>.gif]
    #[arg(long, alias = "gif", value_name = "FILE")]
    video: Option<PathBuf>,
    /// Do not draw in the terminal
    #[arg(long, short)]
    quiet: bool,
    /// Write pictures to standard output until it is closed, for the dashboard
    #[arg(long, requires = "run", hide = true)]
    stream: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let (true, Some(run)) = (args.stream, &args.run) {
        return super::stream::run(run);
    }
    let what = args.what.as_deref().unwrap_or_default();
    let run = match args.run {
        Some(run) => Some(super::find_run(&run)?),
        None => run_of(what)?,
    };
    let (spec, options, agent) = match run {
        Some(run) => {
            if !args.options.is_empty() {
                let text = "an agent is shown in the environment that it was trained in: give no \
                            settings with a run";
                return Err(Usage(text.into()).into());
            }
            let (config, agent, _) = agent(&run, None)?;
            let spec = config.env_spec()?;
            (spec, (spec.for_evaluation)(&config.env), Some(agent))
        }
        None => {
            let spec = crate::envs::registry::find(what)?;
            (spec, super::env_options(spec, &args.options)?, None)
        }
    };
    super::roms::ensure(spec.id)?;
    super::mujoco::ensure(spec.id)?;
    let mut player = Filmed::new(spec, &options, agent, ["play", "play-policy"], args.seed)?;
    let path = args
        .video
        .unwrap_or_else(|| format!("{}.gif", plain_name(spec.id)).into());
    let mut stage = match !args.quiet && std::io::stdout().is_terminal() {
        true => Some(Terminal::new(player.fps())),
        false => None,
    };
    let played = player.film(&[&path], args.steps, |picture, played| match &mut stage {
        Some(stage) => stage.show(spec.id, picture, played),
        None => Ok(()),
    })?;
    match stage {
        // The words are below the last picture already.
        Some(_) => say!("\nvideo: {}", path.display()),
        None => say!("{}: {played}\nvideo: {}", spec.id, path.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The run that an argument means, unless it is the name of an environment.
fn run_of(what: &str) -> anyhow::Result<Option<PathBuf>> {
    if crate::envs::registry::find(what).is_ok() {
        return Ok(None);
    }
    match super::find_run(Path::new(what)) {
        Ok(run) => Ok(Some(run)),
        // A path means a run; otherwise suggestions of environments are more helpful.
        Err(crate::record::Error::NoSuchRun { .. })
            if !Path::new(what).exists() && what != "last" =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The settings and the latest agent of a run, on another device than the run's if one is given, and
/// the step of its checkpoint.
pub(super) fn agent(run: &Path, device: Option<&str>) -> anyhow::Result<(RunConfig, Agent, u64)> {
    let folder = RunFolder::open(run)?;
    let mut config = super::read_config(&folder, device)?;
    super::bf16::ensure(&mut config)?;
    let (latest, _) = checkpoint::latest_with(&folder.checkpoints_path(), is_needed_to_act)?;
    let agent = Agent::new(&config, &latest)?;
    Ok((config, agent, latest.step()))
}

/// `ALE/Pong-v5` becomes `ALE-Pong-v5`, `python:./file.py:Maze` becomes `python-file.py-Maze`.
pub(super) fn plain_name(id: &str) -> String {
    let parts = id.split(['/', ':']).filter(|part| *part != ".");
    parts.collect::<Vec<_>>().join("-")
}

/// Shows pictures in the terminal at the environment's frame rate.
struct Terminal {
    pause: Duration,
    due: Instant,
}

impl Terminal {
    fn new(fps: f64) -> Self {
        Self {
            pause: Duration::from_secs_f64(1.0 / fps),
            due: Instant::now(),
        }
    }

    fn show(&mut self, id: &str, picture: &Picture, played: Played) -> anyhow::Result<()> {
        let (columns, lines) = match terminal_size::terminal_size() {
            Some((columns, lines)) => (usize::from(columns.0), usize::from(lines.0)),
            None => (80, 24),
        };
        let mut out = std::io::stdout().lock();
        if played.steps == 0 {
            write!(out, "\x1b[2J")?;
        }
        // Two lines are left for the words.
        let text = film::text(picture, columns.min(120), lines.saturating_sub(2).max(8));
        write!(out, "{text}{id}: {played}\x1b[K")?;
        out.flush()?;
        self.due += self.pause;
        std::thread::sleep(self.due.saturating_duration_since(Instant::now()));
        Ok(())
    }
}
