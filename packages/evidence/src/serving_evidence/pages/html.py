"""Small pieces of HTML, everything that came from a packet escaped on the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..text import for_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Safe(str):
    """HTML made by this package; every other text is escaped."""

    __slots__ = ()


def h(value: object, limit: int = 2_000) -> Safe:
    """Escaped text on one line: in the Markdown of the site an empty line would end the HTML around it."""
    return value if isinstance(value, Safe) else Safe(for_html(value, limit).replace("\n", " ").replace("\t", " "))


def code(value: object) -> Safe:
    """Text in the form of code."""
    return Safe(f"<code>{h(value)}</code>")


def chip(status: str) -> Safe:
    """A verdict as a coloured word; the word alone says it all."""
    return Safe(f'<span class="se-chip se-{h(status.lower().replace("_", "-"))}">{h(status)}</span>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Safe:
    """A table; on a narrow screen it scrolls by itself."""
    top = "".join(f"<th>{h(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{h(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return Safe(f'<div class="se-table"><table class="se">{inside}</table></div>')


def items(values: Iterable[object]) -> Safe:
    """A list."""
    return Safe("<ul>" + "".join(f"<li>{h(value)}</li>" for value in values) + "</ul>")


def paragraph(value: object) -> Safe:
    """One paragraph."""
    return Safe(f"<p>{h(value)}</p>")


def folded(summary: str, content: str) -> Safe:
    """Content that a reader opens."""
    return Safe(f"<details><summary>{h(summary)}</summary>{content}</details>")
