//! A checker for your own environments.
//!
//! Read first: [`check`] (what is checked), [`check_batch`] (the same for a batch), [`Report`] (what
//! was found).

mod batch;
mod stage;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub use self::batch::{MakeBatch, check_batch};
use self::stage::{Moment, Stage, differ, look};
use crate::vector::message_of;
use crate::{Action, Bounds, Env, EnvError, ObsMut, Rng, Space, Step, stream};

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Everything that is wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Steps taken.
    pub steps: u64,
    /// Episodes that ended in these steps.
    pub episodes: u64,
    /// Steps per second of one core, without the checks; 0 if it could not be measured.
    pub steps_per_second: f64,
    /// Whether runs with this environment can be resumed where they stopped.
    pub can_be_saved: bool,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Something that is wrong with an environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\n  {remedy}")]
pub struct Finding {
    /// What is wrong, and where.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// Takes `steps` random steps in an environment and looks for what would make learning fail.
///
/// Checked are: that the spaces make sense; that observations are finite and within their space,
/// and that every element is written every time; that two new environments with equal generators
/// do the same, over several episodes; that a restored snapshot continues in the same way, in the
/// same environment and in a new one; that at least one action is always legal; that actions
/// outside the space are refused; that rewards and game scores are finite; that episodes end and
/// new ones can start. A panic is a finding like any other.
pub fn check(make: Make<'_>, seed: u64, steps: u64) -> Report {
    let mut check = Check {
        report: Report::default(),
        seed,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| check.run(make, steps)));
    if let Err(panic) = outcome {
        check.report.find(
            format!("it panicked: {}", message_of(&*panic)),
            "return an EnvError if the environment cannot continue",
        );
    }
    check.report
}

/// Makes a new environment of the kind that is checked.
pub type Make<'a> = &'a mut dyn FnMut() -> Result<Box<dyn Env>, EnvError>;

/// Longest time that the measurement of speed takes.
const MEASURE: Duration = Duration::from_millis(200);

/// Steps over which two courses are compared: a prime, so that it is no multiple of a period of
/// the environment.
const COMPARED: u64 = 211;

/// How often two courses are reset, besides the ends of their episodes.
const EPISODES: usize = 3;

