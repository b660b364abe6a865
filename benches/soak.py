#!/usr/bin/env python3
"""Trains for a while and fails if the memory of the program does not stay where it is.

    python3 benches/soak.py                               20 minutes of Ape-X on two cores
    python3 benches/soak.py --minutes 5 --settle 2        a shorter look
    python3 benches/soak.py --program target/release/starling --env ALE/Pong-v5 -- envs=32

The replay is small, so that it is full long before memory is compared; checkpoints are written all
the while. Once a second the memory that the process holds (VmRSS, from /proc) is read. Within a second
it goes up and down by what an update computes with, so that minutes are compared by their medians:
those after `--settle` minutes have to be within `--tolerance` percent of the first of them. Then the
run is asked to stop as Ctrl-C does, and has to end with a checkpoint.

What follows `--` is passed on as settings. Linux only; nothing beyond Python 3 is needed.
"""

import argparse
import csv
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INTERRUPTED = 130


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--program", default=str(ROOT / "starling"))
    arguments.add_argument("--env", default="MinAtar/Breakout-v1")
    arguments.add_argument("--algo", default="apex-dqn")
    arguments.add_argument("--minutes", type=int, default=20, help="how long to train")
    arguments.add_argument("--settle", type=int, default=3, help="minutes not looked at")
    arguments.add_argument("--tolerance", type=float, default=2.0, help="percent, up and down")
    arguments.add_argument("--cores", type=int, default=2)
    arguments.add_argument("settings", nargs="*", help="more settings, key=value")
    options = arguments.parse_args()
    if options.minutes < options.settle + 2:
        arguments.error("--minutes has to be at least 2 more than --settle")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        sys.exit(soak(options, pathlib.Path(folder)))


def soak(options: argparse.Namespace, folder: pathlib.Path) -> int:
    """Trains in that folder; returns the exit code."""
    command = [
        options.program, "train", options.env, "--algo", options.algo, "--steps", str(10**12),
        "--runs", str(folder), "mode=threads", "asynchronous=true", "threads=1", "envs=32",
        "algo.capacity_steps=10000", "algo.learning_starts_steps=2000", "stop_at_return=null",
        "log_every_steps=5000", "checkpoint.every_steps=5000", *options.settings,
    ]  # fmt: skip
    print(" ".join(command), flush=True)
    with open(folder / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        samples = watch(process, 60.0 * options.minutes)
        alive = process.poll() is None
        if alive:
            process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=300)
    if not alive or code != INTERRUPTED:
        print((folder / "output.txt").read_text())
        print(f"FAILED: the program ended by itself, or badly: exit code {code}")
        return 1
    show(samples, options.minutes, folder)
    return judge(samples, options)


def watch(process: subprocess.Popen, seconds: float) -> list[tuple[float, float]]:
    """Time and megabytes, once a second for so long or until the process ends."""
    samples = []
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds and process.poll() is None:
        if (memory := resident_megabytes(process.pid)) is not None:
            samples.append((now, memory))
        time.sleep(1.0)
    return samples


def resident_megabytes(process: int) -> float | None:
    """The memory of the process; if that is a script that started the program, of its child."""
    try:
        children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
        status = pathlib.Path(f"/proc/{children[0] if children else process}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) / 1024 if lines else None


def minute_by_minute(samples: list[tuple[float, float]], minutes: int) -> list[list[float]]:
    """The samples of each minute."""
    return [[mb for at, mb in samples if minute <= at / 60 < minute + 1] for minute in range(minutes)]


def show(samples: list[tuple[float, float]], minutes: int, folder: pathlib.Path) -> None:
    """One line per minute, and how far the run came."""
    print(f"{'minute':>6} {'lowest MB':>10} {'median MB':>10} {'highest MB':>10}")
    for minute, memory in enumerate(minute_by_minute(samples, minutes), 1):
        middle = statistics.median(memory)
        print(f"{minute:>6} {min(memory):>10.1f} {middle:>10.1f} {max(memory):>10.1f}")
    for table in folder.rglob("progress.csv"):
        last = list(csv.DictReader(table.open()))[-1]
        steps, updates = last["env_steps"], last["Diagnostics/CumUpdates"]
        seconds = float(last["Diagnostics/CumTime (s)"])
        print(f"{steps} steps and {updates} updates in {seconds:.0f} s")


def judge(samples: list[tuple[float, float]], options: argparse.Namespace) -> int:
    """Compares the medians of the minutes that count with the first of them; the exit code."""
    minutes = minute_by_minute(samples, options.minutes)[options.settle :]
    reference, *later = (statistics.median(memory) for memory in minutes)
    moved = [100 * (median / reference - 1) for median in later]
    flat = all(abs(percent) <= options.tolerance for percent in moved)
    print(
        f"{'flat' if flat else 'FAILED: not flat'}: {reference:.1f} MB in minute "
        f"{options.settle + 1}, later minutes from {min(moved):+.2f} % to {max(moved):+.2f} %"
    )
    return 0 if flat else 1


if __name__ == "__main__":
    main()
