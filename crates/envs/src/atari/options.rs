//! The settings of an Atari environment, and the presets of the field.

use serde::{Deserialize, Serialize};

use starling_atari::games::Game;

use super::ids::Version;
use crate::{EnvError, EnvOptions};

/// A set of settings, named after where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtariPreset {
    /// Gymnasium's `AtariPreprocessing` and `FrameStackObservation(4)`.
    #[default]
    Gymnasium,
    /// What agents since Mnih et al. (2015) are trained with, as in the wrappers of OpenAI
    /// Baselines: like Gymnasium's, but FIRE is pressed at the start of each life, an episode ends
    /// with each life (and the next one continues the game), rewards are clipped, and there are no
    /// sticky actions.
    Deepmind,
    /// Facebook's `rela`: all 18 actions, of which the game's own are legal; random legal actions
    /// at the start; frames pooled in colour, then resized, then converted to grey; FIRE at the
    /// start of each life in Breakout only; episodes of one life, clipped rewards, no sticky
    /// actions.
    Rela,
    /// The library `rlpyt`: pictures of 104×80, a history of zeros at the start, episodes of one
    /// life, clipped rewards, no sticky actions.
    Rlpyt,
    /// The protocol SABER of Toromanoff et al. (2019), as in its authors' Rainbow-IQN: all 18
    /// actions, sticky actions, no no-ops, a history of zeros at the start, clipped rewards, games
    /// of up to 100 hours that are truncated after 5 minutes without a reward, `score_fixes`.
    Saber,
}

/// What an observation shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Observation {
    /// The picture in grey, resized to 84×84: `[stack, 84, 84]`.
    #[default]
    Gray84,
    /// The picture in grey without its first and last row, resized to half its size (rlpyt's):
    /// `[stack, 104, 80]`.
    Gray104,
    /// The picture in grey, not resized: `[stack, height, 160]`.
    Gray,
    /// The picture in colour, three planes per frame: `[3 stack, height, 160]`.
    Rgb,
    /// The console's memory: `[stack, 128]`.
    Ram,
}

/// How a picture is resized to 84×84.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// The mean over the area of each new pixel, of the maximum of two frames (OpenCV's
    /// `INTER_AREA`).
    #[default]
    Area,
    /// Bilinear interpolation of each frame, before the maximum of two is taken (OpenCV's
    /// `INTER_LINEAR`).
    Bilinear,
    /// Bilinear interpolation with aligned corners (PyTorch's `align_corners`) of the maximum of
    /// two frames in colour, converted to grey afterwards (rela's).
    Aligned,
}

/// What is done at the start of a game.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// 1 to `noop_max` no-ops of one frame each.
    #[default]
    Noops,
    /// 0 to `noop_max` no-ops of one frame each.
    NoopsOrNone,
    /// 0 to `noop_max` random actions of the game's minimal set, a step each.
    RandomActions,
}

/// What the older frames of an observation show at the start of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// The first frame, repeated.
    #[default]
    Repeated,
    /// Zeros.
    Zeros,
}

/// Which of the 18 actions can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionSet {
    /// The game's minimal set: those that have an effect in it.
    #[default]
    Minimal,
    /// All 18.
    Full,
    /// All 18, of which only the game's minimal set is legal.
    Masked,
}

/// What the loss of a life does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LifeLoss {
    /// Nothing.
    #[default]
    Ignored,
    /// It ends the episode, and the next one starts a new game (Gymnasium's
    /// `terminal_on_life_loss`).
    Resets,
    /// It ends the episode, and the next one continues with the lives that are left (OpenAI
    /// Baselines' `EpisodicLifeEnv`).
    Continues,
}

/// The names of the [`EnvOptions`] that Atari environments have.
pub(super) const NAMES: &[&str] = &[
    "preset",
    "observation",
    "resize",
    "stack",
    "frame_skip",
    "sticky_action_prob",
    "actions",
    "start",
    "noop_max",
    "history",
    "fire_reset",
    "life_loss",
    "clip_rewards",
    "score_fixes",
    "max_frames",
    "stuck_frames",
    "mode",
    "difficulty",
];

/// Frames per hour.
const HOUR: u64 = 60 * 60 * 60;

/// Frames per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    /// A fixed number; the picture is the maximum of the last two.
    Fixed(u32),
    /// A random number from 2 to 4; the picture is the last one (`Pong-v4`).
    Random,
}

/// Every setting of one environment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) observation: Observation,
    pub(super) resize: Resize,
    pub(super) stack: usize,
    pub(super) skip: Skip,
    pub(super) sticky: f32,
    pub(super) actions: ActionSet,
    pub(super) start: Start,
    pub(super) noop_max: u32,
    pub(super) history: History,
    pub(super) fire_reset: bool,
    /// Whether FIRE is followed by the third action.
    pub(super) third_after_fire: bool,
    pub(super) life_loss: LifeLoss,
    /// Whether the next life starts with a no-op.
    pub(super) noop_after_life: bool,
    pub(super) clip_rewards: bool,
    pub(super) score_fixes: bool,
    pub(super) max_frames: u64,
    pub(super) stuck_frames: Option<u64>,
    pub(super) mode: Option<u16>,
    pub(super) difficulty: Option<u8>,
}

