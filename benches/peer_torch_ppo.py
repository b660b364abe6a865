"""Steps per second of PPO in plain PyTorch over EnvPool's Pong, learning included.

Needs: torch (CPU), envpool, numpy. A single-file loop in the manner that is usual for research
code: the same network (Nature), 8 environments, 128 steps, 4 epochs of 4 minibatches.
"""

import time

import envpool
import numpy as np
import torch
from torch import nn

ENVS, STEPS, EPOCHS, MINIBATCHES, ROLLOUTS = 8, 128, 4, 4, 6


def orthogonal(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.body = nn.Sequential(
            orthogonal(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(),
            nn.Flatten(), orthogonal(nn.Linear(3136, 512)), nn.ReLU(),
        )
        self.policy = orthogonal(nn.Linear(512, actions), 0.01)
        self.value = orthogonal(nn.Linear(512, 1), 1.0)

    def forward(self, obs):
        features = self.body(obs.float() / 255.0)
        return torch.distributions.Categorical(logits=self.policy(features)), self.value(features)[:, 0]


def main():
    envs = envpool.make(
        "Pong-v5", env_type="gym", num_envs=ENVS, episodic_life=True, reward_clip=True, seed=1
    )
    agent = Agent(envs.action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    first = envs.reset()
    obs = torch.as_tensor(np.asarray(first[0] if isinstance(first, tuple) else first))
    done = torch.zeros(ENVS)
    times = []
    for _ in range(ROLLOUTS + 1):
        times.append(time.perf_counter())
        all_obs = torch.zeros((STEPS, ENVS, 4, 84, 84), dtype=torch.uint8)
        actions = torch.zeros((STEPS, ENVS), dtype=torch.int64)
        log_probs, rewards, dones, values = (torch.zeros((STEPS, ENVS)) for _ in range(4))
        for t in range(STEPS):
            all_obs[t], dones[t] = obs, done
            with torch.no_grad():
                policy, values[t] = agent(obs)
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
            result = envs.step(actions[t].numpy().astype(np.int32))
            obs = torch.as_tensor(result[0])
            rewards[t] = torch.as_tensor(result[1])
            ended = result[2] if len(result) == 4 else np.logical_or(result[2], result[3])
            done = torch.as_tensor(ended).float()
        with torch.no_grad():
            following = agent(obs)[1]
        advantages, gae = torch.zeros((STEPS, ENVS)), torch.zeros(ENVS)
        for t in reversed(range(STEPS)):
            last = t == STEPS - 1
            alive = 1.0 - (done if last else dones[t + 1])
            after = following if last else values[t + 1]
            delta = rewards[t] + 0.99 * after * alive - values[t]
            gae = delta + 0.99 * 0.95 * alive * gae
            advantages[t] = gae
        flat = lambda x: x.reshape((STEPS * ENVS,) + x.shape[2:])
        batch = [flat(x) for x in (all_obs, actions, log_probs, advantages, advantages + values, values)]
        size = STEPS * ENVS // MINIBATCHES
        for _ in range(EPOCHS):
            order = torch.randperm(STEPS * ENVS)
            for start in range(0, STEPS * ENVS, size):
                o, a, old, adv, target, before = (x[order[start : start + size]] for x in batch)
                policy, value = agent(o)
                ratio = (policy.log_prob(a) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                surrogate = torch.min(ratio * adv, ratio.clamp(0.9, 1.1) * adv).mean()
                near = before + (value - before).clamp(-0.1, 0.1)
                error = torch.max((value - target) ** 2, (near - target) ** 2).mean()
                loss = -surrogate + 0.5 * 0.5 * error - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    times.append(time.perf_counter())
    print(ROLLOUTS * STEPS * ENVS / (times[-1] - times[1]))


if __name__ == "__main__":
    main()
