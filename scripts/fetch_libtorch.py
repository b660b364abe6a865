#!/usr/bin/env python3
"""Makes the folder `.libtorch` that the build links against: `include/`, `include-cuda/`, `lib/`.

Without an argument the pinned wheels are downloaded with pip (about 0.55 GB), checked by their
SHA-256, and the parts that a CPU build needs are extracted. With an argument, an existing torch
folder (a libtorch, or the `torch` package of a Python installation) is used instead: its files are
linked, not copied, and its CUDA libraries are found at run time.
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile

TORCH = "2.11.0"
# Wheels with the SHA-256 that PyPI states. They are those of Linux on x86_64 and CPython 3.12,
# whichever Python runs this: only libraries and headers are taken out of them.
# libtorch_cpu.so of the PyPI wheel needs the CUDA runtime and CUPTI even where no GPU is used.
WHEELS = {
    f"torch=={TORCH}": "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    "nvidia-cuda-runtime==13.0.96": (
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"
    ),
    "nvidia-cuda-cupti==13.0.85": (
        "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8"
    ),
    # Headers only: with them CUDA graphs are built in.
    "nvidia-cuda-crt==13.0.88": "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
}
WANTED = ("libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13")
# Their licence texts, for those who give the libraries to others (scripts/release.sh).
LICENSES = ("LICENSE", "License", "NOTICE", "COPYING")


def main() -> None:
    target = pathlib.Path(__file__).resolve().parent.parent / ".libtorch"
    aside = target.with_name(".libtorch.partial")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "lib").mkdir(parents=True)
    if len(sys.argv) > 1:
        link_existing(pathlib.Path(sys.argv[1]).resolve(), aside)
    else:
        download(aside)
    # The real libtorch.so would make the program need CUDA's libraries to start. The program
    # loads them itself when they are there.
    (aside / "lib" / "libtorch.so").write_text("INPUT(-ltorch_cpu -lc10)\n")
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)


def link_existing(torch: pathlib.Path, aside: pathlib.Path) -> None:
    version = torch / "version.py"
    build = torch / "build-version"
    found = version if version.exists() else build
    if not (torch / "lib" / "libtorch_cpu.so").exists() or not (torch / "include").is_dir():
        sys.exit(f"{torch} is not a torch folder: it has no lib/libtorch_cpu.so or no include/.")
    if not found.exists() or TORCH not in found.read_text():
        sys.exit(f"{torch} is not torch {TORCH}, which this version of Starling needs.")
    # torch looks for CUDA's libraries relative to the place it is loaded from, which is now our
    # folder: those that pip installs beside it have to be linked as well.
    folders = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    for library in (library for folder in folders for library in folder.iterdir()):
        link = aside / "lib" / library.name
        if ".so" in library.name and library.name != "libtorch.so" and not link.is_symlink():
            link.symlink_to(library)
    (aside / "include").symlink_to(torch / "include")
    for info in sorted(torch.parent.glob("torch-*.dist-info")):
        for text in (path for path in sorted(info.rglob("*")) if path.name.startswith(LICENSES)):
            goal = aside / "licenses" / text.relative_to(torch.parent)
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(text, goal)
    # Without CUDA's headers everything works but CUDA graphs.
    for headers in sorted(torch.parent.glob("nvidia/*/include")):
        if (headers / "cuda_runtime_api.h").exists() and (headers / "crt").is_dir():
            (aside / "include-cuda").symlink_to(headers)
            break
    (aside / "source").write_text(f"{torch}\n")


def download(aside: pathlib.Path) -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.exit(
            "The pinned torch wheels are for Linux on x86_64. Elsewhere, install torch "
            f"{TORCH} and set STARLING_LIBTORCH to its folder."
        )
    with tempfile.TemporaryDirectory(dir=aside.parent, prefix=".libtorch.download.") as wheels:
        fetch(WHEELS, pathlib.Path(wheels))
        for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
            unpack(wheel, aside)
    missing = [name for name in WANTED if not (aside / "lib" / name).exists()]
    if missing:
        sys.exit(f"The downloaded wheels lack {', '.join(missing)}.")
    (aside / "source").write_text(f"wheels of torch {TORCH}\n")


def fetch(wheels: dict, folder: pathlib.Path) -> None:
    """Downloads wheels with pip, which refuses those with another SHA-256."""
    requirements = folder / "requirements.txt"
    lines = (f"{wheel} --hash=sha256:{digest}\n" for wheel, digest in wheels.items())
    requirements.write_text("".join(lines))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.12"]
    command += ["--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_25_x86_64"]
    command += ["--platform=manylinux2014_x86_64"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    # Progress does not belong to the output of the command that is about to run.
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(
            f"Could not download torch {TORCH} (see pip's message above). Check the network, "
            "or set STARLING_LIBTORCH to the folder of an installed torch."
        )


def unpack(wheel: pathlib.Path, aside: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = pathlib.PurePosixPath(entry.filename)
            if path.is_absolute() or ".." in path.parts:
                sys.exit(f"{wheel.name} has a file outside its folder: {entry.filename}")
            if path.name in WANTED:
                goal = aside / "lib" / path.name
            elif path.parts[:2] == ("torch", "include") and not entry.is_dir():
                goal = aside.joinpath("include", *path.parts[2:])
            elif path.parts[0].endswith(".dist-info") and path.name.startswith(LICENSES):
                goal = aside.joinpath("licenses", *path.parts)
            elif path.parts[:3] == ("nvidia", "cu13", "include") and not entry.is_dir():
                goal = aside.joinpath("include-cuda", *path.parts[3:])
            else:
                continue
            goal.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, open(goal, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


if __name__ == "__main__":
    os.umask(0o022)
    main()
