"""EnvPool's interface: `python -m unittest` in an environment with the wheel."""

import unittest

import numpy as np

import starling.envpool as envpool

ENVS, STEPS = 6, 120


def action_of(env, step):
    """Something that depends on the environment and on how often it was stepped, and on nothing else."""
    return (env * 7 + step * step) % 3 % 2


def histories_of_sync(id, **options):
    """What every environment shows, one tuple per step."""
    envs = envpool.make_gymnasium(id, num_envs=ENVS, seed=5, **options)
    obs, info = envs.reset()
    histories = [[(obs[env], 0.0, False, False, 0)] for env in range(ENVS)]
    for step in range(STEPS):
        actions = np.array([action_of(env, step) for env in range(ENVS)])
        obs, rewards, terminated, truncated, info = envs.step(actions)
        for env in range(ENVS):
            flags = terminated[env], truncated[env]
            histories[env].append((obs[env], rewards[env], *flags, info["elapsed_step"][env]))
    return histories


def histories_of_async(id, batch_size, num_threads, **options):
    envs = envpool.make_gymnasium(
        id, num_envs=ENVS, batch_size=batch_size, num_threads=num_threads, seed=5, **options
    )
    assert envs.is_async and len(envs) == ENVS and envs.config["batch_size"] == batch_size
    histories = [[] for _ in range(ENVS)]
    envs.async_reset()
    while min(len(history) for history in histories) <= STEPS:
        obs, rewards, terminated, truncated, info = envs.recv()
        env_id = info["env_id"]
        assert env_id.dtype == np.int32 and env_id.shape == (batch_size,) == rewards.shape
        assert len(np.unique(env_id)) == batch_size and obs.shape[0] == batch_size
        for row, env in enumerate(env_id):
            flags = terminated[row], truncated[row]
            histories[env].append((obs[row], rewards[row], *flags, info["elapsed_step"][row]))
        actions = np.array([action_of(env, len(histories[env]) - 1) for env in env_id])
        envs.send(actions, env_id)
    return histories


class EnvPool(unittest.TestCase):
    def test_environments_do_the_same_in_batches_of_any_size(self):
        for id, options in [("CartPole-v1", {}), ("MinAtar/Breakout-v1", {"max_episode_steps": 40})]:
            expected = histories_of_sync(id, **options)
            self.assertTrue(any(step[2] or step[3] for history in expected for step in history))
            for batch_size, num_threads in [(1, 1), (2, 2), (4, 3), (5, None)]:
                found = histories_of_async(id, batch_size, num_threads, **options)
                for env in range(ENVS):
                    for step in range(STEPS + 1):
                        for a, b in zip(found[env][step], expected[env][step], strict=True):
                            where = f"{id} {batch_size} env {env} step {step}"
                            np.testing.assert_array_equal(a, b, err_msg=where)

    def test_results_come_in_the_order_of_arrival(self):
        # One thread does one after the other.
        envs = envpool.make_gymnasium("CartPole-v1", num_envs=5, batch_size=2, num_threads=1)
        envs.async_reset()
        received = lambda: envs.recv()[-1]["env_id"].tolist()
        self.assertEqual(received(), [0, 1])
        envs.send(np.array([1, 0]), np.array([1, 0]))
        self.assertEqual(received(), [2, 3])
        self.assertEqual(received(), [4, 1])
        # step is send and recv.
        step = envs.step(np.array([0, 0, 1]), np.array([3, 4, 2]))
        self.assertEqual(step[-1]["env_id"].tolist(), [0, 3])

    def test_some_environments_are_stepped_in_their_order(self):
        envs, all_of_them = [envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=1) for _ in range(2)]
        self.assertFalse(envs.is_async)
        before, _ = envs.reset()
        all_of_them.reset()
        expected = all_of_them.step(np.array([1, 0, 0, 1]))[0]
        obs, rewards, _, _, info = envs.step(np.array([1, 0]), np.array([3, 1]))
        np.testing.assert_array_equal(obs, expected[[3, 1]])
        np.testing.assert_array_equal(info["env_id"], [3, 1])
        np.testing.assert_array_equal(info["elapsed_step"], [1, 1])
        obs, info = envs.reset(np.array([2]))
        self.assertEqual(obs.shape, (1, 4))
        self.assertFalse(np.array_equal(obs[0], before[2]))
        # It was not stepped before.
        obs = envs.step(np.array([1]), np.array([0]))[0]
        np.testing.assert_array_equal(obs, expected[[0]])

    def test_a_seed_per_environment(self):
        one = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=[9, 4, 9]).reset()[0]
        np.testing.assert_array_equal(one[0], one[2])
        self.assertFalse(np.array_equal(one[0], one[1]))

    def test_mistakes_are_errors_that_say_what_to_do(self):
        with self.assertRaisesRegex(ValueError, r"batch_size is 5; allowed: 1 to num_envs \(4\)"):
            envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=5)
        envs = envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2)
        with self.assertRaisesRegex(RuntimeError, "async_reset"):
            envs.recv()
        envs.async_reset()
        with self.assertRaisesRegex(RuntimeError, "environment 3 .*has an action already"):
            envs.send(np.array([0]), np.array([3]))
        env_id = envs.recv()[-1]["env_id"]
        with self.assertRaisesRegex(ValueError, "2 actions were given for 1"):
            envs.send(np.array([0, 0]), env_id[:1])
        with self.assertRaisesRegex(ValueError, "twice"):
            envs.send(np.array([0, 0]), env_id[[0, 0]])
        with self.assertRaisesRegex(ValueError, "allowed: 0 to 3"):
            envs.send(np.array([0]), np.array([4]))
        rest = envs.recv()[-1]["env_id"]
        # A wrong action is an error of its environment; the results of others are not lost.
        envs.send(np.array([0, 7]), env_id)
        envs.send(np.array([1]), rest[:1])
        with self.assertRaisesRegex(ValueError, f"environment {env_id[1]} .*allowed: 0 to 1"):
            envs.recv()
        self.assertEqual(sorted(envs.recv()[-1]["env_id"]), sorted([env_id[0], rest[0]]))
        sync = envpool.make_gymnasium("CartPole-v1", num_envs=2)
        with self.assertRaisesRegex(RuntimeError, "nothing was sent"):
            sync.recv()


if __name__ == "__main__":
    unittest.main()
