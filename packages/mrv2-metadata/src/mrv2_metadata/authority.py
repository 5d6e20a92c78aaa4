"""Who is the authority for the host sequence lengths of one step: the scheduler or the device.

The scheduler's counts may be used only where they are provably exact; every other case, and everything that is not
known, is the device's. The decision is a pure and total function over a table: `RULES` is that table, the README
prints it, and each of its rows has a test which flips that row's fact alone.

No rule asks whether this runner owns a speculator: a non-last pipeline rank owns none and still sees rejections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")


class Unknown(Enum):
    """The value of a fact that could not be read. It never counts as harmless."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
Known: TypeAlias = T | Unknown


class Source(StrEnum):
    """The authority for the host lengths of one step."""

    SCHEDULER = "scheduler"
    DEVICE = "device"


class Exactness(StrEnum):
    """What one host length promises: the true length, or a bound that the true length does not exceed."""

    EXACT = "exact"
    UPPER_BOUND = "upper_bound"


class Action(StrEnum):
    """What the hook does where a rule forces the device.

    CORRECT: copy the device counts back and correct the host lengths. DECLINE: leave upstream's path untouched.
    REFUSE: do not start.
    """

    CORRECT = "correct"
    DECLINE = "decline"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What holds for a runner as long as it lives. Sizes and ranks are counts; `UNKNOWN` is always allowed.

    `tokens_per_step` is the number of tokens sampled per request and step without drafts. `speculative_sync` is the
    operator's switch: proposers whose host counts he trusts under synchronous scheduling.
    """

    speculative_method: Known[str | None]
    num_speculative_steps: Known[int]
    async_scheduling: Known[bool]
    tokens_per_step: Known[int]
    diffusion: Known[bool]
    pp_size: Known[int]
    pp_rank: Known[int]
    dcp_size: Known[int]
    pcp_size: Known[int]
    dynamic_eplb: Known[bool]
    pooling: Known[bool]
    kv_load_can_fail: Known[bool]
    adaptive_verification: Known[bool]
    speculative_sync: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What holds for one step.

    `num_draft_tokens` counts the draft tokens scheduled in the step. `counts_continuous` is true when the scheduler's
    count of every running request is what its last step left behind (a failed KV load rewinds it).
    """

    num_draft_tokens: Known[int]
    structured_output: Known[bool]
    counts_continuous: Known[bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """The authority for one step, the names of the rules that forced the device, and what the hook does about it."""

    source: Source
    reasons: tuple[str, ...]
    action: Action | None

    @property
    def exactness(self) -> Exactness:
        """What the host lengths promise before any correction."""
        return Exactness.EXACT if self.source is Source.SCHEDULER else Exactness.UPPER_BOUND


Test: TypeAlias = Callable[[RunnerFacts, StepFacts], "bool | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the truth table; `test` answers True (forces the device), False (clear) or None (not known)."""

    name: str
    fact: str
    action: Action
    why: str
    test: Test
    unknown_action: Action = Action.DECLINE


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: object) -> int | None:
    # bool is an int in Python; a flag in the place of a count is a fact misread, so not known.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _more_than_one(value: object) -> bool | None:
    count = _count(value)
    return None if count is None or count == 0 else count > 1


def _speculates(runner: RunnerFacts) -> bool | None:
    method, steps = runner.speculative_method, _count(runner.num_speculative_steps)
    if method is not None and not isinstance(method, str):
        return None
    if steps is None:
        return None
    return method is not None or steps > 0


def _opted_in(runner: RunnerFacts) -> bool:
    """Whether the operator switched the correction off for this proposer and the scheduler settles tokens itself."""
    return (
        isinstance(runner.speculative_method, str)
        and runner.speculative_method in runner.speculative_sync
        and runner.async_scheduling is False
    )


def _speculation(runner: RunnerFacts, step: StepFacts) -> bool | None:
    speculates = _speculates(runner)
    return speculates if not speculates else not _opted_in(runner)


def _drafts(runner: RunnerFacts, step: StepFacts) -> bool | None:
    drafts = _count(step.num_draft_tokens)
    return None if drafts is None else drafts > 0 and not _opted_in(runner)


def _speculation_across_pp(runner: RunnerFacts, step: StepFacts) -> bool | None:
    speculates = _speculates(runner)
    if speculates is False:
        return False if _more_than_one(runner.pp_size) is not None else None
    return speculates and _more_than_one(runner.pp_size)


def _speculation_across_pp_sync(runner: RunnerFacts, step: StepFacts) -> bool | None:
    across = _speculation_across_pp(runner, step)
    if across is not True:
        return False  # the row above answers for what is not known
    return None if _flag(runner.async_scheduling) is None else runner.async_scheduling is False


def _scheduling_unknown(runner: RunnerFacts, step: StepFacts) -> bool | None:
    return None if _flag(runner.async_scheduling) is None else False


def _rank_unknown(runner: RunnerFacts, step: StepFacts) -> bool | None:
    rank, size = _count(runner.pp_rank), _count(runner.pp_size)
    return None if rank is None or size is None or rank >= size else False


def _structured_drafts(runner: RunnerFacts, step: StepFacts) -> bool | None:
    structured = _flag(step.structured_output)
    return None if structured is None else structured and _speculates(runner) is not False


def _counts_rewound(runner: RunnerFacts, step: StepFacts) -> bool | None:
    continuous = _flag(step.counts_continuous)
    return None if continuous is None else not continuous


def _many_tokens(runner: RunnerFacts, step: StepFacts) -> bool | None:
    count = _count(runner.tokens_per_step)
    return None if count is None else count != 1


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "pp_speculation_sync",
        "pipeline parallel with speculation and synchronous scheduling",
        Action.REFUSE,
        "plain vLLM stops on its own assertion (scheduled tokens >= logits); the Ascend runner has no such assertion "
        "and goes on to wrong tokens",
        _speculation_across_pp_sync,
        Action.REFUSE,
    ),
    Rule(
        "pp_speculation",
        "pipeline parallel with speculation",
        Action.CORRECT,
        "a non-last rank owns no speculator and still sees rejections; its scheduler counts run ahead",
        _speculation_across_pp,
    ),
    Rule(
        "speculation",
        "a speculative method, or speculative steps > 0",
        Action.CORRECT,
        "the scheduler counts every draft as accepted until the rejection reaches it; lifted only for a proposer "
        "named in `speculative_sync` under synchronous scheduling",
        _speculation,
    ),
    Rule(
        "draft_tokens",
        "draft tokens scheduled in this step",
        Action.CORRECT,
        "as above, seen in the step itself and not in the configuration",
        _drafts,
        Action.CORRECT,
    ),
    Rule(
        "structured_speculation",
        "structured output in a step of a runner that speculates",
        Action.CORRECT,
        "the grammar cuts drafts; not proven that the scheduler has settled it. Without speculation a grammar masks "
        "logits and changes no count",
        _structured_drafts,
        Action.CORRECT,
    ),
    Rule(
        "counts_rewound",
        "a running request's count is not what its last step left",
        Action.CORRECT,
        "a failed KV load, or something unknown, rewound it; positions come from the device, so lengths must too",
        _counts_rewound,
        Action.CORRECT,
    ),
    Rule(
        "kv_load_can_fail",
        "a KV connector whose failed loads are recomputed",
        Action.CORRECT,
        "the scheduler rewinds its count after a failed load, the device does not",
        lambda runner, step: _flag(runner.kv_load_can_fail),
    ),
    Rule(
        "tokens_per_step",
        "more, or fewer, than one token sampled per request and step",
        Action.DECLINE,
        "the scheduler's count is one token a step only for ordinary decode",
        _many_tokens,
    ),
    Rule(
        "diffusion",
        "diffusion-style generation",
        Action.DECLINE,
        "tokens of a block are accepted or rejected on the device, without a speculator",
        lambda runner, step: _flag(runner.diffusion),
    ),
    Rule(
        "dcp",
        "decode context parallel > 1",
        Action.DECLINE,
        "each rank holds a part of a sequence; not run here",
        lambda runner, step: _more_than_one(runner.dcp_size),
    ),
    Rule(
        "pcp",
        "prefill context parallel > 1",
        Action.DECLINE,
        "the batch is partitioned inside prepare_inputs, where lengths must already be exact",
        lambda runner, step: _more_than_one(runner.pcp_size),
    ),
    Rule(
        "dynamic_eplb",
        "dynamic expert load balancing",
        Action.DECLINE,
        "adds its own steps to the runner; not run here",
        lambda runner, step: _flag(runner.dynamic_eplb),
    ),
    Rule(
        "pooling",
        "a pooling model",
        Action.DECLINE,
        "no decode, and outputs that do not pass the checked output copy",
        lambda runner, step: _flag(runner.pooling),
    ),
    Rule(
        "adaptive_verification",
        "adaptive verification",
        Action.DECLINE,
        "the device drops drafts on its own, so even query_start_loc differs from the host's",
        lambda runner, step: _flag(runner.adaptive_verification),
    ),
    Rule(
        "scheduling_unknown",
        "synchronous or asynchronous scheduling is not known",
        Action.DECLINE,
        "nothing can be proven about a count without knowing how it is kept",
        _scheduling_unknown,
    ),
    Rule(
        "rank_unknown",
        "pipeline rank not known, or not below the size",
        Action.DECLINE,
        "whether this rank sees rejections is not known",
        _rank_unknown,
    ),
)

