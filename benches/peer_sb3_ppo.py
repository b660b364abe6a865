"""Steps per second of Stable-Baselines3's PPO on Pong, learning included.

Needs: stable-baselines3, ale-py, opencv-python-headless, torch (CPU).
The same network (Nature), 8 environments, 128 steps, 4 epochs of 4 minibatches.
"""

import time

import ale_py
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

ROLLOUTS = 6


class Clock(BaseCallback):
    """When each rollout began."""

    def __init__(self):
        super().__init__()
        self.times = []

    def _on_rollout_start(self):
        self.times.append(time.perf_counter())

    def _on_step(self):
        return True


def main():
    gymnasium.register_envs(ale_py)
    envs = make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=1, vec_env_cls=SubprocVecEnv)
    envs = VecFrameStack(envs, n_stack=4)
    model = PPO(
        "CnnPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4,
        clip_range=0.1, ent_coef=0.01, vf_coef=0.5, gae_lambda=0.95, max_grad_norm=0.5, device="cpu",
    )
    clock = Clock()
    model.learn(total_timesteps=(ROLLOUTS + 1) * 1024, callback=clock)
    # The first rollout warms up; the last one's update is not bracketed.
    times = clock.times
    print((len(times) - 2) * 1024 / (times[-1] - times[1]))


if __name__ == "__main__":
    main()
