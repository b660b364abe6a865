"""Starling's environments, replay and agents in Python.

    import starling
    envs = starling.make_vec("ALE/Pong-v5", num_envs=64)

`starling.envpool` and `starling.sb3` are the same environments for scripts written for EnvPool and
for Stable-Baselines3. Nothing here needs torch.
"""

import gymnasium

from . import _native
from ._native import __version__
from .env import StarlingEnv
from .onnx import OnnxAgent
from .replay import Replay
from .vector import StarlingVectorEnv, make_vec

__all__ = [
    "OnnxAgent",
    "Replay",
    "StarlingEnv",
    "StarlingVectorEnv",
    "environments",
    "gymnasium_id",
    "load",
    "make_vec",
]


def environments():
    """The ids of all environments."""
    return [id for id, *_ in _native.environments()]


def gymnasium_id(id):
    """The id of an environment in Gymnasium's registry: `starling/ALE-Pong-v5` for `ALE/Pong-v5`."""
    return "starling/" + id.replace("/", "-")


def _register():
    for id, _, _, _, threshold in _native.environments():
        gymnasium.register(
            gymnasium_id(id),
            entry_point="starling.env:StarlingEnv",
            vector_entry_point="starling.vector:StarlingVectorEnv",
            reward_threshold=threshold,
            kwargs={"env_id": id},
        )


_register()


def load(run, best=False):
    """The trained agent of a run's folder: `starling.load(run).act(obs)`. Needs `starling-rl-train`."""
    try:
        from starling_train import load
    except ModuleNotFoundError as error:
        if error.name != "starling_train":
            raise
        raise ImportError(
            "agents of runs need torch; install it with: pip install starling-rl-train"
        ) from None
    return load(run, best)
