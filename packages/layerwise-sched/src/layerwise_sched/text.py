"""Text of others made safe to show: no control characters for terminals, no markup for rich, no tags for HTML."""

from __future__ import annotations

import html
import unicodedata


def plain(value: object, limit: int = 500) -> str:
    """Printable text: control, format (bidi overrides) and surrogate characters become visible escapes."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(character if _printable(character) else f"\\u{ord(character):04x}" for character in text)


def for_html(value: object, limit: int = 500) -> str:
    """Printable text for element content and quoted attributes."""
    return html.escape(plain(value, limit), quote=True)


def for_rich(value: object, limit: int = 500) -> str:
    """Printable text in which rich finds no markup."""
    from rich.markup import escape

    return escape(plain(value, limit))


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
