"""Environments for the tests: well-behaved ones with all kinds of spaces, and those that go wrong."""

import os
import signal
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """A walk on a line: 1 goes right, 0 left. The goal is four fields to the right."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, size=4, render_mode=None):
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.size, self.render_mode, self.place = size, render_mode, 0

    def show(self):
        return np.array([self.place / self.size, self.wind])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.wind = 0, self.np_random.uniform(-1, 1)
        return self.show(), {}

    def step(self, action):
        self.place = max(-self.size, self.place + (1 if action == 1 else -1))
        done = self.place == self.size
        return self.show(), 1.0 if done else -0.1, done, False, {}

    def render(self):
        picture = np.zeros((20, 30, 3), np.uint8)
        picture[:, self.place] = 255
        return picture


def walk(**kwargs):
    return gym.wrappers.TimeLimit(Walk(**kwargs), 9)


class Everything(gym.Env):
    """Every space that there is, as observation; the action is shown in it."""

    def __init__(self, action="discrete"):
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (6, 5, 3), np.uint8),
                "more": spaces.Tuple(
                    (spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 4], start=[1, 0]))
                ),
                "flags": spaces.MultiBinary(3),
                "whole": spaces.Box(-5, 1000, (2,), np.int32),
                "seen.action": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            }
        )
        self.action_space = {
            "discrete": spaces.Discrete(4, start=10),
            "multi": spaces.MultiDiscrete([3, 4], start=[1, 2]),
            "binary": spaces.MultiBinary(3),
            "box": spaces.Box(np.float64(-2), np.float64(3), (2, 2), np.float64),
            "whole": spaces.Box(5, 8, (2,), np.int16),
            "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(2)}),
            "tuple": spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(0, 2, (2,)))),
        }[action]
        self.t = 0

    def show(self, action):
        numbers = np.zeros(4, np.float32)
        if action is not None:
            assert self.action_space.contains(action), repr(action)
            flat = spaces.flatten(self.action_space, action) if action_is_nested(action) else action
            flat = np.asarray(flat, np.float32).ravel()[:4]
            numbers[: len(flat)] = flat
        return {
            "picture": np.arange(90, dtype=np.uint8).reshape(6, 5, 3),
            "more": (np.int64(self.t % 3 - 1), np.array([1 + self.t % 2, self.t % 4])),
            "flags": np.array([1, 0, self.t % 2], np.int8),
            "whole": np.array([-5, 1000], np.int32),
            "seen.action": numbers,
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.show(None), {}

    def step(self, action):
        self.t += 1
        return self.show(action), 0.5, False, False, {}


def action_is_nested(action):
    return isinstance(action, (dict, tuple))


class Bad(gym.Env):
    """Goes wrong at its third step, in the given way."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Discrete(2)
    life = 3

    def __init__(self, how=None, only_seeds_above=-1, marker=None):
        self.how, self.t, self.resets = how, 0, 0
        self.only_seeds_above, self.marker, self.bad = only_seeds_above, marker, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        if self.how == "reset" and self.resets == 2:
            raise RuntimeError("it does not start again")
        self.t, self.bad = 0, seed is not None and seed > self.only_seeds_above
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        observation = np.full(3, self.t, np.float32)
        reward, done = 1.0, self.how == "reset" and self.t == 2
        if self.t == self.life and self.bad:
            if self.marker:
                # Once, over all processes.
                try:
                    os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return observation, reward, False, self.t >= 20, {}
            if self.how == "raise":
                raise_deep_inside()
            elif self.how == "exit":
                print("good bye", file=sys.stderr)
                os._exit(3)
            elif self.how == "system_exit":
                sys.exit(4)
            elif self.how == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif self.how == "hang":
                time.sleep(1000)
            elif self.how == "nan":
                observation[1] = np.nan
            elif self.how == "nan_reward":
                reward = float("nan")
            elif self.how == "shape":
                observation = np.zeros(2, np.float32)
            elif self.how == "broadcast":
                observation = np.zeros(1, np.float32)
            elif self.how == "dtype":
                observation = np.array(["a", "b", "c"])
            elif self.how == "none":
                observation = None
            elif self.how == "reward":
                reward = "much"
            elif self.how == "old":
                return observation, reward, False, {}
        return observation, reward, done, self.t >= 20, {}


def raise_deep_inside():
    raise ValueError("the wheel came off")


class Bytes(Bad):
    """Says bytes and shows floats."""

    observation_space = spaces.Box(0, 255, (3,), np.uint8)

    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        return np.zeros(3, np.uint8), info


class Prints(Walk):
    """Prints with every step, in all ways there are."""

    def step(self, action):
        print("a line of the environment")
        print("an error of the environment", file=sys.stderr)
        os.write(1, b"bytes to standard output\n")
        os.system("echo from a process of its own")
        # More than a pipe holds.
        print("x" * 100_000)
        return super().step(action)


class Masked(Walk):
    """Only actions to the right are legal in the left half."""

    def __init__(self, where="info"):
        super().__init__()
        self.where = where
        if where == "observation":
            self.observation_space = spaces.Dict(
                {"place": self.observation_space, "action_mask": spaces.MultiBinary(2)}
            )

    def with_mask(self, observation, info):
        mask = np.array([self.place > 0, 1], np.int8)
        if self.where == "observation":
            return {"place": observation, "action_mask": mask}, info
        return observation, {"action_mask": mask}

    def reset(self, **kwargs):
        return self.with_mask(*super().reset(**kwargs))

    def step(self, action):
        assert action == 1 or self.place > 0, "this is not legal"
        observation, reward, terminated, truncated, info = super().step(action)
        observation, info = self.with_mask(observation, info)
        return observation, reward, terminated, truncated, info


class Unusable(Walk):
    """Has a space that cannot be used."""

    def __init__(self, what):
        super().__init__()
        if what == "text":
            self.observation_space = spaces.Dict({"a": spaces.Discrete(2), "words": spaces.Text(5)})
        elif what == "sequence":
            self.observation_space = spaces.Sequence(spaces.Discrete(2))
        elif what == "mixed":
            self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,))))
        elif what == "many":
            self.action_space = spaces.Box(0, 100_000, (1,), np.int64)
        elif what == "text_action":
            self.action_space = spaces.Text(4)


class Odd(Walk):
    """Has a space that cannot be used, as the whole space or as a part of it."""

    def __init__(self, kind, place):
        super().__init__()
        odd = {
            "Graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
            "OneOf": spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
            "Sequence": spaces.Sequence(spaces.Discrete(2)),
            "Text": spaces.Text(5),
        }[kind]
        if place == "observation":
            self.observation_space = odd
        elif place == "observation part":
            self.observation_space = spaces.Dict({"a": spaces.Discrete(2), "odd": odd})
        elif place == "action":
            self.action_space = odd
        elif place == "action part":
            self.action_space = spaces.Dict({"a": spaces.Discrete(2), "odd": odd})


class Tells(Walk):
    """Writes the numbers of its processes as empty files into a folder."""

    def __init__(self, folder):
        super().__init__()
        with open(os.path.join(folder, str(os.getpid())), "w"):
            pass


class Tank(gym.Env):
    """A picture for benchmarks: it costs nothing to step."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space = spaces.Discrete(6)
        self.picture, self.t = np.zeros((4, 84, 84), np.uint8), 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.picture, {}

    def step(self, action):
        self.t += 1
        return self.picture, 1.0, False, self.t >= 1000, {}


NOT_CALLABLE = 3
