"""The replay against what was put in."""

import concurrent.futures
import unittest

import gymnasium
import numpy as np

import starling


def filled(replay, envs, steps, seed=3):
    """Adds random steps; returns every (obs, action, reward, done, next observation), per environment."""
    obs, _ = envs.reset(seed=seed)
    envs.action_space.seed(seed)
    told = [[] for _ in range(envs.num_envs)]
    for _ in range(steps):
        actions = envs.action_space.sample()
        after, rewards, terminated, truncated, infos = envs.step(actions)
        replay.add(obs, actions, rewards, terminated, truncated, after, infos)
        for env in range(envs.num_envs):
            ended = terminated[env] or truncated[env]
            following = infos["final_obs"][env] if ended else after[env]
            told[env].append((obs[env], actions[env], rewards[env], terminated[env], following))
        obs = after
    return told


class ReplayTest(unittest.TestCase):
    def test_transitions_come_back_as_they_were(self):
        envs = starling.make_vec("CartPole-v1", 3, autoreset_mode="SameStep", max_episode_steps=20)
        replay = starling.Replay(envs, 1000, gamma=0.9)
        told = filled(replay, envs, 100)
        self.assertGreater(len(replay), 290)
        known = {step[0].tobytes(): step for steps in told for step in steps}
        batch = replay.sample(256)
        for i in range(256):
            obs, action, reward, terminated, after = known[batch.obs[i].tobytes()]
            self.assertEqual(batch.actions[i], action)
            self.assertEqual(batch.returns[i], reward)
            self.assertAlmostEqual(batch.discounts[i], 0.0 if terminated else 0.9, places=6)
            if not terminated:
                np.testing.assert_array_equal(batch.next_obs[i], after)
        np.testing.assert_array_equal(batch.weights, 1)

    def test_returns_are_sums_over_n_steps(self):
        envs = starling.make_vec("CartPole-v1", 2, autoreset_mode="SameStep")
        replay = starling.Replay(envs, 1000, gamma=0.5, n_steps=3)
        filled(replay, envs, 60)
        returns = set(np.round(replay.sample(512).returns, 4))
        # Rewards are 1; the last steps of an episode have fewer of them.
        self.assertEqual(returns, {1.75, 1.5, 1.0})

    def test_priorities_decide_what_is_drawn(self):
        envs = starling.make_vec("CartPole-v1", 2, autoreset_mode="SameStep")
        replay = starling.Replay(envs, 1000, alpha=1.0)
        filled(replay, envs, 50)
        batch = replay.sample(64)
        ids = {tuple(id) for id in batch.ids}
        everything = [replay.sample(64).ids.copy() for _ in range(40)]
        for some in everything:
            self.assertEqual(replay.update_priorities(some, np.full(64, 1e-6)), 0)
        chosen = sorted(ids)[0]
        replay.update_priorities(np.array([chosen], np.uint64), [1e3])
        drawn = replay.sample(64, beta=1.0).ids
        self.assertGreater(np.all(drawn == chosen, axis=1).mean(), 0.9)

    def test_batches_are_views_that_keep_their_memory(self):
        envs = starling.make_vec("CartPole-v1", 2, autoreset_mode="SameStep")
        replay = starling.Replay(envs, 1000)
        filled(replay, envs, 50)
        batch = replay.sample(32)
        self.assertFalse(batch.obs.flags.owndata)
        again = replay.sample(32)
        self.assertEqual(batch.obs.ctypes.data, again.obs.ctypes.data)
        kept = again.obs.copy()
        view = again.obs
        del replay, batch, again
        np.testing.assert_array_equal(view, kept)

    def test_frames_are_stored_once(self):
        space = gymnasium.spaces.Box(0, 255, (4, 8, 8), np.uint8)

        class Frames:
            num_envs = 1
            single_observation_space = space
            single_action_space = gymnasium.spaces.Discrete(2)

        rng = np.random.default_rng(1)
        frames = rng.integers(0, 256, (40, 8, 8)).astype(np.uint8)
        padded = np.concatenate([frames[:1]] * 3 + [frames])
        stacks = np.stack([padded[t : t + 4] for t in range(40)])[:, None]
        stacked = starling.Replay(Frames, 100, frame_stack=4)
        no = np.zeros(1, bool)
        for t in range(39):
            stacked.add(stacks[t], np.zeros(1), np.ones(1), no, no, stacks[t + 1])
        batch = stacked.sample(64)
        known = {stack.tobytes() for stack in stacks}
        self.assertTrue(all(one.tobytes() in known for one in batch.obs))
        self.assertLess(stacked.nbytes, starling.Replay(Frames, 100).nbytes / 2)

    def test_many_threads_add_and_draw(self):
        envs = starling.make_vec("CartPole-v1", 2, autoreset_mode="SameStep")
        replay = starling.Replay(envs, 1000, alpha=0.6)
        filled(replay, envs, 50)
        obs, _ = envs.reset(seed=1)
        no = np.zeros(2, bool)

        def work(_):
            for _ in range(200):
                replay.add(obs, np.zeros(2), np.ones(2), no, no, obs)
                drawn = replay.sample(16)
                replay.update_priorities(drawn.ids, np.ones(16))

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4), timeout=60))
        self.assertEqual(replay.inserted_steps, 2 * (50 + 800))

    def test_mistakes_are_errors_that_say_what_to_do(self):
        envs = starling.make_vec("CartPole-v1", 2, autoreset_mode="SameStep")
        replay = starling.Replay(envs, 1000)
        with self.assertRaises(ValueError):
            replay.sample(4)
        obs, _ = envs.reset(seed=1)
        yes, no = np.ones(2, bool), np.zeros(2, bool)
        with self.assertRaisesRegex(ValueError, "SameStep"):
            replay.add(obs, np.zeros(2), np.ones(2), yes, no, obs, {})
        with self.assertRaisesRegex(ValueError, "shape"):
            replay.add(obs[:1], np.zeros(2), np.ones(2), no, no, obs)
        with self.assertRaisesRegex(ValueError, "capacity_steps"):
            starling.Replay(envs, 0)


if __name__ == "__main__":
    unittest.main()
