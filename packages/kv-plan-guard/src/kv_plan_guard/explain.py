"""What a verdict code means, where such faults came from, and where to look: the text of `kv-plan-guard explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kv_plan_guard.violation import MEANING, Code


@dataclass(frozen=True, slots=True)
class Explanation:
    """`cases` are public reports of this fault; `look` says where to look first."""

    code: Code
    meaning: str
    cases: str
    look: str


_CASES_AND_LOOK: Final[dict[Code, tuple[str, str]]] = {
    Code.ROW: (
        "vllm-rbln #676, vllm #56380, vllm #55227 (common prefix)",
        "Compare the column with the block's history: a freed or foreign id points to a stale or shifted row, ids of "
        "another unit to the manager/kernel block ratio.",
    ),
    Code.ROW_SHORT: (
        "vllm #26661, vllm #56380",
        "A resumed request's list that replaced nothing, or a row in manager blocks where kernel blocks are read.",
    ),
    Code.ROW_OVERFLOW: (
        "vllm-ascend #11466, #16562",
        "The row width of the group: speculative state blocks and lookahead count too.",
    ),
    Code.TAIL: (
        "vllm-tt-plugin #103, vllm #39589",
        "Harmless while every reader stops at the valid count; compare with the consumer's width.",
    ),
    Code.SLOT: (
        "vllm #57260, vllm #53982, vllm-ascend #10032",
        "Which rule made the slot: another group's, another rank's, or right positions on a wrong row?",
    ),
    Code.POS: (
        "vllm-ascend #10032",
        "Positions built from the scheduler's optimistic count although drafts were rejected.",
    ),
    Code.LEN: (
        "vllm #45146, #42722, #29268",
        "The scheduler's own accounting (failed loads, rejected drafts), or a constant in place of a request's length.",
    ),
    Code.LEN_HOST_DEV: (
        "vllm-ascend #15171",
        "Who corrects the host copy on this rank; a host length may be an upper bound only where it is declared one.",
    ),
    Code.QSL: (
        "vllm-ascend #14872",
        "A batch cut to a graph's size, or a running sum in another order than the rows.",
    ),
    Code.ROWMAP: (
        "ProjectDMX/DMI #67, vllm-ascend #14714, vllm #43982",
        "Rows mapped before the batch was updated, or one part of a plan padded and the other not.",
    ),
    Code.RANGE: (
        "vllm-ascend #14320, #16153, vllm #53982, sglang #38790",
        "Ids in the unit of another pool, or positions behind the row: which group's numbers were used?",
    ),
    Code.INT32: (
        "vllm #50483",
        "num_blocks * block_size reaches 2^31: fewer or smaller blocks, or int64 slots.",
    ),
    Code.NULL_USE: (
        "vllm-ascend #16490, vllm #47728",
        "A window's first block was given up too early, or a slot was computed for a row that is null there.",
    ),
    Code.OWN: (
        "vllm-rbln #676",
        "The block's history names its last owner and the step in which it changed hands.",
    ),
    Code.XWRITE: (
        "vllm-rbln #676, vllm-tt-plugin #103",
        "Another live request holds the block that is written: its KV is being overwritten.",
    ),
    Code.PAD: (
        "vllm-ascend #12840, #14801",
        "Padded rows must have length 0, padded tokens slot -1: look for buffers that keep an earlier batch's tail.",
    ),
    Code.STATE: (
        "vllm-ascend #13863, vllm #51571, #53142",
        "Counts read by row after rows moved, or a column in the blocks of another group.",
    ),
    Code.LIFETIME: (
        "vllm #47728, #45357, #52360, tpu-inference #3449",
        "A transfer is ordered after nothing: the blocks must wait until the named step or job is through.",
    ),
    Code.CONN: (
        "vllm #46595, #50558, vllm-ascend #15674, LMCache #2327, #2206, DingoCache #234",
        "The connector's own list or positions: append against replace, base positions, contiguity.",
    ),
    Code.CYCLE: (
        "vllm #26661, #40768",
        "One decision that both preempts and schedules a request, or placeholders without a step before.",
    ),
    Code.CAPACITY: (
        "vllm-ascend #14024, #14801",
        "The size of the buffer or graph: drafts per request, padded rows.",
    ),
}


def explain(code: Code) -> Explanation:
    """The explanation of one code."""
    cases, look = _CASES_AND_LOOK[code]
    return Explanation(code, MEANING[code], cases, look)
