"""Records games of the `minatar` package, random draws included, for the tests of `minatar`.

Run from this folder, with `pip install minatar==1.0.15`:

    python record_minatar.py

The package is used through its interface only: its generator is replaced by one that records
each draw. Numbers between 0 and 1 are drawn as (k + 0.5) / 256, so that a record of one byte
gives back exactly the number that the package saw.

Writes fixtures/minatar_<game>.bin, a sequence of steps. All numbers are bytes:

    move        the chosen move, 0 to 5; 255 for a reset
    draws       their number, then for each its kind (0: between 0 and 1; n: below n) and value
    reward      only for moves
    over        1 if the game ended, only for moves
    changes     the cells of [channels, 10, 10] that are other than before (all were 0 before the
                first reset), ascending: their number in two bytes (low one first), then the
                distance of each from the one before (from -1 at first), as 255s and a rest
"""

import copy
import pathlib
import sys

import numpy as np
from minatar import Environment

STEPS = 5000
GAMES = ["asterix", "breakout", "freeway", "seaquest", "space_invaders"]
STAY, LEFT, UP, RIGHT, DOWN, FIRE = range(6)


class Draws:
    """Replaces numpy's RandomState and records what it returns."""

    def __init__(self, seed):
        self.source = np.random.RandomState(seed)
        self.log = []

    def _unit(self):
        k = int(self.source.randint(256))
        self.log.append((0, k))
        return (k + 0.5) / 256

    def _integer(self, low, high):
        value = int(self.source.randint(low, high))
        self.log.append((high - low, value - low))
        return value

    def rand(self, *shape):
        if not shape:
            return self._unit()
        return np.array([self._unit() for _ in range(shape[0])])

    def randint(self, low, high=None, size=None):
        if high is None:
            low, high = 0, low
        if size is None:
            return self._integer(low, high)
        return np.array([self._integer(low, high) for _ in range(size)])


def survives(env, move, depth):
    """Whether `move` and then some others keep the game going, in an imagined future."""
    env = copy.deepcopy(env)
    if env.act(move)[1]:
        return False
    if depth == 0:
        return True
    then = (STAY, UP, DOWN, LEFT, RIGHT)
    return any(survives(env, choice, depth - 1) for choice in then)


def goal(game, env, rng):
    """A move that leads to rarer parts of the game."""
    state = env.state()
    channel = env.env.channels
    if game == "breakout":
        paddle = np.argwhere(state[:, :, channel["paddle"]])[0][1]
        # Where the ball comes down next, in a copy of the game that is played ahead.
        future = copy.deepcopy(env)
        for _ in range(30):
            state = future.state()
            ball = np.argwhere(state[:, :, channel["ball"]])[0]
            if ball[0] == 8 or future.act(STAY)[1]:
                break
        column = ball[1]
        return LEFT if column < paddle else RIGHT if column > paddle else STAY
    if game == "freeway":
        return UP if rng.rand() < 0.9 else DOWN
    if game == "space_invaders":
        cannon = np.argwhere(state[9, :, channel["cannon"]])[0][0]
        columns = np.flatnonzero(state[:, :, channel["alien"]].any(axis=0))
        if rng.rand() < 0.5 or len(columns) == 0:
            return FIRE
        nearest = columns[np.argmin(abs(columns - cannon))]
        return LEFT if nearest < cannon else RIGHT if nearest > cannon else FIRE
    if game == "asterix":
        me = np.argwhere(state[:, :, channel["player"]])[0]
        targets = np.argwhere(state[:, :, channel["gold"]])
    else:
        me = np.argwhere(state[:, :, channel["sub_front"]])[0]
        targets = np.argwhere(state[:, :, channel["diver"]])
        aboard = state[9, :, channel["diver_guage"]].sum()
        air = state[9, :, channel["oxygen_guage"]].sum()
        # In some games the submarine stays down until it is out of air.
        stays_down = env.env.ramp_index % 4 == 3
        if (aboard == 6 or (aboard and air <= 2)) and not stays_down:
            return UP
        if rng.rand() < 0.2:
            return FIRE
        if me[0] == 0 or (stays_down and me[0] == 1):
            return DOWN
    if len(targets) == 0:
        return int(rng.randint(5))
    target = targets[np.argmin(abs(targets - me).sum(axis=1))]
    if target[0] != me[0]:
        return UP if target[0] < me[0] else DOWN
    return LEFT if target[1] < me[1] else RIGHT


def choose(game, env, rng, careless):
    on_purpose = rng.rand() < (0.5 if careless else 0.95)
    wanted = goal(game, env, rng) if on_purpose else int(rng.randint(6))
    if careless or game in ("breakout", "freeway"):
        return wanted
    order = [wanted, *rng.permutation(6).tolist()]
    for depth in (5, 2, 0):
        for move in order:
            # Twice, because the games are random.
            if survives(env, move, depth) and survives(env, move, depth):
                return move
    return wanted


def changes(before, after):
    where = np.flatnonzero(before != after)
    out = bytearray(len(where).to_bytes(2, "little"))
    last = -1
    for index in where.tolist():
        distance = index - last
        last = index
        while distance >= 255:
            out.append(255)
            distance -= 255
        out.append(distance)
    return bytes(out)


def record(game):
    env = Environment(game)
    draws = Draws(1)
    env.random = draws
    env.env.random = draws
    rng = np.random.RandomState(2)
    out = bytearray()
    cells = np.zeros(env.n_channels * 100, dtype=bool)
    episodes, total, longest, length = 0, 0, 0, 0

    def show():
        nonlocal cells
        shown = env.state().transpose(2, 0, 1).reshape(-1)
        out.extend(changes(cells, shown))
        cells = shown.copy()

    def drawn():
        out.append(len(draws.log))
        for kind, value in draws.log:
            out.extend((kind, value))
        draws.log = []

    def reset():
        env.reset()
        out.append(255)
        drawn()
        show()

    reset()
    for step in range(STEPS):
        # Some stretches at random, so that games end in all their ways.
        careless = (step // 250) % 4 == 3
        move = choose(game, env, rng, careless)
        reward, over = env.act(move)
        out.append(move)
        drawn()
        out.extend((int(reward), int(over)))
        show()
        total += int(reward)
        length += 1
        if over:
            longest, length, episodes = max(longest, length), 0, episodes + 1
            reset()
    print(
        f"{game}: {len(out)} bytes, {episodes} games, {total} points, "
        f"the longest game {max(longest, length)} steps"
    )
    return bytes(out)


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent / "fixtures"
    folder.mkdir(exist_ok=True)
    for game in sys.argv[1:] or GAMES:
        (folder / f"minatar_{game}.bin").write_bytes(record(game))
