"""Writes a PyTorch network to a TorchScript file that Starling trains.

    python export.py network.pt
    starling train CartPole-v1 algo.net.hidden=null algo.net.torchscript=network.pt

Starling keeps all weights of an agent in one vector, for the learner, its target copy and every
actor alike. So the file must hold a function of the weights and the observation: `export` makes
one of any module by tracing it with its parameters as arguments. The module's present parameters
are stored as well; training begins with them.

The network takes a batch of observations as the environment gives them (bytes for pictures,
floats for vectors; the arrays of a dictionary one after the other) and returns features, one row
each. Policy, value, action values and an LSTM are added by Starling, so that one file serves every
algorithm and action space.

What tracing cannot follow is what depends on the numbers of an observation: an `if` or a loop
over them. Buffers, such as the averages of batch normalisation, stay as they are. torch.nn.LSTM
and its kin keep a second list of their parameters and cannot be exported; use `algo.net.lstm`.
"""

import argparse
import copy

import torch


class Functional(torch.nn.Module):
    """A module whose parameters come as arguments, before the observation."""

    def __init__(self, network):
        super().__init__()
        self.places = []
        for name, value in network.named_parameters():
            owner, _, attribute = name.rpartition(".")
            self.places.append((network.get_submodule(owner), attribute))
            # Names in the file must be those of variables.
            plain = "_" * name[0].isdigit() + name.replace(".", "_")
            self.register_parameter(plain, torch.nn.Parameter(value.detach().clone()))
        # In a list, so that it is not a part of this module, whose parameters are fixed.
        self.hidden = [network]

    def forward(self, *arguments):
        for (owner, attribute), value in zip(self.places, arguments):
            owner._parameters.pop(attribute, None)
            owner.__dict__[attribute] = value
        return self.hidden[0](*arguments[len(self.places) :])


def export(network, observations, path):
    """Writes `network` to `path`. `observations` is an example: a tuple of tensors [N, ...] as the
    environment gives them, with N of at least 2."""
    network = copy.deepcopy(network).eval()
    parameters = tuple(value.detach() for _, value in network.named_parameters())
    traced = torch.jit.trace(Functional(network), (*parameters, *observations))
    traced.save(path)


def example():
    """Two layers for CartPole's four numbers."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write an example network for CartPole-v1.")
    parser.add_argument("path", help="file to write, such as network.pt")
    path = parser.parse_args().path
    export(example(), (torch.zeros(2, 4),), path)
    settings = f"algo.net.hidden=null algo.net.torchscript={path}"
    print(f"wrote {path}; next: starling train CartPole-v1 {settings}")
