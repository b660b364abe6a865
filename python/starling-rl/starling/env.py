"""Single environments for `gymnasium.make`."""

import gymnasium
import numpy as np
from gymnasium import spaces

from ._spaces import space_of
from ._stepper import Stepper


class StarlingEnv(gymnasium.Env):
    """One environment. A `StarlingVectorEnv` is faster, even with one environment per step."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, env_id, *, render_mode=None, **options):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
        self._stepper = Stepper(env_id, 1, num_threads=1, autoreset="Disabled", options=options)
        self.id = self._stepper.id
        about = self._stepper.about
        self.metadata = {**self.metadata, "render_fps": about["render_fps"]}
        self.render_mode = render_mode
        self.observation_space = space_of(about["observation"], spaces)
        self.action_space = space_of(about["action"], spaces)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        out = self._stepper.reset(None if seed is None else [int(seed)])
        return self._first(out), self._info(out)

    def step(self, action):
        out = self._stepper.step(np.asarray(action)[None])
        info = self._info(out)
        if not np.isnan(out.scores[0]):
            info["game_score"] = float(out.scores[0])
        flags = bool(out.terminated[0]), bool(out.truncated[0])
        return self._first(out), float(out.rewards[0]), *flags, info

    def render(self):
        return None if self.render_mode is None else self._stepper.render(0)

    def _first(self, out):
        return self._stepper.observation([array[0] for array in out.obs])

    def _info(self, out):
        info = {}
        if out.lives is not None:
            info["lives"] = int(out.lives[0])
        if out.legal is not None:
            info["action_mask"] = out.legal[0]
        return info
