"""Mutated packets: every one must be refused with a clear error or shown harmless; none may be believed when changed.

Half of the mutants are sealed again (a fresh manifest), as an attacker would do. Harmful is: a mutant accepted whose
raw data or verdict differ from the original without a new seal; an exception that is not a PacketError; a page with
text that a browser could run or a terminal could obey; a file written or removed anywhere; more than 10 s or 1 GiB.
"""

# env: light

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _evidence_common import write_summary
from make import make_packet
from serving_evidence.errors import PacketError
from serving_evidence.packet import verify
from serving_evidence.packet.read import MANIFEST
from serving_evidence.report import page

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
TERMINAL = "\x1b]0;owned\x07\x1b[2J\u202etxt.exe[red]"
NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1e300",
    "-1",
    "0",
    "9" * 400,
    "1e-320",
    "true",
    "null",
    '"1"',
    "[]",
]
NAMES = ["../../escape", "/etc/passwd", "a/../../b", "..", ".hidden", "a\\..\\b", "C:evil", "x" * 300, "a//b", "a\nb"]
_DOCUMENT = ["html", "meta", "title", "style", "h1", "h2", "p", "b", "br", "code", "ul", "li", "div", "span", "details"]
_TABLE = ["summary", "table", "thead", "tbody", "tr", "th", "td"]
ALLOWED_TAGS = frozenset([*_DOCUMENT, *_TABLE, "svg", "circle", "line", "rect", "text"])


