"""Text of others made safe to show: no control characters for terminals, no markup for rich, no tags for HTML."""

from __future__ import annotations

import html
import unicodedata

from rich.markup import escape

_KEEP = "\n\t"


def plain(value: object, limit: int = 2_000) -> str:
    """Printable text: control, format (bidi overrides) and surrogate characters become visible escapes."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(_visible(c) for c in text)


def for_rich(value: object, limit: int = 2_000) -> str:
    """Printable text in which rich finds no markup."""
    return escape(plain(value, limit))


def for_html(value: object, limit: int = 2_000) -> str:
    """Printable text for element content and quoted attributes."""
    return html.escape(plain(value, limit), quote=True)


def _visible(character: str) -> str:
    if character in _KEEP or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}"
