//! `starling play`: an Atari game to look at, in the terminal and as a GIF.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::algos::{Acting, Part, Policy};
use crate::atari::ale::Ale;
use crate::atari::palette;
use crate::engine::{is_needed_to_act, policy_of_checkpoint};
use crate::envs::atari::{AtariEnv, parse};
use crate::envs::{Action, Env as _, EnvOptions, ObsMut, Rng, Rollout, registry, stream};
use crate::record::{RunFolder, checkpoint};
use crate::tree::{Array, Tree};

use super::Usage;
use super::numbers::{at_least_one, whole};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Environment, such as ALE/Pong-v5; not needed with --run
    #[arg(required_unless_present = "run")]
    env: Option<String>,
    /// Play with the latest agent of this run instead of random actions
    #[arg(long, value_name = "DIR", conflicts_with = "env")]
    run: Option<PathBuf>,
    /// Maximum number of steps; the episode may end earlier
    #[arg(
        long,
        default_value = "1000",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    steps: u64,
    /// Seed of the game and of the actions
    #[arg(long, default_value = "1", value_parser = whole, allow_negative_numbers = true)]
    seed: u64,
    /// The GIF to write [default: <game>.gif]
    #[arg(long, value_name = "FILE")]
    gif: Option<PathBuf>,
    /// Do not draw in the terminal
    #[arg(long, short)]
    quiet: bool,
}

