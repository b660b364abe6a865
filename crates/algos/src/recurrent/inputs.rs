//! A batch of sequences at fixed addresses.

use starling_nets::{Device, Kind, RecurrentInput, RecurrentQ, Staging, Tensor, previous_actions};
use starling_replay::SequenceBatch;
use starling_tree::{Array, DType, Spec, Tree};

use crate::value_based::mask;

/// What an update reads, always in the same memory, so that it can be recorded.
///
/// S, L and B are those of [`SequenceBatch`]: positions, trained steps and sequences.
pub(crate) struct SequenceInputs {
    burn_in: i64,
    obs: Tree<Staging>,
    legal: Option<Staging>,
    actions: Staging,
    rewards: Staging,
    records: Tree<Staging>,
    prev_actions: Staging,
    prev_rewards: Staging,
    valid: Staging,
    resets: Staging,
    mask: Staging,
    returns: Staging,
    discounts: Staging,
    bootstrap: Staging,
    state: Tree<Staging>,
    weights: Staging,
    /// Random numbers of one update, a byte per sequence.
    chance: Staging,
}

impl SequenceInputs {
    /// Memory for batches like this one, of which the first `burn_in` positions only warm up.
    pub(crate) fn new(batch: &SequenceBatch, burn_in: usize, device: Device) -> Self {
        let column = |array: &Array| {
            let (rows, item) = (array.shape()[0], &array.shape()[1..]);
            Staging::new(rows, &Spec::new(array.dtype(), item), device)
        };
        Self {
            burn_in: burn_in as i64,
            obs: batch.obs.map(column),
            legal: batch.legal.as_ref().map(column),
            actions: column(&batch.actions),
            rewards: column(&batch.rewards),
            records: batch.records.map(column),
            prev_actions: column(&batch.prev_actions),
            prev_rewards: column(&batch.prev_rewards),
            valid: column(&batch.valid),
            resets: column(&batch.resets),
            mask: column(&batch.mask),
            returns: column(&batch.returns),
            discounts: column(&batch.discounts),
            bootstrap: column(&batch.bootstrap),
            state: batch.state.map(column),
            weights: column(&batch.weights),
            chance: Staging::new(batch.size(), &Spec::scalar(DType::U8), device),
        }
    }

    /// Takes over a batch of the same shape and the random numbers of one update.
    pub(crate) fn load(&self, batch: &SequenceBatch, chance: &[u8]) {
        for (columns, arrays) in [
            (&self.obs, &batch.obs),
            (&self.records, &batch.records),
            (&self.state, &batch.state),
        ] {
            let arrays = arrays.leaves().into_iter();
            for ((_, column), (_, array)) in columns.leaves().into_iter().zip(arrays) {
                column.load(array);
            }
        }
        if let (Some(column), Some(array)) = (&self.legal, &batch.legal) {
            column.load(array);
        }
        for (column, array) in [
            (&self.actions, &batch.actions),
            (&self.rewards, &batch.rewards),
            (&self.prev_actions, &batch.prev_actions),
            (&self.prev_rewards, &batch.prev_rewards),
            (&self.valid, &batch.valid),
            (&self.resets, &batch.resets),
            (&self.mask, &batch.mask),
            (&self.returns, &batch.returns),
            (&self.discounts, &batch.discounts),
            (&self.bootstrap, &batch.bootstrap),
            (&self.weights, &batch.weights),
        ] {
            column.load(array);
        }
        self.chance.write(0, chance);
        self.chance.upload();
    }

    /// B.
    pub(crate) fn sequences(&self) -> i64 {
        self.weights.tensor().size()[0]
    }

    /// L.
    pub(crate) fn length(&self) -> i64 {
        self.mask.tensor().size()[0]
    }

    /// Positions before the trained part.
    pub(crate) fn burn_in(&self) -> i64 {
        self.burn_in
    }

    /// Observations `[L·B, ..]` from `later` positions behind the beginning of the trained part.
    pub(crate) fn obs(&self, later: i64) -> Tree<Tensor> {
        self.obs.map(|column| {
            let part = column
                .tensor()
                .narrow(0, self.burn_in + later, self.length());
            part.flatten(0, 1)
        })
    }

