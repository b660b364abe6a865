//! The settings of an Atari environment, and the usual presets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use starling_atari::games::Game;
use starling_settings::parse_over;

use super::ids::Version;
use crate::options::schema_of;
use crate::{ConfigError, EnvOptions, Schema};

/// The options of an Atari environment.
///
/// Their defaults depend on the id and on `preset`: see [`AtariOptions::of`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AtariOptions {
    /// A set of settings, named after where it is used. Default: `gymnasium`.
    pub preset: AtariPreset,
    /// What an observation shows. Default: `gray84`.
    pub observation: Observation,
    /// How the picture is resized to a square. Default: `area`.
    pub resize: Resize,
    /// Frames per observation. Default: 4.
    #[schemars(range(min = 1, max = 64), extend("unit" = "frames"))]
    pub stack: usize,
    /// Frames per step; the picture is the maximum of the last two. Default: 4; for `Pong-v4` a
    /// random number from 2 to 4, and the picture is the last one.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "frames"))]
    pub frame_skip: Option<u32>,
    /// The probability that the last action is repeated instead of the chosen one. Default: 0.25 in
    /// `ALE/Pong-v5`, 0 in the `-v4` ids.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sticky_action_prob: f64,
    /// Which actions can be chosen. Default: `minimal`.
    pub actions: ActionSet,
    /// What is done at the start of a game. Default: `noops`.
    pub start: Start,
    /// How often that is done at most. Default: 30.
    #[schemars(range(max = 10_000), extend("unit" = "actions"))]
    pub noop_max: u32,
    /// What the older frames show at the start of an episode. Default: `repeated`.
    pub history: History,
    /// In games that use FIRE, whether FIRE and then the third action are pressed for the agent at
    /// the start of a game and after each lost life. Where a lost life does not end the episode (as
    /// in evaluation), they replace the agent's next actions. Default: false.
    pub fire_reset: bool,
    /// What the loss of a life does. Default: `ignored`.
    pub life_loss: LifeLoss,
    /// Whether rewards are clipped to their sign. Default: false.
    pub clip_rewards: bool,
    /// SABER's correction of scores: where a score rolls over from its largest value to 0, the
    /// reward is the points gained instead of a large loss. Default: false.
    pub score_fixes: bool,
    /// Frames after which a game is truncated. Default: 108,000 (half an hour).
    #[schemars(range(min = 1))]
    pub max_frames: u64,
    /// Frames without a reward after which a game is truncated. Default: never.
    #[schemars(range(min = 1))]
    pub stuck_frames: Option<u64>,
    /// The game's mode. Default: its first.
    pub mode: Option<u16>,
    /// The console's difficulty switches. Default: the game's first setting.
    pub difficulty: Option<u8>,
}

/// A set of settings, named after where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// The first frame, repeated.
    #[default]
    Repeated,
    /// Zeros.
    Zeros,
}

/// Which of the 18 actions can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// Frames per hour.
const HOUR: u64 = 60 * 60 * 60;

impl AtariOptions {
    /// Combines the id, the preset and what is given: what is given overrides the preset, and the
    /// preset overrides what the id says.
    ///
    /// # Errors
    /// When an option does not exist, has the wrong type or is out of range.
    pub fn of(game: &Game, version: Version, given: &EnvOptions) -> Result<Self, ConfigError> {
        given.check(&schema_of(schema()))?;
        let given = given.family();
        let preset = Self::by_id(version).over(&given)?.preset;
        let mut options = Self::by_id(version);
        options.follow(preset, game);
        options.over(&given)
    }

    /// What the form of the id says.
    fn by_id(version: Version) -> Self {
        Self {
            preset: AtariPreset::Gymnasium,
            observation: Observation::Gray84,
            resize: Resize::Area,
            stack: 4,
            frame_skip: match version {
                Version::V5 | Version::NoFrameskip => Some(4),
                Version::V4 => None,
            },
            sticky_action_prob: match version {
                Version::V5 => 0.25,
                Version::NoFrameskip | Version::V4 => 0.0,
            },
            actions: ActionSet::Minimal,
            start: Start::Noops,
            noop_max: 30,
            history: History::Repeated,
            fire_reset: false,
            life_loss: LifeLoss::Ignored,
            clip_rewards: false,
            score_fixes: false,
            max_frames: HOUR / 2,
            stuck_frames: None,
            mode: None,
            difficulty: None,
        }
    }

    /// Changes what a preset changes.
    fn follow(&mut self, preset: AtariPreset, game: &Game) {
        if preset != AtariPreset::Gymnasium {
            self.frame_skip = Some(4);
            self.sticky_action_prob = 0.0;
            self.clip_rewards = true;
            self.life_loss = LifeLoss::Continues;
        }
        match preset {
            AtariPreset::Gymnasium => {}
            AtariPreset::Deepmind => self.fire_reset = true,
            AtariPreset::Saber => {
                self.resize = Resize::Bilinear;
                self.sticky_action_prob = 0.25;
                self.actions = ActionSet::Full;
                self.noop_max = 0;
                self.history = History::Zeros;
                self.life_loss = LifeLoss::Ignored;
                self.score_fixes = true;
                self.max_frames = 100 * HOUR;
                self.stuck_frames = Some(HOUR / 12);
            }
            AtariPreset::Rela => {
                self.resize = Resize::Aligned;
                self.actions = ActionSet::Masked;
                self.start = Start::RandomActions;
                self.fire_reset = game.name == "breakout";
            }
            AtariPreset::Rlpyt => {
                self.observation = Observation::Gray104;
                self.start = Start::NoopsOrNone;
                self.history = History::Zeros;
            }
        }
    }

    fn over(&self, given: &Value) -> Result<Self, ConfigError> {
        parse_over("env", given, self)
    }

    /// Whether FIRE is followed by the third action, where it is pressed for the agent.
    pub(super) fn third_after_fire(&self) -> bool {
        self.preset != AtariPreset::Rela
    }

    /// Whether the next life starts with a no-op.
    pub(super) fn noop_after_life(&self) -> bool {
        !matches!(self.preset, AtariPreset::Rela | AtariPreset::Rlpyt)
    }
}

/// All options. Their defaults are null: they depend on id and preset.
pub(super) fn schema() -> Schema {
    Schema::over(&AtariOptions::by_id(Version::V5)).without_defaults()
}

/// Whole games with unclipped rewards, where training may see single lives and clipped rewards.
pub(super) fn for_evaluation(options: &EnvOptions) -> EnvOptions {
    options.with(&json!({"life_loss": LifeLoss::Ignored, "clip_rewards": false}))
}
