"""The program and its agents, in an environment with both wheels and torch."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import starling

STARLING = pathlib.Path(sys.executable).parent / "starling"


def run(*arguments, **more):
    done = subprocess.run([STARLING, *arguments], capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


class Train(unittest.TestCase):
    def test_a_run_is_trained_and_its_agent_plays(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = ["steps=40000", "seed=1", "torch_threads=1", "device=cpu"]
            run("train", "CartPole-v1", *settings, cwd=folder)
            runs = [path.parent for path in pathlib.Path(folder).rglob("checkpoints")]
            self.assertEqual(len(runs), 1)
            agent = starling.load(runs[0])
            env = starling.StarlingEnv("CartPole-v1")
            returns = []
            for episode in range(5):
                obs, _ = env.reset(seed=episode)
                agent.reset()
                total, over = 0.0, False
                while not over:
                    obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
                    agent.rewarded(reward)
                    total += reward
                    over = terminated or truncated
                returns.append(total)
            # Random actions hold the pole for about 22 steps.
            self.assertGreater(np.mean(returns), 100)
            self.assertIsInstance(agent.act(obs), int)
            self.assertEqual(agent.act(obs.astype(np.float64)), agent.act(list(obs)))
            with self.assertRaisesRegex(ValueError, "3 numbers, 4 are needed"):
                agent.act(obs[:3])
            with self.assertRaisesRegex(RuntimeError, "nowhere"):
                starling.load(pathlib.Path(folder) / "nowhere")

    def test_the_program_is_called_starling(self):
        self.assertIn("starling train", run("--help") + run("list", "envs"))

    def test_environments_of_this_python_are_known(self):
        self.assertIn("CartPole", run("check-env", "gym:CartPole-v1"))

    def test_there_is_one_libtorch_in_the_process(self):
        import torch
        import starling_train

        starling_train._torch.prepare()
        from starling_train import _agent  # noqa: F401

        maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
        found = {line.split()[-1] for line in maps if "libtorch_cpu" in line}
        library = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        self.assertEqual(found, {str(library.resolve())})


if __name__ == "__main__":
    unittest.main()
