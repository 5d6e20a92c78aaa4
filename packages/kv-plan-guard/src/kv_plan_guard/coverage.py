"""Which checks were active in a run, how often each ran, and why the others were not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard.violation import Code, Coverage

if TYPE_CHECKING:
    from collections import Counter

    from kv_plan_guard.config import Config
    from kv_plan_guard.layout import Layout
    from kv_plan_guard.stats import Stats

_PARTS: Final = (
    "query_start_loc",
    "block_table",
    "slot_mapping",
    "seq_lens",
    "seq_lens_host",
    "positions",
    "local_seq_lens",
    "state_columns",
    "state_blocks",
    "num_accepted",
    "slot_capacity",
)

#: Code to the parts of a plan any of which makes the check possible.
_NEEDS: Final[dict[Code, tuple[str, ...]]] = {
    Code.ROW: ("block_table",),
    Code.ROW_SHORT: ("block_table", "slot_mapping", "query_start_loc"),
    Code.SLOT: ("slot_mapping",),
    Code.POS: ("positions",),
    Code.LEN: ("seq_lens", "seq_lens_host", "local_seq_lens"),
    Code.LEN_HOST_DEV: ("seq_lens_host",),
    Code.QSL: ("query_start_loc",),
    Code.ROWMAP: ("query_start_loc", "block_table"),
    Code.RANGE: ("block_table", "slot_mapping"),
    Code.INT32: ("slot_mapping",),
    Code.NULL_USE: ("block_table", "slot_mapping"),
    Code.OWN: ("block_table", "slot_mapping"),
    Code.XWRITE: ("block_table", "slot_mapping"),
    Code.PAD: ("slot_mapping", "seq_lens", "block_table"),
    Code.STATE: ("state_columns", "state_blocks", "num_accepted"),
    Code.CAPACITY: ("seq_lens", "slot_mapping", "slot_capacity"),
}

#: What no check at plan level can see, for the table's last lines and the documentation.
NOT_VISIBLE: Final = (
    "contents of KV blocks, also after a false prefix hit with consistent addresses",
    "input token ids",
    "what a kernel does with a right plan (such as using slot -1 as an index)",
    "order of streams and transfers beyond what connector metadata says",
    "two groups whose different block ids overlap in memory",
    "a plan whose forward ends the worker process itself before the plan was read; one that raises is audited",
)


def coverage(
    config: Config, layout: Layout, parts: Counter[tuple[Any, ...]], stats: Stats, speculates: bool
) -> tuple[Coverage, ...]:
    """One line per code. `parts` counts audits by (group, part present?, ...)."""
    ran = dict.fromkeys(_PARTS, 0)
    for key, number in parts.items():
        for name, present in zip(_PARTS, key[1:], strict=True):
            if present:
                ran[name] += number
    lines = []
    for code in Code:
        if code in _NEEDS:
            lines.append(_by_parts(code, ran, layout))
        elif code is Code.TAIL:
            number = stats.audits if config.tail else 0
            lines.append(Coverage(code, config.tail, number, "" if config.tail else "information only; set tail: true"))
        elif code is Code.ROW_OVERFLOW:
            known = any(group.row_width is not None for group in layout.groups)
            lines.append(
                Coverage(code, known, stats.audits if known else 0, "" if known else "row widths not declared")
            )
        elif code is Code.CYCLE:
            lines.append(Coverage(code, True, stats.steps))
        else:
            lines.append(_by_connector(code, layout, stats))
    if config.every > 1:
        why = f"every {config.every}th step is audited"
        lines = [_with_note(line, why) if line.active and line.code in _NEEDS else line for line in lines]
    return tuple(lines)


def _by_parts(code: Code, ran: dict[str, int], layout: Layout) -> Coverage:
    needed = _NEEDS[code]
    number = max(ran[name] for name in needed)
    if number:
        if code is Code.INT32 and all(group.slot_dtype == "int64" for group in layout.groups):
            return Coverage(code, True, number, "slots are int64: they cannot wrap here")
        return Coverage(code, True, number)
    return Coverage(code, False, 0, f"no plan had {' or '.join(needed)}")


def _by_connector(code: Code, layout: Layout, stats: Stats) -> Coverage:
    if code.value in layout.connector_checks:
        return Coverage(code, True, stats.steps, f"connector {layout.connector}")
    if code is Code.LIFETIME and layout.tokens_per_write > 1:
        return Coverage(code, True, stats.steps, "writes of steps in flight only")
    if layout.connector is None:
        return Coverage(code, False, 0, "no KV connector")
    return Coverage(code, False, 0, f"metadata of connector {layout.connector} is not read")


def _with_note(line: Coverage, why: str) -> Coverage:
    return Coverage(line.code, line.active, line.ran, f"{line.why}; {why}" if line.why else why)
