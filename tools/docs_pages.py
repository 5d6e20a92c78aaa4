"""Write the generated parts of the docs, the table of pairs and the changelogs; `nox -s docs` does it first."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import Any

import doctor_page
import envs
from workspace import ROOT, packages

DOCS = ROOT / "docs"
PAIRS_PAGE = DOCS / "pairs.md"
GENERATED = DOCS / "generated"  # not in git
PAIRS_BLOCK = re.compile(r"<!-- generated: pairs -->\n.*?<!-- end: pairs -->", re.DOTALL)


def pair_row(row: dict[str, Any]) -> list[str]:
    """The cells of one pair."""
    npu = row.get("npu", {})
    torch_npu = npu.get("requires", {}).get("torch-npu", "-")
    tested = "; ".join(
        f"{entry['package']}: {entry['what']} (`{entry['command']}`)" for entry in row.get("verified", [])
    )
    cpu = row.get("cpu", {})
    core = f"{cpu['distribution']} {row['vllm']}, torch {cpu['torch']}" if cpu else "-"
    cells = [f"`{row['id']}`", row["status"], row["vllm"], row.get("vllm_ascend", "-"), core]
    return [
        *cells,
        f"torch_npu {torch_npu}, CANN {npu.get('cann') or '-'}" if npu else "-",
        tested or row["reason"] or "-",
    ]


def pairs_table() -> str:
    """The table of pairs.toml in Markdown."""
    head = [
        "pair",
        "status",
        "vLLM",
        "vllm-ascend",
        "core on the CPU",
        "NPU side, as vllm-ascend names it",
        "what was run, or why not",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(pair_row(row))} |" for row in envs.rows()]
    default = tomllib.loads(envs.TABLE.read_text(encoding="utf-8"))["default"]
    return "\n".join([*lines, "", f"Default pair: `{default}`."]) + "\n"


def fill_pairs(text: str) -> str:
    """The page of pairs with its table written anew. Raises ValueError when the page has lost its markers."""
    block = f"<!-- generated: pairs -->\n{pairs_table()}<!-- end: pairs -->"
    new, count = PAIRS_BLOCK.subn(lambda _: block, text)
    if count != 1:
        raise ValueError(
            f"{PAIRS_PAGE.name}: one block between `<!-- generated: pairs -->` and `<!-- end: pairs -->` is needed"
        )
    return new


def changelog() -> str:
    """Every package's changelog on one page, its headings one level down."""
    parts = ["# Changelog\n\nEach package has its own version and its own `CHANGELOG.md`.\n"]
    for package in packages():
        text = (package.folder / "CHANGELOG.md").read_text(encoding="utf-8")
        entries = re.sub(r"\A# .*\n+", "", text)
        parts.append(f"## {package.name}\n\n" + re.sub(r"^(#+) ", r"\1# ", entries, flags=re.MULTILINE).strip() + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write what differs."""
    pages = {PAIRS_PAGE: fill_pairs(PAIRS_PAGE.read_text(encoding="utf-8")), GENERATED / "changelog.md": changelog()}
    pages[GENERATED / "doctor_matrix.md"] = doctor_page.page(DOCS / "figures" / "doctor.json")
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
