"""Gymnasium's wrappers for vectors, around ours and around its own `SyncVectorEnv` of the same environments.

Every wrapper of `gymnasium.wrappers.vector` is here, in every autoreset mode: where it is accepted, both
vectors show the same; where it is refused, it is refused for both.
"""

import contextlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

import starling
from test_vectors import has_roms, same

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
EVERY, NOT_SAME = {NEXT_STEP, SAME_STEP, DISABLED}, {NEXT_STEP, DISABLED}
ENVS = 3

CART_POLE = ("CartPole-v1", {"max_episode_steps": 25})
PENDULUM = ("Pendulum-v1", {"max_episode_steps": 20})
MINATAR = ("MinAtar/Breakout-v1", {"max_episode_steps": 25})
PARTS = ("SparsePointRobot-v0", {})
LIVES_AND_MASKS = ("ALE/Breakout-v5", {"actions": "masked", "preset": "deepmind"})


def picture(envs):
    """MinAtar's first three channels as red, green and blue."""
    space = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    paint = lambda obs: np.ascontiguousarray(obs[:, :3].transpose(0, 2, 3, 1)).astype(np.uint8) * 255
    return wrappers.TransformObservation(envs, paint, single_observation_space=space)


def doubled(envs):
    single = gymnasium.wrappers.TransformObservation
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return wrappers.VectorizeTransformObservation(envs, single, func=lambda o: o * 2, observation_space=space)


def negated_in_place(envs):
    """The same space, so that Gymnasium writes into the array that it was handed."""
    single = gymnasium.wrappers.TransformObservation
    return wrappers.VectorizeTransformObservation(envs, single, func=lambda o: -o, observation_space=None)


def halved_actions(envs):
    single = gymnasium.wrappers.TransformAction
    return wrappers.VectorizeTransformAction(envs, single, func=lambda a: a / 2, action_space=None)


def negated_rewards(envs):
    single = gymnasium.wrappers.TransformReward
    return wrappers.VectorizeTransformReward(envs, single, func=lambda reward: -reward)


# Name, environment, wrapper, the modes that it accepts.
CASES = [
    # Observations of the step that ended an episode are in the infos in SAME_STEP mode, where these
    # wrappers would not find them.
    ("TransformObservation", CART_POLE, lambda e: wrappers.TransformObservation(e, np.tanh), NOT_SAME),
    ("VectorizeTransformObservation", CART_POLE, doubled, NOT_SAME),
    ("VectorizeTransformObservation", PENDULUM, negated_in_place, NOT_SAME),
    ("FilterObservation", PARTS, lambda e: wrappers.FilterObservation(e, ["position"]), NOT_SAME),
    ("FlattenObservation", PARTS, wrappers.FlattenObservation, NOT_SAME),
    ("FlattenObservation", MINATAR, wrappers.FlattenObservation, NOT_SAME),
    ("GrayscaleObservation", MINATAR, lambda e: wrappers.GrayscaleObservation(picture(e)), NOT_SAME),
    ("ResizeObservation", MINATAR, lambda e: wrappers.ResizeObservation(picture(e), (20, 20)), NOT_SAME),
    ("ReshapeObservation", MINATAR, lambda e: wrappers.ReshapeObservation(e, (40, 10)), NOT_SAME),
    ("RescaleObservation", PENDULUM, lambda e: wrappers.RescaleObservation(e, -1.0, 1.0), NOT_SAME),
    ("DtypeObservation", CART_POLE, lambda e: wrappers.DtypeObservation(e, np.float64), NOT_SAME),
    # Its statistics would count some observations twice.
    ("NormalizeObservation", CART_POLE, wrappers.NormalizeObservation, {NEXT_STEP}),
    ("TransformAction", PENDULUM, lambda e: wrappers.TransformAction(e, lambda a: a / 2), EVERY),
    ("VectorizeTransformAction", PENDULUM, halved_actions, EVERY),
    ("ClipAction", PENDULUM, wrappers.ClipAction, EVERY),
    ("RescaleAction", PENDULUM, lambda e: wrappers.RescaleAction(e, -1.0, 1.0), EVERY),
    ("TransformReward", PENDULUM, lambda e: wrappers.TransformReward(e, lambda r: r * 0.1), EVERY),
    ("VectorizeTransformReward", PENDULUM, negated_rewards, EVERY),
    ("ClipReward", PENDULUM, lambda e: wrappers.ClipReward(e, -1.0, 0.0), EVERY),
    ("NormalizeReward", PENDULUM, wrappers.NormalizeReward, EVERY),
    ("RecordEpisodeStatistics", CART_POLE, wrappers.RecordEpisodeStatistics, EVERY),
    ("DictInfoToList", CART_POLE, wrappers.DictInfoToList, EVERY),
    # The array of the infos that has last observations is one of objects, which it cannot convert.
    ("ArrayConversion", CART_POLE, lambda e: wrappers.ArrayConversion(e, np, np), NOT_SAME),
]
# Those with a test of their own below, and in test_torch.py; those whose environments compute with JAX.
APART = {"RecordVideo", "HumanRendering", "NumpyToTorch", "JaxToNumpy", "JaxToTorch"}


