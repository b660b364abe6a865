"""Steps per second of Stable-Baselines3 on HalfCheetah-v5, learning included.

    python peer_sb3_control.py sac|td3 SECONDS

One update of 256 per step, networks of 256-256. Needs: stable-baselines3, gymnasium, mujoco, torch.
"""

import sys
import time

import gymnasium
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

STARTS, WARM_UP = 300, 100


class Clock(BaseCallback):
    """Steps and time since the warm-up; ends the run."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.began, self.rate = seconds, None, 0.0

    def _on_step(self):
        now, steps = time.perf_counter(), self.num_timesteps - STARTS - WARM_UP
        if steps == 0:
            self.began = now
        if steps > 0:
            self.rate = steps / (now - self.began)
            return now - self.began < self.seconds
        return True


def main(algorithm, seconds):
    env = gymnasium.make("HalfCheetah-v5")
    settings = {
        "learning_rate": 3e-4, "batch_size": 256, "learning_starts": STARTS, "train_freq": 1,
        "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]}, "buffer_size": 100_000,
        "device": "cpu", "seed": 1,
    }
    model = {"sac": SAC, "td3": TD3}[algorithm]("MlpPolicy", env, **settings)
    clock = Clock(seconds)
    model.learn(total_timesteps=10**9, callback=clock)
    print(clock.rate)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
