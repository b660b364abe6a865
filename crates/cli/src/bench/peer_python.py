"""Steps Python environments by other libraries, as `starling bench python` steps them by its own.

    peer_python.py LIBRARY ENVIRONMENT COUNT SECONDS

prints steps per second: the median of ten parts, after one to warm up.
"""

import sys
import time

import gymnasium as gym
import numpy as np


class Picture(gym.Env):
    """Four pictures of 84x84 bytes that cost nothing: what is measured is the way they go."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space = gym.spaces.Discrete(6)
        self.picture, self.t = np.random.randint(0, 255, (4, 84, 84), np.uint8), 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.picture, {}

    def step(self, action):
        self.t += 1
        return self.picture, 1.0, False, self.t >= 1000, {}


def make():
    return Picture() if sys.argv[2] == "Picture" else gym.make(sys.argv[2])


def stepper(library, count):
    """A function that takes one step in all environments."""
    if library in ("gymnasium-sync", "gymnasium-async"):
        if library == "gymnasium-sync":
            envs = gym.vector.SyncVectorEnv([make] * count)
        else:
            envs = gym.vector.AsyncVectorEnv([make] * count, shared_memory=True)
        envs.reset(seed=1)
        actions = [envs.action_space.sample() for _ in range(64)]
        return envs, lambda i: envs.step(actions[i])
    if library == "sb3":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        envs = SubprocVecEnv([make] * count)
        envs.reset()
        actions = [np.array([envs.action_space.sample() for _ in range(count)]) for _ in range(64)]
        return envs, lambda i: envs.step(actions[i])
    import pufferlib.emulation
    import pufferlib.vector

    def creator(buf=None, seed=0, **_):
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make, buf=buf, seed=seed)

    envs = pufferlib.vector.make(
        creator,
        backend=pufferlib.vector.Multiprocessing,
        num_envs=count,
        num_workers=2,
        batch_size=count,
        zero_copy=True,
        overwork=True,
    )
    envs.async_reset(1)
    envs.recv()
    actions = [np.array([envs.single_action_space.sample() for _ in range(count)]) for _ in range(64)]

    def step(i):
        envs.send(actions[i])
        envs.recv()

    return envs, step


if __name__ == "__main__":
    count, seconds = int(sys.argv[3]), float(sys.argv[4])
    envs, step = stepper(sys.argv[1], count)
    rates = []
    for _ in range(11):
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds / 10:
            for i in range(8):
                step((steps + i) % 64)
            steps += 8
        rates.append(steps * count / (time.perf_counter() - begun))
    print(np.median(rates[1:]), flush=True)
    envs.close()
