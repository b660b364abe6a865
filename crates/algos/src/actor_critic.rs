//! What policy-gradient algorithms share: acting with a policy and a value, and turning a
//! rollout into tensors with advantages.

use std::sync::Arc;

use starling_envs::Rollout;
use starling_nets::{
    ActorCritic, ActorCriticOutput, Device, Kind, Layout, NetConfig, Params, ShapeMismatch, Tensor,
    no_grad, tensor_of, tensor_of_view, tree_of,
};
use starling_tree::{Array, DType, Spec, Tree};

use crate::ops::generalized_advantages;
use crate::{Acting, Policy, Spaces};

/// A network with the layout of its weights.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) net: ActorCritic,
    pub(crate) layout: Arc<Layout>,
}

impl Model {
    pub(crate) fn new(config: &NetConfig, spaces: &Spaces) -> Result<Self, ShapeMismatch> {
        let mut layout = Layout::default();
        let net = ActorCritic::new(&mut layout, config, &spaces.observation, &spaces.action)?;
        let layout = Arc::new(layout);
        Ok(Self { net, layout })
    }

    pub(crate) fn policy(&self, device: Device) -> ActorCriticPolicy {
        ActorCriticPolicy {
            net: self.net.clone(),
            params: Params::zeros(&self.layout, device),
            device,
        }
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        !self.net.state_spec().is_empty()
    }
}

/// Samples from the policy and records the log-probability and the value.
#[derive(Debug)]
pub(crate) struct ActorCriticPolicy {
    net: ActorCritic,
    params: Params,
    device: Device,
}

impl Policy for ActorCriticPolicy {
    fn records(&self) -> Tree<Spec> {
        let scalar = || Tree::Leaf(Spec::scalar(DType::F32));
        Tree::node([("log_prob", scalar()), ("value", scalar())])
    }

    fn state(&self) -> Tree<Spec> {
        self.net.state_spec()
    }

    fn load(&mut self, weights: &[f32]) -> Result<(), ShapeMismatch> {
        self.params.load_slice(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        let device = self.device;
        let envs = acting.rngs.len();
        let obs = tree_of(&rollout.obs, &[t], device);
        let legal = rollout.legal.as_ref();
        let legal = legal.map(|mask| tensor_of_view(mask.at(&[t]), device));
        let state = tree_of(acting.state, &[], device);
        // Where an episode begins the state is zero already.
        let starts = Tensor::zeros([1, envs as i64], (Kind::Float, device));
        let output = no_grad(|| {
            self.net
                .forward(&self.params, &obs, legal.as_ref(), 1, &starts, &state)
        });

        let mut log_probs = vec![0.0; envs];
        let actions = &mut rollout.actions;
        let chances = Some(log_probs.as_mut_slice());
        output
            .policy
            .act(acting.rngs, acting.explore, t, actions, chances);
        write_record(&mut rollout.policy, "log_prob", t, &log_probs);
        let values = starling_nets::array_of(&output.value);
        write_record(&mut rollout.policy, "value", t, values.as_slice());
        if !output.states.is_empty() {
            *acting.state = output.states.map(starling_nets::array_of);
        }
    }
}

fn write_record(records: &mut Tree<Array>, name: &str, t: usize, values: &[f32]) {
    if let Some(Tree::Leaf(column)) = records.get_mut(name) {
        column.at_mut(&[t]).write(values);
    }
}

/// A rollout as tensors, `[T·B, ..]` in time-major order, with advantages.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) steps: usize,
    pub(crate) envs: usize,
    pub(crate) obs: Tree<Tensor>,
    pub(crate) legal: Option<Tensor>,
    pub(crate) actions: Tensor,
    pub(crate) log_probs: Tensor,
    pub(crate) values: Tensor,
    pub(crate) advantages: Tensor,
    pub(crate) returns: Tensor,
    /// 1 where a step is the first of an episode, `[T, B]`.
    pub(crate) starts: Tensor,
    /// Recurrent state before the first step, `[B, ..]`.
    pub(crate) state: Tree<Tensor>,
}

impl Prepared {
    /// Computes advantages with the learner's present values of the states that follow.
    pub(crate) fn new(
        model: &Model,
        params: &Params,
        rollout: &Rollout,
        gamma: f64,
        lambda: f64,
        device: Device,
    ) -> Self {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let rows = steps * envs;
        let ends: Vec<bool> = flags(&rollout.terminated)
            .zip(flags(&rollout.truncated))
            .map(|(terminated, truncated)| terminated || truncated)
            .collect();
        let mut starts = vec![0f32; rows];
        for i in envs..rows {
            starts[i] = f32::from(u8::from(ends[i - envs]));
        }
        let starts = Tensor::from_slice(&starts)
            .reshape([steps as i64, envs as i64])
            .to_device(device);
        let state = tree_of(&rollout.state, &[], device);

        let obs = rollout.obs.map(|array| {
            let all = tensor_of(array, device).narrow(0, 0, steps as i64);
            all.flatten(0, 1)
        });
        let legal = rollout.legal.as_ref().map(|mask| {
            let all = tensor_of(mask, device).narrow(0, 0, steps as i64);
            all.flatten(0, 1)
        });
        let record = |name: &str| match rollout.policy.get(name) {
            Some(Tree::Leaf(column)) => column.as_slice::<f32>(),
            _ => panic!("the rollout has no record called '{name}'"),
        };
        let values = record("value");

        let whole = model.is_recurrent().then(|| {
            no_grad(|| {
                model
                    .net
                    .forward(params, &obs, legal.as_ref(), steps, &starts, &state)
            })
        });
        let next_values = next_values(model, params, rollout, values, whole.as_ref(), device);
        let computed = generalized_advantages(
            rollout.rewards.as_slice(),
            values,
            &next_values,
            &ends,
            envs,
            gamma as f32,
            lambda as f32,
        );
        let vector = |values: &[f32]| Tensor::from_slice(values).to_device(device);
        Self {
            steps,
            envs,
            obs,
            legal,
            actions: tensor_of(&rollout.actions, device).flatten(0, 1),
            log_probs: vector(record("log_prob")),
            values: vector(values),
            advantages: vector(&computed.advantages),
            returns: vector(&computed.returns),
            starts,
            state,
        }
    }

