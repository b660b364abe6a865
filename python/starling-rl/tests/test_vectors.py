"""The vectors against Gymnasium's own: `python -m unittest` in an environment with the wheel."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

import starling

MODES = list(AutoresetMode)


def has_roms(game="pong"):
    folders = [os.environ.get("STARLING_ROMS")]
    folders.append(os.path.expanduser("~/.cache/starling/roms"))
    return any(folder and (pathlib.Path(folder) / f"{game}.bin").exists() for folder in folders)


ATARI = [("ALE/Breakout-v5", {"preset": "deepmind"}), ("ALE/Pong-v5", {"preset": "rela"})]
CASES = [
    ("CartPole-v1", {}),
    ("Pendulum-v1", {"max_episode_steps": 30}),
    ("MinAtar/Breakout-v1", {}),
    *(ATARI if has_roms() else []),
]


def same(one, other, where):
    """Fails where two observations or infos differ, in values, types or keys."""
    if isinstance(one, (tuple, list)):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, (*where, index))
    elif isinstance(one, dict):
        assert sorted(one) == sorted(other), (where, sorted(one), sorted(other))
        for key in one:
            same(one[key], other[key], (*where, key))
    elif isinstance(one, np.ndarray) and one.dtype == object:
        for env, (a, b) in enumerate(zip(one, other)):
            assert (a is None) == (b is None), (where, env)
            if a is not None:
                same(a, b, (*where, env))
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype, (where, one.dtype, other.dtype)
        np.testing.assert_array_equal(one, other, err_msg=str(where))


class Vectors(unittest.TestCase):
    def test_they_do_what_gymnasium_does_with_single_environments(self):
        for id, options in CASES:
            for mode in MODES:
                ours = starling.make_vec(id, 3, autoreset_mode=mode, num_threads=2, **options)
                make = lambda: starling.StarlingEnv(id, **options)
                theirs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
                self.assertEqual(ours.observation_space, theirs.observation_space)
                self.assertEqual(ours.action_space, theirs.action_space)
                same(ours.reset(seed=7), theirs.reset(seed=7), (id, mode, "reset"))
                theirs.action_space.seed(1)
                ends = 0
                for t in range(150 if id.startswith("ALE") else 400):
                    actions = theirs.action_space.sample()
                    if id.startswith("ALE"):
                        # FIRE, and then nothing: lives are lost quickly.
                        actions[:] = 1 if t % 8 == 0 else 0
                    step, expected = ours.step(actions), theirs.step(actions)
                    for name, a, b in zip("obs reward terminated truncated info".split(), step, expected):
                        same(a, b, (id, mode, t, name))
                    self.assertTrue(ours.observation_space.contains(step[0]))
                    ended = step[2] | step[3]
                    ends += ended.sum()
                    if mode is AutoresetMode.DISABLED and ended.any():
                        step[0].fill(0)  # What was handed out is the caller's.
                        again = ours.reset(options={"reset_mask": ended})
                        expected = theirs.reset(options={"reset_mask": ended})
                        same(again, expected, (id, mode, t, "reset"))
                if id != "ALE/Pong-v5":
                    self.assertGreater(ends, 3, (id, mode))
                ours.close()

    def test_an_environment_does_the_same_in_any_vector_with_any_threads(self):
        def run(count, threads, seed, env):
            envs = starling.make_vec("MinAtar/Asterix-v1", count, num_threads=threads)
            rows = [envs.reset(seed=seed)[0][env]]
            for t in range(200):
                rows.append(envs.step(np.full(count, t % 5))[0][env])
            return np.stack(rows)

        expected = run(5, 1, 10, 3)
        np.testing.assert_array_equal(run(5, 4, 10, 3), expected)
        np.testing.assert_array_equal(run(1, 1, 13, 0), expected)
        np.testing.assert_array_equal(run(2, 1, [1, 13], 1), expected)
        self.assertFalse(np.array_equal(run(5, 1, 10, 2), expected))

    def test_what_was_handed_out_does_not_change(self):
        envs = starling.make_vec("CartPole-v1", 2)
        first, _ = envs.reset(seed=1)
        kept = first.copy()
        envs.step(np.array([0, 1]))
        np.testing.assert_array_equal(first, kept)

    def test_wrappers_of_gymnasium_work(self):
        def finish(envs):
            self.assertIsInstance(envs, VectorEnv)
            envs.reset(seed=3)
            envs.action_space.seed(3)
            for _ in range(60):
                obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
                self.assertTrue(np.all(np.isfinite(obs)) and len(reward) == envs.num_envs)
            return obs, info

        # Those that transform observations refuse SAME_STEP.
        make = lambda **more: starling.make_vec("CartPole-v1", 4, **more)
        with self.assertRaises(ValueError):
            wrappers.NormalizeObservation(make(autoreset_mode="SameStep"))
        finish(wrappers.NormalizeObservation(make()))
        bounded = starling.make_vec("Pendulum-v1", 4)
        finish(wrappers.RescaleObservation(bounded, -np.ones(3, np.float32), np.ones(3, np.float32)))
        finish(wrappers.FlattenObservation(starling.make_vec("MinAtar/Breakout-v1", 4)))
        finish(wrappers.DtypeObservation(make(), np.float64))
        twice = wrappers.VectorizeTransformObservation(
            make(), gymnasium.wrappers.TransformObservation, func=lambda o: o * 2, observation_space=None
        )
        finish(twice)
        for mode in ("NextStep", "SameStep"):
            recorded = wrappers.RecordEpisodeStatistics(make(autoreset_mode=mode))
            finish(recorded)
            self.assertGreater(len(recorded.return_queue), 3)
            self.assertEqual(list(recorded.return_queue), list(recorded.length_queue))
            finish(wrappers.NormalizeReward(make(autoreset_mode=mode)))
            finish(wrappers.ClipReward(make(autoreset_mode=mode), 0, 1))
            _, info = finish(wrappers.DictInfoToList(make(autoreset_mode=mode)))
            self.assertEqual(len(info), 4)
        clipped = wrappers.ClipAction(starling.make_vec("Pendulum-v1", 4))
        finish(clipped)

    def test_gymnasium_makes_them_by_their_ids(self):
        envs = gymnasium.make_vec(
            "starling/CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"
        )
        self.assertIsInstance(envs.unwrapped, starling.StarlingVectorEnv)
        env = gymnasium.make("starling/MinAtar-Breakout-v1", sticky_action_prob=0.0)
        self.assertEqual(env.reset(seed=1)[0].shape, env.observation_space.shape)
        sync = gymnasium.make_vec("starling/Pendulum-v1", num_envs=2, vectorization_mode="sync")
        sync.reset(seed=1)
        sync.step(sync.action_space.sample())

    def test_gymnasium_s_checker_passes_single_environments(self):
        ids = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MinAtar/Freeway-v1"]
        for id in ids + (["ALE/Pong-v5"] if has_roms() else []):
            env = gymnasium.make(starling.gymnasium_id(id), render_mode="rgb_array")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check_env(env.unwrapped)
            env.reset(seed=1)
            self.assertEqual(env.render().ndim, 3)

    def test_numbers_are_gymnasium_s(self):
        """From the same state, the same actions: resets draw other numbers than numpy's."""
        for id, state in [
            ("CartPole-v1", lambda obs: obs.astype(np.float64)),
            ("MountainCar-v0", lambda obs: obs.astype(np.float64)),
            ("Pendulum-v1", lambda obs: np.array([np.arctan2(obs[1], obs[0]), obs[2]], np.float64)),
        ]:
            ours, theirs = starling.StarlingEnv(id), gymnasium.make(id)
            obs, _ = ours.reset(seed=5)
            theirs.reset(seed=5)
            theirs.unwrapped.state = state(obs)
            theirs.action_space.seed(2)
            for t in range(40):
                action = theirs.action_space.sample()
                one, other = ours.step(action), theirs.step(action)
                np.testing.assert_allclose(one[0], other[0], rtol=1e-3, atol=1e-4, err_msg=f"{id} {t}")
                np.testing.assert_allclose(one[1], other[1], rtol=1e-3, atol=1e-4)
                self.assertEqual(one[2:4], other[2:4])
                if one[2] or one[3]:
                    break
            self.assertGreater(t, 8)

    def test_masks_and_lives_are_in_the_infos(self):
        if not has_roms():
            self.skipTest("no ROMs")
        envs = starling.make_vec("ALE/Breakout-v5", 2, actions="masked")
        _, info = envs.reset(seed=1)
        np.testing.assert_array_equal(info["lives"], [5, 5])
        np.testing.assert_array_equal(info["action_mask"][0].nonzero()[0], [0, 1, 3, 4])
        self.assertTrue(info["_action_mask"].all())

    def test_roms_are_installed_from_a_folder(self):
        if not has_roms():
            self.skipTest("no ROMs")
        roms = os.environ.get("STARLING_ROMS") or os.path.expanduser("~/.cache/starling/roms")
        with tempfile.TemporaryDirectory() as folder:
            there, none = pathlib.Path(folder) / "some", pathlib.Path(folder) / "cache"
            there.mkdir()
            shutil.copy(pathlib.Path(roms) / "pong.bin", there / "any name.rom")
            (there / "notes.txt").write_text("no ROM")
            environment = {**os.environ, "STARLING_ROMS": str(none)}
            command = [sys.executable, "-m", "starling.roms", "--from", str(there)]
            said = subprocess.run(command, env=environment, capture_output=True, text=True)
            self.assertEqual(said.stdout.strip(), f"1 games in {none}", said.stderr)
            self.assertTrue((none / "pong.bin").exists())

    def test_mistakes_are_errors_that_say_what_to_do(self):
        with self.assertRaisesRegex(ValueError, "CartPole-v1"):
            starling.make_vec("CartPole-v9", 2)
        with self.assertRaisesRegex(ValueError, "env.max_episode_steps"):
            starling.make_vec("CartPole-v1", 2, max_episode_step=5)
        envs = starling.make_vec("CartPole-v1", 2)
        with self.assertRaisesRegex(RuntimeError, "not reset"):
            envs.step(np.array([0, 0]))
        envs.reset(seed=1)
        with self.assertRaisesRegex(ValueError, "environment 1 .CartPole-v1.*allowed: 0 to 1"):
            envs.step(np.array([0, 2]))
        with self.assertRaisesRegex(ValueError, "shape"):
            envs.step(np.array([0, 0, 0]))
        with self.assertRaisesRegex(ValueError, "seeds"):
            envs.reset(seed=[1, 2, 3])
        envs = starling.make_vec("CartPole-v1", 1, autoreset_mode="Disabled", max_episode_steps=1)
        envs.reset(seed=1)
        envs.step(np.array([0]))
        with self.assertRaisesRegex(RuntimeError, "reset_mask"):
            envs.step(np.array([0]))

    def test_a_fork_steps_on(self):
        envs = starling.make_vec("MinAtar/Breakout-v1", 2000, num_threads=2)
        envs.reset(seed=1)
        for _ in range(5):
            envs.step(np.zeros(2000, np.int64))
        child = os.fork()
        if child == 0:
            envs.step(np.zeros(2000, np.int64))
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        envs.step(np.zeros(2000, np.int64))

    def test_torch_is_not_imported(self):
        program = "import sys, starling, starling.envpool; print('torch' in sys.modules)"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "False", said.stderr)


if __name__ == "__main__":
    unittest.main()
