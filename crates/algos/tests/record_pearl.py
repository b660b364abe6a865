"""Records whole updates of PEARL as PyTorch computes them.

    python record_pearl.py fixtures/pearl.json

The formulas are written out here from the paper and the description of its reference code, with torch's
own layers, distributions and automatic differentiation, in double precision; `src/pearl/tests.rs`
compares what our learner does. Steps are plain gradient descent. Needs torch 2.x.
"""

import json
import sys

import torch
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import relu, softplus

TASKS, ROWS, CONTEXT, OBS, ACTIONS, LATENT, HIDDEN = 2, 4, 3, 3, 2, 2, 5
LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 4.0])
RATE, TAU, SCALE, KL, REGULARIZE = 0.05, 0.25, 5.0, 0.3, (0.01, 0.02)


class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden = torch.nn.Linear(inputs, HIDDEN)
        self.last = torch.nn.Linear(HIDDEN, outputs)

    def forward(self, x):
        return self.last(relu(self.hidden(x)))


def saved(name, nets):
    """The parameters of networks of one shape, as our learner stores them: side by side, and weights
    with the inputs before the outputs."""
    entries = {}
    for layer, ours in [("hidden", "hidden0"), ("last", "last")]:
        weights = torch.stack([getattr(net, layer).weight.detach() for net in nets])
        biases = torch.stack([getattr(net, layer).bias.detach() for net in nets])
        if weights.shape[1] == 1:
            entries[f"{name}.{ours}.weight"], entries[f"{name}.{ours}.bias"] = weights, biases
        else:
            entries[f"{name}.{ours}.weight"] = weights.transpose(1, 2)
            entries[f"{name}.{ours}.bias"] = biases.unsqueeze(1)
    return {
        name: {"shape": list(value.shape), "values": value.reshape(-1).tolist()}
        for name, value in entries.items()
    }


class Pearl:
    def __init__(self, next_obs):
        self.next_obs = next_obs
        self.encoder = Net(OBS + ACTIONS + 1 + (OBS if next_obs else 0), 2 * LATENT)
        self.q = [Net(OBS + ACTIONS + LATENT, 1) for _ in range(2)]
        self.value, self.target = Net(OBS + LATENT, 1), Net(OBS + LATENT, 1)
        self.actor = Net(OBS + LATENT, 2 * ACTIONS)

    def state(self):
        return {
            **saved("critic.params.encoder", [self.encoder]),
            **saved("critic.params.q", self.q),
            **saved("value.params.value", [self.value]),
            **saved("value.target.value", [self.target]),
            **saved("actor.params.actor", [self.actor]),
        }

    def step(self, nets, loss):
        params = [param for net in nets for param in net.parameters()]
        gradients = torch.autograd.grad(loss, params)
        norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
        with torch.no_grad():
            for param, gradient in zip(params, gradients):
                param -= RATE * gradient
        return norm

    def policy(self, obs, z, noise):
        mean, log_std = self.actor(torch.cat([obs, z], 1)).chunk(2, 1)
        log_std = log_std.clamp(-20, 2)
        raw = mean + log_std.exp() * noise
        normal = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
        action = normal.transforms[0](raw)
        return action, normal.log_prob(action).sum(1), mean, log_std

    def judge(self, obs, actions, z):
        return [q(torch.cat([obs, actions, z], 1)).squeeze(1) for q in self.q]

    def update(self, batch):
        unit = (batch["actions"] - LOW) / (HIGH - LOW) * 2 - 1
        learned = TASKS * ROWS
        # The posterior of each task from its context.
        context = [batch["obs"], unit, batch["rewards"].unsqueeze(1)]
        if self.next_obs:
            ends = batch["discounts"].unsqueeze(1) == 0
            context.append(torch.where(ends, batch["obs"], batch["next_obs"]))
        context = torch.cat(context, 1)[learned:].reshape(TASKS, CONTEXT, -1)
        means, variances = self.encoder(context).chunk(2, 2)
        variances = softplus(variances).clamp(min=1e-7)
        variance = 1 / (1 / variances).sum(1)
        mean = variance * (means / variances).sum(1)
        posterior = Normal(mean, variance.sqrt())
        kl = kl_divergence(posterior, Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum()
        z = mean + variance.sqrt() * batch["z_noise"]
        z = z.repeat_interleave(ROWS, 0)
        obs, next_obs = batch["obs"][:learned], batch["next_obs"][:learned]
        rewards, discounts = batch["rewards"][:learned], batch["discounts"][:learned]
        # Critics and encoder.
        with torch.no_grad():
            following = self.target(torch.cat([next_obs, z], 1)).squeeze(1)
            target = rewards * SCALE + discounts * following
        values = self.judge(obs, unit[:learned], z)
        loss = sum(((value - target) ** 2).mean() for value in values)
        numbers = {
            "loss": loss, "kl": kl, "z_std": variance.sqrt().mean(),
            "q_value": torch.stack(values).mean(),
            "td_error": (torch.stack(values) - target).abs().mean(),
        }
        numbers["grad_norm"] = self.step([self.encoder, *self.q], loss + KL * kl)
        # The value network, by the critics as they are now.
        z = z.detach()
        actions, log_prob, mean, log_std = self.policy(obs, z, batch["action_noise"])
        best = torch.minimum(*self.judge(obs, actions, z))
        value = self.value(torch.cat([obs, z], 1)).squeeze(1)
        numbers["value_loss"] = ((value - (best - log_prob).detach()) ** 2).mean()
        numbers["value_grad_norm"] = self.step([self.value], numbers["value_loss"])
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.value.parameters()):
                target += TAU * (online - target)
        # The actor.
        numbers["actor_loss"] = (
            (log_prob - best).mean()
            + REGULARIZE[0] * (mean**2).mean() + REGULARIZE[1] * (log_std**2).mean()
        )
        numbers["entropy"] = -log_prob.mean()
        numbers["actor_grad_norm"] = self.step([self.actor], numbers["actor_loss"])
        return {name: number.item() for name, number in numbers.items()}


def record(next_obs):
    pearl, rows = Pearl(next_obs), TASKS * (ROWS + CONTEXT)
    batch = {
        "obs": torch.randn(rows, OBS),
        "next_obs": torch.randn(rows, OBS),
        "actions": LOW + (HIGH - LOW) * torch.rand(rows, ACTIONS),
        "rewards": torch.randn(rows),
        "discounts": 0.9 * (torch.rand(rows) > 0.3),
        "z_noise": torch.randn(TASKS, LATENT),
        "action_noise": torch.randn(TASKS * ROWS, ACTIONS),
    }
    before = pearl.state()
    metrics = pearl.update(batch)
    return {
        "settings": {
            "latent_size": LATENT, "meta_batch": TASKS, "batch_size": ROWS, "context_batch": CONTEXT,
            "hidden": [HIDDEN], "encoder_hidden": [HIDDEN], "context_next_obs": next_obs,
            "learning_rate": RATE, "target_tau": TAU, "reward_scale": SCALE, "kl_weight": KL,
            "mean_weight": REGULARIZE[0], "log_std_weight": REGULARIZE[1],
        },
        "inputs": {name: value.reshape(-1).tolist() for name, value in batch.items()},
        "metrics": metrics,
        "before": before,
        "after": pearl.state(),
    }


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    with open(sys.argv[1], "w") as file:
        json.dump([record(False), record(True)], file, indent=0)


if __name__ == "__main__":
    main()
