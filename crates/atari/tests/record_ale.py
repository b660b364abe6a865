#!/usr/bin/env python3
"""Records what the Arcade Learning Environment does, one trace per game, for `verify` to compare.

A trace holds hashes and outcomes, never a byte of a ROM:
  8 bytes    b"STARTRC1"
  u32        length of the JSON header that follows (game, md5, seed, sticky, mode, difficulty)
  records of 16 bytes, little endian:
    u8 kind (0 a frame, 1 a reset), u8 action, u8 game over, u8 lives,
    i32 reward, u32 CRC-32 of the 128 bytes of memory, u32 CRC-32 of the palette-index screen
The first record is a reset: the state after "load, then one more reset".

usage: record_ale.py OUT_FOLDER ROM_FOLDER [--games a,b] [--frames N] [--seed S] [--sticky P]
                     [--mode M] [--difficulty D] [--full]
Needs ale-py 0.12.1 and numpy.
"""
import argparse, hashlib, json, pathlib, struct, zlib
import numpy as np
from ale_py import ALEInterface, LoggerMode


def record(rom, out, options):
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", options.sticky)
    ale.setInt("random_seed", options.seed)
    ale.setInt("frame_skip", 1)
    ale.setBool("color_averaging", False)
    ale.loadROM(str(rom))
    if options.difficulty is not None:
        ale.setDifficulty(options.difficulty)
    if options.mode is not None:
        ale.setMode(options.mode)
    ale.reset_game()
    legal = ale.getLegalActionSet()
    choices = [a.value for a in (legal if options.full else ale.getMinimalActionSet())]
    actions = {a.value: a for a in legal}
    height, width = ale.getScreenDims()
    screen = np.empty((height, width), np.uint8)
    records = []

    def snap(kind, action, reward):
        ale.getScreen(screen)
        lives = max(0, min(255, ale.lives()))
        ram, picture = zlib.crc32(bytes(ale.getRAM())), zlib.crc32(screen.tobytes())
        over = int(ale.game_over())
        records.append(struct.pack("<BBBBiII", kind, action, over, lives, reward, ram, picture))

    snap(1, 255, 0)
    rng = np.random.default_rng(options.seed)
    action = choices[0]
    for _ in range(options.frames):
        if rng.random() >= 0.7:
            action = choices[int(rng.integers(len(choices)))]
        reward = int(ale.act(actions[action]))
        snap(0, action, reward)
        if ale.game_over():
            ale.reset_game()
            snap(1, 255, 0)
    header = json.dumps(dict(
        game=rom.stem, md5=hashlib.md5(rom.read_bytes()).hexdigest(), seed=options.seed,
        sticky=options.sticky, mode=options.mode, difficulty=options.difficulty)).encode()
    with open(out, "wb") as file:
        file.write(b"STARTRC1" + struct.pack("<I", len(header)) + header + b"".join(records))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("roms", type=pathlib.Path)
    parser.add_argument("--games")
    parser.add_argument("--frames", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sticky", type=float, default=0.0)
    parser.add_argument("--mode", type=int)
    parser.add_argument("--difficulty", type=int)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    ALEInterface.setLoggerMode(LoggerMode.Error)
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.games.split(",") if options.games else None
    for rom in sorted(options.roms.glob("*.bin")):
        unplayable = {"combat", "joust", "maze_craze", "warlords"}
        if rom.stem in unplayable or (names and rom.stem not in names):
            continue
        record(rom, options.out / f"{rom.stem}.trace", options)


if __name__ == "__main__":
    main()
