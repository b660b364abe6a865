#!/usr/bin/env python3
"""Makes the recordings in `fixtures`: every game in its default mode, some with sticky actions, and
some in other modes and difficulties.

usage: record_fixtures.py ROM_FOLDER
Needs ale-py 0.12.1 and numpy. The full comparison is `starling atari verify`.
"""
import pathlib, random, sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))
from record_ale import ALEInterface, LoggerMode, record

UNPLAYABLE = {"combat", "joust", "maze_craze", "warlords"}
STICKY = """alien asteroids backgammon beam_rider breakout double_dunk enduro freeway jamesbond kaboom
montezuma_revenge ms_pacman pitfall2 pong qbert riverraid robotank seaquest space_invaders tennis""".split()
# The games whose way into a mode is a function of its own, and others at random.
MODES = [("backgammon", 0, 3), ("double_dunk", 7, 0), ("double_dunk", 15, 0), ("klax", 2, 0),
         ("video_cube", 202, 1), ("video_cube", 4901, 0), ("word_zapper", 1, 0), ("word_zapper", 23, 3)]


def main():
    ALEInterface.setLoggerMode(LoggerMode.Error)
    roms = {path.stem: path for path in sorted(pathlib.Path(sys.argv[1]).glob("*.bin"))}
    roms = {game: path for game, path in roms.items() if game not in UNPLAYABLE}
    rng = random.Random(3)
    modes = list(MODES)
    while len(modes) < 48:
        game = rng.choice(sorted(roms))
        ale = ALEInterface()
        ale.loadROM(str(roms[game]))
        choices = ale.getAvailableModes(), ale.getAvailableDifficulties()
        known = {name for name, *_ in modes} | {"adventure"}
        if game not in known and max(map(len, choices)) > 1:
            modes.append((game, rng.choice(choices[0][1:] or choices[0]), rng.choice(choices[1])))

    def write(name, jobs):
        with open(HERE / "fixtures" / f"{name}.trace", "wb") as file:
            for game, frames, sticky, mode, difficulty in jobs:
                record(dict(rom=str(roms[game]), game=game, frames=frames, seed=1, sticky=sticky,
                            mode=mode, difficulty=difficulty), file.write)

    write("default", [(game, 300, 0.0, None, None) for game in roms])
    write("modes", [(game, 90, 0.0, mode, difficulty) for game, mode, difficulty in sorted(modes)])
    write("sticky", [(game, 240, 0.25, None, None) for game in STICKY])


if __name__ == "__main__":
    main()
