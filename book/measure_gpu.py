#!/usr/bin/env python3
"""Trains the games of the book's chapter on results on a GPU, and draws their curves.

    python3 book/measure_gpu.py run FOLDER     trains, and keeps each progress.csv in FOLDER
    python3 book/measure_gpu.py draw FOLDER    draws book/src/curves/*.svg from them

`run` takes about ten minutes on a machine with one H200 and 16 cores. It only needs the standard
library.
"""

import csv
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PONG = [
    "PongNoFrameskip-v4", "--preset", "atari/ppo.gpu", "--steps", "8000000",
    "stop_at_return=18", "log_every_steps=50000",
]
BREAKOUT = [
    "BreakoutNoFrameskip-v4", "--preset", "atari/ppo.gpu", "--steps", "16000000",
    "log_every_steps=100000", "algo.ratio_clip=0.1",
    "algo.learning_rate={start: 0.0007, end: 0.0}",
]
RUNS = {f"pong-s{seed}": PONG + ["--seed", str(seed)] for seed in (1, 2, 3)}
RUNS["breakout-s1"] = BREAKOUT + ["--seed", "1"]
FIGURES = {"pong": "Pong, PPO, three seeds", "breakout": "Breakout, PPO"}
COLOURS = ("#1f77b4", "#d62728", "#2ca02c")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 32, 44


def run(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in RUNS.items():
        with tempfile.TemporaryDirectory() as runs:
            command = [ROOT / "starling", "train", *arguments, "--runs", runs]
            print("./starling train", *arguments, flush=True)
            subprocess.run(command, check=True)
            (progress,) = pathlib.Path(runs).rglob("progress.csv")
            shutil.copy(progress, folder / f"{name}.csv")
    subprocess.run([ROOT / "starling", "bench", "train"], check=True)


def draw(folder: pathlib.Path) -> None:
    target = ROOT / "book" / "src" / "curves"
    target.mkdir(exist_ok=True)
    for figure, title in FIGURES.items():
        curves = [read(path) for path in sorted(folder.glob(f"{figure}-s*.csv"))]
        if not curves:
            sys.exit(f"{folder} has no {figure}-s*.csv")
        (target / f"{figure}.svg").write_text(chart(title, curves))
        for seed, curve in enumerate(curves, 1):
            seconds, score = curve[-1]
            print(f"{figure} seed {seed}: {score:.1f} after {seconds:.1f} s")


def read(path: pathlib.Path) -> list[tuple[float, float]]:
    """Seconds, and the mean score of the last 100 whole games."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    points = ((row["Diagnostics/CumTime (s)"], row["GameScoreAverage"]) for row in rows)
    return [(float(x), float(y)) for x, y in points if y not in ("", "nan")]


def chart(title: str, curves: list[list[tuple[float, float]]]) -> str:
    xs = [x for curve in curves for x, _ in curve]
    ys = [y for curve in curves for _, y in curve]
    x_step, y_step = step(max(xs)), step(max(ys) - min(ys))
    x_end = -(-max(xs) // x_step) * x_step
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
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">seconds of training; '
        "mean score of the last 100 games</text>"
    )
    for curve, colour in zip(curves, COLOURS):
        points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def step(span: float) -> float:
    """A round number that divides a span into about six."""
    rough = span / 6
    power = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("run", "draw"):
        sys.exit(__doc__)
    {"run": run, "draw": draw}[sys.argv[1]](pathlib.Path(sys.argv[2]))