impl Report {
    /// Adds a finding, unless it is known already.
    fn find(&mut self, problem: impl Into<String>, remedy: &str) {
        let finding = Finding {
            problem: problem.into(),
            remedy: remedy.to_owned(),
        };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

struct Check {
    report: Report,
    seed: u64,
}

impl Check {
    fn run(&mut self, make: Make<'_>, steps: u64) {
        let Some(mut env) = self.make(make) else {
            return;
        };
        let env = &mut *env;
        let mut stage = Stage::new(env);
        if !self.spaces(env, &stage) {
            return;
        }
        if !self.play(env, &mut stage, steps) {
            return;
        }
        let (Some(mut first), Some(mut second)) = (self.make(make), self.make(make)) else {
            return;
        };
        self.determinism(&mut *first, &mut *second);
        self.snapshots(env, &mut *first, &mut stage);
        self.refusals(env, &mut stage);
        self.measure(env, &mut stage);
    }

    fn make(&mut self, make: Make<'_>) -> Option<Box<dyn Env>> {
        let made = make();
        if let Err(error) = &made {
            self.report.find(
                format!("it could not be created: {error}"),
                "any number of environments must be possible",
            );
        }
        made.ok()
    }

    /// Whether the spaces make sense; nothing else can be checked if not.
    fn spaces(&mut self, env: &dyn Env, stage: &Stage) -> bool {
        let before = self.report.findings.len();
        for (name, space) in [
            ("observation", &stage.observation),
            ("action", &stage.action),
        ] {
            self.space(name, space);
        }
        if env.masks_actions() && !matches!(stage.action, Space::Discrete { .. }) {
            self.report.find(
                "it masks actions of an action space that is not discrete",
                "only the choices of a Space::Discrete can be masked",
            );
        }
        self.report.findings.len() == before
    }

    fn space(&mut self, name: &str, space: &Space) {
        let bad = match space {
            Space::Discrete { n } => (*n == 0).then(|| "has no choices".to_owned()),
            Space::MultiDiscrete { choices } => (choices.is_empty() || choices.contains(&0))
                .then(|| format!("has a component without choices: {choices:?}")),
            Space::Box { shape, bounds, .. } => {
                let elements: usize = shape.iter().product();
                let given = match bounds {
                    Bounds::Uniform { .. } => elements,
                    Bounds::PerElement { low, high } if low.len() == high.len() => low.len(),
                    Bounds::PerElement { .. } => usize::MAX,
                };
                if elements == 0 {
                    Some(format!("has no elements: its shape is {shape:?}"))
                } else if given != elements {
                    Some(format!(
                        "does not have one pair of bounds for each of its {elements} elements"
                    ))
                } else {
                    let bounds = (0..elements).map(|i| bounds.of(i));
                    let mut wrong =
                        bounds.filter(|(low, high)| low.is_nan() || high.is_nan() || low > high);
                    wrong
                        .next()
                        .map(|(low, high)| format!("has the bounds {low} to {high}"))
                }
            }
            Space::Dict(parts) => {
                for (part, space) in parts {
                    self.space(&format!("{name} '{part}'"), space);
                }
                parts.is_empty().then(|| "has no parts".to_owned())
            }
        };
        if let Some(bad) = bad {
            self.report.find(
                format!("the {name} space {bad}"),
                "correct what observation_space() or action_space() returns",
            );
        }
    }

    /// Takes random steps; returns whether the environment could be played at all.
    fn play(&mut self, env: &mut dyn Env, stage: &mut Stage, steps: u64) -> bool {
        let mut rng = stream(self.seed, "check", 0);
        if !self.reset(env, stage, &mut rng) {
            return false;
        }
        for _ in 0..steps {
            if !self.mask(env, stage) {
                return false;
            }
            stage.choose(&mut rng);
            let step = match stage.step(env, &mut rng) {
                Ok(step) => step,
                Err(error) => {
                    self.report.find(
                        format!("step() failed after {} steps: {error}", self.report.steps),
                        "step() must accept every legal action of the action space",
                    );
                    return false;
                }
            };
            self.report.steps += 1;
            self.observation("step", stage);
            if !step.reward.is_finite() {
                self.report.find(
                    format!("a reward is {}", step.reward),
                    "rewards must be finite: look for a division by zero or an overflow",
                );
            }
            if step.done() {
                self.report.episodes += 1;
                if let Some(score) = env.game_score().filter(|score| !score.is_finite()) {
                    self.report.find(
                        format!("a game score is {score}"),
                        "game_score() must be finite: look for a division by zero or an overflow",
                    );
                }
                if !self.reset(env, stage, &mut rng) {
                    return false;
                }
            }
        }
        if self.report.episodes == 0 && steps >= 10_000 {
            self.report.find(
                format!("no episode ended in {steps} random steps"),
                "if episodes can be endless, limit them: max_episode_steps, or TimeLimit",
            );
        }
        true
    }

    fn reset(&mut self, env: &mut dyn Env, stage: &mut Stage, rng: &mut Rng) -> bool {
        if let Err(error) = stage.reset(env, rng) {
            self.report.find(
                format!("reset() failed: {error}"),
                "it must be possible to reset an environment at any time",
            );
            return false;
        }
        self.observation("reset", stage);
        true
    }

    /// Looks at the observation that `after` wrote.
    fn observation(&mut self, after: &str, stage: &Stage) {
        let mut problems = Vec::new();
        look(
            &stage.observation,
            &stage.columns.obs.at(&[1, 0]),
            "",
            &mut problems,
        );
        for problem in problems {
            self.report.find(
                format!("after {after}() the observation{problem}"),
                "write finite numbers within observation_space(), or widen its bounds",
            );
        }
        // Before both were written, rows 1 and 2 were filled with different patterns: an element
        // that still holds them was not written.
        if stage.left_unwritten() {
            self.report.find(
                format!("{after}() does not write the whole observation"),
                "write every element every time: the row holds old data",
            );
        }
    }

    fn mask(&mut self, env: &dyn Env, stage: &mut Stage) -> bool {
        let (Some(legal), true) = (&mut stage.columns.legal, env.masks_actions()) else {
            return true;
        };
        let mut row = legal.at_mut(&[0, 0]);
        let mask = row.as_mut_slice::<u8>();
        mask.fill(7);
        env.legal_actions(mask);
        let odd = mask.iter().any(|flag| *flag > 1);
        let none = mask.iter().all(|flag| *flag == 0);
        if odd {
            self.report.find(
                "legal_actions() leaves flags that are neither 0 nor 1",
                "write 1 for each legal action and 0 for all others",
            );
        }
        if none {
            self.report.find(
                "no action is legal although the episode continues",
                "end the episode, or leave at least one action legal",
            );
        }
        !odd && !none
    }

    /// Two new environments with equal generators must do the same.
    fn determinism(&mut self, env: &mut dyn Env, other: &mut dyn Env) {
        let (first, second) = (self.course(env), self.course(other));
        if let Some(t) = differ(&first, &second) {
            self.report.find(
                format!("equal generators give different episodes, from step {t} on"),
                "take all random numbers from the generator that is passed in",
            );
        }
    }

    /// What happens in some episodes of a new environment, from a fixed generator.
    fn course(&mut self, env: &mut dyn Env) -> Vec<Moment> {
        let mut rng = stream(self.seed, "check", 1);
        let mut stage = Stage::new(env);
        let mut moments = Vec::new();
        for _ in 0..EPISODES {
            if stage.reset(env, &mut rng).is_err() {
                break;
            }
            moments.push(Moment::of(&stage, Step::default()));
            moments.extend(stage.continue_for(env, &mut rng, COMPARED));
        }
        moments
    }

    /// What follows a snapshot must follow again once it is restored.
    fn snapshots(&mut self, env: &mut dyn Env, other: &mut dyn Env, stage: &mut Stage) {
        const REMEDY: &str =
            "save all state that influences later steps, except the caller's generator";
        let mut rng = stream(self.seed, "check", 2);
        if stage.reset(env, &mut rng).is_err() {
            return;
        }
        stage.continue_for(env, &mut rng, 13);
        let Some(snapshot) = env.snapshot() else {
            return;
        };
        self.report.can_be_saved = true;
        let at = rng.clone();
        let first = stage.continue_for(env, &mut rng, COMPARED);
        if let Err(error) = env.restore(&snapshot) {
            self.report.find(
                format!("restore() rejects what snapshot() returned: {error}"),
                REMEDY,
            );
            return;
        }
        if env.snapshot().as_ref() != Some(&snapshot) {
            self.report
                .find("a restored environment gives a different snapshot", REMEDY);
        }
        rng = at.clone();
        let second = stage.continue_for(env, &mut rng, COMPARED);
        rng = at;
        let third = match other.restore(&snapshot) {
            Ok(()) => stage.continue_for(other, &mut rng, COMPARED),
            Err(_) => Vec::new(),
        };
        let here = differ(&first, &second);
        if let Some(t) = here.or_else(|| differ(&first, &third)) {
            let place = here.map_or(
                "a snapshot restored into a new environment",
                |_| "a restored snapshot",
            );
            self.report.find(
                format!("{place} continues differently, from step {t} on"),
                REMEDY,
            );
        }
        let broken = &snapshot[..snapshot.len() / 2];
        if !snapshot.is_empty() && env.restore(broken).is_ok() {
            self.report.find(
                "restore() accepts half of a snapshot",
                "return EnvError::Snapshot when the bytes are not a complete state",
            );
        }
    }

    /// Actions outside the space must be refused, by an error.
    fn refusals(&mut self, env: &mut dyn Env, stage: &mut Stage) {
        let wrong_choices: Vec<i64>;
        let wrong_numbers;
        let (action, what) = match &stage.action {
            Space::Discrete { n } => (Action::Discrete(*n), format!("the choice {n} of {n}")),
            Space::MultiDiscrete { choices } => {
                wrong_choices = choices.iter().map(|n| *n as i64).collect();
                let what = format!("the choices {wrong_choices:?}");
                (Action::MultiDiscrete(&wrong_choices), what)
            }
            Space::Box { .. } | Space::Dict(_) => {
                let elements = stage.columns.actions.shape()[2..].iter().product();
                wrong_numbers = vec![f32::NAN; elements];
                (Action::Continuous(&wrong_numbers), "NaN".to_owned())
            }
        };
        let mut rng = stream(self.seed, "check", 3);
        if stage.reset(env, &mut rng).is_err() {
            return;
        }
        let obs = ObsMut::at(&mut stage.columns.obs, &[1, 0]);
        let outcome = catch_unwind(AssertUnwindSafe(|| env.step(action, &mut rng, obs)));
        let did = match outcome {
            Ok(Err(_)) => return,
            Ok(Ok(_)) => "is accepted",
            Err(_) => "makes it panic",
        };
        self.report.find(
            format!("{what} as an action {did}"),
            "read actions with Action::discrete or Action::continuous, which refuse such values",
        );
    }

    fn measure(&mut self, env: &mut dyn Env, stage: &mut Stage) {
        let mut rng = stream(self.seed, "check", 4);
        if stage.reset(env, &mut rng).is_err() {
            return;
        }
        let start = Instant::now();
        let mut steps = 0u64;
        while start.elapsed() < MEASURE {
            for _ in 0..16 {
                stage.read_mask(env);
                stage.choose(&mut rng);
                let obs = ObsMut::at(&mut stage.columns.obs, &[1, 0]);
                let action = Action::at(&stage.action, &stage.columns.actions, &[0, 0]);
                let Ok(step) = env.step(action, &mut rng, obs) else {
                    return;
                };
                steps += 1;
                let obs = ObsMut::at(&mut stage.columns.obs, &[1, 0]);
                if step.done() && env.reset(&mut rng, obs).is_err() {
                    return;
                }
            }
        }
        self.report.steps_per_second = steps as f64 / start.elapsed().as_secs_f64();
    }
}
