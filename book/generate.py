#!/usr/bin/env python3
"""Writes the pages of `src/reference` from the program and its sources.

    python3 book/generate.py             writes them
    python3 book/generate.py --check     writes nothing; fails if a page is out of date
    python3 book/generate.py --program target/release/starling

Names, summaries and defaults come from the program (`starling list`, `starling config show`), the
words about each setting from the comments in the source. Nothing beyond Python 3 is needed.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "book" / "src" / "reference"
# Algorithms whose settings are the shared ones of action values and those of a file: the file that
# tells of them, and the file that has their own settings.
VALUE_BASED = {
    "apex-dqn": ("apex", "dqn"),
    "apex-rainbow": ("apex", "c51"),
    "apex-rainbow-iqn": ("apex", "iqn"),
    "c51": ("c51", "c51"),
    "dqn": ("dqn", "dqn"),
    "epsilon-rainbow": ("rainbow", "c51"),
    "iqn": ("iqn", "iqn"),
    "ngu": ("ngu/mod", "ngu/mod"),
    "qr-dqn": ("qr_dqn", "qr_dqn"),
    "r2d2": ("r2d2/mod", "r2d2/mod"),
    "rainbow": ("rainbow", "c51"),
    "rainbow-iqn": ("rainbow", "iqn"),
}
# Structures of settings within those of algorithms, and their crates.
SECTIONS = {
    "EpisodicNovelty": "algos",
    "Ladder": "algos",
    "Munchausen": "algos",
    "PriorityConfig": "replay",
    "SequenceConfig": "replay",
}
HEAD = "<!-- Written by book/generate.py: change the source, not this page. -->\n\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--program", default=str(ROOT / "starling"))
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    program = Program(options.program)
    source = Source(ROOT / "crates")
    pages = {
        "environments.md": environments(program, source),
        "run.md": run_settings(program, source),
        "network.md": network(program, source),
        "presets.md": presets(program),
    }
    for name, _ in program.listed("algos"):
        pages[f"{name}.md"] = algorithm(name, program, source)
    stale = []
    for name, text in pages.items():
        path = PAGES / name
        text = HEAD + text.rstrip() + "\n"
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not options.check:
                path.write_text(text)
    if options.check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python3 book/generate.py")


class Program:
    """The built `starling`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def output(self, *arguments: str) -> str:
        command = [self.path, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def listed(self, what: str) -> list:
        """(name, summary) of each line of `starling list`."""
        lines = self.output("list", what).splitlines()
        return [tuple(re.split(r"\s{2,}", line, maxsplit=1)) for line in lines]

    def defaults(self, algo: str) -> dict:
        """All settings of a run without a preset, by section."""
        text = self.output("config", "show", "CartPole-v1", "--algo", algo, "--preset", "none")
        return parse_yaml(text)


class Source:
    """Structures, enumerations and their comments, from the text of all crates."""

    def __init__(self, crates: pathlib.Path) -> None:
        self.files = {path: path.read_text() for path in sorted(crates.glob("*/src/**/*.rs"))}

    def fields(self, crate: str, structure: str) -> list:
        """(name, type, comment) of each public field of a structure of settings."""
        body = self.body(crate, rf"pub struct {structure} \{{")
        found = []
        comment = []
        for line in body.splitlines():
            line = line.strip()
            if line.startswith("///"):
                comment.append(line[3:].strip())
            elif field := re.match(r"pub (\w+): (.+),$", line):
                found.append((field[1], field[2], " ".join(comment)))
                comment = []
            elif not line.startswith("#"):
                comment = []
        return found

    def choices(self, name: str) -> list:
        """What a setting of an enumeration may be, or nothing if it is none."""
        for text in self.files.values():
            found = re.search(rf"#\[serde\(rename_all = \"(\w+)\"\)\]\npub enum {name} \{{", text)
            if found:
                body = text[found.end() : text.index("\n}", found.end())]
                names = re.findall(r"^    (\w+),$", body, re.MULTILINE)
                return [renamed(name, found[1]) for name in names]
        return []

    def default_values(self, crate: str, structure: str) -> dict:
        """What `impl Default` says; only for parts that are absent by default themselves."""
        body = self.body(crate, rf"impl Default for {structure} \{{", "\n}\n")
        values = dict(re.findall(r"^            (\w+): (.+),$", body, re.MULTILINE))
        for name, value in values.items():
            if kind := re.match(r"(\w+)::default\(\)$", value):
                values[name] = self.default_choice(kind[1])
        return values

    def default_choice(self, name: str) -> str:
        for text in self.files.values():
            found = re.search(rf"pub enum {name} \{{.*?#\[default\]\s*(\w+),", text, re.DOTALL)
            if found:
                return renamed(found[1], "snake_case")
        return name

    def body(self, crate: str, opening: str, closing: str = "\n}") -> str:
        for path, text in self.files.items():
            if path.relative_to(ROOT / "crates").parts[0] != crate:
                continue
            if found := re.search(opening, text):
                return text[found.end() : text.index(closing, found.end())]
        sys.exit(f"no crate source has {opening!r} in {crate}")

    def module_comment(self, path: str) -> str:
        lines = (ROOT / "crates" / path).read_text().splitlines()
        comment = [line[3:].removeprefix(" ") for line in lines if line.startswith("//!")]
        return "\n".join(re.sub(r"\[`([^`]+)`\]", r"`\1`", line) for line in comment)


def environments(program: Program, source: Source) -> str:
    table = source.files[ROOT / "crates" / "envs" / "src" / "registry.rs"]
    known = {}
    for entry in re.findall(r"EnvSpec \{\n(        id: .*?)\n    \}", table, re.DOTALL):
        facts = dict(re.findall(r"^        (\w+): (.+),$", entry, re.MULTILINE))
        known[facts["id"].strip('"')] = facts
    text = "# Environments\n\n`starling list envs` shows this table.\n\n"
    text += "| id | task | cut off after | solved at |\n|---|---|---|---|\n"
    for name, summary in program.listed("envs"):
        facts = known.get(name, {})
        limit = number_in(facts.get("max_episode_steps", "None"), "{} steps")
        goal = number_in(facts.get("reward_threshold", "None"), "{}")
        text += f"| `{name}` | {summary} | {limit} | {goal} |\n"
    text += (
        "\n*Cut off after* is the number of steps after which an episode is truncated;"
        " *solved at* is Gymnasium's reward threshold. A dash: there is none.\n\n"
        "## Settings\n\nEvery environment has `max_episode_steps`; the others only where the"
        " text says so. An option that the environment does not have is refused.\n\n"
    )
    defaults = program.defaults("ppo")["env"]
    rows = [
        (f"env.{name}", "null" if defaults.get(name) is None else str(defaults[name]), kind, words)
        for name, kind, words in source.fields("envs", "EnvOptions")
    ]
    return text + settings_table(rows, source)


def run_settings(program: Program, source: Source) -> str:
    defaults = program.defaults("ppo")
    rows = nested_rows("", "engine", "Settings", defaults, source)
    text = (
        "# Settings of a run\n\nThey belong to no environment and no algorithm. The defaults are"
        " those without a preset; presets change some of them.\n\n"
    )
    return text + settings_table(rows, source)


def network(program: Program, source: Source) -> str:
    algo = program.defaults("ppo")["algo"]
    text = "# Networks, optimisers, schedules\n\nEvery algorithm has these settings.\n\n"
    text += "## The network\n\n"
    rows = nested_rows("algo.net.", "nets", "NetConfig", algo["net"], source)
    text += settings_table(rows, source)
    text += "\n## The network of action values\n\nOf algorithms such as DQN, instead.\n\n"
    values = program.defaults("dqn")["algo"]["net"]
    rows = nested_rows("algo.net.", "nets", "QNetConfig", values, source)
    text += settings_table(rows, source)
    text += "\n## The optimiser\n\n"
    rows = nested_rows("algo.optimizer.", "nets", "OptimizerConfig", algo["optimizer"], source)
    text += settings_table(rows, source)
    text += (
        "\nSome algorithms have defaults of their own for `algo.optimizer`.\n\n"
        "## Schedules\n\nA setting of the kind *number or schedule* is either a plain number, or"
        " a straight line over the run:\n\n"
        "```yaml\nlearning_rate: {start: 0.001, end: 0.0, by: 0.5}\n```\n\n"
    )
    schedules = Only(source, ROOT / "crates" / "nets" / "src" / "schedule.rs")
    rows = [
        (name, "1.0" if name == "by" else "", kind, words)
        for name, kind, words in schedules.fields("nets", "Linear")
    ]
    return text + settings_table(rows, source)


def algorithm(name: str, program: Program, source: Source) -> str:
    defaults = program.defaults(name)["algo"]
    told, own = VALUE_BASED.get(name, (name, name))
    text = f"# {name.upper()}\n\n{source.module_comment(f'algos/src/{told}.rs')}\n\n"
    text += (
        "## Settings\n\nThe defaults are those without a preset; [presets](presets.md) change"
        " some of them. For `algo.net` and `algo.optimizer` see"
        " [networks, optimisers, schedules](network.md).\n\n"
    )
    path = ROOT / "crates" / "algos" / "src" / f"{own}.rs"
    fields = Only(source, path).fields("algos", "Config")
    if name in VALUE_BASED:
        fields = source.fields("algos", "ValueConfig") + fields
    usual = program.defaults("ppo")["algo"]["optimizer"]
    rows = []
    for field, kind, words in fields:
        default = defaults.get(field)
        if kind in ("NetConfig", "QNetConfig"):
            continue
        if kind == "OptimizerConfig":
            for part, value in default.items():
                if value != usual[part]:
                    rows.append((f"algo.{field}.{part}", shown(value), "f64", words))
            continue
        inner = re.sub(r"Option<(\w+)>$", r"\1", kind)
        if inner not in SECTIONS:
            rows.append((f"algo.{field}", shown(default), kind, words))
            continue
        if inner != kind:
            rows.append((f"algo.{field}", "null" if default is None else "", kind, words))
        values = default or source.default_values(SECTIONS[inner], inner)
        for part, part_kind, part_words in source.fields(SECTIONS[inner], inner):
            rows.append((f"algo.{field}.{part}", shown(values[part]), part_kind, part_words))
    return text + settings_table(rows, source)


class Only(Source):
    """One file of a source: every algorithm calls its settings `Config`."""

    def __init__(self, source: Source, path: pathlib.Path) -> None:
        self.files = {path: source.files[path]}


def presets(program: Program) -> str:
    text = (
        "# Presets\n\nA preset is `presets/<family>/<algo>.yaml`; it is chosen by the"
        " environment's family and the algorithm unless `--preset` says otherwise. What stands"
        " under `per_env` holds for that environment only.\n"
    )
    for name, _ in program.listed("presets"):
        body = (ROOT / "presets" / f"{name}.yaml").read_text()
        text += f"\n## {name}\n\n```yaml\n{body.rstrip()}\n```\n"
    return text


def nested_rows(prefix: str, crate: str, structure: str, values: dict, source: Source) -> list:
    rows = []
    for name, kind, words in source.fields(crate, structure):
        if kind.endswith("Config"):
            rows += nested_rows(f"{prefix}{name}.", crate, kind, values[name], source)
        else:
            rows.append((prefix + name, shown(values[name]), kind, words))
    return rows


def settings_table(rows: list, source: Source) -> str:
    text = "| setting | default | kind | meaning |\n|---|---|---|---|\n"
    for name, default, kind, words in rows:
        words = re.sub(r"\[`([^`]+)`\]", r"`\1`", words).replace("|", "\\|")
        default = f"`{default}`" if default else ""
        text += f"| `{name}` | {default} | {kind_in_words(kind, source)} | {words} |\n"
    return text


def kind_in_words(kind: str, source: Source) -> str:
    if optional := re.match(r"Option<(.+)>$", kind):
        return kind_in_words(optional[1], source).replace("true or", "true,") + " or null"
    words = {
        "usize": "whole number",
        "u64": "whole number",
        "f64": "number",
        "bool": "true or false",
        "Schedule": "number or schedule",
        "DeviceChoice": "`auto`, `cpu`, `cuda:N`",
        "Vec<usize>": "list of whole numbers",
    }
    if kind in words:
        return words[kind]
    if choices := source.choices(kind):
        return ", ".join(f"`{choice}`" for choice in choices)
    return "section"


def number_in(option: str, pattern: str) -> str:
    found = re.match(r"Some\((-?[\d_.]+)\)$", option)
    return pattern.format(found[1].removesuffix(".0")) if found else "–"


def renamed(name: str, style: str) -> str:
    if style == "snake_case":
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return name.lower()


def shown(value) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(part) for part in value) + "]"
    return str(value)


def parse_yaml(text: str) -> dict:
    """The tables, lists and plain values that `starling config show` prints."""
    lines = [line for line in text.splitlines() if line.strip()]

    def block(at: int, depth: int) -> tuple:
        if lines[at].strip().startswith("- "):
            items = []
            while at < len(lines) and lines[at].strip().startswith("- "):
                items.append(lines[at].strip()[2:])
                at += 1
            return items, at
        table = {}
        while at < len(lines) and indent(lines[at]) == depth:
            key, _, rest = lines[at].strip().partition(":")
            at += 1
            if rest.strip():
                value = rest.strip()
                table[key] = None if value == "null" else value
            elif at < len(lines) and (
                indent(lines[at]) > depth or lines[at].strip().startswith("- ")
            ):
                table[key], at = block(at, indent(lines[at]))
            else:
                table[key] = None
        return table, at

    def indent(line: str) -> int:
        return len(line) - len(line.lstrip())

    return block(0, 0)[0]


if __name__ == "__main__":
    main()
