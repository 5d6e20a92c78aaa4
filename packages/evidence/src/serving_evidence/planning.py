"""Before a run: how many pairs, from pilot data or a known spread; and the A/A calibration of an earlier packet."""

from __future__ import annotations

from math import log1p
from typing import TYPE_CHECKING, Any

import numpy as np

from . import stats
from .compare import compare_folders
from .errors import EvidenceError
from .packet.records import CalibrationRecord
from .packet.verify import verify
from .stats import MIN_PAIRS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SIZES = (6, 8, 10, 12, 16, 20, 30, 50)


def plan_power(
    pilot: Sequence[Path],
    packet: Path | None,
    metric: str,
    sd: float | None,
    effect: float | None,
    margin: float,
    target: float,
    level: float,
) -> dict[str, Any]:
    """Detectable effects by number of pairs, and the pairs that `effect` needs; from pilot data or from `sd`."""
    notes = []
    if (sd is not None) + bool(pilot) + (packet is not None) != 1:
        raise EvidenceError("give one of: two pilot folders, --packet, --sd")
    if sd is None:
        if packet is not None:
            effects = _packet_effects(packet, metric)
        elif len(pilot) == 2:
            effects = _folder_effects(pilot[0], pilot[1], metric)
        else:
            raise EvidenceError(f"a pilot is two folders (A and B); got {len(pilot)}")
        sd, note = _spread(effects)
        notes.append(note)
    needed = None
    if effect is not None:
        if effect <= -1:
            raise EvidenceError(f"--effect is {effect!r}: a fraction above -1, 0.02 for 2 %")
        needed = stats.pairs_needed(log1p(effect), sd, margin=log1p(margin), target=target, level=level)
        notes.append(
            f"an effect of {effect:+.2%} against a margin of {margin:.2%} needs "
            + (f"{needed} pairs" if needed else "more than 2,000 pairs")
            + f" for a power of {target:.0%}"
        )
    rows = [
        {
            "pairs": n,
            "at_80": float(np.expm1(stats.detectable(n, sd, 0.8, level))),
            "at_90": float(np.expm1(stats.detectable(n, sd, 0.9, level))),
            "smallest_p": 2.0 ** (1 - n),
        }
        for n in _SIZES
    ]
    notes.append(f"below {MIN_PAIRS} pairs every verdict is INCONCLUSIVE")
    return {"version": 1, "metric": metric, "sd": sd, "rows": rows, "pairs_needed": needed, "notes": notes}


def calibration_of(packet: Path) -> CalibrationRecord:
    """A/A calibration from a verified packet, on its primary metric."""
    verified = verify(packet)
    rows = [row for row in verified.verdict["rows"] if row["role"] == "primary"]
    if not rows or len(rows[0]["effects"]) < 2 or verified.verdict["invalid"]:
        raise EvidenceError(f"{packet}: no valid A/A run with at least 2 pairs")
    arms = verified.protocol.arms
    if (arms["A"].command, arms["A"].environment, arms["A"].additional_config) != (
        arms["B"].command,
        arms["B"].environment,
        arms["B"].additional_config,
    ):
        raise EvidenceError(f"{packet}: its arms differ, so it is no A/A run")
    found = stats.calibrate(rows[0]["effects"], verified.protocol.decision.level)
    return CalibrationRecord(
        pairs=found.pairs,
        false_positive_rate=found.false_positive_rate,
        metric=rows[0]["verdict"]["metric"],
        source=f"{verified.packet.name} {verified.packet.protocol_hash}",
    )


def _folder_effects(a: Path, b: Path, metric: str) -> Sequence[float]:
    rows = [row for row in compare_folders(a, b, metric=metric).rows if row.role == "primary"]
    return rows[0].effects


def _packet_effects(packet: Path, metric: str) -> Sequence[float]:
    rows = [row for row in verify(packet).verdict["rows"] if row["verdict"]["metric"] == metric]
    if not rows:
        raise EvidenceError(f"{packet}: no claim on {metric!r}; --metric names one of its metrics")
    return [float(effect) for effect in rows[0]["effects"]]


def _spread(found: Sequence[float]) -> tuple[float, str]:
    effects = np.asarray(found)
    if effects.size < 2:
        raise EvidenceError(f"the pilot has {effects.size} pair; a spread needs at least 2")
    upper = stats.sd_upper(effects)
    return upper, (
        f"planned with {upper:.3%}, the 80 % upper bound of the pilot's spread "
        f"({float(effects.std(ddof=1)):.3%} over {effects.size} pairs)"
    )
