"""Whether a function can take a call: parameters read from a definition, a call's shape, and binding one to the other.

Parameters come from griffe, so that every kind (positional-only, keyword-only, `*args`, `**kwargs`) is its own.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from griffe import ParameterKind, get_parameters

from vllm_pairs.doctor.spread import NO_KEYS, Keys

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: its name, kind, and whether a call has to give it."""

    name: str
    kind: ParameterKind
    required: bool

    @property
    def positional(self) -> bool:
        """Whether a position can fill it."""
        return self.kind in (ParameterKind.positional_only, ParameterKind.positional_or_keyword)

    @property
    def keyword(self) -> bool:
        """Whether a keyword can fill it."""
        return self.kind in (ParameterKind.keyword_only, ParameterKind.positional_or_keyword)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of something callable; `bound` of them are filled before the call's own (self, cls)."""

    params: tuple[Param, ...]
    bound: int = 0

    @property
    def free(self) -> tuple[Param, ...]:
        """What a call has to fill."""
        return self.params[self.bound :]

    @property
    def star(self) -> bool:
        """Whether it takes any number of positions."""
        return any(param.kind is ParameterKind.var_positional for param in self.params)

    @property
    def double_star(self) -> bool:
        """Whether it takes any keyword."""
        return any(param.kind is ParameterKind.var_keyword for param in self.params)

    def text(self) -> str:
        """As in a def statement, without annotations; a default is shown as "=..."."""
        parts: list[str] = []
        starred = False
        for param in self.params:
            if param.kind is ParameterKind.var_positional:
                starred = True
                parts.append(f"*{param.name}")
            elif param.kind is ParameterKind.var_keyword:
                parts.append(f"**{param.name}")
            else:
                if param.kind is ParameterKind.keyword_only and not starred:
                    starred = True
                    parts.append("*")
                parts.append(param.name if param.required else f"{param.name}=...")
        return f"({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class CallShape:
    """What a call passes: positions, keyword names, and whether `*x` or `**x` hide more of each."""

    positions: int
    keywords: tuple[str, ...] = ()
    star: bool = False
    double_star: bool = False

    def text(self) -> str:
        """The call as text: "(2 positions, block_tables=, **...)"."""
        parts = [f"{self.positions} position{'s' if self.positions != 1 else ''}"] if self.positions else []
        parts += [*(["*..."] if self.star else []), *(f"{word}=" for word in self.keywords)]
        return f"({', '.join([*parts, *(['**...'] if self.double_star else [])])})"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a call is refused: which argument or parameter, and Python's reason in words."""

    why: str  # "unexpected", "missing", "positions", "twice"
    argument: str
    text: str


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, bound: int = 0) -> Signature:
    """The signature of a definition."""
    params = [
        Param(
            name.lstrip("*"),
            kind,
            default is None and kind not in (ParameterKind.var_positional, ParameterKind.var_keyword),
        )
        for name, _, kind, default in get_parameters(node.args)
    ]
    return Signature(tuple(params), bound)


def shape_of(call: ast.Call, spread: Callable[[ast.expr], Keys] = lambda node: NO_KEYS) -> CallShape:
    """The shape of a call in source; `spread` tells the keys of what `**` is applied to."""
    positions = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    keywords: list[str] = []
    double_star = False
    for word in call.keywords:
        keys = Keys((word.arg,), all=True) if word.arg is not None else spread(word.value)
        keywords += keys.names
        double_star = double_star or not keys.all
    return CallShape(len(positions), tuple(keywords), len(positions) < len(call.args), double_star)


def misfit(signature: Signature, call: CallShape) -> Misfit | None:
    """Why Python would refuse the call with TypeError, or None."""
    return next(iter(misfits(signature, call)), None)


def misfits(signature: Signature, call: CallShape) -> list[Misfit]:
    """Everything for which Python would refuse the call, one after the other as each is mended.

    What `*x` and `**x` hide is given every doubt.
    """
    found: list[Misfit] = []
    free = signature.free
    slots = [param for param in free if param.positional]
    if call.positions > len(slots) and not signature.star:
        found.append(Misfit("positions", "", f"takes {len(slots)} positions, {call.positions} are given"))
    filled = {param.name for param in slots[: call.positions]}
    by_name = {param.name for param in free if param.keyword}
    for word in call.keywords:
        if word in filled and word in by_name:
            found.append(Misfit("twice", word, f"argument {word!r} is given by position and by name"))
        elif word not in by_name and not signature.double_star:
            found.append(Misfit("unexpected", word, f"takes no argument {word!r}"))
    if call.double_star:
        return found
    for number, param in enumerate(free):
        if not param.required or param.name in filled or param.name in call.keywords:
            continue
        if call.star and param.positional and number >= call.positions:
            continue
        found.append(Misfit("missing", param.name, f"needs an argument {param.name!r}"))
    return found


def narrower(base: Signature, override: Signature) -> Misfit | None:
    """A call that the base takes and the override refuses (its first misfit), or None where every call still fits."""
    free = base.free
    everything = CallShape(0, tuple(param.name for param in free if param.keyword))
    lone = [param for param in free if param.kind is ParameterKind.positional_only]
    if not lone and (found := misfit(override, everything)):
        return found
    by_position = CallShape(
        sum(param.positional for param in free),
        tuple(param.name for param in free if param.kind is ParameterKind.keyword_only),
    )
    if found := misfit(override, by_position):
        return found
    required = CallShape(
        sum(param.positional and param.required for param in free),
        tuple(param.name for param in free if param.kind is ParameterKind.keyword_only and param.required),
    )
    return misfit(override, required)
