"""The worker process of Starling's Python environments. It needs numpy and gymnasium.

It is started with a pipe of commands as standard input and a pipe of answers as standard output. Both are
moved away, so that what an environment prints goes to standard error, which Starling reads as a log.

The first message is a table (JSON after four bytes of length) that says what to make, and where in the
shared memory each array is. Then every command is one byte:

    s  step all environments           r  reset those that `ask` names
    p  a picture of the one that `ask` names

The answer is one byte: k (done), or e (some environments failed: a list in JSON after its length), or p
(a picture: height, width and its bytes).
"""

import fcntl
import inspect
import json
import mmap
import os
import signal
import struct
import sys
import traceback


class Refused(Exception):
    """Something that Starling cannot use, said in words."""


def main():
    commands, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    length = read(commands, 4)
    if length is None:
        return
    config = json.loads(read(commands, struct.unpack("<I", length)[0]))
    die_with_parent(config["life"])
    try:
        import faulthandler

        import gymnasium
    except ImportError as error:
        found = {"missing": error.name, "text": traceback.format_exc(), "python": sys.executable}
        answer(answers, b"e", found)
        return
    faulthandler.enable()
    if not config["describe"]:
        Worker(config, commands, answers).serve()
        return
    try:
        answer(answers, b"d", describe(config))
    except Refused as error:
        answer(answers, b"e", {"refused": str(error)})
    except BaseException as error:
        answer(answers, b"e", {"raised": trace(error)})


def read(pipe, count):
    """Exactly this many bytes; None where the pipe ends."""
    data = b""
    while len(data) < count:
        part = os.read(pipe, count - len(data))
        if not part:
            return None
        data += part
    return data


def answer(pipe, kind, table):
    text = json.dumps(table).encode()
    send(pipe, kind + struct.pack("<I", len(text)) + text)


def send(pipe, data):
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def die_with_parent(life):
    """Nothing is ever written to this pipe. When Starling is gone it is closed, and the kernel sends
    SIGIO, which ends this process whatever it is doing."""
    os.set_inheritable(life, False)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def trace(error):
    """The traceback, without the frames of this file from which the environment was called."""
    frames, own = error.__traceback__, trace.__code__.co_filename
    while frames.tb_next is not None and frames.tb_frame.f_code.co_filename == own:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


# ---- Making an environment ----


def maker(config):
    """A function that makes one environment, without the wrappers whose work Starling does: returns
    the environment and its limit on the steps of an episode."""
    import gymnasium
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    scheme, _, name = config["id"].partition(":")
    kwargs = dict(config["kwargs"])
    if scheme == "gym":
        if config["render"]:
            kwargs.setdefault("render_mode", "rgb_array")

        def build():
            try:
                return gymnasium.make(name, disable_env_checker=True, **kwargs)
            except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as error:
                advice = "if a package registers it, name the package: gym:PACKAGE:ID"
                raise Refused(f"{error} ({advice})") from None
            except gymnasium.error.UnregisteredEnv as error:
                raise Refused(str(error)) from None

    else:
        target = imported(name)
        if config["render"] and accepts(target, "render_mode"):
            kwargs.setdefault("render_mode", "rgb_array")

        def build():
            return target(**kwargs)

    def make():
        env = build()
        for needed in ("reset", "step", "observation_space", "action_space"):
            if not hasattr(env, needed):
                raise Refused(
                    f"'{name}' gives a {type(env).__name__}, which has no {needed}: it should give an "
                    "environment with Gymnasium's interface"
                )
        limit = None
        while isinstance(env, (OrderEnforcing, TimeLimit)):
            if isinstance(env, TimeLimit):
                limit = env._max_episode_steps
            env = env.env
        return env, limit

    return make


def imported(name):
    """What `module:attribute` or `file.py:attribute` names."""
    import importlib
    import importlib.util

    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise Refused(f"'python:{name}' should be python:MODULE:NAME or python:FILE.py:NAME")
    if place.endswith(".py"):
        path = os.path.abspath(place)
        if not os.path.isfile(path):
            raise Refused(f"there is no file {path}")
        sys.path.insert(0, os.path.dirname(path))
        module_name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Refused(f"'{place}' has no '{attribute}'")
        found = getattr(found, part)
    if not callable(found):
        raise Refused(f"'{attribute}' of '{place}' is not a class or function that makes environments")
    return found