    /// The rows of some of the B environments (for recurrent networks, whose sequences stay
    /// whole), or of some of the T·B steps.
    pub(crate) fn select(&self, indices: &[i64], whole_sequences: bool) -> Prepared {
        let device = self.advantages.device();
        let chosen = Tensor::from_slice(indices).to_device(device);
        let (steps, envs) = (self.steps as i64, self.envs as i64);
        let rows = if whole_sequences {
            let time = Tensor::arange(steps, (Kind::Int64, device)).reshape([-1, 1]);
            (time * envs + &chosen).reshape([-1])
        } else {
            chosen.shallow_clone()
        };
        let pick = |tensor: &Tensor| tensor.index_select(0, &rows);
        Prepared {
            steps: if whole_sequences { self.steps } else { 1 },
            envs: indices.len(),
            obs: self.obs.map(pick),
            legal: self.legal.as_ref().map(pick),
            actions: pick(&self.actions),
            log_probs: pick(&self.log_probs),
            values: pick(&self.values),
            advantages: pick(&self.advantages),
            returns: pick(&self.returns),
            starts: match whole_sequences {
                true => self.starts.index_select(1, &chosen),
                false => self.starts.shallow_clone(),
            },
            state: match whole_sequences {
                true => self.state.map(|tensor| tensor.index_select(0, &chosen)),
                false => Tree::empty(),
            },
        }
    }

    /// What the network says now about these rows, with a graph for gradients.
    pub(crate) fn forward(&self, model: &Model, params: &Params) -> ActorCriticOutput {
        let legal = self.legal.as_ref();
        model.net.forward(
            params,
            &self.obs,
            legal,
            self.steps,
            &self.starts,
            &self.state,
        )
    }
}

/// Advantages with mean 0 and standard deviation 1.
pub(crate) fn normalized(advantages: &Tensor) -> Tensor {
    let centred = advantages - advantages.mean(Kind::Float);
    let deviation = advantages.std(false).clamp_min(1e-6);
    centred / deviation
}

/// Values of the states after each step within the same episode, `[T, B]`.
fn next_values(
    model: &Model,
    params: &Params,
    rollout: &Rollout,
    values: &[f32],
    whole: Option<&ActorCriticOutput>,
    device: Device,
) -> Vec<f32> {
    let (steps, envs) = (rollout.steps(), rollout.envs());
    let terminated: Vec<bool> = flags(&rollout.terminated).collect();
    let truncated: Vec<bool> = flags(&rollout.truncated).collect();
    let mut next = vec![0.0; steps * envs];
    next[..(steps - 1) * envs].copy_from_slice(&values[envs..]);

    // One forward pass for the row after the last step and the ends of cut-off episodes.
    let cut: Vec<usize> = (0..rollout.final_at.len())
        .filter(|&k| {
            let (t, b) = rollout.final_at[k];
            truncated[t * envs + b] && !terminated[t * envs + b]
        })
        .collect();
    let last = tree_of(&rollout.obs, &[steps], device);
    let mut obs = last;
    if !cut.is_empty() {
        let rows: Vec<i64> = cut.iter().map(|&k| k as i64).collect();
        let rows = Tensor::from_slice(&rows).to_device(device);
        let finals = rollout
            .final_obs
            .map(|array| tensor_of(array, device).index_select(0, &rows));
        let joined = obs.zip_mut(&finals, |all, finals| {
            *all = Tensor::cat(&[&*all, finals], 0);
        });
        debug_assert!(joined.is_ok(), "both are observations of one space");
    }
    let state = match whole {
        None => Tree::empty(),
        Some(output) => {
            // Rows of the state after each step, [T·B, ..]: the last B, then the cut episodes.
            let last = (steps - 1) * envs;
            let rows = (last..last + envs).map(|row| row as i64);
            let ends = cut.iter().map(|&k| {
                let (t, b) = rollout.final_at[k];
                (t * envs + b) as i64
            });
            let rows: Vec<i64> = rows.chain(ends).collect();
            let rows = Tensor::from_slice(&rows).to_device(device);
            output.states.map(|tensor| tensor.index_select(0, &rows))
        }
    };
    let total = envs + cut.len();
    let starts = Tensor::zeros([1, total as i64], (Kind::Float, device));
    let output = no_grad(|| model.net.forward(params, &obs, None, 1, &starts, &state));
    let bootstrap = starling_nets::array_of(&output.value);
    let bootstrap = bootstrap.as_slice::<f32>();

    next[(steps - 1) * envs..].copy_from_slice(&bootstrap[..envs]);
    for (i, &k) in cut.iter().enumerate() {
        let (t, b) = rollout.final_at[k];
        next[t * envs + b] = bootstrap[envs + i];
    }
    for (next, terminated) in next.iter_mut().zip(terminated) {
        if terminated {
            *next = 0.0;
        }
    }
    next
}

fn flags(column: &Array) -> impl Iterator<Item = bool> + '_ {
    column.as_slice::<u8>().iter().map(|&flag| flag != 0)
}
