//! How far NGU's values were off, and how well it knows what it sees.

use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::Rng;
use starling_nets::{Device, Kind, Layout, Params, Tensor, no_grad};
use starling_replay::SequenceConfig;

use super::{Memories, Ngu, Values, one_hot};
use crate::ops::{rescale, unscale};
use crate::recurrent::{Losses, SequenceInputs, SequenceMethod, mean_counted, unroll};
use crate::value_based::ValueConfig;

/// Mean errors below this are noise, in priorities.
const SMALL_ERROR: f64 = 0.001;

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

    /// Values of the online network, and those of the target network where targets bootstrap,
    /// `[L, B]` each.
    fn values(
        &self,
        online: &Params,
        target: &Params,
        inputs: &SequenceInputs,
        (arms, beta): (&Tensor, &Tensor),
    ) -> (Values, Values) {
        let (nets, config) = (&self.ngu.nets, &self.ngu.config);
        let told = one_hot(arms, config.arms).unsqueeze(0);
        let positions = inputs.rewards().size()[0];
        let told = told.expand([positions, -1, -1], false);
        let input = inputs.whole(nets.extrinsic.actions(), Some(told));
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
            let best = inputs.best(judge.mixed(&beta.unsqueeze(-1)).detach());
            values.map(|values| inputs.following(values, &best))
        });
        (online.map(|values| inputs.taken(values)), following)
    }

    /// Losses of the random network's imitation and of the inverse model, over trained steps,
    /// and the errors of the former, `[L·B]`.
    fn novelty(&self, params: &Params, inputs: &SequenceInputs) -> (Tensor, Tensor, Tensor) {
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
        (mean_counted(&errors, &counted), inverse, errors.detach())
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
        let (taken, following) = self.values(online, target, inputs, (&arms, &beta));

        let (mask, weights) = (inputs.mask(), inputs.weights());
        let length = inputs.length();
        let positions = Tensor::arange(length, (Kind::Int64, mask.device())).unsqueeze(-1);
        // γ to the number of steps looked ahead; 0 where the task ended.
        let discounts = gamma.pow(&(inputs.bootstrap() - positions).to_kind(Kind::Float));
        let discounts = discounts.masked_fill(&inputs.discounts().eq(0.0), 0.0);
        let n_steps = self.ngu.shared.n_steps as i64;
        let compare = |taken: &Tensor, rewards: &Tensor, following: &Tensor| {
            let returns = n_step_returns(rewards, &gamma, inputs.burn_in(), length, n_steps);
            let targets = rescale(&(returns + &discounts * unscale(following)));
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
            compare(&taken.extrinsic, &rewards, &following.extrinsic);
        let (intrinsic_errors, intrinsic) =
            compare(&taken.intrinsic, &intrinsic_rewards, &following.intrinsic);
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
            seen: Some(seen),
        }
    }

    fn observe(&self, params: &Params, inputs: &SequenceInputs, losses: &Losses) {
        if let (Some(obs), Some(errors)) = (inputs.obs(0).leaf(), &losses.seen) {
            let counted = inputs.mask().reshape([-1]);
            self.ngu.nets.rnd.observe(params, obs, errors, &counted);
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
