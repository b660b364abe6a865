//! The errors of NGU's values, and the losses of its novelty networks.

use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::Rng;
use starling_nets::{Device, Kind, Layout, Moments, Params, RunningNorm, Tensor, no_grad};
use starling_replay::SequenceConfig;

use super::{Memories, Ngu, Values, one_hot};
use crate::recurrent::{Losses, SequenceInputs, SequenceMethod, mean_counted, unroll};
use crate::value_based::ValueConfig;

/// Mean errors below this are noise, in priorities.
const SMALL_ERROR: f64 = 0.001;

/// A batch's contribution to running statistics.
type Seen = Vec<(RunningNorm, Moments)>;

/// NGU with its ladders on the learner's device.
pub(super) struct Mixed {
    ngu: Ngu,
    /// Of every arm, `[arms]`.
    betas: Tensor,
    gammas: Tensor,
}

impl Mixed {
    pub(super) fn new(ngu: Ngu, device: Device) -> Self {
        Self {
            betas: ngu.betas(device),
            gammas: ngu.gammas(device),
            ngu,
        }
    }

    /// The arms that sequences are learned for, `[B]`.
    fn arms(&self, inputs: &SequenceInputs) -> Tensor {
        // An episode has one arm; padding and the position behind its end have none.
        let played = match inputs.record("arm") {
            Some(arms) => arms.select(0, inputs.burn_in()),
            None => inputs.weights().zeros_like().to_kind(Kind::Int64),
        };
        played.masked_fill(&inputs.chance(), 0)
    }

    /// Values of the online network for the actions taken, `[L, B]`, and those of the target
    /// network where the targets of both bootstrap.
    fn values(
        &self,
        online: &Params,
        target: &Params,
        inputs: &SequenceInputs,
        (arms, beta): (&Tensor, &Tensor),
        ahead: [&Ahead; 2],
    ) -> (Values, Values) {
        let (nets, config) = (&self.ngu.nets, &self.ngu.config);
        let told = one_hot(arms, config.arms).unsqueeze(0);
        let positions = inputs.rewards().size()[0];
        let told = told.expand([positions, -1, -1], false);
        let input = inputs.whole(&nets.extrinsic, Some(told));
        let values = |params: &Params| {
            let memories = Memories::from(|name| inputs.stored(name, config.lstm));
            unroll(&input, inputs.burn_in(), memories, |input, memories| {
                nets.forward(params, input, memories)
            })
        };
        let online = values(online);
        let following = no_grad(|| {
            let values = values(target);
            let judge = match self.ngu.shared.double {
                true => &online,
                false => &values,
            };
            let best = inputs.best(judge.mixed(&beta.unsqueeze(-1), config).detach());
            Values {
                extrinsic: inputs.following(&values.extrinsic, &best, &ahead[0].position),
                intrinsic: inputs.following(&values.intrinsic, &best, &ahead[1].position),
            }
        });
        (online.map(|values| inputs.taken(values)), following)
    }

    /// Losses of the random network's imitation and of the inverse model, over trained steps,
    /// and what the former brings to its statistics.
    fn novelty(&self, params: &Params, inputs: &SequenceInputs) -> (Tensor, Tensor, Seen) {
        let nets = &self.ngu.nets;
        let (now, next) = (inputs.obs(0), inputs.obs(1));
        let counted = inputs.mask().reshape([-1]);
        let errors = match now.leaf() {
            None => counted.zeros_like(),
            Some(obs) => nets.rnd.errors(params, obs),
        };
        let from = nets.inverse.embed(params, &now);
        let to = nets.inverse.embed(params, &next);
        let log_probs = nets.inverse.actions_between(params, &from, &to);
        let taken = log_probs.gather(1, &inputs.actions().reshape([-1, 1]), false);
        // Behind the last step of a task there is nothing to tell the action by.
        let pairs = &counted * inputs.has_next().reshape([-1]);
        let inverse = -mean_counted(&taken.squeeze_dim(1), &pairs);
        let trained = match self.ngu.config.rnd_last_steps {
            None => counted,
            Some(steps) => last_steps(inputs.mask(), steps as i64).reshape([-1]),
        };
        let seen = now.leaf().map(|obs| {
            let counted = inputs.mask().reshape([-1]);
            nets.rnd.seen(obs, &errors.detach(), &counted)
        });
        let seen = seen.into_iter().flatten().collect();
        (mean_counted(&errors, &trained), inverse, seen)
    }
}

