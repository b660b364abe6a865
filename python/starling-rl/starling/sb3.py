"""The environments for Stable-Baselines3, whose vectors are not Gymnasium's.

    from starling.sb3 import StarlingVecEnv
    model = PPO("CnnPolicy", StarlingVecEnv("ALE/Pong-v5", 8, preset="deepmind"))
"""

import time

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from ._spaces import space_of
from ._stepper import Stepper


class StarlingVecEnv(VecEnv):
    """Environments of one id; `options` are the settings that the program has under `env.`.

    `info["episode"]` is that of a Monitor: return, length and seconds of the episode, and for Atari
    the score and length of the whole game, whatever is clipped or cut into lives.
    """

    def __init__(
        self, env_id, num_envs=1, *, seed=None, num_threads=None, render_mode=None, **options
    ):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
        self._stepper = Stepper(
            env_id, num_envs, num_threads=num_threads, autoreset="SameStep", options=options
        )
        about = self._stepper.about
        self.id = self._stepper.id
        self.render_mode = render_mode
        self._actions = self._legal = None
        super().__init__(
            num_envs, space_of(about["observation"], spaces), space_of(about["action"], spaces)
        )
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._since = np.zeros(num_envs)
        if seed is not None:
            self.seed(seed)

    def reset(self):
        seeds = self._seeds
        out = self._stepper.reset(None if seeds[0] is None else [int(seed) for seed in seeds])
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:], self._since[:] = 0, 0, time.perf_counter()
        self._legal = out.legal
        self.reset_infos = [self._info(out, env) for env in range(self.num_envs)]
        return self._stepper.observation(out.obs)

    def step_async(self, actions):
        self._actions = actions

    def step_wait(self):
        out = self._stepper.step(self._actions)
        self._returns += out.rewards
        self._lengths += 1
        self._legal = out.legal
        done = out.terminated | out.truncated
        infos = [self._info(out, env) for env in range(self.num_envs)]
        for env, arrays, lives, legal in out.ends:
            info = infos[env]
            self.reset_infos[env] = dict(info)
            if lives is not None:
                info["lives"] = lives
            if legal is not None:
                info["action_mask"] = legal
            info["terminal_observation"] = self._stepper.observation(arrays)
            info["TimeLimit.truncated"] = bool(out.truncated[env] and not out.terminated[env])
            self._add_episode(out, env, info)
        return self._stepper.observation(out.obs), out.rewards.astype(np.float32), done, infos

    def _add_episode(self, out, env, info):
        score, games = out.scores[env], self._stepper.about["lives"]
        if games and np.isnan(score):
            return
        now = time.perf_counter()
        total = self._returns[env] if np.isnan(score) else score
        info["episode"] = {
            "r": float(total),
            "l": int(self._lengths[env]),
            "t": round(now - self._since[env], 6),
        }
        self._returns[env], self._lengths[env], self._since[env] = 0, 0, now

    def close(self):
        pass

    def get_images(self):
        return [self._stepper.render(env) for env in range(self.num_envs)]

    def action_masks(self):
        """The legal actions of all environments, as sb3-contrib's MaskablePPO asks for them."""
        if self._legal is None:
            raise AttributeError("these environments do not mask actions")
        return self._legal.astype(bool)

    def get_attr(self, attr_name, indices=None):
        if attr_name == "action_masks" and self._stepper.about["legal_actions"] is None:
            raise AttributeError("these environments do not mask actions")
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name, value, indices=None):
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise NotImplementedError("attributes can only be set for all environments together")
        setattr(self, attr_name, value)

    def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
        indices = list(self._get_indices(indices))
        if method_name == "action_masks":
            masks = self.action_masks()
            return [masks[env] for env in indices]
        if method_name == "render":
            return [self._stepper.render(env) for env in indices]
        raise AttributeError(f"single environments have no method {method_name!r}")

    def env_is_wrapped(self, wrapper_class, indices=None):
        # Episodes are reported as a Monitor does.
        monitor = wrapper_class.__name__ == "Monitor"
        return [monitor for _ in self._get_indices(indices)]

    def _info(self, out, env):
        info = {"TimeLimit.truncated": False}
        if out.lives is not None:
            info["lives"] = int(out.lives[env])
        if out.legal is not None:
            info["action_mask"] = out.legal[env]
        return info