impl Settings {
    /// Combines the id, the preset and the options: options override presets, and presets override
    /// what the id says.
    pub(super) fn new(
        game: &Game,
        version: Version,
        options: &EnvOptions,
    ) -> Result<Self, EnvError> {
        let mut settings = Self {
            observation: Observation::Gray84,
            resize: Resize::Area,
            stack: 4,
            skip: match version {
                Version::V5 | Version::NoFrameskip => Skip::Fixed(4),
                Version::V4 => Skip::Random,
            },
            sticky: match version {
                Version::V5 => 0.25,
                Version::NoFrameskip | Version::V4 => 0.0,
            },
            actions: ActionSet::Minimal,
            start: Start::Noops,
            noop_max: 30,
            history: History::Repeated,
            fire_reset: false,
            third_after_fire: true,
            life_loss: LifeLoss::Ignored,
            noop_after_life: true,
            clip_rewards: false,
            score_fixes: false,
            max_frames: 108_000,
            stuck_frames: None,
            mode: options.mode,
            difficulty: options.difficulty,
        };
        match options.preset.unwrap_or_default() {
            AtariPreset::Gymnasium => {}
            AtariPreset::Deepmind => {
                settings.skip = Skip::Fixed(4);
                settings.sticky = 0.0;
                settings.fire_reset = true;
                settings.life_loss = LifeLoss::Continues;
                settings.clip_rewards = true;
            }
            AtariPreset::Saber => {
                settings.resize = Resize::Bilinear;
                settings.skip = Skip::Fixed(4);
                settings.sticky = 0.25;
                settings.actions = ActionSet::Full;
                settings.noop_max = 0;
                settings.history = History::Zeros;
                settings.clip_rewards = true;
                settings.score_fixes = true;
                settings.max_frames = 100 * HOUR;
                settings.stuck_frames = Some(HOUR / 12);
            }
            AtariPreset::Rela => {
                settings.resize = Resize::Aligned;
                settings.skip = Skip::Fixed(4);
                settings.sticky = 0.0;
                settings.actions = ActionSet::Masked;
                settings.start = Start::RandomActions;
                settings.fire_reset = game.name == "breakout";
                settings.third_after_fire = false;
                settings.life_loss = LifeLoss::Continues;
                settings.noop_after_life = false;
                settings.clip_rewards = true;
            }
            AtariPreset::Rlpyt => {
                settings.observation = Observation::Gray104;
                settings.skip = Skip::Fixed(4);
                settings.sticky = 0.0;
                settings.start = Start::NoopsOrNone;
                settings.history = History::Zeros;
                settings.life_loss = LifeLoss::Continues;
                settings.noop_after_life = false;
                settings.clip_rewards = true;
            }
        }
        settings.take(options)?;
        Ok(settings)
    }

    fn take(&mut self, options: &EnvOptions) -> Result<(), EnvError> {
        fn set<T: Copy>(slot: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *slot = given;
            }
        }
        set(&mut self.observation, options.observation);
        set(&mut self.resize, options.resize);
        set(&mut self.stack, options.stack);
        set(&mut self.skip, options.frame_skip.map(Skip::Fixed));
        set(&mut self.actions, options.actions);
        set(&mut self.start, options.start);
        set(&mut self.noop_max, options.noop_max);
        set(&mut self.history, options.history);
        set(&mut self.fire_reset, options.fire_reset);
        set(&mut self.life_loss, options.life_loss);
        set(&mut self.clip_rewards, options.clip_rewards);
        set(&mut self.score_fixes, options.score_fixes);
        set(&mut self.max_frames, options.max_frames);
        if options.stuck_frames.is_some() {
            self.stuck_frames = options.stuck_frames;
        }
        let sticky = options.sticky_action_prob.unwrap_or(self.sticky.into());
        self.sticky = sticky as f32;
        let require = |good: bool, what: &str, is: String, allowed: &str| match good {
            true => Ok(()),
            false => Err(EnvError::Failed(format!(
                "{what} is {is}; it must be {allowed}"
            ))),
        };
        let between = "between 0 and 1";
        require(
            (0.0..=1.0).contains(&sticky),
            "sticky_action_prob",
            sticky.to_string(),
            between,
        )?;
        let stack = self.stack;
        require(
            (1..=64).contains(&stack),
            "stack",
            stack.to_string(),
            "1 to 64",
        )?;
        if let Skip::Fixed(skip) = self.skip {
            require(
                (1..=1000).contains(&skip),
                "frame_skip",
                skip.to_string(),
                "1 to 1000",
            )?;
        }
        let noops = self.noop_max;
        require(
            noops <= 10_000,
            "noop_max",
            noops.to_string(),
            "at most 10000",
        )?;
        let frames = self.max_frames;
        require(frames >= 1, "max_frames", frames.to_string(), "at least 1")?;
        let stuck = self.stuck_frames;
        require(stuck != Some(0), "stuck_frames", "0".into(), "at least 1")
    }
}
