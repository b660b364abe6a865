//! A checker for people who write their own environments.
//!
//! Read first: [`check`] (what is tried), [`Report`] (what came of it).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use starling_tree::{DType, Tree, View};

use crate::vector::message_of;
use crate::{Action, Env, EnvError, ObsMut, Rng, Rollout, Space, Step, stream};

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Everything that is wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Steps that were tried.
    pub steps: u64,
    /// Episodes that came to an end meanwhile.
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

/// Plays `steps` random steps in an environment and looks for what would trouble a learner.
///
/// Checked are: that the spaces make sense; that observations lie within theirs, and that every
/// element is written every time; that equal generators give equal episodes; that a restored
/// snapshot goes on equally; that some action is always legal; that actions outside the space
/// are refused; that rewards are finite; that episodes end and can be followed by others. A
/// panic is a finding like any other.
pub fn check(env: &mut dyn Env, seed: u64, steps: u64) -> Report {
    let mut check = Check {
        report: Report::default(),
        seed,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| check.run(env, steps)));
    if let Err(panic) = outcome {
        check.report.find(
            format!("it panicked: {}", message_of(&*panic)),
            "an environment returns an EnvError where it cannot go on",
        );
    }
    check.report
}

/// Longest time that the measurement of speed takes.
const MEASURE: Duration = Duration::from_millis(200);

/// Steps that two courses are compared over: a prime, so that what repeats itself is not met at
/// the same place again.
const COMPARED: u64 = 211;

impl Report {
    /// Adds a finding, unless the same is known already.
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
    fn run(&mut self, env: &mut dyn Env, steps: u64) {
        let mut stage = Stage::new(env);
        if !self.spaces(env, &stage) {
            return;
        }
        if !self.play(env, &mut stage, steps) {
            return;
        }
        self.determinism(env, &mut stage);
        self.snapshots(env, &mut stage);
        self.refusals(env, &mut stage);
        self.measure(env, &mut stage);
    }

