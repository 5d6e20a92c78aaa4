"""Protocol and raw results in, verdict.json out: the one function that `run`, `verify` and `report` all call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import checks, decision
from .analysis import Ask, Role, Row, Settings, Start, analyse
from .compare import start_values
from .errors import ResultError
from .verdict import METHOD, Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .packet.records import PacketRecord
    from .protocol import Claim, Protocol
    from .samples import Result


def evaluate(
    protocol: Protocol,
    packet: PacketRecord,
    runs: Mapping[tuple[int, str], Result],
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Everything that verdict.json holds; runs: (start index, scenario name) -> that client run."""
    invalid = checks.breaches(protocol, packet, runs)
    calibration = packet.calibration
    context = Context(
        invalid=tuple(invalid),
        aa_rate=calibration.false_positive_rate if calibration else None,
        aa_pairs=calibration.pairs if calibration else None,
        independent=packet.independent,
    )
    starts = starts_of(packet, runs)
    settings = Settings(protocol.decision.level, protocol.decision.resamples, protocol.decision.power)
    complete = [pair for pair in {s.pair for s in starts} if sum(s.pair == pair for s in starts) == 2]
    rows: list[Row] = []
    try:
        rows = analyse(starts, asks_of(protocol), settings, context, progress) if complete else []
    except ResultError as problem:
        # A metric that the results do not have is found after the last start: the packet must still be written.
        invalid.append(f"a declared metric cannot be computed: {problem}")
    by_role: dict[Role, list[Row]] = {"primary": [], "gate": [], "secondary": [], "exploratory": []}
    for row in rows:
        by_role[row.role].append(row)
    # A decision is what the gates are for: a claim without any (an A/A run) decides nothing.
    gated = None
    if rows and by_role["gate"]:
        gated = decision.gate(by_role["primary"][0].verdict, [r.verdict for r in by_role["gate"]])
    counters = [(start.arm, start.counters) for start in packet.starts]
    shown = decision.mechanism(protocol.mechanism.rules if protocol.mechanism else (), counters)
    return {
        "version": 1,
        "method": METHOD,
        "status": by_role["primary"][0].verdict.status if rows else "INVALID",
        "sentence": by_role["primary"][0].verdict.sentence
        if rows
        else f"INVALID: {invalid[-1]}."
        if invalid
        else "INVALID: no complete pair of starts.",
        "rows": [row.to_json() for row in rows],
        "decision": gated.to_json() if gated else None,
        "mechanism": shown.to_json(),
        "invalid": invalid,
        "outputs": checks.output_report(protocol, packet.starts, runs),
        "intention_to_measure": _intention(protocol, packet, runs),
        "warnings": protocol.warnings(),
    }


def asks_of(protocol: Protocol) -> list[Ask]:
    """The protocol's claims as questions to the analysis."""

    def ask(claim: Claim, role: Role) -> Ask:
        return Ask(claim.metric, claim.scenario, role, claim.rule, claim.margin, claim.direction)

    return [
        ask(protocol.primary, "primary"),
        *(ask(claim, "gate") for claim in protocol.gates),
        *(ask(claim, "secondary") for claim in protocol.secondary),
    ]


def starts_of(packet: PacketRecord, runs: Mapping[tuple[int, str], Result]) -> list[Start]:
    """Metrics of each start by scenario."""
    found = []
    for record in packet.starts:
        values, tails = {}, {}
        for scenario in record.files:
            if (record.index, scenario) in runs:
                values[scenario], tails[scenario] = start_values([runs[record.index, scenario]])
        found.append(Start(record.arm, record.pair, values, tails))
    return found


def _intention(
    protocol: Protocol, packet: PacketRecord, runs: Mapping[tuple[int, str], Result]
) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for arm in ("A", "B"):
        mine = [start for start in packet.starts if start.arm == arm]
        done = [runs[s.index, name] for s in mine for name in s.files if (s.index, name) in runs]
        table[arm] = {
            "planned": protocol.design.pairs,
            "complete": len(mine),
            "excluded": sum(record.arm == arm for record in packet.excluded),
            "requests_completed": sum(run.completed for run in done),
            "requests_failed": sum(run.failed for run in done),
            "teardown_tracebacks": sum(start.teardown_tracebacks for start in mine),
        }
    return table
