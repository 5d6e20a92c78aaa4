"""What can go wrong. Every message says what was wrong, the value, and what to do."""

from __future__ import annotations

from typing import Literal

Difference = Literal["module", "missing", "kind", "signature", "ast", "conflict"]


class PairsError(Exception):
    """Base of every error of this package."""


class PairTableError(PairsError, ValueError):
    """The pair table breaks its own form; the message names the row and the field."""


class UnknownPairError(PairsError, KeyError):
    """No row has this id."""

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(PairsError, ValueError):
    """A key of the additional config or its environment variable cannot be used."""


class ContractError(PairsError, ValueError):
    """A function's contract cannot be computed (no Python source, not a function)."""


class HookRefused(PairsError, RuntimeError):  # noqa: N818 - named for what it says
    """A hook's target is not what the hook relies on; nothing was installed.

    Attributes: `hook` (its name), `target`, `difference` (module, missing, kind, signature, ast or conflict),
    `expected`, `found`, `pair` (id of the installed pair) and `verified` (ids the hook was verified with).
    """

    def __init__(
        self,
        *,
        hook: str,
        target: str,
        difference: Difference,
        expected: str,
        found: str,
        pair: str,
        verified: tuple[str, ...] = (),
    ) -> None:
        self.hook, self.target, self.difference = hook, target, difference
        self.expected, self.found, self.pair, self.verified = expected, found, pair, verified
        known = ", ".join(verified) or "none"
        super().__init__(
            f"hook {hook!r} refused on {target} ({difference}): expected {expected}, found {found}; "
            f"installed pair {pair}, hook verified with {known}. Nothing was installed. {self._fix()}"
        )

    def _fix(self) -> str:
        if self.difference == "conflict":
            return "Remove the hook of that name first, or give this one another name."
        return (
            "Install a verified pair (`vllm-pairs list`), or read what changed and, if the hook still holds, "
            f"add the contract that `vllm-pairs hash {self.target}` prints."
        )