def pair(env, mode, **more):
    """Our vector, and Gymnasium's of our single environments."""
    id, options = env
    ours = starling.make_vec(id, ENVS, autoreset_mode=mode, num_threads=2, **more, **options)
    make = lambda: starling.StarlingEnv(id, **more, **options)
    return ours, SyncVectorEnv([make] * ENVS, autoreset_mode=mode)


def without_times(step):
    """Without the seconds that `RecordEpisodeStatistics` measures, of which no two are equal."""
    *others, info = step
    if isinstance(info, dict) and "episode" in info:
        episode = {key: value for key, value in info["episode"].items() if key != "t"}
        info = {**info, "episode": episode}
    return *others, info


def play(ours, theirs, mode, where, steps=80, ends=ENVS):
    """Takes the same random actions in both, and compares everything; returns our steps."""
    assert isinstance(ours, VectorEnv) and ours.num_envs == theirs.num_envs == ENVS
    for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name), (where, name)
    same(ours.reset(seed=7), theirs.reset(seed=7), (*where, "reset"))
    theirs.action_space.seed(1)
    results = []
    for t in range(steps):
        actions = theirs.action_space.sample()
        # Some wrappers write into the actions.
        step, expected = ours.step(actions.copy()), theirs.step(actions.copy())
        same(without_times(step), without_times(expected), (*where, t))
        assert ours.observation_space.contains(step[0]), (*where, t)
        results.append(step)
        ended = step[2] | step[3]
        if mode is DISABLED and ended.any():
            # Gymnasium's takes the mask out of the dictionary.
            reset = lambda envs: envs.reset(options={"reset_mask": ended.copy()})
            same(reset(ours), reset(theirs), (*where, t, "reset"))
    assert sum((step[2] | step[3]).sum() for step in results) >= ends, (where, "no episode ended")
    return results