_WEIGHT: Final = {Action.CORRECT: 0, Action.DECLINE: 1, Action.REFUSE: 2}
QUIET_STEP: Final = StepFacts(num_draft_tokens=0, structured_output=False, counts_continuous=True)


def decide(runner: RunnerFacts, step: StepFacts) -> Decision:
    """Decide who is the authority for this step's host lengths; never raises, and what is not known is the device's.

    A reason is a rule's name, with `:unknown` behind it where the fact could not be read. `action` is the strictest
    of the rules that spoke, or None where the scheduler's counts may be used.
    """
    reasons: list[str] = []
    action: Action | None = None
    for rule in RULES:
        answer = rule.test(runner, step)
        if answer is False:
            continue
        reasons.append(rule.name if answer else f"{rule.name}:unknown")
        wanted = rule.action if answer else rule.unknown_action
        if action is None or _WEIGHT[wanted] > _WEIGHT[action]:
            action = wanted
    if action is None:
        return Decision(Source.SCHEDULER, (), None)
    return Decision(Source.DEVICE, tuple(reasons), action)


def decide_runner(runner: RunnerFacts) -> Decision:
    """Decide what holds for every step of this runner: `decide` on a step in which nothing special happens."""
    return decide(runner, QUIET_STEP)


def explain(reasons: tuple[str, ...]) -> str:
    """One line for people: each reason with the fact behind it."""
    facts = {rule.name: rule.fact for rule in RULES}
    parts = []
    for reason in reasons:
        name, _, unknown = reason.partition(":")
        parts.append(f"{name} ({facts.get(name, name)}{', could not be read' if unknown else ''})")
    return "; ".join(parts)