class Mutator:
    """Changes one thing in a copy of the packet; which one is drawn from a seed."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.files = sorted(p for p in folder.rglob("*") if p.is_file())

    def pick(self, *suffixes: str) -> Path:
        return self.rng.choice([p for p in self.files if not suffixes or p.name.endswith(suffixes)])

    def bit_flips(self) -> None:
        path = self.pick()
        data = bytearray(path.read_bytes() or b"\0")
        for _ in range(self.rng.choice([1, 1, 8, 64])):
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data)

    def parquet_flips(self) -> None:
        path = self.pick(".parquet")
        data = bytearray(path.read_bytes())
        for _ in range(self.rng.choice([1, 4, 32])):
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data)

    def truncate(self) -> None:
        path = self.pick()
        path.write_bytes(path.read_bytes()[: self.rng.randrange(max(path.stat().st_size, 1))])

    def swap(self) -> None:
        one, other = self.pick(), self.pick()
        a, b = one.read_bytes(), other.read_bytes()
        one.write_bytes(b)
        other.write_bytes(a)

    def drop(self) -> None:
        self.pick().unlink()

    def add(self) -> None:
        (self.folder / self.rng.choice(["extra.txt", "starts/extra.json", "evil.sh"])).write_text("x")

    def json_value(self) -> None:
        path = self.pick(".json")
        value = json.loads(path.read_text())
        holder, key = self._place(value)
        holder[key] = "\0MARK"
        new = self.rng.choice([*NUMBERS, json.dumps(SCRIPT), json.dumps(TERMINAL), "{}", "[" * 5_000 + "]" * 5_000])
        path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")).replace('"\\u0000MARK"', new))

    def json_key(self) -> None:
        path = self.pick(".json")
        value = json.loads(path.read_text())
        holder, key = self._place(value)
        if isinstance(holder, dict) and self.rng.random() < 0.7:
            holder[self.rng.choice([SCRIPT, TERMINAL, "../up", "__class__"])] = holder.pop(key)
        else:
            del holder[key]
        path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))

    def script_text(self) -> None:
        text = self.rng.choice([SCRIPT, TERMINAL, SCRIPT + TERMINAL])
        if self.rng.random() < 0.5:
            path = self.folder / "packet.json"
            value = json.loads(path.read_text())
            field = self.rng.choice(["name", "who_ran", "written_by", "deviations", "excluded"])
            if field == "deviations":
                value[field] = [{"at": 1.0, "text": text}]
            elif field == "excluded":
                value[field] = [{"index": 0, "arm": "A", "attempt": 1, "rule": "x", "reason": text, "at": 1.0}]
            else:
                value[field] = text
            path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
        else:
            path = self.pick("c8.json")
            value = json.loads(path.read_text())
            value[self.rng.choice(["generated_texts", "errors"])][0] = text
            path.write_text(json.dumps(value))

    def link(self) -> None:
        path = self.pick()
        path.unlink()
        target = self.rng.choice(
            ["/etc/passwd", "/dev/zero", "../../..", str(self.folder / "packet.json"), "/proc/self/mem"]
        )
        path.symlink_to(target)

    def folder_link(self) -> None:
        shutil.rmtree(self.folder / "data")
        (self.folder / "data").symlink_to("/etc")

    def pipe(self) -> None:
        path = self.pick()
        path.unlink()
        os.mkfifo(path)

    def manifest_name(self) -> None:
        path = self.folder / MANIFEST
        line = f"{'0' * 64}  {self.rng.choice(NAMES)}\n"
        path.write_text(self.rng.choice([path.read_text() + line, line]))

    def manifest_noise(self) -> None:
        path = self.folder / MANIFEST
        lines = path.read_text().splitlines(keepends=True)
        i = self.rng.randrange(len(lines))
        lines[i] = self.rng.choice([lines[i] * 2, lines[i].upper(), lines[i].replace("  ", " *"), "", "\0\n"])
        path.write_text("".join(lines))

    def claim(self) -> None:
        path = self.folder / "verdict.json"
        text = path.read_text()
        swaps = [
            ("REPRODUCED", "NOT_REPRODUCED"),
            ("ADOPT", "REJECT"),
            ('"pairs": 6', '"pairs": 60'),
            ("0.03125", "0.001"),
        ]
        old, new = self.rng.choice(swaps)
        path.write_text(text.replace(old, new))

    def bomb(self) -> None:
        import polars as pl

        rows = self.rng.choice([60_000_000, 6_000_000])
        name = self.rng.choice(["itls.parquet", "requests.parquet"])
        pl.select(pl.repeat(0.0, rows).alias("itl_ms")).write_parquet(self.folder / "data" / name, compression="zstd")

    def deep(self) -> None:
        path = self.folder / "starts" / "/".join("d" * 1 for _ in range(12))
        path.mkdir(parents=True)
        (path / "x").write_text("x")

    def seal(self) -> None:
        """A fresh manifest over whatever is there, links followed, as `sha256sum` would write it."""
        lines = []
        for path in sorted(self.folder.rglob("*")):
            if path.name != MANIFEST and path.is_file() and not str(path.resolve()).startswith(("/dev", "/proc")):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                lines.append(f"{digest}  {path.relative_to(self.folder)}\n")
        manifest = self.folder / MANIFEST
        if not manifest.is_file() or manifest.is_symlink():
            manifest.unlink(missing_ok=True)  # a pipe in its place would wait for a reader
        manifest.write_text("".join(lines))

    def _place(self, value: Any) -> tuple[Any, Any]:
        holder, key = value, self._key(value)
        while isinstance(holder[key], dict | list) and holder[key] and self.rng.random() < 0.85:
            holder = holder[key]
            key = self._key(holder)
        return holder, key

    def _key(self, holder: Any) -> Any:
        return self.rng.choice(sorted(holder)) if isinstance(holder, dict) else self.rng.randrange(len(holder))


SEALED_ALWAYS = {"link", "folder_link", "pipe", "bomb", "parquet_flips", "script_text"}
NEVER_SEALED = {"manifest_name", "manifest_noise"}
KINDS: list[str] = [name for name in vars(Mutator) if not name.startswith("_") and name not in ("pick", "seal")]


class Page(HTMLParser):
    """Notes every tag and attribute that a page of ours never has."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED_TAGS or any(name.startswith("on") or name in ("src", "href") for name, _ in attrs):
            self.bad.append(tag)


