//! THE table of environments.
//!
//! A new environment is one file and one entry in [`all`]'s table. The entries of the Atari games
//! come from the console's own table. Lists, help texts and shell completions come from this table.

use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};

use crate::atari::{self, ActionSet, AtariPreset, History, LifeLoss, Observation, Resize, Start};
use crate::minatar::{self, MinAtar};
use crate::wrappers::TimeLimit;
use crate::{Env, EnvError, classic, exploration, memory};

/// One entry of the table: an environment that can be made by its id.
///
/// Your own entry need not be in the table: whatever takes an `&EnvSpec` accepts it as well.
#[derive(Clone, Debug)]
pub struct EnvSpec {
    /// Its name, as Gymnasium spells it: `CartPole-v1`, `MinAtar/Breakout-v1`.
    pub id: &'static str,
    /// Its family: `classic`, `memory`, `exploration`, `minatar`, `atari`.
    pub family: &'static str,
    /// Steps after which an episode is truncated, unless the options say otherwise.
    pub max_episode_steps: Option<u64>,
    /// Mean return at which the task counts as solved, if one is agreed on.
    pub reward_threshold: Option<f64>,
    /// One line for lists.
    pub summary: &'static str,
    /// The names of the [`EnvOptions`] that it has besides `max_episode_steps`.
    pub options: &'static [&'static str],
    /// Makes it, given its id, without the step limit that [`make`](EnvSpec::make) adds.
    pub bare: MakeEnv,
}

/// Makes the environment of an id.
pub type MakeEnv = fn(&str, &EnvOptions) -> Result<Box<dyn Env>, EnvError>;