def accepts(target, parameter):
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == parameter or p.kind == p.VAR_KEYWORD for p in parameters)


def describe(config):
    """What Starling has to know before it starts workers."""
    import gymnasium
    import numpy

    env, limit = maker(config)()
    found = spaces_of(env, config)
    first = env.reset(seed=0)
    observation, info = pair(first)
    masks = None
    if config["masks"] and found["action"]["kind"] == "discrete":
        count = found["action"]["n"]
        if numpy.shape(info.get("action_mask")) == (count,):
            masks = "info"
        elif isinstance(observation, dict) and numpy.shape(observation.get("action_mask")) == (count,):
            masks = "observation"
    spec = getattr(env, "spec", None)
    metadata = getattr(env, "metadata", None) or {}
    fps = metadata.get("render_fps")
    env.close()
    return {
        **found,
        "limit": limit,
        "threshold": getattr(spec, "reward_threshold", None),
        "masks": masks,
        "fps": float(fps) if isinstance(fps, (int, float)) and fps > 0 else None,
        "python": sys.version.split()[0],
        "gymnasium": gymnasium.__version__,
        "numpy": numpy.__version__,
    }


def spaces_of(env, config):
    leaves = observation_leaves(env.observation_space, config["leave_out"])
    return {
        "observation": [leaf.description() for leaf in leaves],
        "action": Actions(env.action_space).description(),
    }


def pair(result):
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise Refused("its reset does not return an observation and a dict (observation, info)")
    return result


# ---- Observations ----

ADVICE = (
    "leave it out with env.leave_out, or wrap the environment so that it returns a Box, for example "
    "with gymnasium.wrappers.TransformObservation"
)


def observation_leaves(space, leave_out):
    """The arrays of an observation, in order."""
    leaves, left = [], set(leave_out)

    def visit(space, path):
        from gymnasium import spaces

        name = ".".join(names(path))
        if name in left:
            left.discard(name)
            return
        if isinstance(space, spaces.Dict):
            for key, part in space.spaces.items():
                visit(part, path + (key,))
        elif isinstance(space, spaces.Tuple):
            for key, part in enumerate(space.spaces):
                visit(part, path + (key,))
        else:
            kinds = (
                (spaces.Box, BoxLeaf),
                (spaces.Discrete, DiscreteLeaf),
                (spaces.MultiDiscrete, MultiDiscreteLeaf),
                (spaces.MultiBinary, MultiBinaryLeaf),
            )
            for kind, leaf in kinds:
                if isinstance(space, kind):
                    leaves.append(leaf(space, path))
                    return
            where = f"part '{name}' of its observations" if path else "its observation space"
            raise Refused(f"{where} is a {type(space).__name__} space, which is not supported: {ADVICE}")

    visit(space, ())
    if left:
        raise Refused(f"env.leave_out names {sorted(left)}, which its observations do not have")
    if not leaves:
        raise Refused("its observations have no parts")
    return leaves


def names(path):
    return [str(key).replace(".", "_") for key in path]


class Leaf:
    """One array of an observation."""

    def __init__(self, path):
        self.path = path
        self.where = f"part '{'.'.join(names(path))}' of its observation" if path else "its observation"

    def description(self):
        return {"path": names(self.path), **self.space()}

    def of(self, observation):
        for key in self.path:
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError):
                raise Refused(f"{self.where} is missing") from None
        return observation


