"""Steps per second of SAC and TD3 in plain PyTorch on HalfCheetah-v5, learning included, with the
networks, settings and order of updates of CleanRL's scripts.

    python peer_torch_control.py sac|td3 SECONDS

One update of 256 per step, networks of 256-256. Needs: gymnasium, mujoco, numpy, torch.
"""

import copy
import sys
import time

import gymnasium
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional

STARTS, WARM_UP, CAPACITY, BATCH = 300, 100, 100_000, 256
GAMMA, TAU = 0.99, 0.005


class Critic(nn.Module):
    def __init__(self, obs, actions):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(obs + actions, 256), nn.Linear(256, 256), nn.Linear(256, 1)]
        )

    def forward(self, obs, actions):
        x = torch.cat([obs, actions], 1)
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        return self.layers[-1](x)


class Actor(nn.Module):
    def __init__(self, obs, actions, draws):
        super().__init__()
        self.first, self.second = nn.Linear(obs, 256), nn.Linear(256, 256)
        self.mean = nn.Linear(256, actions)
        self.log_std = nn.Linear(256, actions) if draws else None

    def forward(self, obs):
        x = functional.relu(self.second(functional.relu(self.first(obs))))
        if self.log_std is None:
            return torch.tanh(self.mean(x)), None
        log_std = torch.tanh(self.log_std(x))
        normal = torch.distributions.Normal(self.mean(x), (-5 + 3.5 * (log_std + 1)).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


class Replay:
    def __init__(self, obs, actions):
        self.obs = np.zeros((CAPACITY, obs), np.float32)
        self.next_obs = np.zeros((CAPACITY, obs), np.float32)
        self.actions = np.zeros((CAPACITY, actions), np.float32)
        self.rewards = np.zeros(CAPACITY, np.float32)
        self.ended = np.zeros(CAPACITY, np.float32)
        self.size = 0

    def add(self, *row):
        i = self.size % CAPACITY
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.ended)
        for column, value in zip(columns, row):
            column[i] = value
        self.size += 1

    def sample(self):
        rows = np.random.randint(0, min(self.size, CAPACITY), BATCH)
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.ended)
        return [torch.tensor(column[rows]) for column in columns]


class Agent:
    def __init__(self, algorithm, obs, actions):
        self.draws = algorithm == "sac"
        self.actor = Actor(obs, actions, self.draws)
        self.critics = [Critic(obs, actions), Critic(obs, actions)]
        self.targets = copy.deepcopy(self.critics)
        self.target_actor = copy.deepcopy(self.actor)
        both = [p for critic in self.critics for p in critic.parameters()]
        self.critic_optimizer = optim.Adam(both, lr=1e-3 if self.draws else 3e-4)
        self.actor_optimizer = optim.Adam(self.actor.parameters(), lr=3e-4)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optimizer = optim.Adam([self.log_alpha], lr=1e-3)
        self.target_entropy = -float(actions)
        self.updates = 0

    def act(self, obs):
        with torch.no_grad():
            action, _ = self.actor(torch.tensor(obs[None]))
        action = action.numpy()[0]
        if not self.draws:
            action = (action + np.random.normal(0, 0.1, action.shape)).clip(-1, 1)
        return action.astype(np.float32)

    def update(self, batch):
        obs, next_obs, actions, rewards, ended = batch
        with torch.no_grad():
            if self.draws:
                following, log_prob = self.actor(next_obs)
            else:
                noise = (torch.randn_like(actions) * 0.2).clamp(-0.5, 0.5)
                following = (self.target_actor(next_obs)[0] + noise).clamp(-1, 1)
            values = torch.min(*(target(next_obs, following) for target in self.targets))
            if self.draws:
                values = values - self.log_alpha.exp() * log_prob
            goal = rewards + (1 - ended) * GAMMA * values.view(-1)
        losses = [functional.mse_loss(q(obs, actions).view(-1), goal) for q in self.critics]
        self.critic_optimizer.zero_grad()
        sum(losses).backward()
        self.critic_optimizer.step()
        self.updates += 1
        if self.updates % 2 == 0:
            # SAC makes up for the delay with two steps.
            for _ in range(2 if self.draws else 1):
                self.update_actor(obs)
        if self.draws or self.updates % 2 == 0:
            self.follow()

    def update_actor(self, obs):
        actions, log_prob = self.actor(obs)
        if self.draws:
            alpha = self.log_alpha.exp().item()
            values = torch.min(*(critic(obs, actions) for critic in self.critics))
            loss = (alpha * log_prob - values).mean()
        else:
            loss = -self.critics[0](obs, actions).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        if self.draws:
            with torch.no_grad():
                _, log_prob = self.actor(obs)
            loss = (-self.log_alpha.exp() * (log_prob + self.target_entropy)).mean()
            self.alpha_optimizer.zero_grad()
            loss.backward()
            self.alpha_optimizer.step()

    def follow(self):
        pairs = list(zip(self.targets, self.critics))
        if not self.draws:
            pairs.append((self.target_actor, self.actor))
        for target, net in pairs:
            for slow, fast in zip(target.parameters(), net.parameters()):
                slow.data.copy_(TAU * fast.data + (1 - TAU) * slow.data)


def main(algorithm, seconds):
    env = gymnasium.make("HalfCheetah-v5")
    obs, _ = env.reset(seed=1)
    obs = obs.astype(np.float32)
    agent = Agent(algorithm, len(obs), env.action_space.shape[0])
    replay = Replay(len(obs), env.action_space.shape[0])
    began, step = None, 0
    while began is None or time.perf_counter() - began < seconds:
        action = env.action_space.sample() if step < STARTS else agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        next_obs = next_obs.astype(np.float32)
        replay.add(obs, next_obs, action, reward, terminated)
        obs = next_obs
        if terminated or truncated:
            obs = env.reset()[0].astype(np.float32)
        if step >= STARTS:
            agent.update(replay.sample())
        step += 1
        if step == STARTS + WARM_UP:
            began = time.perf_counter()
    print((step - STARTS - WARM_UP) / (time.perf_counter() - began))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