class Wrappers(unittest.TestCase):
    def test_none_is_forgotten(self):
        self.assertEqual({name for name, *_ in CASES} | APART, set(wrappers.__all__))

    def test_they_show_the_same_around_ours_as_around_gymnasium_s(self):
        for name, env, wrap, modes in CASES:
            for mode in AutoresetMode:
                with self.subTest(name, env=env[0], mode=mode.name):
                    ours, theirs = pair(env, mode)
                    if mode not in modes:
                        # By most when they are made, by one when an episode ends.
                        expected = (ValueError, BufferError), "autoreset_mode.*NEXT_STEP|DLPack only supports"
                        for envs in (ours, theirs):
                            with self.assertRaisesRegex(*expected):
                                envs = wrap(envs)
                                envs.reset(seed=7)
                                for _ in range(25):
                                    envs.step(envs.action_space.sample())
                    elif (name, mode) == ("RecordEpisodeStatistics", DISABLED):
                        # Around Gymnasium's own vector it forgets the other episodes with every reset.
                        self.check_statistics(wrap(ours))
                    else:
                        play(wrap(ours), wrap(theirs), mode, (name, env[0], mode.name))

    def check_statistics(self, envs):
        """Counts the steps of every episode itself; each pays 1."""
        envs.reset(seed=3)
        envs.action_space.seed(3)
        lengths, ended = np.zeros(ENVS, int), []
        for _ in range(80):
            *_, terminated, truncated, info = envs.step(envs.action_space.sample())
            lengths += 1
            over = terminated | truncated
            self.assertEqual("episode" in info, over.any())
            if over.any():
                np.testing.assert_array_equal(info["_episode"], over)
                for key in ("r", "l"):
                    np.testing.assert_array_equal(info["episode"][key], np.where(over, lengths, 0))
                ended.extend(lengths[over])
                lengths[over] = 0
                envs.reset(options={"reset_mask": over})
        self.assertEqual(list(envs.length_queue), ended)
        self.assertEqual(list(envs.return_queue), ended)
        self.assertGreater(len(ended), ENVS)

    def test_they_can_be_stacked(self):
        def wrap(envs):
            envs = wrappers.RecordEpisodeStatistics(wrappers.ClipAction(envs))
            envs = wrappers.NormalizeObservation(wrappers.NormalizeReward(envs))
            envs = wrappers.TransformObservation(envs, lambda obs: np.clip(obs, -10, 10))
            return wrappers.TransformReward(envs, lambda reward: np.clip(reward, -10, 10))

        ours, theirs = pair(PENDULUM, NEXT_STEP)
        play(wrap(ours), wrap(theirs), NEXT_STEP, ("stacked",))

    def test_what_a_wrapper_changes_in_place_is_the_caller_s(self):
        """A reset of some environments shows the others as they were, not as a wrapper left them."""
        ours, theirs = (negated_in_place(envs) for envs in pair(PENDULUM, DISABLED))
        same(ours.reset(seed=7), theirs.reset(seed=7), ("reset",))
        for t in range(5):
            actions = np.full((ENVS, 1), 0.5, np.float32)
            same(ours.step(actions.copy()), theirs.step(actions.copy()), (t,))
            mask = np.arange(ENVS) == t % ENVS
            reset = lambda envs: envs.reset(options={"reset_mask": mask.copy()})
            same(reset(ours), reset(theirs), (t, "reset"))

    def test_infos_with_lives_and_masks_become_lists(self):
        if not has_roms("breakout"):
            self.skipTest("no ROMs")
        for mode in AutoresetMode:
            ours, theirs = (wrappers.DictInfoToList(envs) for envs in pair(LIVES_AND_MASKS, mode))
            steps = play(ours, theirs, mode, ("DictInfoToList", mode.name), steps=150, ends=0)
            infos = [info for step in steps for info in step[-1]]
            self.assertTrue(all(info["action_mask"].shape == (18,) for info in infos))
            self.assertGreater(len({info["lives"] for info in infos}), 1)

    def test_videos_have_the_frames_of_all_environments(self):
        for mode in AutoresetMode:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.subTest(mode=mode.name))
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                films = stack.enter_context(fake_moviepy())
                vectors = zip(["ours", "theirs"], pair(CART_POLE, mode, render_mode="rgb_array"))
                ours, theirs = (
                    wrappers.RecordVideo(envs, f"{folder}/{name}", episode_trigger=lambda n: n < 2)
                    for name, envs in vectors
                )
                steps = play(ours, theirs, mode, ("RecordVideo", mode.name))
                ours.close()
                theirs.close()
                of = lambda name: [film for film in films if f"/{name}/" in film[0]]
                self.assertEqual(len(of("ours")), 2)
                for film, expected in zip(of("ours"), of("theirs"), strict=True):
                    self.assertEqual((film[2], len(film[1])), (expected[2], len(expected[1])))
                    np.testing.assert_array_equal(film[1], expected[1])
                # The first episode of the first environment: its first frame, one for each step, and in
                # one mode one for each reset of another environment.
                over = [step[2] | step[3] for step in steps]
                length = next(t for t, ended in enumerate(over) if ended[0]) + 1
                more = {NEXT_STEP: 1, SAME_STEP: 0}.get(mode, 1 + sum(e.any() for e in over[: length - 1]))
                self.assertEqual(len(of("ours")[0][1]), length + more)
                first = of("ours")[0][1]
                self.assertTrue(all(not np.array_equal(a, b) for a, b in zip(first[:5], first[1:])))

    def test_a_window_shows_all_environments(self):
        for mode in AutoresetMode:
            with self.subTest(mode=mode.name), fake_pygame() as shown:
                ours, theirs = pair(CART_POLE, mode, render_mode="rgb_array")
                with self.assertRaisesRegex(ValueError, "render_mode"):
                    wrappers.HumanRendering(starling.make_vec("CartPole-v1", 2))
                frames = []
                for envs in (ours, theirs):
                    envs = wrappers.HumanRendering(envs)
                    envs.reset(seed=7)
                    for _ in range(5):
                        envs.step(np.ones(ENVS, int))
                    frames.append(list(shown))
                    shown.clear()
                self.assertEqual(len(frames[0]), 6)
                self.assertFalse(np.array_equal(frames[0][0], frames[0][-1]))
                np.testing.assert_array_equal(frames[0], frames[1])


@contextlib.contextmanager
def fake_moviepy():
    """Keeps films instead of writing them: file, frames and frames per second."""
    films = []

    class ImageSequenceClip:
        def __init__(self, frames, fps):
            self.frames, self.fps = list(frames), fps

        def write_videofile(self, path, logger):
            films.append((path, self.frames, self.fps))

    clip = types.SimpleNamespace(ImageSequenceClip=ImageSequenceClip)
    names = ["moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"]
    modules = {name: types.ModuleType(name) for name in names[:-1]}
    with mock.patch.dict(sys.modules, {**modules, names[-1]: clip}):
        yield films


@contextlib.contextmanager
def fake_pygame():
    """Keeps what is drawn in a window instead of opening one."""
    shown = []
    window = types.SimpleNamespace(blit=lambda picture, place: shown.append(picture))
    nothing = lambda *_: None
    pygame = types.SimpleNamespace(
        display=types.SimpleNamespace(init=nothing, set_mode=lambda size: window, flip=nothing, quit=nothing),
        time=types.SimpleNamespace(Clock=lambda: types.SimpleNamespace(tick=nothing)),
        surfarray=types.SimpleNamespace(make_surface=lambda picture: picture.copy()),
        event=types.SimpleNamespace(pump=nothing),
        quit=nothing,
    )
    with mock.patch.dict(sys.modules, {"pygame": pygame}):
        yield shown


if __name__ == "__main__":
    unittest.main()
