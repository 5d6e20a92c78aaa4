"""A name that exists so that upstream modules import, and refuses by its full name as soon as it is really used."""

from __future__ import annotations

from typing import Any, NoReturn


class NotSimulatedError(NotImplementedError):
    """Something of the Ascend software stack that has no CPU reference was called; the message names it."""


class Absent:
    """Placeholder for one dotted name, e.g. ``torch_npu.npu_format_cast``.

    Attribute access goes one name deeper, because upstream names things at import that it never calls on the paths
    that run here. A call, a truth test or an iteration is a use, and is refused.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_absent_name"] = name

    def __getattr__(self, attribute: str) -> Absent:
        if attribute.startswith("__"):
            raise AttributeError(f"{self._absent_name}.{attribute}")
        return Absent(f"{self._absent_name}.{attribute}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse: what was called has no reference. Raises `NotSimulatedError`."""
        raise NotSimulatedError(
            f"{self._absent_name} has no CPU reference in ascend-sim: see `ascend-sim doctor` for what there is"
        )

    def __bool__(self) -> NoReturn:  # noqa: PLE0304 - a truth test is a use, and is refused like a call
        self()

    def __iter__(self) -> NoReturn:
        self()

    def __repr__(self) -> str:
        return f"<absent {self._absent_name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absent) and other._absent_name == self._absent_name

    def __hash__(self) -> int:
        return hash(self._absent_name)

    # Names that appear in annotations, isinstance checks and base-class lists at import time.
    def __or__(self, other: object) -> Any:
        return Any

    __ror__ = __or__

    def __instancecheck__(self, _instance: object) -> bool:
        return False

    def __subclasscheck__(self, _subclass: type) -> bool:
        return False

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)