impl SequenceMethod for Mixed {
    const REPORTED: &'static [&'static str] = &[
        "extrinsic_loss",
        "intrinsic_loss",
        "rnd_loss",
        "inverse_loss",
        "q_value",
        "intrinsic_reward",
    ];

    fn share(&self) -> Self {
        Self {
            ngu: self.ngu.clone(),
            betas: self.betas.shallow_clone(),
            gammas: self.gammas.shallow_clone(),
        }
    }

    fn layout(&self) -> &Arc<Layout> {
        &self.ngu.layout
    }

    fn shared(&self) -> &ValueConfig {
        &self.ngu.shared
    }

    fn sequence(&self) -> &SequenceConfig {
        &self.ngu.config.sequence
    }

    /// 1 for sequences that are learned from as if the first arm had been played.
    fn draw(&self, sequences: usize, rng: &mut Rng) -> Vec<u8> {
        let share = self.ngu.config.exploit_share;
        let draw = |_| u8::from(rng.random::<f64>() < share);
        (0..sequences).map(draw).collect()
    }

    fn losses(&self, online: &Params, target: &Params, inputs: &SequenceInputs) -> Losses {
        let arms = self.arms(inputs);
        let beta = self.betas.index_select(0, &arms);
        let gamma = self.gammas.index_select(0, &arms);
        let n_steps = self.ngu.shared.replay.n_steps;
        let fewer = self.ngu.config.intrinsic_n_steps.min(n_steps);
        let [far, near] = [n_steps, fewer].map(|n| Ahead::new(inputs, &gamma, n as i64));
        let (taken, following) = self.values(online, target, inputs, (&arms, &beta), [&far, &near]);

        let (mask, weights) = (inputs.mask(), inputs.weights());
        let length = inputs.length();
        let compare = |taken: &Tensor, rewards: &Tensor, following: &Tensor, ahead: &Ahead| {
            let returns = n_step_returns(rewards, &gamma, inputs.burn_in(), length, ahead.n_steps);
            let config = &self.ngu.config;
            let following = config.unscaled(following);
            let targets = config.scaled(&(returns + &ahead.discounts * following));
            let errors = (targets - taken) * mask;
            let loss = mean_counted(&(errors.square() * 0.5 * weights), mask);
            (errors.detach().abs(), loss)
        };
        let intrinsic_rewards = match inputs.record("intrinsic") {
            Some(rewards) => rewards.shallow_clone(),
            None => inputs.rewards().zeros_like(),
        };
        let rewards = inputs.rewards() * self.ngu.config.reward_scale;
        let (extrinsic_errors, extrinsic) =
            compare(&taken.extrinsic, &rewards, &following.extrinsic, &far);
        let (of, next) = (&taken.intrinsic, &following.intrinsic);
        let (intrinsic_errors, intrinsic) = compare(of, &intrinsic_rewards, next, &near);
        let reward = intrinsic_rewards.narrow(0, inputs.burn_in(), length);
        let (rnd, inverse, seen) = self.novelty(online, inputs);
        // Each beside its own mean, or the larger of the two would decide alone.
        let relative = |errors: &Tensor| errors / mean_counted(errors, mask).clamp_min(SMALL_ERROR);
        let of_intrinsic = relative(&intrinsic_errors) * self.ngu.config.intrinsic_priority;
        Losses {
            loss: &extrinsic + &intrinsic + &rnd + &inverse,
            errors: relative(&extrinsic_errors) + of_intrinsic,
            numbers: vec![
                extrinsic,
                intrinsic,
                rnd,
                inverse,
                mean_counted(&taken.extrinsic, mask),
                mean_counted(&reward, mask),
            ],
            seen,
        }
    }
}

/// A mask `[L, B]` with only the last `steps` steps of each sequence, which may end early.
fn last_steps(mask: &Tensor, steps: i64) -> Tensor {
    let lengths = mask.sum_dim_intlist([0].as_slice(), false, Kind::Float);
    let rows = Tensor::arange(mask.size()[0], (Kind::Float, mask.device())).unsqueeze(-1);
    mask * rows.ge_tensor(&(lengths - steps as f64))
}

