"""The command `starling`: runs the program with the libtorch of the installed torch."""

import os
import pathlib
import sys

from ._torch import folder


def main():
    try:
        torch = folder()
    except ImportError as error:
        sys.exit(f"starling: {error}")
    program = pathlib.Path(__file__).parent / "bin" / "starling"
    environment = dict(os.environ)
    libraries = [str(torch / "lib"), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    # Environments in Python are those of this Python, and suggested commands begin with our name.
    environment.setdefault("STARLING_PYTHON", sys.executable)
    environment.setdefault("STARLING_ARGV0", "starling")
    os.execve(program, [str(program), *sys.argv[1:]], environment)
