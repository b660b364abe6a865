"""Where torch is installed: it stays out of the way, and Gymnasium's wrapper for it works."""

import subprocess
import sys
import unittest

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import starling


class Torch(unittest.TestCase):
    def test_torch_is_installed_but_not_imported(self):
        program = (
            "import importlib.util, sys\n"
            "import starling, starling.envpool, starling.onnx, starling.replay, starling.roms\n"
            "envs = starling.make_vec('CartPole-v1', 2)\n"
            "envs.reset(seed=1)\n"
            "envs.step(envs.action_space.sample())\n"
            "print(importlib.util.find_spec('torch') is not None, 'torch' in sys.modules)"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "True False", said.stderr)

    def test_numpy_to_torch(self):
        import torch
        from gymnasium.wrappers.vector import NumpyToTorch

        def pair(mode):
            make = lambda: starling.StarlingEnv("CartPole-v1", max_episode_steps=25)
            ours = starling.make_vec("CartPole-v1", 3, autoreset_mode=mode, max_episode_steps=25)
            return NumpyToTorch(ours), NumpyToTorch(SyncVectorEnv([make] * 3, autoreset_mode=mode))

        # Infos of SAME_STEP contain an array of objects (final_obs), which it cannot convert.
        for envs in pair(AutoresetMode.SAME_STEP):
            envs.reset(seed=5)
            with self.assertRaisesRegex(BufferError, "DLPack only supports"):
                for _ in range(25):
                    envs.step(torch.ones(3, dtype=torch.int64))
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            ours, theirs = pair(mode)
            one, other = ours.reset(seed=5)[0], theirs.reset(seed=5)[0]
            self.assertIsInstance(one, torch.Tensor)
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            ends, generator = 0, torch.Generator().manual_seed(1)
            for _ in range(80):
                actions = torch.randint(2, (3,), generator=generator)
                step, expected = ours.step(actions), theirs.step(actions)
                for a, b in zip(step[:4], expected[:4]):
                    self.assertIsInstance(a, torch.Tensor)
                    torch.testing.assert_close(a, b, rtol=0, atol=0)
                ended = np.asarray(step[2] | step[3])
                ends += ended.sum()
                if mode is AutoresetMode.DISABLED and ended.any():
                    # The mask is one of NumPy, and the wrapper hands it on.
                    one = ours.reset(options={"reset_mask": ended.copy()})[0]
                    other = theirs.reset(options={"reset_mask": ended.copy()})[0]
                    torch.testing.assert_close(one, other, rtol=0, atol=0)
            self.assertGreater(ends, 3)


if __name__ == "__main__":
    unittest.main()
