"""Gymnasium's spaces, made from what the native module says about ours."""

import numpy as np


def space_of(described, spaces):
    """The space, of the module `spaces`: gymnasium.spaces or the old gym.spaces."""
    kind = described["kind"]
    if kind == "discrete":
        return spaces.Discrete(described["n"])
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(described["choices"])
    if kind == "dict":
        return spaces.Dict({name: space_of(part, spaces) for name, part in described["parts"]})
    dtype = np.dtype(described["dtype"])
    bounds = (described[name].astype(dtype) for name in ("low", "high"))
    return spaces.Box(*bounds, dtype=dtype.type)


def nested(paths, arrays):
    """Arrays by their dotted paths: one array, or dictionaries of arrays."""
    if list(paths) == [""]:
        return arrays[0]
    tree = {}
    for path, array in zip(paths, arrays):
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = array
    return tree