class BoxLeaf(Leaf):
    def __init__(self, space, path):
        import numpy as np

        super().__init__(path)
        self.bounds = space
        self.shape, self.dtype = tuple(space.shape), space.dtype
        self.stored = np.dtype(np.uint8 if space.dtype in (np.uint8, bool) else np.float32)
        # Pictures have their channels last in Gymnasium, and first in networks.
        self.channels_last = (
            space.dtype == np.uint8
            and len(self.shape) == 3
            and self.shape[2] <= 4
            and self.shape[2] < min(self.shape[:2])
        )

    def stored_shape(self):
        if self.channels_last:
            return (self.shape[2], self.shape[0], self.shape[1])
        return self.shape

    def space(self):
        import numpy as np

        shape = self.stored_shape()
        low, high = (np.asarray(b, dtype=np.float64) for b in (self.bounds.low, self.bounds.high))
        if not low.size:
            raise Refused(f"{self.where} has no elements: its shape is {self.shape}")
        if self.channels_last:
            low, high = low.transpose(2, 0, 1), high.transpose(2, 0, 1)
        differ = low.min() != low.max() or high.min() != high.max()
        if differ and low.size <= 4096:
            low, high = low.ravel().tolist(), high.ravel().tolist()
        else:
            low, high = [low.min()], [high.max()]
        return {
            "kind": "box",
            "bytes": self.stored.itemsize == 1,
            "shape": list(shape),
            "low": [finite(x) for x in low],
            "high": [finite(x) for x in high],
        }

    def rows(self, memory, offset, count):
        import numpy as np

        rows = np.ndarray((count, *self.stored_shape()), self.stored, memory, offset)
        if self.channels_last:
            rows = rows.transpose(0, 2, 3, 1)
        return [rows[i : i + 1].reshape(()) if not self.shape else rows[i] for i in range(count)]

    def writer(self):
        from numpy import ndarray

        dtype, shape, fitted = self.dtype, self.shape, self.fitted

        def write(row, value):
            if type(value) is ndarray and value.dtype == dtype and value.shape == shape:
                row[...] = value
            else:
                row[...] = fitted(value)

        return write

    def fitted(self, value):
        """The value as its space says it is, or a refusal."""
        import numpy as np

        array = as_array(value, self.where)
        if array.shape != self.shape:
            raise Refused(f"{self.where} has shape {array.shape}, but its space has {self.shape}")
        if np.can_cast(array.dtype, self.dtype, "same_kind"):
            return array
        whole = array.dtype.kind in "iub" and self.dtype.kind in "iu"
        if whole and array.size:
            limits = np.iinfo(self.dtype)
            if limits.min <= array.min() and array.max() <= limits.max:
                return array
        raise Refused(
            f"{self.where} has dtype {array.dtype}, but its space has {self.dtype}: convert it, or "
            "correct the space"
        )


class DiscreteLeaf(Leaf):
    def __init__(self, space, path):
        super().__init__(path)
        self.n, self.start = int(space.n), int(space.start)

    def space(self):
        return {"kind": "discrete", "n": self.n}

    def rows(self, memory, offset, count):
        import numpy as np

        rows = np.ndarray(count, np.int64, memory, offset)
        return [rows[i : i + 1].reshape(()) for i in range(count)]

    def writer(self):
        n, start, where = self.n, self.start, self.where

        def write(row, value):
            try:
                choice = value.__index__() - start
            except (AttributeError, TypeError):
                raise Refused(f"{where} is {value!r}, not an integer") from None
            if not 0 <= choice < n:
                raise Refused(f"{where} is {value}, but its space has {start} to {start + n - 1}")
            row[...] = choice

        return write


class MultiDiscreteLeaf(Leaf):
    def __init__(self, space, path):
        super().__init__(path)
        self.nvec, self.shape = space.nvec, tuple(space.nvec.shape)
        self.start = getattr(space, "start", 0 * space.nvec)

    def space(self):
        return {"kind": "multi_discrete", "choices": [int(n) for n in self.nvec.ravel()]}

    def rows(self, memory, offset, count):
        import numpy as np

        rows = np.ndarray((count, *self.shape), np.int64, memory, offset)
        return [rows[i] for i in range(count)]

    def writer(self):
        def write(row, value):
            array = as_array(value, self.where)
            if array.shape != self.shape:
                raise Refused(f"{self.where} has shape {array.shape}, but its space has {self.shape}")
            if array.dtype.kind not in "iub":
                raise Refused(f"{self.where} has dtype {array.dtype}, but its space has integers")
            array = array - self.start
            if ((array < 0) | (array >= self.nvec)).any():
                raise Refused(f"{self.where} is {value}, which is not in its space")
            row[...] = array

        return write


