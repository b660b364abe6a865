#!/usr/bin/env python3
"""Brings runs to Weights & Biases.

    pip install wandb
    python3 scripts/to_wandb.py RUN…                       offline files in ./wandb; `wandb sync` sends them
    python3 scripts/to_wandb.py --follow RUN               goes along with a run that is being made
    python3 scripts/to_wandb.py --online --project P RUN…  sends at once (after `wandb login`)

RUN is the folder of a run, or one above several. A run becomes one run there, with the same name: its
settings are the config, each row of progress.csv is one step of the history at its env_steps, and each row
of eval.csv has the prefix eval/. Runs that differ only in their seed have the same group. Starling itself
neither knows nor needs wandb.
"""

import argparse
import csv
import hashlib
import json
import math
import pathlib
import sys
import time

STEP = "env_steps"
# What groups of runs may differ in.
SEED = "seed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    parser.add_argument("--project", default="starling")
    parser.add_argument("--entity")
    parser.add_argument("--dir", type=pathlib.Path, default=".", help="folder for the folder wandb (default: .)")
    parser.add_argument("--online", action="store_true", help="send at once instead of writing offline files")
    parser.add_argument("--follow", action="store_true", help="continue until nothing was written for --idle seconds")
    parser.add_argument("--idle", type=float, default=120.0, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        import wandb
    except ImportError:
        sys.exit("The Python package wandb is missing: pip install wandb")
    runs = sorted({run for path in arguments.runs for run in find(path)})
    if not runs:
        sys.exit(f"There is no run in {', '.join(map(str, arguments.runs))}: no folder has a config.yaml.")
    if arguments.follow and len(runs) > 1:
        sys.exit("--follow goes along with one run: start this once for each.")
    for run in runs:
        bridge(wandb, run, arguments)


def find(path: pathlib.Path) -> list[pathlib.Path]:
    """The folders of runs at or below a path."""
    if (path / "config.yaml").is_file():
        return [path.resolve()]
    return [found.parent.resolve() for found in path.rglob("config.yaml")]


def bridge(wandb, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
    config = json.loads((folder / "params.json").read_text())
    version = read_json(folder / "version.json")
    about = version.get("run", {})
    alike = json.dumps({key: value for key, value in config.items() if key != SEED}, sort_keys=True)
    run = wandb.init(
        project=arguments.project,
        entity=arguments.entity,
        dir=str(arguments.dir),
        mode="online" if arguments.online else "offline",
        # The same run again, whenever this is called.
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
        resume="allow" if arguments.online else None,
        name=folder.name,
        group="-".join([*(str(about.get(key, "")) for key in ("env", "algo", "name")), digest(alike)]),
        tags=[str(tag) for tag in (about.get("env"), about.get("algo")) if tag],
        config={**config, "starling": {key: version.get(key) for key in ("starling", "git", "host", "command")}},
    )
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    tables = [Rows(folder / "progress.csv", ""), Rows(folder / "eval.csv", "eval/")]
    sent, last = 0, time.monotonic()
    # wandb takes rows in the order of their steps, and joins those of the same one. Earlier ones, which a
    # resumed run repeats, would be dropped.
    highest = -1
    while True:
        new = merged([row for table in tables for row in table.new()])
        for step, row in new:
            if step >= highest:
                run.log({STEP: step, **row}, step=step)
                highest, sent = step, sent + 1
        if new:
            last = time.monotonic()
        if not arguments.follow or time.monotonic() - last > arguments.idle:
            break
        time.sleep(2.0)
    where = run.url if arguments.online else pathlib.Path(run.dir).resolve().parent
    run.finish()
    print(f"{folder}: {sent} rows; {where}")


class Rows:
    """The complete rows of a CSV file that grows."""

    def __init__(self, path: pathlib.Path, prefix: str) -> None:
        self.path, self.prefix, self.done, self.header = path, prefix, 0, None

    def new(self) -> list[tuple[int, dict[str, float]]]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        # The last row may be half written.
        lines = data[: data.rfind(b"\n") + 1].decode().splitlines()
        rows = list(csv.reader(lines))
        if not rows:
            return []
        # A resumed run replaces the file, and a new column changes its header.
        if rows[0] != self.header or len(rows) < self.done:
            self.header, self.done = rows[0], 1
        found, self.done = rows[max(self.done, 1) :], len(rows)
        return [numbers(self.header, row, self.prefix) for row in found]


def numbers(header: list[str], row: list[str], prefix: str) -> tuple[int, dict[str, float]]:
    values = {name: float(text) for name, text in zip(header, row) if text}
    step = int(values.pop(STEP))
    return step, {prefix + name: value for name, value in values.items() if math.isfinite(value)}


def merged(rows: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    """Rows of both tables in the order of their steps; those of the same step are one."""
    steps: dict[int, dict[str, float]] = {}
    for step, row in rows:
        steps.setdefault(step, {}).update(row)
    return sorted(steps.items())


def read_json(path: pathlib.Path) -> dict:
    return json.loads(path.read_text()) if path.is_file() else {}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


if __name__ == "__main__":
    main()
