"""The environments for scripts written for EnvPool: `import starling.envpool as envpool`.

`make(id, env_type, num_envs, …)` takes EnvPool's ids (`Pong-v5`) and ours, EnvPool's settings of
Atari games, and the settings of our environments. As in EnvPool, an episode that ended is followed by
a step that only resets, and seeds are given to `make`.

With `batch_size` below `num_envs`, threads step environments while the caller works on the results of
others: `recv` waits for `batch_size` results, in the order of arrival, and `info["env_id"]` says which
environments they are of. Otherwise results are in the order of `env_id`.
"""

import numpy as np

from . import _native
from ._spaces import space_of
from ._stepper import AsyncStepper, Stepper

# EnvPool's settings of Atari games: ours, and how a value is written there.
_ATARI = {
    "episodic_life": ("life_loss", lambda on: "continues" if on else "ignored"),
    "noop_max": ("noop_max", int),
    "frame_skip": ("frame_skip", int),
    "stack_num": ("stack", int),
    "use_fire_reset": ("fire_reset", bool),
    "repeat_action_probability": ("sticky_action_prob", float),
    "full_action_space": ("actions", lambda on: "full" if on else "minimal"),
    "gray_scale": ("observation", lambda on: "gray84" if on else "rgb"),
    "use_inter_area_resize": ("resize", lambda on: "area" if on else "bilinear"),
}
_ATARI_DEFAULTS = {"use_fire_reset": True, "repeat_action_probability": 0.0, "max_episode_steps": 27000}


def make(task_id, env_type="gymnasium", **arguments):
    """Environments with EnvPool's interface: `env_type` is "gymnasium" or "gym" (the old one)."""
    kinds = {"gymnasium": GymnasiumEnvPool, "gym": GymEnvPool}
    if env_type not in kinds:
        raise ValueError(f"env_type is {env_type!r}; allowed: {', '.join(kinds)}")
    return kinds[env_type](task_id, **arguments)


def make_gymnasium(task_id, **arguments):
    return make(task_id, "gymnasium", **arguments)


def make_gym(task_id, **arguments):
    return make(task_id, "gym", **arguments)


def list_all_envs():
    return [id for id, *_ in _native.environments()]


