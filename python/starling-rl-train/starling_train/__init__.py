"""The program `starling` and its trained agents; `starling.load` is the way to them."""

from ._torch import prepare

__all__ = ["Agent", "load"]


class Agent:
    """A trained policy with its memory: give it observations, take its actions.

    It acts as in an evaluation. Recurrent policies need `reset` at the beginning of an episode, and
    those that use rewards need `rewarded` after each step.
    """

    def __init__(self, run, best=False):
        prepare()
        from . import _agent

        self._agent = _agent.Agent(run, best)

    def act(self, obs, action_mask=None):
        """The action for an observation of one environment; `action_mask` has a 1 for each legal one."""
        legal = None if action_mask is None else [int(flag != 0) for flag in action_mask]
        return self._agent.act(list(_parts(obs)), legal)

    def rewarded(self, reward):
        """The reward that followed the last action. Only policies that use rewards need it."""
        self._agent.rewarded(float(reward))

    def reset(self, seed=None):
        """The next observation is the first of an episode. A seed starts another random stream."""
        self._agent.reset(seed)


def load(run, best=False):
    """The agent of a run's folder, of its latest checkpoint or of the best one."""
    return Agent(run, best)


def _parts(obs, path=""):
    """Path and array of every part of an observation."""
    import numpy as np

    if isinstance(obs, dict):
        for name, part in obs.items():
            yield from _parts(part, f"{path}.{name}" if path else name)
        return
    array = np.asarray(obs)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float32)
    yield path, np.ascontiguousarray(array)
