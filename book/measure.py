#!/usr/bin/env python3
"""Trains the runs that the book's chapter on results reports, and draws its curves.

    python3 book/measure.py run SET FOLDER [JOBS]   trains, JOBS runs at a time (default 1), and keeps
                                                    the CSV files of each in FOLDER; runs that are
                                                    already there are skipped
    python3 book/measure.py draw SET FOLDER         draws book/src/curves/*.svg from them

SET is one of

    gpu       Atari on a GPU: about 20 minutes on a machine with one H200 and 16 cores
    minatar   PPO and IMPALA on MinAtar: about 30 minutes on two cores
    small     value-based algorithms on CartPole and on tasks that need memory or exploration, three
              seeds: about an hour on two cores
    values    value-based algorithms on MinAtar, three seeds: about an hour and a half on two cores

It needs only the standard library.
"""

import concurrent.futures
import csv
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#ff7f0e")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 32, 44

# The settings of PPO's preset when these curves were measured.
LOCKSTEP = [
    "asynchronous=false", "fixed_lag=null", "decorrelate_steps=0", "algo.rollout_steps=128",
]
PONG = [
    "PongNoFrameskip-v4", "--steps", "8000000", "stop_at_return=18", *LOCKSTEP,
    "algo.ratio_clip=0.2", "algo.learning_rate={start: 0.001, end: 0.0}",
]
BREAKOUT = [
    "BreakoutNoFrameskip-v4", "--steps", "16000000", *LOCKSTEP,
    "algo.ratio_clip=0.1", "algo.learning_rate={start: 0.0007, end: 0.0}",
]
APEX = [
    "ALE/Pong-v5", "--algo", "apex-dqn", "--steps", "15000000",
    "eval.every_steps=1000000", "--profile",
]
MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
MINATAR_STEPS = {"ppo": "2500000", "impala": "2000000"}
# Value-based algorithms are compared by evaluations: most of Ape-X's environments explore a lot, so its
# training returns are low.
VALUES_STEPS = 200_000
VALUES = {
    game: ("dqn", "rainbow-iqn", "apex-dqn") for game in ("Asterix", "Breakout", "SpaceInvaders")
}
VALUES["Seaquest"] = ("dqn", "r2d2")
SEEDS = (1, 2, 3)
# The figures of small tasks: the environment, and the algorithms compared on it.
SMALL = {
    "cartpole-values": ("CartPole-v1", ("dqn", "c51", "qr-dqn", "iqn")),
    "cartpole-rainbow": ("CartPole-v1", ("rainbow", "epsilon-rainbow", "rainbow-iqn")),
    "cartpole-apex": ("CartPole-v1", ("apex-dqn", "apex-rainbow", "apex-rainbow-iqn")),
    "cartpole-recurrent": ("CartPole-v1", ("r2d2", "ngu")),
    "tmaze": ("TMaze-v0", ("r2d2", "dqn")),
    "cartpole-masked": ("CartPoleMasked-v1", ("r2d2", "dqn")),
    "keydoor": ("KeyDoor-v0", ("ngu", "dqn")),
}

RUNS = {
    "gpu": {
        **{f"pong-s{seed}": PONG + ["--seed", str(seed)] for seed in (1, 2, 3)},
        "breakout-s1": BREAKOUT + ["--seed", "1"],
        "apex-pong-s1": APEX + ["--seed", "1"],
    },
    "minatar": {
        f"{game}-{algo}": [f"MinAtar/{game}-v1", "--algo", algo, "--steps", steps]
        for game in MINATAR
        for algo, steps in MINATAR_STEPS.items()
    },
    "small": {
        f"{env}-{algo}-s{seed}": [env, "--algo", algo, "--seed", str(seed)]
        for env, algos in SMALL.values()
        for algo in algos
        for seed in SEEDS
    },
    "values": {
        f"{game}-{algo}-s{seed}": [
            f"MinAtar/{game}-v1", "--algo", algo, "--steps", str(VALUES_STEPS), "--seed", str(seed),
            f"eval.every_steps={VALUES_STEPS // 10}", "eval.episodes=50", "device=cpu",
        ]
        for seed in SEEDS
        for game, algos in VALUES.items()
        for algo in algos
    },
}


def run(which: str, folder: pathlib.Path, jobs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Builds the program before several start it at once.
    subprocess.run([ROOT / "starling", "--version"], check=True)

    def train(name: str, arguments: list[str]) -> None:
        if (folder / f"{name}.csv").exists():
            return
        with tempfile.TemporaryDirectory() as runs:
            command = [ROOT / "starling", "train", *arguments, "--runs", runs]
            print("./starling train", *arguments, flush=True)
            quiet = {"stdout": subprocess.DEVNULL} if jobs > 1 else {}
            subprocess.run(command, check=True, **quiet)
            for file, ending in (("eval.csv", "-eval"), ("progress.csv", "")):
                for found in pathlib.Path(runs).rglob(file):
                    shutil.copy(found, folder / f"{name}{ending}.csv")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(train, *item) for item in RUNS[which].items()]:
            done.result()
    if which == "gpu":
        subprocess.run([ROOT / "starling", "bench", "train"], check=True)


def draw(which: str, folder: pathlib.Path) -> None:
    sets = {"gpu": draw_gpu, "minatar": draw_minatar, "small": draw_small, "values": draw_values}
    figures = sets[which](folder)
    target = ROOT / "book" / "src" / "curves"
    target.mkdir(exist_ok=True)
    for figure, (title, below, curves) in figures.items():
        (target / f"{figure}.svg").write_text(chart(title, below, curves))
        for label, curve in curves.items():
            x, score = curve[-1]
            print(f"{figure}, {label}: {score:.1f} at {x:g}")


