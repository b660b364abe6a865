"""Agents of several kinds: in Python as in the program, and as the ONNX files that it exports."""

import pathlib
import tempfile
import unittest

import numpy as np

import starling
from test_train import run

# Environment, algorithm, settings, where a policy has a memory, where it looks at rewards.
KINDS = {
    "feed-forward": ("CartPole-v1", "ppo", ["steps=2048"]),
    "recurrent": ("Pendulum-v1", "ppo", ["steps=1024", "algo.net.lstm=16"]),
    "recurrent with rewards": (
        "CartPoleMasked-v1",
        "r2d2",
        ["steps=1500", "algo.learning_starts_steps=500", "algo.epsilon_eval=0"],
    ),
    "continuous": ("Pendulum-v1", "sac", ["steps=600", "algo.learning_starts_steps=300"]),
    "pictures": (
        "MinAtar/Breakout-v1",
        "dqn",
        ["steps=800", "algo.learning_starts_steps=400", "algo.epsilon_eval=0"],
    ),
}


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.runs, cls.files = {}, {}
        for kind, (env, algo, settings) in KINDS.items():
            place = pathlib.Path(folder.name) / kind.replace(" ", "-")
            place.mkdir()
            more = ["seed=3", "torch_threads=1", "device=cpu", "stop_at_return=null"]
            run("train", env, "--algo", algo, *settings, *more, cwd=place)
            [checkpoints] = place.rglob("checkpoints")
            cls.runs[kind] = checkpoints.parent
            cls.files[kind] = place / "agent.onnx"
            said = run("export", checkpoints.parent, "--out", "agent.onnx", "--steps", "64", cwd=place)
            # With the onnxruntime of this Python.
            assert "compared over 64 steps with onnxruntime" in said, said

    def play(self, kind, episodes=2, steps=60):
        """Plays with the agent of the run, and asks the ONNX file about the same observations."""
        env = starling.StarlingEnv(KINDS[kind][0])
        agent, file = starling.load(self.runs[kind]), starling.OnnxAgent(self.files[kind])
        actions = []
        for episode in range(episodes):
            obs, _ = env.reset(seed=episode)
            agent.reset()
            file.reset()
            for _ in range(steps):
                action, other = agent.act(obs), file.act(obs)
                self.assertTrue(env.action_space.contains(action), action)
                np.testing.assert_allclose(action, other, rtol=1e-5, atol=1e-5, err_msg=kind)
                actions.append(action)
                obs, reward, terminated, truncated, _ = env.step(action)
                agent.rewarded(reward)
                file.rewarded(reward)
                if terminated or truncated:
                    break
        return actions

    def test_they_act_as_their_onnx_files_do(self):
        for kind, (env, algo, _) in KINDS.items():
            with self.subTest(kind):
                actions = self.play(kind)
                self.assertGreater(len(actions), 10)
                about = starling.OnnxAgent(self.files[kind]).metadata
                self.assertEqual((about["environment"], about["algorithm"]), (env, algo))
                if KINDS[kind][0] == "Pendulum-v1":
                    self.assertTrue(all(a.shape == (1,) and a.dtype == np.float32 for a in actions))
                    self.assertGreater(len({float(a[0]) for a in actions}), 10)
                else:
                    self.assertTrue(all(isinstance(action, int) for action in actions))

    def test_a_memory_lasts_for_an_episode(self):
        obs = np.array([0.6, 0.8, 0.5], np.float32)
        agents = starling.load(self.runs["recurrent"]), starling.OnnxAgent(self.files["recurrent"])
        for agent in agents:
            agent.reset()
            first, second = float(agent.act(obs)[0]), float(agent.act(obs)[0])
            self.assertNotEqual(first, second)
            agent.reset()
            self.assertEqual(float(agent.act(obs)[0]), first)
        # One without a memory does the same again.
        agent = starling.load(self.runs["continuous"])
        np.testing.assert_array_equal(agent.act(obs), agent.act(obs))

    def test_rewards_are_remembered(self):
        """R2D2 looks at the last reward: files say so by an input."""
        agent = starling.OnnxAgent(self.files["recurrent with rewards"])
        inputs = {one.name for one in agent._session.get_inputs()}
        self.assertLessEqual({"last_action", "last_reward"}, inputs)

    def test_batches_are_acted_on_at_once(self):
        for kind, (env, *_) in KINDS.items():
            with self.subTest(kind):
                envs = starling.make_vec(env, 4)
                obs, _ = envs.reset(seed=1)
                batch = starling.OnnxAgent(self.files[kind]).act(obs)
                self.assertEqual(len(batch), 4)
                for row, action in zip(obs, batch):
                    alone = starling.OnnxAgent(self.files[kind]).act(row)
                    np.testing.assert_allclose(action, alone, rtol=1e-5, atol=1e-5)

    def test_the_best_checkpoint_is_loaded(self):
        agent = starling.load(self.runs["feed-forward"], best=True)
        self.assertIn(agent.act(np.zeros(4, np.float32)), (0, 1))

    def test_wrong_observations_are_refused(self):
        agent = starling.load(self.runs["pictures"])
        with self.assertRaisesRegex(ValueError, "needed"):
            agent.act(np.zeros((4, 9, 10), np.uint8))


if __name__ == "__main__":
    unittest.main()
