"""The verdict rule, compound gates and the mechanism, case by case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from serving_evidence import decision
from serving_evidence.protocol import CounterRule
from serving_evidence.verdict import Context, Verdict, decide, judge

NOISE = np.array([-0.004, -0.002, -0.001, 0.001, 0.002, 0.004])


def verdict(shift: float, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {"metric": "output_throughput", "scenario": "c8"}
    return judge(NOISE + shift, **(fields | changes))


@pytest.mark.parametrize(
    ("low", "high", "rule", "margin", "status"),
    [
        (0.011, 0.02, "better", 0.01, "REPRODUCED"),
        (0.01, 0.02, "better", 0.01, "INCONCLUSIVE"),
        (0.0, 0.009, "better", 0.01, "NOT_REPRODUCED"),
        (0.0, 0.01, "better", 0.01, "INCONCLUSIVE"),
        (-0.009, 0.5, "not-worse", 0.01, "REPRODUCED"),
        (-0.5, -0.011, "not-worse", 0.01, "NOT_REPRODUCED"),
        (-0.5, 0.5, "not-worse", 0.01, "INCONCLUSIVE"),
        (-0.009, 0.009, "same", 0.01, "REPRODUCED"),
        (-0.011, 0.0, "same", 0.01, "INCONCLUSIVE"),
        (0.011, 0.02, "same", 0.01, "NOT_REPRODUCED"),
        (-0.02, -0.011, "same", 0.01, "NOT_REPRODUCED"),
        (float("-inf"), float("inf"), "better", 0.0, "INCONCLUSIVE"),
    ],
)
def test_rule(low: float, high: float, rule: Any, margin: float, status: str) -> None:
    assert decide(low, high, rule, margin) == status


def test_statuses_by_shift() -> None:
    assert verdict(0.02).status == "REPRODUCED"
    assert verdict(-0.02).status == "NOT_REPRODUCED"
    assert verdict(0.0).status == "INCONCLUSIVE"
    assert verdict(0.02, margin=0.05).status == "NOT_REPRODUCED"
    assert verdict(0.0, rule="not-worse", margin=0.01).status == "REPRODUCED"
    assert verdict(0.0, rule="same", margin=0.02).status == "REPRODUCED"


@pytest.mark.parametrize("pairs", [0, 1, 2, 3, 4, 5])
def test_below_six_pairs_nothing_but_inconclusive(pairs: int) -> None:
    found = judge(NOISE[:pairs] + 1.0, metric="m", scenario="s")
    assert found.status == "INCONCLUSIVE"
    assert found.pairs_still_needed is not None
    assert found.pairs_still_needed >= 6 - pairs
    assert "at least 6 pairs" in found.sentence


def test_a_breach_beats_any_number() -> None:
    found = verdict(0.5, context=Context(invalid=("the starts did not run in the planned order",)))
    assert found.status == "INVALID"
    assert "planned order" in found.sentence


def test_the_sentence_says_everything() -> None:
    context = Context(aa_rate=0.03125, aa_pairs=8, independent=True)
    text = verdict(0.02, context=context).sentence
    for words in ("REPRODUCED", "+2.02 %", "95% interval", "bootstrap-t", "6 pairs, 6 positive", "A/A rate 3.1%"):
        assert words in text
    assert "independent party" in text
    assert "not independent" in verdict(0.02).sentence
    assert "no A/A calibration" in verdict(0.02).sentence
    assert "more pairs" in verdict(0.001).sentence


def test_users_five_pairs_are_inconclusive_here() -> None:
    # Their published saturated run: mean -0.41 %, 2 of 5 positive. Five pairs decide nothing under this rule.
    found = judge([-0.012, 0.004, -0.009, 0.002, -0.0055], metric="output_throughput", scenario="saturated")
    assert (found.status, found.positive_pairs) == ("INCONCLUSIVE", 2)


def made(status: Any, metric: str = "m") -> Verdict:
    base = verdict(0.02)
    return Verdict(**{**base.__dict__, "status": status, "metric": metric, "reasons": ("because",)})


@pytest.mark.parametrize(
    ("primary", "gates", "choice"),
    [
        ("REPRODUCED", [], "ADOPT"),
        ("REPRODUCED", ["REPRODUCED", "REPRODUCED"], "ADOPT"),
        ("REPRODUCED", ["REPRODUCED", "NOT_REPRODUCED"], "OPT-IN"),
        ("REPRODUCED", ["INCONCLUSIVE"], "OPT-IN"),
        ("INCONCLUSIVE", ["REPRODUCED"], "OPT-IN"),
        ("INCONCLUSIVE", ["NOT_REPRODUCED"], "REJECT"),
        ("NOT_REPRODUCED", ["REPRODUCED"], "REJECT"),
        ("INVALID", ["REPRODUCED"], "NONE"),
        ("REPRODUCED", ["INVALID"], "NONE"),
    ],
)
def test_gates(primary: str, gates: list[str], choice: str) -> None:
    found = decision.gate(made(primary), [made(status, f"g{i}") for i, status in enumerate(gates)])
    assert found.choice == choice
    assert (found.positive_pairs, found.pairs) == (6, 6)


RULES = [CounterRule(counter="d2h", A=1.0, B=0.0)]


def test_mechanism_is_exact() -> None:
    good = [("A", {"d2h": 1.0}), ("B", {"d2h": 0.0}), ("B", {"d2h": 0.0})]
    assert decision.mechanism(RULES, good).status == "SHOWN"
    wrong = decision.mechanism(RULES, [*good, ("B", {"d2h": 1e-9})])
    assert wrong.status == "NOT_SHOWN"
    assert "start 3 of arm B" in wrong.reason
    assert decision.mechanism(RULES, good[:1]).status == "NOT_MEASURED"
    assert decision.mechanism(RULES, [*good, ("A", {"h2d": 1.0})]).status == "NOT_MEASURED"
    assert decision.mechanism([], good).status == "NOT_MEASURED"