    /// Whether the spaces make sense; nothing else can be tried if not.
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
            Space::Discrete { n } => (*n == 0).then(|| "has no choice".to_owned()),
            Space::MultiDiscrete { choices } => (choices.is_empty() || choices.contains(&0))
                .then(|| format!("has a component without a choice: {choices:?}")),
            Space::Box { shape, bounds, .. } => {
                let elements: usize = shape.iter().product();
                let given = match bounds {
                    crate::Bounds::Uniform { .. } => elements,
                    crate::Bounds::PerElement { low, high } if low.len() == high.len() => low.len(),
                    crate::Bounds::PerElement { .. } => usize::MAX,
                };
                if elements == 0 {
                    Some(format!("has no element: its shape is {shape:?}"))
                } else if given != elements {
                    Some(format!("has not one bound for each of {elements} elements"))
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
                parts.is_empty().then(|| "has no part".to_owned())
            }
        };
        if let Some(bad) = bad {
            self.report.find(
                format!("the {name} space {bad}"),
                "correct what observation_space() or action_space() returns",
            );
        }
    }

    /// Plays at random; returns whether the environment could be played at all.
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
                        "accept every action of the action space that is legal",
                    );
                    return false;
                }
            };
            self.report.steps += 1;
            self.observation("step", stage);
            if !step.reward.is_finite() {
                self.report.find(
                    format!("a reward is {}", step.reward),
                    "rewards are finite numbers: look for a division by zero or an overflow",
                );
            }
            if step.done() {
                self.report.episodes += 1;
                if !self.reset(env, stage, &mut rng) {
                    return false;
                }
            }
        }
        if self.report.episodes == 0 && steps >= 10_000 {
            self.report.find(
                format!("no episode ended in {steps} random steps"),
                "if episodes are endless, give the environment a limit: max_episode_steps, or TimeLimit",
            );
        }
        true
    }

    fn reset(&mut self, env: &mut dyn Env, stage: &mut Stage, rng: &mut Rng) -> bool {
        if let Err(error) = stage.reset(env, rng) {
            self.report.find(
                format!("reset() failed: {error}"),
                "an environment can be reset at any time",
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
                "write what observation_space() promises, or widen its bounds",
            );
        }
        // Row 1 was filled with one pattern and row 2 with another before both were written; an
        // element that still differs was left as it was.
        if stage.left_unwritten() {
            self.report.find(
                format!("{after}() does not write the whole observation"),
                "write every element every time: the row holds what was there before",
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
                "write 1 for each legal action and 0 for each other one",
            );
        }
        if none {
            self.report.find(
                "no action is legal although the episode goes on",
                "end the episode, or leave at least one action legal",
            );
        }
        !odd && !none
    }

    /// Two episodes from equal generators must be equal.
    fn determinism(&mut self, env: &mut dyn Env, stage: &mut Stage) {
        let first = self.trace(env, stage);
        let second = self.trace(env, stage);
        if let Some(t) = differ(&first, &second) {
            self.report.find(
                format!("equal generators give different episodes, from step {t} on"),
                "take all chance from the generator that is passed in, and start anew in reset()",
            );
        }
    }

    /// What happens in an episode from a fixed generator.
    fn trace(&mut self, env: &mut dyn Env, stage: &mut Stage) -> Vec<Moment> {
        let mut rng = stream(self.seed, "check", 1);
        if stage.reset(env, &mut rng).is_err() {
            return Vec::new();
        }
        let mut moments = vec![Moment::of(stage, Step::default())];
        moments.extend(stage.go_on(env, &mut rng, COMPARED));
        moments
    }

    /// What follows a snapshot must follow again once it is restored.
    fn snapshots(&mut self, env: &mut dyn Env, stage: &mut Stage) {
        const REMEDY: &str =
            "save everything that decides what follows, the caller's generator aside";
        let mut rng = stream(self.seed, "check", 2);
        if stage.reset(env, &mut rng).is_err() {
            return;
        }
        stage.go_on(env, &mut rng, 13);
        let Some(snapshot) = env.snapshot() else {
            return;
        };
        self.report.can_be_saved = true;
        let at = rng.clone();
        let first = stage.go_on(env, &mut rng, COMPARED);
        if let Err(error) = env.restore(&snapshot) {
            self.report.find(
                format!("restore() refuses what snapshot() gave: {error}"),
                REMEDY,
            );
            return;
        }
        if env.snapshot().as_ref() != Some(&snapshot) {
            self.report
                .find("a restored environment gives another snapshot", REMEDY);
        }
        rng = at;
        let second = stage.go_on(env, &mut rng, COMPARED);
        if let Some(t) = differ(&first, &second) {
            self.report.find(
                format!("a restored environment goes on otherwise, from step {t} on"),
                REMEDY,
            );
        }
        let broken = &snapshot[..snapshot.len() / 2];
        if !snapshot.is_empty() && env.restore(broken).is_ok() {
            self.report.find(
                "restore() accepts half of a snapshot",
                "return EnvError::Snapshot when the bytes are not a whole state",
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
            "read actions by Action::discrete or Action::continuous, which refuse such values",
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

/// The columns that an environment is tried on: one environment, one action, and two rows of
/// observations beside row 0 to see what is written.
struct Stage {
    observation: Space,
    action: Space,
    columns: Rollout,
}

impl Stage {
    fn new(env: &dyn Env) -> Self {
        let observation = env.observation_space();
        let action = env.action_space();
        let legal = match action {
            Space::Discrete { n } if env.masks_actions() => Some(n),
            _ => None,
        };
        let nothing = Tree::empty();
        let columns = Rollout::new(2, 1, &observation, &action, legal, &nothing, &nothing);
        Self {
            observation,
            action,
            columns,
        }
    }

    /// Resets on two copies of the generator, into rows 1 and 2 that held different bytes.
    fn reset(&mut self, env: &mut dyn Env, rng: &mut Rng) -> Result<(), EnvError> {
        self.soil();
        let mut again = rng.clone();
        env.reset(&mut again, ObsMut::at(&mut self.columns.obs, &[2, 0]))?;
        env.reset(rng, ObsMut::at(&mut self.columns.obs, &[1, 0]))
    }

    /// Steps into row 1; row 2 gets the same, where the environment can be saved.
    fn step(&mut self, env: &mut dyn Env, rng: &mut Rng) -> Result<Step, EnvError> {
        self.soil();
        let action = Action::at(&self.action, &self.columns.actions, &[0, 0]);
        if let Some(snapshot) = env.snapshot() {
            let mut again = rng.clone();
            env.step(
                action,
                &mut again,
                ObsMut::at(&mut self.columns.obs, &[2, 0]),
            )?;
            env.restore(&snapshot)?;
        }
        let step = env.step(action, rng, ObsMut::at(&mut self.columns.obs, &[1, 0]))?;
        if env.snapshot().is_none() {
            self.copy_row();
        }
        Ok(step)
    }

    /// Fills rows 1 and 2 with bytes that no environment would write.
    fn soil(&mut self) {
        for (_, array) in self.columns.obs.leaves_mut() {
            array.at_mut(&[1]).bytes.fill(0xaa);
            array.at_mut(&[2]).bytes.fill(0x55);
        }
    }

    fn copy_row(&mut self) {
        for (_, array) in self.columns.obs.leaves_mut() {
            let row = array.at(&[1]).bytes.to_vec();
            array.at_mut(&[2]).bytes.copy_from_slice(&row);
        }
    }

    fn left_unwritten(&self) -> bool {
        let leaves = self.columns.obs.leaves();
        leaves.iter().any(|(_, array)| {
            let rows = array.at(&[1]).bytes.iter().zip(array.at(&[2]).bytes);
            rows.into_iter().any(|(a, b)| (*a, *b) == (0xaa, 0x55))
        })
    }

    fn read_mask(&mut self, env: &dyn Env) {
        if let Some(legal) = &mut self.columns.legal {
            env.legal_actions(legal.at_mut(&[0, 0]).as_mut_slice());
        }
    }

    fn choose(&mut self, rng: &mut Rng) {
        let legal = self.columns.legal.as_ref().map(|legal| legal.at(&[0, 0]));
        let legal = legal.map(|legal| legal.as_slice::<u8>());
        let action = self.columns.actions.at_mut(&[0, 0]);
        self.action.sample(rng, legal, action);
    }

    /// Goes on at random for some steps, over the ends of episodes.
    fn go_on(&mut self, env: &mut dyn Env, rng: &mut Rng, steps: u64) -> Vec<Moment> {
        let mut moments = Vec::new();
        for _ in 0..steps {
            self.read_mask(env);
            self.choose(rng);
            let action = Action::at(&self.action, &self.columns.actions, &[0, 0]);
            let obs = ObsMut::at(&mut self.columns.obs, &[1, 0]);
            let Ok(step) = env.step(action, rng, obs) else {
                break;
            };
            moments.push(Moment::of(self, step));
            if step.done() {
                let obs = ObsMut::at(&mut self.columns.obs, &[1, 0]);
                if env.reset(rng, obs).is_err() {
                    break;
                }
                moments.push(Moment::of(self, Step::default()));
            }
        }
        moments
    }
}

/// What a step showed and gave, as bits.
#[derive(PartialEq)]
struct Moment {
    obs: Vec<u8>,
    reward: u32,
    ends: (bool, bool),
}

impl Moment {
    fn of(stage: &Stage, step: Step) -> Self {
        let leaves = stage.columns.obs.leaves();
        let rows = leaves.iter().flat_map(|(_, array)| array.at(&[1]).bytes);
        Self {
            obs: rows.copied().collect(),
            reward: step.reward.to_bits(),
            ends: (step.terminated, step.truncated),
        }
    }
}

/// The first moment at which two courses differ.
fn differ(first: &[Moment], second: &[Moment]) -> Option<usize> {
    if first == second {
        return None;
    }
    let same = first.iter().zip(second).take_while(|(a, b)| a == b);
    Some(same.count())
}

/// Says where an observation is not of its space.
fn look(space: &Space, value: &Tree<View<'_>>, path: &str, problems: &mut Vec<String>) {
    let part = if path.is_empty() {
        String::new()
    } else {
        format!(" '{path}'")
    };
    match (space, value) {
        (Space::Dict(parts), tree) => {
            for (name, space) in parts {
                let inner = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                if let Some(value) = tree.get(name) {
                    look(space, value, &inner, problems);
                }
            }
        }
        (Space::Discrete { n }, Tree::Leaf(view)) => {
            let value = view.as_slice::<i64>()[0];
            if !usize::try_from(value).is_ok_and(|value| value < *n) {
                problems.push(format!("{part} is {value}, not one of {n} choices"));
            }
        }
        (Space::MultiDiscrete { choices }, Tree::Leaf(view)) => {
            for (i, (value, n)) in view.as_slice::<i64>().iter().zip(choices).enumerate() {
                if !usize::try_from(*value).is_ok_and(|value| value < *n) {
                    problems.push(format!("{part} has {value} at {i}, not one of {n} choices"));
                    return;
                }
            }
        }
        (Space::Box { dtype, bounds, .. }, Tree::Leaf(view)) => {
            let values: Vec<f64> = match dtype {
                DType::U8 => view
                    .as_slice::<u8>()
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect(),
                DType::I32 => view
                    .as_slice::<i32>()
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect(),
                DType::I64 => view.as_slice::<i64>().iter().map(|x| *x as f64).collect(),
                DType::F32 => view
                    .as_slice::<f32>()
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect(),
                DType::F64 => view.as_slice::<f64>().to_vec(),
            };
            for (i, value) in values.iter().enumerate() {
                let (low, high) = bounds.of(i);
                if value.is_nan() {
                    problems.push(format!("{part} has NaN at {i}"));
                    return;
                }
                if *value < f64::from(low) || *value > f64::from(high) {
                    problems.push(format!("{part} leaves its bounds at {i} ({low} to {high})"));
                    return;
                }
            }
        }
        (_, Tree::Node(_)) => problems.push(format!("{part} has named parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvOptions, registry};

    #[test]
    fn every_environment_of_the_table_passes() {
        for spec in registry::all() {
            let mut env = spec.make(&EnvOptions::default()).unwrap();
            let report = check(&mut *env, 5, 3000);
            assert_eq!(report.findings, [], "{}", spec.id);
            assert_eq!(report.steps, 3000);
            assert!(report.can_be_saved, "{}", spec.id);
            assert!(report.steps_per_second > 0.0);
        }
    }

    /// An environment with one fault at a time.
    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        OutOfBounds,
        NanReward,
        HalfWritten,
        OwnChance,
        ForgetfulSnapshot,
        AcceptsAnything,
        PanicsOnBadAction,
        NothingLegal,
        OddMask,
        FailsToReset,
        Endless,
        NoChoice,
    }

    struct Faulty {
        fault: Fault,
        count: u32,
        lives: u32,
    }

    impl Faulty {
        fn show(&self, mut obs: ObsMut<'_>) {
            let row = obs.as_mut_slice::<f32>();
            row[0] = if self.fault == Fault::OwnChance {
                self.lives as f32 / 1e6
            } else if self.fault == Fault::OutOfBounds && self.count == 3 {
                1.5
            } else {
                self.count as f32 / 1000.0
            };
            if self.fault != Fault::HalfWritten || self.count != 2 {
                row[1] = 0.0;
            }
        }
    }

    impl Env for Faulty {
        fn observation_space(&self) -> Space {
            Space::floats(&[2], 0.0, 1.0)
        }

        fn action_space(&self) -> Space {
            Space::Discrete {
                n: if self.fault == Fault::NoChoice { 0 } else { 3 },
            }
        }

        fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
            self.lives += 1;
            if self.fault == Fault::FailsToReset && self.lives > 2 {
                return Err(EnvError::Failed("the door is locked".into()));
            }
            self.count = 0;
            self.show(obs);
            Ok(())
        }

        fn step(
            &mut self,
            action: Action<'_>,
            _: &mut Rng,
            obs: ObsMut<'_>,
        ) -> Result<Step, EnvError> {
            match self.fault {
                Fault::AcceptsAnything => {}
                Fault::PanicsOnBadAction => assert_ne!(action, Action::Discrete(3)),
                _ => {
                    action.discrete(3)?;
                }
            }
            self.count += u32::from(self.fault != Fault::Endless || self.count < 500);
            self.show(obs);
            let nan = self.fault == Fault::NanReward && self.count == 4;
            Ok(Step {
                reward: if nan { f32::NAN } else { 0.5 },
                terminated: self.count == 50 && self.fault != Fault::Endless,
                truncated: false,
            })
        }

        fn masks_actions(&self) -> bool {
            true
        }

        fn legal_actions(&self, mask: &mut [u8]) {
            match self.fault {
                Fault::NothingLegal if self.count == 5 => mask.fill(0),
                Fault::OddMask => mask[0] = 1,
                _ => mask.fill(1),
            }
        }

        fn snapshot(&self) -> Option<Vec<u8>> {
            let kept = self.fault != Fault::ForgetfulSnapshot;
            kept.then(|| self.count.to_le_bytes().to_vec())
                .or(Some(vec![1, 2, 3, 4]))
        }

        fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
            let bytes = <[u8; 4]>::try_from(snapshot);
            let bytes = bytes.map_err(|_| EnvError::Snapshot("it is not 4 bytes".into()))?;
            if self.fault != Fault::ForgetfulSnapshot {
                self.count = u32::from_le_bytes(bytes);
            }
            Ok(())
        }
    }

    fn findings(fault: Fault) -> String {
        let (count, lives) = (0, 0);
        let mut env = Faulty {
            fault,
            count,
            lives,
        };
        let report = check(&mut env, 1, 10_000);
        let lines = report.findings.iter().map(Finding::to_string);
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_fault_is_found() {
        assert_eq!(findings(Fault::None), "");
        for (fault, says) in [
            (Fault::OutOfBounds, "leaves its bounds at 0"),
            (Fault::NanReward, "a reward is NaN"),
            (Fault::HalfWritten, "does not write the whole observation"),
            (Fault::OwnChance, "equal generators give different episodes"),
            (Fault::ForgetfulSnapshot, "goes on otherwise"),
            (Fault::AcceptsAnything, "is accepted"),
            (Fault::PanicsOnBadAction, "makes it panic"),
            (Fault::NothingLegal, "no action is legal"),
            (Fault::OddMask, "neither 0 nor 1"),
            (Fault::FailsToReset, "the door is locked"),
            (Fault::Endless, "no episode ended"),
            (Fault::NoChoice, "has no choice"),
        ] {
            let found = findings(fault);
            assert!(found.contains(says), "'{says}' is not in: {found}");
        }
    }
}