def draw_gpu(folder: pathlib.Path) -> dict:
    seconds, score = "Diagnostics/CumTime (s)", "GameScoreAverage"
    below = "seconds of training; mean score of the last 100 games"
    figures = {}
    for figure, title in (("pong", "Pong, PPO, three seeds"), ("breakout", "Breakout, PPO, one seed")):
        paths = sorted(folder.glob(f"{figure}-s*.csv"))
        curves = {path.stem.split("-s")[1]: read(path, seconds, score) for path in paths}
        if curves:
            labelled = {f"seed {seed}": curve for seed, curve in curves.items()}
            figures[figure] = (title, below, labelled)
    path = folder / "apex-pong-s1.csv"
    if not path.exists():
        return figures
    times = read(path, "Diagnostics/CumSteps", seconds)
    evaluations = read(folder / "apex-pong-s1-eval.csv", "env_steps", "ReturnAverage")
    figures["apex-pong"] = (
        "Pong, Ape-X DQN, one seed",
        "seconds of training; mean return",
        {
            "evaluation, 10 episodes": [(at(times, x), y) for x, y in evaluations],
            "training, all environments": read(path, seconds, "ReturnAverage"),
        },
    )
    return figures


def draw_minatar(folder: pathlib.Path) -> dict:
    figures = {}
    for game in MINATAR:
        curves = {}
        for algo in MINATAR_STEPS:
            curve = read(folder / f"{game}-{algo}.csv", "Diagnostics/CumSteps", "ReturnAverage")
            curves[algo.upper()] = [(steps / 1e6, y) for steps, y in curve]
        below = "million steps; mean return of the last 100 episodes, one seed"
        figures[f"minatar-{game.lower()}"] = (f"MinAtar, {game}", below, curves)
    return figures


def draw_small(folder: pathlib.Path) -> dict:
    figures = {}
    for figure, (env, algos) in SMALL.items():
        curves = {}
        for algo in algos:
            runs = read_seeds(folder, f"{env}-{algo}-s{{}}.csv", "Diagnostics/CumSteps")
            for seed, run in zip(SEEDS, runs):
                print(f"{env}, {algo}, seed {seed}: {run[-1][1]:.1f} at {run[-1][0]:g}")
            # A run that reached its goal has ended, and keeps its last value.
            steps = sorted({x for run in runs for x, _ in run})
            means = [sum(at(run, x) for run in runs) / len(runs) for x in steps]
            curves[algo] = [(x / 1e3, mean) for x, mean in zip(steps, means)]
        below = "thousand steps; mean return of the last 100 episodes, mean of three seeds"
        figures[figure] = (env, below, curves)
    return figures


def draw_values(folder: pathlib.Path) -> dict:
    figures = {}
    for game, algos in VALUES.items():
        curves = {}
        for algo in algos:
            runs = read_seeds(folder, f"{game}-{algo}-s{{}}-eval.csv", "env_steps")
            for seed, run in zip(SEEDS, runs):
                last = [y for _, y in run[-3:]]
                print(f"{game}, {algo}, seed {seed}: {sum(last) / 3:.1f} in the last three")
            rows = zip(*runs)
            curves[algo] = [(row[0][0] / 1e3, sum(y for _, y in row) / len(row)) for row in rows]
        below = "thousand steps; mean of three seeds of evaluations over 50 episodes"
        figures[f"values-{game.lower()}"] = (f"MinAtar, {game}", below, curves)
    return figures


def read(path: pathlib.Path, x: str, y: str) -> list[tuple[float, float]]:
    """Two columns of a table, without rows where the second is missing."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(row[x]), float(row[y])) for row in rows if row[y] not in ("", "nan")]


def read_seeds(folder: pathlib.Path, name: str, x: str) -> list[list[tuple[float, float]]]:
    """The mean returns of the same run with every seed."""
    return [read(folder / name.format(seed), x, "ReturnAverage") for seed in SEEDS]


def at(curve: list[tuple[float, float]], x: float) -> float:
    """The curve's value where it first reaches x."""
    return next((value for place, value in curve if place >= x), curve[-1][1])


def chart(title: str, below: str, curves: dict[str, list[tuple[float, float]]]) -> str:
    xs = [x for curve in curves.values() for x, _ in curve]
    ys = [y for curve in curves.values() for _, y in curve]
    x_step, y_step = step(max(xs)), step(max(ys) - min(ys))
    # Runs end a few steps late, with their last rollout.
    x_end = -(-0.99 * max(xs) // x_step) * x_step
    low, high = min(ys) // y_step * y_step, -(-max(ys) // y_step) * y_step

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / x_end * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
    ]
    tick = low
    while tick <= high + y_step / 2:
        x, y = place(0, tick)
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
        tick += y_step
    tick = 0.0
    while tick <= x_end + x_step / 2:
        x, y = place(tick, low)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{tick:g}</text>')
        tick += x_step
    middle = (LEFT + WIDTH - RIGHT) // 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{below}</text>')
    across = WIDTH - RIGHT
    for (label, curve), colour in reversed(list(zip(curves.items(), COLOURS))):
        points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{across}" y="20" text-anchor="end" fill="{colour}">{label}</text>'
        )
        across -= 7 * len(label) + 12
    parts.append("</svg>\n")
    return "\n".join(parts)


def step(span: float) -> float:
    """A round number that divides a span into about six."""
    rough = span / 6
    power = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", which, folder, *jobs] if which in RUNS and len(jobs) < 2:
            run(which, pathlib.Path(folder), int(*jobs or [1]))
        case ["draw", which, folder] if which in RUNS:
            draw(which, pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
