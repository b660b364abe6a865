"""Plays given actions in Gymnasium itself and prints what followed: one line of JSON per environment."""

import json
import sys

import gymnasium
import numpy as np

task = json.load(sys.stdin)
for seeds, actions in zip(task["seeds"], task["actions"]):
    env = gymnasium.make(task["id"], **task["kwargs"])
    seeds, observations, rewards, flags, finals = iter(seeds), [], [], [], []

    def shown(observation):
        if isinstance(observation, dict):
            parts = [observation[key] for key in task["parts"]]
        else:
            parts = [observation]
        numbers = []
        for part in parts:
            part = np.asarray(part)
            if part.ndim == 3 and part.dtype == np.uint8:
                part = part.transpose(2, 0, 1)
            numbers += part.astype(np.float32).ravel().tolist()
        return numbers

    observation, _ = env.reset(seed=next(seeds))
    observations.append(shown(observation))
    for action in actions:
        action = action[0] if task["discrete"] else np.array(action, np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(np.float32(reward)))
        flags.append([bool(terminated), bool(truncated)])
        if terminated or truncated:
            finals.append(shown(observation))
            observation, _ = env.reset(seed=next(seeds))
        observations.append(shown(observation))
    print(json.dumps({"obs": observations, "rewards": rewards, "flags": flags, "finals": finals}))
