"""Steps per second of Gymnasium's and minatar's own environments, one at a time, in Python.

The peer's figures in step.rs. Run with `pip install "gymnasium==1.4.*" minatar==1.0.15`.
Random actions are drawn beforehand; resets count.
"""

import statistics
import time

import gymnasium
import numpy as np
from minatar import Environment


def speed(act):
    """Steps per second by the median block of 100 steps in three seconds."""
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < 3:
        before = time.perf_counter()
        act()
        times.append(time.perf_counter() - before)
    return 100 / statistics.median(times)


def classic(env_id):
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(100)]
    env.reset(seed=0)

    def act():
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return speed(act)


def minatar(game):
    env = Environment(game)
    actions = np.random.RandomState(0).choice(env.minimal_action_set(), 100).tolist()
    env.reset()

    def act():
        for action in actions:
            _, over = env.act(action)
            env.state()
            if over:
                env.reset()
                env.state()

    return speed(act)


if __name__ == "__main__":
    for env_id in [
        "CartPole-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Acrobot-v1",
        "Pendulum-v1",
    ]:
        print(f'("{env_id}", {classic(env_id):.0f}.0),')
    for name in ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]:
        game = "space_invaders" if name == "SpaceInvaders" else name.lower()
        print(f'("MinAtar/{name}-v1", {minatar(game):.0f}.0),')
