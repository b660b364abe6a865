"""Trained agents as ONNX files, which `starling export` writes: `starling.OnnxAgent(file).act(obs)`.

Needs onnxruntime (`pip install "starling-rl[onnx]"`) and nothing else.
"""

import json
import pathlib

import numpy as np


class OnnxAgent:
    """A trained policy with its memory, for one environment or for several at once.

    Normalisation, bounds of actions and the choice of the action are in the file. `metadata` is what the
    file says about itself: environment, algorithm, steps, spaces.

    An agent that infers its task (PEARL) has a second file, FILE-encoder.onnx. It adapts over the episodes
    of a task: call `reset` before each episode, `transition` after each step, and `new_task` when the task
    changes. In the first `prior_episodes` episodes of a task it explores.
    """

    def __init__(self, file, threads=1, *, prior_episodes=2, seed=None):
        self._session = _session(file, threads)
        self.metadata = dict(self._session.get_modelmeta().custom_metadata_map)
        inputs = self._session.get_inputs()
        self._types = {one.name: _TYPES[one.type] for one in inputs}
        self._shapes = {one.name: one.shape[1:] for one in inputs}
        parts = _parts(json.loads(self.metadata["observation_space"]))
        self._parts = {name: shape for name, shape in parts if name in self._types}
        known = {*self._parts, "legal_actions", "z"}
        self._carried = [one.name for one in inputs if one.name not in known]
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._state = None
        self._task = None
        if "z" in self._types:
            file = pathlib.Path(file)
            encoder = file.with_name(f"{file.stem}-encoder{file.suffix}")
            if not encoder.exists():
                raise FileNotFoundError(f"{encoder} is missing: the agent infers its task with it")
            size = self._shapes["z"][0]
            self._task = _Task(_session(encoder, threads), size, prior_episodes, seed)

    def act(self, obs, action_mask=None):
        """The action for an observation, or the actions for a batch of them."""
        arrays = {name: np.asarray(_part(obs, name)) for name in self._parts}
        name, shape = next(iter(self._parts.items()))
        single = arrays[name].ndim == len(shape)
        feed = {
            name: (array[None] if single else array).astype(self._types[name])
            for name, array in arrays.items()
        }
        count = len(feed[name])
        if "legal_actions" in self._types:
            shape = (count, *self._shapes["legal_actions"])
            legal = np.ones(shape) if action_mask is None else np.asarray(action_mask).reshape(shape)
            feed["legal_actions"] = legal.astype(self._types["legal_actions"])
        feed.update(self._memory(count))
        if self._task:
            feed["z"] = self._task.z(count)
        outputs = dict(zip(self._outputs, self._session.run(None, feed)))
        action = outputs["action"]
        for name in self._carried:
            if name == "last_action":
                self._state[name] = action.astype(self._types[name])
            elif name != "last_reward" and f"{name}_next" in outputs:
                self._state[name] = outputs[f"{name}_next"]
        return action[0] if single else action

    def rewarded(self, reward):
        """The rewards that followed the last actions. Only policies that use rewards need them."""
        if self._state is not None and "last_reward" in self._state:
            self._state["last_reward"][:] = np.asarray(reward, self._types["last_reward"])

    def reset(self, mask=None):
        """The next observations are the first of episodes, of all environments or of those in the mask."""
        if self._task:
            self._task.next_episode(mask)
        if mask is None:
            self._state = None
        elif self._state is not None:
            first = self._first(len(mask))
            for name, state in self._state.items():
                state = self._state[name] = state.copy()
                state[np.asarray(mask)] = first[name][np.asarray(mask)]

    def transition(self, obs, action, reward, next_obs, terminated=False):
        """What a step led to, of one environment or of all. Only agents that infer their task need it."""
        if self._task:
            single = np.ndim(reward) == 0
            self._task.transition(obs, action, reward, next_obs, terminated, single)

    def new_task(self, mask=None):
        """What is known of the task is forgotten, in all environments or in those in the mask."""
        if self._task:
            self._task.forget(mask)

    def _memory(self, count):
        if self._state is None:
            self._state = self._first(count)
        found = {len(state) for state in self._state.values()}
        if found - {count}:
            raise ValueError(
                f"the agent remembers {found.pop()} environments, {count} observations were given; "
                "call reset() first"
            )
        return self._state

    def _first(self, count):
        # No action was taken before the first.
        fill = lambda name: -1 if np.issubdtype(self._types[name], np.integer) else 0
        return {
            name: np.full((count, *self._shapes[name]), fill(name), self._types[name])
            for name in self._carried
        }


