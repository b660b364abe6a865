"""Writes what a vector does, to be compared with Rust: arguments are id, seed, environments, steps, file."""

import sys

import numpy as np
from gymnasium import spaces

import starling

env_id, seed, count, steps, file = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
envs = starling.make_vec(env_id, count, autoreset_mode="SameStep", num_threads=2)
with open(file, "wb") as out:
    obs, _ = envs.reset(seed=seed)
    out.write(obs.tobytes())
    for t in range(steps):
        if isinstance(envs.single_action_space, spaces.Discrete):
            actions = (7 * t + 3 * np.arange(count)) % envs.single_action_space.n
        else:
            elements = np.arange(envs.single_action_space.shape[0])
            actions = (7 * t + 3 * np.arange(count)[:, None] + 5 * elements) % 11 - 5
            actions = (actions / 5).astype(np.float32)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        out.write(obs.tobytes() + rewards.astype(np.float32).tobytes())
        out.write(terminated.tobytes() + truncated.tobytes())
