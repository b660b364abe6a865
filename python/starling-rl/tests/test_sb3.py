"""Stable-Baselines3 on our environments."""

import importlib.util
import unittest
import warnings

import numpy as np

from test_vectors import has_roms

SB3 = importlib.util.find_spec("stable_baselines3") is not None


@unittest.skipUnless(SB3, "stable-baselines3 is not installed")
class Sb3(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")

    def test_ppo_learns_cart_pole(self):
        from stable_baselines3 import PPO
        from stable_baselines3.common.evaluation import evaluate_policy

        from starling.sb3 import StarlingVecEnv

        envs = StarlingVecEnv("CartPole-v1", 8, seed=1)
        model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=10, seed=0, device="cpu")
        model.learn(12_288)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        lengths = [episode["l"] for episode in model.ep_info_buffer]
        self.assertEqual(returns, lengths)
        self.assertGreater(np.mean(returns), 50)
        mean, _ = evaluate_policy(model, StarlingVecEnv("CartPole-v1", 4, seed=2), 8)
        self.assertGreater(mean, 50)

    def test_ppo_with_pictures_and_wrappers_runs(self):
        if not has_roms():
            self.skipTest("no ROMs")
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

        from starling.sb3 import StarlingVecEnv

        envs = StarlingVecEnv("ALE/Breakout-v5", 4, seed=1, preset="deepmind")
        envs = VecNormalize(VecMonitor(envs), norm_obs=False)
        model = PPO("CnnPolicy", envs, n_steps=64, batch_size=128, n_epochs=1, seed=0, device="cpu")
        model.learn(512)
        self.assertEqual(model.num_timesteps, 512)

    def test_sac_runs_on_pendulum(self):
        from stable_baselines3 import SAC

        from starling.sb3 import StarlingVecEnv

        envs = StarlingVecEnv("Pendulum-v1", 4, seed=1)
        model = SAC("MlpPolicy", envs, learning_starts=400, train_freq=4, seed=0, device="cpu")
        model.learn(2_400)
        self.assertEqual(model.num_timesteps, 2_400)
        self.assertEqual([episode["l"] for episode in model.ep_info_buffer], [200] * 12)

    def test_ends_are_reported_as_sb3_s_own_vectors_do(self):
        from stable_baselines3.common.vec_env import DummyVecEnv

        import starling
        from starling.sb3 import StarlingVecEnv

        make = lambda: starling.StarlingEnv("CartPole-v1", max_episode_steps=15)
        ours = StarlingVecEnv("CartPole-v1", 3, max_episode_steps=15)
        theirs = DummyVecEnv([make] * 3)
        for envs in (ours, theirs):
            envs.seed(5)
        np.testing.assert_array_equal(ours.reset(), theirs.reset())
        for t in range(60):
            actions = np.array([t % 2, 1, (t // 3) % 2])
            step, expected = ours.step(actions), theirs.step(actions)
            for a, b in zip(step[:3], expected[:3]):
                np.testing.assert_array_equal(a, b)
            for ours_info, theirs_info in zip(step[3], expected[3]):
                for key, value in theirs_info.items():
                    np.testing.assert_array_equal(ours_info[key], value, err_msg=key)

    def test_masks_reach_sb3_contrib(self):
        if not has_roms():
            self.skipTest("no ROMs")
        from starling.sb3 import StarlingVecEnv

        envs = StarlingVecEnv("ALE/Pong-v5", 2, actions="masked")
        envs.reset()
        self.assertTrue(envs.has_attr("action_masks"))
        masks = np.stack(envs.env_method("action_masks"))
        self.assertEqual(masks.shape, (2, 18))
        self.assertEqual(masks.sum(), 12)
        self.assertFalse(StarlingVecEnv("CartPole-v1", 2).has_attr("action_masks"))


if __name__ == "__main__":
    unittest.main()
