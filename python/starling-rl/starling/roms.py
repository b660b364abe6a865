"""Installs the Atari ROMs: `python -m starling.roms` takes them from PyPI's ale-py, or from a folder."""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from . import _native

# Any wheel does, for all hold the same ROMs.
_WHEEL = ["ale-py==0.12.1", "--python-version=3.12", "--platform=manylinux_2_28_x86_64"]


def install(folder):
    """Copies every known ROM in a folder to where Starling looks for them.

    Returns the games and that place.
    """
    return _native.install_roms(str(folder))


def fetch():
    """The same with the ROMs of ale-py's wheel, which is downloaded with pip but not installed."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, "--only-binary=:all:", *_WHEEL], check=True)
        for wheel in pathlib.Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".bin"):
                        file = pathlib.Path(folder) / pathlib.PurePosixPath(name).name
                        file.write_bytes(archive.read(name))
        return install(folder)


def main():
    parser = argparse.ArgumentParser(prog="python -m starling.roms", description=__doc__)
    parser.add_argument("--from", dest="folder", help="a folder with ROMs that you have")
    folder = parser.parse_args().folder
    games, place = install(folder) if folder else fetch()
    print(f"{len(games)} games in {place}")


if __name__ == "__main__":
    main()
