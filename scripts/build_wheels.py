#!/usr/bin/env python3
"""Builds the Python packages: `starling-rl`, and with --train also `starling-rl-train`.

    python3 scripts/build_wheels.py [--train] [--out dist]

The first needs Rust only. The second contains the program and links against `.libtorch`, which
`./starling` makes; it runs with the torch of the user's environment. A wheel is a zip file, so
nothing but this file and cargo is needed. The wheels run on every Python from 3.10 on, and on every
Linux whose glibc is not older than the newest symbol that the libraries use.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ">=3.10"
TORCH = "2.11.0"
# What is in starling-rl-train.
TRAINING = ("starling", "starling-agent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true", help="build starling-rl-train, too")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="default: dist")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("The wheels are for Linux.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    build("starling-wheel", *(TRAINING if arguments.train else ()))
    wheels = [environments(arguments.out)]
    if arguments.train:
        wheels.append(training(arguments.out))
    for wheel in wheels:
        print(f"{wheel} ({wheel.stat().st_size / 1e6:.2f} MB)")


def environments(out: pathlib.Path) -> pathlib.Path:
    library = built("lib_native.so")
    folder = ROOT / "python" / "starling-rl"
    files = package(folder, "starling")
    files["starling/_native.abi3.so"] = library
    requires = [
        "Requires-Dist: numpy>=1.23",
        "Requires-Dist: gymnasium>=1.1",
        "Provides-Extra: mujoco",
        "Requires-Dist: mujoco==3.17.0; extra == 'mujoco'",
        "Provides-Extra: onnx",
        "Requires-Dist: onnxruntime>=1.20; extra == 'onnx'",
        "Provides-Extra: sb3",
        "Requires-Dist: stable-baselines3>=2.3; extra == 'sb3'",
    ]
    summary = "Fast environments and replay for reinforcement learning, without torch"
    return pack(out, "starling-rl", summary, requires, folder, files, [library])


def training(out: pathlib.Path) -> pathlib.Path:
    program, library = built("starling"), built("lib_agent.so")
    folder = ROOT / "python" / "starling-rl-train"
    files = package(folder, "starling_train")
    files["starling_train/bin/starling"] = program
    files["starling_train/_agent.abi3.so"] = library
    requires = [
        "Requires-Dist: starling-rl=={version}",
        f"Requires-Dist: torch=={TORCH}",
    ]
    summary = "Starling trains deep reinforcement-learning agents: the program, and agents in Python"
    scripts = ["starling = starling_train.program:main"]
    return pack(
        out, "starling-rl-train", summary, requires, folder, files, [program, library], scripts
    )


def build(*crates: str) -> None:
    """Builds crates in one go, so that they share what they depend on."""
    if crates != ("starling-wheel",):
        libtorch = os.environ.setdefault("LIBTORCH", str(ROOT / ".libtorch"))
        if not (pathlib.Path(libtorch) / "lib").is_dir():
            sys.exit("There is no libtorch: run ./starling once, which fetches it.")
    command = ["cargo", "build", "--locked", "--release", "--lib", "--bins"]
    command += (f"--package={crate}" for crate in crates)
    if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode != 0:
        sys.exit("The packages could not be built (see cargo's message above).")


def built(artifact: str) -> bytes:
    """What cargo built, without its symbols."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    with tempfile.TemporaryDirectory() as folder:
        stripped = pathlib.Path(folder) / artifact
        source = ROOT / target / "release" / artifact
        subprocess.run(["strip", "--strip-unneeded", "-o", stripped, source], check=True)
        return stripped.read_bytes()


def package(folder: pathlib.Path, name: str) -> dict:
    """The Python files of a package, by their places in the wheel."""
    paths = sorted((folder / name).rglob("*.py"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def pack(out, name, summary, requires, folder, files, libraries, scripts=()) -> pathlib.Path:
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    machine = platform.machine()
    tag = f"cp310-abi3-manylinux_{'_'.join(map(str, glibc(libraries)))}_{machine}"
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {summary}",
        "License-Expression: MIT OR Apache-2.0",
        "License-File: LICENSE-APACHE",
        "License-File: LICENSE-MIT",
        f"Requires-Python: {PYTHON}",
        *(line.replace("{version}", version) for line in requires),
        "Description-Content-Type: text/markdown",
        "",
        (folder / "README.md").read_text(),
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: starling", "Root-Is-Purelib: false", f"Tag: {tag}"]
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    files[f"{info}/WHEEL"] = "".join(f"{line}\n" for line in wheel).encode()
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{licence}"] = (ROOT / licence).read_bytes()
    if scripts:
        lines = ["[console_scripts]", *scripts]
        files[f"{info}/entry_points.txt"] = "".join(f"{line}\n" for line in lines).encode()
    record = [f"{path},sha256={digest(data)},{len(data)}\n" for path, data in files.items()]
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(record).encode()
    path = out / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for place, data in files.items():
            # The same content gives the same file.
            entry = zipfile.ZipInfo(place, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if data.startswith(b"\x7fELF") else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)
    return path


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def glibc(libraries) -> tuple:
    """The oldest glibc that has all symbols that the libraries use."""
    found = {(2, 17)}
    for data in libraries:
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", data)
        found |= {(int(major), int(minor)) for major, minor in versions}
    return max(found)


if __name__ == "__main__":
    main()
