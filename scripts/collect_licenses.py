#!/usr/bin/env python3
"""Copies the licence texts of all crates that the program is built from into a folder.

    cargo metadata --format-version 1 --filter-platform TRIPLE | collect_licenses.py FOLDER

Crates that only tests use, and crates that only run while building, may be among them. `crates.txt`
lists every crate with its licence; one whose package has no text is listed with the licence alone.
"""

import json
import pathlib
import shutil
import sys

NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    lines = []
    for package in json.load(sys.stdin)["packages"]:
        # Our own crates have no source.
        if package["source"] is None:
            continue
        name = f"{package['name']}-{package['version']}"
        lines.append(f"{name}: {package['license'] or package['license_file']}\n")
        place = pathlib.Path(package["manifest_path"]).parent
        texts = [
            path
            for path in sorted(place.iterdir())
            if path.is_file() and path.name.lower().startswith(NAMES)
        ]
        if texts:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for text in texts:
            shutil.copyfile(text, folder / name / text.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "crates.txt").write_text("".join(sorted(lines)))


if __name__ == "__main__":
    main()
