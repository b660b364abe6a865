"""The native vector with its arrays: what all interfaces (Gymnasium, SB3, EnvPool) are built on."""

import importlib.util
import json
import os
import pathlib
import secrets

import numpy as np

from . import _native
from ._spaces import nested


class Results:
    """What one reset or step led to. The arrays are new for every call."""

    __slots__ = ("obs", "rewards", "terminated", "truncated", "scores", "lives", "legal", "ends")

    def rows(self, chosen):
        """The results of some environments, in this order."""
        if np.array_equal(chosen, np.arange(len(self.rewards))):
            return self
        out = Results()
        out.obs = [array[chosen] for array in self.obs]
        for name in ("rewards", "terminated", "truncated", "scores", "lives", "legal"):
            array = getattr(self, name)
            setattr(out, name, None if array is None else array[chosen])
        out.ends = ()
        return out

    def infos(self, chosen=None):
        """The infos of a vector: every key with a mask that says for which environments it holds."""
        infos = {}
        count = len(self.rewards)
        mask = np.ones(count, bool) if chosen is None else chosen
        if self.lives is not None:
            infos["lives"], infos["_lives"] = np.where(mask, self.lives, 0), mask.copy()
        if self.legal is not None:
            legal = np.where(mask[:, None], self.legal, 0).astype(np.uint8)
            infos["action_mask"], infos["_action_mask"] = legal, mask.copy()
        return infos


class _Environments:
    """What both steppers have: a native vector, and new arrays for every call."""

    def __init__(self, id, num_envs, rows, make, options):
        self.id, self.family = _native.find(id)
        if self.family == "mujoco":
            _point_to_mujoco()
        given = {name: value for name, value in (options or {}).items() if value is not None}
        self._vector = make(self.id, json.dumps(given), secrets.randbits(64))
        self.about = self._vector.describe()
        self.num_envs = num_envs
        # Of the results of a call.
        self._rows = rows
        self._paths = [path for path, _, _ in self.about["arrays"]]
        self._arrays = [((rows, *shape), dtype) for _, dtype, shape in self.about["arrays"]]
        action = self.about["action"]["kind"]
        self._action_dtype = np.int64 if action in ("discrete", "multi_discrete") else np.float32

    def render(self, env):
        return self._vector.render(env)

    def observation(self, arrays):
        """The observation of these arrays, with its named parts."""
        return nested(self._paths, arrays)

    def _actions(self, actions):
        return np.ascontiguousarray(actions, self._action_dtype)

    def _new_results(self):
        out = Results()
        count = self._rows
        out.obs = [np.empty(shape, dtype) for shape, dtype in self._arrays]
        out.rewards = np.zeros(count)
        out.terminated, out.truncated = np.zeros(count, bool), np.zeros(count, bool)
        out.scores = np.full(count, np.nan)
        out.lives = np.zeros(count, np.int64) if self.about["lives"] else None
        legal = self.about["legal_actions"]
        out.legal = None if legal is None else np.zeros((count, legal), np.uint8)
        return out


class Stepper(_Environments):
    """Environments that are stepped together."""

    def __init__(self, id, num_envs, *, num_threads=None, autoreset="NextStep", options=None):
        def make(id, options, entropy):
            return _native.Vector(id, options, num_envs, num_threads, autoreset, entropy)

        super().__init__(id, num_envs, num_envs, make, options)
        self._everyone = [True] * num_envs
        self._unseeded = [None] * num_envs
        self._last = None

    def reset(self, seeds=None, chosen=None):
        """Starts episodes in all environments, or in those with `chosen`; the others stay as they are."""
        if chosen is not None and self._last is None:
            raise RuntimeError("the first reset must include all environments")
        out = self._new_results()
        if chosen is not None:
            for new, old in zip(out.obs, self._last):
                np.copyto(new, old)
        seeds = self._unseeded if seeds is None else seeds
        chosen = self._everyone if chosen is None else [bool(flag) for flag in chosen]
        self._vector.reset(seeds, chosen, _buffers(out))
        out.ends = ()
        self._last = out.obs
        return out

    def step(self, actions, chosen=None):
        """Takes actions in all environments, or in those with `chosen`; rows of others are not written."""
        out = self._new_results()
        chosen = None if chosen is None else [bool(flag) for flag in chosen]
        out.ends = self._vector.step(self._actions(actions), chosen, _buffers(out))
        if chosen is not None:
            for new, old in zip(out.obs, self._last):
                others = ~np.asarray(chosen)
                new[others] = old[others]
        self._last = out.obs
        return out


class AsyncStepper(_Environments):
    """Environments of which some are stepped while the caller works on the results of others."""

    def __init__(self, id, num_envs, *, batch_size, num_threads=None, options=None):
        def make(id, options, entropy):
            return _native.AsyncVector(id, options, num_envs, batch_size, num_threads, entropy)

        super().__init__(id, num_envs, batch_size, make, options)

    def reset(self, env_id, seeds):
        self._vector.reset(env_id.tolist(), seeds)

    def send(self, env_id, actions):
        self._vector.send(env_id.tolist(), self._actions(actions))

    def receive(self):
        """The results that came first, and the environments that they are of."""
        out = self._new_results()
        env_id = self._vector.receive(_buffers(out))
        out.ends = ()
        return out, np.array(env_id, np.int32)


def _buffers(out):
    return {name: getattr(out, name) for name in Results.__slots__ if name != "ends"}


def _point_to_mujoco():
    """MuJoCo's library is that of the package `mujoco`, if it is installed in the right version."""
    if os.environ.get("STARLING_MUJOCO"):
        return
    package = importlib.util.find_spec("mujoco")
    for folder in package.submodule_search_locations if package else ():
        if (pathlib.Path(folder) / f"libmujoco.so.{_native.MUJOCO_VERSION}").exists():
            os.environ["STARLING_MUJOCO"] = folder