class EnvPool:
    """What both interfaces have."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = None
    spec = None
    reward_range = (-np.inf, np.inf)

    def __init__(
        self,
        task_id,
        num_envs=1,
        batch_size=None,
        num_threads=None,
        seed=42,
        reward_clip=False,
        **options,
    ):
        batch_size = batch_size or num_envs
        if not 0 < batch_size <= num_envs:
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to num_envs ({num_envs})")
        seeds = [seed + env for env in range(num_envs)] if np.ndim(seed) == 0 else seed
        if len(seeds) != num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {num_envs} environments")
        id, atari = _ours(task_id)
        if atari:
            options = _atari_options({**_ATARI_DEFAULTS, **options})
        # Rewards are clipped here: the infos have them as they are.
        self._clips = bool(reward_clip)
        self.is_async = batch_size < num_envs
        more = {"batch_size": batch_size} if self.is_async else {}
        stepper = AsyncStepper if self.is_async else Stepper
        self._stepper = stepper(id, num_envs, num_threads=num_threads or None, options=options, **more)
        self.num_envs = num_envs
        self.config = {"num_envs": num_envs, "batch_size": batch_size, "seed": seed, "task_id": id}
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        about, spaces = self._stepper.about, self._spaces()
        # As in EnvPool, these are the spaces of one environment.
        self.observation_space = space_of(about["observation"], spaces)
        self.action_space = space_of(about["action"], spaces)
        # A seed holds for the first episode: later ones continue its stream.
        self._seeds = [int(seed) for seed in seeds]
        self._elapsed = np.zeros(num_envs, np.int32)
        self._over = np.zeros(num_envs, bool)
        # Of environments that are being reset, `elapsed_step` begins anew.
        self._resetting = np.zeros(num_envs, bool)
        self._waiting = None

    def __len__(self):
        return self.num_envs

    def async_reset(self):
        """Starts all episodes; `recv` gives their first observations."""
        self._send_reset(None)

    def send(self, action, env_id=None):
        """Takes actions, one for each environment of `env_id`; `recv` gives what followed."""
        env_id = self._env_ids(env_id)
        action = np.asarray(action)
        if len(action) != len(env_id):
            raise ValueError(f"{len(action)} actions were given for {len(env_id)} environments")
        if self.is_async:
            self._stepper.send(env_id, action)
            return
        self._check_received()
        chosen, ordered = self._mask(env_id), np.zeros((self.num_envs, *action.shape[1:]), action.dtype)
        ordered[env_id] = action
        self._waiting = self._stepper.step(ordered, chosen), env_id

    def recv(self, reset=False, return_info=True):
        """What followed: that of a step, or with `reset` what `reset` returns."""
        out, env_id = self._received()
        restarted = self._over[env_id] | self._resetting[env_id]
        self._elapsed[env_id] = np.where(restarted, 0, self._elapsed[env_id] + 1)
        self._over[env_id], self._resetting[env_id] = out.terminated | out.truncated, False
        observation, info = self._stepper.observation(out.obs), self._info(out, env_id)
        if reset:
            return self._of_reset(observation, info)
        return self._of_step(out, observation, info)

    def step(self, action, env_id=None):
        self.send(action, env_id)
        return self.recv()

    def render(self, env_ids=None):
        chosen = np.atleast_1d(0 if env_ids is None else env_ids)
        return np.stack([self._stepper.render(int(env)) for env in chosen])

    def close(self, **_):
        pass

    def _send_reset(self, env_id):
        env_id = self._env_ids(env_id)
        seeds = [self._seeds[env] for env in env_id]
        if self.is_async:
            self._stepper.reset(env_id, seeds)
        else:
            self._check_received()
            chosen = self._mask(env_id)
            self._waiting = self._stepper.reset(self._seeds, chosen), env_id
        for env in env_id:
            self._seeds[env] = None
        self._resetting[env_id] = True

    def _received(self):
        if self.is_async:
            return self._stepper.receive()
        if self._waiting is None:
            raise RuntimeError("nothing was sent")
        (out, env_id), self._waiting = self._waiting, None
        return out.rows(env_id), env_id

    def _check_received(self):
        if self._waiting is not None:
            raise RuntimeError("the results of the last send were not received (recv)")

    def _env_ids(self, env_id):
        if env_id is None:
            return self.all_env_ids
        env_id = np.atleast_1d(np.asarray(env_id)).astype(np.int32)
        if len(env_id) and not (0 <= env_id.min() and env_id.max() < self.num_envs):
            raise ValueError(f"env_id is {env_id}; allowed: 0 to {self.num_envs - 1}")
        if len(np.unique(env_id)) != len(env_id):
            raise ValueError(f"env_id is {env_id}, which has an environment twice")
        return env_id

    def _mask(self, env_id):
        """For the native vector: which environments; None for all."""
        if len(env_id) == self.num_envs:
            return None
        chosen = np.zeros(self.num_envs, bool)
        chosen[env_id] = True
        return chosen

    def _info(self, out, env_id):
        lives = np.zeros(len(env_id)) if out.lives is None else out.lives
        info = {
            "env_id": env_id,
            "players": {"env_id": env_id},
            "elapsed_step": self._elapsed[env_id],
            "lives": lives.astype(np.int32),
            "reward": out.rewards.astype(np.float32),
            # Where a game has several lives, an episode may end before it.
            "terminated": self._games_over(out).astype(np.int32),
        }
        if out.legal is not None:
            info["action_mask"] = out.legal
        return info

    def _games_over(self, out):
        return out.terminated if out.lives is None else out.terminated & ~np.isnan(out.scores)

    def _rewards(self, out):
        rewards = out.rewards.astype(np.float32)
        return np.sign(rewards) if self._clips else rewards


class GymnasiumEnvPool(EnvPool):
    """EnvPool's interface of Gymnasium: five results, and infos with the first observations."""

    def _spaces(self):
        from gymnasium import spaces

        return spaces

    @property
    def single_observation_space(self):
        return self.observation_space

    @property
    def single_action_space(self):
        return self.action_space

    def reset(self, env_id=None, *, seed=None, options=None):
        self._send_reset(env_id)
        return self.recv(reset=True)

    def _of_reset(self, observation, info):
        return observation, info

    def _of_step(self, out, observation, info):
        return observation, self._rewards(out), out.terminated, out.truncated, info


class GymEnvPool(EnvPool):
    """EnvPool's old interface of gym: four results, and the first observations alone.

    Spaces are those of the package `gym`, which such scripts import.
    """

    def _spaces(self):
        from gym import spaces

        return spaces

    def reset(self, env_id=None, **_):
        self._send_reset(env_id)
        return self.recv(reset=True)

    def _of_reset(self, observation, info):
        return observation

    def _of_step(self, out, observation, info):
        info["TimeLimit.truncated"] = out.truncated & ~out.terminated
        return observation, self._rewards(out), out.terminated | out.truncated, info


def _ours(task_id):
    """Our id for one of EnvPool's, and whether it is an Atari game."""
    for id in (f"ALE/{task_id}", task_id):
        try:
            found, family = _native.find(id)
        except ValueError as error:
            reason = error
            continue
        return found, family == "atari"
    raise reason


def _atari_options(given):
    options = {}
    for name, value in given.items():
        ours, write = _ATARI.get(name, (name, lambda value: value))
        options[ours] = write(value)
    return options
