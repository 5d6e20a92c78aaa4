"""The doctor's ground truth: faults planted in a small core and plugin are found, told apart and gone past.

No engine runs here: the importing part of a cell is plain Python, and so is the comparison with the doctor's findings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

CORE = {
    "vllm/__init__.py": "",
    "vllm/util.py": """
        from dataclasses import dataclass
        from functools import wraps
        def here(a): return a
        def register(name, *, flag=False): return lambda f: f
        def make(a, lanes): return a
        def run(a): return make(a, lanes=2)
        def handing_on(f):
            @wraps(f)
            def wrapper(*args, **kwargs): return f(*args, **kwargs)
            return wrapper
        @handing_on
        def wrapped(a): return a
        class Table:
            def __init__(self): self.rows = [1, 2]
        def first_row(table): return table.rows[0]
        def place(caches): return [cache.device for cache in caches]
        class Base:
            def __init_subclass__(cls): cls.needed
            needed = 1
        class Config: pass
        @dataclass
        class Wide:
            a: int
            need: int
        @dataclass
        class Record:
            a: int
            b: int = 0
        """,
    "vllm/broken.py": "import not_installed_anywhere\n",
    "ascend_sim/__init__.py": "",
    "ascend_sim/absent.py": """
        class NotSimulatedError(NotImplementedError): pass
        def register(): raise NotSimulatedError("register")
        """,
}
PLUGIN = {
    "vllm_ascend/__init__.py": "",
    "vllm_ascend/names.py": """
        from vllm.util import (
            gone,
            here,
            also_gone,
        )
        from vllm.util import gone as again

        @gone
        def decorated(x: also_gone) -> gone: ...

        class Derived(also_gone):
            pass

        assert decorated and here(1) == 1 and again is not None
        """,
    "vllm_ascend/modules.py": """
        import vllm.nowhere as nowhere
        from vllm.nowhere.inside import thing
        import not_installed_either
        from vllm.broken import anything
        try:
            from vllm.util import optional
        except ImportError:
            optional = None
        AFTER = 1
        """,
    "vllm_ascend/packages.py": """
        import vllm.util.nothing.inside
        vllm.util.nothing.inside.function = vllm.util.nothing.inside.other
        assert vllm.util.here(2) == 2
        """,
    "vllm_ascend/uses.py": """
        import vllm.util
        from vllm_ascend.names import here
        VALUE = vllm.util.LIMIT
        for name in ("Config", "first", "second"): getattr(vllm.util, name)
        @vllm.util.register("x", flag=True, scope=3)
        def f(): ...
        here(1, 2)
        here()
        """,
    "vllm_ascend/fields.py": """
        from dataclasses import dataclass
        from vllm.util import Record

        @dataclass
        class Longer(Record):
            c: int
            d: int

        assert Longer(1).d is None
        int("no number")
        if True:
            int("nor this")
        AFTER = 1
        """,
    "vllm_ascend/wrapped.py": """
        from contextlib import contextmanager
        import vllm.util

        @contextmanager
        def wrapper():
            real = vllm.util.make
            def factory(a): return a
            vllm.util.make = factory
            try:
                yield
            finally:
                vllm.util.make = real

        with wrapper():
            assert vllm.util.run(1) == 1
        """,
    "vllm_ascend/decorated.py": """
        import vllm.util
        assert vllm.util.wrapped(1, extra=2) == 1
        """,
    "vllm_ascend/table.py": """
        class Table:
            def rows(self, n=None): return [3][:n]
        """,
    "vllm_ascend/tables.py": """
        import vllm.util
        from vllm_ascend.table import Table
        assert vllm.util.first_row(Table()) == 3
        """,
    "vllm_ascend/wide.py": """
        from dataclasses import dataclass
        from vllm.util import Wide
        @dataclass
        class Own(Wide): pass
        """,
    "vllm_ascend/wider.py": """
        from vllm_ascend.wide import Own
        assert Own(1).need is None
        """,
    "vllm_ascend/handed.py": """
        import vllm.util
        vllm.util.place([(1, 2)])
        AFTER = 1
        """,
    "vllm_ascend/importer.py": """
        import builtins
        real = builtins.__import__
        def own(*args, **kwargs): return real(*args, **kwargs)
        builtins.__import__ = own
        from vllm.util import gone_too
        import not_installed_third
        builtins.__import__ = real
        AFTER = 1
        """,
    "vllm_ascend/absent.py": """
        from ascend_sim.absent import register
        def start():
            register()
            return here
        from vllm.util import here
        assert start()(1) == 1
        """,
    "vllm_ascend/stuck.py": "if True: raise RuntimeError('no repair for this')\n",
}
RUN = """
import json, sys
sys.path[:0] = [{benchmarks!r}, {core!r}, {plugin!r}]
from pathlib import Path
import _doctor_runs as runs
from _doctor_book import Book
book = Book(Path({plugin!r}))
book.install()
names = runs.modules(Path({plugin!r}))
first = runs.import_all(book, names)
for name in [n for n in sys.modules if n.startswith("vllm_ascend")]:
    del sys.modules[name]
