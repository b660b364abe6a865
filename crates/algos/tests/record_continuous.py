"""Records whole updates of SAC, CrossQ, TD3 and DDPG as PyTorch computes them.

    python record_continuous.py fixtures/continuous.json

The formulas are written out here from the papers, with torch's own layers, distributions and
automatic differentiation, in double precision; `src/continuous/tests.rs` compares what our learner
does. Steps are plain gradient descent. Needs torch 2.x.
"""

import json
import sys

import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import relu

ROWS, INPUTS, HIDDEN, ACTIONS = 6, 3, 4, 2
LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 4.0])
RATES = {"critic": 0.1, "actor": 0.2, "alpha": 0.3}
TAU = 0.25


class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden = torch.nn.Linear(inputs, HIDDEN)
        self.last = torch.nn.Linear(HIDDEN, outputs)

    def forward(self, x):
        return self.last(relu(self.hidden(x)))


class Renorm(torch.nn.Module):
    """Batch renormalisation (Ioffe 2017)."""

    def __init__(self, features, batches):
        super().__init__()
        self.scale = torch.nn.Parameter(1 + 0.1 * torch.randn(features))
        self.bias = torch.nn.Parameter(0.1 * torch.randn(features))
        self.mean = 0.5 * torch.randn(features)
        self.variance = 0.5 + torch.rand(features)
        self.batches = torch.tensor([float(batches)])

    def forward(self, x, train):
        if not train:
            x = (x - self.mean) / (self.variance + 1e-3).sqrt()
            return x * self.scale + self.bias
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        running = (self.variance + 1e-3).sqrt()
        r = ((variance + 1e-3).sqrt() / running).clamp(1 / 3, 3).detach()
        d = ((mean - self.mean) / running).clamp(-5, 5).detach()
        if self.batches.item() < 100_000:
            r, d = torch.ones_like(r), torch.zeros_like(d)
        self.mean = 0.99 * self.mean + 0.01 * mean.detach()
        self.variance = 0.99 * self.variance + 0.01 * variance.detach()
        self.batches = self.batches + 1
        mean, variance = mean - d * variance.sqrt() / r, variance / r**2
        return (x - mean) / (variance + 1e-3).sqrt() * self.scale + self.bias

    def parts(self, name):
        parts = ["scale", "bias", "mean", "variance"]
        return {f"{name}.{part}": getattr(self, part)[None] for part in parts}


class RenormNet(torch.nn.Module):
    """CrossQ's layers: a normalised input, and normalised activations."""

    def __init__(self, inputs, outputs, batches):
        super().__init__()
        self.input_norm = Renorm(inputs, batches)
        self.hidden = torch.nn.Linear(inputs, HIDDEN)
        self.norm = Renorm(HIDDEN, batches)
        self.last = torch.nn.Linear(HIDDEN, outputs)
        self.train_mode = False

    def forward(self, x):
        x = self.input_norm(x, self.train_mode)
        return self.last(self.norm(relu(self.hidden(x)), self.train_mode))

    def parts(self):
        return {
            **self.input_norm.parts("input_norm"),
            "hidden0.weight": self.hidden.weight.T,
            "hidden0.bias": self.hidden.bias[None],
            **self.norm.parts("hidden0_norm"),
        }

    def counts(self):
        found = {"input_norm": self.input_norm, "hidden0_norm": self.norm}
        return {f"{name}.batches": norm.batches for name, norm in found.items()}


