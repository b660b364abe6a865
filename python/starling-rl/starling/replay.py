"""The replay: steps of several environments, drawn uniformly or by priority."""

import json
import threading
from types import SimpleNamespace

import numpy as np
from gymnasium import spaces

from . import _native
from ._spaces import nested


class Replay:
    """Stores the newest steps of every environment and draws n-step transitions from them.

    Every step is stored once. With `frame_stack=4`, observations `[4, …]` are stacks of frames, of
    which each is stored once. With `alpha`, transitions are drawn by priority to that power, else
    uniformly. Many threads may add, sample and update priorities at the same time.

        envs = starling.make_vec("CartPole-v1", 8, autoreset_mode="SameStep")
        replay = starling.Replay(envs, capacity=100_000, n_steps=3, alpha=0.6)
        replay.add(obs, actions, rewards, terminated, truncated, next_obs, infos)
        batch = replay.sample(256, beta=0.4)
        replay.update_priorities(batch.ids, errors)
    """

    def __init__(
        self,
        envs,
        capacity=1_000_000,
        *,
        n_steps=1,
        gamma=0.99,
        alpha=None,
        frame_stack=None,
        compress=False,
        memory_limit_bytes=None,
        seed=0,
    ):
        """`envs` is a vector environment of Gymnasium's, in SAME_STEP mode."""
        self._arrays = list(_leaves(envs.single_observation_space))
        action = envs.single_action_space
        kind = "int64" if isinstance(action, (spaces.Discrete, spaces.MultiDiscrete)) else "float32"
        self._action_dtype = np.dtype(kind)
        self.num_envs = envs.num_envs
        config = {
            "capacity_steps": capacity,
            "n_steps": n_steps,
            "gamma": gamma,
            "priority": None if alpha is None else {"alpha": alpha},
            "frame_stack": frame_stack,
            "compress": compress,
            "memory_limit_bytes": memory_limit_bytes,
        }
        described = [(path, dtype.name, list(shape)) for path, dtype, shape in self._arrays]
        self._replay = _native.Replay(
            json.dumps(config), described, (kind, list(action.shape)), self.num_envs, seed
        )
        # Every thread has batches of its own.
        self._own = threading.local()

    def add(self, obs, actions, rewards, terminated, truncated, next_obs, infos=None, priorities=None):
        """Inserts one step of every environment: what `step` of a vector in SAME_STEP mode gave.

        Where an episode ended, `infos["final_obs"]` has its last observation. Steps have to be added
        in the order in which they were taken.
        """
        ends = []
        ended = np.asarray(terminated) | np.asarray(truncated)
        if ended.any():
            final = (infos or {}).get("final_obs")
            if final is None:
                raise ValueError(
                    "an episode ended, but infos has no 'final_obs': make the vector with "
                    "autoreset_mode='SameStep'"
                )
            ends = [(int(env), self._flat(final[env])) for env in np.flatnonzero(ended)]
        if priorities is not None:
            priorities = np.ascontiguousarray(priorities, np.float32)
        self._replay.add(
            self._flat(obs),
            np.ascontiguousarray(actions, self._action_dtype),
            np.ascontiguousarray(rewards, np.float32),
            np.ascontiguousarray(terminated, np.uint8),
            np.ascontiguousarray(truncated, np.uint8),
            self._flat(next_obs),
            ends,
            priorities,
        )

    def sample(self, size, beta=0.4):
        """Draws transitions: obs, actions, returns, discounts, next_obs, weights and ids.

        The target of a transition is `returns + discounts * value(next_obs)`. The arrays are views of
        memory that this thread's next `sample` of the same size fills again: copy what has to stay.
        """
        batches = self._own.__dict__
        if size not in batches:
            batch = self._replay.batch(size)
            views = batch.views()
            paths = [path for path, _, _ in self._arrays]
            for name in ("obs", "next_obs"):
                views[name] = nested(paths, views[name])
            batches[size] = batch, views
        batch, views = batches[size]
        self._replay.sample_into(batch, beta)
        return SimpleNamespace(**views, ids=batch.ids())

    def update_priorities(self, ids, priorities):
        """Gives transitions new priorities; returns how many had been overwritten meanwhile."""
        priorities = np.ascontiguousarray(priorities, np.float32)
        return self._replay.update_priorities(np.ascontiguousarray(ids, np.uint64), priorities)

    def __len__(self):
        """Transitions that can be drawn now."""
        return len(self._replay)

    @property
    def inserted_steps(self):
        """Steps that were added since the beginning."""
        return self._replay.inserted_steps

    @property
    def nbytes(self):
        """Bytes of memory."""
        return self._replay.nbytes

    def _flat(self, obs):
        arrays = []
        for path, dtype, _ in self._arrays:
            part = obs
            for name in path.split(".") if path else ():
                part = part[name]
            arrays.append(np.ascontiguousarray(part, dtype))
        return arrays


def _leaves(space, path=""):
    """Path, type and shape of every array of an observation."""
    if isinstance(space, spaces.Dict):
        for name, part in space.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    else:
        yield path, np.dtype(space.dtype), space.shape