second = runs.import_all(book, names)
print(json.dumps([first, second]))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two passes over the planted plugin say; the second one has the edits of the first."""
    folder = tmp_path_factory.mktemp("doctor")
    for tree, files in (("core-1.0", CORE), ("plugin-1.0", PLUGIN)):
        for name, text in files.items():
            path = folder / tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"))
    code = RUN.format(benchmarks=str(BENCHMARKS), core=str(folder / "core-1.0"), plugin=str(folder / "plugin-1.0"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    return first, second


def seen(result: dict[str, Any], origin: str) -> set[tuple[str, str, str, str, int]]:
    """Findings of one origin: kind, symbol, argument, file, line."""
    rows = [row for row in result["findings"] if row["origin"] == origin]
    return {(r["kind"], r["symbol"], r["argument"], r["file"].removeprefix("vllm_ascend/"), r["line"]) for r in rows}


def test_every_planted_fault_of_the_core_is_found_at_its_own_site(
    outcome: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    assert seen(outcome[0], "mismatch") == {
        ("ImportError", "vllm.util:gone", "", "names.py", 1),
        ("ImportError", "vllm.util:also_gone", "", "names.py", 1),
        ("ImportError", "vllm.util:gone", "", "names.py", 6),
        ("ModuleNotFoundError", "vllm.nowhere", "", "modules.py", 1),
        ("ModuleNotFoundError", "vllm.nowhere", "", "modules.py", 2),
        ("ModuleNotFoundError", "vllm.util.nothing", "", "packages.py", 1),
        ("AttributeError", "vllm.util:LIMIT", "", "uses.py", 3),
        ("TypeError", "vllm_ascend.fields:Longer.c", "c", "fields.py", 5),
        ("TypeError", "vllm_ascend.fields:Longer.d", "d", "fields.py", 5),
        ("AttributeError", "vllm.util:first", "", "uses.py", 4),
        ("AttributeError", "vllm.util:second", "", "uses.py", 4),
        ("TypeError", "vllm.util:register", "scope", "uses.py", 5),
        ("TypeError", "vllm.util:here", "1", "uses.py", 7),
        ("TypeError", "vllm.util:here", "a", "uses.py", 8),
        # its name is the core's again when the error arrives
        ("ImportError", "vllm.util:gone_too", "", "importer.py", 5),
        ("TypeError", "vllm.util:wrapped", "extra", "decorated.py", 2),
        ("TypeError", "vllm_ascend.table:Table.rows", "", "table.py", 2),
        ("TypeError", "vllm_ascend.wide:Own.__init__", "need", "wider.py", 2),
        ("AttributeError", "builtins:tuple.device", "", "handed.py", 2),
        ("TypeError", "vllm_ascend.wrapped:wrapper.<locals>.factory", "lanes", "wrapped.py", 7),
    }


def test_what_is_no_fault_of_the_core_is_told_apart(outcome: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert seen(outcome[0], "environment") == {
        ("ModuleNotFoundError", "not_installed_either", "", "modules.py", 3),
        ("ModuleNotFoundError", "vllm.broken", "", "modules.py", 4),
        ("ModuleNotFoundError", "not_installed_third", "", "importer.py", 6),
    }


def test_a_call_that_only_an_npu_answers_is_gone_past(outcome: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert seen(outcome[0], "simulator") == {("NotSimulatedError", "register", "", "absent.py", 3)}
    assert not seen(outcome[1], "simulator")


def test_a_guarded_import_is_no_fault(outcome: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert not [row for row in outcome[0]["findings"] if "optional" in row["symbol"]]


def test_the_edits_go_past_everything_but_what_has_no_repair(outcome: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = outcome
    assert set(second["failed"]) == {"vllm_ascend.stuck"}
    # What is repaired in a module that is already imported takes another run.
    assert set(first["failed"]) == {"vllm_ascend.stuck", "vllm_ascend.tables"}
    assert not seen(second, "mismatch")
    assert not seen(second, "environment")


def test_lines_that_ran_are_those_of_the_released_file(outcome: tuple[dict[str, Any], dict[str, Any]]) -> None:
    lines = outcome[1]["trace"]["lines"]
    assert 9 in lines["vllm_ascend/modules.py"]
    assert max(lines["vllm_ascend/uses.py"]) == 8
    assert max(lines["vllm_ascend/fields.py"]) == 13


def join() -> Any:
    """The comparison, imported from beside the bench."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import _doctor_join

        return _doctor_join
    finally:
        sys.path.remove(str(BENCHMARKS))