def bad_page(text: str) -> str | None:
    """What is wrong with a page, or None."""
    parser = Page()
    parser.feed(text)
    if parser.bad:
        return f"tag {parser.bad[0]!r} in the page"
    return "a control character in the page" if any(ord(c) < 32 and c not in "\n\t" for c in text) else None


def tree(folder: Path) -> Counter[str]:
    """Names below a folder, to see that nothing was written or removed."""
    return Counter(str(p) for p in folder.rglob("*"))


def try_packet(folder: Path, original: str, sealed: bool, check: Callable[[Path], Any] = verify) -> tuple[str, str]:
    """('refused' | 'harmless' | 'harmful', why) for one mutant."""
    names = tree(folder.parent)
    began = time.perf_counter()
    try:
        verified = check(folder)
        text = page(verified, folder.name)
    except PacketError as problem:
        outcome, why = "refused", str(problem)
    except BaseException as problem:
        outcome, why = "harmful", f"{type(problem).__name__}: {problem}"
    else:
        wrong = bad_page(text)
        if wrong:
            outcome, why = "harmful", wrong
        elif not sealed and json.dumps(verified.verdict, sort_keys=True) != original:
            outcome, why = "harmful", "believed although changed"
        else:
            outcome, why = "harmless", "verifies; page clean"
    if time.perf_counter() - began > 10:
        outcome, why = "harmful", "took more than 10 s"
    if tree(folder.parent) != names:
        outcome, why = "harmful", "files were written or removed"
    return outcome, why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/evidence_hostile"))
    parser.add_argument("--packets", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-most", type=int, help="so many packets now; the same call goes on (status 3 meanwhile)")
    options = parser.parse_args()
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    harmful: list[dict[str, Any]] = []
    progress = options.out / f"progress-{options.seed}-{options.packets}.json"
    first = 0
    if options.at_most is not None and progress.exists():
        saved = json.loads(progress.read_text(encoding="utf-8"))
        first, harmful = saved["next"], saved["harmful"]
        outcomes = {kind: Counter(saved["outcomes"][kind]) for kind in KINDS}
    last = options.packets if options.at_most is None else min(options.packets, first + options.at_most)
    with tempfile.TemporaryDirectory() as name:
        base = make_packet(Path(name) / "base" / "packet")
        original = json.dumps(verify(base).verdict, sort_keys=True)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, last):
            rng = random.Random(f"{options.seed}-{number}")
            kind = KINDS[number % len(KINDS)]
            folder = Path(name) / "mutant" / "packet"
            shutil.copytree(base, folder)
            mutator = Mutator(folder, rng)
            getattr(mutator, kind)()
            sealed = kind in SEALED_ALWAYS or (kind not in NEVER_SEALED and rng.random() < 0.5)
            if sealed:
                mutator.seal()
            outcome, why = try_packet(folder, original, sealed)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
            if grown > 1024 and outcome != "harmful":
                outcome, why = "harmful", f"memory grew by {grown:.0f} MiB"
            outcomes[kind][outcome] += 1
            if outcome == "harmful":
                harmful.append({"number": number, "kind": kind, "sealed": sealed, "why": why[:200]})
                sys.stdout.write(f"harmful: {harmful[-1]}\n")
            shutil.rmtree(folder.parent)
    if last < options.packets:
        options.out.mkdir(parents=True, exist_ok=True)
        saved = {"next": last, "harmful": harmful, "outcomes": outcomes}
        progress.write_text(json.dumps(saved), encoding="utf-8")
        sys.stdout.write(f"{last} of {options.packets} packets, {len(harmful)} harmful\n")
        return 3
    progress.unlink(missing_ok=True)
    rows = [{"kind": kind, **dict(count)} for kind, count in outcomes.items()] + harmful
    for row in rows:
        sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
    figures = {
        "packets": options.packets,
        "refused": sum(count["refused"] for count in outcomes.values()),
        "harmless": sum(count["harmless"] for count in outcomes.values()),
        "harmful": len(harmful),
    }
    return write_summary(options.out, "evidence_hostile", options.seed, figures, rows, not harmful)


if __name__ == "__main__":
    sys.exit(main())
