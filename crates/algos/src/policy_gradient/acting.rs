//! Acting with a policy and a value: one forward pass for a group of environments, with inputs
//! that stay on the device.

use starling_envs::Rollout;
use starling_nets::{
    ActorCritic, ActorCriticOutput, Device, Kind, Landing, LastInput, Params, Recorded,
    ShapeMismatch, Snapshot, Staging, Tensor, no_grad, synchronize,
};
use starling_tree::{Array, DType, Spec, Tree};

use super::{Model, carried};
use crate::rollout_columns::DeviceColumns;
use crate::shown::Shown;
use crate::{Acting, Part, Policy};

/// Samples from the policy and records the log-probability and the value.
#[derive(Debug)]
pub(crate) struct ActorCriticPolicy {
    model: Model,
    params: Params,
    device: Device,
    groups: Vec<Option<Group>>,
}

impl ActorCriticPolicy {
    pub(crate) fn new(model: &Model, device: Device) -> Self {
        Self {
            model: model.clone(),
            params: Params::zeros(&model.layout, device),
            device,
            groups: Vec::new(),
        }
    }

    /// The inputs of a group; new ones if its size has changed.
    fn group(&mut self, number: usize, parts: &[Part<'_>]) -> &mut Group {
        let envs = parts.iter().map(|part| part.acting.rngs.len()).sum();
        while self.groups.len() <= number {
            self.groups.push(None);
        }
        let group = &mut self.groups[number];
        if group
            .as_ref()
            .is_some_and(|group| group.shown.envs() != envs)
        {
            *group = None;
        }
        group.get_or_insert_with(|| Group::new(parts[0].rollout, &self.model, &self.params, envs))
    }
}

impl Policy for ActorCriticPolicy {
    fn records(&self) -> Tree<Spec> {
        let scalar = || Tree::Leaf(Spec::scalar(DType::F32));
        Tree::node([("log_prob", scalar()), ("value", scalar())])
    }

    fn state(&self) -> Tree<Spec> {
        carried::spec(&self.model)
    }

