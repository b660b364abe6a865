//! The columns that a checked environment writes into, and the checks of what it wrote.

use starling_tree::{DType, Tree, View};

use crate::{Action, Env, EnvError, ObsMut, Rng, Rollout, Space, Step};

/// The columns that an environment writes into: one environment, one action, and two rows of
/// observations besides row 0 to see what is written.
pub(super) struct Stage {
    pub(super) observation: Space,
    pub(super) action: Space,
    pub(super) columns: Rollout,
}

impl Stage {
    pub(super) fn new(env: &dyn Env) -> Self {
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
    pub(super) fn reset(&mut self, env: &mut dyn Env, rng: &mut Rng) -> Result<(), EnvError> {
        self.soil();
        let mut again = rng.clone();
        env.reset(&mut again, ObsMut::at(&mut self.columns.obs, &[2, 0]))?;
        env.reset(rng, ObsMut::at(&mut self.columns.obs, &[1, 0]))
    }

    /// Steps into row 1, and into row 2 as well if the environment can be saved.
    pub(super) fn step(&mut self, env: &mut dyn Env, rng: &mut Rng) -> Result<Step, EnvError> {
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

    pub(super) fn left_unwritten(&self) -> bool {
        let leaves = self.columns.obs.leaves();
        leaves.iter().any(|(_, array)| {
            let rows = array.at(&[1]).bytes.iter().zip(array.at(&[2]).bytes);
            rows.into_iter().any(|(a, b)| (*a, *b) == (0xaa, 0x55))
        })
    }

    pub(super) fn read_mask(&mut self, env: &dyn Env) {
        if let Some(legal) = &mut self.columns.legal {
            env.legal_actions(legal.at_mut(&[0, 0]).as_mut_slice());
        }
    }

    pub(super) fn choose(&mut self, rng: &mut Rng) {
        let legal = self.columns.legal.as_ref().map(|legal| legal.at(&[0, 0]));
        let legal = legal.map(|legal| legal.as_slice::<u8>());
        let action = self.columns.actions.at_mut(&[0, 0]);
        self.action.sample(rng, legal, action);
    }

    /// Takes random steps, across the ends of episodes.
    pub(super) fn continue_for(
        &mut self,
        env: &mut dyn Env,
        rng: &mut Rng,
        steps: u64,
    ) -> Vec<Moment> {
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
pub(super) struct Moment {
    obs: Vec<u8>,
    reward: u32,
    ends: (bool, bool),
}

impl Moment {
    pub(super) fn of(stage: &Stage, step: Step) -> Self {
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
pub(super) fn differ(first: &[Moment], second: &[Moment]) -> Option<usize> {
    if first == second {
        return None;
    }
    let same = first.iter().zip(second).take_while(|(a, b)| a == b);
    Some(same.count())
}

/// Says where an observation is not of its space.
pub(super) fn look(space: &Space, value: &Tree<View<'_>>, path: &str, problems: &mut Vec<String>) {
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
                // Infinite values too: that a space has no bounds does not make them usable.
                if !value.is_finite() {
                    problems.push(format!("{part} has {value} at element {i}"));
                    return;
                }
                if *value < f64::from(low) || *value > f64::from(high) {
                    problems.push(format!(
                        "{part} is outside its bounds ({low} to {high}) at element {i}"
                    ));
                    return;
                }
            }
        }
        (_, Tree::Node(_)) => problems.push(format!("{part} has named parts")),
    }
}
