//! `starling play`: shows an environment in the terminal and records a GIF.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::engine::{Agent, RunConfig, is_needed_to_act};
use crate::envs::{Action, Env, EnvOptions, EnvSpec, ObsMut, Rng, Space, Step, stream};
use crate::record::{RunFolder, checkpoint};
use crate::tree::{Array, Tree};

use super::Usage;
use super::film::{self, Film};
use super::numbers::{at_least_one, whole};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Environment (random actions), or folder of a run (its latest agent)
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
    /// The GIF to write [default: <environment>.gif]
    #[arg(long, value_name = "FILE")]
    gif: Option<PathBuf>,
    /// Do not draw in the terminal
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let what = args.what.as_deref().unwrap_or_default();
    let run = args.run.or_else(|| is_run(what).then(|| what.into()));
    let (spec, options, agent) = match run {
        Some(run) => {
            if !args.options.is_empty() {
                let text = "an agent is shown in the environment that it was trained in: give no \
                            settings with a run";
                return Err(Usage(text.into()).into());
            }
            let (config, agent) = agent(&run)?;
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
    let mut player = Player::new(spec, &options, agent, ["play", "play-policy"], args.seed)?;
    let path = args.gif.unwrap_or_else(|| file_name(spec.id));
    let mut stage = match !args.quiet && std::io::stdout().is_terminal() {
        true => Some(Terminal::new(player.fps())),
        false => None,
    };
    let played = player.film(&path, args.steps, |picture, played| match &mut stage {
        Some(stage) => stage.show(spec.id, picture, played),
        None => Ok(()),
    })?;
    match stage {
        // The words are below the last picture already.
        Some(_) => say!("\ngif: {}", path.display()),
        None => say!("{}: {played}\ngif: {}", spec.id, path.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether an argument is the folder of a run rather than the name of an environment.
fn is_run(what: &str) -> bool {
    Path::new(what).is_dir() && crate::envs::registry::find(what).is_err()
}

/// The settings and the latest agent of a run.
fn agent(run: &Path) -> anyhow::Result<(RunConfig, Agent)> {
    let folder = RunFolder::open(run)?;
    let mut config = super::read_config(&folder, None)?;
    super::bf16::ensure(&mut config)?;
    let (latest, _) = checkpoint::latest_with(&folder.checkpoints_path(), is_needed_to_act)?;
    let agent = Agent::new(&config, &latest)?;
    Ok((config, agent))
}

/// `ALE/Pong-v5` becomes `ALE-Pong-v5.gif`.
fn file_name(id: &str) -> PathBuf {
    format!("{}.gif", id.replace('/', "-")).into()
}

/// How far an episode came.
#[derive(Clone, Copy, Default)]
pub(super) struct Played {
    return_: f64,
    pub(super) steps: u64,
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Rewards are single precision: more digits mean nothing.
        write!(f, "return {} in {} steps", self.return_ as f32, self.steps)
    }
}

/// One environment, and who chooses its actions.
pub(super) struct Player {
    env: Box<dyn Env>,
    chooser: Chooser,
    rng: Rng,
    space: Space,
    seen: Tree<Array>,
    legal: Option<Vec<u8>>,
}

enum Chooser {
    Agent(Box<Agent>),
    Random { rng: Rng, action: Array },
}

impl Player {
    /// Plays with an agent, or with random actions. `roles` name the random streams of the
    /// environment and of the actions.
    pub(super) fn new(
        spec: &EnvSpec,
        options: &EnvOptions,
        agent: Option<Agent>,
        roles: [&str; 2],
        seed: u64,
    ) -> anyhow::Result<Self> {
        let env = spec.make(options)?;
        let space = env.action_space();
        let [env_role, action_role] = roles;
        let choices = stream(seed, action_role, 0);
        Ok(Self {
            chooser: match agent {
                Some(agent) => Chooser::Agent(Box::new(agent.with_rng(choices))),
                None => {
                    let spec = space.spec();
                    let spec = spec.leaf().context("actions with named parts")?;
                    let shape: Vec<usize> = [1].iter().chain(&spec.shape).copied().collect();
                    Chooser::Random {
                        rng: choices,
                        action: Array::zeros(spec.dtype, &shape),
                    }
                }
            },
            legal: match &space {
                Space::Discrete { n } if env.masks_actions() => Some(vec![1; *n]),
                _ => None,
            },
            seen: Tree::zeros(&env.observation_space().spec(), &[]),
            rng: stream(seed, env_role, 0),
            space,
            env,
        })
    }

    /// Plays an episode of at most `most` steps and writes its pictures as a GIF; `shown` is called
    /// with each.
    pub(super) fn film(
        &mut self,
        path: &Path,
        most: u64,
        mut shown: impl FnMut(&crate::envs::render::Picture, Played) -> anyhow::Result<()>,
    ) -> anyhow::Result<Played> {
        let obs = ObsMut::at(&mut self.seen, &[]);
        self.env.reset(&mut self.rng, obs)?;
        let first = self.env.render()?;
        let mut film = Film::create(path, &first, self.fps())?;
        film.add(&first)?;
        let mut played = Played::default();
        shown(&first, played)?;
        while played.steps < most {
            let step = self.step()?;
            played.return_ += f64::from(step.reward);
            played.steps += 1;
            let picture = self.env.render()?;
            film.add(&picture)?;
            shown(&picture, played)?;
            if step.done() {
                break;
            }
        }
        Ok(played)
    }

    /// Pictures per second, whatever the environment says.
    fn fps(&self) -> f64 {
        match self.env.render_fps() {
            fps if fps.is_nan() => 15.0,
            fps => fps.clamp(1.0, 240.0),
        }
    }

    /// One step of the episode.
    fn step(&mut self) -> anyhow::Result<Step> {
        if let Some(legal) = &mut self.legal {
            self.env.legal_actions(legal);
        }
        let legal = self.legal.as_deref();
        let action = match &mut self.chooser {
            Chooser::Agent(agent) => agent.act_legally(&self.seen, legal)?,
            Chooser::Random { rng, action } => {
                self.space.sample(rng, legal, action.at_mut(&[0]));
                Action::at(&self.space, action, &[0])
            }
        };
        let obs = ObsMut::at(&mut self.seen, &[]);
        let step = self.env.step(action, &mut self.rng, obs)?;
        if let Chooser::Agent(agent) = &mut self.chooser {
            agent.rewarded(step.reward);
        }
        Ok(step)
    }
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

    fn show(
        &mut self,
        id: &str,
        picture: &crate::envs::render::Picture,
        played: Played,
    ) -> anyhow::Result<()> {
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