    fn load(&mut self, weights: &Snapshot) -> Result<(), ShapeMismatch> {
        self.params.load(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        self.act_together(t, 0, &mut [Part { rollout, acting }]);
    }

    fn act_together(&mut self, t: usize, group: usize, parts: &mut [Part<'_>]) {
        self.group(group, parts).shown.show(t, parts);
        let Some(Some(group)) = self.groups.get_mut(group) else {
            return;
        };
        group.prepare(t, parts, self.model.net.last.as_ref());
        answer(t, parts, group.pass.run(), &mut group.landing);
    }

    fn finish(&mut self, group: usize, parts: &mut [Part<'_>]) {
        for part in parts.iter_mut() {
            carried::remember(&self.model, part.rollout, part.acting.state);
        }
        let device = self.device;
        if let (Some(Some(group)), Device::Cuda(_)) = (self.groups.get_mut(group), device) {
            let last = parts[0].rollout.steps();
            group.shown.show(last, parts);
            group.leave_rows(parts);
            synchronize(device);
        }
    }
}

/// Writes what was chosen into row `t` of the rollouts, and the memory after it.
fn answer(t: usize, parts: &mut [Part<'_>], output: &ActorCriticOutput, landing: &mut Landing) {
    let mut tensors = output.policy.tensors();
    let numbers_of_policy = tensors.len();
    tensors.push(&output.value);
    tensors.extend(output.states.leaves().into_iter().map(|(_, state)| state));
    let mut arrays = landing.fetch(&tensors).into_iter();
    let policy = output
        .policy
        .sampler(arrays.by_ref().take(numbers_of_policy));
    let arrays: Vec<Array> = arrays.collect();
    let (values, states) = (&arrays[0], &arrays[1..]);
    let mut first = 0;
    for Part { rollout, acting } in parts {
        let envs = acting.rngs.len();
        let mut log_probs = vec![0.0; envs];
        policy.act(
            first,
            acting.rngs,
            acting.explore,
            t,
            &mut rollout.actions,
            Some(log_probs.as_mut_slice()),
        );
        write_record(&mut rollout.policy, "log_prob", t, &log_probs);
        let values = &values.as_slice::<f32>()[first..first + envs];
        write_record(&mut rollout.policy, "value", t, values);
        let mut memory = acting.state.leaves_mut();
        for ((_, memory), states) in memory.iter_mut().zip(states) {
            let row = states.at(&[0]).bytes.len();
            let rows = &states.bytes()[first * row..(first + envs) * row];
            memory.bytes_mut().copy_from_slice(rows);
        }
        first += envs;
    }
}

fn write_record(records: &mut Tree<Array>, name: &str, t: usize, values: &[f32]) {
    if let Some(Tree::Leaf(column)) = records.get_mut(name) {
        column.at_mut(&[t]).write(values);
    }
}

/// A group of environments whose actions are chosen in one recorded pass.
#[derive(Debug)]
struct Group {
    shown: Shown,
    pass: Recorded<Inputs, ActorCriticOutput>,
    landing: Landing,
}

/// What a pass reads.
#[derive(Debug)]
struct Inputs {
    /// The tensors of [`Shown`].
    obs: Tree<Tensor>,
    legal: Option<Staging>,
    /// Last actions and rewards.
    last: Option<Staging>,
    state: Tree<Staging>,
    /// Zeros: where an episode begins, the state is zero already.
    starts: Tensor,
}

impl Group {
    fn new(rollout: &Rollout, model: &Model, params: &Params, envs: usize) -> Self {
        let device = params.device();
        let item = |array: &Array| Spec::new(array.dtype(), &array.shape()[2..]);
        let staging = |spec: &Spec| Staging::new(envs, spec, device);
        let shown = Shown::new(rollout, envs, model.frame_stack, device).keeping_rows();
        let inputs = Inputs {
            obs: shown.tensors(),
            legal: rollout.legal.as_ref().map(|array| staging(&item(array))),
            last: model.net.last.as_ref().map(|last| {
                let spec = Spec::new(DType::F32, &[last.size]);
                staging(&spec)
            }),
            state: model.net.state_spec().map(staging),
            starts: Tensor::zeros([1, envs as i64], (Kind::Float, device)),
        };
        let (net, params) = (model.net.clone(), params.share());
        let pass = move |inputs: &Inputs| {
            let mut obs = inputs.obs.map(Tensor::shallow_clone);
            if let Some(last) = &inputs.last {
                obs = ActorCritic::with_last(obs, last.tensor().shallow_clone());
            }
            let legal = inputs.legal.as_ref().map(Staging::tensor);
            let state = inputs.state.map(|state| state.tensor().shallow_clone());
            no_grad(|| net.forward(&params, &obs, legal, 1, &inputs.starts, &state))
        };
        Self {
            shown,
            pass: Recorded::new(device, inputs, pass),
            landing: Landing::default(),
        }
    }

    /// Copies legal actions, last actions and memory to the device.
    fn prepare(&self, t: usize, parts: &[Part<'_>], last: Option<&LastInput>) {
        let inputs = self.pass.inputs();
        let mut first = 0;
        for Part { rollout, acting } in parts {
            if let (Some(staging), Some(legal)) = (&inputs.legal, &rollout.legal) {
                staging.write(first, legal.at(&[t]).bytes);
            }
            if let (Some(staging), Some(last)) = (&inputs.last, last) {
                let mut encoded = vec![0.0; last.size];
                for b in 0..acting.rngs.len() {
                    carried::encode_last(last, rollout, t, b, &mut encoded);
                    let row = Array::from_slice(&encoded, &[last.size]);
                    staging.write(first + b, row.bytes());
                }
            }
            let state = acting.state.leaves();
            for ((_, staging), (_, memory)) in inputs.state.leaves().into_iter().zip(state) {
                staging.write(first, memory.bytes());
            }
            first += acting.rngs.len();
        }
        for staging in [&inputs.legal, &inputs.last].into_iter().flatten() {
            staging.upload();
        }
        for (_, staging) in inputs.state.leaves() {
            staging.upload();
        }
    }

    /// Leaves the observations on the device with the rollouts, for a learner there.
    fn leave_rows(&mut self, parts: &mut [Part<'_>]) {
        let Some(rows) = self.shown.rows().take() else {
            return;
        };
        let mut first = 0;
        for part in parts {
            let envs = part.acting.rngs.len() as i64;
            let part_of = rows.map(|rows| rows.narrow(1, first, envs));
            part.rollout.resident = starling_envs::Resident::new(DeviceColumns::new(part_of));
            first += envs;
        }
    }
}
