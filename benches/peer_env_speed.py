"""Steps per second of Gymnasium's and minatar's own environments, one at a time, in Python.

The peer's figures in step.rs. Run with `pip install "gymnasium==1.4.*" minatar==1.0.15`.
Random actions are drawn beforehand; resets count.
"""

import itertools
import statistics
import time

import gymnasium
import numpy as np
from minatar import Environment


def speed(act):
    """Steps per second by the median block of 20 steps in three seconds."""
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < 3:
        before = time.perf_counter()
        act()
        times.append(time.perf_counter() - before)
    return 20 / statistics.median(times)


def classic(env_id):
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(1000)])
    env.reset(seed=0)

    def act():
        for action in itertools.islice(actions, 20):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return speed(act)


def minatar(game):
    env = Environment(game)
    moves = np.random.RandomState(0).choice(env.minimal_action_set(), 1000)
    actions = itertools.cycle(moves.tolist())
    env.reset()

    def act():
        for action in itertools.islice(actions, 20):
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