    /// What a network sees of all positions.
    pub(crate) fn whole(&self, net: &RecurrentQ, extra: Option<Tensor>) -> RecurrentInput {
        let starts = self.resets.tensor().to_kind(Kind::Float);
        RecurrentInput {
            obs: self.obs.map(|column| column.tensor().flatten(0, 1)),
            actions: previous_actions(self.prev_actions.tensor(), &starts, net.actions()),
            rewards: self.prev_rewards.tensor().shallow_clone(),
            extra,
            starts,
            legal: match (&self.legal, net.wants_legal()) {
                (Some(legal), true) => Some(legal.tensor().shallow_clone()),
                _ => None,
            },
        }
    }

    /// A part of the recurrent state before the first position, `[B, size]`.
    pub(crate) fn stored(&self, name: &str, size: usize) -> Tensor {
        match self.state.get(name).and_then(Tree::leaf) {
            Some(column) => column.tensor().shallow_clone(),
            None => {
                let options = (Kind::Float, self.weights.tensor().device());
                Tensor::zeros([self.sequences(), size as i64], options)
            }
        }
    }

    /// What the policy recorded under a name, `[S, B, ..]`.
    pub(crate) fn record(&self, name: &str) -> Option<&Tensor> {
        let column = self.records.get(name)?.leaf()?;
        Some(column.tensor())
    }

    /// Rewards `[S, B]`.
    pub(crate) fn rewards(&self) -> &Tensor {
        self.rewards.tensor()
    }

    /// Discounted sums of n rewards, `[L, B]`.
    pub(crate) fn returns(&self) -> &Tensor {
        self.returns.tensor()
    }

    /// What the values that follow are multiplied by, `[L, B]`.
    pub(crate) fn discounts(&self) -> &Tensor {
        self.discounts.tensor()
    }

    /// 1 for the trained steps that count, `[L, B]`.
    pub(crate) fn mask(&self) -> &Tensor {
        self.mask.tensor()
    }

    /// 1 where the observation after a trained step was seen, `[L, B]`.
    pub(crate) fn has_next(&self) -> Tensor {
        let valid = self
            .valid
            .tensor()
            .narrow(0, self.burn_in + 1, self.length());
        valid.to_kind(Kind::Float)
    }

    /// Importance weights, `[B]`.
    pub(crate) fn weights(&self) -> &Tensor {
        self.weights.tensor()
    }

    /// True for the sequences whose random byte is not 0, `[B]`.
    pub(crate) fn chance(&self) -> Tensor {
        self.chance.tensor().ne(0)
    }

    /// Actions of the trained steps, `[L, B]`.
    pub(crate) fn actions(&self) -> Tensor {
        self.actions.tensor().narrow(0, self.burn_in, self.length())
    }

    /// Positions that targets bootstrap from, counted from the beginning of the trained part,
    /// `[L, B]`.
    pub(crate) fn bootstrap(&self) -> Tensor {
        (self.bootstrap.tensor() - self.burn_in).clamp_min(0)
    }

    /// Of values `[S − burn-in, B, A]`: those of the actions taken in the trained steps, `[L, B]`.
    pub(crate) fn taken(&self, values: &Tensor) -> Tensor {
        let values = values.narrow(0, 0, self.length());
        let taken = values.gather(-1, &self.actions().unsqueeze(-1), false);
        taken.squeeze_dim(-1)
    }

    /// The best legal actions by the values of a judge `[S − burn-in, B, A]`, `[.., 1]`.
    pub(crate) fn best(&self, judge: Tensor) -> Tensor {
        let legal = self.legal.as_ref().map(Staging::tensor);
        let legal = legal.map(|legal| legal.narrow(0, self.burn_in, judge.size()[0]));
        mask(judge, legal.as_ref()).argmax(-1, true)
    }

    /// Of values `[S − burn-in, B, A]`: those of given actions `[.., 1]` at the positions
    /// `[L, B]` that targets bootstrap from.
    pub(crate) fn following(&self, values: &Tensor, actions: &Tensor, at: &Tensor) -> Tensor {
        let values = values.gather(-1, actions, false).squeeze_dim(-1);
        values.gather(0, at, false)
    }
}