impl EnvSpec {
    /// Makes the environment, with its limit on the steps of an episode.
    ///
    /// # Errors
    /// When an option is set that this environment does not have, or that is out of range.
    pub fn make(&self, options: &EnvOptions) -> Result<Box<dyn Env>, EnvError> {
        for name in options.set() {
            if name != "max_episode_steps" && !self.options.contains(&name) {
                return Err(EnvError::Failed(format!(
                    "{} has no option '{name}'; it has: {}",
                    self.id,
                    ["max_episode_steps"]
                        .iter()
                        .chain(self.options)
                        .copied()
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
        }
        let env = (self.bare)(self.id, options)?;
        match options.max_episode_steps.or(self.max_episode_steps) {
            Some(0) => Err(EnvError::Failed(
                "max_episode_steps is 0; it must be at least 1".into(),
            )),
            Some(steps) => Ok(Box::new(TimeLimit::new(env, steps))),
            None => Ok(env),
        }
    }
}

/// Settings of environments. Each environment has some of them; all are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvOptions {
    /// Steps after which an episode is truncated, instead of the environment's own limit.
    pub max_episode_steps: Option<u64>,
    /// MinAtar and Atari: the probability that the last action is repeated instead of the chosen
    /// one. Default: 0.1 for MinAtar; for Atari 0.25 in `ALE/Pong-v5` and 0 in the `-v4` ids.
    pub sticky_action_prob: Option<f64>,
    /// MinAtar: whether games get harder during an episode. Default: true.
    pub difficulty_ramping: Option<bool>,
    /// Atari: a set of settings, named after where it is used. Default: `gymnasium`.
    pub preset: Option<AtariPreset>,
    /// Atari: what an observation shows. Default: `gray84`.
    pub observation: Option<Observation>,
    /// Atari: how the picture is resized to a square. Default: `area`.
    pub resize: Option<Resize>,
    /// Atari: frames per observation. Default: 4.
    pub stack: Option<usize>,
    /// Atari: frames per step. Default: 4; a random number from 2 to 4 for `Pong-v4`.
    pub frame_skip: Option<u32>,
    /// Atari: which actions can be chosen. Default: `minimal`.
    pub actions: Option<ActionSet>,
    /// Atari: what is done at the start of a game. Default: `noops`.
    pub start: Option<Start>,
    /// Atari: how often that is done at most. Default: 30.
    pub noop_max: Option<u32>,
    /// Atari: what the older frames show at the start of an episode. Default: `repeated`.
    pub history: Option<History>,
    /// Atari: in games that use FIRE, whether FIRE and then the third action are pressed for the
    /// agent at the start of a game and after each lost life. Where a lost life does not end the
    /// episode (as in evaluation), they replace the agent's next actions. Default: false.
    pub fire_reset: Option<bool>,
    /// Atari: what the loss of a life does. Default: `ignored`.
    pub life_loss: Option<LifeLoss>,
    /// Atari: whether rewards are clipped to their sign. Default: false.
    pub clip_rewards: Option<bool>,
    /// Atari: SABER's correction of scores: where a score rolls over from its largest value to 0,
    /// the reward is the points gained instead of a large loss. Default: false.
    pub score_fixes: Option<bool>,
    /// Atari: frames after which a game is truncated. Default: 108,000 (half an hour).
    pub max_frames: Option<u64>,
    /// Atari: frames without a reward after which a game is truncated. Default: never.
    pub stuck_frames: Option<u64>,
    /// Atari: the game's mode. Default: its first.
    pub mode: Option<u16>,
    /// Atari: the console's difficulty switches. Default: the game's first setting.
    pub difficulty: Option<u8>,
}

impl EnvOptions {
    /// The same task for evaluation: whole games with unclipped rewards, where training may see
    /// single lives and clipped rewards.
    pub fn for_evaluation(&self) -> Self {
        let mut options = self.clone();
        if options.preset.is_some() || options.life_loss.is_some() {
            options.life_loss = Some(LifeLoss::Ignored);
        }
        if options.preset.is_some() || options.clip_rewards.is_some() {
            options.clip_rewards = Some(false);
        }
        options
    }

    /// The names of the options that are given.
    fn set(&self) -> impl Iterator<Item = &'static str> {
        [
            (self.max_episode_steps.is_some(), "max_episode_steps"),
            (self.sticky_action_prob.is_some(), "sticky_action_prob"),
            (self.difficulty_ramping.is_some(), "difficulty_ramping"),
            (self.preset.is_some(), "preset"),
            (self.observation.is_some(), "observation"),
            (self.resize.is_some(), "resize"),
            (self.stack.is_some(), "stack"),
            (self.frame_skip.is_some(), "frame_skip"),
            (self.actions.is_some(), "actions"),
            (self.start.is_some(), "start"),
            (self.history.is_some(), "history"),
            (self.score_fixes.is_some(), "score_fixes"),
            (self.noop_max.is_some(), "noop_max"),
            (self.fire_reset.is_some(), "fire_reset"),
            (self.life_loss.is_some(), "life_loss"),
            (self.clip_rewards.is_some(), "clip_rewards"),
            (self.max_frames.is_some(), "max_frames"),
            (self.stuck_frames.is_some(), "stuck_frames"),
            (self.mode.is_some(), "mode"),
            (self.difficulty.is_some(), "difficulty"),
        ]
        .into_iter()
        .filter_map(|(given, name)| given.then_some(name))
    }
}

/// All environments, in the order in which they should be listed: the table, then those that
/// were [added](add).
pub fn all() -> Vec<&'static EnvSpec> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    let table = ENVS.iter().chain(atari::specs());
    table.chain(added.iter().copied()).collect()
}

/// Adds your own environment, so that every command and every run of this program knows it. It
/// stays until the program ends.
///
/// # Errors
/// When there is already an environment with this id.
pub fn add(spec: EnvSpec) -> Result<(), EnvError> {
    if all().iter().any(|known| known.id == spec.id) {
        return Err(EnvError::Failed(format!(
            "there is already an environment called '{}'",
            spec.id
        )));
    }
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    added.push(Box::leak(Box::new(spec)));
    Ok(())
}

static ADDED: RwLock<Vec<&'static EnvSpec>> = RwLock::new(Vec::new());

/// The environment with this id, or the Atari game with this bare name (`Pong` is `ALE/Pong-v5`).
///
/// # Errors
/// When there is none; the error names similar ids.
pub fn find(id: &str) -> Result<&'static EnvSpec, UnknownEnv> {
    let find = |id: &str| all().into_iter().find(|spec| spec.id == id);
    let found = find(id).or_else(|| find(&atari::of_bare_name(id)?));
    found.ok_or_else(|| UnknownEnv {
        id: id.to_owned(),
        nearest: nearest(id),
    })
}

/// There is no environment with this id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no environment called '{id}'{}", hint(id, nearest))]
pub struct UnknownEnv {
    /// What was asked for.
    pub id: String,
    /// Similar ids, nearest first; possibly none.
    pub nearest: Vec<&'static str>,
}

