#!/usr/bin/env python3
"""Checks the dependencies against deny.toml, where cargo-deny is not installed.

cargo-deny has more dependencies to build (373 packages) than Starling itself. This checks what
matters to us of its `licenses`, `bans` and `sources`, from `cargo metadata`, in a second: every
dependency has an allowed licence, comes from crates.io, and no version of ours is a wildcard.
Advisories need cargo-deny and a network.
"""

import json
import pathlib
import re
import subprocess
import sys

try:
    import tomllib
except ImportError:  # Python 3.10 and older: pip has a copy.
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def main() -> None:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    understood(rules)
    problems = []
    packages = dependencies(rules["graph"]["targets"])
    for package in packages:
        name = f"{package['name']} {package['version']}"
        problems += [f"{name}: {problem}" for problem in check(package, rules)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(f"{len(problems)} problems with dependencies; deny.toml says what is allowed")
    print(f"{len(packages)} packages are as deny.toml allows")


def understood(rules: dict) -> None:
    """Fails where deny.toml has a rule that this script does not check."""
    known = {
        "graph": {"targets", "all-features"},
        "licenses": {"version", "allow", "exceptions", "private"},
        "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths"},
        "advisories": {"version", "yanked"},
        "sources": {"unknown-registry", "unknown-git"},
    }
    for section, content in rules.items():
        unknown = set(content) - known.get(section, set())
        if unknown:
            sys.exit(f"deny.toml: [{section}] {', '.join(unknown)}: not known to {__file__}")


def dependencies(targets: list) -> list:
    command = ["cargo", "metadata", "--locked", "--all-features", "--format-version=1"]
    for target in targets:
        command += ["--filter-platform", target]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    metadata = json.loads(output)
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    return [package for package in metadata["packages"] if package["id"] in used]


def check(package: dict, rules: dict) -> list:
    problems = []
    private = package["publish"] == [] and rules["licenses"]["private"]["ignore"]
    allowed = set(rules["licenses"]["allow"])
    for exception in rules["licenses"]["exceptions"]:
        if exception["crate"] == package["name"]:
            allowed |= set(exception["allow"])
    if not private and not satisfied(package["license"] or "", allowed):
        problems.append(f"licence {package['license'] or 'missing'} is not allowed")
    source = package["source"]
    if source is not None and source != REGISTRY:
        problems.append(f"source {source} is not allowed")
    for needed in package["dependencies"]:
        if private and needed["req"] == "*" and "path" not in needed:
            problems.append(f"{needed['name']} is asked for in any version")
    return problems


def satisfied(expression: str, allowed: set) -> bool:
    """Whether an SPDX expression, such as `(MIT OR Apache-2.0) AND ISC`, can be satisfied.

    An exception (`Apache-2.0 WITH LLVM-exception`) only adds rights to a licence.
    """
    # Old crates write MIT/Apache-2.0.
    expression = re.sub(r"\s+WITH\s+\S+(?=\s|\)|$)", "", expression.replace("/", " OR "))
    tokens = re.findall(r"[()]|[^\s()]+", expression)

    def either() -> bool:
        good = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            good = both() or good
        return good

    def both() -> bool:
        good = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            good = one() and good
        return good

    def one() -> bool:
        if not tokens:
            return False
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        good = either()
        if not tokens or tokens.pop(0) != ")":
            return False
        return good

    return either() and not tokens


if __name__ == "__main__":
    main()