const WIDTH: usize = 160;
/// Hundredths of a second that one step takes: four frames at 60 Hz.
const DELAY: u16 = 7;

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut policy = None;
    let (id, options) = match (&args.run, &args.env) {
        (Some(run), _) => {
            let folder = RunFolder::open(run)?;
            let mut config = crate::read_config(&folder, None)?;
            super::bf16::ensure(&mut config)?;
            let (latest, _) =
                checkpoint::latest_with(&folder.checkpoints_path(), is_needed_to_act)?;
            policy = Some(policy_of_checkpoint(&config, &latest)?);
            let options = (config.env_spec()?.for_evaluation)(&config.env);
            (config.env_id, options)
        }
        (None, Some(env)) => (registry::find(env)?.id.to_owned(), EnvOptions::default()),
        (None, None) => anyhow::bail!("name an environment, or a run with --run"),
    };
    let (game, version) = parse(&id).ok_or_else(|| {
        Usage(format!(
            "{id} is not an Atari game; only Atari games can be shown"
        ))
    })?;
    super::roms::ensure(&id)?;
    let mut env = AtariEnv::new(game, version, &options)?;
    let mut player = Player::new(&env, policy, args.seed);
    let path = args
        .gif
        .unwrap_or_else(|| format!("{}.gif", game.name).into());
    env.reset(
        &mut player.rng,
        ObsMut::at(&mut player.rollout.obs, &[0, 0]),
    )?;
    let screen = Screen::new(env.console().context("the console is not on")?);
    let mut film = screen.film(&path)?;
    let live = !args.quiet && std::io::stdout().is_terminal();
    let (mut score, mut steps) = (0.0, 0);
    let begin = Instant::now();
    while steps < args.steps {
        let step = player.step(&mut env)?;
        score += step.reward;
        steps += 1;
        let pixels = screen.pixels(env.console().context("the console is not on")?);
        film.write_frame(&gif::Frame {
            width: 2 * WIDTH as u16,
            height: screen.height as u16,
            delay: DELAY,
            buffer: pixels.iter().flat_map(|pixel| [*pixel; 2]).collect(),
            ..gif::Frame::default()
        })?;
        if live {
            let mut out = std::io::stdout().lock();
            write!(
                out,
                "{}{}: {score} points, step {steps}\x1b[K",
                screen.text(&pixels),
                id
            )?;
            out.flush()?;
            let due = begin + Duration::from_millis(10 * u64::from(DELAY) * steps);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        if step.done() {
            break;
        }
    }
    if live {
        say!("");
    }
    say!(
        "{id}: {score} points in {steps} steps\ngif: {}",
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Who chooses the actions.
struct Player {
    policy: Option<Box<dyn Policy>>,
    state: Tree<Array>,
    rollout: Rollout,
    rng: Rng,
    choices: [Rng; 1],
    space: crate::envs::Space,
}

impl Player {
    fn new(env: &AtariEnv, policy: Option<Box<dyn Policy>>, seed: u64) -> Self {
        let space = env.action_space();
        let legal = match &space {
            crate::envs::Space::Discrete { n } if env.masks_actions() => Some(*n),
            _ => None,
        };
        let (records, state) = match &policy {
            Some(policy) => (policy.records(), policy.state()),
            None => (Tree::empty(), Tree::empty()),
        };
        let observation = env.observation_space();
        Self {
            rollout: Rollout::new(1, 1, &observation, &space, legal, &records, &state),
            state: Tree::zeros(&state, &[1]),
            policy,
            rng: stream(seed, "play", 0),
            choices: [stream(seed, "play-policy", 0)],
            space,
        }
    }

    /// One step of the game.
    fn step(&mut self, env: &mut AtariEnv) -> anyhow::Result<crate::envs::Step> {
        let rollout = &mut self.rollout;
        if let Some(legal) = &mut rollout.legal {
            env.legal_actions(legal.at_mut(&[0, 0]).as_mut_slice());
        }
        let mut acting = Acting {
            explore: false,
            env_steps: 0,
            first_env: 0,
            total_envs: 1,
            rngs: &mut self.choices,
            state: &mut self.state,
        };
        rollout.state.clone_from(acting.state);
        match &mut self.policy {
            Some(policy) => policy.act(0, rollout, acting.reborrow()),
            None => {
                let legal = rollout.legal.as_ref().map(|legal| legal.at(&[0, 0]));
                let legal = legal.map(|legal| legal.as_slice::<u8>());
                let action = rollout.actions.at_mut(&[0, 0]);
                self.space.sample(&mut acting.rngs[0], legal, action);
            }
        }
        let action = Action::at(&self.space, &rollout.actions, &[0, 0]);
        let obs = ObsMut::at(&mut rollout.obs, &[1, 0]);
        let step = env.step(action, &mut self.rng, obs)?;
        rollout.rewards.as_mut_slice::<f32>()[0] = step.reward;
        rollout.terminated.as_mut_slice::<u8>()[0] = u8::from(step.terminated);
        rollout.truncated.as_mut_slice::<u8>()[0] = u8::from(step.truncated);
        if step.done() {
            for (_, memory) in acting.state.leaves_mut() {
                memory.bytes_mut().fill(0);
            }
        }
        if let Some(policy) = &mut self.policy {
            policy.finish(0, &mut [Part { rollout, acting }]);
        }
        self.rollout.carry_over();
        Ok(step)
    }
}

/// The picture of a game.
struct Screen {
    height: usize,
    colours: Vec<[u8; 3]>,
}

impl Screen {
    fn new(ale: &Ale) -> Self {
        let console = ale.console();
        Self {
            height: console.height(),
            colours: (0..=255)
                .map(|index| palette::rgb(console.format(), index))
                .collect(),
        }
    }

    fn film(&self, path: &std::path::Path) -> anyhow::Result<gif::Encoder<std::fs::File>> {
        let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
        let (width, height) = (2 * WIDTH as u16, self.height as u16);
        let mut film = gif::Encoder::new(file, width, height, &self.colours.concat())?;
        film.set_repeat(gif::Repeat::Infinite)?;
        Ok(film)
    }

    /// The last frame, as palette indices.
    fn pixels(&self, ale: &Ale) -> Vec<u8> {
        let mut pixels = vec![0; self.height * WIDTH];
        ale.console().screen(&mut pixels);
        pixels
    }

    /// The frame as 30 lines of 80 half blocks, from the terminal's top left corner on.
    fn text(&self, pixels: &[u8]) -> String {
        let mut text = String::from("\x1b[H");
        for line in 0..30 {
            for column in 0..80 {
                let colour = |half: usize| {
                    let row = (2 * line + half) * self.height / 60;
                    self.colours[usize::from(pixels[row * WIDTH + 2 * column])]
                };
                let ([r, g, b], [s, h, c]) = (colour(0), colour(1));
                text.push_str(&format!("\x1b[38;2;{r};{g};{b}m\x1b[48;2;{s};{h};{c}m▀"));
            }
            text.push_str("\x1b[0m\n");
        }
        text
    }
}
