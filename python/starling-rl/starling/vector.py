"""Vectors of environments: real `gymnasium.vector.VectorEnv`s, stepped by threads of their own."""

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ._spaces import space_of
from ._stepper import Stepper


class StarlingVectorEnv(VectorEnv):
    """Environments of one id.

    `num_threads` is the most threads that step them (default: all cores; environments that take
    next to no time are stepped by the caller). `options` are the settings of the environment, those
    that the program has under `env.`: `StarlingVectorEnv("ALE/Pong-v5", 8, preset="deepmind")`.

    Environment i draws from a stream of its seed alone: `reset(seed=5)` gives environment i the seed
    5 + i, and it then does the same in any vector, with any number of threads.

    Infos: `lives` (Atari), `action_mask` (environments that mask actions), `game_score` where a game
    ended whose score is not the sum of the episode's rewards. In SAME_STEP mode `final_obs` and
    `final_info` are those of the episode that ended. Each key has a mask, `_lives`.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        env_id,
        num_envs=1,
        *,
        num_threads=None,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        render_mode=None,
        **options,
    ):
        mode = AutoresetMode(autoreset_mode)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
        self._stepper = Stepper(
            env_id, num_envs, num_threads=num_threads, autoreset=mode.value, options=options
        )
        self.id = self._stepper.id
        about = self._stepper.about
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {
            **self.metadata,
            "render_fps": about["render_fps"],
            "autoreset_mode": mode,
        }
        self.single_observation_space = space_of(about["observation"], spaces)
        self.single_action_space = space_of(about["action"], spaces)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._kept = None

    def reset(self, *, seed=None, options=None):
        """Starts episodes; with `options={"reset_mask": mask}` only where the mask is true.

        A seed is a number, of which environment i gets seed + i, or a list with one per environment.
        The others are shown as in the last result. Only with DISABLED autoreset is that a copy, which
        nobody else can have changed.
        """
        self._check_open()
        super().reset(seed=seed if isinstance(seed, int) else None)
        chosen = self._mask((options or {}).get("reset_mask"))
        if chosen is not None and self._kept is not None:
            # In DISABLED mode resets by mask are the rule: what was handed out may have been changed.
            self._stepper._last = self._kept
        out = self._stepper.reset(self._seeds(seed), chosen)
        return self._observe(out), out.infos(chosen)

    def step(self, actions):
        self._check_open()
        out = self._stepper.step(actions)
        infos = out.infos()
        self._add_scores(out, infos)
        if out.ends:
            self._add_ends(out, infos)
        return self._observe(out), out.rewards, out.terminated, out.truncated, infos

    def render(self):
        if self.render_mode is None:
            return None
        return tuple(self._stepper.render(env) for env in range(self.num_envs))

    def close_extras(self, **kwargs):
        self._stepper = None

    def _check_open(self):
        if self._stepper is None:
            raise RuntimeError("the vector was closed")

    def _observe(self, out):
        if self.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            self._kept = [array.copy() for array in out.obs]
        return self._stepper.observation(out.obs)

    def _add_scores(self, out, infos):
        """`game_score` of the environments whose game ended; of SAME_STEP it is in `final_info`."""
        ended = ~np.isnan(out.scores)
        if ended.any() and self.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            infos["game_score"], infos["_game_score"] = np.where(ended, out.scores, 0.0), ended

    def _add_ends(self, out, infos):
        count = self.num_envs
        mask = np.zeros(count, bool)
        final_obs = np.full(count, None, object)
        final = {}

        def put(key, env, value, shape=(), dtype=None):
            if key not in final:
                final[key], final[f"_{key}"] = np.zeros((count, *shape), dtype), np.zeros(count, bool)
            final[key][env], final[f"_{key}"][env] = value, True

        for env, arrays, lives, legal in out.ends:
            mask[env] = True
            final_obs[env] = self._stepper.observation(arrays)
            if lives is not None:
                put("lives", env, lives, dtype=np.int64)
            if legal is not None:
                put("action_mask", env, legal, legal.shape, np.uint8)
            if not np.isnan(out.scores[env]):
                put("game_score", env, out.scores[env], dtype=np.float64)
        infos["final_obs"], infos["_final_obs"] = final_obs, mask
        infos["final_info"], infos["_final_info"] = final, mask.copy()

    def _seeds(self, seed):
        if seed is None:
            return None
        if isinstance(seed, (int, np.integer)):
            seed = range(int(seed), int(seed) + self.num_envs)
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} environments")
        return [None if one is None else int(one) for one in seed]

    def _mask(self, mask):
        if mask is None:
            return None
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError("options['reset_mask'] must be a NumPy array of booleans")
        if mask.shape != (self.num_envs,):
            raise ValueError(
                f"options['reset_mask'] has the shape {mask.shape}, ({self.num_envs},) is needed"
            )
        if not mask.any():
            raise ValueError("options['reset_mask'] chooses no environment")
        return mask


def make_vec(env_id, num_envs=1, **arguments):
    """Environments of an id; see `StarlingVectorEnv`."""
    return StarlingVectorEnv(env_id, num_envs, **arguments)
