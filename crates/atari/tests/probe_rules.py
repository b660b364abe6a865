#!/usr/bin/env python3
"""Reads a game's rules off ale-py, the Arcade Learning Environment, as a black box.

A saved state of ALE is bytes: it holds the console's RAM, its program counter, and what the rules
remember. So this tool puts any memory it likes into a state, points the program counter at an
opcode that jams the processor, restores that state and acts once: the frame changes nothing, and
reward, lives and game over are a pure function of the memory that was put in.

    probe_rules.py map GAME                    which bytes matter, and how, after a reset
    probe_rules.py record OUT SEED GAME...     recordings for tests/rules.rs (all: every game)

It needs ale-py 0.12.1, which has no rules for combat, joust, maze_craze and warlords. One game
escapes this tool: miniature_golf keeps part of what it remembers out of its saved states, so its recording
comes from plain play with some bytes set now and then.
"""
import random
import struct
import sys

from ale_py import ALEInterface, LoggerMode, roms
from ale_py._ale_py import ALEState

ALEInterface.setLoggerMode(LoggerMode.Error)
JAMMING = {0x02, 0x12, 0x22, 0x32, 0x42, 0x52, 0x62, 0x72, 0x92, 0xB2, 0xD2, 0xF2}
# Bytes of the cartridge's own state that stand between its name and what the rules remember.
CARTRIDGES = {b"F8SC": 520, b"F6SC": 520, b"2K": 0, b"4K": 0, b"F8": 4, b"F6": 4, b"E0": 20, b"FE": 0}


class Probe:
    def __init__(self, game, mode=None, difficulty=None):
        self.ale = ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("frame_skip", 1)
        path = roms.get_rom_path(game)
        self.ale.loadROM(path)
        if mode is not None:
            self.ale.setMode(mode)
            self.ale.setDifficulty(difficulty)
        self.ale.reset_game()
        state = self.ale.cloneState().serialize()
        self.cpu = state.find(b"M6502Low")
        self.counter = self.cpu + 8 + 20
        self.ram = state.find(b"M6532") + 9
        name = state.rfind(b"Cartridge") + 9
        kind = next((k for k in CARTRIDGES if state[name:].startswith(k)), None)
        # Pitfall II's chip has a state of its own length; its rules remember seven words.
        self.memo = name + len(kind) + CARTRIDGES[kind] if kind else len(state) - 28
        self.extra = name + 12 if kind in (b"F8SC", b"F6SC") else None
        self.size = 256 if self.extra else 128
        self.base = bytearray(state)
        self.jam(open(path, "rb").read())

    def jam(self, rom):
        """Finds an address at which a frame leaves the processor and any memory as they are."""
        rng = random.Random(3)
        for at in {0xF000 | i & 0xFFF for i, byte in enumerate(rom) if byte in JAMMING}:
            self.base[self.counter : self.counter + 4] = struct.pack("<I", at)
            registers = bytes(self.base[self.cpu + 8 : self.cpu + 24])
            for _ in range(4):
                memory = rng.randbytes(self.size)
                self.restore(self.with_memory(self.base, memory))
                self.ale.act(0)
                after = self.state()
                jammed = after[self.counter : self.counter + 4] == struct.pack("<I", at + 1 & 0xFFFF)
                if not (jammed and self.memory(after) == memory
                        and after[self.cpu + 8 : self.cpu + 24] == registers):
                    break
            else:
                return
        raise SystemExit("no address jams the processor")

    def state(self):
        """The state with the same beginning as the first: its random numbers vary in length."""
        state = self.ale.cloneState().serialize()
        return bytes(self.base[: self.cpu]) + state[state.find(b"M6502Low") :]

    def restore(self, state):
        made = ALEState.__new__(ALEState)
        made.__setstate__(bytes(state))
        self.ale.restoreState(made)

    def memory(self, state):
        extra = state[self.extra : self.extra + 512 : 4] if self.extra else b""
        return bytes(state[self.ram : self.ram + 512 : 4]) + bytes(extra)

    def with_memory(self, state, memory):
        state = bytearray(state)
        state[self.ram : self.ram + 512 : 4] = bytes(memory[:128])
        if self.extra:
            state[self.extra : self.extra + 512 : 4] = bytes(memory[128:])
        return state

    def look(self, memory, remembered):
        """What the rules say about a memory, given the state that holds what they remember."""
        state = self.with_memory(self.base, memory)
        state[self.memo :] = remembered[self.memo :]
        self.restore(state)
        reward = self.ale.act(0)
        return reward, min(255, max(0, self.ale.lives())), self.ale.game_over()


def influence(probe, memory, remembered):
    """For every byte that matters: the outcomes, and the values that lead to each."""
    for index in range(probe.size):
        outcomes = {}
        for value in range(256):
            changed = bytearray(memory)
            changed[index] = value
            outcomes.setdefault(probe.look(changed, remembered), []).append(value)
        if len(outcomes) > 1:
            yield index, outcomes


def show_map(game):
    probe = Probe(game)
    probe.ale.reset_game()
    start = probe.state()
    for index, outcomes in influence(probe, probe.memory(start), start):
        print(f"${index + 128:02X}" if index < 128 else f"cartridge ${index - 128:02X}")
        for outcome, values in list(outcomes.items())[:12]:
            print("   reward %d, lives %d, over %s:" % outcome, " ".join(f"{v:02x}" for v in values[:8]))


def record(game, seed, episodes=8, frames=40):
    """Episodes of memories in which a few of the bytes that matter change from frame to frame."""
    rng = random.Random(f"{game} {seed}")
    probe = Probe(game)
    modes, difficulties = probe.ale.getAvailableModes(), probe.ale.getAvailableDifficulties()
    probe = Probe(game, rng.choice(modes), rng.choice(difficulties))
    probe.ale.reset_game()
    start = probe.state()
    matters = [index for index, _ in influence(probe, probe.memory(start), start)]
    records, known = [], bytearray(256)

    def keep(flags, lives, reward, memory):
        changed = [(i, byte) for i, byte in enumerate(memory) if known[i] != byte]
        known[: len(memory)] = memory
        records.append(struct.pack("<BBiH", flags, lives, reward, len(changed))
                       + bytes(x for pair in changed for x in pair))

    for _ in range(episodes):
        probe.ale.reset_game()
        remembered = probe.state()
        memory = bytearray(probe.memory(remembered))
        keep(1 | 2 * probe.ale.game_over(), min(255, max(0, probe.ale.lives())), 0, memory)
        if probe.ale.game_over():
            continue
        for _ in range(frames):
            for _ in range(rng.randrange(4)):
                index = rng.choice(matters) if matters and rng.random() < 0.9 else rng.randrange(probe.size)
                old = memory[index]
                memory[index] = rng.choice((0, 1, 2, 0x80, 0xFF, old + 1 & 255, old - 1 & 255,
                                            16 * rng.randrange(10) + rng.randrange(10), rng.randrange(256)))
            reward, lives, over = probe.look(memory, remembered)
            remembered = probe.state()
            keep(2 * over, lives, reward, memory)
            if over:
                break
    return bytes((len(game),)) + game.encode() + struct.pack("<I", len(records)) + b"".join(records)


def main():
    match sys.argv[1:]:
        case ["map", game]:
            show_map(game)
        case ["record", out, seed, *games]:
            if games == ["all"]:
                left_out = {"combat", "joust", "maze_craze", "warlords", "miniature_golf"}
                games = sorted(set(roms.get_all_rom_ids()) - left_out)
            with open(out, "wb") as file:
                file.write(b"RULES01\n")
                for game in games:
                    file.write(record(game, seed))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