const MINATAR_OPTIONS: &[&str] = &["sticky_action_prob", "difficulty_ramping"];

static ENVS: &[EnvSpec] = &[
    EnvSpec {
        id: "CartPole-v1",
        family: "classic",
        max_episode_steps: Some(500),
        reward_threshold: Some(475.0),
        summary: "balance a pole on a cart that is pushed left or right",
        options: &[],
        bare: |_, _| Ok(Box::new(classic::CartPole::new())),
    },
    EnvSpec {
        id: "MountainCar-v0",
        family: "classic",
        max_episode_steps: Some(200),
        reward_threshold: Some(-110.0),
        summary: "rock a weak car out of a valley",
        options: &[],
        bare: |_, _| Ok(Box::new(classic::MountainCar::new())),
    },
    EnvSpec {
        id: "MountainCarContinuous-v0",
        family: "classic",
        max_episode_steps: Some(999),
        reward_threshold: Some(90.0),
        summary: "rock a weak car out of a valley, with a throttle that costs",
        options: &[],
        bare: |_, _| Ok(Box::new(classic::MountainCarContinuous::new())),
    },
    EnvSpec {
        id: "Acrobot-v1",
        family: "classic",
        max_episode_steps: Some(500),
        reward_threshold: Some(-100.0),
        summary: "swing two links up by a torque at the joint between them",
        options: &[],
        bare: |_, _| Ok(Box::new(classic::Acrobot::new())),
    },
    EnvSpec {
        id: "Pendulum-v1",
        family: "classic",
        max_episode_steps: Some(200),
        reward_threshold: None,
        summary: "swing a pendulum up and hold it there by a weak torque",
        options: &[],
        bare: |_, _| Ok(Box::new(classic::Pendulum::new())),
    },
    EnvSpec {
        id: "CartPoleMasked-v1",
        family: "memory",
        max_episode_steps: Some(500),
        reward_threshold: None,
        summary: "balance a pole on a cart without seeing how fast they move",
        options: &[],
        bare: |_, _| Ok(Box::new(memory::MaskedCartPole::new())),
    },
    EnvSpec {
        id: "TMaze-v0",
        family: "memory",
        max_episode_steps: Some(50),
        reward_threshold: None,
        summary: "remember a sign for ten steps, then turn the way it said",
        options: &[],
        bare: |_, _| Ok(Box::new(memory::TMaze::new())),
    },
    EnvSpec {
        id: "KeyDoor-v0",
        family: "exploration",
        max_episode_steps: Some(120),
        reward_threshold: None,
        summary: "fetch a key, open a door and reach the only reward, 40 steps away",
        options: &[],
        bare: |_, _| Ok(Box::new(exploration::KeyDoor::new())),
    },
    EnvSpec {
        id: "MinAtar/Asterix-v1",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "gather gold and avoid enemies on a 10 x 10 board",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Asterix>::new(false, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Asterix-v0",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "gather gold and avoid enemies on a 10 x 10 board, with all six actions",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Asterix>::new(true, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Breakout-v1",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "break bricks with ball and paddle on a 10 x 10 board",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Breakout>::new(false, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Breakout-v0",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "break bricks with ball and paddle on a 10 x 10 board, with all six actions",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Breakout>::new(true, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Freeway-v1",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "cross a road of eight lanes on a 10 x 10 board",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Freeway>::new(false, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Freeway-v0",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "cross a road of eight lanes on a 10 x 10 board, with all six actions",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Freeway>::new(true, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Seaquest-v1",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "rescue divers, shoot and surface for air on a 10 x 10 board",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Seaquest>::new(false, options)?)),
    },
    EnvSpec {
        id: "MinAtar/Seaquest-v0",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "rescue divers, shoot and surface for air on a 10 x 10 board, with all six actions",
        options: MINATAR_OPTIONS,
        bare: |_, options| Ok(Box::new(MinAtar::<minatar::Seaquest>::new(true, options)?)),
    },
    EnvSpec {
        id: "MinAtar/SpaceInvaders-v1",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "shoot waves of aliens on a 10 x 10 board",
        options: MINATAR_OPTIONS,
        bare: |_, options| {
            Ok(Box::new(MinAtar::<minatar::SpaceInvaders>::new(
                false, options,
            )?))
        },
    },
    EnvSpec {
        id: "MinAtar/SpaceInvaders-v0",
        family: "minatar",
        max_episode_steps: None,
        reward_threshold: None,
        summary: "shoot waves of aliens on a 10 x 10 board, with all six actions",
        options: MINATAR_OPTIONS,
        bare: |_, options| {
            Ok(Box::new(MinAtar::<minatar::SpaceInvaders>::new(
                true, options,
            )?))
        },
    },
];

fn hint(id: &str, nearest: &[&str]) -> String {
    match nearest {
        _ if is_of_gymnasium(id) => {
            "; it is one of Gymnasium's environments that are not included \
                                     yet (`starling list envs` lists those that are)"
                .to_owned()
        }
        [] => "; `starling list envs` lists all environments".to_owned(),
        [one] => format!("; did you mean '{one}'?"),
        several => format!("; did you mean one of '{}'?", several.join("', '")),
    }
}

/// Whether Gymnasium has an environment of this name, in any version, that is not in the table.
fn is_of_gymnasium(id: &str) -> bool {
    let name = plain(unversioned(id.rsplit('/').next().unwrap_or(id)));
    NOT_INCLUDED.iter().any(|known| plain(known) == name)
}

/// Gymnasium's environments that are not in the table.
const NOT_INCLUDED: [&str; 21] = [
    "Ant",
    "BipedalWalker",
    "BipedalWalkerHardcore",
    "CarRacing",
    "CliffWalking",
    "CliffWalkingSlippery",
    "FrozenLake",
    "FrozenLake8x8",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "LunarLander",
    "LunarLanderContinuous",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Taxi",
    "Walker2d",
];

/// Similar ids: those that differ only in case, punctuation or version, else up to three with a
/// similar spelling.
fn nearest(id: &str) -> Vec<&'static str> {
    let wanted = plain(id);
    if wanted.is_empty() || is_of_gymnasium(id) {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &'static str)> = Vec::new();
    for spec in all() {
        let full = plain(spec.id);
        let name = plain(unversioned(spec.id));
        let last = plain(unversioned(spec.id.rsplit('/').next().unwrap_or(spec.id)));
        let alike = if wanted == full {
            3.0
        } else if plain(unversioned(id)) == name || plain(unversioned(id)) == last {
            2.0
        } else {
            [&full, &name, &last]
                .map(|candidate| strsim::normalized_damerau_levenshtein(&wanted, candidate))
                .into_iter()
                .fold(0.0, f64::max)
        };
        scored.push((alike, spec.id));
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map_or(0.0, |(alike, _)| *alike);
    let floor = if best >= 2.0 { best } else { 0.6 };
    let near = scored.iter().filter(|(alike, _)| *alike >= floor);
    near.take(3).map(|(_, id)| *id).collect()
}

/// Lower case, without punctuation.
fn plain(id: &str) -> String {
    id.chars()
        .filter(|c| c.is_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// An id without its `-v1`.
fn unversioned(id: &str) -> &str {
    match id.rsplit_once(['-', '_']) {
        Some((name, version))
            if version.len() > 1
                && version.starts_with(['v', 'V'])
                && version[1..].bytes().all(|b| b.is_ascii_digit()) =>
        {
            name
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_found() {
        for spec in all() {
            assert_eq!(find(spec.id).unwrap().id, spec.id);
            assert_eq!(all().iter().filter(|s| s.id == spec.id).count(), 1);
        }
    }

    #[test]
    fn the_bare_name_of_an_atari_game_is_its_usual_id() {
        assert_eq!(find("Pong").unwrap().id, "ALE/Pong-v5");
        assert_eq!(find("Breakout").unwrap().id, "ALE/Breakout-v5");
        assert_eq!(find("CartPole").unwrap_err().nearest, ["CartPole-v1"]);
    }

    #[test]
    fn unknown_ids_name_the_nearest() {
        let nearest = |id: &str| find(id).unwrap_err().nearest;
        assert_eq!(nearest("cartpole-v1"), ["CartPole-v1"]);
        assert_eq!(nearest("CartPole-v0"), ["CartPole-v1"]);
        assert_eq!(nearest("CartPole"), ["CartPole-v1"]);
        assert_eq!(nearest("CratPole-v1")[0], "CartPole-v1");
        assert_eq!(
            nearest("breakout"),
            [
                "MinAtar/Breakout-v1",
                "MinAtar/Breakout-v0",
                "ALE/Breakout-v5"
            ]
        );
        assert_eq!(nearest("ale/pong-v5"), ["ALE/Pong-v5"]);
        assert_eq!(
            nearest("ALE/MontezumasRevenge-v5")[0],
            "ALE/MontezumaRevenge-v5"
        );
        assert_eq!(nearest("minatar/breakout-v1"), ["MinAtar/Breakout-v1"]);
        assert_eq!(nearest("MinAtar/Freway-v1")[0], "MinAtar/Freeway-v1");
        assert_eq!(nearest("xyzzy"), [""; 0]);
        assert_eq!(nearest(""), [""; 0]);
        let error = find("cartpole-v1").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no environment called 'cartpole-v1'; did you mean 'CartPole-v1'?"
        );
    }

    #[test]
    fn other_environments_of_gymnasium_are_named_as_such() {
        for id in [
            "LunarLander-v2",
            "HalfCheetah-v4",
            "InvertedPendulum-v5",
            "taxi",
        ] {
            let error = find(id).unwrap_err();
            assert_eq!(error.nearest, [""; 0], "{id}");
            assert_eq!(
                error.to_string(),
                format!(
                    "there is no environment called '{id}'; it is one of Gymnasium's environments \
                     that are not included yet (`starling list envs` lists those that are)"
                )
            );
        }
        assert_eq!(
            find("xyzzy").unwrap_err().to_string(),
            "there is no environment called 'xyzzy'; `starling list envs` lists all environments"
        );
        for name in NOT_INCLUDED {
            let known = |spec: &&EnvSpec| plain(unversioned(spec.id)) == plain(name);
            assert!(!all().iter().any(known), "{name} is included");
        }
    }

    /// What evaluation changes: lives and clipping, and nothing else.
    #[test]
    fn evaluation_is_of_whole_games_with_unclipped_rewards() {
        let options = |text: &str| serde_json::from_str::<EnvOptions>(text).unwrap();
        let judged = |text: &str| options(text).for_evaluation();
        for trained in [
            r#"{"preset": "deepmind", "stack": 3, "max_episode_steps": 9, "mode": 1}"#,
            r#"{"preset": "rela", "life_loss": "resets", "clip_rewards": true}"#,
            r#"{"preset": "saber"}"#,
            r#"{"life_loss": "continues", "clip_rewards": true, "fire_reset": true}"#,
        ] {
            let expected = EnvOptions {
                life_loss: Some(LifeLoss::Ignored),
                clip_rewards: Some(false),
                ..options(trained)
            };
            assert_eq!(judged(trained), expected);
        }
        // Environments that have no such options are not given them.
        for same in [
            "{}",
            r#"{"sticky_action_prob": 0.5, "max_episode_steps": 7}"#,
        ] {
            assert_eq!(judged(same), options(same));
        }
        assert_eq!(
            judged(r#"{"life_loss": "resets"}"#),
            options(r#"{"life_loss": "ignored"}"#)
        );
        assert_eq!(
            judged(r#"{"clip_rewards": true}"#),
            options(r#"{"clip_rewards": false}"#)
        );
    }

    #[test]
    fn options_that_do_not_apply_are_refused() {
        let options = EnvOptions {
            sticky_action_prob: Some(0.2),
            ..EnvOptions::default()
        };
        let refused = |id: &str, options: &EnvOptions| match find(id).unwrap().make(options) {
            Ok(_) => panic!("{id} accepts {options:?}"),
            Err(error) => error.to_string(),
        };
        assert!(find("MinAtar/Breakout-v1").unwrap().make(&options).is_ok());
        let error = refused("CartPole-v1", &options);
        assert!(error.contains("no option 'sticky_action_prob'"), "{error}");
        for (id, options) in [
            ("MinAtar/Breakout-v1", r#"{"sticky_action_prob": 1.5}"#),
            ("CartPole-v1", r#"{"max_episode_steps": 0}"#),
        ] {
            let error = refused(id, &serde_json::from_str(options).unwrap());
            assert!(error.contains("must be"), "{error}");
        }
        let unknown = serde_json::from_str::<EnvOptions>(r#"{"sticky": 0.1}"#);
        assert!(unknown.is_err());
    }
}
