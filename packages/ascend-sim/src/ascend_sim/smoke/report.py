"""``report.html``: the run on one page that needs no network, no script and no other file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --good: #57c46f; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.verdict { font-size: 1.1rem; font-weight: 600 } .good { color: var(--good) } .bad { color: var(--bad) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line) }
.note { opacity: .8; font-size: .9rem }
"""
_COLUMNS = (
    "scenario",
    "requests",
    "steps",
    "preempted",
    "cache hits",
    "accepted drafts",
    "tokens equal",
    "D2H",
    "event waits",
    "H2D qsl",
    "stream waits",
    "tolist",
    "ms/step",
    "result",
)
_STEP_FIELDS = ("d2h", "event_waits", "h2d_qsl", "stream_waits", "tolist")


def render(report: dict[str, Any]) -> str:
    """HTML of one pair's summary, or of a merged one (``pair`` is ``all``): then one section a pair."""
    pairs = report["rows"] if report["pair"] == "all" else [report]
    verdict = _verdict(
        report["passed"], "every token equal" if report["passed"] else "not passed: see the rows marked FAILED"
    )
    body = "".join(_pair(one) for one in pairs)
    host = report["host"]
    machine = escape(
        f"{host['cpu']}, {host['cores']} cores, {host['system']} {host['machine']}, Python {host['python']}"
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(report['name'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(report['name'])}</h1><p class=verdict>{verdict}</p>"
        f"<p class=note>{machine}. The real vLLM engine and the real vllm-ascend runner on a CPU, compared with "
        "vLLM's own CPU engine, float32, greedy. No NPU took part.</p>" + body + "</html>\n"
    )


def _pair(report: dict[str, Any]) -> str:
    verdict = _verdict(report["passed"], "passed" if report["passed"] else "FAILED")
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = "".join(_row(row) for row in report["rows"])
    failures = "".join(
        f"<h2>{escape(r['scenario'])}</h2><pre>{escape(r['failure'])}</pre>" for r in report["rows"] if r["failure"]
    )
    return (
        f"<h2>Pair {escape(report['pair'])}: {verdict}</h2>"
        f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div>"
        "<p class=note>D2H, event waits, H2D of query_start_loc, stream waits and tolist: averages over ordinary "
        "decode steps; the output's own copy and wait are left out. ms/step: median engine step.</p>"
        + _serve(report)
        + failures
    )


def _row(row: dict[str, Any]) -> str:
    step = row["per_decode_step"]
    counted = [f"{step.get(name, 0):.3g}" if row["decode_steps"] else "-" for name in _STEP_FIELDS]
    drafts = f"{row['accepted']}/{row['drafted']}" if row["drafted"] else "-"
    cells = [
        row["scenario"],
        row["requests"],
        row["steps"],
        row["preemptions"],
        row["prefix_hits"],
        drafts,
        f"{row['tokens_equal']}/{row['tokens_total']}",
        *counted,
        f"{row['ms_per_decode_step']:.2f}",
    ]
    texts = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f"<tr>{texts}<td>{_verdict(row['passed'], 'equal' if row['passed'] else 'FAILED')}</td></tr>"


def _serve(report: dict[str, Any]) -> str:
    if report.get("serve_error"):
        return f"<p class=bad>vllm serve round failed</p><pre>{escape(report['serve_error'])}</pre>"
    served = report.get("serve")
    if not served:
        return ""
    return (
        f"<p>Served round: {served['completed']} requests completed, {served['failed']} failed; server ready after "
        f"{served['ready_s']:.0f} s, benchmark command {served['bench_s']:.0f} s.</p>"
    )


def _verdict(good: bool, text: str) -> str:
    return f"<span class={'good' if good else 'bad'}>{escape(text)}</span>"


def write(report: dict[str, Any], out: Path) -> Path:
    """Write ``report.html`` into `out`."""
    path = out / "report.html"
    path.write_text(render(report), encoding="utf-8")
    return path
