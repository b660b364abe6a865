"""Finds the libtorch that everything here is linked against."""

import importlib.util
import pathlib
import re

VERSION = "2.11.0"


def folder():
    """The folder of the installed torch, which is not imported.

    Raises ImportError with what to install if there is none, or another version.
    """
    package = importlib.util.find_spec("torch")
    places = package.submodule_search_locations if package else None
    if not places:
        raise ImportError(f"torch is missing; install it with: pip install torch=={VERSION}")
    torch = pathlib.Path(list(places)[0])
    found = re.search(r"__version__ = ['\"]([^'\"]*)", (torch / "version.py").read_text())
    version = found[1] if found else "unknown"
    if version.split("+")[0] != VERSION:
        raise ImportError(
            f"torch {version} is installed, but starling-rl-train is linked against {VERSION}; "
            f"install it with: pip install torch=={VERSION}"
        )
    return torch


def prepare():
    """Loads torch before our library: on a machine with a GPU its CUDA half must come first."""
    folder()
    import torch  # noqa: F401
