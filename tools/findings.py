"""Write docs/findings.md: upstream faults, each with its command and what the recorded runs of it have shown.

`--record` first copies out/repro/NAME/PAIR.json into docs/figures/repro/. `nox -s docs` writes the page from there.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from typing import Any

from workspace import ROOT

SOURCE = ROOT / "repro" / "findings.toml"
RECORDED = ROOT / "docs" / "figures" / "repro"
PAGE = ROOT / "docs" / "findings.md"
HEAD = """# Upstream findings

Faults that this kit shows on any CPU. Each command prints what is expected against what is seen, and ends with status 0
only where the fault really shows itself; its control rows must be as expected. Nothing here was run on an NPU: what is
real in each run, and what is a stand-in, stands at the top of its script under `repro/`.

| finding | shown on pair | command |
|---|---|---|
"""


def recorded(name: str) -> list[dict[str, Any]]:
    """Recorded runs of one reproduction, by pair."""
    paths = sorted((RECORDED / name).glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def record() -> None:
    """Keep the latest run of every reproduction and pair."""
    for path in sorted((ROOT / "out" / "repro").glob("*/*.json")):
        if path.name != "summary.json":
            target = RECORDED / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def shown_on(runs: list[dict[str, Any]]) -> str:
    """Pairs that showed the fault, and those that did not."""
    yes = [run["pair"] for run in runs if run["passed"]]
    no = [run["pair"] for run in runs if not run["passed"]]
    parts = [", ".join(yes)] if yes else []
    parts += [f"not on {', '.join(no)}"] if no else []
    return "; ".join(parts) or "not run yet"


def cell(value: object) -> str:
    """A value on one line of a Markdown table."""
    text = ", ".join(f"{key}: {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def thread_links(text: str) -> str:
    """Links to the public threads named as owner/repository#number."""
    return re.sub(r"([\w-]+/[\w-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", text)


def page(findings: list[dict[str, str]]) -> str:
    """The whole page."""
    parts = [HEAD]
    for found in findings:
        anchor = re.sub(r"[^a-z0-9]+", "-", found["name"]).strip("-")
        command = f"`uvx nox -s repro -- {found['name']}`"
        parts.append(f"| [{found['title']}](#{anchor}) | {shown_on(recorded(found['name']))} | {command} |\n")
    for found in findings:
        anchor = re.sub(r"[^a-z0-9]+", "-", found["name"]).strip("-")
        parts.append(f"\n## {found['title']} {{ #{anchor} }}\n\n{found['why']}\n\n**This kit:** {found['kit']}\n")
        parts.append(f"\n**Public thread:** {thread_links(found['thread']) or 'none that we know of'}.\n")
        for run in recorded(found["name"]):
            versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
            state = "shown" if run["passed"] else "not shown"
            parts.append(f"\nPair {run['pair']} ({versions}), fault **{state}**:\n\n")
            parts.append("| | what | expected | seen |\n|---|---|---|---|\n")
            for row in run["rows"]:
                kind = "fault" if row.get("faulty") else "control"
                parts.append(f"| {kind} | {cell(row['what'])} | {cell(row['expected'])} | {cell(row['seen'])} |\n")
    return "".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Record if asked, then write the page where it differs."""
    if "--record" in (sys.argv[1:] if argv is None else argv):
        record()
    text = page(tomllib.loads(SOURCE.read_text(encoding="utf-8"))["finding"])
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        PAGE.write_text(text, encoding="utf-8")
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
