"""Records Gymnasium's MuJoCo tasks for the tests of this crate.

Run from this folder, with `pip install gymnasium==1.4.0 mujoco==3.17.0 "numpy==2.4.*" imageio`, on a
processor with FMA (numpy's BLAS rounds differently without it):

    python record_gymnasium.py

Writes one file per case into fixtures/: a line of JSON, then numbers in little-endian order:

- actions: a byte per control and step, which stands for low + (high - low) * byte / 255 in single
  precision;
- per episode: qpos, qvel (float64) and the hash of the first observation;
- per step: the hash of its observation, reward and end (uint64);
- the reward and the observation of every 50th step (float64).

The hash of float64 numbers is FNV-1a over their bits, taken 64 at a time: numbers that differ in one
place only never have the same hash.
"""

import json
import os
import pathlib
import tempfile

import gymnasium
import numpy as np

STEPS = 1000
WHOLE = 50
TASKS = (
    "HalfCheetah Hopper Walker2d Ant Humanoid HumanoidStandup Swimmer Reacher InvertedPendulum "
    "InvertedDoublePendulum Pusher"
).split()
# Every option of Gymnasium's constructors is given in one of these at least once.
VARIANTS = [
    ("HalfCheetah-v5", dict(forward_reward_weight=1.3, ctrl_cost_weight=0.07, frame_skip=3,
                            exclude_current_positions_from_observation=False)),
    ("HalfCheetah-v4", dict(forward_reward_weight=1.3, ctrl_cost_weight=0.07,
                            exclude_current_positions_from_observation=False)),
    ("Hopper-v5", dict(forward_reward_weight=0.9, ctrl_cost_weight=0.01, healthy_reward=0.7,
                       terminate_when_unhealthy=False, healthy_state_range=(-8.0, 8.0),
                       healthy_z_range=(0.5, 1.3), healthy_angle_range=(-0.3, 0.25), frame_skip=2,
                       exclude_current_positions_from_observation=False)),
    ("Hopper-v4", dict(healthy_reward=0.7, terminate_when_unhealthy=False)),
    ("Walker2d-v5", dict(forward_reward_weight=0.9, ctrl_cost_weight=0.01, healthy_reward=0.7,
                         terminate_when_unhealthy=False, healthy_z_range=(0.9, 1.6),
                         healthy_angle_range=(-0.5, 0.4), frame_skip=5, xml_file="walker2d.xml",
                         exclude_current_positions_from_observation=False)),
    ("Walker2d-v4", dict(healthy_reward=0.7, terminate_when_unhealthy=False)),
    ("Ant-v5", dict(forward_reward_weight=0.8, ctrl_cost_weight=0.3, contact_cost_weight=1e-3,
                    healthy_reward=0.6, main_body=3, terminate_when_unhealthy=False,
                    healthy_z_range=(0.4, 0.9), contact_force_range=(-0.5, 2.0), frame_skip=4,
                    exclude_current_positions_from_observation=False)),
    ("Ant-v5", dict(include_cfrc_ext_in_observation=False, main_body="torso")),
    ("Ant-v4", dict(use_contact_forces=True, contact_cost_weight=1e-3)),
    ("Humanoid-v5", dict(forward_reward_weight=1.1, ctrl_cost_weight=0.2, contact_cost_weight=1e-5,
                         contact_cost_range=(0.01, 0.5), healthy_reward=4.5, frame_skip=4,
                         terminate_when_unhealthy=False, healthy_z_range=(0.9, 1.35),
                         exclude_current_positions_from_observation=False,
                         include_cinert_in_observation=False)),
    ("Humanoid-v5", dict(include_cvel_in_observation=False,
                         include_qfrc_actuator_in_observation=False,
                         include_cfrc_ext_in_observation=False)),
    ("Humanoid-v4", dict(terminate_when_unhealthy=False, healthy_reward=4.5)),
    ("HumanoidStandup-v5", dict(ctrl_cost_weight=0.2, impact_cost_weight=1e-5,
                                impact_cost_range=(0.01, 0.5), frame_skip=3,
                                include_cinert_in_observation=False,
                                include_cvel_in_observation=False,
                                include_qfrc_actuator_in_observation=False,
                                include_cfrc_ext_in_observation=False,
                                exclude_current_positions_from_observation=False)),
    ("Swimmer-v5", dict(forward_reward_weight=1.2, ctrl_cost_weight=0.01, frame_skip=3,
                        exclude_current_positions_from_observation=False)),
    ("Reacher-v5", dict(reward_dist_weight=0.7, reward_control_weight=0.3, frame_skip=3)),
    ("InvertedPendulum-v5", dict(frame_skip=1, reset_noise_scale=0.05)),
    ("InvertedDoublePendulum-v5", dict(healthy_reward=7.5, frame_skip=3, reset_noise_scale=0.02)),
    ("Pusher-v5", dict(reward_near_weight=0.4, reward_dist_weight=1.2, reward_control_weight=0.05,
                       frame_skip=4)),
]


