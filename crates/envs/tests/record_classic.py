"""Records trajectories of Gymnasium's classic control tasks for the tests of `classic`.

Run from this folder, with `pip install "gymnasium==1.4.*"`:

    python record_classic.py

Writes fixtures/classic.json: per environment some episodes, each with its start in double
precision (`state`), the actions, and what followed each: observation, reward, terminated,
truncated. Single-precision numbers are written as the integers of their bits, so that nothing
is lost; those of an episode are one string of eight hexadecimal digits each.
"""

import json
import pathlib

import gymnasium
import numpy as np

EPISODES = {
    "CartPole-v1": 8,
    "MountainCar-v0": 5,
    "MountainCarContinuous-v0": 2,
    "Acrobot-v1": 3,
    "Pendulum-v1": 3,
}


def bits(values):
    values = np.asarray(values, dtype=np.float32).reshape(-1)
    return "".join(f"{int(word):08x}" for word in values.view(np.uint32))


def choose(env_id, episode, obs, space, rng):
    """Some episodes at random, some towards the goal, so that all kinds of ends occur."""
    if env_id == "CartPole-v1" and episode % 7 == 0:
        # Keeps the pole up until the time limit.
        return int(obs[2] + 0.5 * obs[3] + 0.02 * obs[0] + 0.05 * obs[1] > 0)
    if env_id == "MountainCar-v0" and episode % 2 == 0:
        return 2 if obs[1] >= 0 else 0
    if env_id == "MountainCarContinuous-v0":
        if episode == 0:
            return np.array([1.0 if obs[1] >= 0 else -1.0], dtype=np.float32)
        if episode == 1:
            # Beyond the bounds, where the throttle is clipped.
            return rng.uniform(-1.5, 1.5, 1).astype(np.float32)
    if env_id == "Acrobot-v1" and episode % 2 == 0:
        return 2 if obs[5] > 0 else 0
    if env_id == "Pendulum-v1" and episode == 0:
        return rng.uniform(-4, 4, 1).astype(np.float32)
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(rng.integers(space.n))
    return rng.uniform(space.low, space.high).astype(np.float32)


def record(env_id):
    env = gymnasium.make(env_id)
    rng = np.random.default_rng(0)
    episodes = []
    for episode in range(EPISODES[env_id]):
        obs, _ = env.reset(seed=episode)
        state = [float(x) for x in env.unwrapped.state]
        observations, actions, rewards, ended = [obs], [], [], None
        while ended is None:
            action = choose(env_id, episode, obs, env.action_space, rng)
            obs, reward, terminated, truncated, _ = env.step(action)
            actions.append(action)
            observations.append(obs)
            rewards.append(reward)
            if terminated or truncated:
                ended = {"terminated": bool(terminated), "truncated": bool(truncated)}
        discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        episodes.append(
            {
                "state": state,
                "actions": "".join(map(str, actions)) if discrete else bits(actions),
                "observations": bits(np.concatenate(observations)),
                "rewards": bits(rewards),
                **ended,
            }
        )
    return {"discrete": discrete, "episodes": episodes}


if __name__ == "__main__":
    fixtures = {env_id: record(env_id) for env_id in EPISODES}
    path = pathlib.Path(__file__).parent / "fixtures" / "classic.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fixtures, indent=0) + "\n")
    for env_id, fixture in fixtures.items():
        lengths = [len(e["rewards"]) // 8 for e in fixture["episodes"]]
        ends = [(e["terminated"], e["truncated"]) for e in fixture["episodes"]]
        print(env_id, lengths, ends)
    print(path.stat().st_size, "bytes")
