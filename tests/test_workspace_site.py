"""The check that the built site asks nothing of the network finds what a page would load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import site_check  # noqa: E402

HARMLESS = """<html><head><link rel="canonical" href="https://example.org/"><link rel=stylesheet href="a.css">
<style>body { background: url(data:image/png;base64,AAAA) }</style></head>
<body><a href="https://example.org/read">read</a><script src="js/app.js"></script><img src="a.svg"></body></html>"""


def site(tmp_path: Path, page: str, style: str = "") -> Path:
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "a.css").write_text(style)
    return tmp_path


def test_links_that_a_reader_follows_are_no_requests(tmp_path: Path) -> None:
    assert site_check.requests(site(tmp_path, HARMLESS)) == []
    assert site_check.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "planted",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.org/css">',
        '<link href="https://fonts.example.org" rel="preconnect" crossorigin>',
        "<img src='http://example.org/badge.svg'>",
        '<p style="background: url(https://example.org/b.png)">',
        "<style>@import 'https://example.org/a.css';</style>",
    ],
)
def test_a_planted_request_is_found(tmp_path: Path, planted: str) -> None:
    found = site_check.requests(site(tmp_path, HARMLESS.replace("<body>", f"<body>{planted}")))
    assert len(found) == 1
    assert "example.org" in found[0]
    assert site_check.main([str(tmp_path)]) == 1


def test_a_font_in_a_style_sheet_is_found(tmp_path: Path) -> None:
    style = "@font-face { src: url('https://fonts.example.org/a.woff2') }"
    assert len(site_check.requests(site(tmp_path, HARMLESS, style))) == 1


def test_no_site_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert site_check.main([str(tmp_path)]) == 2
    assert "nox -s docs" in capsys.readouterr().err
