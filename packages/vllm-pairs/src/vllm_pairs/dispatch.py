"""The one object that stands in a hooked function's place.

wrapt stands where calls are rare, since it keeps signature, class and binding as they were; a plain closure where they
are hot, at about a third of wrapt's cost. wrapt cannot relink a stack of its own wrappers when a lower one goes, so the
chain of hooks is kept here and only the outermost object is wrapt's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.hooks import Hook
    from vllm_pairs.targets import Target


class Dispatcher:
    """The hooks of one target, composed; puts its skin into the holder and takes it out again."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.hooks: tuple[Hook, ...] = ()
        self.chain: Callable[..., Any] = self._bottom()
        self._skin: Any = None
        self._entry: Any = None  # the skin as it lies in the holder: itself, or inside staticmethod/classmethod

    def find(self, name: str) -> Hook | None:
        """The hook of that name, if it is in."""
        return next((hook for hook in self.hooks if hook.name == name), None)

    def add(self, hook: Hook) -> None:
        """Compose one more hook; the first one puts the skin in place."""
        self._compose(tuple(sorted((*self.hooks, hook), key=lambda one: one.order)))
        if self._skin is None:
            self._put(hot=hook.hot)
        elif hook.hot and isinstance(self._skin, wrapt.FunctionWrapper) and self._in_place():
            self._put(hot=True)

    def discard(self, hook: Hook) -> None:
        """Take one hook out of the chain; the skin stays, and passes calls on."""
        self._compose(tuple(one for one in self.hooks if one != hook))

    def restore(self) -> bool:
        """Give the holder its own entry back; False where somebody wrapped our skin, which then has to stay."""
        if self._skin is None:
            return True
        if not self._in_place():
            return False
        if self.target.raw is None:
            delattr(self.target.holder, self.target.name)
        else:
            setattr(self.target.holder, self.target.name, self.target.raw)
        self._skin = self._entry = None
        return True

    def is_skin(self, function: Any) -> bool:
        """Whether a function is what this dispatcher put in its target's place."""
        return self._skin is not None and function is self._skin

    def _in_place(self) -> bool:
        return vars(self.target.holder).get(self.target.name) is self._entry

    def _compose(self, hooks: tuple[Hook, ...]) -> None:
        chain = self._bottom()
        for hook in reversed(hooks):
            chain = functools.partial(hook.wrapper, chain)
        self.hooks, self.chain = hooks, chain

    def _bottom(self) -> Callable[..., Any]:
        """The function itself; an inherited one is looked up at each call, so that hooks on its base fire too."""
        target = self.target
        if target.raw is not None:
            return target.function
        holder, name = target.holder, target.name
        if target.kind == "staticmethod":
            return lambda *args, **kwargs: getattr(super(holder, holder), name)(*args, **kwargs)  # noqa: PLW0108
        return lambda bound, *args, **kwargs: getattr(super(holder, bound), name)(*args, **kwargs)

    def _put(self, *, hot: bool) -> None:
        kind = self.target.kind
        # staticmethod and classmethod bind their inner object in ways that differ between Python versions.
        self._skin = self._closure() if hot or kind in ("staticmethod", "classmethod") else self._wrapt()
        self._entry = {"staticmethod": staticmethod, "classmethod": classmethod}.get(kind, lambda skin: skin)(
            self._skin
        )
        setattr(self.target.holder, self.target.name, self._entry)

    def _closure(self) -> Callable[..., Any]:
        @functools.wraps(self.target.function)
        def skin(*args: Any, **kwargs: Any) -> Any:
            return self.chain(*args, **kwargs)

        return skin

    def _wrapt(self) -> Any:
        is_method = self.target.kind == "method"

        def enter(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self.chain(instance, *args, **kwargs) if is_method else self.chain(*args, **kwargs)

        return wrapt.FunctionWrapper(self.target.function, enter)