/// What targets of at most n steps bootstrap from, `[L, B]` each.
struct Ahead {
    n_steps: i64,
    /// Positions, counted from the beginning of the trained part.
    position: Tensor,
    /// γ to the number of steps looked ahead; 0 where the task ended before.
    discounts: Tensor,
}

impl Ahead {
    /// For at most the n of the replay, and a discount per sequence.
    fn new(inputs: &SequenceInputs, gamma: &Tensor, n_steps: i64) -> Self {
        let options = (Kind::Int64, gamma.device());
        let now = Tensor::arange(inputs.length(), options).unsqueeze(-1);
        let steps = inputs.bootstrap() - &now;
        // Where the task ends, the replay gives the position of its last step.
        let ended = inputs.discounts().eq(0.0).logical_and(&steps.lt(n_steps));
        let steps = steps.clamp_max(n_steps);
        let discounts = gamma.pow(&steps.to_kind(Kind::Float));
        Self {
            n_steps,
            discounts: discounts.masked_fill(&ended, 0.0),
            position: now + steps,
        }
    }
}

/// Σ_{k<n} γ^k r_{t+k} of the trained steps, `[L, B]`, from rewards `[S, B]` that are zero behind
/// the end of an episode, and a discount per sequence.
pub(super) fn n_step_returns(
    rewards: &Tensor,
    gamma: &Tensor,
    burn_in: i64,
    length: i64,
    n_steps: i64,
) -> Tensor {
    let mut returns = rewards.narrow(0, burn_in, length).copy();
    let mut power = gamma.copy();
    for k in 1..n_steps {
        returns += rewards.narrow(0, burn_in + k, length) * &power;
        power *= gamma;
    }
    returns
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_replay::{Layout as Rows, ReplayConfig, SequenceBatch};
    use starling_tree::{DType, Spec, Tree};

    #[test]
    fn only_the_last_steps_are_kept() {
        let mask = Tensor::from_slice(&[1f32, 1.0, 1.0, 1.0, 1.0, 0.0]).reshape([3, 2]);
        let kept = |steps| Vec::<f32>::try_from(last_steps(&mask, steps).reshape([-1])).unwrap();
        // The second sequence ended after two steps.
        assert_eq!(kept(2), [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!(kept(5), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    }

    /// Four trained steps, of which the last ends the task, as a replay of n = 3 gives them. With
    /// n = 2 the second looks ahead to the last observation, and the third to the end.
    #[test]
    fn fewer_steps_ahead_than_the_replay_has() {
        let config = ReplayConfig {
            n_steps: 3,
            sequence: Some(SequenceConfig {
                burn_in_steps: 0,
                length_steps: 4,
                ..SequenceConfig::default()
            }),
            ..ReplayConfig::default()
        };
        let rows = Rows {
            observation: Tree::Leaf(Spec::scalar(DType::F32)),
            action: Spec::scalar(DType::I64),
            legal_actions: None,
            records: Tree::empty(),
            state: Tree::empty(),
            streams: 1,
        };
        let mut batch = SequenceBatch::new(&config, &rows, 1).unwrap();
        let [bootstrap, discounts] = [&mut batch.bootstrap, &mut batch.discounts];
        bootstrap.as_mut_slice::<i64>().fill(3);
        discounts.as_mut_slice::<f32>()[0] = 0.729;
        let inputs = SequenceInputs::new(&batch, 0, Device::Cpu);
        inputs.load(&batch, &[0]);
        let gamma = Tensor::from_slice(&[0.5f32]);
        for (n, positions, discounts) in [
            (3, [3i64, 3, 3, 3], [0.125f32, 0.0, 0.0, 0.0]),
            (2, [2, 3, 3, 3], [0.25, 0.25, 0.0, 0.0]),
            (1, [1, 2, 3, 3], [0.5, 0.5, 0.5, 0.0]),
        ] {
            let ahead = Ahead::new(&inputs, &gamma, n);
            let found = Vec::<i64>::try_from(ahead.position.reshape([-1])).unwrap();
            assert_eq!(found, positions, "n = {n}");
            let found = Vec::<f32>::try_from(ahead.discounts.reshape([-1])).unwrap();
            assert_eq!(found, discounts, "n = {n}");
        }
    }
}
