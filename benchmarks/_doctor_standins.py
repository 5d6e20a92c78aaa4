"""What edited plugin code holds in place of what the core does not have, and the functions that edits call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Missing:
    """Stands for a name that the core does not have, so that the module goes on to its next fault.

    It can be a base class, a decorator, an annotation, a callable; every attribute of it is missing too.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_missing"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"{self._missing}.{attribute}")
        return Missing(f"{self._missing}.{attribute}")

    def __setattr__(self, attribute: str, value: Any) -> None:
        self.__dict__[attribute] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Missing):
            return args[0]  # a decorator
        return Missing(f"{self._missing}()")

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (MissingBase,)

    def __instancecheck__(self, _instance: object) -> bool:
        return False

    def __subclasscheck__(self, _subclass: type) -> bool:
        return False

    def __getitem__(self, _item: Any) -> Missing:
        return Missing(f"{self._missing}[]")

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __or__(self, _other: object) -> Any:
        return Any

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<missing {self._missing}>"


class Partial:
    """A package of which one module is missing: as `import package.missing.module` binds it."""

    def __init__(self, module: Any, rest: tuple[str, ...]) -> None:
        self.__dict__.update(_module=module, _rest=rest)

    def __getattr__(self, name: str) -> Any:
        module, rest = self._module, self._rest
        if not rest or name != rest[0]:
            return getattr(module, name)
        if not hasattr(module, name):
            return Missing(f"{module.__name__}.{name}")
        return Partial(getattr(module, name), rest[1:])

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def _partial(name: str) -> Partial:
    top, *rest = name.split(".")
    return Partial(__import__(top), tuple(rest))


class MissingBase:
    """The base of a class whose real base the core does not have: accepts any construction."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, _item: Any) -> Any:
        return cls


def _read_or_nothing(owner: Any, name: str, called: bool) -> Any:
    placeholder = called or isinstance(owner, type(sys))
    return getattr(owner, name, Missing(f"{getattr(owner, '__name__', owner)}.{name}") if placeholder else None)


def _getattr(owner: Any, name: str, *missing: str) -> Any:
    return getattr(owner, name, None) if name in missing else getattr(owner, name)


def _guess(name: str, scope: dict[str, Any]) -> Any:
    """What a caller probably means by an argument: its own variable, or an attribute of its `self`, of that name."""
    if name in scope:
        return scope[name]
    for owner in (scope.get("self"), scope.get("vllm_config")):
        if owner is not None and hasattr(owner, name):
            return getattr(owner, name)
    return None


def _callable(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same property; a tensor that it gives can be called, with a length or nothing, and gives itself."""

    def get(self: Any) -> Any:
        import torch

        class CallableTensor(torch.Tensor):  # type: ignore[misc]
            def __call__(self, length: int | None = None) -> Any:
                plain = self.as_subclass(torch.Tensor)
                return plain if length is None else plain[:length]

        value = function(self)
        return value.as_subclass(CallableTensor) if isinstance(value, torch.Tensor) else value

    return get


# Under these names edited code finds them, whatever module it is in.
NAMES = {
    "__doctor_missing__": Missing,
    "__doctor_guess__": _guess,
    "__doctor_read__": _read_or_nothing,
    "__doctor_getattr__": _getattr,
    "__doctor_callable__": _callable,
    "__doctor_partial__": _partial,
}
