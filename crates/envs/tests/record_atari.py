"""Records what Gymnasium's preprocessing shows of Atari games, for the tests of `atari`.

Run from this folder, with `pip install "gymnasium==1.*" ale-py==0.12.1 opencv-python-headless`:

    python record_atari.py

Writes fixtures/atari.json: a list of runs, each of 1,000 steps of
`FrameStackObservation(AtariPreprocessing(gymnasium.make(id, frameskip=1)), 4)`, with

- `id`, `options`: the environment and its options, as this project calls them;
- `seed`: the seed of the sticky actions;
- `noops`: per episode, how many times nothing was done at its start;
- `actions`: one letter per step, `a` for action 0;
- `rewards`: `[step, reward]` where it is not 0;
- `ends`: `[step, "terminated" or "truncated"]`; a reset follows;
- `checks`: four hexadecimal digits per observation (also those of resets): the lower half of the
  CRC-32 of all observations so far.
"""

import json
import pathlib
import zlib

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gymnasium.register_envs(ale_py)

STEPS = 1000


class Counter(gymnasium.Wrapper):
    """Counts steps. At a reset of the wrappers around it, these are the no-ops: the frame number
    also counts frames in which SELECT is pressed to set the game's mode."""

    count = 0

    def step(self, action):
        self.count += 1
        return super().step(action)


RUNS = [
    ("ALE/Pong-v5", {}),
    ("ALE/Breakout-v5", {"life_loss": "resets"}),
    ("ALE/Seaquest-v5", {}),
    ("ALE/Qbert-v5", {"life_loss": "resets"}),
    ("SpaceInvadersNoFrameskip-v4", {}),
    ("ALE/MsPacman-v5", {"frame_skip": 3}),
    ("ALE/MontezumaRevenge-v5", {"actions": "full"}),
    ("FreewayNoFrameskip-v4", {"max_frames": 1000}),
    ("ALE/Enduro-v5", {"noop_max": 0}),
    ("ALE/Boxing-v5", {"frame_skip": 1}),
    ("ALE/Carnival-v5", {}),
    ("ALE/JourneyEscape-v5", {}),
]


def make(env_id, options):
    env = gymnasium.make(
        env_id,
        frameskip=1,
        full_action_space=options.get("actions") == "full",
        max_num_frames_per_episode=options.get("max_frames", 108_000),
        **{name: options[name] for name in ("mode", "difficulty") if name in options},
    )
    counter = Counter(env)
    env = AtariPreprocessing(
        counter,
        noop_max=options.get("noop_max", 30),
        frame_skip=options.get("frame_skip", 4),
        terminal_on_life_loss=options.get("life_loss") == "resets",
    )
    return FrameStackObservation(env, 4), counter


def record(index, env_id, options):
    env, counter = make(env_id, options)
    rng = np.random.default_rng(index)
    check = 0
    checks, noops, actions, rewards, ends = [], [], [], [], []

    def see(obs):
        nonlocal check
        check = zlib.crc32(np.ascontiguousarray(obs).tobytes(), check)
        checks.append(f"{check & 0xFFFF:04x}")

    def reset(**seed):
        counter.count = 0
        obs, info = env.reset(**seed)
        noops.append(counter.count)
        see(obs)
        return info

    seed = int(reset(seed=index)["seeds"][1])
    action = 0
    for step in range(STEPS):
        # Held for a while, so that something comes of it.
        if rng.random() < 0.4:
            action = int(rng.integers(env.action_space.n))
        obs, reward, terminated, truncated, _ = env.step(action)
        actions.append(chr(ord("a") + action))
        see(obs)
        if reward != 0:
            rewards.append([step, int(reward)])
        if terminated or truncated:
            ends.append([step, "terminated" if terminated else "truncated"])
            reset()
    return {
        "id": env_id,
        "options": options,
        "seed": seed,
        "noops": noops,
        "actions": "".join(actions),
        "rewards": rewards,
        "ends": ends,
        "checks": "".join(checks),
    }


if __name__ == "__main__":
    runs = [record(index, *run) for index, run in enumerate(RUNS)]
    lines = ",\n".join(json.dumps(run) for run in runs)
    target = pathlib.Path("fixtures/atari.json")
    target.write_text(f"[\n{lines}\n]\n")
    for run in runs:
        print(run["id"], len(run["rewards"]), "rewards,", len(run["ends"]), "ends", run["ends"][:3])