class ResidualNet(torch.nn.Module):
    """SimBa's layers: an embedding, a residual block, and a last normalisation."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.embedding = torch.nn.Linear(inputs, HIDDEN)
        self.block_norm = torch.nn.LayerNorm(HIDDEN)
        self.up = torch.nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = torch.nn.Linear(4 * HIDDEN, HIDDEN)
        self.last_norm = torch.nn.LayerNorm(HIDDEN)
        self.last = torch.nn.Linear(HIDDEN, outputs)
        for norm in (self.block_norm, self.last_norm):
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)

    def forward(self, x):
        x = self.embedding(x)
        x = x + self.down(relu(self.up(self.block_norm(x))))
        return self.last(self.last_norm(x))

    def parts(self):
        found = {}
        layers = {"embedding": self.embedding, "block0_up": self.up, "block0_down": self.down}
        for name, layer in layers.items():
            found[f"{name}.weight"], found[f"{name}.bias"] = layer.weight.T, layer.bias[None]
        for name, norm in {"block0_norm": self.block_norm, "last_norm": self.last_norm}.items():
            found[f"{name}.scale"], found[f"{name}.bias"] = norm.weight[None], norm.bias[None]
        return found

    def counts(self):
        return {}


def unit(actions):
    return (actions - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)


def values(critics, obs, actions):
    x = torch.cat([obs, actions], -1)
    return torch.stack([critic(x).squeeze(-1) for critic in critics])


class Sac:
    critics, outputs = 2, 2 * ACTIONS

    def __init__(self, limit, alpha):
        self.limit = limit
        self.learned = alpha is None
        first = torch.tensor(0.5 if self.learned else alpha)
        self.log_alpha = torch.nn.Parameter(first.log().reshape(1))

    def draw(self, actor, obs, noise):
        mean, log_std = actor(obs).chunk(2, -1)
        low, high = -1.0, 0.5
        if self.limit == "clamp":
            log_std = log_std.clamp(low, high)
        else:
            log_std = low + 0.5 * (high - low) * (log_std.tanh() + 1)
        normal = Normal(mean, log_std.exp())
        actions = torch.tanh(mean + log_std.exp() * noise)
        squashed = TransformedDistribution(normal, [TanhTransform()])
        return actions, squashed.log_prob(actions).sum(-1)

    def following(self, nets, obs, noise):
        actions, log_probs = self.draw(nets["actor"], obs, noise)
        lowest = values(nets["target_critics"], obs, actions).min(0).values
        return lowest - self.log_alpha.exp() * log_probs

    def actor_loss(self, nets, obs, noise):
        actions, log_probs = self.draw(nets["actor"], obs, noise)
        lowest = values(nets["critics"], obs, actions).min(0).values
        self.log_prob = log_probs.mean().detach()
        return (self.log_alpha.exp().detach() * log_probs - lowest).mean()


class CrossQ(Sac):
    """The critics judge the batch and what follows it together; there are no target networks."""

    def judge(self, nets, x, actions):
        with torch.no_grad():
            following, log_probs = self.draw(nets["actor"], x["next_obs"], x["noise"][0])
        obs = torch.cat([x["obs"], x["next_obs"]])
        for critic in nets["critics"]:
            critic.train_mode = True
        both = values(nets["critics"], obs, torch.cat([actions, following]))
        for critic in nets["critics"]:
            critic.train_mode = False
        now, later = both.chunk(2, 1)
        lowest = later.min(0).values - self.log_alpha.exp() * log_probs
        return now, lowest.detach()

    def actor_loss(self, nets, obs, noise):
        nets["actor"].train_mode = True
        loss = super().actor_loss(nets, obs, noise)
        nets["actor"].train_mode = False
        return loss


class Td3:
    critics, outputs, learned = 2, ACTIONS, False

    def following(self, nets, obs, noise):
        actions = nets["target_actor"](obs).tanh() + (noise * 0.6).clamp(-0.3, 0.3)
        return values(nets["target_critics"], obs, actions.clamp(-1, 1)).min(0).values

    def actor_loss(self, nets, obs, noise):
        return -values(nets["critics"], obs, nets["actor"](obs).tanh())[0].mean()


class Ddpg:
    critics, outputs, learned = 1, ACTIONS, False

    def following(self, nets, obs, noise):
        return values(nets["target_critics"], obs, nets["target_actor"](obs).tanh())[0]

    def actor_loss(self, nets, obs, noise):
        return -values(nets["critics"], obs, nets["actor"](obs).tanh())[0].mean()


def descend(loss, parameters, rate):
    gradients = torch.autograd.grad(loss, parameters)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter -= rate * gradient
    return norm.item()


def named(method, nets):
    """All parameters by the names that our learner saves them under."""
    found = {}

    def actor(prefix, net):
        if not isinstance(net, Net):
            for name, part in net.parts().items():
                found[f"{prefix}.{name}"] = part[None]
            for name, count in net.counts().items():
                found[f"{prefix}.{name}"] = count
            found[f"{prefix}.head.weight"] = net.last.weight
            found[f"{prefix}.head.bias"] = net.last.bias
            return
        found[f"{prefix}.torso.hidden0.weight"] = net.hidden.weight
        found[f"{prefix}.torso.hidden0.bias"] = net.hidden.bias
        found[f"{prefix}.head.weight"] = net.last.weight
        found[f"{prefix}.head.bias"] = net.last.bias

    def critics(prefix, each):
        stack = lambda part: torch.stack([part(critic) for critic in each])
        if isinstance(each[0], Net):
            found[f"{prefix}.hidden0.weight"] = stack(lambda net: net.hidden.weight.T)
            found[f"{prefix}.hidden0.bias"] = stack(lambda net: net.hidden.bias[None])
        else:
            for name in each[0].parts():
                found[f"{prefix}.{name}"] = stack(lambda net: net.parts()[name])
            for name, count in each[0].counts().items():
                found[f"{prefix}.{name}"] = count
        found[f"{prefix}.value.weight"] = stack(lambda net: net.last.weight)
        found[f"{prefix}.value.bias"] = stack(lambda net: net.last.bias)

    actor("actor.params", nets["actor"])
    critics("critic.params", nets["critics"])
    if not isinstance(method, CrossQ):
        critics("critic.target", nets["target_critics"])
    if not isinstance(method, Sac):
        actor("actor.target", nets["target_actor"])
    if method.learned:
        found["alpha.params.log_alpha"] = method.log_alpha
    return {
        name: {"shape": list(value.shape), "values": value.flatten().tolist()}
        for name, value in found.items()
    }


def record(name, method, make=Net, **settings):
    inputs = INPUTS + ACTIONS
    nets = {
        "actor": make(INPUTS, method.outputs),
        "critics": [make(inputs, 1) for _ in range(method.critics)],
        "target_actor": make(INPUTS, method.outputs),
        "target_critics": [make(inputs, 1) for _ in range(method.critics)],
    }
    x = {
        "obs": torch.randn(ROWS, INPUTS),
        "next_obs": torch.randn(ROWS, INPUTS),
        "actions": LOW + (HIGH - LOW) * torch.rand(ROWS, ACTIONS),
        "returns": torch.randn(ROWS),
        "discounts": torch.tensor([0.9, 0.9, 0.0, 0.81, 0.9, 0.0]),
        "weights": torch.tensor([1.0, 0.5, 0.25, 1.0, 0.75, 0.5]),
        "noise": torch.randn(2, ROWS, ACTIONS),
    }
    case = {"algorithm": name, "settings": settings, "before": named(method, nets)}
    case["inputs"] = {key: value.flatten().tolist() for key, value in x.items()}

    if isinstance(method, CrossQ):
        judged, following = method.judge(nets, x, unit(x["actions"]))
    else:
        with torch.no_grad():
            following = method.following(nets, x["next_obs"], x["noise"][0])
        judged = values(nets["critics"], x["obs"], unit(x["actions"]))
    errors = judged - (x["returns"] + x["discounts"] * following)
    loss = (0.5 * errors**2 * x["weights"]).mean(1).sum()
    parameters = [p for critic in nets["critics"] for p in critic.parameters()]
    metrics = {"loss": loss.item(), "td_error": errors.abs().mean().item()}
    case["priorities"] = errors.abs().mean(0).tolist()
    metrics["grad_norm"] = descend(loss, parameters, RATES["critic"])

    loss = method.actor_loss(nets, x["obs"], x["noise"][1])
    metrics["actor_loss"] = loss.item()
    parameters = list(nets["actor"].parameters())
    metrics["actor_grad_norm"] = descend(loss, parameters, RATES["actor"])
    if isinstance(method, Sac):
        metrics["entropy"] = -method.log_prob.item()
        metrics["alpha"] = method.log_alpha.exp().item()
        if method.learned:
            loss = -(method.log_alpha * (method.log_prob - ACTIONS)).sum()
            descend(loss, [method.log_alpha], RATES["alpha"])

    with torch.no_grad():
        pairs = list(zip(nets["target_critics"], nets["critics"]))
        for target, online in pairs + [(nets["target_actor"], nets["actor"])]:
            for old, new in zip(target.parameters(), online.parameters()):
                old += TAU * (new - old)
    case["after"] = named(method, nets)
    case["metrics"] = metrics
    return case


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    cases = [
        record("sac", Sac("clamp", None), log_std_limit="clamp"),
        record("sac", Sac("tanh", 0.2), log_std_limit="tanh", alpha=0.2),
        record("td3", Td3(), target_noise=0.6, target_noise_clip=0.3),
        record("ddpg", Ddpg()),
    ]
    simba = {"hidden": [HIDDEN], "layers": "residual"}
    cases.append(record("sac", Sac("clamp", None), ResidualNet, log_std_limit="clamp", net=simba))
    crossq = {"hidden": [HIDDEN], "critic_hidden": None, "layers": "batch_renorm"}
    for batches in (7, 100_000):
        make = lambda inputs, outputs: RenormNet(inputs, outputs, batches)
        cases.append(record("crossq", CrossQ("clamp", None), make, log_std_limit="clamp", net=crossq))
    with open(sys.argv[1], "w") as file:
        json.dump(cases, file, indent=0)


if __name__ == "__main__":
    main()
