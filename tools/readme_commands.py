"""The commands of the README, as a reader would type them: listed, compared between languages, run by CI.

A fenced block right after the comment `<!-- ci: NAME -->` is a command block, which CI knows by that name. `list NAME`
prints its commands, `run NAME` runs them with bash as written, `check` compares README.md with README.zh-CN.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from workspace import ROOT

ENGLISH = ROOT / "README.md"
CHINESE = ROOT / "README.zh-CN.md"
BLOCK = re.compile(
    r"<!-- ci: (?P<name>[a-z-]+) -->\n+```(?:bash|sh|console)?\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
FENCE = re.compile(r"^```(?:bash|sh|console)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"<!-- figures: (?P<name>[a-z-]+) -->\n(?P<body>.*?)<!-- end: (?P=name) -->", re.DOTALL)


def marked_blocks(text: str) -> list[tuple[str, str]]:
    """(name, commands) of each block that CI knows by name, in the text's order."""
    return [(found["name"], found["body"].strip()) for found in BLOCK.finditer(text)]


def all_commands(text: str) -> list[str]:
    """The body of every shell block, comments left out (they are in the reader's language)."""
    bodies = [found["body"] for found in FENCE.finditer(text)]
    return ["\n".join(line.split("  #")[0].rstrip() for line in body.strip().splitlines()) for body in bodies]


def table_figures(text: str) -> dict[str, list[list[str]]]:
    """Numbers of every generated table by name, row by row."""
    found = {}
    for block in MARKED.finditer(text):
        rows = [line for line in block["body"].splitlines() if line.startswith("|")]
        found[block["name"]] = [re.findall(r"\d+(?:[.,/]\d+)*", row) for row in rows]
    return found


def differences(english: str, chinese: str) -> list[str]:
    """What is out of step between the two READMEs; empty when they agree."""
    found = []
    if marked_blocks(english) != marked_blocks(chinese):
        found.append("the blocks that CI runs differ")
    if all_commands(english) != all_commands(chinese):
        found.append("the shell blocks differ")
    if table_figures(english) != table_figures(chinese):
        found.append("the figures of the generated tables differ")
    if english.count("\n## ") != chinese.count("\n## "):
        found.append("the number of sections differs")
    return found


def commands(name: str, text: str) -> list[str]:
    """The command lines of the block `name`; raises ValueError when the README has none of that name."""
    bodies = [body for found, body in marked_blocks(text) if found == name]
    if not bodies:
        raise ValueError(f"README.md has no block marked `<!-- ci: {name} -->`")
    return [line for body in bodies for line in body.splitlines() if line.strip()]


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="readme_commands", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["list", "run", "check"])
    parser.add_argument("name", nargs="?", help="name of the block, for list and run")
    arguments = parser.parse_args(argv)
    english = ENGLISH.read_text(encoding="utf-8")
    if arguments.action == "check":
        found = differences(english, CHINESE.read_text(encoding="utf-8"))
        for line in found:
            print(f"README.md and README.zh-CN.md: {line}", file=sys.stderr)
        return 1 if found else 0
    if not arguments.name:
        parser.error(f"{arguments.action} needs the name of a block")
    try:
        lines = commands(arguments.name, english)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for line in lines:
        print(f"$ {line}" if arguments.action == "run" else line, flush=True)
        if arguments.action == "run" and (
            status := subprocess.run(["bash", "-c", line], cwd=ROOT, check=False).returncode
        ):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
