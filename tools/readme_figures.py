"""Write the measured tables of the READMEs and the docs from recorded summary.json files; no figure is typed by hand.

A table lies between `<!-- figures: NAME -->` and `<!-- end: NAME -->` and is made from docs/figures/NAME.json; the one
named `packages` from docs/packages.toml, so that four pages say the same of each package.
`--take out/cpu-smoke/summary.json` records a new measurement there first; `--check` only says whether a page differs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from workspace import ROOT

FIGURES = ROOT / "docs" / "figures"
PACKAGES = ROOT / "docs" / "packages.toml"
START_PAGES = ("README.md", "README.zh-CN.md", "docs/index.md", "docs/zh.md")
FILES = (*START_PAGES, "packages/mrv2-metadata/README.md", "docs/metadata.md")
# These benchmarks print their own table of a recorded run.
BENCHES = ("metadata_steps", "metadata_host")
WORDS = {
    "en": {
        "packages": ("package", "what it proves", "today"),
        "none": "No measurement is recorded yet.",
        "no plugin": "no plugin",
        "head": (
            "scenario",
            "requests",
            "preemptions",
            "cache hits",
            "tokens equal to the plain engine",
            "D2H",
            "host waits",
            "H2D qsl",
        ),
        "pair": "Pair {pair}, Python {python}, {cores} cores ({cpu}); {seconds} s in all; "
        "median engine step of 8 requests {ms} ms.",
        "counts": "D2H, host waits and H2D of `query_start_loc` are counted per ordinary decode step, "
        "the output's own copy left out. `batch-upstream` is vllm-ascend as it is; every other row runs with "
        "{plugins} on.",
        "serve": "`vllm serve` + `vllm bench serve`: {done} requests completed, {failed} failed.",
    },
    "zh": {
        "packages": ("软件包", "用来证明什么", "目前状态"),
        "none": "尚无测量记录。",
        "no plugin": "零个插件",
        "head": ("场景", "请求数", "抢占", "前缀命中", "与原生引擎相同的 token", "D2H", "主机等待", "H2D qsl"),
        "pair": "版本组合 {pair}，Python {python}，{cores} 核（{cpu}）；总计 {seconds} 秒；"
        "8 个请求的引擎步中位数 {ms} 毫秒。",
        "counts": "D2H、主机等待与 `query_start_loc` 的 H2D 均按每个普通 decode 步计，输出自身的拷贝不计入。"
        "`batch-upstream` 为未修改的 vllm-ascend；其余各行均启用 {plugins}。",
        "serve": "`vllm serve` + `vllm bench serve`：完成 {done} 个请求，失败 {failed} 个。",
    },
}


def language(path: Path) -> str:
    """Language of a page by its name."""
    return "zh" if "zh" in path.stem or path.stem.endswith("zh-CN") else "en"


def per_step(row: dict[str, Any], name: str) -> str:
    """One counter's average over ordinary decode steps, or a dash where the scenario has none."""
    return f"{row['per_decode_step'].get(name, 0.0):.3g}" if row["decode_steps"] else "-"


def pair_lines(report: dict[str, Any], words: dict[str, Any]) -> list[str]:
    """Table and sentences of one pair."""
    lines = [f"| {' | '.join(words['head'])} |", "|---" + "|--:" * (len(words["head"]) - 1) + "|"]
    for row in report["rows"]:
        cells = [row["scenario"], row["requests"], row["preemptions"], row["prefix_hits"]]
        cells += [f"{row['tokens_equal']}/{row['tokens_total']}"]
        cells += [per_step(row, name) for name in ("d2h", "event_waits", "h2d_qsl")]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    figures, host = report["figures"], report["host"]
    facts = {"seconds": f"{figures['seconds']:.0f}", "ms": f"{figures['ms_per_decode_step_8']:.1f}"}
    lines += [
        "",
        words["pair"].format(pair=report["pair"], **{key: host[key] for key in ("python", "cores", "cpu")}, **facts),
    ]
    plugins = ", ".join(f"`{key}`" for key in report.get("plugins") or ()) or words["no plugin"]
    lines.append(words["counts"].format(plugins=plugins))
    if report.get("serve"):
        done = {"done": figures["serve_completed"], "failed": figures["serve_failed"]}
        lines.append(words["serve"].format(**done))
    return lines


def render(report: dict[str, Any] | None, lang: str) -> str:
    """The Markdown between the markers; says so when there is no report."""
    words = WORDS[lang]
    if report is None:
        return f"{words['none']}\n"
    reports = report["rows"] if report["pair"] == "all" else [report]
    return "\n\n".join("\n".join(pair_lines(one, words)) for one in reports) + "\n"


def package_table(lang: str, links: bool) -> str:
    """The table of the packages; `links` to their READMEs, which the site does not hold."""
    lines = [f"| {' | '.join(WORDS[lang]['packages'])} |", "|---|---|---|"]
    for row in tomllib.loads(PACKAGES.read_text(encoding="utf-8"))["package"]:
        name = f"[`{row['name']}`](packages/{row['folder']}/README.md)" if links else f"`{row['name']}`"
        lines.append(f"| {name} | {row['proves'][lang]} | {row['today'][lang]} |")
    return "\n".join(lines) + "\n"


def bench_table(name: str, recorded: Path) -> str:
    """The table that a benchmark prints of its recorded run."""
    read(recorded)
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--markdown", str(recorded)]
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def read(path: Path) -> dict[str, Any]:
    """A summary file. Raises ValueError when it is of another form or tells of a run that failed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(found, dict) or found.get("version") != 1 or not {"name", "figures", "rows"} <= set(found):
        raise ValueError(f"{path}: not a summary of version 1")
    if not found.get("passed"):
        raise ValueError(f"{path}: that run failed; only a run that passed is recorded")
    return found


def take(path: Path, figures: Path) -> Path:
    """Record a summary; returns the file written."""
    found = read(path)
    figures.mkdir(parents=True, exist_ok=True)
    into = figures / f"{found['name']}.json"
    into.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return into


def fill(text: str, lang: str, figures: Path, links: bool = False) -> str:
    """The page's text with every table written anew."""

    def table(found: re.Match[str]) -> str:
        name, path = found["name"], figures / f"{found['name']}.json"
        if name == "packages":
            body = package_table(lang, links)
        elif name in BENCHES:
            body = bench_table(name, path)
        else:
            body = render(read(path) if path.is_file() else None, lang)
        return f"<!-- figures: {name} -->\n{body}<!-- end: {name} -->"

    return re.sub(r"<!-- figures: (?P<name>[a-z_-]+) -->\n.*?<!-- end: (?P=name) -->", table, text, flags=re.DOTALL)


def rewritten(path: Path) -> str:
    """What a page should hold."""
    return fill(path.read_text(encoding="utf-8"), language(path), FIGURES, links=path.parent == ROOT)


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="readme_figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page differs")
    parser.add_argument("--take", type=Path, metavar="SUMMARY", help="record this summary.json first")
    arguments = parser.parse_args(argv)
    stale = []
    try:
        if arguments.take:
            take(arguments.take, FIGURES)
        pages = {path: rewritten(path) for path in map(ROOT.joinpath, FILES)}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path, new in pages.items():
        old = path.read_text(encoding="utf-8")
        if new == old:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not arguments.check:
            path.write_text(new, encoding="utf-8")
    print(f"{'out of date' if arguments.check else 'written'}: {', '.join(stale) or 'nothing'}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
