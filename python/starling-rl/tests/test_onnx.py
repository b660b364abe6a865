"""Agents as ONNX files, of the form that `starling export` writes."""

import importlib.util
import pathlib
import tempfile
import unittest

import numpy as np

READY = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def write(path, recurrent):
    """A policy whose action is the sum of the observation, and of what it remembers, above 0."""
    from onnx import TensorProto, helper

    tensor, number = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [tensor("observation", number, ["batch", 3])]
    outputs = [tensor("action", TensorProto.INT64, ["batch"])]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    zero = helper.make_tensor("zero", number, [], [0.0])
    nodes = [helper.make_node("ReduceSum", ["observation", "axes"], ["own"], keepdims=1)]
    total = "own"
    if recurrent:
        inputs.append(tensor("hidden", number, ["batch", 1]))
        outputs.append(tensor("hidden_next", number, ["batch", 1]))
        nodes.append(helper.make_node("Add", ["own", "hidden"], ["hidden_next"]))
        total = "hidden_next"
    nodes += [
        helper.make_node("Greater", [total, "zero"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["integer"], to=TensorProto.INT64),
        helper.make_node("Squeeze", ["integer", "axes"], ["action"]),
    ]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, [axes, zero])
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    space = '{"type": "Box", "shape": [3], "dtype": "float32", "low": null, "high": null}'
    helper.set_model_props(model, {"environment": "Sum-v0", "observation_space": space})
    pathlib.Path(path).write_bytes(model.SerializeToString())


def write_adaptive(path):
    """A policy whose action is z, and an encoder that infers the mean of the rewards."""
    from onnx import TensorProto, helper

    number = TensorProto.FLOAT

    def model(to, nodes, inputs, outputs, constants=()):
        tensor = lambda name: helper.make_tensor_value_info(
            name, number, ["batch"] if name == "reward" else ["batch", 1]
        )
        graph = helper.make_graph(
            nodes, "g", [tensor(name) for name in inputs], [tensor(name) for name in outputs], constants
        )
        opset = [helper.make_opsetid("", 21)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=10)
        space = '{"type": "Box", "shape": [1], "dtype": "float32", "low": null, "high": null}'
        helper.set_model_props(made, {"environment": "Task-v0", "observation_space": space})
        to.write_bytes(made.SerializeToString())

    node = helper.make_node
    zero = helper.make_tensor("zero", number, [], [0.0])
    model(
        path,
        [node("Mul", ["observation", "zero"], ["nothing"]), node("Add", ["nothing", "z"], ["action"])],
        ["observation", "z"],
        ["action"],
        [zero],
    )
    weight = helper.make_tensor("weight", number, [], [1e6])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    model(
        path.with_name(f"{path.stem}-encoder.onnx"),
        [
            node("Unsqueeze", ["reward", "axes"], ["column"]),
            node("Mul", ["column", "weight"], ["weighted"]),
            node("Add", ["precision", "weight"], ["precision_next"]),
            node("Add", ["weighted_mean", "weighted"], ["weighted_mean_next"]),
            node("Div", ["weighted_mean_next", "precision_next"], ["z_mean"]),
            node("Sqrt", ["precision_next"], ["root"]),
            node("Reciprocal", ["root"], ["z_std"]),
        ],
        ["reward", "precision", "weighted_mean"],
        ["precision_next", "weighted_mean_next", "z_mean", "z_std"],
        [weight, axes],
    )


@unittest.skipUnless(READY, "onnx and onnxruntime are not installed")
class Onnx(unittest.TestCase):
    def load(self, recurrent):
        from starling import OnnxAgent

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "agent.onnx"
        write(path, recurrent)
        return OnnxAgent(path)

    def test_one_observation_or_a_batch(self):
        agent = self.load(recurrent=False)
        self.assertEqual(agent.metadata["environment"], "Sum-v0")
        self.assertEqual(agent.act([1.0, -0.5, 0.0]), 1)
        self.assertEqual(agent.act(np.array([-1.0, 0.5, 0.0])), 0)
        batch = np.array([[1, 0, 0], [-1, 0, 0], [0, 0, 2]], np.float32)
        np.testing.assert_array_equal(agent.act(batch), [1, 0, 1])

    def test_its_memory_lasts_for_an_episode(self):
        agent = self.load(recurrent=True)
        plus, minus = np.array([2.0, 0, 0]), np.array([-1.0, 0, 0])
        self.assertEqual([agent.act(obs) for obs in (minus, plus, minus, minus)], [0, 1, 0, 0])
        agent.reset()
        batch = np.stack([plus, plus])
        np.testing.assert_array_equal(agent.act(batch), [1, 1])
        agent.reset(np.array([True, False]))
        np.testing.assert_array_equal(agent.act(np.stack([minus, minus])), [0, 1])
        with self.assertRaisesRegex(ValueError, "reset"):
            agent.act(plus)

    def test_it_adapts_to_its_task_over_episodes(self):
        from starling import OnnxAgent

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "agent.onnx"
        write_adaptive(path)
        agent = OnnxAgent(path, seed=1)
        obs, rewards = np.zeros((2, 1), np.float32), np.array([3.0, -5.0])
        drawn = []
        for episode in range(4):
            agent.reset()
            drawn.append(agent.act(obs))
            # z is that of the episode.
            np.testing.assert_array_equal(agent.act(obs), drawn[-1])
            agent.transition(obs, drawn[-1], rewards, obs)
        near = lambda action, z: np.allclose(action[:, 0], z, atol=0.01)
        self.assertEqual([near(action, rewards) for action in drawn], [False, False, True, True])
        self.assertFalse(np.array_equal(drawn[0], drawn[1]))
        agent.new_task(np.array([True, False]))
        action = agent.act(obs)[:, 0]
        self.assertTrue(abs(action[0] - 3.0) > 0.01 and abs(action[1] + 5.0) < 0.01, action)
        with self.assertRaisesRegex(ValueError, "new_task"):
            agent.act(obs[:1])
        agent.new_task()
        agent.act(np.zeros(1))
        agent.transition(np.zeros(1), np.zeros(1), 2.0, np.zeros(1))
        agent.reset()
        agent.reset()
        self.assertAlmostEqual(float(agent.act(np.zeros(1))[0]), 2.0, places=2)
        path.with_name("agent-encoder.onnx").unlink()
        with self.assertRaisesRegex(FileNotFoundError, "agent-encoder.onnx is missing"):
            OnnxAgent(path)


if __name__ == "__main__":
    unittest.main()
