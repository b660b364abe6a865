"""Records losses and gradients of PPO and A2C as PyTorch computes them.

    python record_losses.py fixtures/losses.json

The formulas are written out here from the papers, with torch's own distributions, modules and
automatic differentiation; `losses.rs` compares ours with what comes out. Needs torch 2.x.
"""

import json
import sys

import torch

ROWS, INPUTS, HIDDEN, ACTIONS = 12, 4, 5, 3


class Network(torch.nn.Module):
    """One hidden layer that policy and value share."""

    def __init__(self, gaussian):
        super().__init__()
        self.hidden = torch.nn.Linear(INPUTS, HIDDEN)
        self.policy = torch.nn.Linear(HIDDEN, ACTIONS)
        self.value = torch.nn.Linear(HIDDEN, 1)
        self.log_std = torch.nn.Parameter(torch.randn(ACTIONS) * 0.3) if gaussian else None

    def forward(self, obs):
        features = torch.tanh(self.hidden(obs))
        output = self.policy(features)
        if self.log_std is None:
            policy = torch.distributions.Categorical(logits=output)
        else:
            normal = torch.distributions.Normal(output, self.log_std.exp())
            policy = torch.distributions.Independent(normal, 1)
        return policy, self.value(features).squeeze(-1)


def ppo(x, policy, values, ratio_clip, value_clip, value_coef, entropy_coef):
    ratio = (policy.log_prob(x["actions"]) - x["old_log_probs"]).exp()
    clipped = ratio.clamp(1 - ratio_clip, 1 + ratio_clip)
    surrogate = torch.min(ratio * x["advantages"], clipped * x["advantages"]).mean()
    error = (values - x["returns"]) ** 2
    if value_clip is not None:
        moved = (values - x["old_values"]).clamp(-value_clip, value_clip)
        error = torch.max(error, (x["old_values"] + moved - x["returns"]) ** 2)
    return -surrogate + value_coef * 0.5 * error.mean() - entropy_coef * policy.entropy().mean()


def a2c(x, policy, values, value_coef, entropy_coef):
    gain = (policy.log_prob(x["actions"]) * x["advantages"]).mean()
    error = torch.nn.functional.mse_loss(values, x["returns"])
    return -gain + value_coef * 0.5 * error - entropy_coef * policy.entropy().mean()


def record(name, gaussian, **settings):
    network = Network(gaussian)
    obs = torch.randn(ROWS, INPUTS)
    with torch.no_grad():
        policy, values = network(obs)
        actions = policy.sample()
        x = {
            "obs": obs,
            "actions": actions,
            # Ratios on both sides of the clip range.
            "old_log_probs": policy.log_prob(actions) + 0.4 * torch.randn(ROWS),
            "advantages": torch.randn(ROWS),
            "old_values": values + 0.3 * torch.randn(ROWS),
            "returns": values + torch.randn(ROWS),
        }
    policy, values = network(obs)
    loss = {"ppo": ppo, "a2c": a2c}[name](x, policy, values, **settings)
    loss.backward()
    names = {"hidden": "torso.hidden0", "policy": "policy", "value": "value"}
    parameters = {}
    for key, parameter in network.named_parameters():
        layer, _, kind = key.partition(".")
        key = "policy.log_std" if key == "log_std" else f"{names[layer]}.{kind}"
        parameters[key] = {
            "shape": list(parameter.shape),
            "value": parameter.detach().flatten().tolist(),
            "gradient": parameter.grad.flatten().tolist(),
        }
    return {
        "algorithm": name,
        "gaussian": gaussian,
        "settings": settings,
        "inputs": {key: value.flatten().tolist() for key, value in x.items()},
        "parameters": parameters,
        "loss": loss.item(),
    }


if __name__ == "__main__":
    torch.manual_seed(7)
    cases = []
    for gaussian in [False, True]:
        for value_clip in [None, 0.2]:
            clips = {"ratio_clip": 0.2, "value_clip": value_clip}
            cases.append(record("ppo", gaussian, **clips, value_coef=0.7, entropy_coef=0.03))
        cases.append(record("a2c", gaussian, value_coef=0.4, entropy_coef=0.02))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "cases": cases}, file, indent=1)
        file.write("\n")
