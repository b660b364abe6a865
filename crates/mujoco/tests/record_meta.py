"""Records the task families of PEARL for the tests of this crate.

Run from this folder, with `pip install mujoco==3.17.0 numpy`:

    python record_meta.py meta.json

Rewards, observations and ends are written out here from the definitions of PEARL's reference code, with
MuJoCo's Python bindings. Contact forces are zero: it ran on MuJoCo 2.0, which did not compute them.
"""

import json
import sys

import mujoco
import numpy as np

STEPS = 12


class Family:
    def __init__(self, xml, frame_skip=5):
        self.model = mujoco.MjModel.from_xml_path(f"../assets/{xml}")
        self.data = mujoco.MjData(self.model)
        self.frame_skip = frame_skip
        self.dt = frame_skip * self.model.opt.timestep

    def torso(self):
        return self.data.body("torso").xpos.copy()

    def simulate(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, nstep=self.frame_skip)


class Cheetah(Family):
    def __init__(self, direction=None, velocity=None):
        super().__init__("half_cheetah.xml")
        self.direction, self.velocity = direction, velocity

    def observe(self):
        return np.concatenate([self.data.qpos[1:], self.data.qvel, self.torso()])

    def step(self, action):
        before = self.data.qpos[0]
        self.simulate(action)
        velocity = (self.data.qpos[0] - before) / self.dt
        cost = 0.5 * 0.1 * np.sum(np.square(action))
        if self.velocity is None:
            return self.direction * velocity - cost, False
        return -abs(velocity - self.velocity) - cost, False


class AntDir(Family):
    def __init__(self, angle):
        super().__init__("ant.xml")
        self.direction = (np.cos(angle), np.sin(angle))

    def observe(self):
        return np.concatenate([self.data.qpos[2:], self.data.qvel])

    def step(self, action):
        before = self.torso()
        self.simulate(action)
        velocity = (self.torso() - before) / self.dt
        reward = np.dot(velocity[:2], self.direction) - 0.5 * np.square(action).sum() + 1.0
        state = np.concatenate([self.data.qpos, self.data.qvel])
        alive = np.isfinite(state).all() and 0.2 <= state[2] <= 1.0
        return reward, not alive


class AntGoal(Family):
    def __init__(self, goal_x, goal_y):
        super().__init__("ant.xml")
        self.goal = np.array([goal_x, goal_y])

    def observe(self):
        contacts = np.clip(self.data.cfrc_ext, -1, 1).flat
        return np.concatenate([self.data.qpos, self.data.qvel, contacts])

    def step(self, action):
        self.simulate(action)
        distance = np.sum(np.abs(self.torso()[:2] - self.goal))
        return -distance - 0.1 * np.square(action).sum(), False


class HumanoidDir(Family):
    def __init__(self, angle):
        super().__init__("humanoid.xml")
        self.direction = (np.cos(angle), np.sin(angle))

    def centre(self):
        mass = np.expand_dims(self.model.body_mass, 1)
        return (np.sum(mass * self.data.xipos, 0) / np.sum(mass))[:2]

    def observe(self):
        data = self.data
        parts = [data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext]
        return np.concatenate([data.qpos[2:], data.qvel] + [part.flatten() for part in parts])

    def step(self, action):
        before = self.centre()
        self.simulate(action)
        moving = np.dot(self.centre() - before, self.direction) / self.model.opt.timestep
        reward = 0.25 * moving - 0.1 * np.square(self.data.ctrl).sum() + 5.0
        height = self.data.qpos[2]
        return reward, bool(height < 1.0 or height > 2.0)


class RandomParams(Family):
    def __init__(self, xml, body_seed):
        super().__init__(xml, frame_skip=4)
        model = self.model
        model.opt.timestep = 0.004
        self.dt = 4 * 0.004
        random = np.random.RandomState(body_seed)
        arrays = [model.body_mass, model.body_inertia, model.dof_damping, model.geom_friction]
        for array, base in zip(arrays, [1.5, 1.5, 1.3, 1.5]):
            array[:] *= base ** random.uniform(-3, 3, size=array.shape)

    def observe(self):
        return np.concatenate([self.data.qpos[1:], np.clip(self.data.qvel, -10, 10)])

    def step(self, action):
        before = self.data.qpos[0]
        self.simulate(action)
        reward = (self.data.qpos[0] - before) / self.dt + 1.0 - 1e-3 * np.square(action).sum()
        return reward, not self.alive()


class Hopper(RandomParams):
    def __init__(self, body_seed):
        super().__init__("hopper.xml", body_seed)

    def alive(self):
        state = np.concatenate([self.data.qpos, self.data.qvel])
        bounded = np.isfinite(state).all() and (np.abs(state[2:]) < 100).all()
        return bounded and state[1] > 0.7 and abs(state[2]) < 0.2


class Walker(RandomParams):
    def __init__(self, body_seed):
        super().__init__("walker2d.xml", body_seed)

    def alive(self):
        height, angle = self.data.qpos[1:3]
        return 0.8 < height < 2.0 and -1.0 < angle < 1.0


def record(name, family, options, noise=0.1):
    env, rng = family(**options), np.random.default_rng(1)
    data = env.data
    data.qpos[:] += rng.uniform(-noise, noise, env.model.nq)
    data.qvel[:] += noise * rng.standard_normal(env.model.nv)
    case = {"id": name, "options": options, "qpos": data.qpos.tolist(), "qvel": data.qvel.tolist()}
    mujoco.mj_forward(env.model, data)
    case["first"] = env.observe().tolist()
    case["steps"] = []
    low, high = env.model.actuator_ctrlrange.T
    for _ in range(STEPS):
        action = rng.uniform(low, high).astype(np.float32).astype(np.float64)
        reward, done = env.step(action)
        case["steps"].append({
            "action": action.tolist(), "reward": float(reward), "done": bool(done),
            "obs": env.observe().tolist(),
        })
    return case


def main():
    cases = [
        record("CheetahDir-v0", Cheetah, {"direction": -1.0}),
        record("CheetahVel-v0", Cheetah, {"velocity": 2.2}),
        record("AntDir-v0", AntDir, {"angle": 2.5}),
        record("AntGoal-v0", AntGoal, {"goal_x": -1.5, "goal_y": 0.75}),
        record("HumanoidDir-v0", HumanoidDir, {"angle": 4.0}),
        record("HopperRandParams-v0", Hopper, {"body_seed": 5}, noise=0.005),
        record("Walker2dRandParams-v0", Walker, {"body_seed": 6}, noise=0.005),
    ]
    with open(sys.argv[1], "w") as file:
        json.dump(cases, file, indent=0)


if __name__ == "__main__":
    main()
