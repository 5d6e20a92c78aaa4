"""One self-contained HTML page of a verified packet: no script, nothing loaded, all text of the packet escaped."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from .pages.html import chip, h
from .pages.sections import sections

if TYPE_CHECKING:
    from .packet import Verified

_PAGE_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:1rem auto;max-width:62rem;padding:0 1rem}
code{overflow-wrap:anywhere}table.se,.se-code{font-size:.85rem}
"""


def style() -> str:
    """The style sheet that report and site share."""
    return resources.files(__package__).joinpath("pages/evidence.css").read_text(encoding="utf-8")


def page(verified: Verified, name: str) -> str:
    """The page; every number comes from the recomputed verdict."""
    title = h(verified.protocol.name)
    parts = [f"<h1>{title} {chip(verified.verdict['status'])}</h1>"]
    parts += [f"<h2>{h(section.title)}</h2>{section.html}" for section in sections(verified, name)]
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{title}</title><style>{_PAGE_STYLE}{style()}</style>{''.join(parts)}</html>\n"
    )
