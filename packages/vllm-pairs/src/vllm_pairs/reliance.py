"""What a package's hooks rely on beyond their own targets, and the pairs it was verified with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_pairs.contract import ast_sha256
from vllm_pairs.errors import ContractError
from vllm_pairs.pairs import load_pairs
from vllm_pairs.targets import TargetProblem, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vllm_pairs.pairs import Pair


def verified_with(package: str) -> tuple[str, ...]:
    """Ids of the pairs on which a package tested something, in the table's order."""
    return tuple(pair.id for pair in load_pairs().pairs if pair.checks_of(package))


def unverified(pair: Pair, package: str) -> str | None:
    """Why a package may not take this pair for verified, or None."""
    if pair.verified and pair.checks_of(package):
        return None
    return f"pair {pair.id} was not verified with this package (`vllm-pairs list` shows which are)"


def changed_reliance(
    relied_on: Mapping[str, Collection[str]], optional: Mapping[str, Collection[str]] | None = None
) -> str | None:
    """The first function that is not as it was read, with what was expected and found; None: all are.

    Both map a target (`module:Class.method`) to the hashes of `ast_sha256` that were read; one of `optional` may be
    missing in this version.
    """
    optional = optional or {}
    for target, accepted in {**relied_on, **optional}.items():
        try:
            found = ast_sha256(resolve(target).function)
        except (TargetProblem, ContractError) as problem:
            if target in optional and getattr(problem, "difference", None) == "missing":
                continue
            return f"{target}: {problem}"
        if found not in accepted:
            return f"{target}: expected {' or '.join(accepted)}, found {found}"
    return None