class MultiBinaryLeaf(Leaf):
    def __init__(self, space, path):
        super().__init__(path)
        self.shape = tuple(space.shape)

    def space(self):
        return {"kind": "box", "bytes": True, "shape": list(self.shape), "low": [0], "high": [1]}

    def rows(self, memory, offset, count):
        import numpy as np

        rows = np.ndarray((count, *self.shape), np.uint8, memory, offset)
        return [rows[i] for i in range(count)]

    def writer(self):
        def write(row, value):
            array = as_array(value, self.where)
            if array.shape != self.shape:
                raise Refused(f"{self.where} has shape {array.shape}, but its space has {self.shape}")
            if ((array != 0) & (array != 1)).any():
                raise Refused(f"{self.where} is {value}, but its space has 0 and 1")
            row[...] = array

        return write


def as_array(value, where):
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise Refused(f"{where} is a {type(value).__name__}, not an array of numbers")
    return array


def finite(x):
    """JSON has no infinity."""
    x = float(x)
    return x if abs(x) <= 3.4028234e38 else None


# ---- Actions ----


class Actions:
    """An action space as choices or as numbers, side by side."""

    def __init__(self, space):
        self.parts = []
        self.build = self.visit(space, ())
        kinds = {part["kind"] for part in self.parts}
        if len(kinds) > 1:
            raise Refused(
                "its action space mixes discrete and continuous parts, which no algorithm supports: wrap the "
                "environment (gymnasium.wrappers.TransformAction) so that it has only one of them"
            )
        if not kinds:
            raise Refused("its action space is empty")
        self.discrete = kinds == {"choices"}
        self.width = sum(part["width"] for part in self.parts)
        self.alone = len(self.parts) == 1 and self.parts[0].get("alone", False)

    def description(self):
        if self.alone:
            return {"kind": "discrete", "n": self.parts[0]["choices"][0]}
        if self.discrete:
            choices = [n for part in self.parts for n in part["choices"]]
            return {"kind": "multi_discrete", "choices": choices}
        return {
            "kind": "box",
            "bytes": False,
            "shape": [self.width],
            "low": [finite(x) for part in self.parts for x in part["low"]],
            "high": [finite(x) for part in self.parts for x in part["high"]],
        }

    def visit(self, space, path):
        """A function from the numbers of one environment to its action."""
        import numpy as np
        from gymnasium import spaces

        at = sum(part["width"] for part in self.parts)
        if isinstance(space, spaces.Discrete):
            self.parts.append({"kind": "choices", "width": 1, "choices": [int(space.n)], "alone": not path})
            start = np.int64(space.start)
            return lambda numbers: numbers[at] + start
        if isinstance(space, spaces.MultiDiscrete):
            start = getattr(space, "start", 0 * space.nvec)
            return self.whole(space.nvec, start, space.shape, space.dtype, at)
        if isinstance(space, spaces.MultiBinary):
            return self.whole(np.full(space.shape, 2), 0, space.shape, space.dtype, at)
        if isinstance(space, spaces.Box) and space.dtype.kind in "iub":
            low, high = space.low.astype(np.int64), space.high.astype(np.int64)
            if (high - low).max(initial=0) >= 1024:
                raise Refused(
                    f"its action space has integers from {low.min()} to {high.max()}: at most 1024 values "
                    "are supported; wrap the environment so that it takes floats"
                )
            return self.whole(high - low + 1, low, space.shape, space.dtype, at)
        if isinstance(space, spaces.Box):
            width, shape, dtype = int(np.prod(space.shape)), space.shape, space.dtype
            low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
            self.parts.append({"kind": "numbers", "width": width, "low": low, "high": high})
            end = at + width
            if at == 0 and len(shape) == 1:
                return lambda numbers: numbers[:end].astype(dtype)
            return lambda numbers: numbers[at:end].astype(dtype).reshape(shape)
        if isinstance(space, spaces.Dict):
            made = {key: self.visit(part, path + (key,)) for key, part in space.spaces.items()}
            return lambda numbers: {key: make(numbers) for key, make in made.items()}
        if isinstance(space, spaces.Tuple):
            made = [self.visit(part, path + (key,)) for key, part in enumerate(space.spaces)]
            return lambda numbers: tuple(make(numbers) for make in made)
        where = f"part '{'.'.join(names(path))}' of its actions" if path else "its action space"
        raise Refused(
            f"{where} is a {type(space).__name__} space, which no algorithm supports: wrap the "
            "environment (gymnasium.wrappers.TransformAction) so that it takes a Box, Discrete or "
            "MultiDiscrete space"
        )

    def whole(self, counts, start, shape, dtype, at):
        import numpy as np

        width = int(np.prod(shape))
        choices = [int(n) for n in np.asarray(counts).ravel()]
        self.parts.append({"kind": "choices", "width": width, "choices": choices})
        end = at + width
        return lambda numbers: (numbers[at:end].reshape(shape) + start).astype(dtype)