def fnv(values):
    code = 0xCBF29CE484222325
    for word in np.asarray(values, dtype="<f8").view("<u8").tolist():
        code = ((code ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return code


def record(env_id, options, steps):
    env = gymnasium.make(env_id, **options)
    inner = env.unwrapped
    low, high = env.action_space.low, env.action_space.high
    rng = np.random.default_rng(7)
    controls = rng.integers(0, 256, size=(steps, len(low)), dtype=np.uint8)
    episodes, starts, hashes, whole, ends = [], [], [], [], []

    def begin(step, **seed):
        obs, _ = env.reset(**seed)
        starts.append(step)
        episodes.extend([inner.data.qpos.copy(), inner.data.qvel.copy()])
        episodes.append(np.array([fnv(obs)], dtype="<u8"))
        return obs

    obs = begin(0, seed=11)
    for step in range(steps):
        share = controls[step].astype(np.float32) / np.float32(255)
        action = low + (high - low) * share
        assert action.dtype == np.float32
        obs, reward, terminated, truncated, _ = env.step(action)
        assert obs.dtype == np.float64 and obs.shape == env.observation_space.shape
        hashes.append(fnv([*obs, float(reward), float(terminated)]))
        if step % WHOLE == 0:
            whole.append(np.array([reward, *obs], dtype="<f8"))
        if terminated or truncated:
            ends.append([step, bool(terminated), bool(truncated)])
            if step + 1 < steps:
                obs = begin(step + 1)
    head = {
        "id": env_id,
        "options": options,
        "steps": steps,
        "whole": WHOLE,
        "sizes": [inner.model.nq, inner.model.nv, inner.model.nu, len(obs)],
        "limit": env.spec.max_episode_steps,
        "threshold": env.spec.reward_threshold,
        "starts": starts,
        "ends": ends,
    }
    parts = [controls, *episodes, np.array(hashes, dtype="<u8"), *whole]
    return (json.dumps(head) + "\n").encode() + b"".join(part.tobytes() for part in parts)


if __name__ == "__main__":
    folder = pathlib.Path(__file__).resolve().parent / "fixtures"
    folder.mkdir(exist_ok=True)
    # MuJoCo appends its warnings to a file in the current folder.
    os.chdir(tempfile.gettempdir())
    cases = [(f"{task}-v{version}", {}, STEPS) for version in (5, 4) for task in TASKS]
    cases = [case for case in cases if case[0] != "Pusher-v4"]
    cases += [(env_id, options, 200) for env_id, options in VARIANTS]
    names = {}
    for env_id, options, steps in cases:
        names[env_id] = names.get(env_id, -1) + 1
        name = f"{env_id}.{names[env_id]}" if names[env_id] else env_id
        path = folder / f"{name}.bin"
        path.write_bytes(record(env_id, options, steps))
        print(path.name, path.stat().st_size)
