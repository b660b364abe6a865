#!/usr/bin/env python3
"""Records what the Arcade Learning Environment does, for `verify` to compare.

Reads jobs from standard input, one JSON object per line:
    rom (a path), game, frames, seed, sticky, mode, difficulty (null: as it was loaded)
and writes a trace for each to standard output. A trace holds hashes, never a byte of a ROM:
    8 bytes  b"STARTRC2"
    u8       length of the game's name, which follows
    32 bytes md5 of the cartridge in hexadecimal
    u32 seed, f32 probability of a sticky action, i32 mode, i32 difficulty (-1: as it was loaded)
    records of 16 bytes, little endian:
        u8 kind (0 a frame, 1 a reset, 255 the end), u8 action, u8 game over, u8 lives,
        i32 reward, or after a reset the frames that it counts,
        u32 CRC-32 of the 128 bytes of memory, u32 CRC-32 of the screen of palette indices
The first record is a reset: the state after "load, then one more reset". The game is reset when it
is over, and every 5,000 frames. Needs ale-py 0.12.1 and numpy.
"""
import hashlib, json, pathlib, struct, sys, zlib

import numpy as np
from ale_py import ALEInterface, LoggerMode

RESET_AFTER = 5000


def record(job, write):
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", job["sticky"])
    ale.setInt("random_seed", job["seed"])
    ale.setInt("frame_skip", 1)
    ale.setBool("color_averaging", False)
    ale.loadROM(job["rom"])
    mode, difficulty = job["mode"], job["difficulty"]
    if difficulty is not None:
        ale.setDifficulty(difficulty)
    if mode is not None:
        ale.setMode(mode)
    actions = ale.getMinimalActionSet()
    screen = np.empty(ale.getScreenDims(), np.uint8)

    def snap(kind, action, number):
        ale.getScreen(screen)
        lives = max(0, min(255, ale.lives()))
        ram, picture = zlib.crc32(bytes(ale.getRAM())), zlib.crc32(screen)
        write(struct.pack("<BBBBiII", kind, action, ale.game_over(), lives, number, ram, picture))

    def reset():
        ale.reset_game()
        snap(1, 0, ale.getEpisodeFrameNumber())

    name = job["game"].encode()
    md5 = hashlib.md5(pathlib.Path(job["rom"]).read_bytes()).hexdigest().encode()
    settings = (job["seed"], job["sticky"],
                -1 if mode is None else mode, -1 if difficulty is None else difficulty)
    write(b"STARTRC2" + bytes((len(name),)) + name + md5 + struct.pack("<Ifii", *settings))
    reset()
    rng = np.random.default_rng(job["seed"])
    action, played = actions[0], 0
    for _ in range(job["frames"]):
        if rng.random() >= 0.7:
            action = actions[int(rng.integers(len(actions)))]
        snap(0, action.value, int(ale.act(action)))
        played += 1
        if ale.game_over() or played == RESET_AFTER:
            reset()
            played = 0
    write(bytes((255,)) + bytes(15))


def main():
    ALEInterface.setLoggerMode(LoggerMode.Error)
    for line in sys.stdin:
        record(json.loads(line), sys.stdout.buffer.write)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