# ---- Serving ----


class Worker:
    def __init__(self, config, commands, answers):
        self.config, self.commands, self.answers = config, commands, answers
        self.count = config["count"]
        self.envs = [None] * self.count
        # Why the next episode could not begin.
        self.not_begun = [None] * self.count
        self.failures = []

    def serve(self):
        try:
            self.prepare()
        except Refused as error:
            answer(self.answers, b"e", {"refused": str(error)})
            return
        except BaseException as error:
            answer(self.answers, b"e", {"raised": trace(error)})
            return
        calls = {b"s": self.step, b"r": self.reset, b"p": self.picture}
        commands, answers, read, write = self.commands, self.answers, os.read, os.write
        while True:
            command = read(commands, 1)
            if not command:
                break
            calls[command]()
            if command == b"p":
                continue
            if self.failures:
                answer(answers, b"e", self.failures)
                self.failures = []
            else:
                write(answers, b"k")
        for env in self.envs:
            if env is not None:
                try:
                    env.close()
                except Exception:
                    traceback.print_exc()

    def prepare(self):
        import numpy as np

        config, count = self.config, self.count
        at, first = config["offsets"], config["first"]
        memory = mmap.mmap(config["memory"], config["size"])
        os.close(config["memory"])
        self.make = maker(config)
        self.envs[0], _ = self.make()
        found = spaces_of(self.envs[0], config)
        if found != config["spaces"]:
            raise Refused("its spaces differ from those of the first instance")
        leaves = observation_leaves(self.envs[0].observation_space, config["leave_out"])
        shown = [(leaf, leaf.writer()) for leaf in leaves]
        self.simple = shown[0][1] if len(shown) == 1 and not shown[0][0].path else None
        self.shown = shown

        def rows(key):
            columns = [
                leaf.rows(memory, place[key] + first * place["bytes"], count)
                for leaf, place in zip(leaves, config["leaves"])
            ]
            # One row for each environment, with one array for each leaf.
            return columns[0] if self.simple else list(zip(*columns))

        self.rows, self.next_rows = rows("offset"), rows("next")
        actions = Actions(self.envs[0].action_space)
        self.action = actions.build
        kind = np.int64 if actions.discrete else np.float32
        width = actions.width
        place = at["actions"] + first * width * kind().itemsize
        self.numbers = np.ndarray((count, width), kind, memory, place)
        view = memoryview(memory)

        def part(name, size, form):
            start = at[name] + first * size
            return view[start : start + count * size].cast(form)

        self.rewards = part("rewards", 8, "d")
        self.seeds = part("seeds", 8, "q")
        self.flags = part("flags", 4, "B")
        self.ask = part("ask", 1, "B")
        self.at_work = view[at["at_work"] : at["at_work"] + 8].cast("q")
        self.masks = config["masks"]
        if self.masks:
            choices = config["choices"]
            masks = lambda key: np.ndarray((count, choices), np.uint8, memory, at[key] + first * choices)
            self.mask, self.next_mask = masks("mask"), masks("next_mask")
        # A picture is asked for after the last step of an episode, too.
        self.resets_itself = not config["render"]
        answer(self.answers, b"d", found)

    def write(self, rows, i, observation):
        if self.simple:
            self.simple(rows[i], observation)
        else:
            for (leaf, write), row in zip(self.shown, rows[i]):
                write(row, leaf.of(observation))

    def write_mask(self, masks, i, observation, info):
        mask = (info if self.masks == "info" else observation).get("action_mask")
        if mask is None:
            masks[i] = 1
        else:
            masks[i] = as_array(mask, "its action mask") != 0

    def step(self):
        flags, rewards, at_work, masks = self.flags, self.rewards, self.at_work, self.masks
        numbers, action, write, rows = self.numbers, self.action, self.write, self.rows
        simple = self.simple
        for i, env in enumerate(self.envs):
            if env is None:
                continue
            at_work[0] = i
            try:
                result = env.step(action(numbers[i]))
                if len(result) != 5:
                    raise Refused(
                        f"its step returns {len(result)} values, not observation, reward, terminated, "
                        "truncated and info; an environment of the old Gym needs shimmy's "
                        "GymV21CompatibilityV0 or a newer version"
                    )
                observation, reward, terminated, truncated, info = result
                if simple:
                    simple(rows[i], observation)
                else:
                    write(rows, i, observation)
                try:
                    rewards[i] = reward
                except TypeError:
                    raise Refused(f"its reward is {reward!r}, not a number") from None
                flag = 4 * i
                flags[flag] = 1 if terminated else 0
                flags[flag + 1] = 1 if truncated else 0
                flags[flag + 2] = 0
                if masks:
                    self.write_mask(self.mask, i, observation, info)
            except BaseException as error:
                self.fail(i, "step", error)
                continue
            if (terminated or truncated) and self.resets_itself:
                try:
                    self.begin(i, self.next_rows, self.next_mask if masks else None)
                    flags[flag + 2] = 1
                except BaseException as error:
                    # Told when Starling asks for the reset.
                    self.not_begun[i] = error
        at_work[0] = -1

    def begin(self, i, rows, masks):
        observation, info = pair(self.envs[i].reset(seed=self.seeds[i]))
        self.write(rows, i, observation)
        if masks is not None:
            self.write_mask(masks, i, observation, info)

    def reset(self):
        for i in range(self.count):
            asked = self.ask[i]
            if not asked:
                continue
            self.at_work[0] = i
            try:
                # 2: a new environment.
                if asked == 2 and self.envs[i] is not None:
                    old, self.envs[i] = self.envs[i], None
                    old.close()
                error, self.not_begun[i] = self.not_begun[i], None
                if asked == 1 and error is not None:
                    raise error
                if self.envs[i] is None:
                    self.envs[i], _ = self.make()
                self.begin(i, self.rows, self.mask if self.masks else None)
            except BaseException as error:
                self.fail(i, "reset", error)
        self.at_work[0] = -1

    def fail(self, i, call, error):
        if isinstance(error, Refused):
            self.failures.append([i, str(error)])
        else:
            self.failures.append([i, f"its {call} raised an exception\n{trace(error)}"])

    def picture(self):
        import numpy as np

        i = list(self.ask).index(1)
        self.at_work[0] = i
        try:
            picture = self.envs[i].render()
            if isinstance(picture, list) and picture:
                picture = picture[-1]
            array = np.ascontiguousarray(picture) if picture is not None else None
            if array is None or array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
                raise Refused(
                    "this environment has no picture: its render does not give an array of red, green and "
                    "blue bytes (render_mode rgb_array)"
                )
            send(self.answers, b"p" + struct.pack("<II", *array.shape[:2]) + array.tobytes())
        except BaseException as error:
            self.fail(i, "render", error)
            answer(self.answers, b"e", self.failures)
            self.failures = []
        self.at_work[0] = -1


main()