class _Task:
    """What is known of the tasks of some environments, and the z of their present episodes."""

    def __init__(self, encoder, size, prior_episodes, seed):
        self._encoder = encoder
        self._types = {one.name: _TYPES[one.type] for one in encoder.get_inputs()}
        self._outputs = [one.name for one in encoder.get_outputs()]
        self._size, self._prior_episodes = size, prior_episodes
        self._rng = np.random.default_rng(seed)
        self._z = None

    def z(self, count):
        if self._z is None:
            self._begin(count)
        if len(self._z) != count:
            raise ValueError(
                f"the agent knows the tasks of {len(self._z)} environments, {count} observations were "
                "given; call new_task() first"
            )
        return self._z

    def next_episode(self, mask):
        if self._z is None:
            return
        chosen = np.ones(len(self._z), bool) if mask is None else np.asarray(mask)
        self._episodes[chosen] += 1
        self._draw(chosen)

    def forget(self, mask):
        if mask is None:
            self._z = None
        elif self._z is not None:
            chosen = np.asarray(mask)
            for known in self._known.values():
                known[chosen] = 0
            self._mean[chosen], self._std[chosen], self._episodes[chosen] = 0, 1, 0
            self._draw(chosen)

    def transition(self, obs, action, reward, next_obs, terminated, single):
        given = {"action": action, "reward": reward, "terminated": terminated}
        feed = {}
        for name, dtype in self._types.items():
            if name in self._known_names():
                continue
            if name in given:
                value = given[name]
            elif name.startswith("next_"):
                value = _part(next_obs, name[len("next_") :])
            else:
                value = _part(obs, name)
            value = np.asarray(value, dtype)
            feed[name] = value[None] if single else value
        count = len(feed["reward"])
        self.z(count)
        if "terminated" in feed:
            feed["terminated"] = np.broadcast_to(feed["terminated"], (count,))
        outputs = dict(zip(self._outputs, self._encoder.run(None, {**feed, **self._known})))
        self._known = {name: outputs[f"{name}_next"] for name in self._known}
        self._mean, self._std = outputs["z_mean"], outputs["z_std"]

    def _known_names(self):
        return [name for name in self._types if f"{name}_next" in self._outputs]

    def _begin(self, count):
        zeros = lambda: np.zeros((count, self._size), np.float32)
        self._known = {name: zeros() for name in self._known_names()}
        self._mean, self._std = zeros(), zeros() + 1
        self._episodes, self._z = np.zeros(count, int), zeros()
        self._draw(np.ones(count, bool))

    def _draw(self, chosen):
        """Draws z: from the prior, or from what is known."""
        z = self._rng.standard_normal(self._z.shape).astype(np.float32)
        adapted = self._mean + self._std * z
        z = np.where((self._episodes < self._prior_episodes)[:, None], z, adapted)
        self._z = np.where(chosen[:, None], z, self._z)


def _session(file, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


def _parts(space, path=""):
    """Names of the inputs that are observations, and their shapes."""
    if space["type"] == "Dict":
        for name, part in space["spaces"].items():
            yield from _parts(part, f"{path}.{name}" if path else name)
    else:
        yield path or "observation", space.get("shape", [])


def _part(obs, name):
    if not isinstance(obs, dict):
        return obs
    for step in name.split("."):
        obs = obs[step]
    return obs