def finding(line: int, symbol: str, **other: Any) -> dict[str, Any]:
    """A finding of the doctor at one line."""
    base = {"kind": "missing-name", "level": "error", "severity": "import-time", "file": "vllm_ascend/a.py"}
    base |= {"core_file": None, "core_line": None, "name": symbol.rpartition(":")[2], "symbol": symbol}
    return base | {"line": line, "end_line": line} | other


def raw(line: int, symbol: str, **other: Any) -> dict[str, Any]:
    """A row of the truth at one line."""
    base = {"phase": "import", "kind": "ImportError", "origin": "mismatch", "argument": "", "file": "vllm_ascend/a.py"}
    return base | {"core_file": "", "core_line": 0, "message": "", "symbol": symbol, "line": line} | other


def cell(rows: list[dict[str, Any]], ran: list[int]) -> dict[str, Any]:
    """A cell of the truth."""
    executed = {"lines": {"vllm_ascend/a.py": ran}, "entered": {"vllm_ascend/a.py": [20]}}
    return {"core": "2", "plugin": "1", "rows": rows, "executed": executed}


def test_recall_and_precision_count_what_they_say() -> None:
    rows = [raw(1, "vllm.x:A"), raw(2, "vllm.x:B"), raw(3, "vllm.x:K"), raw(4, "torchair", origin="environment")]
    findings = [
        finding(1, "vllm.x:A"),
        finding(2, "vllm.x:Other"),  # the right line, another symbol: not that failure, and false
        finding(3, "vllm.x:K"),  # the verified pair fails there too
        finding(8, "vllm.x:E"),  # ran, nothing failed
        finding(9, "vllm.x:F"),  # never ran
        finding(4, "vllm.x:I"),  # ran, and failed for the want of a package
        finding(8, "vllm.x:G", severity="rare-path"),  # not one of those that are judged
        finding(8, "vllm.x:H", level="warning"),
    ]
    verdict = join().judge(cell(rows, [1, 2, 3, 4, 8]), cell([raw(3, "vllm.x:K")], []), findings, ("error", "warning"))
    assert [row.symbol for row in verdict.missed] == ["vllm.x:B"]
    assert verdict.found == 1
    assert {word: len(found) for word, found in verdict.judged.items()} == {
        "real": 1,
        "known": 1,
        "false": 2,
        "unclear": 1,
        "not reached": 1,
    }
    assert verdict.excluded == {"verified pair": 1, "environment": 1}


@pytest.mark.parametrize(
    ("row", "said", "expected"),
    [
        (raw(5, "vllm.a:f", kind="TypeError", argument="x"), finding(5, "vllm.a:f", name="x"), True),
        (raw(5, "vllm.a:f", kind="TypeError", argument="x"), finding(5, "vllm.a:f", name="y"), False),
        (raw(5, "vllm.a:f", kind="TypeError", argument="x"), finding(6, "vllm.a:f", name="x"), False),
        (raw(5, "vllm.a", kind="ModuleNotFoundError"), finding(5, "vllm.a.b:C"), True),
        (raw(5, "vllm.a", kind="ModuleNotFoundError"), finding(5, "vllm.ab"), False),
        (raw(5, "vllm.a:C.f", kind="AttributeError"), finding(4, "vllm.a:C.f", end_line=6), True),
    ],
)
def test_a_finding_is_a_failure_only_with_its_site_symbol_and_argument(
    row: dict[str, Any], said: dict[str, Any], expected: bool
) -> None:
    (one,) = join().rows_of(cell([row], []))
    assert join().matches(one, said) is expected


def test_a_definition_was_reached_when_it_was_entered() -> None:
    ran = cell([], [10, 20])
    assert join().reached(finding(10, "vllm.a:f"), ran)
    assert not join().reached(finding(10, "vllm.a:f", kind="override-signature"), ran)
    assert join().reached(finding(20, "vllm.a:f", kind="override-signature", end_line=24), ran)
