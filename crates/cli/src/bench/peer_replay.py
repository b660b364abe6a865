"""Measures the replays of torchrl, cpprb and rlpyt as `starling bench replay` measures its own.

Prints lines of `name<TAB>number<TAB>what was measured`. What is not installed is left out, with a
line that begins with `#` and says so.
"""

import sys
import time

import numpy as np

BATCH, INSERT, SECONDS = 512, 64, float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
# Whole stacks of observation and next observation take 56 kB a step: so many fit anywhere.
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
LEAVES = 1_000_000


def rate(cycle):
    """Calls per second: the best of five parts, after one to warm up."""
    best = 0.0
    for part in range(6):
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS / 6:
            cycle()
            calls += 1
        if part:
            best = max(best, calls / (time.perf_counter() - start))
    return best


def report(name, number, what):
    print(f"{name}\t{number}\t{what}", flush=True)


def torchrl_tree():
    import torchrl
    from torchrl._torchrl import SumSegmentTreeFp32

    tree = SumSegmentTreeFp32(LEAVES)
    rng = np.random.default_rng(0)
    tree[np.arange(LEAVES)] = rng.random(LEAVES).astype(np.float32)
    total = tree.query(0, LEAVES)

    def cycle():
        found = tree.scan_lower_bound((rng.random(BATCH) * total).astype(np.float32))
        found = np.minimum(found, LEAVES - 1)
        tree[found] = rng.random(BATCH).astype(np.float32)

    what = f"bare tree of torchrl {torchrl.__version__} (32-bit sums)"
    report("torchrl-tree", rate(cycle), what)


def torchrl_sampler():
    import torch
    import torchrl
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    storage = LazyTensorStorage(LEAVES)
    storage.set(range(LEAVES), torch.zeros(LEAVES, dtype=torch.uint8))
    sampler = PrioritizedSampler(LEAVES, alpha=0.6, beta=0.4)
    sampler.extend(torch.arange(LEAVES))
    sampler.update_priority(torch.arange(LEAVES), torch.rand(LEAVES))

    def cycle():
        index, _ = sampler.sample(storage, BATCH)
        sampler.update_priority(index, torch.rand(BATCH))

    what = f"prioritized sampler of torchrl {torchrl.__version__}"
    report("torchrl-sampler", rate(cycle), what)


def torchrl_replay():
    import torch
    import torchrl
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(STEPS), batch_size=BATCH
    )
    pixels = torch.randint(0, 255, (INSERT, 4, 84, 84), dtype=torch.uint8)
    rows = TensorDict(
        {
            "obs": pixels,
            "next": pixels.clone(),
            "action": torch.zeros(INSERT, dtype=torch.int64),
            "reward": torch.zeros(INSERT),
        },
        batch_size=[INSERT],
    )
    for _ in range(STEPS // INSERT + 1):
        buffer.extend(rows.clone())

    def cycle():
        buffer.extend(rows.clone())
        batch = buffer.sample()
        batch["td_error"] = torch.rand(BATCH)
        buffer.update_tensordict_priority(batch)

    what = f"torchrl {torchrl.__version__}, whole stacks, {STEPS} steps, n-step sums not included"
    best = 0.0
    for threads in (1, 2):
        torch.set_num_threads(threads)
        best = max(best, rate(cycle))
    report("torchrl", best, what)


def cpprb_replay():
    from importlib.metadata import version

    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(
        STEPS,
        {
            "obs": {"shape": (4, 84, 84), "dtype": np.uint8},
            "next_obs": {"shape": (4, 84, 84), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {},
        },
        alpha=0.6,
        Nstep={"size": 3, "gamma": 0.99, "rew": "rew", "next": "next_obs"},
    )
    pixels = np.random.randint(0, 255, (INSERT, 4, 84, 84), dtype=np.uint8)
    zeros = np.zeros(INSERT)

    def add():
        buffer.add(obs=pixels, next_obs=pixels, act=zeros, rew=zeros, done=zeros)

    for _ in range(STEPS // INSERT + 1):
        add()

    def cycle():
        add()
        batch = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(batch["indexes"], np.random.rand(BATCH))

    what = f"cpprb {version('cpprb')}, whole stacks, n = 3, {STEPS} steps"
    report("cpprb", rate(cycle), what)


def rlpyt_replay():
    import torch
    from rlpyt.replays.non_sequence.frame import PrioritizedReplayFrameBuffer
    from rlpyt.utils.collections import namedarraytuple

    samples = namedarraytuple("Samples", ["observation", "action", "reward", "done"])
    envs, t = 8, INSERT // 8

    def block():
        return samples(
            observation=torch.randint(0, 255, (t, envs, 4, 84, 84), dtype=torch.uint8),
            action=torch.zeros(t, envs, dtype=torch.int64),
            reward=torch.zeros(t, envs),
            done=torch.zeros(t, envs, dtype=torch.bool),
        )

    rows = block()
    buffer = PrioritizedReplayFrameBuffer(
        example=rows[0, 0], size=STEPS, B=envs, n_step_return=3, discount=0.99,
        alpha=0.6, beta=0.4, default_priority=1.0,
    )
    for _ in range(STEPS // INSERT + 1):
        buffer.append_samples(rows)

    def cycle():
        buffer.append_samples(rows)
        buffer.sample_batch(BATCH)
        buffer.update_batch_priorities(torch.rand(BATCH))

    report("rlpyt", rate(cycle), f"rlpyt, unique frames, n = 3, {STEPS} steps")


for name, measure in [
    ("torchrl's sum tree", torchrl_tree),
    ("torchrl's sampler", torchrl_sampler),
    ("torchrl", torchrl_replay),
    ("cpprb", cpprb_replay),
    ("rlpyt", rlpyt_replay),
]:
    try:
        measure()
    except Exception as error:  # a peer that fails must not hide the others
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        print(f"# {name} was not measured: {reason}", flush=True)
